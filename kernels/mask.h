// Which keys a row of an AttnSequence may attend to, for the attention kernels of every kind of
// processor: key by key, as bits of 32 or 64 keys, and for the rows of a tile together. `Int` is
// the type in which a kernel counts keys: int32_t on devices, int64_t on the CPU.
// kernels/visibility.h has the rule of windows that the step turns into these ranges.
#pragma once

#include <cstdint>
#include <type_traits>

#include "kernels/params.h"
#include "kernels/target.h"

namespace kvc::kernels {

KVC_HD int64_t packed_row_of(const AttnSequence& sequence, int64_t row) {
  return sequence.row_map != nullptr ? sequence.row_map[row] : sequence.row_begin + row;
}
KVC_HD int64_t position_of_row(const AttnSequence& sequence, int64_t row) {
  return sequence.row_positions != nullptr ? sequence.row_positions[row] : sequence.position + row;
}
KVC_HD int64_t position_of_key(const AttnSequence& sequence, int64_t key) {
  return sequence.key_positions != nullptr ? sequence.key_positions[key]
                                           : sequence.key_position + key;
}

// The visible range of a row without its tree: keys [0, sink_end) and [begin, end), all below end.
template <typename Int>
struct RowRange {
  Int begin, end;
};

template <typename Int>
KVC_HD RowRange<Int> row_range(const AttnSequence& sequence, int32_t causal, int64_t row) {
  const int64_t end = sequence.key_ends != nullptr
                          ? sequence.key_ends[row]
                          : sequence.first_key_end + (causal != 0 ? row : 0);
  return {sequence.key_begins != nullptr ? sequence.key_begins[row] : 0, static_cast<Int>(end)};
}

// The part of the mask that all rows of a sequence share.
template <typename Int>
struct SequenceMask {
  // The place of a tree that is not there: behind every key.
  static constexpr Int kNoTree = static_cast<Int>(~std::make_unsigned_t<Int>{0} >> 1);

  Int sink_end;
  Int tree_begin;
  Int tree_words;
  const uint64_t* tree_mask;
};

template <typename Int>
KVC_HD SequenceMask<Int> sequence_mask(const AttnSequence& sequence) {
  return {static_cast<Int>(sequence.sink_end),
          sequence.tree_mask != nullptr ? static_cast<Int>(sequence.tree_begin)
                                        : SequenceMask<Int>::kNoTree,
          static_cast<Int>(sequence.tree_words), sequence.tree_mask};
}

// Bit i stands for key first_key + i.
template <typename Int>
using KeyBits = std::make_unsigned_t<Int>;

// The lowest `count` bits, whatever count is.
template <typename Int>
KVC_HD KeyBits<Int> bits_below(Int count) {
  constexpr Int kAll = 8 * sizeof(Int);
  if (count <= 0) return 0;
  return count >= kAll ? ~KeyBits<Int>{0} : (KeyBits<Int>{1} << count) - 1;
}

// The nodes of a row's tree that are visible to it; keys in front of the tree count as visible.
template <typename Int>
KVC_HD KeyBits<Int> tree_bits(const SequenceMask<Int>& mask, int64_t row, Int first_key) {
  constexpr Int kAll = 8 * sizeof(Int);
  if (first_key + kAll <= mask.tree_begin) return ~KeyBits<Int>{0};
  const Int offset = first_key - mask.tree_begin;  // Above -kAll.
  const uint64_t* words = mask.tree_mask + row * mask.tree_words;
  if (offset < 0) {
    const uint64_t nodes = mask.tree_words > 0 ? words[0] : 0;
    return static_cast<KeyBits<Int>>(nodes << -offset) | bits_below(-offset);
  }
  const Int word = offset >> 6, shift = offset & 63;
  uint64_t bits = word < mask.tree_words ? words[word] >> shift : 0;
  if (shift > 64 - kAll && word + 1 < mask.tree_words) bits |= words[word + 1] << (64 - shift);
  return static_cast<KeyBits<Int>>(bits);
}

template <typename Int>
KVC_HD KeyBits<Int> visible_bits(const SequenceMask<Int>& mask, const RowRange<Int>& own,
                                 int64_t row, Int first_key) {
  constexpr Int kAll = 8 * sizeof(Int);
  const KeyBits<Int> window =
      ~bits_below(own.begin - first_key) | bits_below(mask.sink_end - first_key);
  const KeyBits<Int> bits = bits_below(own.end - first_key) & window;
  return mask.tree_begin < first_key + kAll && bits != 0 ? bits & tree_bits(mask, row, first_key)
                                                         : bits;
}

// Whether key `key` is visible to token row `row`.
template <typename Int>
KVC_HD bool is_visible(const SequenceMask<Int>& mask, const RowRange<Int>& own, int64_t row,
                       Int key) {
  const bool in_range = key < own.end && (key >= own.begin || key < mask.sink_end);
  if (!in_range || key < mask.tree_begin) return in_range;
  const Int node = key - mask.tree_begin;
  if ((node >> 6) >= mask.tree_words) return false;
  return ((mask.tree_mask[row * mask.tree_words + (node >> 6)] >> (node & 63)) & 1u) != 0;
}

// The visible range of the rows of a tile, apart from their trees. [0, sink_end) and [first_begin,
// last_end) are visible to at least one row; [0, sink_end) and [last_begin, first_end) to all.
template <typename Int>
struct TileRange {
  Int first_begin, last_begin;
  Int first_end, last_end;
};

template <typename Int>
KVC_HD TileRange<Int> tile_of(const RowRange<Int>& row) {
  return {row.begin, row.begin, row.end, row.end};
}

template <typename Int>
KVC_HD TileRange<Int> united(const TileRange<Int>& tile, const TileRange<Int>& other) {
  return {tile.first_begin < other.first_begin ? tile.first_begin : other.first_begin,
          tile.last_begin > other.last_begin ? tile.last_begin : other.last_begin,
          tile.first_end < other.first_end ? tile.first_end : other.first_end,
          tile.last_end > other.last_end ? tile.last_end : other.last_end};
}

// The range of token rows [row_begin, row_end), at least one.
template <typename Int>
KVC_HD TileRange<Int> tile_range(const AttnSequence& sequence, int32_t causal, int64_t row_begin,
                                 int64_t row_end) {
  TileRange<Int> tile = tile_of(row_range<Int>(sequence, causal, row_begin));
  for (int64_t row = row_begin + 1; row < row_end; ++row)
    tile = united(tile, tile_of(row_range<Int>(sequence, causal, row)));
  return tile;
}

// Coverage of keys by the rows of a tile. kNone: no key is visible to any row, and the keys may lie
// on dropped pages. kFull: all keys are visible to all rows.
enum class Cover : int32_t { kNone = 0, kPartial = 1, kFull = 2 };

// Coverage of keys [key_begin, key_end).
template <typename Int>
KVC_HD Cover cover(const SequenceMask<Int>& mask, const TileRange<Int>& tile, Int key_begin,
                   Int key_end) {
  if (key_begin >= tile.last_end || (key_begin >= mask.sink_end && key_end <= tile.first_begin))
    return Cover::kNone;
  const bool all = key_end <= tile.first_end && key_end <= mask.tree_begin &&
                   (key_begin >= tile.last_begin || key_end <= mask.sink_end);
  return all ? Cover::kFull : Cover::kPartial;
}

}  // namespace kvc::kernels
