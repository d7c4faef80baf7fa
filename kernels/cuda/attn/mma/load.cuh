// Loads keys from pages into a stage of the ring: a lane finds the address of one key, and eight
// lanes copy a row.
#pragma once

#include "kernels/cuda/attn/mma/item.cuh"
#include "kernels/cuda/attn/mma/layout.h"
#include "kernels/cuda/ptx/convert8.cuh"

namespace kvc::cuda::attn_mma {

// The place of a key. page < 0: the key is masked in every row, nothing is read, and zeros take its
// place. So a dropped page is not touched, and the V of a masked key cannot turn its weight 0 into
// NaN.
struct KeyAddress {
  int32_t page, offset;
};

// Whether `key` is visible to any row of the item.
template <typename C>
KVC_DEVICE bool is_visible_to_any(const Shared<C>& shared, const Item& item, int32_t key) {
  const Row* rows = shared.rows();
#pragma unroll 1
  for (int r = 0; r < C::kRows; ++r)
    if (is_visible(item.mask, rows[r].mask, rows[r].token, key)) return true;
  return false;
}

// Lane i finds key first + i. It runs one tile ahead, so that the page id has arrived when it is
// needed.
template <typename C>
KVC_DEVICE KeyAddress locate(const kernels::AttnParams& params, const Shared<C>& shared,
                             int32_t first, int warp) {
  const Item& item = shared.item();
  const TileRange& tile = item.rows_of_cta[warp];
  const int32_t key = first + lane_id();
  KeyAddress place = {-1, 0};
  if (lane_id() < C::kLoadKeys && key >= item.key_begin && key < tile.last_end) {
    const bool ends_only = tile.last_begin == 0 && item.mask.tree_begin == INT32_MAX;
    if (ends_only || cover(item.mask, tile, first, first + C::kLoadKeys) == Cover::kFull ||
        is_visible_to_any(shared, item, key)) {
      const int32_t page = key / params.page_size;
      place = {item.pages[page], key - page * params.page_size};
    }
  }
  return place;
}

template <int kRowBytes, int kKeys>
KVC_DEVICE void copy_rows(std::byte* tile, uint64_t own_row, const std::byte* any,
                          int32_t row_bytes) {
  constexpr int kLanes = lanes_per_row<kRowBytes>();
  constexpr int kRowsAtOnce = 32 / kLanes;
  const int lane = lane_id(), chunk = lane % kLanes;
#pragma unroll
  for (int first = 0; first < kKeys; first += kRowsAtOnce) {
    const int row = first + lane / kLanes;
    const uint64_t from = shuffle(own_row, row);
#pragma unroll
    for (int c = 0; c < kRowBytes / 16; c += kLanes) {
      const bool used = from != 0 && (c + chunk) * 16 < row_bytes;
      copy_async_16(tile + chunk_offset<kRowBytes>(row, c + chunk),
                    used ? reinterpret_cast<const std::byte*>(from) + (c + chunk) * 16 : any,
                    used ? 16 : 0);
    }
  }
}

KVC_DEVICE void copy_scale(std::byte* to, const RowStorage& storage, const std::byte* scales,
                           const KeyAddress& place) {
  const bool used = place.page >= 0;
  const std::byte* from = used ? scales + place.page * storage.scale_page_stride +
                                     place.offset * storage.scale_token_stride
                               : scales;
  copy_async_4(to, from, used ? 4 : 0);
}

// Loads the warp's kLoadKeys keys of a tile, which are slice `slice` of it.
template <typename C>
KVC_DEVICE void load_keys(const AttnLaunch& launch, const Item& item, std::byte* stage, int slice,
                          const KeyAddress& place) {
  const kernels::AttnParams& params = launch.params;
  uint64_t k = 0, v = 0;
  if (place.page >= 0) {
    k = reinterpret_cast<uint64_t>(item.k + place.page * params.k.page_stride +
                                   place.offset * params.k.token_stride);
    v = reinterpret_cast<uint64_t>(item.v + place.page * params.v.page_stride +
                                   place.offset * params.v.token_stride);
  }
  std::byte* k_tile = stage + slice * C::kLoadKeys * C::kKRowBytes;
  std::byte* v_tile = stage + C::kTileKeys * C::kKRowBytes + slice * C::kLoadKeys * C::kVRowBytes;
  copy_rows<C::kKRowBytes, C::kLoadKeys>(k_tile, k, item.k, params.k_dim * C::kElementBytes);
  copy_rows<C::kVRowBytes, C::kLoadKeys>(v_tile, v, item.v, params.v_dim * C::kElementBytes);
  if constexpr (C::kEightBit) {
    const int lane = lane_id();
    std::byte* scales = stage + C::kStageBytesKv + (slice * C::kLoadKeys + lane) * 4;
    if (lane < C::kLoadKeys) {
      if (launch.k_storage.quant == Quant::kPerTokenHead)
        copy_scale(scales, launch.k_storage, item.k_scales, place);
      if (launch.v_storage.quant == Quant::kPerTokenHead)
        copy_scale(scales + C::kTileKeys * 4, launch.v_storage, item.v_scales, place);
    }
  }
}

}  // namespace kvc::cuda::attn_mma
