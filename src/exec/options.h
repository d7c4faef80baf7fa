// kvc_attn_opt, checked and turned into what kernels take.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "kvcache.h"
#include "src/base/tensor.h"
#include "src/exec/sequence_set.h"
#include "src/plan/spec.h"

namespace kvc {

// Units as in kernels::AttnParams (log2). sinks and alibi live in the vectors.
struct AttnOptions {
  float q_scale = 0;
  float softcap = 0;
  bool tiles_only = false;
  bool no_cascade = false;
  int64_t window = 0;
  std::vector<float> sinks;
  std::vector<float> alibi;
  // Of a cache on a GPU they stay where they are, as the caller gave them.
  const float* sinks_on_device = nullptr;
  const float* alibi_on_device = nullptr;
  const float* bias = nullptr;
  int64_t bias_head_stride = 0;
  int64_t bias_token_stride = 0;
  std::vector<Span> spans;

  bool has_alibi() const { return !alibi.empty() || alibi_on_device != nullptr; }
};

// `opt` has been read by the sized-struct rules; `layer`: heads and k_dim as q has them. Throws
// UNSUPPORTED, OUT_OF_RANGE or a tensor status; fills all of `out` but the spans. `prefix` is what
// the caller calls it.
void read_options(const kvc_attn_opt& opt, const LayerSpec& layer, int64_t num_rows,
                  int64_t longest, AttnOptions* out, const char* prefix = "opt.",
                  DLDevice device = kHost);

// Everything of `params` that options decide; it borrows their arrays.
void apply_options(const AttnOptions& options, kernels::AttnParams* params);

// The tensors of an attention call, which have been checked; null: not there.
struct AttnUses {
  const DLTensor* q;
  const DLTensor* k;
  const DLTensor* v;
  const DLTensor* out;
  const DLTensor* lse;
  int64_t num_rows;  // Rows of q, out and lse.
  int64_t num_keys;  // rows of k and v
  const char* q_name = "q";
};
// Throws INVALID_ARGUMENT where out or lse overlaps another of them, or one of the options'
// tensors.
void refuse_overlaps(const AttnUses& uses, const kvc_attn_opt& opt, const char* prefix = "opt.");

// Throws INVALID_ARGUMENT, OUT_OF_RANGE, UNSUPPORTED or a tensor status.
void read_spans(const DLTensor* spans, const Batch& batch, std::vector<Span>* out);

}  // namespace kvc
