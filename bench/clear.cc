// What KVC_CONFIG_CLEAR_PAGES costs: forwards with and without it, and a memset of the same bytes,
// in turn.
#include <cstring>
#include <vector>

#include "bench/benches.h"

namespace kvc::bench {

Report run_clear(const ClearOptions& options) {
  Report report = model_report("clear", options.model, options.common);
  CacheShape shape = shape_of(options.model, options.common);
  shape.layers = options.layers;
  const int64_t pages = (options.tokens + shape.page_size - 1) / shape.page_size;
  shape.num_pages = 2 * pages;
  const int64_t bytes = pages * shape.layers * shape.page_layer_bytes();
  Cache plain(shape);
  shape.clear_pages = true;
  Cache clearing(shape);
  Activations k(shape.storage, options.tokens, shape.kv_heads, shape.head_dim, 2);
  Activations v(shape.storage, options.tokens, shape.kv_heads, shape.head_dim, 3);
  const Buffer memory(static_cast<size_t>(bytes));
  plain.add(0);
  clearing.add(0);

  // Seconds of a forward that appends to every layer; its tokens are popped again.
  const auto append_seconds = [&](Cache& cache) {
    const double start = now_seconds();
    kvc_forward* forward = cache.begin({0}, {options.tokens});
    for (int layer = 0; layer < shape.layers; ++layer)
      cache.append_kv(forward, layer, k.tensor(), v.tensor());
    cache.end(forward);
    const double seconds = now_seconds() - start;
    cache.pop(0, options.tokens);
    return seconds;
  };
  std::vector<double> of_append, of_memset;
  const double end = now_seconds() + options.common.budget.seconds;
  for (int round = -1;
       round < 5 || (round < options.common.budget.repetitions && now_seconds() < end); ++round) {
    const double without = append_seconds(plain), with = append_seconds(clearing);
    const double start = now_seconds();
    std::memset(memory.data(), 0, memory.bytes());
    asm volatile("" : : "r"(memory.data()) : "memory");  // The bytes are used.
    const double set = now_seconds() - start;
    if (round < 0) continue;  // Warm-up.
    of_append.push_back(with / without);
    of_memset.push_back((with - without) / set);
  }
  report["layers"] = shape.layers;
  report["tokens"] = options.tokens;
  report["bytes"] = bytes;
  const Spread ratio = spread_of(of_append);
  report["of_append"] = rounded(ratio.median);
  report["of_append_min"] = rounded(ratio.min);
  report["of_append_max"] = rounded(ratio.max);
  report["added_of_memset"] = rounded(spread_of(of_memset).median);
  report["reps"] = of_append.size();
  return report;
}

}  // namespace kvc::bench
