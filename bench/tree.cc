// Speculative decoding: the nodes of one token tree in one forward, and the commit of a path,
// compared with a plain append of as many tokens.
#include <algorithm>
#include <stdexcept>

#include "bench/benches.h"
#include "bench/sequence_filler.h"

namespace kvc::bench {
namespace {

constexpr int kLayers = 8;

// One sequence that gets the same number of tokens in two ways, and loses them again.
class Verifier {
 public:
  explicit Verifier(const TreeOptions& options)
      : cache_(shape(options)),
        q_(cache_.shape().storage, options.nodes, options.model.q_heads, options.model.head_dim, 1),
        k_(cache_.shape().storage, options.nodes, options.model.kv_heads, options.model.head_dim,
           2),
        v_(cache_.shape().storage, options.nodes, options.model.kv_heads, options.model.head_dim,
           3),
        out_(cache_.shape().storage, options.nodes, options.model.q_heads, options.model.head_dim,
             4) {
    cache_.add(0);
    SequenceFiller(cache_).grow(0, options.context);
    // Breadth first, every node with `branching` children: the last node is among the deepest.
    for (int node = 0; node < options.nodes; ++node)
      parents_.push_back(node == 0 ? -1 : (node - 1) / options.branching);
    leaf_ = options.nodes - 1;
    for (int32_t node = leaf_; node >= 0; node = parents_[static_cast<size_t>(node)]) ++path_;
  }

  int64_t path() const { return path_; }
  double commit_seconds() const { return commit_seconds_; }

  void tree() {
    kvc_forward* forward = cache_.begin_tree(0, parents_);
    attend(forward);
    cache_.end(forward);
    const double start = now_seconds();
    cache_.commit_tree(0, leaf_);
    commit_seconds_ = now_seconds() - start;
    cache_.pop(0, path_);
  }
  void plain() {
    kvc_forward* forward = cache_.begin({0}, {static_cast<int64_t>(parents_.size())});
    attend(forward);
    cache_.end(forward);
    cache_.pop(0, static_cast<int64_t>(parents_.size()));
  }

 private:
  static CacheShape shape(const TreeOptions& options) {
    CacheShape shape = shape_of(options.model, options.common);
    shape.num_pages = (options.context + options.nodes + shape.page_size - 1) / shape.page_size;
    shape.layers = kLayers;
    if (shape.num_pages * shape.layers * shape.page_layer_bytes() > kLargestPoolBytes)
      throw std::runtime_error("the pool would be too large: a shorter context");
    return shape;
  }
  void attend(kvc_forward* forward) {
    for (int layer = 0; layer < kLayers; ++layer)
      cache_.attend(forward, layer, q_.tensor(), k_.tensor(), v_.tensor(), out_.tensor());
  }

  Cache cache_;
  Activations q_, k_, v_, out_;
  std::vector<int32_t> parents_;
  int32_t leaf_ = 0;
  int64_t path_ = 0;
  double commit_seconds_ = 0;
};

}  // namespace

Report run_tree(const TreeOptions& options) {
  Report report = model_report("tree", options.model, options.common);
  Verifier verifier(options);
  std::vector<double> commits;
  const Side plain{kLayers, [&](int) { verifier.plain(); }};
  const Side tree{kLayers, [&](int) {
                    verifier.tree();
                    commits.push_back(verifier.commit_seconds() * 1e6);
                  }};
  const PairedResult result =
      measure_pairs(threads_of(options.common), options.common.budget, plain, tree);
  const Spread commit = spread_of(commits);

  report["context"] = options.context;
  report["nodes"] = options.nodes;
  report["branching"] = options.branching;
  report["path"] = verifier.path();  // Tokens that the commit keeps.
  report["layers"] = kLayers;
  report["ratio"] = rounded(1 / result.share.median);
  report["ratio_min"] = rounded(1 / result.share.max);
  report["ratio_max"] = rounded(1 / result.share.min);
  report["speedup"] = rounded(result.share.median);
  report["layer_microseconds"] = rounded(1e6 / result.subject_rate.median);
  report["layer_microseconds_plain"] = rounded(1e6 / result.limit_rate.median);
  report["commit_microseconds"] = rounded(commit.median);
  report["commit_microseconds_min"] = rounded(commit.min);
  report["commit_microseconds_max"] = rounded(commit.max);
  report["reps"] = result.kept;
  report["reps_dropped"] = result.measured - result.kept;
  report["disturbed"] = result.disturbed;
  return report;
}

}  // namespace kvc::bench
