// The state of a work item in shared memory: its rows, their visible ranges and the addresses of
// keys. It is read when needed, so that the decode loop keeps its registers for fragments.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/attn/mma/config.h"
#include "kernels/cuda/attn/visible_range.h"
#include "kernels/cuda/ptx/elements.h"
#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/work.h"

namespace kvc::cuda::attn_mma {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.693147180559945309f;

// A packed row: one query head of one token.
struct alignas(16) Row {
  RowRange mask;     // The end is clipped to the work item. A row that does not exist has no keys.
  int32_t token;     // Row inside the sequence.
  int32_t head;      // Query head.
  int32_t packed;    // Token of q, out, lse and bias.
  int32_t position;  // Used by ALiBi.
  float slope;       // Used by ALiBi, in log2 units.
  int32_t exists;
};

struct alignas(16) Item {
  const int32_t* pages;
  const std::byte* k;  // K, V and scales of the KV head.
  const std::byte* v;
  const std::byte* k_scales;
  const std::byte* v_scales;
  const int32_t* key_positions;
  const float* bias;  // Column of key 0.
  SequenceMask mask;
  TileRange rows_of_warp[kWarps];  // Visible range of the rows that each warp computes.
  // Visible range of all rows of the item. Each warp has a copy, which it writes and reads without
  // a barrier of the CTA.
  TileRange rows_of_cta[kWarps];
  uint64_t nonfinite_keys[kWarps];  // See nonfinite.cuh.
  int32_t key_position;
  int32_t key_begin;
};

template <typename C>
struct Shared {
  static constexpr int kItemOffset = C::kRowsOffset + C::kRows * static_cast<int>(sizeof(Row));
  static constexpr int kStatsOffset = kItemOffset + static_cast<int>(sizeof(Item));
  static constexpr int kFactorOffset = kStatsOffset + 2 * C::kOutRows * 4;
  static constexpr int kBytes = kFactorOffset + C::kOutRows * 4;

  std::byte* base;

  KVC_DEVICE std::byte* stage(int ring, int slot) const {
    return base + (ring * C::kStages + slot) * C::kStageBytes;
  }
  KVC_DEVICE std::byte* q() const { return base + C::kQOffset; }
  KVC_DEVICE float* out() const { return reinterpret_cast<float*>(base); }
  KVC_DEVICE Row* rows() const { return reinterpret_cast<Row*>(base + C::kRowsOffset); }
  KVC_DEVICE Item& item() const { return *reinterpret_cast<Item*>(base + kItemOffset); }
  KVC_DEVICE float* maxima() const { return reinterpret_cast<float*>(base + kStatsOffset); }
  KVC_DEVICE float* sums() const { return maxima() + C::kOutRows; }
  KVC_DEVICE float* factors() const { return reinterpret_cast<float*>(base + kFactorOffset); }
};

KVC_DEVICE TileRange united_by_lane(const TileRange& tile, int distance) {
  return united(tile,
                {shuffle_xor(tile.first_begin, distance), shuffle_xor(tile.last_begin, distance),
                 shuffle_xor(tile.first_end, distance), shuffle_xor(tile.last_end, distance)});
}

// Needs one thread per row. Ends with a barrier of the CTA.
template <typename C>
KVC_DEVICE void describe_item(const AttnLaunch& launch, const WorkItem& work,
                              const Shared<C>& shared) {
  const kernels::AttnParams& params = launch.params;
  const kernels::AttnSequence& sequence = params.sequences[work.sequence];
  const int thread = static_cast<int>(threadIdx.x);
  if (thread < C::kRows) {
    Row row = {kNoKeys, 0, 0, 0, 0, 0.0f, 0};
    if (thread < work.num_rows) {
      const int32_t group = params.num_q_heads / params.num_kv_heads;
      const int32_t packed_row = work.row_begin + thread;
      row.token = packed_row / group;
      row.head = work.kv_head * group + packed_row % group;
      row.packed = static_cast<int32_t>(packed_row_of(sequence, row.token));
      row.mask = row_range(sequence, params.causal, row.token);
      if (row.mask.end > work.key_end) row.mask.end = work.key_end;
      row.exists = 1;
      if (params.alibi != nullptr) {
        row.position = static_cast<int32_t>(position_of_row(sequence, row.token));
        row.slope = params.alibi[row.head] * kLog2E;
      }
    }
    shared.rows()[thread] = row;
  }
  if (thread == 0) {
    Item& item = shared.item();
    const int64_t head = work.kv_head;
    item.pages = sequence.pages;
    item.k = params.k.base + head * params.k.head_stride;
    item.v = params.v.base + head * params.v.head_stride;
    item.k_scales = launch.k_storage.scales + head * launch.k_storage.scale_head_stride;
    item.v_scales = launch.v_storage.scales + head * launch.v_storage.scale_head_stride;
    item.key_positions = sequence.key_positions;
    item.bias = params.bias != nullptr ? params.bias + sequence.key_position : nullptr;
    item.mask = sequence_mask(sequence);
    item.key_position = static_cast<int32_t>(sequence.key_position);
    item.key_begin = work.key_begin;
  }
  sync_cta();

  TileRange own = kEmptyTile, all = kEmptyTile;
  const int lane = lane_id(), warp = warp_id();
#pragma unroll
  for (int first = 0; first < C::kRows; first += kWarpRows) {
    const Row& row = shared.rows()[first + lane % kWarpRows];
    const TileRange tile = row.exists != 0 ? tile_of(row.mask) : kEmptyTile;
    all = united(all, tile);
    if (C::kRows == kWarpRows || first == warp * kWarpRows) own = tile;
  }
#pragma unroll
  for (int distance = 1; distance < kWarpRows; distance *= 2) {
    own = united_by_lane(own, distance);
    all = united_by_lane(all, distance);
  }
  if (lane == 0) {
    shared.item().rows_of_warp[warp] = own;
    shared.item().rows_of_cta[warp] = all;
  }
  sync_warp();
}

// The decode loop over the tiles of an item. With 16 rows a warp processes the tiles whose number
// is its own modulo 4: the warp that accumulates a key depends on the key alone.
template <typename C>
KVC_DEVICE int32_t own_tile(int32_t tile, int warp) {
  return C::kRows == kWarpRows ? tile + ((warp - tile) & (kWarps - 1)) : tile;
}
// The first tile from `key` on that may be visible.
template <typename C>
KVC_DEVICE int32_t skip_gap(const Item& item, int32_t key, int warp) {
  const int32_t window = item.rows_of_cta[warp].first_begin;
  if (key >= item.mask.sink_end && key + C::kTileKeys <= window)
    return own_tile<C>(window / C::kTileKeys, warp) * C::kTileKeys;
  return key;
}
template <typename C>
KVC_DEVICE int32_t first_tile(const Item& item, int warp) {
  return skip_gap<C>(item, own_tile<C>(item.key_begin / C::kTileKeys, warp) * C::kTileKeys, warp);
}
template <typename C>
KVC_DEVICE int32_t next_tile(const Item& item, int32_t key, int warp) {
  return skip_gap<C>(item, key + C::kTileStep, warp);
}

KVC_DEVICE Cover coverage_of(const Item& item, const TileRange& tile, int32_t key,
                             int32_t num_keys) {
  const Cover visible_keys = cover(item.mask, tile, key, key + num_keys);
  return visible_keys == Cover::kFull && key < item.key_begin ? Cover::kPartial : visible_keys;
}

// ---- Host: the instantiations

// Calls use(Config()) for entry `dims` of kDims on a device with `shared_bytes` per CTA. 8-bit rows
// of 192/128 use 256/256. 8-bit decode of 128 dims has a second form with two stages, for devices
// on which three do not fit.
template <Kv Of, int Rows, typename Use>
auto with_config(int dims, int32_t shared_bytes, Use use) {
  constexpr bool kEightBit = Of != Kv::kBF16 && Of != Kv::kF16;
  switch (dims) {
    case 0: return use(Config<Rows, kDims[0].k, kDims[0].v, Of>());
    case 1: {
      using Wanted = Config<Rows, kDims[1].k, kDims[1].v, Of>;
      if constexpr (kEightBit && Rows == kWarpRows) {
        if (shared_bytes < Shared<Wanted>::kBytes)
          return use(Config<Rows, kDims[1].k, kDims[1].v, Of, 2>());
      }
      return use(Wanted());
    }
    case 2:
      if constexpr (!kEightBit) return use(Config<Rows, kDims[2].k, kDims[2].v, Of>());
      [[fallthrough]];
    default: return use(Config<Rows, kDims[3].k, kDims[3].v, Of>());
  }
}

// Launches the instantiation for this type of K and V. `dims` is an index of kDims. Each
// launch_<type>.cu instantiates one type from kernel.cuh, so that types compile in parallel.
template <Kv Stored>
cudaError_t launch_mma(int rows, int dims, const AttnLaunch& params, cudaStream_t stream);

}  // namespace kvc::cuda::attn_mma
