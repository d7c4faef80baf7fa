#include <algorithm>

#include "tools/demo/block_map.h"
#include "tools/demo/report.h"
#include "tools/demo/terminal.h"

namespace kvc::demo {
namespace {

constexpr int kMapWidth = 96;
constexpr int kMapLines = 12;
constexpr size_t kAnswersShown = 5;

std::string ratio(double part, double whole) { return format("%.1f %%", 100.0 * part / whole); }

// "32", or "20 to 32": most tokens of an answer.
std::string most_tokens(const Workload& workload) {
  const auto [shortest, longest] = std::minmax_element(
      workload.conversations.begin(), workload.conversations.end(),
      [](const Conversation& a, const Conversation& b) { return a.max_new < b.max_new; });
  const std::string most = std::to_string(longest->max_new);
  return shortest->max_new == longest->max_new ? most
                                               : std::to_string(shortest->max_new) + " to " + most;
}

std::string heading(const DemoRun& run, bool colours) {
  const auto count = static_cast<int64_t>(run.workload.conversations.size());
  const auto system = static_cast<int64_t>(run.workload.system.size());
  const auto label = [&](const char* text) {
    return painted(left(text, 11), Paint::kDim, colours);
  };
  std::string out = "\n";
  out += painted(format("%lld conversations behind one system prompt, served three ways",
                        static_cast<long long>(count)),
                 Paint::kBold, colours) +
         "\n\n";
  out +=
      label("  model") + (run.model_name.empty() ? std::string() : run.model_name + ": ") +
      format("%d layers, width %lld, %d query heads on %d KV heads of %d, %.1f million parameters",
             run.layers, static_cast<long long>(run.width), run.q_heads, run.kv_heads, run.head_dim,
             static_cast<double>(run.num_parameters) / 1e6) +
      (run.windows > 0 ? format("; %lld of %d layers have windows",
                                static_cast<long long>(run.windows), run.layers)
                       : std::string()) +
      (run.model_name.empty() ? "; a byte is a token\n" : "\n");
  if (run.model_name.empty()) {
    out += label("") +
           format(
               "random weights (seed %llu): exactness, memory and speed are real, the text is "
               "not\n",
               static_cast<unsigned long long>(run.options.workload.seed));
  }
  out += label("  work") + "system prompt of " + grouped(system) + " tokens, " +
         format("%lld in the turns of a conversation on average, answers of at most %s\n",
                static_cast<long long>((run.workload.prompt_tokens() - count * system) / count),
                most_tokens(run.workload).c_str());
  out += label("  serving") + "continuous batching, at most " +
         grouped(run.options.tokens_per_step) + " tokens a step; arrivals over the first " +
         std::to_string(run.workload.conversations.back().arrival_step + 1) + " steps\n";
  out += label("  cache") + "row 1: float32, buffers of " + grouped(run.max_length) +
         " tokens; rows 2 and 3: " + run.options.dtype.name +
         format(", pages of %d", run.options.page_size) +
         (run.options.is_exact() ? "" : ", batch-invariant") + "\n";
  out += label("  machine") + format("%d thread%s; ", run.threads, run.threads == 1 ? "" : "s") +
         "libkvcache " + kvc_version_string() + ", " + run.library_isa + "; model and row 1: own " +
         run.demo_kernels + " code\n\n";
  return out;
}

std::string agreement(const DemoRun& run, size_t row) {
  if (row == 0) return "(ref)";
  const DemoRow& r = run.rows[row];
  if (run.options.is_exact()) return r.against_first.identical ? "yes" : "NO";
  if (r.against_first.identical) return "yes";
  if (row == 1) return "no";
  return r.against_paged.identical ? "= row 2" : "NO";
}

// Columns of the table; the groups above them span several.
std::string table(const DemoRun& run, bool colours) {
  const auto line = [](const std::vector<std::string>& cells) {
    constexpr size_t kWidths[] = {8, 10, 8, 8, 8, 7, 8, 9, 10, 8};
    std::string out = "  " + left(cells[0], 15);
    for (size_t i = 1; i < cells.size(); ++i) out += right(cells[i], kWidths[i - 1]);
    return out;
  };
  const auto mib = [](uint64_t bytes) {
    return format("%.1f", static_cast<double>(bytes) / (1 << 20));
  };
  std::string out;
  out += painted("  " + left("", 15) + right("prompt", 8) + right("KV at the peak, MiB", 23) +
                     right("first token, s", 18) + right("tokens", 8) + right("fit in", 9) +
                     right("max", 10) + right("same", 8),
                 Paint::kDim, colours) +
         "\n";
  out += painted(line({"", "tokens", "reserved", "used", "waste", "p50", "p95", "/s",
                       format("%.0f MiB", static_cast<double>(run.contiguous_bytes) / (1 << 20)),
                       "|dlogit|", "tokens"}),
                 Paint::kDim, colours) +
         "\n";
  for (size_t i = 0; i < run.rows.size(); ++i) {
    const DemoRow& row = run.rows[i];
    const ServeResult& r = row.result;
    const std::string text = line(
        {row.title, grouped(r.prompt_tokens), mib(r.peak.reserved_bytes), mib(r.peak.used_bytes),
         format("%.1f %%", 100.0 * row.waste()), format("%.3f", r.first_token_percentile(50)),
         format("%.3f", r.first_token_percentile(95)), format("%.0f", row.tokens_per_second()),
         grouped(row.sequences_that_fit),
         i == 0 ? "(ref)" : format("%.1e", row.against_first.max_logit_difference),
         agreement(run, i)});
    out += (i + 1 == run.rows.size() ? painted(text, Paint::kBold, colours) : text) + "\n";
  }
  out += painted(
      "  reserved: buffers or pages held when most were; waste: the part that holds no token; fit "
      "in: "
      "conversations\n"
      "  at full length in row 1's memory; |dlogit|: against row 1's float32 arithmetic at every "
      "generated "
      "token",
      Paint::kDim, colours);
  return out + "\n\n";
}

std::string restart(const DemoRun& run) {
  const Restart& r = run.restart;
  if (!r.agrees()) return "  After a restart: " + r.verdict() + ".\n";
  return format(
             "  Row 3 saved the system prompt (%.1f MiB in %.0f ms). A new process loaded it in "
             "%.0f ms, computed ",
             static_cast<double>(r.file_bytes) / (1 << 20), r.save_seconds * 1e3,
             r.load_seconds * 1e3) +
         grouped(r.prompt_tokens) +
         " prompt tokens,\n  those of the turn, and gave conversation 1 the same answer.\n";
}

std::string summary(const DemoRun& run, bool colours) {
  const ServeResult& first = run.rows.front().result;
  const ServeResult& last = run.rows.back().result;
  std::string out =
      "  Row 3 computed " +
      ratio(static_cast<double>(last.prompt_tokens), static_cast<double>(first.prompt_tokens)) +
      " of row 1's prompt tokens, reserved " +
      ratio(static_cast<double>(last.peak.reserved_bytes),
            static_cast<double>(first.peak.reserved_bytes)) +
      " of its memory,\n  took " + ratio(last.seconds, first.seconds) +
      format(" of its time (%.1f s, %.1f s, %.1f s).\n", first.seconds, run.rows[1].result.seconds,
             last.seconds);
  for (const DemoRow& row : run.rows) {
    const ServeResult& r = row.result;
    if (r.waits == 0) continue;
    out += "  Row " + row.title.substr(0, 1) + ": the pool was full in " + grouped(r.waits) +
           " steps; " + grouped(r.preemptions) + " times a conversation gave way, " +
           grouped(r.recomputed_tokens) + " tokens were computed again.\n";
  }
  out += restart(run);
  if (run.questions > 0) {
    out += format("  Right: %lld of %lld answers have the word that the handbook has.\n",
                  static_cast<long long>(run.right), static_cast<long long>(run.questions));
  }
  if (!run.options.is_exact()) {
    out +=
        format("  Row 3 gave %lld of %lld answers that row 1 gave, which keeps float32.\n",
               static_cast<long long>(run.same_answers), static_cast<long long>(run.num_answers));
  }
  const std::string mark = run.verified ? "  Exact: " : "  NOT EXACT: ";
  return out +
         painted(mark + run.verdict + ".", run.verified ? Paint::kGreen : Paint::kRed, colours) +
         "\n\n";
}

std::string map(const DemoRun& run, bool colours) {
  const DemoRow& row = run.rows.back();
  const std::vector<MapCell> cells = map_cells(row.result.peak_pages, run.root_sequence());
  const MapCounts counts = count_cells(cells);
  int64_t drawn = 0;
  const std::vector<std::string> lines = draw_map(cells, kMapWidth, kMapLines, colours, &drawn);
  std::string out = painted("  Row 3's pages at its peak", Paint::kBold, colours) +
                    format(" (%d live)   ", row.result.peak_conversations) +
                    with_background("#", cell_palette({MapCell::kShared, -1}), colours) +
                    " system prompt: " + grouped(counts.shared) + "   " +
                    with_background("a", cell_palette({MapCell::kOwn, 0}), colours) +
                    with_background("b", cell_palette({MapCell::kOwn, 1}), colours) +
                    with_background("c", cell_palette({MapCell::kOwn, 2}), colours) +
                    " one conversation: " + grouped(counts.own) +
                    "   . free: " + grouped(counts.free) + "\n";
  for (const std::string& line : lines) out += "  " + line + "\n";
  const MapCounts hidden = count_cells({cells.begin() + drawn, cells.end()});
  const int64_t hidden_used = hidden.shared + hidden.own;
  if (hidden.free + hidden_used > 0) {
    const std::string used = hidden_used > 0 ? grouped(hidden_used) + " used and " : std::string();
    const std::string note = "  and " + used + grouped(hidden.free) + " free pages more, not drawn";
    out += painted(note, Paint::kDim, colours) + "\n";
  }
  return out + "\n";
}

std::string answers(const DemoRun& run, bool colours) {
  std::string out =
      painted("  Some answers", Paint::kBold, colours) +
      (run.model_name.empty() ? " (row 3; noise, for the weights are random)\n" : " (row 3)\n");
  const size_t shown = std::min(kAnswersShown, run.workload.conversations.size());
  for (size_t i = 0; i < shown; ++i) {
    const std::vector<Turn>& turns = run.workload.conversations[i].turns;
    for (size_t t = 0; t < turns.size(); ++t) {
      std::string turn = printable(turns[t].text, 40);
      if (turns[t].text.size() > 40) turn.replace(37, 3, "...");
      out += "  " + std::string(1, cell_letter({MapCell::kOwn, static_cast<int>(i)})) + "  " +
             painted(left(turn, 40), Paint::kDim, colours) + "  " +
             printable(run.answers[i][t], 52) + "\n";
    }
  }
  return out;
}

}  // namespace

std::string text_report(const DemoRun& run, bool colours) {
  return heading(run, colours) + table(run, colours) + summary(run, colours) + map(run, colours) +
         (run.options.verbose ? answers(run, colours) : "");
}

}  // namespace kvc::demo
