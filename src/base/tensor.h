// Checked views of DLTensors. Checks run in a fixed order: ndim, dtype, device, shape, strides, alignment.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/params.h"
#include "kvcache.h"

namespace kvc {

// What a caller's tensor must look like. `name` appears in messages ("k", "opt.sinks").
struct RowsExpectation {
  const char* name;
  int64_t min_tokens;
  int64_t heads;
  int64_t dim;
};

// [>= min_tokens, heads, dim] of an activation type, last dimension contiguous.
kernels::TokenRows view_rows(const DLTensor* tensor, const RowsExpectation& expected);

// One layer of [layers, >= min_tokens, heads, dim]; `layer` indexes dimension 0. heads and dim are minima: a layer smaller than
// its siblings uses the front part.
kernels::TokenRows view_layer_rows(const DLTensor* tensor, const RowsExpectation& expected,
                                   int64_t num_layers, int64_t layer);

// float32 [size], contiguous.
const float* view_f32_vector(const DLTensor* tensor, const char* name, int64_t size);

// float32 [>= rows, >= columns] with contiguous rows; the row stride in elements.
struct F32Matrix {
  float* data;
  int64_t row_stride;
};
F32Matrix view_f32_matrix(const DLTensor* tensor, const char* name, int64_t rows, int64_t columns);

// float32 [>= rows, >= columns] or [heads, >= rows, >= columns]; head_stride 0 for the former.
struct F32Bias {
  const float* data;
  int64_t head_stride;
  int64_t row_stride;
};
F32Bias view_bias(const DLTensor* tensor, const char* name, int64_t heads, int64_t rows, int64_t columns);

// int32 [>= size], contiguous.
int32_t* view_i32_vector(const DLTensor* tensor, const char* name, int64_t size);

// Stride of a dimension in elements; NULL strides mean compact row-major.
int64_t stride_of(const DLTensor& tensor, int dimension);
// First element: data plus byte_offset.
std::byte* data_of(const DLTensor& tensor);
int64_t element_bytes(const DLTensor& tensor);
bool is_host_memory(DLDevice device);

}  // namespace kvc
