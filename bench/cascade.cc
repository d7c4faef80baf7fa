// Shared prefixes: sequences forked from one prompt decode together, once with the prefix read for
// all of them at once (cascade attention), once with each reading it by itself. Apart, a step is
// bound by memory; together by arithmetic.
#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>

#include "bench/benches.h"
#include "bench/sequence_filler.h"

namespace kvc::bench {
namespace {

constexpr int kMeasurements = 4;  // Measurements that share the time.
// A prefix that is read by one sequence after the other comes from memory each time when it is
// larger than the last-level cache; layers make it this large.
constexpr int64_t kPrefixBytes = int64_t{256} << 20;

// Decode steps of sequences that begin with the same pages.
class Forks {
 public:
  Forks(const CascadeOptions& options, const ModelOptions& model)
      : cache_(shape(options, model)),
        q_(cache_.shape().storage, options.sequences, model.q_heads, model.head_dim, 1),
        k_(cache_.shape().storage, options.sequences, model.kv_heads, model.head_dim, 2),
        v_(cache_.shape().storage, options.sequences, model.kv_heads, model.head_dim, 3),
        together_(cache_.shape().storage, options.sequences, model.q_heads, model.head_dim, 4),
        apart_(cache_.shape().storage, options.sequences, model.q_heads, model.head_dim, 5),
        one_token_(static_cast<size_t>(options.sequences), 1) {
    cache_.add(0);
    SequenceFiller filler(cache_);
    filler.grow(0, options.prefix);
    for (int seq = 0; seq < options.sequences; ++seq) {
      if (seq > 0) cache_.fork(0, seq);
      seqs_.push_back(seq);
    }
    // The last token of each tail is the one that the measured step appends.
    for (const kvc_seq seq : seqs_) filler.grow(seq, options.tail - 1);
  }

  int layers() const { return cache_.shape().layers; }
  uint64_t cascades() const { return cache_.stats().cascades; }
  double difference() const { return together_.difference(apart_); }

  // A step of all layers; taking it back instead of ending it leaves the lengths as they were.
  void step(bool together) {
    kvc_forward* forward = cache_.begin(seqs_, one_token_);
    Activations& out = together ? together_ : apart_;
    for (int layer = 0; layer < layers(); ++layer) {
      cache_.attend(forward, layer, q_.tensor(), k_.tensor(), v_.tensor(), out.tensor(),
                    together ? 0 : KVC_ATTN_NO_CASCADE);
    }
    cache_.abort(forward);
  }

 private:
  static CacheShape shape(const CascadeOptions& options, const ModelOptions& model) {
    CacheShape shape = shape_of(model, options.common);
    const auto pages = [&](int64_t tokens) {
      return (tokens + shape.page_size - 1) / shape.page_size;
    };
    shape.num_pages = pages(options.prefix) + options.sequences * (pages(options.tail) + 1);
    const int64_t layer_bytes = shape.num_pages * shape.page_layer_bytes();
    shape.layers = static_cast<int>((kPrefixBytes + layer_bytes - 1) / layer_bytes);
    if (shape.layers * layer_bytes > kLargestPoolBytes)
      throw std::runtime_error(
          "the pool would be too large: a shorter --prefix or fewer --sequences");
    return shape;
  }

  Cache cache_;
  Activations q_, k_, v_, together_, apart_;
  std::vector<kvc_seq> seqs_;
  std::vector<int64_t> one_token_;
};

Report measure_shape(const CascadeOptions& options, const ModelOptions& model) {
  const int threads = threads_of(options.common);
  Forks forks(options, model);
  const uint64_t cascades_before = forks.cascades();
  forks.step(true);
  const uint64_t cascades = forks.cascades() - cascades_before;
  forks.step(false);
  if (forks.cascades() != cascades_before + cascades)
    throw std::runtime_error("prefixes were shared although the call forbade it");
  const double difference = forks.difference();

  const auto layers = static_cast<double>(forks.layers());
  const Side apart{layers, [&](int) { forks.step(false); }};
  const Side together{layers, [&](int) { forks.step(true); }};
  const PairedResult gain = measure_pairs(threads, options.common.budget, apart, together);
  // A multiply-add per element in Q.K and one in P.V, for every visible token of a sequence, shared
  // or not.
  const double layer_flops = 4.0 * options.sequences *
                             static_cast<double>(options.prefix + options.tail) * model.q_heads *
                             model.head_dim;
  const Arithmetic arithmetic =
      bounding_arithmetic(isa_named(model.isa), storage_named(model.dtype));
  ThreadTeam team(threads);
  const PairedResult of_peak =
      measure_pairs(threads, options.common.budget, arithmetic_side(team, arithmetic),
                    {layers * layer_flops, together.work});

  const int64_t token_bytes = shape_of(model, options.common).bytes_per_token_layer();
  Report report;
  report["q_heads"] = model.q_heads;
  report["kv_heads"] = model.kv_heads;
  report["layers"] = forks.layers();
  report["prefix_bytes"] = options.prefix * token_bytes;
  report["cascades"] = cascades;
  report["max_difference"] = std::isnan(difference) ? Report("nan") : Report(rounded(difference));
  report["speedup"] = rounded(gain.share.median);
  report["speedup_min"] = rounded(gain.share.min);
  report["speedup_max"] = rounded(gain.share.max);
  report["layer_microseconds"] = rounded(1e6 / gain.subject_rate.median);
  report["layer_microseconds_apart"] = rounded(1e6 / gain.limit_rate.median);
  // What the sequences read one by one: how near to memory's limit they came says how much of the
  // gain is due to sharing.
  report["apart_gbps"] =
      rounded(gain.limit_rate.median * options.sequences *
              static_cast<double>((options.prefix + options.tail) * token_bytes) / 1e9);
  report["speedup_disturbed"] = gain.disturbed;
  report["peak_kind"] = arithmetic_name(arithmetic);
  add_pairs(report, of_peak, 1e9, "gflops", "peak_gflops");
  return report;
}

}  // namespace

Report run_cascade(const CascadeOptions& given) {
  CascadeOptions options = given;
  if (options.sequences < 2)
    throw std::runtime_error("--sequences must be at least 2: nobody else shares");
  options.common.budget.seconds /= kMeasurements;
  Report report = model_report("cascade", options.model, options.common);
  report["sequences"] = options.sequences;
  report["prefix"] = options.prefix;
  report["tail"] = options.tail;
  report.update(measure_shape(options, options.model));
  // Four query heads to a kv head, as grouped-query models have them: the same arithmetic over a
  // quarter of the bytes.
  ModelOptions grouped = options.model;
  grouped.kv_heads = options.model.q_heads / 4;
  if (options.model.q_heads % 4 == 0 && grouped.kv_heads != options.model.kv_heads) {
    const Report gqa4 = measure_shape(options, grouped);
    report["speedup_gqa4"] = gqa4["speedup"];
    report["gqa4"] = gqa4;
  }
  return report;
}

}  // namespace kvc::bench
