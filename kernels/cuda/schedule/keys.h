// Which keys the rows of a tile see together, as a line of pieces: what the planner cuts. Pure
// integer functions of one sequence (the rules are those of src/exec/key_pieces.h), the same on
// host and device.
#pragma once

#include <cstdint>

#include "kernels/cuda/table.h"

namespace kvc::cuda::planning {

KVC_HD int64_t at_least(int64_t a, int64_t b) { return a > b ? a : b; }
KVC_HD int64_t at_most(int64_t a, int64_t b) { return a < b ? a : b; }
KVC_HD int64_t within(int64_t value, int64_t low, int64_t high) {
  return at_least(low, at_most(value, high));
}
// 32 bits: a division of 64 bits is a function of some hundred instructions on the device.
KVC_HD int32_t divide_up(int32_t value, int32_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

// A sequence's rows of one kv head, token rows times query heads; 0: the sequence is not planned.
KVC_HD int32_t planned_rows(const PlanShape& shape, int64_t token_rows) {
  const int64_t rows = token_rows * shape.group_size;
  return rows > shape.min_rows && rows <= shape.max_rows ? static_cast<int32_t>(rows) : 0;
}

// [0, sink_end) and [begin, end). Without a gap between the two, or where sinks need no item of
// their own: sink_end = 0.
struct TileKeys {
  int32_t sink_end;
  int32_t begin;
  int32_t end;
};

// Of token rows [row_begin, row_end), which are not empty.
KVC_HD TileKeys tile_keys(const PlanShape& shape, const kernels::AttnSequence& sequence,
                          int64_t row_begin, int64_t row_end) {
  const int64_t last = row_end - 1;
  const int64_t last_end = sequence.key_ends != nullptr
                               ? sequence.key_ends[last]
                               : sequence.first_key_end + (shape.causal != 0 ? last : 0);
  const int64_t end = at_least(0, last_end);
  if (sequence.key_begins == nullptr) return {0, 0, static_cast<int32_t>(end)};
  int64_t begin = end;
  for (int64_t row = row_begin; row < row_end; ++row)
    begin = at_most(begin, sequence.key_begins[row]);
  begin = at_least(begin, 0);
  int64_t sink_end = within(sequence.sink_end, 0, end);
  if (shape.split_sinks != 0) {
    begin = at_least(begin, sink_end);
  } else if (sink_end >= begin) {
    begin = sink_end = 0;
  }
  return {static_cast<int32_t>(sink_end), static_cast<int32_t>(begin), static_cast<int32_t>(end)};
}

// A range of keys in pieces of `size` keys at absolute multiples: the pieces of the sinks, then
// those of the rest. A piece that holds sinks and the rest belongs to the sinks' pieces, unless
// sinks are apart.
struct KeyLine {
  int32_t size;
  int32_t sink_pieces;
  int32_t first;   // absolute piece that the rest begins with
  int32_t pieces;  // of the rest

  KVC_HD int32_t count() const { return sink_pieces + pieces; }
  // Absolute piece of the index-th.
  KVC_HD int64_t at(int64_t index) const {
    return index < sink_pieces ? index : int64_t{first} + index - sink_pieces;
  }
  // How many pieces of the sinks and of the rest begin in front of an absolute piece.
  KVC_HD int64_t sinks_before(int64_t piece) const { return at_most(piece, sink_pieces); }
  KVC_HD int64_t rest_before(int64_t piece) const { return within(piece - first, 0, pieces); }
};

KVC_HD KeyLine key_line(const PlanShape& shape, const TileKeys& keys, int32_t size) {
  KeyLine line{size, divide_up(keys.sink_end, size), keys.begin / size, 0};
  if (shape.split_sinks == 0 && line.first < line.sink_pieces) line.first = line.sink_pieces;
  const int32_t end = divide_up(keys.end, size);
  if (keys.begin < keys.end && line.first < end) line.pieces = end - line.first;
  return line;
}

// First and last key (exclusive) of pieces [begin, end) of a line, begin < end; not before the
// first visible block of `key_block` keys.
struct KeyRange {
  int32_t begin;
  int32_t end;
};
KVC_HD KeyRange key_range(const PlanShape& shape, const TileKeys& keys, const KeyLine& line,
                          int64_t begin, int64_t end) {
  const bool apart = shape.split_sinks != 0;
  const int32_t key_block = shape.geometry.key_block;
  int64_t first = line.at(begin) * line.size;
  if (begin >= line.sink_pieces) {
    first = at_least(first, keys.begin / key_block * int64_t{key_block});
    if (apart) first = at_least(first, keys.sink_end);
  }
  int64_t last = (line.at(end - 1) + 1) * line.size;
  // The sinks' last piece may hold the beginning of the rest.
  const bool only_sinks =
      end <= line.sink_pieces &&
      (apart || keys.begin >= keys.end || keys.begin >= int64_t{line.sink_pieces} * line.size);
  last = at_most(last, only_sinks ? keys.sink_end : keys.end);
  return {static_cast<int32_t>(first), static_cast<int32_t>(last)};
}

}  // namespace kvc::cuda::planning
