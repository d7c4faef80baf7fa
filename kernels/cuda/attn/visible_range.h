// The visible range of a row (kernels::AttnSequence), for every attention kernel: per key, per 32
// keys and per tile. Keys and rows fit 32 bits.
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "kernels/target.h"

namespace kvc::cuda {

KVC_HD int64_t packed_row_of(const kernels::AttnSequence& sequence, int64_t row) {
  return sequence.row_map != nullptr ? sequence.row_map[row] : sequence.row_begin + row;
}
KVC_HD int64_t position_of_row(const kernels::AttnSequence& sequence, int64_t row) {
  return sequence.row_positions != nullptr ? sequence.row_positions[row] : sequence.position + row;
}
KVC_HD int64_t position_of_key(const kernels::AttnSequence& sequence, int64_t key) {
  return sequence.key_positions != nullptr ? sequence.key_positions[key]
                                           : sequence.key_position + key;
}

// Clamps a bias to kMaxBias. NaN stays. The caller masks -inf.
KVC_HD float bounded_bias(float bias) {
  const float low = bias < -kernels::kMaxBias ? -kernels::kMaxBias : bias;
  return low > kernels::kMaxBias ? kernels::kMaxBias : low;
}

// The visible range of a row without its tree: keys [0, sink_end) and [begin, end), all below end.
struct RowRange {
  int32_t begin, end;
};
// The range of rows of a tile that do not exist.
constexpr RowRange kNoKeys = {0, 0};

KVC_HD RowRange row_range(const kernels::AttnSequence& sequence, int32_t causal, int64_t row) {
  const int64_t end = sequence.key_ends != nullptr
                          ? sequence.key_ends[row]
                          : sequence.first_key_end + (causal != 0 ? row : 0);
  return {sequence.key_begins != nullptr ? sequence.key_begins[row] : 0, static_cast<int32_t>(end)};
}

// The part of the mask that all rows of a sequence share.
struct SequenceMask {
  int32_t sink_end;
  int32_t tree_begin;  // INT32_MAX: no tree.
  int32_t tree_words;
  const uint64_t* tree_mask;
};
KVC_HD SequenceMask sequence_mask(const kernels::AttnSequence& sequence) {
  const bool has_tree = sequence.tree_mask != nullptr;
  return {static_cast<int32_t>(sequence.sink_end),
          has_tree ? static_cast<int32_t>(sequence.tree_begin) : INT32_MAX,
          static_cast<int32_t>(sequence.tree_words), sequence.tree_mask};
}

KVC_HD uint32_t bits_below(int32_t count) {
  return count <= 0 ? 0u : count >= 32 ? ~0u : (1u << count) - 1u;
}

// Whether token row `row` sees key `key`.
KVC_HD bool visible(const SequenceMask& mask, const RowRange& own, int64_t row, int32_t key) {
  const bool in_range = key < own.end && (key >= own.begin || key < mask.sink_end);
  if (!in_range || key < mask.tree_begin) return in_range;
  const int32_t node = key - mask.tree_begin;
  if ((node >> 6) >= mask.tree_words) return false;
  return ((mask.tree_mask[row * mask.tree_words + (node >> 6)] >> (node & 63)) & 1u) != 0;
}

// Bit i: key first_key + i is a tree node that the row sees, or no tree node.
KVC_HD uint32_t tree_bits(const SequenceMask& mask, int64_t row, int32_t first_key) {
  if (first_key + 32 <= mask.tree_begin) return ~0u;
  const int32_t offset = first_key - mask.tree_begin;  // Above -32.
  const uint64_t* words = mask.tree_mask + row * mask.tree_words;
  if (offset < 0) {
    const uint64_t nodes = mask.tree_words > 0 ? words[0] : 0;
    return static_cast<uint32_t>(nodes << -offset) | bits_below(-offset);
  }
  const int32_t word = offset >> 6, shift = offset & 63;
  uint64_t bits = word < mask.tree_words ? words[word] >> shift : 0;
  if (shift > 32 && word + 1 < mask.tree_words) bits |= words[word + 1] << (64 - shift);
  return static_cast<uint32_t>(bits);
}

// Bit i: the row sees key first_key + i.
KVC_HD uint32_t visible_bits(const SequenceMask& mask, const RowRange& own, int64_t row,
                             int32_t first_key) {
  const uint32_t window =
      ~bits_below(own.begin - first_key) | bits_below(mask.sink_end - first_key);
  const uint32_t bits = bits_below(own.end - first_key) & window;
  return mask.tree_begin < first_key + 32 && bits != 0 ? bits & tree_bits(mask, row, first_key)
                                                       : bits;
}

// The visible range of the rows of a tile, apart from their trees. At least one row sees [0,
// sink_end) and [first_begin, last_end); every row sees [0, sink_end) and [last_begin, first_end).
enum class Cover : int32_t { kNone = 0, kPartial = 1, kFull = 2 };
struct TileRange {
  int32_t first_begin, last_begin;
  int32_t first_end, last_end;
};
constexpr TileRange kEmptyTile = {INT32_MAX, 0, INT32_MAX, 0};

KVC_HD TileRange united(const TileRange& tile, const TileRange& other) {
  return {tile.first_begin < other.first_begin ? tile.first_begin : other.first_begin,
          tile.last_begin > other.last_begin ? tile.last_begin : other.last_begin,
          tile.first_end < other.first_end ? tile.first_end : other.first_end,
          tile.last_end > other.last_end ? tile.last_end : other.last_end};
}
KVC_HD TileRange tile_of(const RowRange& row) { return {row.begin, row.begin, row.end, row.end}; }

// The range of token rows [row_begin, row_end).
KVC_HD TileRange tile_range(const kernels::AttnSequence& sequence, int32_t causal,
                            int64_t row_begin, int64_t row_end) {
  TileRange tile = kEmptyTile;
  for (int64_t row = row_begin; row < row_end; ++row)
    tile = united(tile, tile_of(row_range(sequence, causal, row)));
  return tile;
}

// Coverage of keys [key_begin, key_end). kNone: no row sees any of them, and they may lie on
// dropped pages. kFull: every row sees all of them.
KVC_HD Cover cover(const SequenceMask& mask, const TileRange& tile, int32_t key_begin,
                   int32_t key_end) {
  if (key_begin >= tile.last_end || (key_begin >= mask.sink_end && key_end <= tile.first_begin))
    return Cover::kNone;
  const bool all = key_end <= tile.first_end && key_end <= mask.tree_begin &&
                   (key_begin >= tile.last_begin || key_end <= mask.sink_end);
  return all ? Cover::kFull : Cover::kPartial;
}

// The next key from `key` on, in steps of `block` from `first`, whose block is not kNone. Jumps
// from the sink tokens to the window.
KVC_HD int32_t skip_masked(const SequenceMask& mask, const TileRange& tile, int32_t key,
                           int32_t first, int32_t block) {
  if (key < mask.sink_end || tile.first_begin <= key) return key;
  const int32_t blocks = (tile.first_begin - first) / block;
  return first + blocks * block > key ? first + blocks * block : key;
}

}  // namespace kvc::cuda
