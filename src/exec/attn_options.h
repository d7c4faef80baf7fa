// kvc_attn_opt, checked and converted for kernels.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "kvcache.h"
#include "src/base/tensor.h"
#include "src/exec/sequence_set.h"
#include "src/plan/spec.h"

namespace kvc {

// Units as in kernels::AttnParams (log2). The vectors own the sink logits and slopes of the host.
struct AttnOptions {
  float q_scale = 0;
  float softcap = 0;
  bool tiles_only = false;
  bool no_cascade = false;
  int64_t window = 0;
  std::vector<float> sinks;
  std::vector<float> alibi;
  // On a GPU the caller's arrays are read in place.
  const float* sinks_on_device = nullptr;
  const float* alibi_on_device = nullptr;
  const float* bias = nullptr;
  int64_t bias_head_stride = 0;
  int64_t bias_token_stride = 0;
  std::vector<Span> spans;

  bool has_alibi() const { return !alibi.empty() || alibi_on_device != nullptr; }
};

// Fills all of `out` but the spans. `opt` has been read by the sized-struct rules. `layer` has the
// heads and k_dim of q. Messages name the struct `prefix`. Throws UNSUPPORTED, OUT_OF_RANGE or a
// tensor status.
void read_options(const kvc_attn_opt& opt, const LayerSpec& layer, int64_t num_rows,
                  int64_t longest, AttnOptions* out, const char* prefix = "opt.",
                  DLDevice device = kHost);

// Sets the fields of `params` that options decide. `params` borrows their arrays.
void apply_options(const AttnOptions& options, kernels::AttnParams* params);

// The checked tensors of an attention call; null: absent.
struct AttnUses {
  const DLTensor* q;
  const DLTensor* k;
  const DLTensor* v;
  const DLTensor* out;
  const DLTensor* lse;
  int64_t num_rows;  // Rows of q, out and lse.
  int64_t num_keys;  // Rows of k and v.
  const char* q_name = "q";
};
// Throws INVALID_ARGUMENT when out or lse overlaps another tensor of the call or of its options.
void refuse_overlaps(const AttnUses& uses, const kvc_attn_opt& opt, const char* prefix = "opt.");

// Throws INVALID_ARGUMENT, OUT_OF_RANGE, UNSUPPORTED or a tensor status.
// `whole`: none may end behind the tokens of its sequence.
void read_spans(const DLTensor* spans, const Batch& batch, bool whole, std::vector<Span>* out);

}  // namespace kvc
