// What `kvcache replay` writes: figures that browsers take, tables and objects that hold the
// figures of the runs.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>

#include "tests/tools/replay_support.h"
#include "tests/unit/xml_check.h"
#include "tools/replay/report.h"
#include "tools/svg/chart.h"
#include "tools/svg/svg.h"

namespace kvc::replay {
namespace {

using Json = nlohmann::json;

ReplayReport report_of(const std::vector<int64_t>& pages, const char* name = "block_ids.jsonl") {
  ReplayReport report;
  report.trace = read_trace(reading(sample_path(name)));
  report.runs = sweep(report.trace, report.options, pages, make_fake);
  return report;
}

bool holds(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

TEST(XmlCheck, FindsWhatBreaksADocument) {
  EXPECT_EQ(xml_fault("<a x=\"1\" y=\"&lt;2\">w &amp; o<b/>\n<c>d</c></a>\n"), "");
  for (const char* bad :
       {"", "word", "<a>", "<a></b>", "<a/><b/>", "<a x=1/>", "<a x=\"1\" x=\"2\"/>", "<a>&</a>",
        "<a x=\"<\"/>", "<a x=\"1/>", "</a>", "<a>\x01</a>", "<a x=\"1\"y=\"2\"/>", "<a/>b"}) {
    EXPECT_NE(xml_fault(bad), "") << bad;
  }
}

TEST(ToolReplayReport, FiguresAndPagesAreWellFormed) {
  for (const std::vector<int64_t>& pages :
       {std::vector<int64_t>{kUnlimited}, {6}, {7, 9, kUnlimited}, {8, 8}}) {
    ReplayReport report = report_of(pages);
    report.trace.name = "a<b>&\"c\".jsonl\x01\xFF";
    report.trace.skipped_lines = 1;
    report.trace.skipped = {"a<b>&\":3: input_length is \"<&>\", not a whole number"};
    const std::string svg = svg_report(report), html = html_report(report);
    EXPECT_EQ(xml_fault(svg), "");
    EXPECT_EQ(svg.find("<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox="), 0u);
    const std::string doctype = "<!DOCTYPE html>\n";
    ASSERT_EQ(html.find(doctype), 0u);
    EXPECT_EQ(xml_fault(html.substr(doctype.size())), "");
    for (const std::string& text : {svg, html}) {
      EXPECT_FALSE(holds(text, "nan")) << text;
      EXPECT_FALSE(holds(text, "inf"));
      EXPECT_FALSE(holds(text, "src="));
      EXPECT_FALSE(holds(text, "<script"));
    }
  }
}

TEST(ToolReplayReport, ATraceOfWhichNothingWasServedStillHasItsFigures) {
  const ReplayReport report = report_of({1});  // only the prompt of 300 tokens fits
  EXPECT_EQ(report.runs[0].refused, 6);
  EXPECT_EQ(xml_fault(svg_report(report)), "");
  ReplayReport nothing = report;
  nothing.trace.requests.resize(1);
  nothing.runs = sweep(nothing.trace, {}, {1, 2}, make_fake);
  EXPECT_EQ(nothing.runs[0].served(), 0);
  EXPECT_EQ(xml_fault(svg_report(nothing)), "");
  EXPECT_EQ(xml_fault(html_report(nothing).substr(16)), "");
  EXPECT_TRUE(holds(text_report(nothing, false), "0.00 %"));
}

TEST(ToolReplayReport, OneRunIsOneFlatObject) {
  const Json json = Json::parse(json_report(report_of({7})));
  EXPECT_EQ(json["trace"], "block_ids.jsonl");
  EXPECT_EQ(json["pages"], 7);
  EXPECT_EQ(json["unlimited"], false);
  EXPECT_EQ(json["requests"], 7);
  EXPECT_EQ(json["prompt_tokens"], 13196);
  EXPECT_EQ(json["hit_tokens"].get<int64_t>(), json["hit_blocks"].get<int64_t>() * 512);
  EXPECT_NEAR(json["token_hit_rate"].get<double>(), json["hit_tokens"].get<double>() / 13196,
              1e-12);
  for (const char* name :
       {"us_per_request", "us_per_request_p50", "us_per_request_p99", "evictions", "refused",
        "skipped_lines", "waited", "block", "policy", "outputs", "concurrency"}) {
    EXPECT_TRUE(json.contains(name)) << name;
  }
  EXPECT_FALSE(json.contains("runs"));
}

TEST(ToolReplayReport, ASweepIsAnObjectWithItsRuns) {
  const Json json = Json::parse(json_report(report_of({7, 8, kUnlimited})));
  ASSERT_EQ(json["runs"].size(), 3u);
  EXPECT_EQ(json["runs"][1]["pages"], 8);
  EXPECT_EQ(json["runs"][2]["unlimited"], true);
  EXPECT_EQ(json["runs"][2]["hit_blocks"], 15);
  EXPECT_FALSE(json.contains("pages"));
}

TEST(ToolReplayReport, TheTableHasARowPerPoolAndNamesWhatWasSkipped) {
  ReplayReport report = report_of({7, kUnlimited});
  report.trace.skipped_lines = 7;
  report.trace.skipped = {"t.jsonl:4: no input_length"};
  const std::string text = text_report(report, false);
  EXPECT_TRUE(holds(
      text,
      "7 requests with 13,196 prompt tokens, 1,885 on average; 90.0 seconds; an id per 512 tokens"))
      << text;
  EXPECT_TRUE(holds(text, "pages of 512 tokens; least recently used first; prompts only"));
  EXPECT_TRUE(holds(text, " unlimited "));
  EXPECT_TRUE(holds(text, "58.20 %"));  // 15 blocks
  EXPECT_TRUE(holds(text, "t.jsonl:4: no input_length"));
  EXPECT_TRUE(holds(text, "and 6 more"));
  EXPECT_FALSE(holds(text, "\x1b["));
  EXPECT_TRUE(holds(text_report(report, true), "\x1b["));
}

TEST(ToolReplayReport, MetricsOfASweepAreToldApartByTheirPool) {
  EXPECT_TRUE(holds(metrics_report(report_of({7})), "\nkvcache_pages 7\n"));
  const std::string text = metrics_report(report_of({7, 9}));
  EXPECT_TRUE(
      holds(text, "\nkvcache_pages{pool_pages=\"7\"} 7\nkvcache_pages{pool_pages=\"9\"} 9\n"));
  EXPECT_TRUE(holds(text, "kvcache_prefix_hit_tokens_total{pool_pages=\"9\"} "));
}

TEST(Svg, TextIsEscapedForElementsAndAttributes) {
  EXPECT_EQ(svg::escaped("a<b> & \"c\""), "a&lt;b&gt; &amp; &quot;c&quot;");
}

TEST(Svg, AxesHaveFewPartsWhateverTheirLength) {
  for (const double largest : {1e-9, 0.02, 0.37, 1.0, 4.9, 5.1, 99.0, 1e3, 123456.0, 7e12}) {
    const double step = svg::axis_step(largest);
    EXPECT_LE(largest / step, 5.0) << largest;
    EXPECT_GE(largest / step, 1.0) << largest;
  }
  EXPECT_EQ(svg::axis_text(12000), "12,000");
  EXPECT_EQ(svg::axis_text(0.25), "0.25");
  EXPECT_EQ(svg::axis_text(3 * 0.1), "0.3");
}

TEST(Svg, AChartDrawsInsideItsFrameAndLeavesOutWhatCannotBeDrawn) {
  svg::Chart chart;
  chart.is_log_x = true;
  chart.series = {{"a & b",
                   svg::kDark,
                   {{0, 1, ""}, {10, 1, "ten"}, {1000, std::nan(""), ""}, {1e6, 4, "<"}},
                   true}};
  const std::string out = "<g>" + svg::draw_chart(chart, 0, 0, 500, 250) + "</g>";
  EXPECT_EQ(xml_fault(out), "");
  EXPECT_FALSE(holds(out, "nan"));
  size_t circles = 0;
  for (size_t at = out.find("<circle cx=\""); at != std::string::npos;
       at = out.find("<circle cx=\"", at + 1)) {
    const double x = std::stod(out.substr(at + 12));
    EXPECT_GE(x, 0);
    EXPECT_LE(x, 500);
    ++circles;
  }
  EXPECT_EQ(circles, 2u);
  chart.series.clear();
  EXPECT_EQ(xml_fault("<g>" + svg::draw_chart(chart, 0, 0, 500, 250) + "</g>"), "");
}

// Numbers behind `name` in every element that has it.
std::vector<double> numbers_behind(const std::string& text, const std::string& name) {
  std::vector<double> out;
  for (size_t at = text.find(name); at != std::string::npos; at = text.find(name, at + 1))
    out.push_back(std::stod(text.substr(at + name.size())));
  return out;
}

TEST(Svg, TheAxisEndsAtATickWithRoomAboveTheLargestMarker) {
  for (const double largest : {0.02, 0.37, 0.62, 1.0, 4.9, 5.0, 99.0, 1e3, 123456.0}) {
    svg::Chart chart;
    chart.series = {{"", svg::kDark, {{0, 0, ""}, {1, largest, "top"}}, false}};
    const std::string out = svg::draw_chart(chart, 0, 0, 500, 250);
    const std::vector<double> levels = numbers_behind(out, "<line x1=\"64.0\" y1=\"");
    ASSERT_FALSE(levels.empty());
    const double end = *std::min_element(levels.begin(), levels.end());
    const std::vector<double> markers = numbers_behind(out, "cy=\"");
    ASSERT_EQ(markers.size(), 1u);
    EXPECT_GE(markers[0] - end, 4) << largest << ": a marker of radius 4 lies on the frame";
    EXPECT_NEAR(end, 44, 0.1) << largest << ": no tick at the end of the axis";
  }
  svg::Chart share;
  share.y_most = 1;
  share.series = {{"", svg::kDark, {{0, 0, ""}, {1, 1, "all"}}, false}};
  EXPECT_EQ(svg::draw_chart(share, 0, 0, 500, 250).find(">1.2<"), std::string::npos)
      << "no axis of shares goes beyond all";
}

TEST(Svg, ALogarithmicAxisRunsFromTickToTickAndLeavesOutZeros) {
  constexpr double kTop = 44, kBottom = 208;
  for (const auto& [least, most] : {std::pair{1.5, 768.0},
                                    {16.0, 8192.0},
                                    {1.0, 1.0},
                                    {1000.0, 1000.0},
                                    {0.02, 5.0},
                                    {3.0, 1e9}}) {
    svg::Chart chart;
    chart.is_log_x = chart.is_log_y = true;
    chart.series = {{"a", svg::kDark, {{1, 0, "zero"}, {2, least, "l"}, {3, most, "m"}}, false}};
    const std::string out = "<g>" + svg::draw_chart(chart, 0, 0, 500, 250) + "</g>";
    EXPECT_EQ(xml_fault(out), "");
    EXPECT_FALSE(holds(out, "nan"));
    EXPECT_FALSE(holds(out, "zero"));
    const std::vector<double> markers = numbers_behind(out, "cy=\"");
    ASSERT_EQ(markers.size(), 2u) << least;
    EXPECT_LE(markers[0], kBottom + 0.1) << least;
    EXPECT_GE(markers[1], kTop + 4) << most << ": a marker of radius 4 lies on the frame";
    const std::vector<double> levels = numbers_behind(out, "<line x1=\"64.0\" y1=\"");
    ASSERT_GE(levels.size(), 2u) << least;
    EXPECT_NEAR(*std::min_element(levels.begin(), levels.end()), kTop, 0.1) << most;
    EXPECT_NEAR(*std::max_element(levels.begin(), levels.end()), kBottom, 0.1) << least;
  }
  svg::Chart nothing;
  nothing.is_log_y = true;
  nothing.series = {{"a", svg::kDark, {{0, 0, "zero"}}, false}};
  EXPECT_EQ(xml_fault("<g>" + svg::draw_chart(nothing, 0, 0, 500, 250) + "</g>"), "");
}

TEST(Svg, NamesInTheLegendBeginBehindTheirColour) {
  svg::Chart chart;
  chart.series = {{"window 1,024", svg::kDark, {{0, 1, ""}}, false},
                  {"states before and after a forward", svg::kWarm, {{0, 1, ""}}, false}};
  const std::string out = svg::draw_chart(chart, 0, 0, 900, 250);
  const auto x_of = [&](const std::string& part, const std::string& element) {
    return numbers_behind(out.substr(out.rfind(element, out.find(part))), "x=\"").at(0);
  };
  const double first = x_of(">window 1,024<", "<text"), second = x_of(">states before", "<text");
  EXPECT_NEAR(first - x_of(svg::kDark, "<rect"), 15, 0.1);
  EXPECT_NEAR(second - x_of(svg::kWarm, "<rect"), 15, 0.1);
  EXPECT_GT(second - first, 7 * 12 + 15) << "the first name ends before the second colour";
}

TEST(Svg, AWordAtALineStandsAboveTheFrameWhereNoCurvePasses) {
  svg::Chart chart;
  chart.x_marks = {{1, "unlimited"}};
  chart.series = {{"", svg::kDark, {{0, 5, ""}, {1, 0, ""}}, false}};
  const std::string out = svg::draw_chart(chart, 0, 0, 500, 250);
  const size_t word = out.find(">unlimited<");
  ASSERT_NE(word, std::string::npos);
  const std::string element = out.substr(out.rfind("<text", word));
  EXPECT_LT(numbers_behind(element, " y=\"").at(0), 44);
  EXPECT_LT(numbers_behind(element, "<text x=\"").at(0) + 29, 500);
}

TEST(ToolReplayReport, AMeanThatOneSlowRequestLiftsOverP99IsExplained) {
  ReplayReport report = report_of({7});
  report.runs[0].cost = {4.0, 2.1, 3.04, 11034};
  const std::string text = text_report(report, false);
  EXPECT_TRUE(holds(text, "the slowest request took 11034 us, which lifts the mean over p99"))
      << text;
  EXPECT_TRUE(holds(svg_report(report), "Bookkeeping, µs: median 2.10, p99 3.04, largest 11034"));
  report.runs[0].cost = {2.2, 2.1, 3.04, 5.0};
  EXPECT_FALSE(holds(text_report(report, false), "the slowest request"));
  EXPECT_FALSE(holds(html_report(report), "us, mean")) << "the unit is written µs";
}

}  // namespace
}  // namespace kvc::replay
