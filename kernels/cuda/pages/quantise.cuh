// Stores a row in the pool, converted or quantised by one warp. Shared by append and move_rows.
#pragma once

#include "kernels/cuda/ptx/elements.cuh"

namespace kvc::cuda {

// The address of slot `page`, `offset` of a head.
struct RowAddress {
  std::byte* row;
  std::byte* scales;  // Null without scales.
};

KVC_DEVICE RowAddress address_of(const kernels::PagedRows& rows, const RowStorage& storage,
                                 int64_t page, int64_t head, int64_t offset) {
  const bool has_scales = storage.quant == Quant::kPerTokenHead || storage.quant == Quant::kBlock16;
  return {element_address(rows, page, head, offset),
          has_scales ? scale_address(storage, page, head, offset) : nullptr};
}

KVC_DEVICE float warp_largest(float value) {
#pragma unroll
  for (int step = 16; step > 0; step /= 2) value = fmaxf(value, shuffle_xor(value, step));
  return value;
}

// Warp. NVFP4: lane i of eight has elements 2i and 2i + 1 of a block of 16. dim is a multiple of
// 16.
template <typename Value>
KVC_DEVICE void store_blocks(const RowAddress& to, int32_t dim, const Value& value) {
#pragma unroll 1
  for (int32_t first = 0; first < dim; first += 64) {
    const int32_t d = first + 2 * lane_id();
    const bool inside = d < dim;
    const float low = inside ? value(d) : 0.0f, high = inside ? value(d + 1) : 0.0f;
    float amax = fmaxf(fabsf(low), fabsf(high));
#pragma unroll
    for (int step = 1; step < 8; step *= 2) amax = fmaxf(amax, shuffle_xor(amax, step));
    const uint32_t code = block_scale_code(amax);
    const float scale = decode_e4m3(code);
    if (!inside) continue;
    if ((lane_id() & 7) == 0) store_word<uint8_t>(to.scales + (d >> 4), static_cast<uint8_t>(code));
    store_word<uint8_t>(to.row + (d >> 1), static_cast<uint8_t>(encode_in_block(low, scale) |
                                                                encode_in_block(high, scale) << 4));
  }
}

// Warp. value(d) returns element d as float32. It is called once or twice per element, by any lane,
// and must not read from `to`.
template <typename Value>
KVC_DEVICE void store_row(const RowAddress& to, const RowStorage& storage, kernels::DType dtype,
                          int32_t dim, const Value& value) {
  if (storage.quant == Quant::kNone) {
#pragma unroll 1
    for (int32_t d = lane_id(); d < dim; d += 32) store_element(to.row, dtype, d, value(d));
    return;
  }
  if (storage.quant == Quant::kBlock16) {
    store_blocks(to, dim, value);
    return;
  }
  const Element element = element_of(storage, dtype);
  float scale = storage.scale;
  if (storage.quant == Quant::kPerTokenHead) {
    float amax = 0.0f;
#pragma unroll 1
    for (int32_t d = lane_id(); d < dim; d += 32) amax = fmaxf(amax, fabsf(value(d)));
    scale = row_scale(element, warp_largest(amax));
    if (lane_id() == 0) store_word<float>(to.scales, scale);
  }
  if (element_bits(element) == 8) {
#pragma unroll 1
    for (int32_t d = lane_id(); d < dim; d += 32)
      store_word<uint8_t>(to.row + d, static_cast<uint8_t>(encode(element, value(d) / scale)));
    return;
  }
#pragma unroll 1
  for (int32_t d = 2 * lane_id(); d < dim; d += 64) {
    const uint32_t low = encode(element, value(d) / scale);
    const uint32_t high = d + 1 < dim ? encode(element, value(d + 1) / scale) : 0u;
    store_word<uint8_t>(to.row + (d >> 1), static_cast<uint8_t>(low | high << 4));
  }
}

}  // namespace kvc::cuda
