// Parameters of kernels, filled once for the CPU, for CUDA and for the operators. Only where cos
// and sin tables, page tables and sequences lie differs between those, and comes as an argument.
#pragma once

#include "kernels/params.h"
#include "src/base/math.h"
#include "src/exec/attn_options.h"
#include "src/exec/engine.h"
#include "src/exec/sequence_set.h"
#include "src/plan/spec.h"

namespace kvc {

// What a call selects of the keys of the batch.
KeySelection key_selection(const Spec& spec, const AttnCall& call, const AttnOptions& options);

// Rows of a call are its last ones of each sequence, so that each is masked from its own position
// on.
inline bool is_causal(KeyScope scope) { return scope == KeyScope::kAll || scope == KeyScope::kNew; }

// Everything but the sequences, the rotations, and K and V. Borrows the arrays of `options`.
kernels::AttnParams attn_params(const LayerSpec& layer, int32_t page_size, bool causal,
                                const AttnOptions& options, const AttnTensors& tensors);

// Everything but the pages, the slots and the rotation.
kernels::AppendParams append_params(const LayerSpec& layer, int32_t page_size,
                                    const kernels::TokenRows& k, const kernels::TokenRows& v);

// `Tables`, below, holds cos and sin: tokens(rope), sinks(rope) and heads(rope) by packed token,
// keys(rope, out[2]) by absolute position.

// Everything but the pages and the slots.
template <typename Tables>
kernels::AppendParams append_params(const Spec& spec, const LayerSpec& layer,
                                    const kernels::TokenRows& k, const kernels::TokenRows& v,
                                    Tables&& tables) {
  kernels::AppendParams params = append_params(layer, spec.groups[layer.group].page_size, k, v);
  if (!spec.rotates_on_read(layer.rope))
    params.k_rotation = tables.tokens(layer.rope).from(layer.rotation_begin());
  return params;
}

// The rotations of Q, and of K where it is rotated on read.
template <typename Tables>
void set_rotations(const Spec& spec, const AttnCall& call, bool has_two_q_rotations,
                   Tables&& tables, kernels::AttnParams* params) {
  const LayerSpec& layer = call.layer;
  const int32_t begin =
      call.is_mla_self ? layer.k_dim - layer.latent_rope_dim : layer.rotation_begin();
  params->q_rotation = params->sink_q_rotation = tables.tokens(layer.rope).from(begin);
  if (!spec.rotates_on_read(layer.rope)) {
    if (has_two_q_rotations) params->sink_q_rotation = tables.heads(layer.rope).from(begin);
    return;
  }
  if (has_two_q_rotations) params->sink_q_rotation = tables.sinks(layer.rope).from(begin);
  tables.keys(layer.rope, params->k_rotations);
  params->k_rotations[0].begin = params->k_rotations[1].begin = begin;
}

// New keys that are no part of the pool (kvc_attn_self) lie in compact rows, [rows][heads][dim]:
// one "page" per sequence, which starts at its first row.
// Quantised ones have a plane of their scales behind the rows, [rows][heads].
struct NewKeyBytes {
  int64_t k_token, v_token;              // Bytes of all heads of a token.
  int64_t k_scale_token, v_scale_token;  // Bytes of their scales; 0: they have none.

  int64_t k_bytes(int64_t rows) const { return scales_at(rows * k_token) + rows * k_scale_token; }
  int64_t v_bytes(int64_t rows) const { return scales_at(rows * v_token) + rows * v_scale_token; }
  static int64_t scales_at(int64_t row_bytes) { return align_up(row_bytes, sizeof(float)); }
};
NewKeyBytes new_key_bytes(const LayerSpec& layer);
// `v` null: V is in K. `num_rows` of all sequences.
void place_new_keys(const LayerSpec& layer, int64_t num_rows, std::byte* k, std::byte* v,
                    kernels::AttnParams* params);
// What writes those rows: `append` as append_params made it, `slots` = 0, 1, 2, ...
kernels::AppendParams stage_params(kernels::AppendParams append, const kernels::AttnParams& params,
                                   const int64_t* slots);

}  // namespace kvc
