#include "tools/demo/workload.h"

#include <algorithm>

#include "tools/demo/questions.h"
#include "tools/text_file.h"

namespace kvc::demo {
namespace {

constexpr std::string_view kSystemText =
#include "texts/system.inc"
    ;
constexpr std::string_view kUsersText =
#include "texts/users.inc"
    ;
std::string read_text(const std::string& path, const char* option) {
  try {
    return read_text_file(path);
  } catch (const Refusal& refusal) {
    throw UsageError(std::string(option) + ' ' + refusal.what());
  }
}

std::string_view trim(std::string_view text) {
  const auto space = [](char c) { return c == ' ' || c == '\n' || c == '\r' || c == '\t'; };
  while (!text.empty() && space(text.front())) text.remove_prefix(1);
  while (!text.empty() && space(text.back())) text.remove_suffix(1);
  return text;
}

// Bytes are tokens.
std::vector<Token> to_tokens(std::string_view text) {
  std::vector<Token> tokens;
  for (const char byte : text) tokens.push_back(static_cast<unsigned char>(byte));
  return tokens;
}

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

namespace {

std::string system_text(const WorkloadOptions& options, std::string_view own) {
  const std::string text =
      options.system_path.empty() ? std::string(own) : read_text(options.system_path, "--system");
  if (trim(text).empty()) throw UsageError("--system: '" + options.system_path + "' holds no text");
  return std::string(trim(text));
}

std::string users_text(const WorkloadOptions& options) {
  const std::string text = read_text(options.users_path, "--users");
  if (trim(text).empty())
    throw UsageError("--users: '" + options.users_path + "' holds no user turn");
  return text;
}

// Arrivals are one to three steps apart.
void set_arrivals(const WorkloadOptions& options, Workload& workload) {
  int64_t arrival = 0;
  for (size_t i = 0; i < workload.conversations.size(); ++i) {
    workload.conversations[i].arrival_step = arrival;
    arrival += 1 + static_cast<int64_t>(random_bits(options.seed, 1000 + i, 1) % 3);
  }
}

}  // namespace

Workload make_workload(const WorkloadOptions& options) {
  const std::vector<std::string> turns =
      split_turns(options.users_path.empty() ? std::string(kUsersText) : users_text(options));
  Workload workload;
  workload.system = to_tokens(system_text(options, kSystemText));
  for (int i = 0; i < options.conversations; ++i) {
    Turn turn;
    turn.text = turns[static_cast<size_t>(i) % turns.size()];
    turn.tokens = workload.system;
    const std::vector<Token> own = to_tokens("\n\nVisitor: " + turn.text + "\nDesk: ");
    turn.tokens.insert(turn.tokens.end(), own.begin(), own.end());
    Conversation conversation;
    conversation.turns.push_back(std::move(turn));
    // Answers end at different lengths, between 5/8 of --max-new and all of it.
    const int64_t shortest = std::max<int64_t>(1, options.max_new * 5 / 8);
    const auto choices = static_cast<uint64_t>(options.max_new - shortest + 1);
    const uint64_t stream = 1000 + static_cast<uint64_t>(i);
    conversation.max_new =
        shortest + static_cast<int64_t>(random_bits(options.seed, stream, 0) % choices);
    workload.conversations.push_back(std::move(conversation));
  }
  set_arrivals(options, workload);
  return workload;
}

Workload make_chat_workload(const WorkloadOptions& options,
                            const chat::ChatTemplate& chat_template) {
  std::vector<Question> asked;
  if (options.users_path.empty()) {
    asked = questions();
  } else {
    for (const std::string& turn : split_turns(users_text(options))) {
      asked.push_back(parse_question(turn));
      if (asked.back().text.empty())
        throw UsageError("--users: '" + options.users_path + "' has a turn without a text: '" +
                         turn + "'");
    }
  }
  Workload workload;
  workload.system = options.system_path.empty() ? handbook_prompt(chat_template)
                                                : chat_template.begin(system_text(options, {}));
  workload.ends = chat_template.ends();
  size_t next = 0;
  for (int i = 0; i < options.conversations; ++i) {
    Conversation conversation;
    conversation.max_new = options.max_new;
    const int turns = 2 + i % 2;
    for (int t = 0; t < turns; ++t) {
      const Question& question = asked[next++ % asked.size()];
      Turn turn{question.text, question.expected, {}};
      turn.tokens = t == 0 ? workload.system : chat_template.after_answer();
      const std::vector<Token> own = chat_template.user_turn(turn.text);
      turn.tokens.insert(turn.tokens.end(), own.begin(), own.end());
      conversation.turns.push_back(std::move(turn));
    }
    workload.conversations.push_back(std::move(conversation));
  }
  set_arrivals(options, workload);
  return workload;
}

int64_t Conversation::longest() const {
  int64_t tokens = -1;
  for (const Turn& turn : turns) tokens += static_cast<int64_t>(turn.tokens.size()) + max_new;
  return tokens;
}

int64_t Workload::longest_request() const {
  int64_t longest = 0;
  for (const Conversation& c : conversations) longest = std::max(longest, c.longest());
  return longest;
}

int64_t Workload::prompt_tokens() const {
  int64_t total = 0;
  for (const Conversation& c : conversations) {
    for (const Turn& turn : c.turns) total += static_cast<int64_t>(turn.tokens.size());
  }
  return total;
}

bool Workload::is_end(Token token) const {
  return std::find(ends.begin(), ends.end(), token) != ends.end();
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
