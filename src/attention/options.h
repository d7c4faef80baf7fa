// kvc_attn_opt, checked and turned into what kernels take.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "kvcache.h"
#include "src/plan/spec.h"

namespace kvc {

// Units as in kernels::AttnParams (log2). sinks and alibi live in the vectors.
struct AttnOptions {
  float q_scale = 0;
  float softcap = 0;
  bool tiles_only = false;
  std::vector<float> sinks;
  std::vector<float> alibi;
  const float* bias = nullptr;
  int64_t bias_head_stride = 0;
  int64_t bias_token_stride = 0;
};

// `opt` has been read by the sized-struct rules. Throws UNSUPPORTED, OUT_OF_RANGE or a tensor status; fills `out`.
void read_options(const kvc_attn_opt& opt, const LayerSpec& layer, int64_t num_rows, int64_t longest,
                  AttnOptions* out);

}  // namespace kvc
