#include <cmath>

#include "tools/demo/terminal.h"
#include "tools/replay/report.h"

namespace kvc::replay {
namespace {

using demo::format;
using demo::grouped;
using demo::Paint;
using demo::painted;

constexpr int kBarWidth = 20;

std::string row_of(const std::vector<std::string>& cells) {
  constexpr size_t kWidths[] = {11, 14, 10, 14, 10, 11, 9, 8, 7, 7};
  std::string out = " ";
  for (size_t i = 0; i < cells.size(); ++i) out += demo::right(cells[i], kWidths[i]);
  return out;
}

std::string bar_of(double share) {
  const auto length = static_cast<size_t>(std::lround(share * kBarWidth));
  return "  " + std::string(length, '#') +
         std::string(kBarWidth - std::min<size_t>(length, kBarWidth), '.');
}

std::string heading(const ReplayReport& report, bool colours) {
  const auto label = [&](const char* text) {
    return painted(demo::left(text, 11), Paint::kDim, colours);
  };
  const Trace& trace = report.trace;
  std::string out =
      "\n" + painted("  Replay of " + demo::printable(trace.name, 80), Paint::kBold, colours) +
      "\n\n";
  out += label("  trace") + trace_line(report) + "\n";
  out += label("  cache") + setting_line(report) + "\n";
  if (trace.skipped_lines > 0) {
    out += label("  skipped") + grouped(trace.skipped_lines) + " lines that cannot be replayed:\n";
    for (const std::string& why : trace.skipped)
      out += label("") + demo::printable(why, 200) + "\n";
    const auto more = trace.skipped_lines - static_cast<int64_t>(trace.skipped.size());
    if (more > 0) out += label("") + "and " + grouped(more) + " more\n";
  }
  return out + "\n";
}

}  // namespace

std::string percent(double share) { return format("%.2f %%", 100 * share); }

std::string microseconds(double value) { return format(value < 100 ? "%.2f" : "%.0f", value); }

std::string pool_name(const RunResult& run) {
  return run.pages == kUnlimited ? "unlimited" : grouped(run.pages);
}

std::string trace_line(const ReplayReport& report) {
  const Trace& trace = report.trace;
  const auto count = static_cast<int64_t>(trace.requests.size());
  const int64_t tokens = trace.prompt_tokens();
  std::string out = grouped(count) + (count == 1 ? " request with " : " requests with ") +
                    grouped(tokens) + " prompt tokens, " + grouped(tokens / count) +
                    " on average; ";
  if (trace.has_times()) {
    const double seconds = trace.requests.back().seconds - trace.requests.front().seconds;
    out +=
        seconds < 120 ? format("%.1f seconds; ", seconds) : format("%.0f minutes; ", seconds / 60);
  }
  if (trace.kind == TraceKind::kBlockIds)
    return out + "an id per " + grouped(trace.block_tokens) + " tokens";
  if (trace.kind == TraceKind::kTokenIds) return out + "token ids";
  return out + "lengths only: no two prompts begin alike";
}

std::string setting_line(const ReplayReport& report) {
  const ReplayOptions& options = report.options;
  std::string out =
      "pages of " + grouped(options.block) + (options.block == 1 ? " token; " : " tokens; ");
  out += options.policy == Policy::kLru ? "least recently used first" : "no prefix cache";
  if (options.window != 0) out += "; layers with a window of " + grouped(options.window);
  if (!options.whole_blocks) out += "; hits inside blocks";
  out += options.outputs ? "; prompts and outputs" : "; prompts only";
  if (options.concurrency == 0) return out + ", each request is removed at once";
  return out + ", a request runs until " + grouped(options.concurrency) + " more have come";
}

std::string text_report(const ReplayReport& report, bool colours) {
  std::string out = heading(report, colours);
  const auto dim = [&](const std::string& text) {
    return painted(text, Paint::kDim, colours) + "\n";
  };
  out += dim(" " + demo::right("pool", 11) + demo::right("prompt tokens", 38) +
             demo::right("blocks", 21) + demo::right("requests", 9) +
             demo::right("us per request", 22));
  out += dim(row_of(
      {"pages", "tokens", "hit", "saved", "hit", "evicted", "refused", "mean", "p50", "p99"}));
  for (const RunResult& run : report.runs) {
    const bool is_unlimited = run.pages == kUnlimited;
    const int64_t pages = is_unlimited ? run.needed_pages() : run.pool_pages;
    out += row_of({pool_name(run), grouped(report.options.tokens_of(pages)),
                   percent(run.hit_rate()), grouped(run.hit_tokens), grouped(run.hit_blocks),
                   grouped(static_cast<int64_t>(run.stats.prefix_evicted)), grouped(run.refused),
                   microseconds(run.cost.mean), microseconds(run.cost.p50),
                   microseconds(run.cost.p99)});
    out += painted(bar_of(run.hit_rate()), Paint::kGreen, colours) + "\n";
  }
  out += dim(
      "  saved: tokens that need not be computed; refused: requests larger than the pool, counted "
      "nowhere else");
  if (report.runs.back().pages == kUnlimited) {
    out += dim("  unlimited: nothing is ever evicted; tokens: what that takes");
  }
  for (const RunResult& run : report.runs) {
    if (run.cost.mean <= run.cost.p99) continue;
    out += dim("  " + pool_name(run) + " pages: the slowest request took " +
               microseconds(run.cost.largest) + " us, which lifts the mean over p99");
  }
  for (const RunResult& run : report.runs) {
    if (run.waited == 0) continue;
    out += "  " + pool_name(run) + " pages: " + grouped(run.waited) +
           " requests found the pool full and would have waited for those before them\n";
  }
  return out + "\n";
}

}  // namespace kvc::replay
