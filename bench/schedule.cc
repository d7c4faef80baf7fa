// The schedule of a decode batch on the CPU: a step makes one per shape of layers.
#include <vector>

#include "bench/benches.h"
#include "src/exec/cpu/work_list.h"

namespace kvc::bench {
namespace {

// 32 heads over 8 KV heads of dim 128.
constexpr WorkShape kShape{.num_q_heads = 32,
                           .num_kv_heads = 8,
                           .k_dim = 128,
                           .v_dim = 128,
                           .causal = true,
                           .tiles_only = false,
                           .is_latent = false,
                           .concurrency = 16};

}  // namespace

Report run_schedule(const ScheduleOptions& options) {
  Report report = new_report("schedule", "none", 1);
  report["context"] = options.context;
  for (const int num_seqs : {1, 8, 64, 256}) {
    std::vector<kernels::AttnSequence> batch(static_cast<size_t>(num_seqs));
    for (int i = 0; i < num_seqs; ++i) {
      kernels::AttnSequence& sequence = batch[static_cast<size_t>(i)];
      sequence.row_begin = i;
      sequence.num_rows = 1;
      sequence.first_key_end = options.context + i % 7;
    }
    WorkList list;
    const Spread time = seconds_of_call(
        options.common.budget, [&] { schedule_work(batch.data(), num_seqs, kShape, {}, &list); });
    Report part;
    part["items"] = list.items.size();
    part["microseconds"] = rounded(time.median * 1e6);
    part["microseconds_min"] = rounded(time.min * 1e6);
    report["sequences_" + std::to_string(num_seqs)] = part;
  }
  return report;
}

}  // namespace kvc::bench
