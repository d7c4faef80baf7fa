// Layers with a sliding window: a decode step must cost the same at every length, and less than
// over all keys.
#include <algorithm>
#include <memory>
#include <stdexcept>

#include "bench/benches.h"
#include "bench/sequence_filler.h"

namespace kvc::bench {
namespace {

constexpr int kMeasurements = 4;  // Measurements that share the time.
constexpr int kPrefillLayers = 1;
constexpr int kLengthFactor = 4;  // The shorter and the longer context.

// One sequence whose layers all have the same window (0: none), and new tokens at its end.
class Windowed {
 public:
  Windowed(const WindowOptions& options, int64_t window, int64_t context, int64_t new_tokens,
           int layers /* 0: as memory asks for */)
      : cache_(shape(options, window, context, new_tokens, layers)),
        new_tokens_(new_tokens),
        q_(cache_.shape().storage, new_tokens, options.model.q_heads, options.model.head_dim, 1),
        k_(cache_.shape().storage, new_tokens, options.model.kv_heads, options.model.head_dim, 2),
        v_(cache_.shape().storage, new_tokens, options.model.kv_heads, options.model.head_dim, 3),
        out_(cache_.shape().storage, new_tokens, options.model.q_heads, options.model.head_dim, 4) {
    const int64_t old_tokens = context - new_tokens;
    const int64_t hidden = window == 0 ? 0 : std::max<int64_t>(0, old_tokens - window);
    cache_.add(0);
    SequenceFiller filler(cache_);
    filler.grow_unwritten(0, hidden);
    filler.grow(0, old_tokens - hidden);
  }

  int layers() const { return cache_.shape().layers; }
  // All layers; taking the step back instead of ending it leaves the length and the window where
  // they were.
  void step() {
    kvc_forward* forward = cache_.begin({0}, {new_tokens_});
    for (int layer = 0; layer < layers(); ++layer)
      cache_.attend(forward, layer, q_.tensor(), k_.tensor(), v_.tensor(), out_.tensor());
    cache_.abort(forward);
  }

 private:
  static CacheShape shape(const WindowOptions& options, int64_t window, int64_t context,
                          int64_t new_tokens, int layers) {
    CacheShape shape = shape_of(options.model, options.common);
    shape.window = window;
    // What is held while it is filled: a window and the tokens of one forward behind it.
    constexpr int64_t kPerForward = 1024;
    const int64_t held =
        window == 0 ? context : std::min(context, window + std::max(new_tokens, kPerForward));
    shape.num_pages = (held + shape.page_size - 1) / shape.page_size + 2;
    // Layers enough that a step reads from memory. Where a window is so small that the pool would
    // get too large, what it reads may stay in the cache.
    const int64_t seen = window == 0 ? context : std::min(context, window);
    const int64_t pool_bytes = shape.num_pages * shape.page_layer_bytes();
    shape.layers = layers;
    if (layers == 0) {
      shape.layers = static_cast<int>(
          std::min<int64_t>(layers_for_footprint(seen * shape.bytes_per_token_layer()),
                            std::max<int64_t>(2, kLargestPoolBytes / pool_bytes)));
    }
    if (shape.layers * pool_bytes > kLargestPoolBytes)
      throw std::runtime_error("the pool would be too large: a shorter context");
    return shape;
  }

  Cache cache_;
  int64_t new_tokens_;
  Activations q_, k_, v_, out_;
};

// Pairs of steps, rates in layers per second; the share says how much faster `subject` is.
PairedResult compare(const WindowOptions& options, Windowed& limit, Windowed& subject) {
  return measure_pairs(threads_of(options.common), options.common.budget,
                       {static_cast<double>(limit.layers()), [&](int) { limit.step(); }},
                       {static_cast<double>(subject.layers()), [&](int) { subject.step(); }});
}

double layer_microseconds(const Spread& rate) { return rounded(1e6 / rate.median); }

// Query i of the new tokens attends to itself and what lies before it, at most `window` keys.
double visible_pairs(int64_t window, int64_t context, int64_t new_tokens) {
  double pairs = 0;
  for (int64_t keys = context - new_tokens + 1; keys <= context; ++keys)
    pairs += static_cast<double>(window == 0 ? keys : std::min(keys, window));
  return pairs;
}

void measure_decode(const WindowOptions& options, Report& report) {
  const int64_t shorter = options.context / kLengthFactor, longer = options.context * kLengthFactor;
  auto middle = std::make_unique<Windowed>(options, options.window, options.context, 1, 0);
  bool disturbed = false;
  {
    Windowed at_longer(options, options.window, longer, 1, 0);
    PairedResult lengths;
    {
      Windowed at_shorter(options, options.window, shorter, 1, 0);
      lengths = compare(options, at_shorter, at_longer);
    }
    report["layers"] = middle->layers();
    report["ratio"] = rounded(1 / lengths.share.median);
    report["ratio_min"] = rounded(1 / lengths.share.max);
    report["ratio_max"] = rounded(1 / lengths.share.min);
    report["layer_microseconds_shorter"] = layer_microseconds(lengths.limit_rate);
    report["layer_microseconds_longer"] = layer_microseconds(lengths.subject_rate);
    disturbed = lengths.disturbed;
  }
  Windowed full(options, 0, options.context, 1, 0);
  const PairedResult gain = compare(options, full, *middle);
  report["layer_microseconds"] = layer_microseconds(gain.subject_rate);
  report["layer_microseconds_full"] = layer_microseconds(gain.limit_rate);
  report["speedup"] = rounded(gain.share.median);
  report["speedup_min"] = rounded(gain.share.min);
  report["speedup_max"] = rounded(gain.share.max);
  report["keys_ratio"] =
      rounded(static_cast<double>(options.context) / static_cast<double>(options.window));
  report["disturbed"] = disturbed || gain.disturbed;
}

void measure_prefill(const WindowOptions& options, Report& report) {
  Windowed full(options, 0, options.context, options.new_tokens, kPrefillLayers);
  Windowed windowed(options, options.window, options.context, options.new_tokens, kPrefillLayers);
  const PairedResult gain = compare(options, full, windowed);
  const auto flops = [&](int64_t window) {
    return 4 * visible_pairs(window, options.context, options.new_tokens) * options.model.q_heads *
           options.model.head_dim;
  };
  const Arithmetic arithmetic =
      bounding_arithmetic(isa_named(options.model.isa), storage_named(options.model.dtype));
  ThreadTeam team(threads_of(options.common));
  const PairedResult of_peak =
      measure_pairs(team.size(), options.common.budget, arithmetic_side(team, arithmetic),
                    {flops(options.window) * kPrefillLayers, [&](int) { windowed.step(); }});
  Report prefill;
  prefill["new"] = options.new_tokens;
  prefill["layers"] = kPrefillLayers;
  prefill["layer_microseconds"] = layer_microseconds(gain.subject_rate);
  prefill["layer_microseconds_full"] = layer_microseconds(gain.limit_rate);
  prefill["speedup"] = rounded(gain.share.median);
  prefill["speedup_min"] = rounded(gain.share.min);
  prefill["speedup_max"] = rounded(gain.share.max);
  prefill["pairs_ratio"] = rounded(flops(0) / flops(options.window));
  prefill["gflops_full"] = rounded(gain.limit_rate.median * flops(0) / 1e9);
  prefill["peak_kind"] = arithmetic_name(arithmetic);
  add_pairs(prefill, of_peak, 1e9, "gflops", "peak_gflops");
  report["prefill"] = prefill;
}

}  // namespace

Report run_window(const WindowOptions& given) {
  WindowOptions options = given;
  if (options.new_tokens > options.context)
    throw std::runtime_error("--new must not exceed --context");
  if (options.context < kLengthFactor) throw std::runtime_error("--context must be at least 4");
  options.common.budget.seconds /= kMeasurements;
  Report report = model_report("window", options.model, options.common);
  report["window"] = options.window;
  report["context"] = options.context;
  report["shorter_context"] = options.context / kLengthFactor;
  report["longer_context"] = options.context * kLengthFactor;
  measure_decode(options, report);
  measure_prefill(options, report);
  return report;
}

}  // namespace kvc::bench
