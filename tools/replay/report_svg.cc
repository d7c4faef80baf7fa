#include <algorithm>

#include "tools/demo/terminal.h"
#include "tools/replay/report.h"
#include "tools/svg/chart.h"
#include "tools/svg/svg.h"

namespace kvc::replay {
namespace {

using demo::format;
using demo::grouped;
using svg::Chart;
using svg::Series;

constexpr double kFigureWidth = 1080, kEdge = 40, kGap = 36;
constexpr double kPanel = (kFigureWidth - 2 * kEdge - kGap) / 2, kPanelHeight = 250,
                 kWideHeight = 330, kHead = 118;

std::string head_of(const ReplayReport& report, const std::string& title) {
  const auto words = [](double y, const std::string& text, int size, bool bold) {
    return svg::text_at(kEdge, y, text, size, bold ? svg::kInk : svg::kSoftInk, "start", bold);
  };
  return words(48, title, 22, true) + words(72, trace_line(report), 13, false) +
         words(91, setting_line(report), 13, false);
}

std::string in_percent(double share) { return format("%.3g %%", 100 * share); }

// Charts under the head, two in a row; the first has a row of its own when their number is odd.
std::string panels(const std::string& head, const std::vector<Chart>& charts) {
  std::string body = head;
  const bool is_first_wide = charts.size() % 2 == 1;
  double y = kHead;
  for (size_t i = 0; i < charts.size();) {
    const bool is_wide = i == 0 && is_first_wide;
    const double height = is_wide ? kWideHeight : kPanelHeight;
    body += svg::draw_chart(charts[i++], kEdge, y, is_wide ? 2 * kPanel + kGap : kPanel, height);
    if (!is_wide) body += svg::draw_chart(charts[i++], kEdge + kPanel + kGap, y, kPanel, height);
    y += height + kGap;
  }
  return svg::figure(kFigureWidth, y, body);
}

std::string name_of(const ReplayReport& report) { return demo::printable(report.trace.name, 60); }

// Pages as they count on a logarithmic axis: an unlimited pool is as large as what it came to hold.
double size_of(const RunResult& run) {
  return static_cast<double>(run.pages == kUnlimited ? run.needed_pages() : run.pool_pages);
}

std::string sweep_figure(const ReplayReport& report) {
  std::vector<const RunResult*> runs;
  for (const RunResult& run : report.runs) runs.push_back(&run);
  std::stable_sort(runs.begin(), runs.end(), [](const RunResult* a, const RunResult* b) {
    return size_of(*a) < size_of(*b);
  });
  const auto chart = [&](const char* title, const auto& value, const auto& note) {
    Chart out;
    out.title = title;
    out.x_label = "pages of " + grouped(report.options.block) + " tokens";
    out.is_log_x = true;
    Series series{"", svg::kDark, {}, false};
    for (const RunResult* run : runs) {
      series.points.push_back(
          {size_of(*run), value(*run), pool_name(*run) + " pages: " + note(*run)});
      if (run->pages == kUnlimited) out.x_marks = {{size_of(*run), "unlimited"}};
    }
    out.series = {series};
    return out;
  };
  Chart hits = chart(
      "Prompt tokens that hit", [](const RunResult& r) { return r.hit_rate(); },
      [](const RunResult& r) { return percent(r.hit_rate()); });
  hits.y_text = in_percent;
  hits.y_most = 1;
  const Chart evictions = chart(
      "Blocks evicted",
      [](const RunResult& r) { return static_cast<double>(r.stats.prefix_evicted); },
      [](const RunResult& r) { return grouped(static_cast<int64_t>(r.stats.prefix_evicted)); });
  const Chart cost = chart(
      "Bookkeeping per request, mean, µs", [](const RunResult& r) { return r.cost.mean; },
      [](const RunResult& r) { return microseconds(r.cost.mean) + " µs"; });
  return panels(head_of(report, "Replay of " + name_of(report) + " over the size of the pool"),
                {hits, evictions, cost});
}

std::string time_figure(const ReplayReport& report, const RunResult& run) {
  Chart hits, pool, evictions, cost;
  Series window_hits{"at that time", svg::kLight, {}, true},
      all_hits{"so far", svg::kDark, {}, false};
  Series filled{"prefix cache", svg::kLight, {}, true}, used{"requests", svg::kDark, {}, true};
  Series evicted{"", svg::kWarm, {}, true}, mean{"", svg::kDark, {}, false};
  const double scale = run.x_is_time ? 1.0 / 60 : 1;
  int64_t tokens = 0, hit = 0;
  for (const Window& window : run.windows) {
    const double x = window.x * scale;
    filled.points.push_back({x, static_cast<double>(window.pages_filled), ""});
    used.points.push_back({x, static_cast<double>(window.pages_used), ""});
    if (window.requests == 0) continue;
    tokens += window.prompt_tokens;
    hit += window.hit_tokens;
    const auto ratio = [](int64_t a, int64_t b) {
      return static_cast<double>(a) / static_cast<double>(b);
    };
    window_hits.points.push_back({x, ratio(window.hit_tokens, window.prompt_tokens), ""});
    all_hits.points.push_back({x, ratio(hit, tokens), ""});
    evicted.points.push_back({x, ratio(static_cast<int64_t>(window.evicted), window.requests), ""});
    mean.points.push_back({x, window.mean_us, ""});
  }
  hits.title = "Prompt tokens that hit: " + percent(run.hit_rate());
  hits.y_text = in_percent;
  hits.y_most = 1;
  hits.series = {window_hits, all_hits};
  pool.title = "Pages held, of " + grouped(run.pool_pages);
  pool.series = {filled, used};
  evictions.title =
      "Blocks evicted per request: " + grouped(static_cast<int64_t>(run.stats.prefix_evicted)) +
      " in all";
  evictions.series = {evicted};
  // The mean is what the curve shows. One slow request can lift it over p99, so the largest is told
  // instead.
  cost.title = "Bookkeeping, µs: median " + microseconds(run.cost.p50) + ", p99 " +
               microseconds(run.cost.p99) + ", largest " + microseconds(run.cost.largest);
  cost.series = {mean};
  std::vector<Chart> charts = {hits, pool, evictions, cost};
  for (Chart& chart : charts) chart.x_label = run.x_is_time ? "minutes of the trace" : "requests";
  return panels(
      head_of(report, name_of(report) + ", " +
                          (run.pages == kUnlimited ? "unlimited" : pool_name(run)) + " pages"),
      charts);
}

std::string table_of(const ReplayReport& report) {
  std::string out =
      "<table>\n<tr><th>pages</th><th>tokens</th><th>hit rate</th><th>tokens saved</th><th>blocks "
      "hit</th>"
      "<th>blocks evicted</th><th>refused</th><th>µs, mean</th><th>p50</th><th>p99</th></tr>\n";
  for (const RunResult& run : report.runs) {
    out += "<tr>";
    for (const std::string& cell :
         {pool_name(run), grouped(report.options.tokens_of(static_cast<int64_t>(size_of(run)))),
          percent(run.hit_rate()), grouped(run.hit_tokens), grouped(run.hit_blocks),
          grouped(static_cast<int64_t>(run.stats.prefix_evicted)), grouped(run.refused),
          microseconds(run.cost.mean), microseconds(run.cost.p50), microseconds(run.cost.p99)}) {
      out += "<td>" + cell + "</td>";
    }
    out += "</tr>\n";
  }
  return out + "</table>\n";
}

}  // namespace

std::string svg_report(const ReplayReport& report) {
  return report.runs.size() > 1 ? sweep_figure(report) : time_figure(report, report.runs[0]);
}

std::string html_report(const ReplayReport& report) {
  const std::string title = "Replay of " + svg::escaped(name_of(report));
  std::string out =
      "<!DOCTYPE html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\"/>\n<title>" + title +
      "</title>\n<style>\n"
      "body { font: 15px/1.5 system-ui, sans-serif; color: #1f2933; max-width: 1080px; margin: 2em "
      "auto; "
      "padding: 0 1em; }\n"
      "table { border-collapse: collapse; margin: 1.5em 0; font-variant-numeric: tabular-nums; }\n"
      "th, td { text-align: right; padding: 0.25em 0.8em; border-bottom: 1px solid #dde3ea; }\n"
      "th { font-weight: 600; color: #5f6c7b; }\n"
      "svg { max-width: 100%; height: auto; }\n"
      "</style>\n</head>\n<body>\n<h1>" +
      title + "</h1>\n<p>" + svg::escaped(trace_line(report)) + "<br/>" +
      svg::escaped(setting_line(report)) + "</p>\n";
  if (report.trace.skipped_lines > 0) {
    out += "<p>" + grouped(report.trace.skipped_lines) +
           " lines could not be replayed; the first: " +
           svg::escaped(demo::printable(report.trace.skipped[0], 300)) + "</p>\n";
  }
  out += table_of(report);
  if (report.runs.size() > 1) out += sweep_figure(report);
  for (const RunResult& run : report.runs) out += time_figure(report, run);
  return out + "<p>" + svg::escaped(std::string("libkvcache ") + kvc_version_string()) +
         "</p>\n</body>\n</html>\n";
}

}  // namespace kvc::replay
