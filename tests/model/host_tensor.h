// Tensors of a test: any element type, any strides, poison in every byte that holds no element.
// Poison is 0xFF: NaN in each of the float types and -1 in integers, so a kernel that reads padding
// shows it and one that writes padding is caught.
#pragma once

#include <dlpack/dlpack.h>

#include <bit>
#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "tests/model/random.h"
#include "tests/support/test_device.h"

namespace kvc::test {

enum class Elem { kF32, kF16, kBF16, kI32 };

inline int64_t bytes_of(Elem elem) { return elem == Elem::kF16 || elem == Elem::kBF16 ? 2 : 4; }

inline const char* name_of(Elem elem) {
  switch (elem) {
    case Elem::kF32: return "f32";
    case Elem::kF16: return "f16";
    case Elem::kBF16: return "bf16";
    default: return "i32";
  }
}

inline DLDataType dl_type(Elem elem) {
  switch (elem) {
    case Elem::kF32: return {kDLFloat, 32, 1};
    case Elem::kF16: return {kDLFloat, 16, 1};
    case Elem::kBF16: return {kDLBfloat, 16, 1};
    default: return {kDLInt, 32, 1};
  }
}

// Spacing of representable numbers around `value`.
inline double ulp_of(Elem elem, double value) {
  int exponent = 0;
  std::frexp(value, &exponent);
  if (elem == Elem::kBF16) return std::ldexp(1.0, std::max(exponent - 8, -133));
  if (elem == Elem::kF16) return std::ldexp(1.0, std::max(exponent - 11, -24));
  return std::ldexp(1.0, std::max(exponent - 24, -149));
}

// Round to nearest even. Written apart from the library's conversion on purpose: by arithmetic, not
// by bits.
inline double round_to(Elem elem, double value) {
  if (elem == Elem::kF32) return static_cast<double>(static_cast<float>(value));
  if (!std::isfinite(value) || value == 0) return value;
  const double ulp = ulp_of(elem, value);
  const double rounded = std::nearbyint(value / ulp) * ulp;  // exact: ulp is a power of two
  if (elem == Elem::kF16 && std::fabs(rounded) > 65504) return std::copysign(HUGE_VAL, value);
  return rounded;
}

inline double load_element(Elem elem, const std::byte* at) {
  if (elem == Elem::kF32) {
    float value;
    std::memcpy(&value, at, 4);
    return value;
  }
  if (elem == Elem::kI32) {
    int32_t value;
    std::memcpy(&value, at, 4);
    return value;
  }
  uint16_t bits;
  std::memcpy(&bits, at, 2);
  if (elem == Elem::kBF16) return std::bit_cast<float>(static_cast<uint32_t>(bits) << 16);
  const int exponent = bits >> 10 & 31;
  const int mantissa = bits & 1023;
  const double sign = bits & 0x8000 ? -1 : 1;
  if (exponent == 31) return mantissa != 0 ? NAN : sign * HUGE_VAL;
  return sign *
         (exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25));
}

// `value` must be representable in `elem` (see round_to), or NaN.
inline void store_element(Elem elem, std::byte* at, double value) {
  if (elem == Elem::kF32) {
    const auto narrow = static_cast<float>(value);
    std::memcpy(at, &narrow, 4);
    return;
  }
  if (elem == Elem::kI32) {
    const auto narrow = static_cast<int32_t>(value);
    std::memcpy(at, &narrow, 4);
    return;
  }
  uint16_t bits = 0;
  if (elem == Elem::kBF16) {
    bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(static_cast<float>(value)) >> 16);
  } else {
    const uint16_t sign = std::signbit(value) ? 0x8000 : 0;
    const double size = std::fabs(value);
    if (std::isnan(value)) {
      bits = 0x7E00;
    } else if (std::isinf(value)) {
      bits = sign | 0x7C00;
    } else if (size < 0x1.0p-14) {
      bits = sign | static_cast<uint16_t>(size * 0x1.0p24);
    } else {
      int exponent = 0;
      const double fraction = std::frexp(size, &exponent);  // [0.5, 1)
      bits = sign | static_cast<uint16_t>((exponent + 14) << 10 |
                                          (static_cast<int>(fraction * 2048) - 1024));
    }
  }
  std::memcpy(at, &bits, 2);
}

// How a tensor lies in memory: gaps in elements.
struct Placement {
  // Padding rows behind the shape's token rows (rank >= 1, first dimension)
  int64_t extra_rows = 0;
  int64_t row_gap = 0;       // between rows of the first dimension
  int64_t inner_gap = 0;     // between rows of the second dimension, rank >= 3
  int64_t byte_offset = 0;   // of DLTensor; a multiple of the element
  bool null_strides = true;  // only when there are no gaps
};

inline Placement random_placement(Random& random, Elem elem) {
  Placement placement;
  if (random.chance(0.4)) return placement;
  placement.extra_rows = random.chance(0.5) ? random.range(0, 3) : 0;
  if (random.chance(0.5)) placement.row_gap = random.range(1, 19);
  if (random.chance(0.3)) placement.inner_gap = random.range(1, 7);
  placement.byte_offset = random.chance(0.5) ? random.range(0, 9) * bytes_of(elem) : 0;
  placement.null_strides = random.chance(0.5);
  return placement;
}

// Owns its memory. `shape` is what is used; dimension 0 of the DLTensor has Placement::extra_rows
// more.
class HostTensor {
 public:
  HostTensor(Elem elem, std::vector<int64_t> shape, const Placement& placement = {})
      : elem_(elem), shape_(std::move(shape)), dl_shape_(shape_), strides_(shape_.size()) {
    const auto rank = static_cast<int>(shape_.size());
    int64_t stride = 1;
    for (int d = rank - 1; d >= 0; --d) {
      strides_[static_cast<size_t>(d)] = stride;
      stride *= shape_[static_cast<size_t>(d)];
      if (d == 2 && rank >= 3) stride += placement.inner_gap;
      if (d == 1) stride += placement.row_gap;
    }
    dl_shape_[0] += placement.extra_rows;
    const bool gaps =
        (rank >= 3 && placement.inner_gap != 0) || (rank >= 2 && placement.row_gap != 0);
    const int64_t elements = dl_shape_[0] * strides_[0];
    memory_.assign(static_cast<size_t>(placement.byte_offset + elements * bytes_of(elem)) + 1,
                   std::byte{0xFF});
    tensor_ = {.data = memory_.data(),
               .device = device(),
               .ndim = rank,
               .dtype = dl_type(elem),
               .shape = dl_shape_.data(),
               .strides = placement.null_strides && !gaps ? nullptr : strides_.data(),
               .byte_offset = static_cast<uint64_t>(placement.byte_offset)};
  }
  HostTensor(const HostTensor&) = delete;
  HostTensor& operator=(const HostTensor&) = delete;

  DLTensor* dl() { return &tensor_; }
  // For arguments that lie on the host whatever the device.
  DLTensor* on_host() {
    tensor_.device = {kDLCPU, 0};
    return &tensor_;
  }
  Elem elem() const { return elem_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size(int dimension) const { return shape_[static_cast<size_t>(dimension)]; }

  std::byte* at(int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) {
    finish();
    const int64_t index[] = {i, j, k, l};
    int64_t offset = 0;
    for (size_t d = 0; d < shape_.size(); ++d) offset += index[d] * strides_[d];
    return memory_.data() + tensor_.byte_offset + offset * bytes_of(elem_);
  }
  double get(int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) {
    return load_element(elem_, at(i, j, k, l));
  }
  // Stores the nearest representable number and returns it.
  double set(double value, int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) {
    const double rounded = round_to(elem_, value);
    store_element(elem_, at(i, j, k, l), rounded);
    return rounded;
  }

  // Visits every element of the shape (not the padding rows).
  template <typename Visit>
  void for_each(Visit&& visit) {
    int64_t extent[] = {1, 1, 1, 1};
    for (size_t d = 0; d < shape_.size(); ++d) extent[d] = shape_[d];
    for (int64_t i = 0; i < extent[0]; ++i) {
      for (int64_t j = 0; j < extent[1]; ++j) {
        for (int64_t k = 0; k < extent[2]; ++k) {
          for (int64_t l = 0; l < extent[3]; ++l) visit(i, j, k, l);
        }
      }
    }
  }
  void fill_random(Random& random, double scale = 1) {
    for_each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
      set(scale * random.symmetric(), i, j, k, l);
    });
  }
  // Poison everywhere, as after construction.
  void poison() { std::fill(memory_.begin(), memory_.end(), std::byte{0xFF}); }
  bool is_untouched() const {
    for (const std::byte value : memory_) {
      if (value != std::byte{0xFF}) return false;
    }
    return true;
  }
  // Padding rows, gaps and the bytes around still hold poison. Slow: for small tensors.
  bool padding_untouched() {
    std::vector<bool> element(memory_.size(), false);
    for_each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
      const auto begin = static_cast<size_t>(at(i, j, k, l) - memory_.data());
      for (size_t b = 0; b < static_cast<size_t>(bytes_of(elem_)); ++b) element[begin + b] = true;
    });
    for (size_t b = 0; b < memory_.size(); ++b) {
      if (!element[b] && memory_[b] != std::byte{0xFF}) return false;
    }
    return true;
  }
  bool same_bytes(const HostTensor& other) const { return memory_ == other.memory_; }

 private:
  Elem elem_;
  std::vector<int64_t> shape_;
  std::vector<int64_t> dl_shape_;
  std::vector<int64_t> strides_;
  std::vector<std::byte, TensorAllocator<std::byte>> memory_;
  DLTensor tensor_{};
};

}  // namespace kvc::test
