// Checked views of DLTensors. The checks run in a fixed order: ndim, dtype, device, shape, strides,
// alignment.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <span>
#include <string>
#include <vector>

#include "kernels/params.h"
#include "kvcache.h"

namespace kvc {

// The device of the tensors of a call unless said otherwise. Pinned host memory counts as the
// CPU's.
constexpr DLDevice kHost{kDLCPU, 0};

// The expectations of a call for a tensor. `name` appears in messages ("k", "opt.sink_logits").
struct RowsExpectation {
  const char* name;
  int64_t min_tokens;
  int64_t heads;
  int64_t dim;
  DLDevice device = kHost;
};

// A tensor [>= min_tokens, heads, dim] of an activation type, with a contiguous last dimension.
kernels::TokenRows view_rows(const DLTensor* tensor, const RowsExpectation& expected);

// A tensor [>= min_tokens, dim] or [>= min_tokens, 1, dim] of an activation type: rows without
// heads.
kernels::TokenRows view_latents(const DLTensor* tensor, const char* name, int64_t min_tokens,
                                int64_t dim, DLDevice device = kHost);

// One layer of [layers, >= min_tokens, dim].
kernels::TokenRows view_layer_latents(const DLTensor* tensor, const char* name, int64_t min_tokens,
                                      int64_t dim, int64_t num_layers, int64_t layer,
                                      DLDevice device = kHost);

// One layer of [layers, >= min_tokens, heads, dim]; `layer` indexes dimension 0. heads and dim are
// minima: a layer that is smaller than its siblings uses the front part.
kernels::TokenRows view_layer_rows(const DLTensor* tensor, const RowsExpectation& expected,
                                   int64_t num_layers, int64_t layer);

// A contiguous float32 tensor [size].
const float* view_f32_vector(const DLTensor* tensor, const char* name, int64_t size,
                             DLDevice device = kHost);

// A float32 tensor [>= rows, >= columns] with contiguous rows; the row stride is in elements.
struct F32Matrix {
  float* data;
  int64_t row_stride;
};
F32Matrix view_f32_matrix(const DLTensor* tensor, const char* name, int64_t rows, int64_t columns,
                          DLDevice device = kHost);

// A float32 tensor [>= rows, >= columns], with head_stride 0, or [heads, >= rows, >= columns].
struct F32Bias {
  const float* data;
  int64_t head_stride;
  int64_t row_stride;
};
F32Bias view_bias(const DLTensor* tensor, const char* name, int64_t heads, int64_t rows,
                  int64_t columns, DLDevice device = kHost);

// An int32 tensor [>= rows, >= columns] with contiguous rows; the row stride is in elements.
struct I32Matrix {
  int32_t* data;
  int64_t row_stride;
  int64_t num_rows;  // Rows of the tensor.
};
I32Matrix view_i32_matrix(const DLTensor* tensor, const char* name, int64_t rows, int64_t columns,
                          DLDevice device = kHost);

// A tensor [>= count, shape...] of an activation type. Each row is one compact state.
struct StateRows {
  std::byte* base;
  int64_t row_stride;  // Bytes.
  kernels::DType dtype;
};
StateRows view_state_rows(const DLTensor* tensor, const char* name, int64_t count,
                          const std::vector<int64_t>& shape, DLDevice device = kHost);
// A compact tensor of exactly [shape...].
StateRows view_state(const DLTensor* tensor, const char* name, const std::vector<int64_t>& shape,
                     DLDevice device = kHost);

// Copies a compact tensor of exactly this shape and type.
void copy_dense(const DLTensor* tensor, const std::string& name, const std::vector<int64_t>& shape,
                kernels::DType dtype, std::vector<std::byte>* out);

// A tensor [>= min_tokens, columns] of an activation type, as rows of one head.
kernels::TokenRows view_row_matrix(const DLTensor* tensor, const char* name, int64_t min_tokens,
                                   int64_t columns, DLDevice device = kHost);

// A float32 tensor [>= min_tokens, heads, dim] with a contiguous last dimension; strides in
// elements.
struct F32Rows {
  const float* data;
  int64_t token_stride;
  int64_t head_stride;
};
F32Rows view_f32_rows(const DLTensor* tensor, const RowsExpectation& expected);

// view_rows for rows of 8 bits, quantised. Throws UNSUPPORTED for types of 4 bits.
kernels::TokenRows view_quantised_rows(const DLTensor* tensor, const RowsExpectation& expected);

// Recurrent states [sequences, heads, k_dim, v_dim] of an activation type with a contiguous last
// dimension; strides in bytes.
struct StateView {
  std::byte* base;
  int64_t sequences, heads, k_dim, v_dim;
  int64_t sequence_stride, head_stride, row_stride;
  kernels::DType dtype;
};
StateView view_states(const DLTensor* tensor, const char* name, DLDevice device = kHost);

// A contiguous int32 tensor [>= size].
int32_t* view_i32_vector(const DLTensor* tensor, const char* name, int64_t size,
                         DLDevice device = kHost);

// A uint8 tensor [rows, columns] with contiguous rows; the row stride is in bytes.
struct ByteRows {
  std::byte* base;
  int64_t row_stride;
};
ByteRows view_byte_rows(const DLTensor* tensor, const char* name, int64_t rows, int64_t columns,
                        DLDevice device = kHost);

// All checks of a tensor of exactly this shape (-1: any extent). The caller reads addresses by
// data_of() and stride_of().
kernels::DType check_activations(const DLTensor* tensor, const char* name,
                                 std::initializer_list<int64_t> shape, DLDevice device = kHost);
// int8, float8_e4m3fn or float8_e5m2. Throws UNSUPPORTED for types of 4 bits.
kernels::DType check_quantised(const DLTensor* tensor, const char* name,
                               std::initializer_list<int64_t> shape, DLDevice device = kHost);
void check_floats(const DLTensor* tensor, const char* name, std::initializer_list<int64_t> shape,
                  DLDevice device = kHost);
void check_integers(const DLTensor* tensor, const char* name, int bits,
                    std::initializer_list<int64_t> shape, DLDevice device = kHost);

// Throws DEVICE_MISMATCH.
void check_device(const DLTensor& tensor, const char* name, DLDevice device);

// Stride of a dimension in elements; NULL strides mean compact row-major.
int64_t stride_of(const DLTensor& tensor, int dimension);
// Address of the first element: data plus byte_offset.
std::byte* data_of(const DLTensor& tensor);
int64_t element_bytes(const DLTensor& tensor);
bool is_host_memory(DLDevice device);

// Compares the shapes of callers' tensors with the expected ones; messages show both as a whole.

// One expected dimension. `symbol` is its name in kvcache.h, or null.
struct Extent {
  enum Rule { kEqual, kAtLeast, kAny };

  const char* symbol;
  int64_t value;
  Rule rule = kEqual;
};

constexpr Extent exactly(const char* symbol, int64_t value) {
  return {symbol, value, Extent::kEqual};
}
constexpr Extent at_least(const char* symbol, int64_t value) {
  return {symbol, value, Extent::kAtLeast};
}
constexpr Extent any_extent(const char* symbol) { return {symbol, 0, Extent::kAny}; }

// Checks the number of dimensions, before anything else of the tensor is read. Throws SHAPE,
// INVALID_ARGUMENT.
void check_rank(const DLTensor& tensor, const char* name, std::span<const Extent> expected);
// Checks the dimensions in their order, once the rank is checked. Throws SHAPE.
void check_extents(const DLTensor& tensor, const char* name, std::span<const Extent> expected);

// Text for messages, such as "[1, 3, 512]".
struct ShapeText {
  char text[128];
};
ShapeText shape_text(const DLTensor& tensor);

}  // namespace kvc
