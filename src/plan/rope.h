// RoPE of a layer, checked and reduced to one angle per position and pair of elements.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "kvcache.h"

namespace kvc {

// Pair i of a vector at position p is rotated by p * inverse_frequencies[i], and the result is
// multiplied by `magnitude`.
struct RopeSpec {
  kvc_rope_mode mode = KVC_ROPE_NONE;
  kvc_rope_style style = KVC_ROPE_HALF;
  int32_t rotary_dim = 0;
  // First rotated element of a vector; for MLA it follows the latent.
  int32_t begin = 0;
  // [rotary_dim/2]; scale, frequency factors and scaling are folded in.
  std::vector<double> inverse_frequencies;
  std::vector<double>
      // LONGROPE whose sequences may pass original_context: for those longer than it; else empty.
      long_inverse_frequencies;
  int64_t original_context = 0;          // Where there are long frequencies; else 0.
  double magnitude = 1;                  // Attention factor.
  std::vector<int32_t> section_of_pair;  // [rotary_dim/2] Position row of each pair; empty: row 0.
  int32_t num_sections = 1;              // Position rows that the pairs use.

  bool operator==(const RopeSpec&) const = default;
};

// Checks a rotation of vectors of `rotated_dim` elements (MLA: latent_rope_dim) and fills its
// defaults. `rope` has been read by the sized-struct rules. `prefix` is the caller's name of it, as
// in "config.layers[3].rope->". Throws INVALID_ARGUMENT, OUT_OF_RANGE or UNSUPPORTED; the message
// names the field and its value. Mode NONE gives RopeSpec{}.
//
// Rows that LONGROPE rotated cannot follow a sequence across original_context, forwards or back,
// nor be shared by sequences on both sides. So it rotates on read whatever the mode says, unless
// `max_seq_len` (0: any) keeps all sequences on the short side.
RopeSpec make_rope(const kvc_rope& rope, const std::string& prefix, int32_t rotated_dim,
                   int64_t max_seq_len = 0);

// The index of an equal rotation in `ropes`, appended when there is none, so that equal layers
// share a cos_sin table. -1: no rotation.
int32_t shared_rope_index(std::vector<RopeSpec>& ropes, const RopeSpec& rope);

// kvc_plan_info.cos_sin_bytes_per_token.
int64_t cos_sin_bytes_per_token(const std::vector<RopeSpec>& ropes) noexcept;

// As the header calls it, without its prefix.
const char* rope_mode_name(kvc_rope_mode mode);

}  // namespace kvc
