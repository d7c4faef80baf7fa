#include "bench/measure.h"

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <ctime>

#include "bench/pin.h"

namespace kvc::bench {
namespace {

#if defined(__linux__)
double clock_seconds(clockid_t clock) {
  timespec time{};
  if (clock_gettime(clock, &time) != 0) return 0;
  return static_cast<double>(time.tv_sec) + static_cast<double>(time.tv_nsec) * 1e-9;
}
#endif

// The sum over the threads' own clocks: the clock of the process learns of another running thread
// only at timer ticks, milliseconds late.
double process_cpu_seconds() {
#if defined(__linux__)
  double total = 0;
  constexpr int kThreadSchedulerClock = 6;  // How Linux encodes the CPU clock of a thread id.
  for (const int thread : process_threads()) {
    total += clock_seconds(
        static_cast<clockid_t>((~static_cast<unsigned>(thread) << 3) | kThreadSchedulerClock));
  }
  return total;
#else
  return static_cast<double>(std::clock()) / CLOCKS_PER_SEC;
#endif
}

}  // namespace

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

Portion timed(int threads, const std::function<void()>& work) {
  const double cpu_before = process_cpu_seconds();
  const double start = now_seconds();
  work();
  const double seconds = now_seconds() - start;
  const double cpu = process_cpu_seconds() - cpu_before;
  return {seconds, cpu / (seconds * threads)};
}

Spread spread_of(std::vector<double> values) {
  if (values.empty()) return {};
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  const double median =
      values.size() % 2 == 1 ? values[middle] : 0.5 * (values[middle - 1] + values[middle]);
  return {median, values.front(), values.back()};
}

Spread seconds_of_call(const Budget& budget, const std::function<void()>& call) {
  constexpr double kBatchSeconds = 1e-3;
  constexpr int kFewest = 5;
  const auto batch_seconds = [&](int64_t calls) {
    const double start = now_seconds();
    for (int64_t i = 0; i < calls; ++i) call();
    return now_seconds() - start;
  };
  call();  // Warms up.
  int64_t calls = 1;
  while (batch_seconds(calls) < kBatchSeconds) calls *= 2;
  std::vector<double> seconds;
  const double end = now_seconds() + budget.seconds;
  for (int batch = 0; batch < kFewest || (batch < budget.repetitions && now_seconds() < end);
       ++batch)
    seconds.push_back(batch_seconds(calls) / static_cast<double>(calls));
  return spread_of(seconds);
}

PairedResult measure_pairs(int threads, const Budget& budget, const Side& limit,
                           const Side& subject) {
  struct Pair {
    double limit_rate, subject_rate, cpu_share;
  };
  constexpr int kFewest = 5;
  std::vector<Pair> pairs;
  int quiet = 0;
  const double end = now_seconds() + budget.seconds;
  // The first pair starts the threads, warms caches and clocks, and is not kept.
  for (int pair = -1; pair < kFewest || (quiet < budget.repetitions && now_seconds() < end);
       ++pair) {
    const int index = std::max(pair, 0);
    const Portion limit_portion = timed(threads, [&] { limit.work(index); });
    const Portion subject_portion = timed(threads, [&] { subject.work(index); });
    if (pair < 0) {
      pin_threads(threads);
      continue;
    }
    const double cpu_share = std::min(limit_portion.cpu_share, subject_portion.cpu_share);
    pairs.push_back({limit.amount / limit_portion.seconds, subject.amount / subject_portion.seconds,
                     cpu_share});
    if (cpu_share >= kUndisturbed) ++quiet;
  }
  unpin_threads();

  PairedResult result;
  result.measured = static_cast<int>(pairs.size());
  std::sort(pairs.begin(), pairs.end(),
            [](const Pair& a, const Pair& b) { return a.cpu_share > b.cpu_share; });
  result.disturbed = quiet < kFewest;
  pairs.resize(static_cast<size_t>(std::max(quiet, kFewest)));
  result.kept = static_cast<int>(pairs.size());

  std::vector<double> limit_rates, subject_rates, shares;
  for (const Pair& pair : pairs) {
    limit_rates.push_back(pair.limit_rate);
    subject_rates.push_back(pair.subject_rate);
    shares.push_back(pair.subject_rate / pair.limit_rate);
  }
  result.limit_rate = spread_of(limit_rates);
  result.subject_rate = spread_of(subject_rates);
  result.share = spread_of(shares);
  return result;
}

}  // namespace kvc::bench
