// Moving K and V: appending new rows, and copying pages on write. Bound by memory: compared with a
// streaming copy of our own.
#include <algorithm>
#include <stdexcept>

#include "bench/benches.h"
#include "bench/copy_limit.h"
#include "bench/sequence_filler.h"

namespace kvc::bench {
Report run_append(const AppendOptions& options) {
  Report report = model_report("append", options.model, options.common);
  CacheShape shape = shape_of(options.model, options.common);
  shape.rope = options.rope;
  shape.num_pages = (options.tokens + shape.page_size - 1) / shape.page_size;
  const int64_t layer_bytes = options.tokens * shape.bytes_per_token_layer();
  shape.layers = layers_for_footprint(layer_bytes);
  Cache cache(shape);
  cache.add(0);
  kvc_forward* forward = cache.begin({0}, {options.tokens});
  // Each layer has its own rows to read, as far apart as its pages are: input and output both come
  // from memory.
  constexpr int kInputs = 4;
  std::vector<std::unique_ptr<Activations>> k, v;
  for (int input = 0; input < kInputs; ++input) {
    k.push_back(std::make_unique<Activations>(shape.storage, options.tokens, shape.kv_heads,
                                              shape.head_dim, 2));
    v.push_back(std::make_unique<Activations>(shape.storage, options.tokens, shape.kv_heads,
                                              shape.head_dim, 3));
  }
  const auto append = [&](int layer) {
    const auto input = static_cast<size_t>(layer) % kInputs;
    cache.append_kv(forward, layer % shape.layers, k[input]->tensor(), v[input]->tensor());
  };
  for (int layer = 0; layer < shape.layers; ++layer) append(layer);  // Touch the pool.

  const int calls = static_cast<int>(std::max<int64_t>(1, kCopyLimitBytes / layer_bytes));
  ThreadTeam team(shape.threads);
  CopyLimit limit(team, kCopyLimitBytes);
  const Side subject{static_cast<double>(layer_bytes) * calls, [&](int pair) {
                       for (int call = 0; call < calls; ++call) append(pair * calls + call);
                     }};
  const PairedResult result =
      measure_pairs(shape.threads, options.common.budget, limit.side(), subject);
  cache.abort(forward);

  report["tokens"] = options.tokens;
  report["rope"] = options.rope;
  report["layers"] = shape.layers;
  add_pairs(report, result, 1e9, "gbps", "copy_limit_gbps");
  report["copy_limit_streams"] = limit.stream_stores();
  return report;
}

Report run_copy(const CopyOptions& options) {
  Report report = model_report("copy", options.model, options.common);
  CacheShape shape = shape_of(options.model, options.common);
  if (shape.page_size < 2)
    throw std::runtime_error("copy on write needs pages of at least two tokens: --page");
  shape.layers = options.layers;
  // Every parent has one page, all but full; its child shares the page until a forward appends to
  // the child.
  shape.num_pages = 2 * int64_t{options.sequences};
  const int64_t copied_bytes = options.sequences * shape.layers * shape.page_layer_bytes();
  if (shape.num_pages * shape.layers * shape.page_layer_bytes() > kLargestPoolBytes) {
    throw std::runtime_error("the pool would be too large: fewer --sequences or --layers");
  }
  Cache cache(shape);
  SequenceFiller filler(cache);
  std::vector<kvc_seq> children;
  for (int parent = 0; parent < options.sequences; ++parent) {
    cache.add(parent);
    filler.grow(parent, shape.page_size - 1);
  }
  for (int parent = 0; parent < options.sequences; ++parent) {
    children.push_back(options.sequences + parent);
    cache.fork(parent, children.back());
  }
  // An aborted begin leaves the children as they were, so each repetition copies the same pages
  // again.
  const std::vector<int64_t> one_token(children.size(), 1);
  const uint64_t copied_before = cache.stats().pages_copied;
  cache.abort(cache.begin(children, one_token));
  const uint64_t pages_copied = cache.stats().pages_copied - copied_before;
  if (pages_copied != children.size())
    throw std::runtime_error("the library did not copy one page per child");

  ThreadTeam team(shape.threads);
  CopyLimit limit(team, kCopyLimitBytes);
  const Side subject{static_cast<double>(copied_bytes),
                     [&](int) { cache.abort(cache.begin(children, one_token)); }};
  const PairedResult result =
      measure_pairs(shape.threads, options.common.budget, limit.side(), subject);

  report["layers"] = shape.layers;
  report["pages_copied"] = pages_copied;
  report["copied_bytes"] = copied_bytes;
  report["burst_bytes"] = shape.page_layer_bytes();
  add_pairs(report, result, 1e9, "gbps", "copy_limit_gbps");
  report["copy_limit_streams"] = limit.stream_stores();
  return report;
}

}  // namespace kvc::bench
