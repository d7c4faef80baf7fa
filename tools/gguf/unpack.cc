#include "tools/gguf/unpack.h"

#include <cmath>
#include <cstring>

namespace kvc::gguf {
namespace {

constexpr int kBlock = 32;        // Elements of a block of the plain types.
constexpr int kSuperBlock = 256;  // Those of a block of the K types.

template <typename T>
T value_at(const std::byte* data) {
  T value;
  std::memcpy(&value, data, sizeof value);
  return value;
}

int byte_at(const std::byte* data, int i) { return static_cast<int>(data[i]); }

float half_at(const std::byte* data) {
  const auto bits = value_at<uint16_t>(data);
  const int exponent = bits >> 10 & 31, mantissa = bits & 1023;
  float value;
  if (exponent == 31) {
    value = mantissa == 0 ? HUGE_VALF : NAN;
  } else {
    value = exponent == 0 ? std::ldexp(static_cast<float>(mantissa), -24)
                          : std::ldexp(static_cast<float>(1024 + mantissa), exponent - 25);
  }
  return (bits & 0x8000) != 0 ? -value : value;
}

float bfloat_at(const std::byte* data) {
  const uint32_t bits = uint32_t{value_at<uint16_t>(data)} << 16;
  float value;
  std::memcpy(&value, &bits, sizeof value);
  return value;
}

// Blocks of 4 bits: element i is in the low half of byte i, element i + 16 in its high half.
void unpack_q4_0(const std::byte* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < kBlock / 2; ++i) {
    const int two = byte_at(block + 2, i);
    out[i] = scale * static_cast<float>((two & 15) - 8);
    out[i + kBlock / 2] = scale * static_cast<float>((two >> 4) - 8);
  }
}

void unpack_q4_1(const std::byte* block, float* out) {
  const float scale = half_at(block), least = half_at(block + 2);
  for (int i = 0; i < kBlock / 2; ++i) {
    const int two = byte_at(block + 4, i);
    out[i] = scale * static_cast<float>(two & 15) + least;
    out[i + kBlock / 2] = scale * static_cast<float>(two >> 4) + least;
  }
}

// The fifth bits of all elements come first, in one word.
void unpack_q5(const std::byte* bits_at, float scale, float least, int zero, float* out) {
  const auto high = value_at<uint32_t>(bits_at);
  for (int i = 0; i < kBlock / 2; ++i) {
    const int two = byte_at(bits_at + 4, i);
    const int first = (two & 15) | static_cast<int>(high >> i & 1) << 4;
    const int second = (two >> 4) | static_cast<int>(high >> (i + 16) & 1) << 4;
    out[i] = scale * static_cast<float>(first - zero) + least;
    out[i + kBlock / 2] = scale * static_cast<float>(second - zero) + least;
  }
}

void unpack_q5_0(const std::byte* block, float* out) {
  unpack_q5(block + 2, half_at(block), 0.0f, 16, out);
}

void unpack_q5_1(const std::byte* block, float* out) {
  unpack_q5(block + 4, half_at(block), half_at(block + 2), 0, out);
}

void unpack_q8_0(const std::byte* block, float* out) {
  const float scale = half_at(block);
  for (int i = 0; i < kBlock; ++i)
    out[i] = scale * static_cast<float>(value_at<int8_t>(block + 2 + i));
}

// Eight scales and eight minima of 6 bits each in twelve bytes: the low six bits of the first four
// bytes are scales 0 to 3, those of the next four minima 0 to 3. The last four bytes have the low
// halves of the others, whose two high bits are the high bits of the first eight bytes.
struct ScaleAndMin {
  int scale, min;
};
ScaleAndMin scale_and_min(const std::byte* packed, int i) {
  if (i < 4) return {byte_at(packed, i) & 63, byte_at(packed, i + 4) & 63};
  return {(byte_at(packed, i + 4) & 15) | (byte_at(packed, i - 4) >> 6) << 4,
          (byte_at(packed, i + 4) >> 4) | (byte_at(packed, i) >> 6) << 4};
}

// Groups of 32 elements: group 2 n is in the low halves of bytes [32 n, 32 n + 32), group 2 n + 1
// in their high halves. `high`: null, or the fifth bits, bit g of byte i for element i of group g.
void unpack_k4(const std::byte* block, const std::byte* low, const std::byte* high, float* out) {
  const float scale = half_at(block), min_scale = half_at(block + 2);
  for (int group = 0; group < 8; ++group) {
    const ScaleAndMin of_group = scale_and_min(block + 4, group);
    const float d = scale * static_cast<float>(of_group.scale);
    const float least = min_scale * static_cast<float>(of_group.min);
    for (int i = 0; i < kBlock; ++i) {
      const int two = byte_at(low, group / 2 * kBlock + i);
      int value = group % 2 == 0 ? two & 15 : two >> 4;
      if (high != nullptr) value += (byte_at(high, i) >> group & 1) << 4;
      out[group * kBlock + i] = d * static_cast<float>(value) - least;
    }
  }
}

void unpack_q4_k(const std::byte* block, float* out) { unpack_k4(block, block + 16, nullptr, out); }

void unpack_q5_k(const std::byte* block, float* out) {
  unpack_k4(block, block + 48, block + 16, out);
}

// Two halves of 128 elements with four groups of 32 each. Of a half: 64 bytes with the low four
// bits (groups 0 and 1 low halves, 2 and 3 high halves), 32 bytes with the two high bits of each
// group, and a scale for 16 elements.
void unpack_q6_k(const std::byte* block, float* out) {
  const float scale = half_at(block + 208);
  for (int half = 0; half < 2; ++half) {
    const std::byte* low = block + half * 64;
    const std::byte* high = block + 128 + half * 32;
    const std::byte* scales = block + 192 + half * 8;
    for (int group = 0; group < 4; ++group) {
      for (int i = 0; i < kBlock; ++i) {
        const int two = byte_at(low, group % 2 * kBlock + i);
        const int value = (group < 2 ? two & 15 : two >> 4) | (byte_at(high, i) >> (2 * group) & 3)
                                                                  << 4;
        const float d = scale * static_cast<float>(value_at<int8_t>(scales + group * 2 + i / 16));
        out[half * 128 + group * kBlock + i] = d * static_cast<float>(value - 32);
      }
    }
  }
}

using UnpackBlock = void (*)(const std::byte* block, float* out);

UnpackBlock unpack_of(TensorType type) {
  switch (type) {
    case TensorType::kF32:
      return [](const std::byte* data, float* out) { *out = value_at<float>(data); };
    case TensorType::kF16: return [](const std::byte* data, float* out) { *out = half_at(data); };
    case TensorType::kBF16:
      return [](const std::byte* data, float* out) { *out = bfloat_at(data); };
    case TensorType::kQ4_0: return unpack_q4_0;
    case TensorType::kQ4_1: return unpack_q4_1;
    case TensorType::kQ5_0: return unpack_q5_0;
    case TensorType::kQ5_1: return unpack_q5_1;
    case TensorType::kQ8_0: return unpack_q8_0;
    case TensorType::kQ4_K: return unpack_q4_k;
    case TensorType::kQ5_K: return unpack_q5_k;
    case TensorType::kQ6_K: break;
  }
  return unpack_q6_k;
}

}  // namespace

void unpack(const Tensor& tensor, int64_t begin, int64_t count, float* out) {
  const TypeInfo& info = *type_info(tensor.type);
  const UnpackBlock unpack_block = unpack_of(tensor.type);
  const std::byte* block = tensor.data + begin / info.block_elements * info.block_bytes;
  for (int64_t i = 0; i < count; i += info.block_elements, block += info.block_bytes)
    unpack_block(block, out + i);
}

}  // namespace kvc::gguf
