// Tensors of quantised elements, one byte each: any strides, 0xFF in every byte that holds none.
#pragma once

#include <algorithm>
#include <cstddef>
#include <vector>

#include "tests/model/naive_quant.h"

namespace kvc::test {

class CodeTensor {
 public:
  // `gap` elements lie behind each row of the last dimension, three times as many behind those of
  // the first.
  CodeTensor(Code code, std::vector<int64_t> shape, int64_t gap = 0)
      : code_(code), shape_(std::move(shape)), strides_(shape_.size()) {
    int64_t stride = 1;
    for (size_t d = shape_.size(); d-- > 0;) {
      strides_[d] = stride;
      stride *= shape_[d];
      if (d + 1 == shape_.size()) stride += gap;
      if (d == 1) stride += 3 * gap;
    }
    memory_.assign(static_cast<size_t>(stride + gap) + 1, std::byte{0xFF});
    tensor_ = {.data = memory_.data(),
               .device = {kDLCPU, 0},
               .ndim = static_cast<int32_t>(shape_.size()),
               .dtype = dl_type(NaiveStorage{.code = code}),
               .shape = shape_.data(),
               .strides = gap == 0 ? nullptr : strides_.data(),
               .byte_offset = static_cast<uint64_t>(gap)};
  }
  CodeTensor(const CodeTensor&) = delete;
  CodeTensor& operator=(const CodeTensor&) = delete;

  DLTensor* dl() { return &tensor_; }
  Code code() const { return code_; }
  const std::vector<int64_t>& shape() const { return shape_; }
  int64_t size(int dimension) const { return shape_[static_cast<size_t>(dimension)]; }
  std::byte* at(int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) {
    const int64_t index[] = {i, j, k, l};
    int64_t offset = static_cast<int64_t>(tensor_.byte_offset);
    for (size_t d = 0; d < shape_.size(); ++d) offset += index[d] * strides_[d];
    return memory_.data() + offset;
  }
  double get(int64_t i, int64_t j = 0, int64_t k = 0, int64_t l = 0) {
    return load_code(code_, at(i, j, k, l));
  }
  template <typename Visit>
  void for_each(Visit&& visit) {
    int64_t extent[] = {1, 1, 1, 1};
    std::copy(shape_.begin(), shape_.end(), extent);
    for (int64_t i = 0; i < extent[0]; ++i) {
      for (int64_t j = 0; j < extent[1]; ++j) {
        for (int64_t k = 0; k < extent[2]; ++k) {
          for (int64_t l = 0; l < extent[3]; ++l) visit(i, j, k, l);
        }
      }
    }
  }
  bool padding_untouched() {
    std::vector<bool> element(memory_.size(), false);
    for_each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
      element[static_cast<size_t>(at(i, j, k, l) - memory_.data())] = true;
    });
    for (size_t b = 0; b < memory_.size(); ++b) {
      if (!element[b] && memory_[b] != std::byte{0xFF}) return false;
    }
    return true;
  }
  bool is_untouched() const {
    return std::all_of(memory_.begin(), memory_.end(),
                       [](std::byte value) { return value == std::byte{0xFF}; });
  }
  bool same_bytes(const CodeTensor& other) const { return memory_ == other.memory_; }

 private:
  Code code_;
  std::vector<int64_t> shape_, strides_;
  std::vector<std::byte> memory_;
  DLTensor tensor_{};
};

}  // namespace kvc::test
