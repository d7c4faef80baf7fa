// Random tensors for the tests of the recurrent kernels: the same bytes on the host, for
// kernels/reference, and on the device.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "kernels/params.h"
#include "kernels/reference/elements.h"
#include "tests/cuda/device_memory.h"
#include "tests/cuda/random_numbers.h"

namespace kvc::cuda::testing {

// [tokens][heads][dim] with room between heads and tokens; what lies between, and what is not
// filled, is NaN.
class RecurrentTensor {
 public:
  RecurrentTensor(Rng& rng, int64_t tokens, int64_t heads, int64_t dim, kernels::DType dtype)
      : tokens_(tokens), heads_(heads), dim_(dim) {
    const int64_t element = kernels::dtype_bytes(dtype);
    rows_.dtype = dtype;
    rows_.head_stride = (dim + (rng.chance(50) ? 0 : rng.upto(5))) * element;
    rows_.token_stride = heads * rows_.head_stride + (rng.chance(50) ? 0 : rng.upto(7)) * element;
    // At odd places too.
    offset_ = rng.chance(50) ? 0 : rng.upto(3) * element;
    host_.assign(static_cast<size_t>(offset_ + tokens * rows_.token_stride + 16), std::byte{0xff});
  }

  template <typename Value>
  void fill(Value&& value) {
    for (int64_t t = 0; t < tokens_; ++t)
      for (int64_t h = 0; h < heads_; ++h)
        for (int64_t i = 0; i < dim_; ++i)
          kernels::reference::write_element(row(host_rows(), t, h), rows_.dtype, i, value());
  }
  void send() { device_ = DeviceArray<std::byte>(host_); }

  kernels::TokenRows host_rows() { return with(host_.data()); }
  kernels::TokenRows device_rows() { return with(device_.data()); }
  std::vector<std::byte> from_device() const { return device_.read(); }
  // Element of the host's copy, or of one read back.
  double at(const std::vector<std::byte>& bytes, int64_t t, int64_t h, int64_t i) {
    return kernels::reference::read_element(row(with(const_cast<std::byte*>(bytes.data())), t, h),
                                            rows_.dtype, i);
  }
  const std::vector<std::byte>& host() const { return host_; }

 private:
  kernels::TokenRows with(std::byte* memory) const {
    kernels::TokenRows rows = rows_;
    rows.base = memory + offset_;
    return rows;
  }
  static std::byte* row(const kernels::TokenRows& rows, int64_t t, int64_t h) {
    return rows.base + t * rows.token_stride + h * rows.head_stride;
  }

  int64_t tokens_, heads_, dim_;
  int64_t offset_;
  kernels::TokenRows rows_{};
  std::vector<std::byte> host_;
  DeviceArray<std::byte> device_;
};

// Half a unit in the last place, relative.
inline double rounding_of(kernels::DType dtype) {
  return dtype == kernels::DType::kF32 ? 0x1p-24 : dtype == kernels::DType::kF16 ? 0x1p-11 : 0x1p-8;
}

}  // namespace kvc::cuda::testing
