#include "src/exec/attn_options.h"

#include <cmath>
#include <numbers>
#include <string>

#include "src/base/error.h"
#include "src/base/overlap.h"
#include "src/base/tensor.h"

namespace kvc {
namespace {

// Multiplies by log2(e): kernels work in powers of two.
void read_per_head(const DLTensor* tensor, const char* prefix, const char* field, int32_t num_heads,
                   DLDevice device, std::vector<float>* out, const float** on_device) {
  out->clear();
  *on_device = nullptr;
  if (tensor == nullptr) return;
  const std::string name = std::string(prefix) + field;
  const float* values = view_f32_vector(tensor, name.c_str(), num_heads, device);
  if (!is_host_memory(device)) {
    *on_device = values;
    return;
  }
  out->reserve(num_heads);
  for (int32_t head = 0; head < num_heads; ++head) {
    out->push_back(static_cast<float>(values[head] * std::numbers::log2e));
  }
}

}  // namespace

void read_options(const kvc_attn_opt& opt, const LayerSpec& layer, int64_t num_rows,
                  int64_t longest, AttnOptions* out, const char* prefix, DLDevice device) {
  constexpr uint64_t kKnownFlags =
      KVC_ATTN_DETERMINISTIC | KVC_ATTN_BATCH_INVARIANT | KVC_ATTN_NO_CASCADE;
  if ((opt.flags & ~kKnownFlags) != 0) {
    fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(opt.flags),
              "%sflags = %#llx has bits beyond %#llx", prefix,
              static_cast<unsigned long long>(opt.flags),
              static_cast<unsigned long long>(kKnownFlags));
  }
  // Of a layer with chunks any window is narrower or the rule of the chunk holds as well: both
  // apply.
  if (opt.window < 0 || (layer.window != 0 && opt.window > layer.window)) {
    fail_with(KVC_E_OUT_OF_RANGE, opt.window, "%swindow = %lld out of range: 0 to %lld", prefix,
              static_cast<long long>(opt.window),
              static_cast<long long>(layer.window != 0 ? layer.window : kMaxSequenceLength));
  }
  out->window = opt.window;
  if (opt.scale == 0 && layer.is_mla()) {
    fail(KVC_E_INVALID_ARGUMENT,
         "%sscale = 0: an MLA layer of latent_rank %d cannot know the dim of its heads, give the "
         "scale",
         prefix, layer.latent_rank);
  }
  if (!std::isfinite(opt.scale))
    fail(KVC_E_OUT_OF_RANGE, "%sscale = %g, expected a finite number", prefix,
         static_cast<double>(opt.scale));
  if (!std::isfinite(opt.soft_cap) || opt.soft_cap < 0) {
    fail(KVC_E_OUT_OF_RANGE, "%ssoft_cap = %g, expected a finite number >= 0", prefix,
         static_cast<double>(opt.soft_cap));
  }
  const double scale = opt.scale == 0 ? 1.0 / std::sqrt(static_cast<double>(layer.k_dim))
                                      : static_cast<double>(opt.scale);
  const double soft_cap = opt.soft_cap;
  out->q_scale = static_cast<float>(soft_cap > 0 ? scale / soft_cap : scale * std::numbers::log2e);
  out->softcap = static_cast<float>(soft_cap * std::numbers::log2e);
  if (!std::isfinite(out->q_scale) || !std::isfinite(out->softcap)) {
    fail(KVC_E_OUT_OF_RANGE, "%sscale = %g with %ssoft_cap = %g exceeds float32", prefix, scale,
         prefix, soft_cap);
  }
  out->tiles_only = (opt.flags & KVC_ATTN_BATCH_INVARIANT) != 0;
  out->no_cascade = (opt.flags & KVC_ATTN_NO_CASCADE) != 0;
  read_per_head(opt.sink_logits, prefix, "sink_logits", layer.num_q_heads, device, &out->sinks,
                &out->sinks_on_device);
  read_per_head(opt.alibi_slopes, prefix, "alibi_slopes", layer.num_q_heads, device, &out->alibi,
                &out->alibi_on_device);
  out->bias = nullptr;
  out->bias_head_stride = out->bias_token_stride = 0;
  if (opt.bias != nullptr) {
    const std::string name = std::string(prefix) + "bias";
    const F32Bias bias =
        view_bias(opt.bias, name.c_str(), layer.num_q_heads, num_rows, longest, device);
    out->bias = bias.data;
    out->bias_head_stride = bias.head_stride;
    out->bias_token_stride = bias.row_stride;
  }
}

void apply_options(const AttnOptions& options, kernels::AttnParams* params) {
  params->q_scale = options.q_scale;
  params->softcap = options.softcap;
  params->sinks = options.sinks.empty() ? options.sinks_on_device : options.sinks.data();
  params->alibi = options.alibi.empty() ? options.alibi_on_device : options.alibi.data();
  params->bias = options.bias;
  params->bias_head_stride = options.bias_head_stride;
  params->bias_token_stride = options.bias_token_stride;
}

void refuse_overlaps(const AttnUses& uses, const kvc_attn_opt& opt, const char* prefix) {
  const TensorUse outputs[] = {{uses.out, "out", uses.num_rows}, {uses.lse, "lse", uses.num_rows}};
  const TensorUse inputs[] = {{uses.q, uses.q_name, uses.num_rows},
                              {uses.k, "k", uses.num_keys},
                              {uses.v, "v", uses.num_keys}};
  refuse_overlaps(outputs, inputs);
  const auto refuse = [&](const DLTensor* tensor, const char* field, int64_t rows,
                          int row_dimension) {
    if (tensor == nullptr) return;
    const std::string name = std::string(prefix) + field;
    const TensorUse input{tensor, name.c_str(), rows, row_dimension};
    refuse_overlaps(outputs, {&input, 1});
  };
  refuse(opt.sink_logits, "sink_logits", -1, 0);
  refuse(opt.alibi_slopes, "alibi_slopes", -1, 0);
  if (opt.bias != nullptr) refuse(opt.bias, "bias", uses.num_rows, opt.bias->ndim - 2);
}

void read_spans(const DLTensor* spans, const Batch& batch, bool whole, std::vector<Span>* out) {
  out->clear();
  if (spans == nullptr) return;
  if (batch.has_trees())
    fail(KVC_E_UNSUPPORTED, "opt.spans is set: spans and token trees don't go together");
  const I32Matrix matrix = view_i32_matrix(spans, "opt.spans", 0, 3);
  const auto num_entries = static_cast<int32_t>(batch.entries().size());
  for (int64_t i = 0; i < matrix.num_rows; ++i) {
    const int32_t* row = matrix.data + i * matrix.row_stride;
    const Span span{row[0], row[1], row[2]};
    if (span.entry < 0 || span.entry >= num_entries) {
      fail_with(KVC_E_OUT_OF_RANGE, span.entry,
                "opt.spans[%lld][0] = %d out of range: the batch has %d entries",
                static_cast<long long>(i), span.entry, num_entries);
    }
    const BatchEntry& entry = batch.entries()[span.entry];
    if (span.begin < 0 || span.begin > span.end) {
      fail_with(KVC_E_OUT_OF_RANGE, span.end,
                "opt.spans[%lld] = [%d, %d) out of range: expected 0 <= begin <= end",
                static_cast<long long>(i), span.begin, span.end);
    }
    if (whole && span.end > entry.new_length()) {
      fail_with(KVC_E_OUT_OF_RANGE, span.end,
                "opt.spans[%lld] = [%d, %d) is cut: with this forward sequence %lld has %lld "
                "tokens, and desc->flags had KVC_FORWARD_WHOLE_SPANS (%d)",
                static_cast<long long>(i), span.begin, span.end,
                static_cast<long long>(entry.sequence->id),
                static_cast<long long>(entry.new_length()), KVC_FORWARD_WHOLE_SPANS);
    }
    if (!entry.sequence->segments.empty()) {
      fail_with(KVC_E_UNSUPPORTED, entry.sequence->id,
                "opt.spans[%lld]: sequence %lld has moved positions (kvc_seq_shift), which spans "
                "don't go with",
                static_cast<long long>(i), static_cast<long long>(entry.sequence->id));
    }
    for (const Span& other : *out) {
      if (other.entry == span.entry && span.begin < other.end) {
        fail_with(KVC_E_INVALID_ARGUMENT, span.begin,
                  "opt.spans[%lld] begins at %d, before the end %d of an earlier one of entry %d",
                  static_cast<long long>(i), span.begin, other.end, span.entry);
      }
    }
    out->push_back(span);
  }
}

}  // namespace kvc
