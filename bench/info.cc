// The machine: what the library finds, and the limits that the other benches compare with.
#include <algorithm>
#include <functional>

#include "bench/benches.h"

namespace kvc::bench {
namespace {

// Best undisturbed rate of a few tries: a limit is what the machine can do, not what it did while
// others used it.
double limit_rate(int threads, double amount, const std::function<void()>& work) {
  constexpr int kTries = 7;
  double best = 0;
  double best_disturbed = 0;
  for (int attempt = 0; attempt < kTries; ++attempt) {
    const Portion portion = timed(threads, work);
    double& mark = portion.cpu_share >= kUndisturbed ? best : best_disturbed;
    mark = std::max(mark, amount / portion.seconds);
  }
  return best > 0 ? best : best_disturbed;
}

}  // namespace

Report run_info(const InfoOptions& options) {
  const int threads = threads_of(options.common);
  Report report = new_report("info", isa_name(resolve_isa(KVC_CPU_ISA_AUTO)), threads);
  ThreadTeam team(threads);

  const Buffer buffer(static_cast<size_t>(kFootprintBytes));
  struct Pattern {
    const char* name;
    int64_t portion_bytes;
    Order order;
  };
  for (const Pattern& pattern : {Pattern{"read_sequential_gbps", 65536, Order::kSequential},
                                 Pattern{"read_random_64k_gbps", 65536, Order::kShuffled},
                                 Pattern{"read_random_4k_gbps", 4096, Order::kShuffled}}) {
    const ReadWalk walk = walk_over(buffer, pattern.portion_bytes, pattern.order);
    const ReadWay way = fastest_read_way(team, walk, Inside::kAnyOrder);
    const double rate = limit_rate(threads, walk.bytes(), [&] {
      read_portions(team, walk, way, 0, static_cast<int64_t>(walk.portions.size()));
    });
    report[pattern.name] = rounded(rate / 1e9);
  }

  const size_t half = buffer.bytes() / 2;
  const CopyWay way = fastest_copy_way(team, buffer.data(), buffer.data() + half, half);
  const double copy = limit_rate(threads, static_cast<double>(half), [&] {
    copy_bytes(team, buffer.data(), buffer.data() + half, half, way);
  });
  report["copy_gbps"] = rounded(copy / 1e9);

  constexpr int kChunks = 50;
  struct Peak {
    const char* name;
    Arithmetic arithmetic;
  };
  for (const Peak& peak : {Peak{"fp32_avx2_gflops", Arithmetic::kAvx2},
                           Peak{"fp32_avx512_gflops", Arithmetic::kAvx512},
                           Peak{"bf16_avx512_gflops", Arithmetic::kAvx512Bf16}}) {
    if (!machine_has(peak.arithmetic)) continue;
    const double flops = run_arithmetic(team, peak.arithmetic, kChunks);
    const double rate =
        limit_rate(threads, flops, [&] { run_arithmetic(team, peak.arithmetic, kChunks); });
    report[peak.name] = rounded(rate / 1e9);
  }
  return report;
}

}  // namespace kvc::bench
