#include "tools/plan/figure.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "src/capi/call.h"
#include "tools/plan/size.h"
#include "tools/svg/chart.h"
#include "tools/svg/svg.h"

namespace kvc::plan_tool {
namespace {

using svg::Chart;
using svg::Series;

constexpr double kFigureWidth = 1080, kEdge = 40, kHead = 96, kHeight = 330, kGap = 36;
constexpr const char* kColours[] = {svg::kDark, svg::kWarm, "#3d8b5f",
                                    "#8a63b8",  "#c79a2b",  "#2a8f9e"};

// Layer groups that keep the same tokens of a request, as one line of the chart.
struct Kind {
  std::string name;
  std::vector<const GroupSpec*> groups;
};

std::string name_of(const GroupSpec& group) {
  if (group.has_kept_rows()) return "first " + grouped(group.keep_tokens) + " tokens in bf16";
  if (group.is_cross) return "encoder";
  if (group.window != 0) return "window " + grouped(group.window);
  if (group.chunk != 0) return "chunks of " + grouped(group.chunk);
  return "every token";
}

std::vector<Kind> kinds_of(const Plan& plan) {
  std::vector<Kind> kinds;
  for (const GroupSpec& group : plan.spec().groups) {
    const std::string name = name_of(group);
    const auto found = std::find_if(kinds.begin(), kinds.end(),
                                    [&](const Kind& kind) { return kind.name == name; });
    if (found != kinds.end())
      found->groups.push_back(&group);
    else
      kinds.push_back({name, {&group}});
  }
  return kinds;
}

// Lengths from 256 tokens, or less, to the longest, as a logarithmic axis places them.
std::vector<int64_t> lengths_to(int64_t longest) {
  constexpr int kPoints = 49;
  std::vector<int64_t> lengths;
  const int64_t least = std::min<int64_t>(256, longest);
  const double ratio = static_cast<double>(longest) / static_cast<double>(least);
  for (int i = 0; i < kPoints; ++i) {
    const double share = static_cast<double>(i) / (kPoints - 1);
    const auto length =
        static_cast<int64_t>(std::llround(static_cast<double>(least) * std::pow(ratio, share)));
    if (lengths.empty() || length > lengths.back()) lengths.push_back(length);
  }
  return lengths;
}

std::string number(double value) { return grouped(static_cast<int64_t>(std::floor(value))); }

void add_point(double tokens, double value, const std::string& note, Series& series) {
  series.points.push_back({tokens, value, grouped(std::llround(tokens)) + " tokens: " + note});
}

// A series of pages by length. What takes no pages is left out.
template <typename Pages>
void add_pages(const std::string& name, const char* colour, const std::vector<int64_t>& lengths,
               const Pages& pages_of, Chart& chart) {
  Series series;
  series.name = name;
  series.colour = colour;
  int64_t most = 0;
  for (const int64_t tokens : lengths) {
    const int64_t pages = pages_of(tokens);
    most = std::max(most, pages);
    add_point(static_cast<double>(tokens), static_cast<double>(pages), grouped(pages) + " pages",
              series);
  }
  if (most != 0) chart.series.push_back(std::move(series));
}

Chart pages_chart(const Capacity& capacity, const std::vector<int64_t>& lengths) {
  const Plan& plan = *capacity.reported().plan->plan;
  Chart chart;
  chart.title = "Pages of one request, by what layer groups keep";
  chart.x_label = "tokens of the request";
  chart.is_log_x = chart.is_log_y = true;
  const auto colour = [&] { return kColours[chart.series.size() % std::size(kColours)]; };
  for (const Kind& kind : kinds_of(plan)) {
    const size_t count = kind.groups.size();
    const std::string several = count == 1 ? "" : " (" + std::to_string(count) + " groups)";
    add_pages(
        kind.name + several, colour(), lengths,
        [&](int64_t tokens) {
          int64_t pages = 0;
          for (const GroupSpec* group : kind.groups) pages += plan.request_pages(*group, tokens);
          return pages;
        },
        chart);
  }
  const int64_t of_states = kSlotsPerRequest * plan.state_slot_pages();
  add_pages(
      "states before and after a forward", colour(), lengths, [&](int64_t) { return of_states; },
      chart);
  if (chart.series.size() > 1) {
    add_pages(
        "all", svg::kSoftInk, lengths, [&](int64_t tokens) { return plan.request_pages(tokens); },
        chart);
  }
  return chart;
}

Chart requests_chart(const Capacity& capacity, const std::vector<int64_t>& lengths) {
  Chart chart;
  chart.title = "Requests at once, in " + grouped(capacity.num_pages) + " pages";
  chart.x_label = "tokens of each request";
  chart.is_log_x = chart.is_log_y = true;
  Series series{"", svg::kDark, {}, false};
  for (const int64_t tokens : lengths) {
    const int64_t pages = request_pages(capacity, tokens);
    if (pages == 0) continue;
    const double requests = requests_in(capacity, capacity.num_pages, pages);
    add_point(static_cast<double>(tokens), requests, number(requests) + " requests", series);
  }
  chart.series = {series};
  return chart;
}

}  // namespace

std::string svg_figure(const Capacity& capacity) {
  const int64_t longest =
      capacity.planned_len != 0
          ? capacity.planned_len
          : std::max<int64_t>(1, std::min<int64_t>(capacity.longest_request, int64_t{1} << 20));
  const std::vector<int64_t> lengths = lengths_to(longest);
  std::string body = svg::text_at(kEdge, 44, "What " + size_text(capacity.memory) + " hold", 22,
                                  svg::kInk, "start", true);
  body += svg::text_at(kEdge, 70,
                       grouped(capacity.num_pages) + " pages of " +
                           size_text(capacity.reported().info.page_bytes) + "; a request of " +
                           grouped(longest) + " tokens takes " +
                           grouped(request_pages(capacity, longest)),
                       13, svg::kSoftInk);
  const double width = kFigureWidth - 2 * kEdge;
  body += svg::draw_chart(pages_chart(capacity, lengths), kEdge, kHead, width, kHeight);
  body += svg::draw_chart(requests_chart(capacity, lengths), kEdge, kHead + kHeight + kGap, width,
                          kHeight);
  return svg::figure(kFigureWidth, kHead + 2 * (kHeight + kGap), body);
}

}  // namespace kvc::plan_tool
