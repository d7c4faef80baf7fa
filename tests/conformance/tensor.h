// A tensor for DLPack arguments, on the device of the test: new ones hold NaN (integers -1) in every element.
#pragma once

#include <cstdint>
#include <cstring>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tests/support/test_device.h"

namespace kvc::conformance {

inline constexpr DLDataType kF32{kDLFloat, 32, 1};
inline constexpr DLDataType kI32{kDLInt, 32, 1};
inline constexpr DLDataType kI64{kDLInt, 64, 1};

inline DLDataType dtype_of(const std::string& name) {
  if (name == "f32") return kF32;
  if (name == "f16") return {kDLFloat, 16, 1};
  if (name == "bf16") return {kDLBfloat, 16, 1};
  throw std::runtime_error("'" + name + "' is no element type");
}

class HostTensor {
 public:
  HostTensor() = default;
  HostTensor(std::vector<int64_t> shape, DLDataType dtype = kF32) : shape_(std::move(shape)), dtype_(dtype) {
    size_ = 1;
    for (const int64_t extent : shape_) size_ *= extent;
    bytes_.assign(static_cast<size_t>(size_) * dtype_.bits / 8, 0xFF);
  }

  DLTensor* view(DLDevice device = test::device()) {
    view_ = {bytes_.data(), device, static_cast<int32_t>(shape_.size()), dtype_, shape_.data(), nullptr, 0};
    return &view_;
  }
  // For arguments that lie on the host whatever the device.
  DLTensor* host_view() { return view({kDLCPU, 0}); }
  int64_t size() const { return size_; }
  const std::vector<int64_t>& shape() const { return shape_; }

  void set(int64_t index, double x) {
    if (dtype_.code == kDLInt && dtype_.bits == 32) return put<int32_t>(index, static_cast<int32_t>(x));
    if (dtype_.code == kDLInt) return put<int64_t>(index, static_cast<int64_t>(x));
    if (dtype_.bits == 32) return put<float>(index, static_cast<float>(x));
    // Only values that the type holds exactly come here, see values.h.
    const float narrow = static_cast<float>(x);
    uint32_t bits;
    std::memcpy(&bits, &narrow, sizeof bits);
    if (dtype_.code == kDLBfloat) return put<uint16_t>(index, static_cast<uint16_t>(bits >> 16));
    const uint32_t exponent = bits >> 23 & 0xFF;
    const uint32_t half = exponent == 0 ? 0 : (exponent - 112) << 10 | (bits >> 13 & 0x3FF);
    put<uint16_t>(index, static_cast<uint16_t>(half | bits >> 31 << 15));
  }
  // float32 and integers only: outputs are asked for in these.
  double get(int64_t index) const {
    test::finish();
    if (dtype_.code == kDLInt && dtype_.bits == 32) return take<int32_t>(index);
    if (dtype_.code == kDLInt) return static_cast<double>(take<int64_t>(index));
    return static_cast<double>(take<float>(index));
  }

 private:
  template <class T>
  void put(int64_t index, T x) {
    std::memcpy(bytes_.data() + static_cast<size_t>(index) * sizeof x, &x, sizeof x);
  }
  template <class T>
  T take(int64_t index) const {
    T x;
    std::memcpy(&x, bytes_.data() + static_cast<size_t>(index) * sizeof x, sizeof x);
    return x;
  }

  std::vector<int64_t> shape_;
  DLDataType dtype_ = kF32;
  int64_t size_ = 0;
  std::vector<uint8_t, test::TensorAllocator<uint8_t>> bytes_;
  DLTensor view_{};
};

}  // namespace kvc::conformance
