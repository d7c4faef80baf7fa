// Loads a block of keys into shared memory: the addresses of its rows, and their elements as
// float32.
#pragma once

#include "kernels/cuda/attn/simt/config.h"
#include "kernels/cuda/ptx/elements.cuh"
#include "kernels/cuda/rope/key_rows.h"

namespace kvc::cuda::simt {

// The rows of K or of V.
struct Source {
  kernels::PagedRows rows;
  Element element;
  bool by_four;  // Every row is aligned for reads of four elements.
};

KVC_DEVICE Source source_of(const kernels::PagedRows& rows, const RowStorage& storage) {
  const Element element = element_of(storage, rows.dtype);
  return {rows, element,
          aligned_for_four(element, reinterpret_cast<uint64_t>(rows.base), rows.page_stride,
                           rows.head_stride, rows.token_stride)};
}

// The lane's key. Null: it is masked in every row.
struct KeyRow {
  const std::byte* elements;
  const std::byte* block_scales;
};

KVC_DEVICE KeyRow key_row(const Source& source, const RowStorage& storage, bool visible_rows,
                          int64_t page, int32_t head, int32_t slot) {
  KeyRow row{nullptr, nullptr};
  if (!visible_rows) return row;
  row.elements = source.rows.base + page * source.rows.page_stride +
                 head * source.rows.head_stride + slot * source.rows.token_stride;
  if (storage.quant == Quant::kBlock16) row.block_scales = scale_address(storage, page, head, slot);
  return row;
}

KVC_DEVICE const std::byte* pointer_of_lane(const std::byte* own, int lane) {
  return reinterpret_cast<const std::byte*>(shuffle(reinterpret_cast<uint64_t>(own), lane));
}

// Warp. Loads dims [first, first + kChunk) of the keys of all lanes into `chunk`, eight keys per
// warp. Dims beyond `dim` and masked keys become zeros. Scales of rows are not applied
// (factor_of_row); scales of blocks are.
KVC_DEVICE void load_chunk(float* chunk, const Source& source, const KeyRow& own, int32_t dim,
                           int32_t first) {
  constexpr int kWarpKeys = kKeys / kWarps;
  const int lane = lane_id(), first_key = warp_id() * kWarpKeys;
  const int32_t index = first + 4 * lane;
  if (source.by_four && (dim & 3) == 0) {
    const int32_t bits = element_bits(source.element);
#pragma unroll 1
    for (int half = 0; half < kWarpKeys; half += 4) {
      Words4 raw[4];
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const std::byte* row = pointer_of_lane(own.elements, first_key + half + i);
        raw[i] = Words4{};
        if (row != nullptr && index < dim) raw[i] = load_four_raw(row, bits, index);
      }
#pragma unroll
      for (int i = 0; i < 4; ++i) {
        const int key = first_key + half + i;
        Words4 out;
        float value[4];
        decode_four(source.element, raw[i], value);
        const std::byte* scales = pointer_of_lane(own.block_scales, key);
        const float scale = scales != nullptr && index < dim ? block_scale(scales, index) : 1.0f;
#pragma unroll
        for (int j = 0; j < 4; ++j) out.x[j] = as_bits(value[j] * scale);
        *reinterpret_cast<Words4*>(chunk + key * kChunkStride + 4 * lane) = out;
      }
    }
    return;
  }
#pragma unroll 1
  for (int i = 0; i < kWarpKeys; ++i) {
    const int key = first_key + i;
    const std::byte* row = pointer_of_lane(own.elements, key);
    const std::byte* scales = pointer_of_lane(own.block_scales, key);
#pragma unroll 1
    for (int32_t d = lane; d < kChunk; d += 32) {
      const int32_t at = first + d;
      float value = 0.0f;
      if (row != nullptr && at < dim) {
        value = load_element(row, source.element, at);
        if (scales != nullptr) value *= block_scale(scales, at);
      }
      chunk[key * kChunkStride + d] = value;
    }
  }
}

// Warp. The same for K that is rotated on read. `position` is that of the lane's key.
KVC_DEVICE void load_chunk_rotated(float* chunk, const Source& source, const KeyRow& own,
                                   const kernels::Rotation& rotation, int64_t position, int32_t dim,
                                   int32_t first) {
  constexpr int kWarpKeys = kKeys / kWarps;
  const int lane = lane_id(), first_key = warp_id() * kWarpKeys;
#pragma unroll 1
  for (int i = 0; i < kWarpKeys; ++i) {
    const int key = first_key + i;
    const std::byte* row = pointer_of_lane(own.elements, key);
    const std::byte* scales = pointer_of_lane(own.block_scales, key);
    const int64_t position_of_key = shuffle(position, key);
    const auto cos_sin = [&](int32_t pair, float& cos, float& sin) {
      key_cos_sin(rotation, position_of_key, pair, cos, sin);
    };
#pragma unroll 1
    for (int32_t d = lane; d < kChunk; d += 32) {
      const int32_t at = first + d;
      float value = 0.0f;
      if (row != nullptr && at < dim) {
        value = rotated_by(rotation, cos_sin, at, [&](int32_t j) {
          const float element = load_element(row, source.element, j);
          return scales != nullptr ? element * block_scale(scales, j) : element;
        });
      }
      chunk[key * kChunkStride + d] = value;
    }
  }
}

}  // namespace kvc::cuda::simt
