// Rotary embedding in double, from the formulas of kvc_rope and the papers it cites.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "kvcache.h"

namespace kvc::test {

using Row = std::vector<double>;  // [heads * dim] of one token

struct NaiveRope {
  kvc_rope_mode mode = KVC_ROPE_NONE, asked_mode = KVC_ROPE_NONE;
  bool interleaved = false;
  int begin = 0;       // first rotated element of a head
  int rotary_dim = 0;  // 0: no rotation
  double attention_factor = 1;
  // LongRoPE: sequences longer than this turn by frequencies[1]; 0: never. K is turned on read.
  int64_t original_context = 0;
  std::array<std::vector<double>, 2> frequencies;
  std::vector<int> pair_section;  // position row that turns a pair
};

// What the call means for one vector: a position for each section, and whether the sequence is in
// its long regime.
struct RopePosition {
  std::array<double, 4> rows{};
  bool is_long = false;
  static RopePosition all(double position, bool is_long) {
    return {{position, position, position, position}, is_long};
  }
};

// Frequencies and sections of `rope` over `dim` rotated elements, from element `begin` of a head
// on.
NaiveRope make_rope(const kvc_rope& rope, int begin, int dim);

// x turned, all heads of a row; not rounded. A shift turns what is turned already: no attention
// factor then.
Row rotated(const NaiveRope& rope, int dim, const Row& x, const RopePosition& position,
            bool shift = false);

}  // namespace kvc::test
