// Which keys the rows of an item see (see AttnSequence), for the decode and the tile kernels: bit k
// of a piece is key first_key + k. Everything outside a row's bits gets the score -inf; what no row
// sees is neither located nor read.
#pragma once

#include <cstdint>

#include "kernels/params.h"

namespace kvc::kernels::cpu {
namespace {

inline int64_t packed_row_of(const AttnSequence& sequence, int64_t row) {
  return sequence.row_map != nullptr ? sequence.row_map[row] : sequence.row_begin + row;
}

inline int64_t position_of_row(const AttnSequence& sequence, int64_t row) {
  return sequence.row_positions != nullptr ? sequence.row_positions[row] : sequence.position + row;
}

inline int64_t position_of_key(const AttnSequence& sequence, int64_t key) {
  return sequence.key_positions != nullptr ? sequence.key_positions[key]
                                           : sequence.key_position + key;
}

// What turns the keys of an item while they are read.
struct KeyRotation {
  const AttnSequence& sequence;
  const bool by_key;
  const Rotation& rotation;

  KeyRotation(const AttnParams& params, const AttnItem& item)
      : sequence(params.sequences[item.sequence]),
        by_key(sequence.own_k_rotation != nullptr && item.sink_part == 0),
        rotation(by_key ? *sequence.own_k_rotation
                        : params.k_rotations[sequence.k_rotation_index]) {}
  bool rotates() const { return rotation.rotary_dim > 0; }
  int64_t row_of(int64_t key) const {
    return by_key ? key - sequence.own_rotation_begin : position_of_key(sequence, key);
  }
};

// A score with its bias, see kMaxBias. -inf hides the key, whatever the score; its K may be NaN.
KVC_VEC_INLINE Vec add_bias(Vec score, Vec bias) {
  const Vec bounded = min(set1(kMaxBias), max(set1(-kMaxBias), bias));  // NaN stays
  return select(equal(bias, set1(kMinusInfinity)), bias,
                fma(bounded, set1(1.44269504088896340736f), score));
}

inline int64_t row_key_end(const AttnParams& params, const AttnSequence& sequence, int64_t row) {
  if (sequence.key_ends != nullptr) return sequence.key_ends[row];
  return sequence.first_key_end + (params.causal != 0 ? row : 0);
}

// Bits [0, count), whatever count is.
inline uint64_t bits_below(int64_t count) {
  return count <= 0 ? 0 : count >= 64 ? ~uint64_t{0} : (uint64_t{1} << count) - 1;
}

// 64 bits of a row's tree mask from first_key on; keys before the tree count as visible, those
// behind it do not.
inline uint64_t tree_bits(const AttnSequence& sequence, int64_t row, int64_t first_key) {
  const int64_t offset = first_key - sequence.tree_begin;
  if (offset <= -64) return ~uint64_t{0};
  const uint64_t* words = sequence.tree_mask + row * sequence.tree_words;
  if (offset < 0) return (sequence.tree_words > 0 ? words[0] << -offset : 0) | bits_below(-offset);
  const int64_t word = offset / 64, shift = offset % 64;
  uint64_t bits = word < sequence.tree_words ? words[word] >> shift : 0;
  if (shift != 0 && word + 1 < sequence.tree_words) bits |= words[word + 1] << (64 - shift);
  return bits;
}

// The keys first_key .. first_key + 63 inside [clip_begin, clip_end) that a row sees.
inline uint64_t visible_bits(const AttnParams& params, const AttnSequence& sequence, int64_t row,
                             int64_t first_key, int64_t clip_begin, int64_t clip_end) {
  const int64_t row_end = row_key_end(params, sequence, row);
  uint64_t bits = bits_below((row_end < clip_end ? row_end : clip_end) - first_key);
  if (clip_begin > first_key) bits &= ~bits_below(clip_begin - first_key);
  if (sequence.key_begins != nullptr) {
    bits &= ~bits_below(sequence.key_begins[row] - first_key) |
            bits_below(sequence.sink_end - first_key);
  }
  if (sequence.tree_mask != nullptr) bits &= tree_bits(sequence, row, first_key);
  return bits;
}

// What token rows [row_begin, row_end) of an item see together. Keys are walked in blocks at
// absolute multiples of the block length, up to 64 of them.
struct VisibleKeys {
  const AttnParams* params;
  const AttnItem* item;
  int64_t row_begin, row_end;
  int64_t begin, end;          // nothing outside is visible
  int64_t gap_begin, gap_end;  // nor between the sinks and the first window
  int64_t all_begin, all_end;  // every row sees these ...
  int64_t all_sinks;           // ... and those in front of this one
  bool ends_only;              // rows differ in their ends only

  // Whether every row sees all of [key, key + count).
  bool all_see(int64_t key, int64_t count) const {
    return key >= begin && key + count <= all_end && (key >= all_begin || key + count <= all_sinks);
  }
  // Bit i: some row sees key first_key + i; for `count` keys.
  uint64_t bits(int64_t first_key, int64_t count) const {
    const uint64_t all = bits_below(count);
    if (all_see(first_key, count)) return all;
    if (ends_only) return all & bits_below(end - first_key) & ~bits_below(begin - first_key);
    const AttnSequence& sequence = params->sequences[item->sequence];
    uint64_t visible = 0;
    for (int64_t row = row_begin; row < row_end && visible != all; ++row)
      visible |=
          visible_bits(*params, sequence, row, first_key, item->key_begin, item->key_end) & all;
    return visible;
  }
  int64_t skip_gap(int64_t key, int64_t length) const {
    return key >= gap_begin && key + length <= gap_end ? gap_end / length * length : key;
  }
  int64_t first_block(int64_t length) const { return skip_gap(begin / length * length, length); }
  int64_t next_block(int64_t key, int64_t length) const { return skip_gap(key + length, length); }
};

inline VisibleKeys visible_keys(const AttnParams& params, const AttnItem& item, int64_t row_begin,
                                int64_t row_end) {
  const AttnSequence& sequence = params.sequences[item.sequence];
  VisibleKeys visible{&params, &item, row_begin, row_end, item.key_begin, 0, 0, 0, 0, 0, 0, true};
  const int64_t last_end = row_key_end(params, sequence, row_end - 1);  // ends never decrease
  const int64_t first_end = row_key_end(params, sequence, row_begin);
  visible.end = last_end < item.key_end ? last_end : item.key_end;
  visible.all_end = first_end < visible.end ? first_end : visible.end;
  visible.ends_only = sequence.key_begins == nullptr && sequence.tree_mask == nullptr;
  if (sequence.key_begins != nullptr) {
    int64_t first = sequence.key_begins[row_begin], last = first;
    for (int64_t row = row_begin + 1; row < row_end; ++row) {
      const int64_t row_first = sequence.key_begins[row];
      first = row_first < first ? row_first : first;
      last = row_first > last ? row_first : last;
    }
    visible.gap_begin = sequence.sink_end;
    visible.gap_end = first > sequence.sink_end ? first : sequence.sink_end;
    visible.all_begin = last;
    visible.all_sinks = sequence.sink_end;
  }
  if (sequence.tree_mask != nullptr && sequence.tree_begin < visible.all_end)
    visible.all_end = sequence.tree_begin;
  return visible;
}

}  // namespace
}  // namespace kvc::kernels::cpu
