// The visible keys of a tile's rows, as a sequence of key blocks that the scheduler divides. Pure
// integer functions of one sequence, the same on host and device. The rules are those of
// src/exec/kv_chunks.h.
#pragma once

#include <cstdint>

#include "kernels/cuda/table.h"

namespace kvc::cuda::scheduling {

KVC_HD int64_t max_of(int64_t a, int64_t b) { return a > b ? a : b; }
KVC_HD int64_t min_of(int64_t a, int64_t b) { return a < b ? a : b; }
KVC_HD int64_t clamp(int64_t value, int64_t low, int64_t high) {
  return max_of(low, min_of(value, high));
}
// 32 bits only: on the device a 64-bit division is a function of about a hundred instructions.
KVC_HD int32_t divide_up(int32_t value, int32_t divisor) {
  return value / divisor + (value % divisor != 0 ? 1 : 0);
}

// Packed rows of a sequence per KV head: token rows times query heads. 0: the sequence is not
// scheduled.
KVC_HD int32_t scheduled_rows(const ScheduleShape& shape, int64_t token_rows) {
  const int64_t rows = token_rows * shape.group_size;
  return rows > shape.min_rows && rows <= shape.max_rows ? static_cast<int32_t>(rows) : 0;
}

// The visible keys of a tile: [0, sink_end) and [begin, end). sink_end is 0 where no gap lies
// between the two, or where the sink tokens need no work item of their own.
struct TileKeys {
  int32_t sink_end;
  int32_t begin;
  int32_t end;
};

// The visible keys of token rows [row_begin, row_end), a range that is not empty.
KVC_HD TileKeys tile_keys(const ScheduleShape& shape, const kernels::AttnSequence& sequence,
                          int64_t row_begin, int64_t row_end) {
  const int64_t last = row_end - 1;
  const int64_t last_end = sequence.key_ends != nullptr
                               ? sequence.key_ends[last]
                               : sequence.first_key_end + (shape.causal != 0 ? last : 0);
  const int64_t end = max_of(0, last_end);
  if (sequence.key_begins == nullptr) return {0, 0, static_cast<int32_t>(end)};
  int64_t begin = end;
  for (int64_t row = row_begin; row < row_end; ++row)
    begin = min_of(begin, sequence.key_begins[row]);
  begin = max_of(begin, 0);
  int64_t sink_end = clamp(sequence.sink_end, 0, end);
  if (shape.split_sinks != 0) {
    begin = max_of(begin, sink_end);
  } else if (sink_end >= begin) {
    begin = sink_end = 0;
  }
  return {static_cast<int32_t>(sink_end), static_cast<int32_t>(begin), static_cast<int32_t>(end)};
}

// The visible keys in blocks of `size` keys at absolute multiples: first the blocks of the sink
// tokens, then the rest. A block with sink tokens and other keys counts as a sink block, unless
// sink tokens are separate.
struct KeyBlocks {
  int32_t size;
  int32_t sink_blocks;
  int32_t first;        // Absolute index of the first block of the rest.
  int32_t rest_blocks;  // Blocks of the rest.

  KVC_HD int32_t count() const { return sink_blocks + rest_blocks; }
  // Absolute index of a block.
  KVC_HD int64_t at(int64_t index) const {
    return index < sink_blocks ? index : int64_t{first} + index - sink_blocks;
  }
  // The numbers of sink blocks and of other blocks in front of an absolute block.
  KVC_HD int64_t sinks_before(int64_t block) const { return min_of(block, sink_blocks); }
  KVC_HD int64_t rest_before(int64_t block) const { return clamp(block - first, 0, rest_blocks); }
};

KVC_HD KeyBlocks key_blocks(const ScheduleShape& shape, const TileKeys& keys, int32_t size) {
  KeyBlocks blocks{size, divide_up(keys.sink_end, size), keys.begin / size, 0};
  if (shape.split_sinks == 0 && blocks.first < blocks.sink_blocks)
    blocks.first = blocks.sink_blocks;
  const int32_t end = divide_up(keys.end, size);
  if (keys.begin < keys.end && blocks.first < end) blocks.rest_blocks = end - blocks.first;
  return blocks;
}

// First key and end of the keys of blocks [begin, end), with begin < end. The first key does not
// lie before the first visible block of `key_block` keys.
struct KeyRange {
  int32_t begin;
  int32_t end;
};
KVC_HD KeyRange key_range(const ScheduleShape& shape, const TileKeys& keys, const KeyBlocks& blocks,
                          int64_t begin, int64_t end) {
  const bool separate = shape.split_sinks != 0;
  const int32_t key_block = shape.geometry.key_block;
  int64_t first = blocks.at(begin) * blocks.size;
  if (begin >= blocks.sink_blocks) {
    first = max_of(first, keys.begin / key_block * int64_t{key_block});
    if (separate) first = max_of(first, keys.sink_end);
  }
  int64_t last = (blocks.at(end - 1) + 1) * blocks.size;
  // The last sink block may hold the beginning of the rest.
  const bool only_sinks =
      end <= blocks.sink_blocks && (separate || keys.begin >= keys.end ||
                                    keys.begin >= int64_t{blocks.sink_blocks} * blocks.size);
  last = min_of(last, only_sinks ? keys.sink_end : keys.end);
  return {static_cast<int32_t>(first), static_cast<int32_t>(last)};
}

}  // namespace kvc::cuda::scheduling
