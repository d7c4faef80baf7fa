#include "tools/replay/command.h"

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <chrono>
#include <cstdio>
#include <cstring>
#include <fstream>
#include <memory>
#include <new>
#include <stdexcept>
#include <vector>

#include "tools/demo/terminal.h"
#include "tools/replay/report.h"

namespace {

using namespace kvc::replay;

constexpr int kFailed = 1;
constexpr int kUsage = 2;
constexpr int64_t kMostPages = int64_t{1} << 30;

struct UsageError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

struct CommandLine {
  ReadOptions read;
  ReplayOptions replay;
  std::vector<std::string> pages = {"auto"};
  std::string policy = "lru";
  bool inside = false;
  bool as_json = false;
  std::string svg_path, html_path, metrics_path;
};

// Empty: to be chosen from the trace.
std::vector<int64_t> pool_sizes(const std::vector<std::string>& words) {
  std::vector<int64_t> sizes;
  if (words.size() == 1 && words[0] == "auto") return sizes;
  for (const std::string& word : words) {
    int64_t size = kUnlimited;
    const char* end = word.data() + word.size();
    const auto [stop, error] = std::from_chars(word.data(), end, size);
    const bool is_number = error == std::errc() && stop == end && size >= 0 && size <= kMostPages;
    if (!is_number && word != "unlimited") {
      throw UsageError("--pages: '" + word + "' is neither a number of pages in 0.." +
                       std::to_string(kMostPages) + " nor 'unlimited'" +
                       (word == "auto" ? "; 'auto' stands alone" : ""));
    }
    sizes.push_back(is_number ? size : kUnlimited);
  }
  return sizes;
}

std::vector<RunResult> runs_of(const Trace& trace, const ReplayOptions& options,
                               const std::vector<int64_t>& sizes) {
  return sweep(trace, options, sizes, [&](int64_t block, int64_t num_pages) {
    return make_cache_bookkeeper(block, num_pages, options.window);
  });
}

// Without limit first, which tells what sizes are worth a look.
std::vector<RunResult> chosen_runs(const Trace& trace, const ReplayOptions& options) {
  std::vector<RunResult> all = runs_of(trace, options, {kUnlimited});
  const int64_t largest = pages_for_largest(trace, options);
  std::vector<RunResult> runs =
      runs_of(trace, options, sizes_below(all[0].needed_pages(), largest));
  runs.push_back(std::move(all[0]));
  return runs;
}

// One line on stderr that is written over, on a terminal only.
class ProgressLine {
 public:
  explicit ProgressLine(bool is_shown) : is_shown_(is_shown) {}
  ~ProgressLine() {
    if (has_text_) std::fputs("\r\x1b[K", stderr);
  }
  ProgressLine(const ProgressLine&) = delete;
  ProgressLine& operator=(const ProgressLine&) = delete;

  std::function<void(double)> part(const char* name) {
    if (!is_shown_) return nullptr;
    return [this, name](double fraction) { show(name, fraction); };
  }

 private:
  static constexpr int kWidth = 40;
  static constexpr std::chrono::milliseconds kInterval{50};

  void show(const char* name, double fraction) {
    const auto now = std::chrono::steady_clock::now();
    if (has_text_ && now - shown_ < kInterval) return;
    shown_ = now;
    has_text_ = true;
    const int done = static_cast<int>(fraction * kWidth);
    std::fprintf(stderr, "\r%-8s [%s%s] %3.0f %%", name,
                 std::string(static_cast<size_t>(done), '#').c_str(),
                 std::string(static_cast<size_t>(kWidth - done), '.').c_str(), 100 * fraction);
  }

  bool is_shown_;
  bool has_text_ = false;
  std::chrono::steady_clock::time_point shown_;
};

// Opened before the replay, so that a path that cannot be written is known at once.
std::ofstream open_output(const std::string& path, const char* option) {
  std::ofstream file;
  if (path.empty()) return file;
  file.open(path, std::ios::binary);
  if (!file)
    throw UsageError(std::string(option) + ": cannot write '" + path +
                     "': " + std::strerror(errno));
  return file;
}

void write_output(std::ofstream& file, const std::string& path, const std::string& content,
                  bool is_quiet) {
  if (!file.is_open()) return;
  file << content;
  file.close();
  if (!file) throw std::runtime_error("cannot write '" + path + "'");
  if (!is_quiet) std::printf("  wrote %s\n", path.c_str());
}

void run(CommandLine line) {
  const std::vector<int64_t> sizes = pool_sizes(line.pages);
  std::ofstream svg = open_output(line.svg_path, "--svg");
  std::ofstream html = open_output(line.html_path, "--html");
  std::ofstream metrics = open_output(line.metrics_path, "--metrics");
  ReplayReport report;
  {
    ProgressLine progress(kvc::demo::stderr_is_terminal());
    line.read.progress = progress.part("reading");
    line.replay.progress = progress.part("replay");
    report.trace = read_trace(line.read);
    const std::string problem = block_problem(report.trace, line.replay.block);
    if (!problem.empty()) throw UsageError("--block: " + problem);
    if (line.inside && report.trace.kind != TraceKind::kTokenIds)
      throw UsageError("--inside: this trace has no token ids, which hits inside blocks need");
    report.runs = sizes.empty() ? chosen_runs(report.trace, line.replay)
                                : runs_of(report.trace, line.replay, sizes);
  }
  line.replay.progress = nullptr;
  report.options = line.replay;
  std::fputs(
      (line.as_json ? json_report(report) : text_report(report, kvc::demo::colours_on_stdout()))
          .c_str(),
      stdout);
  if (svg.is_open()) write_output(svg, line.svg_path, svg_report(report), line.as_json);
  if (html.is_open()) write_output(html, line.html_path, html_report(report), line.as_json);
  if (metrics.is_open())
    write_output(metrics, line.metrics_path, metrics_report(report), line.as_json);
}

int run_command(const CommandLine& line) {
  try {
    run(line);
    return 0;
  } catch (const UsageError& error) {
    std::fprintf(stderr, "kvcache replay: %s\n", error.what());
    return kUsage;
  } catch (const TraceError& error) {
    std::fprintf(stderr, "kvcache replay: %s\n", error.what());
    return kUsage;
  } catch (const std::bad_alloc&) {
    std::fprintf(stderr, "kvcache replay: not enough memory\n");
  } catch (const std::exception& error) {
    std::fprintf(stderr, "kvcache replay: %s\n", error.what());
  }
  return kFailed;
}

}  // namespace

void register_replay(CLI::App& app, int& exit_code) {
  auto line = std::make_shared<CommandLine>();
  CLI::App* replay = app.add_subcommand(
      "replay",
      "Send a trace of requests through the page bookkeeping: hit rates, evictions, cost");
  replay->option_defaults()->always_capture_default();
  replay->footer(
      "\nTraces, plain or gzip: Mooncake (JSON lines with hash_ids), JSON lines with token ids "
      "(input_tok_ids, "
      "tokens or\n"
      "prompt_token_ids), Azure LLM (CSV with ContextTokens, GeneratedTokens). For each request: "
      "look its "
      "prompt "
      "up, take\n"
      "pages for the rest, publish its full blocks, remove it. No tensor memory is used.\n"
      "Exit status: 0; 1: something failed; 2: the trace, a file or an option cannot be used.");
  const auto number = [&](const char* name, int64_t& value, int64_t low, int64_t high,
                          const char* help, const char* group) {
    replay->add_option(name, value, help)
        ->check(CLI::Range(low, high).description(""))
        ->type_name("N")
        ->group(group);
  };
  const auto file = [&](const char* name, std::string& path, const char* help) {
    replay->add_option(name, path, help)->type_name("FILE")->group("Output");
  };
  constexpr int64_t kMany = int64_t{1} << 40;

  replay->add_option("trace", line->read.path, "The trace; - is standard input")
      ->required()
      ->type_name("TRACE");
  number("--limit", line->read.limit, 0, kMany, "Requests to replay; 0: all", "Trace");
  replay
      ->add_flag("--skip-bad-lines", line->read.skip_bad_lines,
                 "Leave out lines that cannot be replayed, and count them")
      ->group("Trace");
  number("--trace-block", line->read.block_tokens, 1, 65536, "Tokens that one of hash_ids names",
         "Trace");

  replay
      ->add_option(
          "--pages", line->pages,
          "Pages of the pool; 0 or unlimited: enough for everything; several: a sweep; auto: sizes "
          "that suit the trace")
      ->delimiter(',')
      ->allow_extra_args(false)
      ->type_name("N,...")
      ->group("Cache");
  number("--block", line->replay.block, 1, 65536, "Tokens of a page", "Cache");
  replay
      ->add_option("--policy", line->policy,
                   "lru: evict what was not used for longest; none: no prefix cache")
      ->check(CLI::IsMember({"lru", "none"}).description(""))
      ->type_name("NAME")
      ->group("Cache");
  number(
      "--window", line->replay.window, 0, kMany,
      "A second group of layers has a window of so many tokens, and has pages of its own; 0: none",
      "Cache");
  replay->add_flag("--inside", line->inside, "Hits end inside blocks, too; for traces of token ids")
      ->group("Cache");
  replay
      ->add_flag("--outputs", line->replay.outputs,
                 "Outputs take pages, too; published where their tokens are known")
      ->group("Cache");
  number("--concurrency", line->replay.concurrency, 0, 1 << 20,
         "A request is removed when so many more have come; 0: at once", "Cache");

  replay
      ->add_option("--repeat", line->replay.repeat,
                   "Replays per pool size; the one with the lowest mean cost counts")
      ->check(CLI::Range(1, 1000).description(""))
      ->type_name("N")
      ->group("Output");
  replay->add_flag("--json", line->as_json, "Print one JSON object")->group("Output");
  file("--svg", line->svg_path, "Write a figure: over time, of a sweep over the size of the pool");
  file("--html", line->html_path, "Write a page with all figures");
  file("--metrics", line->metrics_path,
       "Write the final statistics in the text format of Prometheus");

  replay->callback([line, &exit_code] {
    line->replay.policy = line->policy == "none" ? Policy::kNone : Policy::kLru;
    line->replay.whole_blocks = !line->inside;
    exit_code = run_command(*line);
  });
}
