// The host's part of a decode step: begin and end for the whole batch, no tensor memory.
#include <algorithm>
#include <random>
#include <vector>

#include "bench/benches.h"
#include "bench/sequence_filler.h"

namespace kvc::bench {
namespace {

// One batch that decodes around a context length: `kStepsPerRound` steps forward, then back to the
// start, not timed.
class DecodeBatch {
 public:
  static constexpr int kStepsPerRound = 256;

  DecodeBatch(const StepOptions& options, int64_t context) : cache_(shape(options, context)) {
    std::mt19937_64 random(3);
    for (int seq = 0; seq < options.sequences; ++seq) {
      const int64_t ahead =
          options.aligned
              ? 0
              : static_cast<int64_t>(random() % static_cast<uint64_t>(options.page_size));
      seqs_.push_back(seq);
      starts_.push_back(context + ahead);
      cache_.add(seq);
      filler_.grow(seq, starts_.back());
    }
    one_token_.assign(seqs_.size(), 1);
  }

  // Nanoseconds of each step of one round.
  void round(std::vector<double>* nanoseconds) {
    for (int step = 0; step < kStepsPerRound; ++step) {
      const double start = now_seconds();
      cache_.step_without_layers(seqs_, one_token_);
      const double seconds = now_seconds() - start;
      if (nanoseconds != nullptr) nanoseconds->push_back(seconds * 1e9);
    }
    rewind();
  }

  int num_groups() const { return cache_.num_groups(); }

  // What a device would be sent in each step of one round.
  void transfers(std::vector<double>& bytes, uint64_t& most_copies) {
    for (int step = 0; step < kStepsPerRound; ++step) {
      cache_.step_without_layers(seqs_, one_token_);
      const kvc_stats stats = cache_.stats();
      bytes.push_back(static_cast<double>(stats.step_bytes));
      most_copies = std::max(most_copies, stats.step_copies);
    }
    rewind();
  }

 private:
  // A window has dropped what a pop would need: such sequences start anew.
  void rewind() {
    for (size_t i = 0; i < seqs_.size(); ++i) {
      if (cache_.shape().windows.empty()) {
        cache_.pop(seqs_[i], kStepsPerRound);
        continue;
      }
      cache_.remove(seqs_[i]);
      cache_.add(seqs_[i]);
      filler_.grow(seqs_[i], starts_[i]);
    }
  }
  static CacheShape shape(const StepOptions& options, int64_t context) {
    CacheShape shape;
    shape.layers = options.layers;
    shape.page_size = options.page_size;
    shape.tensor_memory = false;
    const auto pages = [&](int64_t tokens) {
      return (tokens + options.page_size - 1) / options.page_size;
    };
    const int64_t longest = pages(context + options.page_size + kStepsPerRound);
    shape.num_pages = options.sequences * longest;
    if (options.groups == 1) return shape;
    // As many layers of each kind, so that the plan neither cuts nor joins kinds. A prompt in one
    // forward holds all of its pages for a moment.
    shape.layers = (options.layers + options.groups - 1) / options.groups * options.groups;
    shape.windows.push_back(0);
    for (int group = 1; group < options.groups; ++group) {
      shape.windows.push_back(1024 - 64 * (group - 1));
      shape.num_pages += options.sequences * (pages(shape.windows.back()) + 2) + longest;
    }
    return shape;
  }

  Cache cache_;
  SequenceFiller filler_{cache_};
  std::vector<kvc_seq> seqs_;
  std::vector<int64_t> starts_, one_token_;
};

// A large batch: what one sequence more costs.
Report many_figures(const StepOptions& options, int groups) {
  StepOptions large = options;
  large.sequences = options.many;
  large.groups = groups;
  DecodeBatch batch(large, large.context);
  std::vector<double> round_medians;
  const double end = now_seconds() + options.common.budget.seconds / 4;
  for (int round = -1;
       round < 3 || (round < options.common.budget.repetitions && now_seconds() < end); ++round) {
    std::vector<double> steps;
    batch.round(&steps);
    if (round >= 0) round_medians.push_back(spread_of(steps).median);
  }
  const Spread host = spread_of(round_medians);
  Report report;
  report["sequences"] = large.sequences;
  report["groups"] = batch.num_groups();
  report["host_ns"] = rounded(host.median);
  report["ns_per_seq"] = rounded(host.median / large.sequences);
  report["ns_per_seq_min"] = rounded(host.min / large.sequences);
  report["ns_per_seq_max"] = rounded(host.max / large.sequences);
  return report;
}

}  // namespace

Report run_step(const StepOptions& options) {
  DecodeBatch batch(options, options.context);
  std::unique_ptr<DecodeBatch> versus;
  if (options.versus_context > 0)
    versus = std::make_unique<DecodeBatch>(options, options.versus_context);

  // Rounds of the two lengths in turn; a round's median is not moved by the steps that an interrupt
  // hit.
  std::vector<double> all_steps, round_medians, ratios, versus_medians;
  const double end = now_seconds() + options.common.budget.seconds;
  constexpr int kFewestRounds = 5;
  for (int round = -2; round < kFewestRounds ||
                       (round < 4 * options.common.budget.repetitions && now_seconds() < end);
       ++round) {
    std::vector<double> steps, versus_steps;
    batch.round(&steps);
    if (versus != nullptr) versus->round(&versus_steps);
    if (round < 0) continue;  // Warm-up
    round_medians.push_back(spread_of(steps).median);
    all_steps.insert(all_steps.end(), steps.begin(), steps.end());
    if (versus != nullptr) {
      versus_medians.push_back(spread_of(versus_steps).median);
      ratios.push_back(round_medians.back() / versus_medians.back());
    }
  }
  std::vector<double> bytes;
  uint64_t copies = 0;
  batch.transfers(bytes, copies);

  std::sort(all_steps.begin(), all_steps.end());
  const Spread host = spread_of(round_medians);
  const Spread sent = spread_of(bytes);
  Report report = new_report("step", "none", 1);
  report["sequences"] = options.sequences;
  report["context"] = options.context;
  report["page"] = options.page_size;
  report["layers"] = options.layers;
  report["groups"] = batch.num_groups();
  report["lengths"] = options.aligned ? "aligned" : "staggered";
  report["host_ns"] = rounded(host.median);
  report["host_ns_min"] = rounded(host.min);
  report["host_ns_max"] = rounded(host.max);
  report["host_ns_p99"] = rounded(all_steps[all_steps.size() * 99 / 100]);
  report["ns_per_seq"] = rounded(host.median / options.sequences);
  report["h2d_bytes"] = static_cast<int64_t>(sent.median);
  report["h2d_bytes_max"] = static_cast<int64_t>(sent.max);
  report["h2d_bytes_per_sequence"] = rounded(sent.median / options.sequences);
  report["h2d_bytes_per_sequence_max"] = rounded(sent.max / options.sequences);
  report["h2d_copies"] = copies;
  report["steps"] = all_steps.size();
  report["reps"] = round_medians.size();
  if (versus != nullptr) {
    report["versus_context"] = options.versus_context;
    report["versus_host_ns"] = rounded(spread_of(versus_medians).median);
    report["context_ratio"] = rounded(spread_of(ratios).median);
  }
  if (options.many > 0) {
    report["many_one_group"] = many_figures(options, 1);
    report["many_six_groups"] = many_figures(options, 6);
  }
  return report;
}

}  // namespace kvc::bench
