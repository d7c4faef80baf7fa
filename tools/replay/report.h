// What a replay looks like: for people, for programs, as a figure, as a page.
#pragma once

#include <string>
#include <vector>

#include "tools/replay/replay.h"

namespace kvc::replay {

struct ReplayReport {
  Trace trace;  // without its ids
  ReplayOptions options;
  std::vector<RunResult> runs;  // one per pool size, at least one
};

std::string text_report(const ReplayReport& report, bool colours);
std::string json_report(const ReplayReport& report);
// Several runs: over the size of the pool, else over time
std::string svg_report(const ReplayReport& report);
std::string html_report(const ReplayReport& report);  // all figures, nothing from outside the file
std::string metrics_report(const ReplayReport& report);

// Shared by the above.
// "12,031 requests with 144,793,823 prompt tokens, ..."
std::string trace_line(const ReplayReport& report);
std::string setting_line(const ReplayReport& report);  // "pages of 512 tokens, ..."
std::string pool_name(const RunResult& run);           // "1,000", "unlimited"
std::string percent(double share);
std::string microseconds(double value);

}  // namespace kvc::replay
