#include "src/attention/options.h"

#include <cmath>
#include <numbers>

#include "src/base/error.h"
#include "src/base/tensor.h"

namespace kvc {
namespace {

// Multiplies by log2(e): kernels work in powers of two.
void read_per_head(const DLTensor* tensor, const char* name, int32_t num_heads, std::vector<float>* out) {
  out->clear();
  if (tensor == nullptr) return;
  const float* values = view_f32_vector(tensor, name, num_heads);
  out->reserve(static_cast<size_t>(num_heads));
  for (int32_t head = 0; head < num_heads; ++head) {
    out->push_back(static_cast<float>(values[head] * std::numbers::log2e));
  }
}

}  // namespace

void read_options(const kvc_attn_opt& opt, const LayerSpec& layer, int64_t num_rows, int64_t longest,
                  AttnOptions* out) {
  constexpr uint64_t kKnownFlags = KVC_ATTN_DETERMINISTIC | KVC_ATTN_BATCH_INVARIANT;
  if ((opt.flags & ~kKnownFlags) != 0) {
    fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(opt.flags), "opt.flags = %#llx has bits beyond %#llx",
              static_cast<unsigned long long>(opt.flags), static_cast<unsigned long long>(kKnownFlags));
  }
  if (opt.window != 0) {
    fail_with(KVC_E_UNSUPPORTED, opt.window, "opt.window = %lld is not supported: 0 is",
              static_cast<long long>(opt.window));
  }
  if (!std::isfinite(opt.scale))
    fail(KVC_E_OUT_OF_RANGE, "opt.scale = %g, expected a finite number", static_cast<double>(opt.scale));
  if (!std::isfinite(opt.soft_cap) || opt.soft_cap < 0) {
    fail(KVC_E_OUT_OF_RANGE, "opt.soft_cap = %g, expected a finite number >= 0",
         static_cast<double>(opt.soft_cap));
  }
  const double scale =
      opt.scale == 0 ? 1.0 / std::sqrt(static_cast<double>(layer.k_dim)) : static_cast<double>(opt.scale);
  const double soft_cap = opt.soft_cap;
  out->q_scale = static_cast<float>(soft_cap > 0 ? scale / soft_cap : scale * std::numbers::log2e);
  out->softcap = static_cast<float>(soft_cap * std::numbers::log2e);
  if (!std::isfinite(out->q_scale) || !std::isfinite(out->softcap)) {
    fail(KVC_E_OUT_OF_RANGE, "opt.scale = %g with opt.soft_cap = %g exceeds float32", scale, soft_cap);
  }
  out->tiles_only = (opt.flags & KVC_ATTN_BATCH_INVARIANT) != 0;
  read_per_head(opt.sinks, "opt.sinks", layer.num_q_heads, &out->sinks);
  read_per_head(opt.alibi_slopes, "opt.alibi_slopes", layer.num_q_heads, &out->alibi);
  out->bias = nullptr;
  out->bias_head_stride = out->bias_token_stride = 0;
  if (opt.bias != nullptr) {
    const F32Bias bias = view_bias(opt.bias, "opt.bias", layer.num_q_heads, num_rows, longest);
    out->bias = bias.data;
    out->bias_head_stride = bias.head_stride;
    out->bias_token_stride = bias.row_stride;
  }
}

}  // namespace kvc
