// Conversion of stored elements to and from float32: small floats, integers, and the addresses of
// scales. Follows the OCP 8-bit floating point specification 1.0 (e4m3 has no infinity and one NaN
// per sign, e5m2 is like IEEE) and the OCP microscaling formats 1.0 (e2m1 has neither).
#pragma once

#include <cstdint>

#include "kernels/cuda/work.h"
#include "kernels/params.h"
#include "kernels/target.h"

namespace kvc::cuda {

// All element types of rows, for one switch.
enum class Element : int32_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kE4M3 = 3,
  kE5M2 = 4,
  kInt8 = 5,
  kInt4 = 6,
  kE2M1 = 7
};

KVC_HD Element element_of(kernels::DType dtype) {
  return static_cast<Element>(static_cast<int32_t>(dtype));
}
KVC_HD Element element_of(const RowStorage& storage, kernels::DType dtype) {
  return storage.quant == Quant::kNone
             ? element_of(dtype)
             : static_cast<Element>(3 + static_cast<int32_t>(storage.type));
}
KVC_HD int32_t element_bits(Element element) {
  return element == Element::kF32                                 ? 32
         : element == Element::kF16 || element == Element::kBF16  ? 16
         : element == Element::kInt4 || element == Element::kE2M1 ? 4
                                                                  : 8;
}
// Bytes of a float32, float16 or bfloat16.
KVC_HD int32_t bytes_of(kernels::DType dtype) { return dtype == kernels::DType::kF32 ? 4 : 2; }
KVC_HD int64_t row_bytes(Element element, int64_t dim) {
  return (dim * element_bits(element) + 7) / 8;
}
// The largest magnitude, from which scales are made.
KVC_HD float max_magnitude(Element element) {
  return element == Element::kE4M3   ? 448.0f
         : element == Element::kE5M2 ? 57344.0f
         : element == Element::kInt8 ? 127.0f
         : element == Element::kInt4 ? 7.0f
                                     : 6.0f;
}

// A slot's page and the offset in it. 64-bit divisions are used only where slots need them.
struct PageOffset {
  int64_t page;
  int32_t offset;
};
KVC_HD PageOffset page_offset(int64_t slot, int32_t page_size) {
  if (slot <= INT32_MAX) {
    const auto small = static_cast<uint32_t>(slot), size = static_cast<uint32_t>(page_size);
    return {static_cast<int64_t>(small / size), static_cast<int32_t>(small % size)};
  }
  return {slot / page_size, static_cast<int32_t>(slot % page_size)};
}

KVC_HD std::byte* element_address(const kernels::PagedRows& rows, int64_t page, int64_t head,
                                  int64_t offset) {
  return rows.base + page * rows.page_stride + head * rows.head_stride + offset * rows.token_stride;
}
// Address of a row's scales: one float32 (kPerTokenHead), or one e4m3 per 16 elements (kBlock16).
KVC_HD std::byte* scale_address(const RowStorage& storage, int64_t page, int64_t head,
                                int64_t offset) {
  return storage.scales + page * storage.scale_page_stride + head * storage.scale_head_stride +
         offset * storage.scale_token_stride;
}

// ---- decode
// The fields are moved to where float32 has them and multiplied by the difference of the biases,
// which is right for subnormals too.

KVC_HD float float_of_bits(uint32_t bits) { return __builtin_bit_cast(float, bits); }
KVC_HD uint32_t bits_of_float(float value) { return __builtin_bit_cast(uint32_t, value); }

KVC_HD float decode_e4m3(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float value =
      magnitude == 0x7fu ? float_of_bits(0x7fc00000u) : float_of_bits(magnitude << 20) * 0x1p120f;
  return (code & 0x80u) != 0 ? -value : value;
}
KVC_HD float decode_e5m2(uint32_t code) {
  const uint32_t magnitude = code & 0x7fu;
  const float value = magnitude >= 0x7cu ? float_of_bits(0x7f800000u | (magnitude & 3u) << 21)
                                         : float_of_bits(magnitude << 21) * 0x1p112f;
  return (code & 0x80u) != 0 ? -value : value;
}
KVC_HD float decode_e2m1(uint32_t code) {
  const float value = float_of_bits((code & 7u) << 22) * 0x1p126f;
  return (code & 8u) != 0 ? -value : value;
}
KVC_HD float decode_int8(uint32_t code) {
  return static_cast<float>(static_cast<int8_t>(code & 0xffu));
}
KVC_HD float decode_int4(uint32_t code) {
  return static_cast<float>(static_cast<int32_t>((code & 0xfu) ^ 8u) - 8);
}

// ---- encode
// Rounds to nearest even and saturates. NaN stays NaN where the type has one, else it becomes 0.

// Encodes |value| as a small float with `fraction` bits whose smallest normal is 2^(1 - bias). The
// value is not NaN and within range.
KVC_HD uint32_t encode_magnitude(float magnitude, int32_t fraction, int32_t bias) {
  const float smallest_normal = float_of_bits(static_cast<uint32_t>(127 + 1 - bias) << 23);
  if (magnitude < smallest_normal) {
    // The sum's last place is the subnormal's unit, 2^(1 - bias - fraction), so the addition
    // rounds.
    const float units = float_of_bits(static_cast<uint32_t>(127 + 23 + 1 - bias - fraction) << 23);
    return bits_of_float(magnitude + units) - bits_of_float(units);
  }
  const uint32_t bits = bits_of_float(magnitude);
  const uint32_t dropped = static_cast<uint32_t>(23 - fraction);
  const uint32_t rounded =
      (bits + ((1u << (dropped - 1)) - 1u) + (bits >> dropped & 1u)) >> dropped;
  return rounded - (static_cast<uint32_t>(127 - bias) << fraction);
}
KVC_HD uint32_t encode_e4m3(float value) {
  const uint32_t bits = bits_of_float(value), sign = bits >> 31 << 7;
  const float magnitude = float_of_bits(bits & 0x7fffffffu);
  if (magnitude != magnitude) return sign | 0x7fu;
  return sign | encode_magnitude(magnitude < 448.0f ? magnitude : 448.0f, 3, 7);
}
KVC_HD uint32_t encode_e5m2(float value) {
  const uint32_t bits = bits_of_float(value), sign = bits >> 31 << 7;
  const float magnitude = float_of_bits(bits & 0x7fffffffu);
  if (magnitude != magnitude) return sign | 0x7fu;
  return sign | encode_magnitude(magnitude < 57344.0f ? magnitude : 57344.0f, 2, 15);
}
KVC_HD uint32_t encode_e2m1(float value) {
  const uint32_t bits = bits_of_float(value), sign = bits >> 31 << 3;
  const float magnitude = float_of_bits(bits & 0x7fffffffu);
  if (magnitude != magnitude) return sign;
  return sign | encode_magnitude(magnitude < 6.0f ? magnitude : 6.0f, 1, 1);
}
// Adding 1.5 * 2^23 leaves the rounded integer in the low bits.
KVC_HD int32_t encode_integer(float value, float low, float high) {
  if (value != value) return 0;
  const float clipped = value < low ? low : value > high ? high : value;
  return static_cast<int32_t>(bits_of_float(clipped + 12582912.0f) - bits_of_float(12582912.0f));
}
KVC_HD uint32_t encode_int8(float value) {
  return static_cast<uint32_t>(encode_integer(value, -128.0f, 127.0f)) & 0xffu;
}
KVC_HD uint32_t encode_int4(float value) {
  return static_cast<uint32_t>(encode_integer(value, -8.0f, 7.0f)) & 0xfu;
}

// Decodes a code of 4 or 8 bits.
KVC_HD float decode(Element element, uint32_t code) {
  switch (element) {
    case Element::kE4M3: return decode_e4m3(code);
    case Element::kE5M2: return decode_e5m2(code);
    case Element::kInt8: return decode_int8(code);
    case Element::kInt4: return decode_int4(code);
    default: return decode_e2m1(code);
  }
}
KVC_HD uint32_t encode(Element element, float value) {
  switch (element) {
    case Element::kE4M3: return encode_e4m3(value);
    case Element::kE5M2: return encode_e5m2(value);
    case Element::kInt8: return encode_int8(value);
    case Element::kInt4: return encode_int4(value);
    default: return encode_e2m1(value);
  }
}

// The scale of a row or block whose largest magnitude is `amax`. Never 0, so that it can be a
// divisor.
KVC_HD float row_scale(Element element, float amax) {
  const float scale = amax / max_magnitude(element);
  return scale > 0x1p-126f ? scale : 0x1p-126f;
}
// NVFP4 without a second scale: e4m3 of amax / 6. A block whose scale rounds to 0 is stored as
// zeros.
KVC_HD uint32_t block_scale_code(float amax) { return encode_e4m3(amax / 6.0f); }
KVC_HD uint32_t encode_in_block(float value, float scale) {
  return scale == 0.0f ? 0u : encode_e2m1(value / scale);
}

}  // namespace kvc::cuda
