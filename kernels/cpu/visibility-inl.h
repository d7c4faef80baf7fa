// Masks of the rows of an item, for the decode and the tile kernels: a key outside the visible
// range of a row gets the score -inf there, and one that is visible to no row is neither located
// nor read.
#pragma once

#include <cstdint>

#include "kernels/mask.h"
#include "kernels/params.h"

namespace kvc::kernels::cpu {
namespace {

// RoPE of the keys of an item while they are read.
struct KeyRotation {
  const AttnSequence& sequence;
  const bool by_key;
  const Rotation rotation;  // Own rotations serve layers that rotate other elements, too.

  KeyRotation(const AttnParams& params, const AttnItem& item)
      : sequence(params.sequences[item.sequence]),
        by_key(sequence.own_k_rotation != nullptr && item.sink_part == 0),
        rotation(by_key ? sequence.own_k_rotation->from(params.k_rotations[0].begin)
                        : params.k_rotations[sequence.k_rotation_index]) {}
  bool rotates() const { return rotation.rotary_dim > 0; }
  int64_t row_of(int64_t key) const {
    return by_key ? key - sequence.own_rotation_begin : position_of_key(sequence, key);
  }
};

// A score with its bias, see kMaxBias. A bias of -inf masks the key, whatever the score; its K may
// be NaN.
KVC_VEC_INLINE Vec add_bias(Vec score, Vec bias) {
  const Vec bounded = min(set1(kMaxBias), max(set1(-kMaxBias), bias));  // NaN stays.
  return select(equal(bias, set1(kMinusInfinity)), bias,
                fma(bounded, set1(1.44269504088896340736f), score));
}

// The keys first_key .. first_key + 63 inside the item that are visible to a row.
inline uint64_t visible_bits(const AttnParams& params, const AttnItem& item, int64_t row,
                             int64_t first_key) {
  const AttnSequence& sequence = params.sequences[item.sequence];
  RowRange<int64_t> own = row_range<int64_t>(sequence, params.causal, row);
  own.end = own.end < item.key_end ? own.end : item.key_end;
  return visible_bits(sequence_mask<int64_t>(sequence), own, row, first_key) &
         ~bits_below(item.key_begin - first_key);
}

// The visible range of token rows [row_begin, row_end) of an item together. Keys are walked in
// blocks at absolute multiples of the block length, up to 64 of them.
struct VisibleKeys {
  const AttnParams* params;
  const AttnItem* item;
  int64_t row_begin, row_end;
  SequenceMask<int64_t> mask;
  TileRange<int64_t> rows;  // The ends are clipped to the item.
  int64_t begin, all_end;   // Outside, some key is masked in some row.
  bool ends_only;           // Rows differ in their ends only.

  // No key from here on is visible.
  int64_t end() const { return rows.last_end; }
  // Whether all of [key, key + count) is visible to every row.
  bool all_visible(int64_t key, int64_t count) const {
    return key >= begin && key + count <= all_end &&
           (key >= rows.last_begin || key + count <= mask.sink_end);
  }
  // Bit i: key first_key + i is visible to some row; for `count` keys.
  uint64_t bits(int64_t first_key, int64_t count) const {
    const uint64_t all = bits_below(count);
    if (all_visible(first_key, count)) return all;
    if (ends_only) return all & bits_below(end() - first_key) & ~bits_below(begin - first_key);
    uint64_t visible = 0;
    for (int64_t row = row_begin; row < row_end && visible != all; ++row)
      visible |= visible_bits(*params, *item, row, first_key) & all;
    return visible;
  }
  // Blocks between the sink tokens and the first window are skipped.
  int64_t skip_gap(int64_t key, int64_t length) const {
    return key >= mask.sink_end && key + length <= rows.first_begin
               ? rows.first_begin / length * length
               : key;
  }
  int64_t first_block(int64_t length) const { return skip_gap(begin / length * length, length); }
  int64_t next_block(int64_t key, int64_t length) const { return skip_gap(key + length, length); }
};

inline VisibleKeys visible_keys(const AttnParams& params, const AttnItem& item, int64_t row_begin,
                                int64_t row_end) {
  const AttnSequence& sequence = params.sequences[item.sequence];
  TileRange<int64_t> rows = tile_range<int64_t>(sequence, params.causal, row_begin, row_end);
  rows.first_end = rows.first_end < item.key_end ? rows.first_end : item.key_end;
  rows.last_end = rows.last_end < item.key_end ? rows.last_end : item.key_end;
  const SequenceMask<int64_t> mask = sequence_mask<int64_t>(sequence);
  return {.params = &params,
          .item = &item,
          .row_begin = row_begin,
          .row_end = row_end,
          .mask = mask,
          .rows = rows,
          .begin = item.key_begin,
          .all_end = rows.first_end < mask.tree_begin ? rows.first_end : mask.tree_begin,
          .ends_only = sequence.key_begins == nullptr && sequence.tree_mask == nullptr};
}

}  // namespace
}  // namespace kvc::kernels::cpu
