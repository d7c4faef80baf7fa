#include "bench/report.h"

#include <kvcache.h>

#include <cstdio>
#include <fstream>

namespace kvc::bench {
namespace {

std::string cpu_name() {
  std::ifstream info("/proc/cpuinfo");
  std::string line;
  while (std::getline(info, line)) {
    const size_t colon = line.find(": ");
    if (line.rfind("model name", 0) == 0 && colon != std::string::npos)
      return line.substr(colon + 2);
  }
  return "unknown";
}

void add_spread(Report& report, const std::string& name, const Spread& spread, double scale) {
  report[name] = rounded(spread.median / scale);
  report[name + "_min"] = rounded(spread.min / scale);
  report[name + "_max"] = rounded(spread.max / scale);
}

}  // namespace

double rounded(double value) {
  char text[32];
  std::snprintf(text, sizeof text, "%.4g", value);
  return std::strtod(text, nullptr);
}

Report new_report(const std::string& bench, const std::string& isa, int threads) {
  Report report;
  report["bench"] = bench;
  report["library"] = kvc_version_string();
  report["cpu"] = cpu_name();
  report["isa"] = isa;
  report["threads"] = threads;
  return report;
}

void add_pairs(Report& report, const PairedResult& result, double scale, const std::string& subject,
               const std::string& limit) {
  add_spread(report, subject, result.subject_rate, scale);
  add_spread(report, limit, result.limit_rate, scale);
  add_spread(report, "share", result.share, 1);
  report["reps"] = result.kept;
  report["reps_dropped"] = result.measured - result.kept;
  report["disturbed"] = result.disturbed;
}

void print_report(const Report& report, bool json) {
  if (json) {
    std::printf("%s\n", report.dump(2, ' ', false, Report::error_handler_t::replace).c_str());
    return;
  }
  for (const auto& [name, value] : report.items()) {
    std::printf("%-28s %s\n", name.c_str(),
                value.is_string() ? value.get<std::string>().c_str() : value.dump().c_str());
  }
}

}  // namespace kvc::bench
