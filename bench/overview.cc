// `kvcache bench` without a name: the figures that a change should not make worse, in well under a
// minute.
#include "bench/benches.h"

namespace kvc::bench {
namespace {

constexpr Budget kShort{9, 1.5};

// One line: the figure, its limit, the share.
std::string line(const Report& report, const char* subject, const char* limit, const char* unit) {
  const auto number = [&](const char* name) { return report[name].dump(); };
  return number(subject) + " of " + number(limit) + " " + unit + ", share " + number("share") +
         (report["disturbed"].get<bool>() ? " (disturbed)" : "");
}

}  // namespace

Report run_overview(const CommonOptions& options) {
  CommonOptions common = options;
  common.threads = threads_of(options);
  common.budget = kShort;
  Report report =
      new_report("overview", isa_name(resolve_isa(KVC_CPU_ISA_AUTO)), threads_of(common));
  // People get one line per bench, programs the whole report of each.
  const auto put = [&](const std::string& name, const Report& result, const char* subject,
                       const char* limit, const char* unit) {
    report[name] = options.json ? result : Report(line(result, subject, limit, unit));
  };

  for (const char* placement : {"scattered", "adjacent"}) {
    for (const char* dtype : {"bf16", "fp16"}) {
      DecodeOptions decode;
      decode.common = common;
      decode.model.dtype = dtype;
      decode.placement = placement;
      put(std::string("decode ") + dtype + " " + placement, run_decode(decode), "gbps",
          "pattern_read_gbps", "GB/s");
    }
  }
  for (const int new_tokens : {512, 32}) {
    PrefillOptions prefill;
    prefill.common = common;
    prefill.new_tokens = new_tokens;
    put("prefill bf16 " + std::to_string(new_tokens) + " new", run_prefill(prefill), "gflops",
        "peak_gflops", "GFLOP/s");
  }
  AppendOptions append;
  append.common = common;
  put("append bf16 rope", run_append(append), "gbps", "copy_limit_gbps", "GB/s");
  CopyOptions copy;
  copy.common = common;
  put("copy on write", run_copy(copy), "gbps", "copy_limit_gbps", "GB/s");

  const auto step = [&](int sequences, int64_t context, int64_t versus) {
    StepOptions step_options;
    step_options.common = common;
    step_options.sequences = sequences;
    step_options.context = context;
    step_options.versus_context = versus;
    step_options.many = 0;
    return run_step(step_options);
  };
  const Report small = step(64, 4096, 0);
  const Report large = step(256, 16384, 1024);
  if (options.json) {
    report["step 64 x 4096"] = small;
    report["step 256 x 16384"] = large;
  } else {
    report["step 64 x 4096"] = small["host_ns"].dump() + " ns, " +
                               small["h2d_bytes_per_sequence_max"].dump() +
                               " bytes per sequence at most";
    report["step 256 x 16384"] =
        large["host_ns"].dump() + " ns, " + large["context_ratio"].dump() + " times 256 x 1024";
  }
  return report;
}

}  // namespace kvc::bench
