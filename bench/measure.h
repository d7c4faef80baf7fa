// Timing that survives a shared machine: each repetition knows how much of the CPU it asked for it
// got, limit and subject are measured in turn, and only the ratio of neighbours counts.
#pragma once

#include <cstddef>
#include <functional>
#include <vector>

namespace kvc::bench {

double now_seconds();

// One timed portion of work. `cpu_share` is CPU time / (wall time * threads): 1 when every thread
// had a processor and work all the time.
struct Portion {
  double seconds;
  double cpu_share;
};

Portion timed(int threads, const std::function<void()>& work);

// Repetitions with a smaller cpu_share are left out of every figure.
constexpr double kUndisturbed = 0.9;

struct Budget {
  int repetitions = 25;  // Undisturbed repetitions wanted.
  double seconds = 8;    // Longest time to spend.
};

// A median with the range around it.
struct Spread {
  double median = 0, min = 0, max = 0;
};
Spread spread_of(std::vector<double> values);

// Seconds of one call, which may be shorter than the clock can tell: batches of about a millisecond
// or one call, as many as the budget has.
Spread seconds_of_call(const Budget& budget, const std::function<void()>& call);

// What a bench is about, in turn with the limit it is compared with.
struct PairedResult {
  Spread subject_rate;  // amount / seconds
  Spread limit_rate;
  Spread share;            // subject_rate / limit_rate of each pair.
  int kept = 0;            // Pairs in the figures.
  int measured = 0;        // Pairs taken.
  bool disturbed = false;  // Too few quiet pairs: the quietest were kept whatever they were.
};

// One measured side: `work(pair)` does `amount` (bytes, flops) with `threads` threads.
struct Side {
  double amount;
  std::function<void(int)> work;
};

PairedResult measure_pairs(int threads, const Budget& budget, const Side& limit,
                           const Side& subject);

}  // namespace kvc::bench
