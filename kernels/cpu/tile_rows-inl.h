// What both tile kernels (tile_bf16-inl.h, tile_f32-inl.h) share: which rows an item holds, which
// keys are visible to each row, where the keys lie, how scratch memory is divided.
//
// A "row" here is one query vector: token row x query head of one kv head's group. Rows are
// numbered token-major, row = token * group + head in group, so that neighbours have (nearly) the
// same visible keys.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/visibility-inl.h"
#include "kernels/params.h"

namespace kvc::kernels::cpu {
namespace {

// Keys of one packed block; blocks start at absolute keys divisible by it.
constexpr int kBlockKeys = 64;
constexpr int kMaxTileRows = 6;  // Rows of the register tile.

// The rows of one item and one kv head.
struct TileRows {
  const AttnParams* params;
  const AttnItem* item;
  const AttnSequence* sequence;
  int32_t kv_head;
  int32_t group;  // Query heads per kv head.
};

struct TileRow {
  int64_t token;       // Row inside the sequence.
  int64_t packed_row;  // Row of q, out, lse.
  int32_t head;        // Query head.
};

inline TileRows tile_rows(const AttnParams& params, const AttnItem& item, int32_t kv_head) {
  return {&params, &item, &params.sequences[item.sequence], kv_head,
          params.num_q_heads / params.num_kv_heads};
}

inline TileRow tile_row(const TileRows& rows, int64_t row) {
  const int64_t token = rows.item->row_begin + row / rows.group;
  const int32_t head = rows.kv_head * rows.group + static_cast<int32_t>(row % rows.group);
  return {token, packed_row_of(*rows.sequence, token), head};
}

// One past the last visible key of a row inside the item.
inline int64_t visible_key_end(const TileRows& rows, int64_t token) {
  const int64_t end = row_range<int64_t>(*rows.sequence, rows.params->causal, token).end;
  return end < rows.item->key_end ? end : rows.item->key_end;
}

// Addresses of the rows of one kv head for the kBlockKeys keys from block_begin on; of keys outside
// `wanted` (bit per key), or on dropped pages, `filler`.
inline void block_row_addresses(const PagedRows& pool, const TileRows& rows, int64_t block_begin,
                                uint64_t wanted, const std::byte* filler,
                                const std::byte** addresses /* [kBlockKeys] */) {
  const int64_t page_size = rows.params->page_size;
  int64_t page_index = block_begin / page_size;
  int64_t slot = block_begin % page_size;
  for (int64_t key = 0; key < kBlockKeys; ++page_index, slot = 0) {
    const int64_t run = kBlockKeys - key < page_size - slot ? kBlockKeys - key : page_size - slot;
    const uint64_t wanted_run = wanted >> key & bits_below(run);
    // The table may end with the last visible key of a row.
    const int64_t page = wanted_run != 0 ? rows.sequence->page(page_index) : -1;
    const std::byte* address = page >= 0 ? row_address(pool, page, rows.kv_head, slot) : filler;
    if (page >= 0 && wanted_run == bits_below(run)) {
      for (int64_t i = 0; i < run; ++i, address += pool.token_stride) addresses[key + i] = address;
    } else {
      for (int64_t i = 0; i < run; ++i) {
        const bool present = page >= 0 && (wanted_run >> i & 1) != 0;
        addresses[key + i] = present ? address + i * pool.token_stride : filler;
      }
    }
    key += run;
  }
}

// The scales of the same keys; 0 for those that get the filler.
inline void block_row_scales(const PagedRows& pool, const TileRows& rows, int64_t block_begin,
                             uint64_t wanted, float* scales /* [kBlockKeys] */) {
  const int64_t page_size = rows.params->page_size;
  int64_t page_index = block_begin / page_size;
  int64_t slot = block_begin % page_size;
  for (int64_t key = 0; key < kBlockKeys; ++page_index, slot = 0) {
    const int64_t run = kBlockKeys - key < page_size - slot ? kBlockKeys - key : page_size - slot;
    const uint64_t wanted_run = wanted >> key & bits_below(run);
    const int64_t page = wanted_run != 0 ? rows.sequence->page(page_index) : -1;
    for (int64_t i = 0; i < run; ++i) {
      const bool present = page >= 0 && (wanted_run >> i & 1) != 0;
      scales[key + i] = present ? row_scale(pool, page, rows.kv_head, slot + i) : 0.0f;
    }
    key += run;
  }
}

// Bump allocation inside the worker's scratch. With a null base it only measures.
struct ScratchCursor {
  std::byte* base;
  size_t used;
};

inline void* take_scratch(ScratchCursor& cursor, size_t bytes) {
  void* taken = cursor.base != nullptr ? cursor.base + cursor.used : nullptr;
  cursor.used += (bytes + 63) / 64 * 64;
  return taken;
}

// Most rows of one pass: as many as keep its state (queries, accumulators, sums) inside about half
// of a core's L2.
inline int64_t pass_row_limit(int64_t bytes_per_row) {
  constexpr int64_t kStateBytes = 640 * 1024;
  constexpr int64_t kFewest = 16;  // Register tiles; fewer would not pay for packing a block.
  const int64_t tiles = kStateBytes / (bytes_per_row * kMaxTileRows);
  return (tiles < kFewest ? kFewest : tiles) * kMaxTileRows;
}

// Cuts num_rows into even passes of at most `limit` rows. The cut changes no bit of any row.
inline int64_t rows_per_pass(int64_t num_rows, int64_t limit) {
  const int64_t passes = (num_rows + limit - 1) / limit;
  const int64_t even = passes > 0 ? (num_rows + passes - 1) / passes : 1;
  return passes > 1 ? (even + kMaxTileRows - 1) / kMaxTileRows * kMaxTileRows : even;
}

}  // namespace
}  // namespace kvc::kernels::cpu
