#include "bench/gpu_measure.h"

#include <algorithm>
#include <vector>

namespace kvc::bench {
namespace {

constexpr double kRoundSeconds = 20e-3;
constexpr int64_t kMostCalls = 1 << 14;
constexpr int kFewestRounds = 3;
// Calls whose launches fit the device's queue, some hundreds of them, whatever a call launches.
constexpr int64_t kQueuedCalls = 32;

constexpr int64_t kCopyBytes = int64_t{512} << 20;
constexpr int64_t kOnceCopyBytes = int64_t{1} << 20;

}  // namespace

CallTimes measure_calls(const Gpu& gpu, const Budget& budget, bool once,
                        const std::function<void(int64_t)>& enqueue) {
  int64_t next = 0;
  const auto round = [&](int64_t calls, double* enqueued) {
    const double start = now_seconds();
    for (int64_t i = 0; i < calls; ++i) enqueue(next++);
    if (enqueued != nullptr) *enqueued = (now_seconds() - start) / static_cast<double>(calls);
    gpu.synchronize();
    return now_seconds() - start;
  };
  CallTimes times;
  times.calls = 1;
  round(once ? 1 : 3, nullptr);  // Memory that grows, plans that are made, clocks that rise.
  for (double seconds = 0; !once && times.calls < kMostCalls;) {
    seconds = round(times.calls, nullptr);
    if (seconds >= kRoundSeconds) break;
    times.calls = std::min(kMostCalls, 2 * times.calls);
  }
  std::vector<double> per_call, enqueue_times;
  const double end = now_seconds() + budget.seconds;
  const int fewest = once ? 1 : kFewestRounds;
  for (int i = 0; i < fewest || (!once && i < budget.repetitions && now_seconds() < end); ++i) {
    per_call.push_back(round(times.calls, nullptr) / static_cast<double>(times.calls));
    double enqueued = 0;
    round(std::min(times.calls, kQueuedCalls), &enqueued);
    enqueue_times.push_back(enqueued);
  }
  times.seconds = spread_of(per_call);
  times.enqueue = spread_of(enqueue_times).median;
  times.rounds = static_cast<int>(per_call.size());
  return times;
}

Spread copy_rate(const Gpu& gpu, const Budget& budget, bool once) {
  const int64_t bytes = once ? kOnceCopyBytes : kCopyBytes;
  const GpuMemory from(gpu, bytes), to(gpu, bytes);
  fill_random(gpu, from, kBf16, {}, 1);
  fill_random(gpu, to, kBf16, {}, 2);
  const CallTimes times =
      measure_calls(gpu, budget, once, [&](int64_t) { gpu.copy(to.data(), from.data(), bytes); });
  const double moved = 2 * static_cast<double>(bytes);
  return {moved / times.seconds.median, moved / times.seconds.max, moved / times.seconds.min};
}

}  // namespace kvc::bench
