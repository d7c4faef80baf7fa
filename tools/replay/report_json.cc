#include <cmath>
#include <nlohmann/json.hpp>

#include "tools/metrics/prometheus.h"
#include "tools/replay/report.h"

namespace kvc::replay {
namespace {

using Json = nlohmann::ordered_json;

// As many digits as a measurement has; what is counted stays exact.
double short_number(double value) { return std::round(value * 1e3) / 1e3; }

Json run_json(const RunResult& run, int64_t skipped_lines) {
  return {{"pages", run.pool_pages},
          {"unlimited", run.pages == kUnlimited},
          {"requests", run.requests},
          {"refused", run.refused},
          {"waited", run.waited},
          {"skipped_lines", skipped_lines},
          {"prompt_tokens", run.prompt_tokens},
          {"output_tokens", run.output_tokens},
          {"hit_tokens", run.hit_tokens},
          {"hit_blocks", run.hit_blocks},
          {"token_hit_rate", run.hit_rate()},
          {"evictions", run.stats.prefix_evicted},
          {"blocks_stored", run.stats.prefix_stored},
          {"peak_pages_used", run.stats.pages_peak},
          {"peak_pages_filled", run.peak_filled},
          {"us_per_request", short_number(run.cost.mean)},
          {"us_per_request_p50", short_number(run.cost.p50)},
          {"us_per_request_p99", short_number(run.cost.p99)},
          {"us_per_request_max", short_number(run.cost.largest)},
          {"us_per_request_keys", short_number(run.key_us)}};
}

}  // namespace

std::string json_report(const ReplayReport& report) {
  const ReplayOptions& options = report.options;
  Json out = {{"library", kvc_version_string()},
              {"trace", report.trace.name},
              {"trace_kind", kind_name(report.trace.kind)},
              {"block", options.block},
              {"policy", policy_name(options.policy)},
              {"window", options.window},
              {"whole_blocks", options.whole_blocks},
              {"outputs", options.outputs},
              {"concurrency", options.concurrency},
              {"repeat", options.repeat}};
  if (report.trace.kind == TraceKind::kBlockIds) out["trace_block"] = report.trace.block_tokens;
  if (report.runs.size() == 1) {
    out.update(run_json(report.runs[0], report.trace.skipped_lines));
  } else {
    out["requests"] = report.trace.requests.size();
    out["skipped_lines"] = report.trace.skipped_lines;
    out["runs"] = Json::array();
    for (const RunResult& run : report.runs)
      out["runs"].push_back(run_json(run, report.trace.skipped_lines));
  }
  return out.dump(2, ' ', false, Json::error_handler_t::replace) + "\n";
}

std::string metrics_report(const ReplayReport& report) {
  std::vector<metrics::LabelledStats> caches;
  for (const RunResult& run : report.runs) {
    metrics::LabelledStats cache;
    if (report.runs.size() > 1) cache.labels = {{"pool_pages", std::to_string(run.pool_pages)}};
    cache.stats = run.stats;
    caches.push_back(cache);
  }
  return metrics::prometheus_text(caches);
}

}  // namespace kvc::replay
