// Checked views of DLTensors. Checks run in a fixed order: ndim, dtype, device, shape, strides,
// alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

#include "kernels/params.h"
#include "kvcache.h"

namespace kvc {

// Where tensors of a call have to live unless said otherwise; pinned host memory counts as the
// CPU's.
constexpr DLDevice kHost{kDLCPU, 0};

// What a caller's tensor must look like. `name` appears in messages ("k", "opt.sink_logits").
struct RowsExpectation {
  const char* name;
  int64_t min_tokens;
  int64_t heads;
  int64_t dim;
  DLDevice device = kHost;
};

// [>= min_tokens, heads, dim] of an activation type, last dimension contiguous.
kernels::TokenRows view_rows(const DLTensor* tensor, const RowsExpectation& expected);

// [>= min_tokens, dim] or [>= min_tokens, 1, dim] of an activation type: rows that have no heads.
kernels::TokenRows view_latents(const DLTensor* tensor, const char* name, int64_t min_tokens,
                                int64_t dim, DLDevice device = kHost);

// One layer of [layers, >= min_tokens, dim].
kernels::TokenRows view_layer_latents(const DLTensor* tensor, const char* name, int64_t min_tokens,
                                      int64_t dim, int64_t num_layers, int64_t layer,
                                      DLDevice device = kHost);

// One layer of [layers, >= min_tokens, heads, dim]; `layer` indexes dimension 0. heads and dim are
// minima: a layer smaller than its siblings uses the front part.
kernels::TokenRows view_layer_rows(const DLTensor* tensor, const RowsExpectation& expected,
                                   int64_t num_layers, int64_t layer);

// float32 [size], contiguous.
const float* view_f32_vector(const DLTensor* tensor, const char* name, int64_t size,
                             DLDevice device = kHost);

// float32 [>= rows, >= columns] with contiguous rows; the row stride in elements.
struct F32Matrix {
  float* data;
  int64_t row_stride;
};
F32Matrix view_f32_matrix(const DLTensor* tensor, const char* name, int64_t rows, int64_t columns,
                          DLDevice device = kHost);

// float32 [>= rows, >= columns] or [heads, >= rows, >= columns]; head_stride 0 for the former.
struct F32Bias {
  const float* data;
  int64_t head_stride;
  int64_t row_stride;
};
F32Bias view_bias(const DLTensor* tensor, const char* name, int64_t heads, int64_t rows,
                  int64_t columns, DLDevice device = kHost);

// int32 [>= rows, >= columns] with contiguous rows; the row stride in elements.
struct I32Matrix {
  int32_t* data;
  int64_t row_stride;
  int64_t num_rows;  // as the tensor has them
};
I32Matrix view_i32_matrix(const DLTensor* tensor, const char* name, int64_t rows, int64_t columns,
                          DLDevice device = kHost);

// Activation type, [>= count, shape...]: rows of one state each, compact inside a row.
struct StateRows {
  std::byte* base;
  int64_t row_stride;  // bytes
  kernels::DType dtype;
};
StateRows view_state_rows(const DLTensor* tensor, const char* name, int64_t count,
                          const std::vector<int64_t>& shape, DLDevice device = kHost);
// [shape...] exactly, compact.
StateRows view_state(const DLTensor* tensor, const char* name, const std::vector<int64_t>& shape,
                     DLDevice device = kHost);

// Copies a compact tensor of exactly this shape and type.
void copy_dense(const DLTensor* tensor, const std::string& name, const std::vector<int64_t>& shape,
                kernels::DType dtype, std::vector<std::byte>* out);

// [>= min_tokens, columns] of an activation type as rows of one head.
kernels::TokenRows view_row_matrix(const DLTensor* tensor, const char* name, int64_t min_tokens,
                                   int64_t columns, DLDevice device = kHost);

// float32 [>= min_tokens, heads, dim], last dimension contiguous; strides in elements.
struct F32Rows {
  const float* data;
  int64_t token_stride;
  int64_t head_stride;
};
F32Rows view_f32_rows(const DLTensor* tensor, const RowsExpectation& expected);

// Recurrent states [sequences, heads, k_dim, v_dim] of an activation type, last dimension
// contiguous; strides in bytes.
struct StateView {
  std::byte* base;
  int64_t sequences, heads, k_dim, v_dim;
  int64_t sequence_stride, head_stride, row_stride;
  kernels::DType dtype;
};
StateView view_states(const DLTensor* tensor, const char* name, DLDevice device = kHost);

// int32 [>= size], contiguous.
int32_t* view_i32_vector(const DLTensor* tensor, const char* name, int64_t size,
                         DLDevice device = kHost);

// All checks for a tensor of exactly this shape, -1: any extent. The caller reads addresses by
// data_of and stride_of.
kernels::DType check_activations(const DLTensor* tensor, const char* name,
                                 std::initializer_list<int64_t> shape, DLDevice device = kHost);
void check_integers(const DLTensor* tensor, const char* name, int bits,
                    std::initializer_list<int64_t> shape, DLDevice device = kHost);

// Throws DEVICE_MISMATCH.
void check_device(const DLTensor& tensor, const char* name, DLDevice device);

// Stride of a dimension in elements; NULL strides mean compact row-major.
int64_t stride_of(const DLTensor& tensor, int dimension);
// First element: data plus byte_offset.
std::byte* data_of(const DLTensor& tensor);
int64_t element_bytes(const DLTensor& tensor);
bool is_host_memory(DLDevice device);

}  // namespace kvc
