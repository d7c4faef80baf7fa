// Prefill and short appends: many new tokens attend to a context and to each other. Bound by
// arithmetic: compared with the peak of the multiply-adds that the kernels use.
#include <algorithm>

#include "bench/benches.h"
#include "bench/sequence_filler.h"

namespace kvc::bench {
namespace {

constexpr int kLayers = 4;

}  // namespace

Report run_prefill(const PrefillOptions& options) {
  Report report = model_report("prefill", options.model, options.common);
  CacheShape shape = shape_of(options.model, options.common);
  const int64_t tokens = options.context + options.new_tokens;
  shape.num_pages = (tokens + shape.page_size - 1) / shape.page_size;
  shape.layers = kLayers;
  Cache cache(shape);
  fill(cache, 1, options.context, Placement::kAdjacent);
  kvc_forward* forward = cache.begin({0}, {options.new_tokens});

  Activations q(shape.storage, options.new_tokens, shape.q_heads, shape.head_dim, 1);
  Activations k(shape.storage, options.new_tokens, shape.kv_heads, shape.head_dim, 2);
  Activations v(shape.storage, options.new_tokens, shape.kv_heads, shape.head_dim, 3);
  Activations out(shape.storage, options.new_tokens, shape.q_heads, shape.head_dim, 4);
  const auto attend = [&](int layer) {
    cache.attend(forward, layer % kLayers, q.tensor(), k.tensor(), v.tensor(), out.tensor());
  };
  // Query row i attends to the context and new tokens 0..i; a pair costs one multiply-add per
  // element in Q.K and one in P.V.
  const double visible_pairs =
      static_cast<double>(options.new_tokens) * static_cast<double>(options.context) +
      0.5 * static_cast<double>(options.new_tokens) * static_cast<double>(options.new_tokens + 1);
  const double call_flops = 4 * visible_pairs * shape.q_heads * shape.head_dim;

  const Arithmetic arithmetic = bounding_arithmetic(shape.isa, shape.storage);
  ThreadTeam team(shape.threads);
  attend(0);  // The first call sets up the workspace.
  const double call_seconds = timed(shape.threads, [&] { attend(1); }).seconds;
  const int calls = std::max(1, static_cast<int>(kShortestPortion / call_seconds));
  const Side peak = arithmetic_side(team, arithmetic);
  const Side prefill{call_flops * calls, [&](int pair) {
                       for (int call = 0; call < calls; ++call) attend(pair * calls + call);
                     }};
  const PairedResult result = measure_pairs(shape.threads, options.common.budget, peak, prefill);
  cache.abort(forward);

  report["new"] = options.new_tokens;
  report["context"] = options.context;
  report["peak_kind"] = arithmetic_name(arithmetic);
  add_pairs(report, result, 1e9, "gflops", "peak_gflops");
  report["layer_microseconds"] = rounded(call_flops / result.subject_rate.median * 1e6);
  return report;
}

}  // namespace kvc::bench
