#include "tools/demo/workload.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <fstream>
#include <iterator>

namespace kvc::demo {
namespace {

constexpr std::string_view kSystemText =
#include "texts/system.inc"
    ;
constexpr std::string_view kUsersText =
#include "texts/users.inc"
    ;

constexpr size_t kLargestFile = 1 << 20;

std::string read_text(const std::string& path, const char* option) {
  std::ifstream file(path, std::ios::binary);
  if (!file)
    throw UsageError(std::string(option) + ": cannot open '" + path + "': " + std::strerror(errno));
  std::string text(kLargestFile + 1, '\0');
  file.read(text.data(), static_cast<std::streamsize>(text.size()));
  if (file.bad() || (file.fail() && !file.eof()))
    throw UsageError(std::string(option) + ": cannot read '" + path + "'");
  text.resize(static_cast<size_t>(file.gcount()));
  if (text.size() > kLargestFile)
    throw UsageError(std::string(option) + ": '" + path + "' is larger than 1 MiB");
  return text;
}

std::string_view trim(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

std::vector<Token> to_tokens(std::string_view text) { return {text.begin(), text.end()}; }

}  // namespace

std::vector<std::string> split_turns(std::string_view text) {
  std::vector<std::string> lines;     // one turn per line
  std::vector<std::string> sections;  // turns between blank lines
  bool open = false;
  while (!text.empty()) {
    const size_t end = std::min(text.find('\n'), text.size());
    const std::string_view line = trim(text.substr(0, end));
    text.remove_prefix(std::min(end + 1, text.size()));
    if (line.empty()) {
      open = false;
      continue;
    }
    lines.emplace_back(line);
    if (open) {
      sections.back() += '\n';
      sections.back() += line;
    } else {
      sections.emplace_back(line);
    }
    open = true;
  }
  return sections.size() > 1 ? sections : lines;
}

Workload make_workload(const WorkloadOptions& options) {
  const bool own_system = !options.system_path.empty();
  const bool own_users = !options.users_path.empty();
  const std::string system =
      own_system ? read_text(options.system_path, "--system") : std::string(kSystemText);
  const std::string users =
      own_users ? read_text(options.users_path, "--users") : std::string(kUsersText);
  const std::vector<std::string> turns = split_turns(users);
  if (trim(system).empty())
    throw UsageError("--system: '" + options.system_path + "' holds no text");
  if (turns.empty()) throw UsageError("--users: '" + options.users_path + "' holds no user turn");

  Workload workload;
  workload.system = to_tokens(trim(system));
  int64_t arrival = 0;
  for (int i = 0; i < options.conversations; ++i) {
    const uint64_t stream = 1000 + static_cast<uint64_t>(i);
    Conversation conversation;
    conversation.turn = turns[static_cast<size_t>(i) % turns.size()];
    conversation.prompt = workload.system;
    for (const std::string& part :
         {std::string("\n\nVisitor: "), conversation.turn, std::string("\nDesk: ")}) {
      conversation.prompt.insert(conversation.prompt.end(), part.begin(), part.end());
    }
    // Answers end at different lengths, between 5/8 of --max-new and all of it; arrivals are one to
    // three steps apart.
    const int64_t shortest = std::max<int64_t>(1, options.max_new * 5 / 8);
    const auto choices = static_cast<uint64_t>(options.max_new - shortest + 1);
    conversation.max_new =
        shortest + static_cast<int64_t>(random_bits(options.seed, stream, 0) % choices);
    conversation.arrival_step = arrival;
    arrival += 1 + static_cast<int64_t>(random_bits(options.seed, stream, 1) % 3);
    workload.conversations.push_back(std::move(conversation));
  }
  return workload;
}

int64_t Workload::longest_request() const {
  int64_t longest = 0;
  for (const Conversation& c : conversations) {
    // The last token is handed out, never fed back.
    longest = std::max(longest, static_cast<int64_t>(c.prompt.size()) + c.max_new - 1);
  }
  return longest;
}

int64_t Workload::prompt_tokens() const {
  int64_t total = 0;
  for (const Conversation& c : conversations) total += static_cast<int64_t>(c.prompt.size());
  return total;
}

uint64_t random_bits(uint64_t seed, uint64_t stream, uint64_t index) {
  // Three rounds of the SplitMix64 finaliser over the three words (Steele et al., OOPSLA 2014).
  uint64_t x = 0;
  for (const uint64_t word : {seed, stream, index}) {
    x += word + 0x9E3779B97F4A7C15u;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9u;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EBu;
    x ^= x >> 31;
  }
  return x;
}

double random_unit(uint64_t seed, uint64_t stream, uint64_t index) {
  return (static_cast<double>(random_bits(seed, stream, index) >> 11) + 0.5) * 0x1p-53;
}

}  // namespace kvc::demo
