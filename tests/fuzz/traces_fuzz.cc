// Traces of `kvcache replay`: JSON lines, tables and gzip files, whole and broken. Claims: a trace
// is read or refused with a message that names the file; its requests lie in its ids and under the
// limits; a short one can be replayed, and the audit of the cache passes.
#include <sys/mman.h>
#include <unistd.h>

#include <string>

#include "tests/fuzz/text_maker.h"
#include "tools/replay/bookkeeper.h"
#include "tools/replay/replay.h"
#include "tools/replay/trace.h"
#include "tools/replay/trace_lines.h"

namespace kvc::fuzz {
namespace {

// A file in memory that has a name.
class NamedMemory {
 public:
  explicit NamedMemory(const std::string& content)
      : descriptor_(memfd_create("trace", MFD_CLOEXEC)) {
    KVC_FUZZ_CHECK(descriptor_ >= 0);
    KVC_FUZZ_CHECK(write(descriptor_, content.data(), content.size()) ==
                   static_cast<ssize_t>(content.size()));
  }
  ~NamedMemory() { close(descriptor_); }
  NamedMemory(const NamedMemory&) = delete;
  NamedMemory& operator=(const NamedMemory&) = delete;
  std::string path() const { return "/proc/self/fd/" + std::to_string(descriptor_); }

 private:
  int descriptor_;
};

std::string json_line(Input& input, bool has_blocks) {
  static const std::vector<std::string> kNames = {
      "input_length",   "output_length",   "hash_ids",      "timestamp",  "tokens",
      "output_tok_ids", "arrival_time_ns", "input_tok_ids", "output_toks"};
  std::string line =
      has_blocks ? "{\"input_length\": " + std::to_string(input.choose(200)) + ", \"hash_ids\": ["
                 : "{\"tokens\": [";
  for (size_t i = input.choose(8); i > 0; --i)
    line += std::to_string(input.choose(12)) + (i > 1 ? "," : "");
  line += "]";
  for (size_t i = input.choose(3); i > 0; --i)
    line += ", \"" + kNames[input.choose(kNames.size())] +
            "\": " + (input.one_in(3) ? any_value(input) : any_number(input));
  return line + (input.one_in(16) ? "" : "}");
}

std::string table_line(Input& input) {
  static const std::vector<std::string> kTimes = {
      "2023-11-16 18:15:46.6805900", "2023-11-16T18:15:46Z",      "1.5", "",
      "2023-02-30 00:00:00",         "2023-11-16 18:15:46+25:99", "nan", "\"7\""};
  return kTimes[input.choose(kTimes.size())] + "," + any_number(input) + "," + any_number(input) +
         (input.one_in(16) ? "," : "");
}

std::string made(Input& input) {
  static const std::vector<std::string> kEnds = {"\n", "\r\n", "\n\n", ""};
  const size_t kind = input.choose(3);
  std::string text = kind == 2 ? "TIMESTAMP,ContextTokens,GeneratedTokens\n" : "";
  while (!input.empty())
    text += (kind == 2 ? table_line(input) : json_line(input, kind == 0)) +
            kEnds[input.one_in(8) ? input.choose(4) : 0];
  return text;
}

void check(const replay::Trace& trace) {
  KVC_FUZZ_CHECK(!trace.requests.empty());
  for (const replay::TraceRequest& request : trace.requests) {
    KVC_FUZZ_CHECK(request.prompt_tokens >= 1 && request.prompt_tokens <= replay::kMaxTokens);
    KVC_FUZZ_CHECK(request.output_tokens >= 0 && request.output_tokens <= replay::kMaxTokens);
    const size_t ids = trace.kind == replay::TraceKind::kBlockIds   ? trace.block_ids.size()
                       : trace.kind == replay::TraceKind::kTokenIds ? trace.token_ids.size()
                                                                    : 0;
    KVC_FUZZ_CHECK(request.first_id <= ids && request.num_ids <= ids - request.first_id);
  }
  (void)trace.has_times();
}

void run(const std::string& text, bool skips) {
  const NamedMemory file(text);
  replay::ReadOptions read;
  read.path = file.path();
  read.block_tokens = 16;
  read.skip_bad_lines = skips;
  replay::Trace trace;
  try {
    trace = replay::read_trace(read);
  } catch (const replay::TraceError& error) {
    KVC_FUZZ_CHECK(std::string(error.what()).find(read.path) == 0);
    return;
  }
  check(trace);
  replay::ReplayOptions options;
  options.block = 16;
  options.outputs = skips;
  options.window = skips ? 24 : 0;
  options.whole_blocks = !skips;
  const int64_t pages = replay::pages_for_all(trace, options);
  if (pages > 2000 || trace.requests.size() > 50) return;
  const int64_t pool = std::max<int64_t>(1, pages / 2);
  const auto books = replay::make_cache_bookkeeper(options.block, pool, options.window);
  const replay::RunResult result = replay::replay(trace, options, pool, pool, *books);
  KVC_FUZZ_CHECK(result.hit_tokens <= result.prompt_tokens);
}

}  // namespace
}  // namespace kvc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kvc::fuzz;
  const bool is_file = is_text(data, size, "{T\x1f");
  Input input(is_file ? data + size : data, is_file ? 0 : size);
  const bool skips = is_file ? size % 2 == 0 : input.one_in(2);
  run(is_file ? std::string(data, data + size) : made(input), skips);
  return 0;
}
