// The run as one figure: memory and prompt tokens of the three rows as bars, and the pools' pages
// at their peaks.
#include <algorithm>
#include <cmath>

#include "tools/demo/block_map.h"
#include "tools/demo/report.h"
#include "tools/demo/terminal.h"
#include "tools/svg/svg.h"

namespace kvc::demo {
namespace {

using namespace kvc::svg;

constexpr double kWidth = 1080;
constexpr double kMargin = 40;

struct Bar {
  std::string label;
  double value, filled;  // filled: the dark part
  std::string note;
};

std::string bar_panel(double x, double y, double width, std::string_view title,
                      std::string_view axis, const std::vector<Bar>& bars) {
  constexpr double kLabels = 132, kNotes = 66, kBarHeight = 26, kPitch = 40;
  double largest = 0;
  for (const Bar& bar : bars) largest = std::max(largest, bar.value);
  const double scale = (width - kLabels - kNotes) / largest;
  const double left_edge = x + kLabels;
  const double bottom = y + 24 + kPitch * static_cast<double>(bars.size());
  std::string out = text_at(x, y, title, 16, kInk, "start", true);
  const double step = axis_step(largest);
  for (double tick = 0; tick <= largest * 1.001; tick += step) {
    const double tx = left_edge + tick * scale;
    out += line(tx, y + 18, tx, bottom, kGrid);
    out += text_at(tx, bottom + 16, grouped(std::llround(tick)), 12, kSoftInk, "middle");
  }
  out += text_at(left_edge + largest * scale / 2, bottom + 34, axis, 12, kSoftInk, "middle");
  for (size_t i = 0; i < bars.size(); ++i) {
    const double top = y + 26 + kPitch * static_cast<double>(i);
    const double middle = top + kBarHeight / 2 + 5;
    out += text_at(left_edge - 10, middle, bars[i].label, 14, kInk, "end");
    out += rectangle(left_edge, top, bars[i].value * scale, kBarHeight, kLight);
    out += rectangle(left_edge, top, bars[i].filled * scale, kBarHeight, kDark);
    out += text_at(left_edge + bars[i].value * scale + 6, middle, bars[i].note, 13, kInk);
  }
  return out;
}

double map_height(const std::vector<MapCell>& cells, int columns, double cell) {
  return std::ceil(static_cast<double>(cells.size()) / columns) * cell;
}

std::string map_panel(double x, double y, const std::vector<MapCell>& cells, int columns,
                      double cell) {
  std::string out = "<g shape-rendering=\"crispEdges\">\n";
  const auto count = static_cast<int64_t>(cells.size());
  for (int64_t row = 0; row * columns < count; ++row) {
    const int64_t end = std::min<int64_t>((row + 1) * columns, count);
    for (int64_t i = row * columns; i < end;) {
      const int64_t begin = i;
      const MapCell& first = cells[static_cast<size_t>(i)];
      while (i < end && cells[static_cast<size_t>(i)] == first) ++i;
      out += rectangle(x + static_cast<double>(begin - row * columns) * cell,
                       y + static_cast<double>(row) * cell, static_cast<double>(i - begin) * cell,
                       cell - 1, cell_rgb(first));
    }
  }
  // Lines in the colour of the background cut the runs into pages.
  const double bottom = y + map_height(cells, columns, cell);
  out += format("<path stroke=\"%s\" d=\"", kPaper);
  for (int column = 1; column < columns; ++column) {
    const double lx = x + column * cell - 0.5;
    out += format("M%.1f %.1fV%.1f", lx, y, bottom);
  }
  return out + "\"/>\n</g>\n";
}

std::string legend(double x, double y) {
  std::string out;
  const auto entry = [&](const std::vector<MapCell>& cells, const char* words, double width) {
    double sx = x;
    for (const MapCell& cell : cells) {
      out += rectangle(sx, y - 10, 11, 11, cell_rgb(cell));
      sx += 13;
    }
    out += text_at(sx + 4, y, words, 13, kSoftInk);
    x += width;
  };
  entry({{MapCell::kShared, -1}}, "shared: the system prompt", 200);
  std::vector<MapCell> owners;
  for (int i = 0; i < kOwnerColours; ++i) owners.push_back({MapCell::kOwn, i});
  entry(owners, "one conversation's own", 376);
  entry({{MapCell::kFree, -1}}, "free", 60);
  return out;
}

}  // namespace

std::string svg_report(const DemoRun& run) {
  const char* const labels[] = {"1 contiguous", "2 paged", "3 paged, shared"};
  std::vector<Bar> memory, prompts;
  for (size_t i = 0; i < run.rows.size(); ++i) {
    const ServeResult& r = run.rows[i].result;
    const double mib = 1 << 20;
    memory.push_back({labels[i], static_cast<double>(r.peak.reserved_bytes) / mib,
                      static_cast<double>(r.peak.used_bytes) / mib,
                      mebibytes(r.peak.reserved_bytes)});
    prompts.push_back({labels[i], static_cast<double>(r.prompt_tokens),
                       static_cast<double>(r.prompt_tokens), grouped(r.prompt_tokens)});
  }
  const double inner = kWidth - 2 * kMargin;
  const double panel = (inner - 40) / 2;
  std::string body = text_at(kMargin, 52,
                             format("%zu conversations behind one system prompt, served three ways",
                                    run.workload.conversations.size()),
                             22, kInk, "start", true);
  const std::string setting =
      (run.model_name.empty() ? "Small transformer with random weights" : run.model_name) +
      "; system prompt of " + grouped(static_cast<int64_t>(run.workload.system.size())) +
      " tokens; " + run.options.dtype.name +
      format(" pages of %d tokens; %d threads, ", run.options.page_size, run.threads) +
      run.library_isa + ".";
  body += text_at(kMargin, 76, setting, 13, kSoftInk);
  body += text_at(kMargin, 95, (run.verified ? "Exact: " : "NOT EXACT: ") + run.verdict + ".", 13,
                  kSoftInk);
  double y = 140;
  body += bar_panel(kMargin, y, panel, "KV memory at the peak",
                    "MiB; dark: holds a token, light: reserved only", memory);
  body += bar_panel(kMargin + panel + 40, y, panel, "Prompt tokens computed", "tokens", prompts);
  y += 224;

  constexpr int kColumns = 125;
  const double cell = inner / kColumns;
  body += text_at(kMargin, y, format("Pages at the peak, %d tokens each", run.options.page_size),
                  16, kInk, "start", true);
  body += legend(kMargin + inner - 640, y);
  y += 14;
  for (size_t i = 1; i < run.rows.size(); ++i) {
    const std::vector<MapCell> cells =
        map_cells(run.rows[i].result.peak_pages, run.root_sequence());
    const MapCounts counts = count_cells(cells);
    y += 20;
    body += text_at(kMargin, y,
                    std::string(labels[i]) + ": " + grouped(counts.shared + counts.own) + " of " +
                        grouped(static_cast<int64_t>(cells.size())) + " pages in use",
                    14, kInk);
    y += 10;
    body += map_panel(kMargin, y, cells, kColumns, cell);
    y += map_height(cells, kColumns, cell) + 14;
  }
  const double height = y + 16;
  return figure(kWidth, height, body);
}

}  // namespace kvc::demo
