// The walk of the tile kernels: kv head -> pass of rows -> block of 64 keys -> register tile of
// rows. Generic
// over the arithmetic (tile_f32-inl.h, tile_bf16-inl.h), which is a struct Math with
//   static constexpr int kVectorFloats               floats per register across v_dim
//   static constexpr DType kRotated                  what rotated keys are rounded to
//   static constexpr bool kScalesRows                pack multiplies quantised rows by their
//                                                    scales, else scores and weights are multiplied
//   static int64_t query_bytes(params)               per row
//   void allocate(params, max_rows, v_padded, cursor)  its part of the scratch
//   void load_query(const float* query, row)         fp32 [k_dim] -> its own form
//   bool pack(keys, values)                          one block; whether all of V is finite
//   void scores<kRows>(row, float* scores)           raw dot products, [kRows][kBlockKeys]
//   void weights(const float* scores, num_rows)      takes over P, [num_rows][kBlockKeys]
//   void values<kRows>(correction, num_keys, acc)    acc = acc * correction + P V, the first
// num_keys keys
//   void values_of_visible(row, visible, correction, num_keys, acc)
//                                                    the same for one row, with visible V only
//
// Blocks start at absolute multiples of 64; items are cut there, but for sinks that end elsewhere.
#pragma once

#include <cstdint>

#include "kernels/cpu/rows-inl.h"
#include "kernels/cpu/tile_rows-inl.h"
#include "kernels/cpu/tile_scores-inl.h"

namespace kvc::kernels::cpu {
namespace {

#if defined(__clang__)
#define KVC_TILE_UNROLL _Pragma("unroll")
#else
#define KVC_TILE_UNROLL _Pragma("GCC unroll 16")
#endif

struct TilePass {
  int64_t v_padded;   // v_dim rounded up to whole registers.
  int64_t max_rows;   // Most rows of one pass.
  float* acc;         // [max_rows][v_padded]       un-normalised output.
  float* sum;         // [max_rows][kLanes]         sum of P, one partial sum per lane.
  float* max;         // [max_rows]                 running maximum, log2 units.
  int64_t* key_end;   // [max_rows]                 one past the last visible key.
  float* query;       // [k_dim]                    one query row in fp32.
  float* scores;      // [kMaxTileRows][kBlockKeys]
  float* correction;  // [kLanes]
  std::byte* zeros;   // A row of zeros stands for the keys behind the last one.
  // [2][2 * kBlockKeys]        this, next block: its K rows, its V rows.
  const std::byte** rows;
  float* scales;                   // [2][2 * kBlockKeys]  those of the rows.
  std::byte* rotated;              // [kBlockKeys][k_dim]        K rotated while it is read.
  const std::byte** rotated_rows;  // [kBlockKeys]       rows of `rotated`, or zeros.
};

// The K rows or the V rows of a block. value = element * scale; rows that are not quantised have
// no scales.
struct BlockRows {
  const std::byte* const* rows;  // [kBlockKeys]
  DType dtype;
  const float* scales;  // [kBlockKeys]
};

template <typename T>
inline T* take_array(ScratchCursor& cursor, int64_t count) {
  return static_cast<T*>(take_scratch(cursor, static_cast<size_t>(count) * sizeof(T)));
}

template <typename Math>
TilePass allocate_pass(const AttnParams& params, int64_t item_rows, Math& math,
                       ScratchCursor& cursor) {
  TilePass pass = {};
  pass.v_padded =
      (params.v_dim + Math::kVectorFloats - 1) / Math::kVectorFloats * Math::kVectorFloats;
  const int64_t limit =
      pass_row_limit(Math::query_bytes(params) + (pass.v_padded + kLanes + 1) * 4 + 8);
  const int64_t all_rows = item_rows * (params.num_q_heads / params.num_kv_heads);
  pass.max_rows = all_rows < limit ? all_rows : limit;
  math.allocate(params, pass.max_rows, pass.v_padded, cursor);
  const bool rotates = params.k_rotations[0].rotary_dim > 0 || params.k_rotations[1].rotary_dim > 0;
  const int64_t zero_bytes =
      (params.k_dim > params.v_dim ? params.k_dim : params.v_dim) * int64_t{4};
  pass.scores = take_array<float>(cursor, kMaxTileRows * kBlockKeys);
  pass.correction = take_array<float>(cursor, kLanes);
  pass.rows = take_array<const std::byte*>(cursor, 2 * 2 * kBlockKeys);
  const bool scales = is_quantised(params.k.dtype) || is_quantised(params.v.dtype);
  pass.scales = take_array<float>(cursor, scales ? 2 * 2 * kBlockKeys : 0);
  pass.acc = take_array<float>(cursor, pass.max_rows * pass.v_padded);
  pass.sum = take_array<float>(cursor, pass.max_rows * kLanes);
  pass.max = take_array<float>(cursor, pass.max_rows);
  pass.key_end = take_array<int64_t>(cursor, pass.max_rows);
  pass.query = take_array<float>(cursor, params.k_dim);
  pass.zeros = take_array<std::byte>(cursor, zero_bytes);
  pass.rotated = take_array<std::byte>(
      cursor, rotates ? kBlockKeys * params.k_dim * dtype_bytes(Math::kRotated) : 0);
  pass.rotated_rows = take_array<const std::byte*>(cursor, rotates ? kBlockKeys : 0);
  if (cursor.base != nullptr) __builtin_memset(pass.zeros, 0, static_cast<size_t>(zero_bytes));
  return pass;
}

// Where the rows of one block lie: K rows, then V rows. Keys that are masked in every row are rows
// of zeros. Quantised rows have their scales beside them.
inline void locate_block(const TileRows& rows, const VisibleKeys& visible, int64_t block_begin,
                         const std::byte* zeros, const std::byte** addresses /* [2 * kBlockKeys] */,
                         float* scales /* [2 * kBlockKeys] */) {
  const uint64_t wanted = visible.bits(block_begin, kBlockKeys);
  const PagedRows &k = rows.params->k, &v = rows.params->v;
  block_row_addresses(k, rows, block_begin, wanted, zeros, addresses);
  block_row_addresses(v, rows, block_begin, wanted, zeros, addresses + kBlockKeys);
  if (is_quantised(k.dtype)) block_row_scales(k, rows, block_begin, wanted, scales);
  if (is_quantised(v.dtype)) block_row_scales(v, rows, block_begin, wanted, scales + kBlockKeys);
}

// The K rows of a block, rotated to their positions in fp32, then rounded to what the products
// take.
template <DType kTo>
void rotate_block(const TileRows& rows, int64_t block_begin, const std::byte* const* k_rows,
                  const float* k_scales, TilePass& pass) {
  const AttnParams& params = *rows.params;
  const KeyRotation turn(params, *rows.item);
  with_stored_dtype(params.k.dtype, [&](auto type) {
    for (int key = 0; key < kBlockKeys; ++key) {
      pass.rotated_rows[key] = pass.zeros;
      if (k_rows[key] == pass.zeros) continue;
      std::byte* to = pass.rotated + key * params.k_dim * dtype_bytes(kTo);
      transform_row<decltype(type)::value, kTo>(to, k_rows[key], params.k_dim, turn.rotation,
                                                turn.row_of(block_begin + key),
                                                is_quantised(params.k.dtype) ? k_scales[key] : 1);
      pass.rotated_rows[key] = to;
    }
  });
}

// Brings the next block into L2 while this one is worked on, a few rows at a time between the steps
// of every register tile: packing reads each row once and would otherwise wait for memory, and a
// core has few outstanding lines, so bursts wait too (together a third of the time of a short
// append).
struct TilePrefetch {
  const std::byte* const* rows;  // [2 * kBlockKeys]
  int64_t k_bytes, v_bytes;      // Per row.
  int32_t done, step;            // Rows asked for so far, rows per call.
};

inline TilePrefetch tile_prefetch(const AttnParams& params, const std::byte* const* rows,
                                  bool wanted, int64_t num_rows) {
  constexpr int32_t kStepsPerTile = 3;
  const int64_t steps = (num_rows + kMaxTileRows - 1) / kMaxTileRows * kStepsPerTile;
  return {rows, params.k_dim * dtype_bytes(params.k.dtype),
          params.v_dim * dtype_bytes(params.v.dtype), wanted ? 0 : 2 * kBlockKeys,
          static_cast<int32_t>((2 * kBlockKeys + steps - 1) / steps)};
}

inline void prefetch_some(TilePrefetch& prefetch) {
  int32_t end = prefetch.done + prefetch.step;
  if (end > 2 * kBlockKeys) end = 2 * kBlockKeys;
  for (; prefetch.done < end; ++prefetch.done) {
    const std::byte* row = prefetch.rows[prefetch.done];
    const int64_t bytes = prefetch.done < kBlockKeys ? prefetch.k_bytes : prefetch.v_bytes;
    for (int64_t at = 0; at < bytes; at += kCacheLine) __builtin_prefetch(row + at, 0, 2);
  }
}

struct TileBlock {
  // Where the rows were packed without them: scales of K for the scores, of V for the weights.
  const float* k_scales;   // Nullable [kBlockKeys]
  const float* v_scales;   // Nullable [kBlockKeys]
  int64_t begin;           // First key.
  bool all_visible;        // No key is masked in any row of the pass.
  bool ends_only;          // Rows differ in their ends only.
  bool v_finite;           // All of V that is visible to some row.
  TilePrefetch* prefetch;  // Reads the next block.
};

// The visible keys of the block for each row of a tile. Returns whether none is masked.
template <int kRows>
inline bool tile_visibility(const TileRows& rows, int64_t first_row, const TileBlock& block,
                            const int64_t* key_end, uint64_t* visible /* [kRows] */) {
  // The first row of a tile has the smallest end.
  const bool all = block.all_visible || (block.ends_only && key_end[0] >= block.begin + kBlockKeys);
  for (int r = 0; r < kRows; ++r) {
    visible[r] =
        all ? ~uint64_t{0}
            : visible_bits(*rows.params, *rows.item,
                           rows.item->row_begin + (first_row + r) / rows.group, block.begin);
  }
  return all;
}

inline void scale_rows(int num_rows, float* scores /* [num_rows][kBlockKeys] */,
                       const float* scales /* [kBlockKeys] */) {
  for (int c = 0; c < kBlockVectors; ++c) {
    const Vec scale = load(scales + c * kLanes);
    for (int r = 0; r < num_rows; ++r) {
      float* at = scores + r * kBlockKeys + c * kLanes;
      store(at, mul(load(at), scale));
    }
  }
}

// A key that weighs nothing may have a scale of NaN.
inline void scale_weights(int num_rows, float* weights /* [num_rows][kBlockKeys] */,
                          const float* scales /* [kBlockKeys] */) {
  for (int c = 0; c < kBlockVectors; ++c) {
    const Vec scale = load(scales + c * kLanes);
    for (int r = 0; r < num_rows; ++r) {
      float* at = weights + r * kBlockKeys + c * kLanes;
      const Vec weight = load(at);
      store(at, select(equal(weight, zero()), zero(), mul(weight, scale)));
    }
  }
}

// One register tile of rows against the packed block.
template <int kRows, typename Math>
void attend_rows(const TileRows& rows, int64_t first_row /* of the pass, in the item */,
                 int64_t row /* in the pass */, const TileBlock& block, TilePass& pass,
                 Math& math) {
  const int64_t last_end = pass.key_end[row + kRows - 1];
  // The same as walking it: nothing is visible, nothing would change.
  if (last_end <= block.begin) return;
  uint64_t visible[kRows];
  const bool all_visible =
      tile_visibility<kRows>(rows, first_row + row, block, pass.key_end + row, visible);
  uint64_t any = 0;
  for (int r = 0; r < kRows; ++r) any |= visible[r];
  if (any == 0) return;
  float* acc = pass.acc + row * pass.v_padded;
  prefetch_some(*block.prefetch);
  math.template scores<kRows>(row, pass.scores);
  if (block.k_scales != nullptr) scale_rows(kRows, pass.scores, block.k_scales);
  prefetch_some(*block.prefetch);
  if (!scores_are_plain(*rows.params)) {
    for (int r = 0; r < kRows; ++r) {
      adjust_scores(rows, tile_row(rows, first_row + row + r), block.begin, visible[r],
                    pass.scores + r * kBlockKeys);
    }
  } else if (!all_visible) {
    for (int r = 0; r < kRows; ++r) mask_scores(pass.scores + r * kBlockKeys, visible[r]);
  }
  if (!block.v_finite) {
    for (int r = 0; r < kRows; ++r) visible[r] = visible_key_bits(pass.scores + r * kBlockKeys);
  }
  softmax_rows(kRows, pass.scores, pass.max + row, pass.sum + row * kLanes, pass.correction);
  if (block.v_scales != nullptr) scale_weights(kRows, pass.scores, block.v_scales);
  math.weights(pass.scores, kRows);
  prefetch_some(*block.prefetch);
  const int64_t left = last_end - block.begin;
  const int num_keys = left < kBlockKeys ? static_cast<int>(left) : kBlockKeys;
  if (block.v_finite) {
    math.template values<kRows>(pass.correction, num_keys, acc);
  } else {  // 0 * NaN: a row may only read V that is visible to it.
    for (int r = 0; r < kRows; ++r)
      math.values_of_visible(r, visible[r], pass.correction[r], num_keys, acc + r * pass.v_padded);
  }
}

// The rows of a pass, ready for the first block.
template <typename Math>
void load_pass(const TileRows& rows, int64_t first_row, int64_t num_rows, TilePass& pass,
               Math& math) {
  const AttnParams& params = *rows.params;
  const Rotation& rotation = rows.item->sink_part != 0 ? params.sink_q_rotation : params.q_rotation;
  for (int64_t row = 0; row < num_rows; ++row) {
    const TileRow here = tile_row(rows, first_row + row);
    load_query_row(params, rotation, here.packed_row, here.head, pass.query);
    math.load_query(pass.query, row);
    pass.key_end[row] = visible_key_end(rows, here.token);
    pass.max[row] = kMinusInfinity;
  }
  __builtin_memset(pass.acc, 0, static_cast<size_t>(num_rows * pass.v_padded) * sizeof(float));
  __builtin_memset(pass.sum, 0, static_cast<size_t>(num_rows * kLanes) * sizeof(float));
}

template <typename Math>
void attend_pass(const TileRows& rows, int64_t first_row, int64_t num_rows, TilePass& pass,
                 Math& math) {
  const AttnParams& params = *rows.params;
  load_pass(rows, first_row, num_rows, pass, math);
  const int64_t token = rows.item->row_begin + first_row / rows.group;
  const int64_t last_token = rows.item->row_begin + (first_row + num_rows - 1) / rows.group;
  const VisibleKeys visible = visible_keys(params, *rows.item, token, last_token + 1);
  const bool ends_only = visible.ends_only && rows.item->key_begin % kBlockKeys == 0;
  const bool rotates = KeyRotation(params, *rows.item).rotates();
  const std::byte** here = pass.rows;
  const std::byte** next = pass.rows + 2 * kBlockKeys;
  float* here_scales = pass.scales;
  float* next_scales = pass.scales + 2 * kBlockKeys;
  int64_t block = visible.first_block(kBlockKeys);
  if (block < visible.end()) locate_block(rows, visible, block, pass.zeros, here, here_scales);
  while (block < visible.end()) {
    const int64_t next_block = visible.next_block(block, kBlockKeys);
    const bool has_next = next_block < visible.end();
    if (has_next) locate_block(rows, visible, next_block, pass.zeros, next, next_scales);
    if (rotates) rotate_block<Math::kRotated>(rows, block, here, here_scales, pass);
    const BlockRows keys = {rotates ? pass.rotated_rows : here,
                            rotates ? Math::kRotated : params.k.dtype, here_scales};
    const bool v_finite =
        math.pack(keys, {here + kBlockKeys, params.v.dtype, here_scales + kBlockKeys});
    TilePrefetch prefetch = tile_prefetch(params, next, has_next, num_rows);
    const bool scales_k = !Math::kScalesRows && is_quantised(keys.dtype);
    const bool scales_v = !Math::kScalesRows && is_quantised(params.v.dtype);
    const TileBlock state = {scales_k ? here_scales : nullptr,
                             scales_v ? here_scales + kBlockKeys : nullptr,
                             block,
                             visible.all_visible(block, kBlockKeys),
                             ends_only,
                             v_finite,
                             &prefetch};
    int64_t row = 0;
    for (; row + 6 <= num_rows; row += 6) attend_rows<6>(rows, first_row, row, state, pass, math);
    if (row + 4 <= num_rows) attend_rows<4>(rows, first_row, row, state, pass, math), row += 4;
    if (row + 2 <= num_rows) attend_rows<2>(rows, first_row, row, state, pass, math), row += 2;
    if (row < num_rows) attend_rows<1>(rows, first_row, row, state, pass, math);
    const std::byte** done = here;
    here = next;
    next = done;
    float* const done_scales = here_scales;
    here_scales = next_scales;
    next_scales = done_scales;
    block = next_block;
  }
  for (int64_t row = 0; row < num_rows; ++row) {
    store_tile_row(rows, tile_row(rows, first_row + row), pass.max[row], pass.sum + row * kLanes,
                   pass.acc + row * pass.v_padded);
  }
}

template <typename Math>
void attend_item(const AttnParams& params, const AttnItem& item, void* scratch) {
  Math math = {};
  ScratchCursor cursor = {static_cast<std::byte*>(scratch), 0};
  TilePass pass = allocate_pass(params, item.row_end - item.row_begin, math, cursor);
  for (int32_t head = item.head_begin; head < item.head_end; ++head) {
    const TileRows rows = tile_rows(params, item, head);
    const int64_t num_rows = (item.row_end - item.row_begin) * rows.group;
    const int64_t step = rows_per_pass(num_rows, pass.max_rows);
    for (int64_t first = 0; first < num_rows; first += step) {
      const int64_t left = num_rows - first;
      attend_pass(rows, first, left < step ? left : step, pass, math);
    }
  }
}

template <typename Math>
size_t attend_scratch_bytes(const AttnParams& params, int64_t max_rows) {
  Math math = {};
  ScratchCursor cursor = {nullptr, 0};
  allocate_pass(params, max_rows, math, cursor);
  return cursor.used;
}

}  // namespace
}  // namespace kvc::kernels::cpu
