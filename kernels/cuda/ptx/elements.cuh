// Reads and writes rows of any storage type on the device: single elements, and four at a time
// where rows are aligned for it.
#pragma once

#include "kernels/cuda/ptx/elements.h"
#include "kernels/cuda/ptx/ptx.cuh"

namespace kvc::cuda {

// A word of memory of any type, aligned to its size.
template <typename T>
KVC_DEVICE T load_word(const void* from) {
  T value;
  __builtin_memcpy(&value, __builtin_assume_aligned(from, sizeof(T)), sizeof(T));
  return value;
}
template <typename T>
KVC_DEVICE void store_word(void* to, T value) {
  __builtin_memcpy(__builtin_assume_aligned(to, sizeof(T)), &value, sizeof(T));
}

// Element `index` without its scale.
KVC_DEVICE float load_element(const std::byte* row, Element element, int32_t index) {
  switch (element) {
    case Element::kF32: return load_word<float>(row + 4 * static_cast<int64_t>(index));
    case Element::kF16:
      return f16_to_float(load_word<uint16_t>(row + 2 * static_cast<int64_t>(index)));
    case Element::kBF16:
      return bf16_to_float(load_word<uint16_t>(row + 2 * static_cast<int64_t>(index)));
    case Element::kInt4:
    case Element::kE2M1: {
      const uint32_t pair = load_word<uint8_t>(row + (index >> 1));
      return decode(element, pair >> (4 * (index & 1)) & 0xfu);
    }
    default: return decode(element, load_word<uint8_t>(row + index));
  }
}

KVC_DEVICE float load_element(const std::byte* row, kernels::DType dtype, int32_t index) {
  return load_element(row, element_of(dtype), index);
}

KVC_DEVICE void store_element(std::byte* row, kernels::DType dtype, int32_t index, float value) {
  if (dtype == kernels::DType::kF32) {
    store_word<float>(row + 4 * static_cast<int64_t>(index), value);
  } else {
    const uint16_t bits =
        dtype == kernels::DType::kF16 ? float_to_f16(value) : float_to_bf16(value);
    store_word<uint16_t>(row + 2 * static_cast<int64_t>(index), bits);
  }
}

// One of the two elements of a RoPE pair; `second` is the one to which sin is added. One product is
// rounded and one is fused, explicitly: compilers would fuse either, and a key's bits would depend
// on the path of its row.
KVC_DEVICE float rotated_element(float element, float other, float cos, float sin, bool second) {
  return fmaf(element, cos, other * (second ? sin : -sin));
}

// Element `index` of a row after RoPE, without its scale. cos_sin(pair, cos, sin) sets both.
template <typename CosSin, typename Load>
KVC_DEVICE float rotated_by(const kernels::Rotation& rotation, const CosSin& cos_sin, int32_t index,
                            const Load& load) {
  const float element = load(index);
  const int32_t inside = index - rotation.begin, half = rotation.rotary_dim / 2;
  if (inside < 0 || inside >= 2 * half) return element;
  const bool interleaved = rotation.interleaved != 0;
  const int32_t pair = interleaved ? inside >> 1 : inside < half ? inside : inside - half;
  const bool second = interleaved ? (inside & 1) != 0 : inside >= half;
  const int32_t distance = interleaved ? 1 : half;
  const float other = load(second ? index - distance : index + distance);
  float cos, sin;
  cos_sin(pair, cos, sin);
  return rotated_element(element, other, cos, sin, second);
}

// The same by row `cos_sin_row` of the table.
template <typename Load>
KVC_DEVICE float rotated(const kernels::Rotation& rotation, int64_t cos_sin_row, int32_t index,
                         const Load& load) {
  const int64_t first = cos_sin_row * (rotation.rotary_dim / 2);
  return rotated_by(
      rotation,
      [&](int32_t pair, float& cos, float& sin) {
        cos = rotation.cos[first + pair];
        sin = rotation.sin[first + pair];
      },
      index, load);
}

// The scale of all elements of a row. Block scales are applied per element instead (block_scale).
KVC_DEVICE float factor_of_row(const RowStorage& storage, int64_t page, int64_t head,
                               int64_t offset) {
  if (storage.quant == Quant::kPerTensor) return storage.scale;
  if (storage.quant != Quant::kPerTokenHead) return 1.0f;
  return load_word<float>(scale_address(storage, page, head, offset));
}
KVC_DEVICE float block_scale(const std::byte* scales, int32_t index) {
  return decode_e4m3(load_word<uint8_t>(scales + (index >> 4)));
}

// ---- four elements
// Row and index are such that four elements lie in one aligned word of 2, 4, 8 or 16 bytes.

KVC_HD bool aligned_for_four(Element element, uint64_t base, int64_t stride_a, int64_t stride_b,
                             int64_t stride_c) {
  const uint64_t word = static_cast<uint64_t>(element_bits(element) / 2);
  const uint64_t any = base | static_cast<uint64_t>(stride_a) | static_cast<uint64_t>(stride_b) |
                       static_cast<uint64_t>(stride_c);
  return (any & (word - 1)) == 0;
}

// The bits as stored.
KVC_DEVICE Words4 load_four_raw(const std::byte* row, int32_t bits, int32_t index) {
  Words4 raw{};
  if (bits == 16) {
    const auto word = load_word<uint64_t>(row + 2 * static_cast<int64_t>(index));
    raw.x[0] = static_cast<uint32_t>(word), raw.x[1] = static_cast<uint32_t>(word >> 32);
  } else if (bits == 8) {
    raw.x[0] = load_word<uint32_t>(row + index);
  } else if (bits == 32) {
    raw = load_16(row + 4 * static_cast<int64_t>(index));
  } else {
    raw.x[0] = load_word<uint16_t>(row + (index >> 1));
  }
  return raw;
}

KVC_DEVICE void decode_four(Element element, const Words4& raw, float (&out)[4]) {
  switch (element) {
    case Element::kF32:
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = as_float(raw.x[i]);
      break;
    case Element::kF16:
      unpack<kernels::DType::kF16>(raw.x[0], out[0], out[1]);
      unpack<kernels::DType::kF16>(raw.x[1], out[2], out[3]);
      break;
    case Element::kBF16:
      unpack<kernels::DType::kBF16>(raw.x[0], out[0], out[1]);
      unpack<kernels::DType::kBF16>(raw.x[1], out[2], out[3]);
      break;
    case Element::kInt4:
    case Element::kE2M1:
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = decode(element, raw.x[0] >> (4 * i) & 0xfu);
      break;
    default:
#pragma unroll
      for (int i = 0; i < 4; ++i) out[i] = decode(element, raw.x[0] >> (8 * i) & 0xffu);
  }
}

KVC_DEVICE void store_four(std::byte* row, kernels::DType dtype, int32_t index,
                           const float (&value)[4]) {
  if (dtype == kernels::DType::kF32) {
    store_16(row + 4 * static_cast<int64_t>(index),
             {{as_bits(value[0]), as_bits(value[1]), as_bits(value[2]), as_bits(value[3])}});
    return;
  }
  const bool half = dtype == kernels::DType::kF16;
  const uint32_t low = half ? pack<kernels::DType::kF16>(value[0], value[1])
                            : pack<kernels::DType::kBF16>(value[0], value[1]);
  const uint32_t high = half ? pack<kernels::DType::kF16>(value[2], value[3])
                             : pack<kernels::DType::kBF16>(value[2], value[3]);
  store_word<uint64_t>(row + 2 * static_cast<int64_t>(index), low | static_cast<uint64_t>(high)
                                                                        << 32);
}

}  // namespace kvc::cuda
