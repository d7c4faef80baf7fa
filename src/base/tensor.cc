#include "src/base/tensor.h"

#include <algorithm>
#include <cstdarg>
#include <cstdlib>
#include <span>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/print.h"

namespace kvc {
namespace {

using kernels::DType;

void check_present(const DLTensor* tensor, const char* name) {
  if (tensor == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s is NULL", name);
}

DType check_activation_type(const DLTensor& tensor, const char* name) {
  DType dtype;
  if (!dtype_from_dlpack(tensor.dtype, &dtype)) {
    fail(KVC_E_DTYPE, "%s is %s, expected float32, float16 or bfloat16", name,
         describe(tensor.dtype).text);
  }
  return dtype;
}

DType check_quantised_type(const DLTensor& tensor, const char* name) {
  const DLDataType type = tensor.dtype;
  const bool is_float4 = type.code == kDLFloat4_e2m1fn;
  if (is_float4 || ((type.code == kDLInt || type.code == kDLUInt) && type.bits == 4)) {
    fail_with(KVC_E_UNSUPPORTED, type.bits,
              "%s is %s: operators take quantised rows of 8 bits (int8, float8_e4m3fn, "
              "float8_e5m2), not of %d",
              name, describe(type).text, type.bits);
  }
  if (is_quantised_type(type)) return quantised_dtype(type);
  fail(KVC_E_DTYPE, "%s is %s, expected int8, float8_e4m3fn or float8_e5m2", name,
       describe(type).text);
}

void check_type(const DLTensor& tensor, const char* name, DLDataType expected) {
  if (tensor.dtype.code != expected.code || tensor.dtype.bits != expected.bits ||
      tensor.dtype.lanes != expected.lanes) {
    fail(KVC_E_DTYPE, "%s is %s, expected %s", name, describe(tensor.dtype).text,
         describe(expected).text);
  }
}

bool is_empty(const DLTensor& tensor) {
  for (int d = 0; d < tensor.ndim; ++d) {
    if (tensor.shape[d] == 0) return true;
  }
  return false;
}

// Last dimension contiguous, data present and aligned to its element.
void check_storage(const DLTensor& tensor, const char* name) {
  if (is_empty(tensor)) return;
  // Sizes and strides of hostile tensors must not wrap into plausible addresses.
  constexpr int64_t kMost = int64_t{1} << 56;
  int64_t size = 1, reach = 0;  // elements, and from the first to the farthest
  for (int d = 0; d < tensor.ndim; ++d) {
    const int64_t stride = tensor.strides != nullptr && tensor.shape[d] > 1 ? tensor.strides[d] : 0;
    int64_t farthest = 0;
    if (!multiply(size, tensor.shape[d], &size) || size > kMost || stride > kMost ||
        stride < -kMost || !multiply(std::abs(stride), tensor.shape[d] - 1, &farthest) ||
        farthest > kMost || (reach += farthest) > kMost) {
      fail_with(KVC_E_SHAPE, tensor.shape[d],
                "%s has shape[%d] = %lld and stride %lld, which cannot be addressed", name, d,
                ll(tensor.shape[d]), ll(stride));
    }
  }
  const int last = tensor.ndim - 1;
  if (tensor.shape[last] > 1 && stride_of(tensor, last) != 1) {
    fail_with(KVC_E_SHAPE, stride_of(tensor, last),
              "%s has stride %lld in its last dimension, expected 1", name,
              ll(stride_of(tensor, last)));
  }
  if (tensor.data == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s.data is NULL", name);
  const int64_t bytes = element_bytes(tensor);
  const auto address = reinterpret_cast<uintptr_t>(data_of(tensor));
  if (tensor.byte_offset > static_cast<uint64_t>(kMost)) {
    fail_with(KVC_E_SHAPE, static_cast<int64_t>(tensor.byte_offset),
              "%s has byte_offset = %llu, which cannot be addressed", name,
              static_cast<unsigned long long>(tensor.byte_offset));
  }
  if (address % static_cast<uintptr_t>(bytes) != 0) {
    fail_with(
        KVC_E_SHAPE, static_cast<int64_t>(address % static_cast<uintptr_t>(bytes)),
        "%s is misaligned: its address is %lld bytes past a multiple of its element's %lld bytes",
        name, ll(address % static_cast<uintptr_t>(bytes)), ll(bytes));
  }
}

kernels::TokenRows rows_at(const DLTensor& tensor, DType dtype, int token_dimension,
                           int64_t element_offset) {
  const int64_t bytes = element_bytes(tensor);
  return {.base = is_empty(tensor) ? nullptr : data_of(tensor) + element_offset * bytes,
          .token_stride = stride_of(tensor, token_dimension) * bytes,
          .head_stride = stride_of(tensor, token_dimension + 1) * bytes,
          .dtype = dtype};
}

// As DLPack calls it, without its prefix. By number: a package may bring a part of dlpack.h alone.
const char* device_type_name(int32_t type) {
  switch (type) {
    case kDLCPU: return "CPU";
    case kDLCUDA: return "CUDA";
    case kDLCUDAHost: return "CUDAHost";
    case 4: return "OpenCL";
    case 7: return "Vulkan";
    case 8: return "Metal";
    case 10: return "ROCM";
    case 11: return "ROCMHost";
    case 13: return "CUDAManaged";
    case 14: return "OneAPI";
    case 15: return "WebGPU";
    default: return "unknown";
  }
}

}  // namespace

void check_device(const DLTensor& tensor, const char* name, DLDevice device) {
  if (is_host_memory(device)) {
    if (is_host_memory(tensor.device)) return;
    fail_with(KVC_E_DEVICE_MISMATCH, tensor.device.device_type,
              "%s lives on device type %s (%d), the cache on the CPU (%d)", name,
              device_type_name(tensor.device.device_type),
              static_cast<int>(tensor.device.device_type), static_cast<int>(kDLCPU));
  }
  if (tensor.device.device_type != device.device_type ||
      tensor.device.device_id != device.device_id) {
    fail_with(KVC_E_DEVICE_MISMATCH, tensor.device.device_type,
              "%s lives on device type %s (%d), number %d, the cache on type %s (%d), number %d",
              name, device_type_name(tensor.device.device_type),
              static_cast<int>(tensor.device.device_type), tensor.device.device_id,
              device_type_name(device.device_type), static_cast<int>(device.device_type),
              device.device_id);
  }
}

int64_t stride_of(const DLTensor& tensor, int dimension) {
  // Never stepped over, and producers put anything there; sizes and strides of empty tensors are
  // not even bounded.
  if (tensor.shape[dimension] <= 1 || is_empty(tensor)) return 0;
  if (tensor.strides != nullptr) return tensor.strides[dimension];
  int64_t stride = 1;
  for (int d = tensor.ndim - 1; d > dimension; --d) stride *= tensor.shape[d];
  return stride;
}

std::byte* data_of(const DLTensor& tensor) {
  // As numbers: of an empty tensor neither is bounded.
  return reinterpret_cast<std::byte*>(reinterpret_cast<uintptr_t>(tensor.data) +
                                      tensor.byte_offset);
}

int64_t element_bytes(const DLTensor& tensor) {
  return (tensor.dtype.bits * tensor.dtype.lanes + 7) / 8;
}

bool is_host_memory(DLDevice device) {
  return device.device_type == kDLCPU || device.device_type == kDLCUDAHost;
}

namespace {

// The checks of a tensor from the outside, in the order in which their errors are reported.
template <typename CheckType>
auto check_tensor(const DLTensor* tensor, const char* name, std::span<const Extent> shape,
                  DLDevice device, CheckType check_type_of) {
  check_present(tensor, name);
  check_rank(*tensor, name, shape);
  const auto type = check_type_of(*tensor, name);
  check_device(*tensor, name, device);
  check_extents(*tensor, name, shape);
  check_storage(*tensor, name);
  return type;
}

DType check_activation(const DLTensor* tensor, const char* name, std::span<const Extent> shape,
                       DLDevice device) {
  return check_tensor(tensor, name, shape, device, check_activation_type);
}

void check_typed(const DLTensor* tensor, const char* name, std::span<const Extent> shape,
                 DLDataType type, DLDevice device) {
  check_tensor(tensor, name, shape, device, [&](const DLTensor& given, const char*) {
    check_type(given, name, type);
    return type;
  });
}

constexpr DLDataType kFloat32 = {kDLFloat, 32, 1};
constexpr DLDataType kInt32 = {kDLInt, 32, 1};

}  // namespace

kernels::TokenRows view_rows(const DLTensor* tensor, const RowsExpectation& expected) {
  const Extent shape[] = {at_least("T", expected.min_tokens), exactly("heads", expected.heads),
                          exactly("dim", expected.dim)};
  const DType dtype = check_activation(tensor, expected.name, shape, expected.device);
  return rows_at(*tensor, dtype, 0, 0);
}

kernels::TokenRows view_quantised_rows(const DLTensor* tensor, const RowsExpectation& expected) {
  const Extent shape[] = {at_least("T", expected.min_tokens), exactly("heads", expected.heads),
                          exactly("dim", expected.dim)};
  const DType dtype =
      check_tensor(tensor, expected.name, shape, expected.device, check_quantised_type);
  return rows_at(*tensor, dtype, 0, 0);
}

kernels::TokenRows view_latents(const DLTensor* tensor, const char* name, int64_t min_tokens,
                                int64_t dim, DLDevice device) {
  check_present(tensor, name);
  return tensor->ndim == 3 ? view_rows(tensor, {name, min_tokens, 1, dim, device})
                           : view_row_matrix(tensor, name, min_tokens, dim, device);
}

kernels::TokenRows view_layer_latents(const DLTensor* tensor, const char* name, int64_t min_tokens,
                                      int64_t dim, int64_t num_layers, int64_t layer,
                                      DLDevice device) {
  const Extent shape[] = {exactly("layers", num_layers), at_least("tokens", min_tokens),
                          at_least("dim", dim)};
  const DType dtype = check_activation(tensor, name, shape, device);
  const int64_t bytes = element_bytes(*tensor);
  return {.base = is_empty(*tensor) ? nullptr
                                    : data_of(*tensor) + layer * stride_of(*tensor, 0) * bytes,
          .token_stride = stride_of(*tensor, 1) * bytes,
          .head_stride = 0,
          .dtype = dtype};
}

kernels::TokenRows view_layer_rows(const DLTensor* tensor, const RowsExpectation& expected,
                                   int64_t num_layers, int64_t layer) {
  const Extent shape[] = {exactly("layers", num_layers), at_least("tokens", expected.min_tokens),
                          at_least("heads", expected.heads), at_least("dim", expected.dim)};
  const DType dtype = check_activation(tensor, expected.name, shape, expected.device);
  return rows_at(*tensor, dtype, 1, layer * stride_of(*tensor, 0));
}

const float* view_f32_vector(const DLTensor* tensor, const char* name, int64_t size,
                             DLDevice device) {
  const Extent shape[] = {exactly("n", size)};
  check_typed(tensor, name, shape, kFloat32, device);
  return reinterpret_cast<const float*>(data_of(*tensor));
}

F32Matrix view_f32_matrix(const DLTensor* tensor, const char* name, int64_t rows, int64_t columns,
                          DLDevice device) {
  const Extent shape[] = {at_least("rows", rows), exactly("columns", columns)};
  check_typed(tensor, name, shape, kFloat32, device);
  return {reinterpret_cast<float*>(data_of(*tensor)), stride_of(*tensor, 0)};
}

F32Bias view_bias(const DLTensor* tensor, const char* name, int64_t heads, int64_t rows,
                  int64_t columns, DLDevice device) {
  check_present(tensor, name);
  const bool per_head = tensor->ndim == 3;
  if (!per_head && tensor->ndim != 2) {
    fail_with(KVC_E_SHAPE, tensor->ndim, "%s has %d dimensions, expected 2 or 3", name,
              tensor->ndim);
  }
  const Extent all[] = {exactly("heads", heads), at_least("rows", rows),
                        at_least("columns", columns)};
  const auto shape = std::span(all).subspan(per_head ? 0 : 1);
  check_rank(*tensor, name, shape);
  check_type(*tensor, name, {kDLFloat, 32, 1});
  check_device(*tensor, name, device);
  check_extents(*tensor, name, shape);
  const int row_dimension = per_head ? 1 : 0;
  check_storage(*tensor, name);
  return {reinterpret_cast<const float*>(data_of(*tensor)), per_head ? stride_of(*tensor, 0) : 0,
          stride_of(*tensor, row_dimension)};
}

kernels::TokenRows view_row_matrix(const DLTensor* tensor, const char* name, int64_t min_tokens,
                                   int64_t columns, DLDevice device) {
  const Extent shape[] = {at_least("T", min_tokens), exactly("dim", columns)};
  const DType dtype = check_activation(tensor, name, shape, device);
  return {.base = is_empty(*tensor) ? nullptr : data_of(*tensor),
          .token_stride = stride_of(*tensor, 0) * element_bytes(*tensor),
          .head_stride = 0,
          .dtype = dtype};
}

F32Rows view_f32_rows(const DLTensor* tensor, const RowsExpectation& expected) {
  const Extent shape[] = {at_least("T", expected.min_tokens), exactly("heads", expected.heads),
                          exactly("dim", expected.dim)};
  check_typed(tensor, expected.name, shape, kFloat32, expected.device);
  return {reinterpret_cast<const float*>(data_of(*tensor)), stride_of(*tensor, 0),
          stride_of(*tensor, 1)};
}

StateView view_states(const DLTensor* tensor, const char* name, DLDevice device) {
  const Extent shape[] = {any_extent("B"), any_extent("heads"), any_extent("k_dim"),
                          any_extent("v_dim")};
  const DType dtype = check_activation(tensor, name, shape, device);
  const int64_t bytes = element_bytes(*tensor);
  return {.base = is_empty(*tensor) ? nullptr : data_of(*tensor),
          .sequences = tensor->shape[0],
          .heads = tensor->shape[1],
          .k_dim = tensor->shape[2],
          .v_dim = tensor->shape[3],
          .sequence_stride = stride_of(*tensor, 0) * bytes,
          .head_stride = stride_of(*tensor, 1) * bytes,
          .row_stride = stride_of(*tensor, 2) * bytes,
          .dtype = dtype};
}

int32_t* view_i32_vector(const DLTensor* tensor, const char* name, int64_t size, DLDevice device) {
  const Extent shape[] = {at_least("n", size)};
  check_typed(tensor, name, shape, kInt32, device);
  return reinterpret_cast<int32_t*>(data_of(*tensor));
}

I32Matrix view_i32_matrix(const DLTensor* tensor, const char* name, int64_t rows, int64_t columns,
                          DLDevice device) {
  const Extent shape[] = {at_least("rows", rows), at_least("columns", columns)};
  check_typed(tensor, name, shape, kInt32, device);
  return {reinterpret_cast<int32_t*>(data_of(*tensor)), stride_of(*tensor, 0), tensor->shape[0]};
}

namespace {

// -1: any extent.
std::vector<Extent> extents_of(std::initializer_list<int64_t> shape) {
  std::vector<Extent> extents;
  for (const int64_t extent : shape)
    extents.push_back(extent < 0 ? any_extent(nullptr) : exactly(nullptr, extent));
  return extents;
}

// Dimensions from `first` on must be `shape`, and compact.
StateRows view_shaped(const DLTensor* tensor, const char* name, int first, int64_t count,
                      const std::vector<int64_t>& shape, DLDevice device) {
  std::vector<Extent> extents;
  if (first == 1) extents.push_back(at_least("B", count));
  for (const int64_t extent : shape) extents.push_back(exactly(nullptr, extent));
  const DType dtype = check_activation(tensor, name, extents, device);
  int64_t expected = 1;
  for (int d = tensor->ndim - 1; d >= first; --d) {
    if (tensor->shape[d] > 1 && stride_of(*tensor, d) != expected) {
      fail_with(KVC_E_SHAPE, stride_of(*tensor, d),
                "%s has stride %lld in dimension %d, expected %lld: a state is compact", name,
                ll(stride_of(*tensor, d)), d, ll(expected));
    }
    expected *= tensor->shape[d];
  }
  return {is_empty(*tensor) ? nullptr : data_of(*tensor),
          first == 1 ? stride_of(*tensor, 0) * element_bytes(*tensor) : 0, dtype};
}

}  // namespace

DType check_activations(const DLTensor* tensor, const char* name,
                        std::initializer_list<int64_t> shape, DLDevice device) {
  const std::vector<Extent> extents = extents_of(shape);
  const DType dtype = check_activation(tensor, name, extents, device);
  return dtype;
}

DType check_quantised(const DLTensor* tensor, const char* name,
                      std::initializer_list<int64_t> shape, DLDevice device) {
  const std::vector<Extent> extents = extents_of(shape);
  return check_tensor(tensor, name, extents, device, check_quantised_type);
}

void check_floats(const DLTensor* tensor, const char* name, std::initializer_list<int64_t> shape,
                  DLDevice device) {
  const std::vector<Extent> extents = extents_of(shape);
  check_typed(tensor, name, extents, kFloat32, device);
}

void check_integers(const DLTensor* tensor, const char* name, int bits,
                    std::initializer_list<int64_t> shape, DLDevice device) {
  const std::vector<Extent> extents = extents_of(shape);
  check_typed(tensor, name, extents, {kDLInt, static_cast<uint8_t>(bits), 1}, device);
}

ByteRows view_byte_rows(const DLTensor* tensor, const char* name, int64_t rows, int64_t columns,
                        DLDevice device) {
  const std::vector<Extent> extents = extents_of({rows, columns});
  check_typed(tensor, name, extents, {kDLUInt, 8, 1}, device);
  return {data_of(*tensor), stride_of(*tensor, 0)};
}

StateRows view_state_rows(const DLTensor* tensor, const char* name, int64_t count,
                          const std::vector<int64_t>& shape, DLDevice device) {
  return view_shaped(tensor, name, 1, count, shape, device);
}

StateRows view_state(const DLTensor* tensor, const char* name, const std::vector<int64_t>& shape,
                     DLDevice device) {
  return view_shaped(tensor, name, 0, 1, shape, device);
}

void copy_dense(const DLTensor* tensor, const std::string& name, const std::vector<int64_t>& shape,
                DType dtype, std::vector<std::byte>* out) {
  const StateRows rows = view_state(tensor, name.c_str(), shape);
  if (rows.dtype != dtype) {
    fail(KVC_E_DTYPE, "%s is %s, expected %s", name.c_str(), dtype_name(rows.dtype),
         dtype_name(dtype));
  }
  int64_t elements = 1;
  for (const int64_t extent : shape) elements *= extent;
  out->assign(rows.base, rows.base + elements * kernels::dtype_bytes(dtype));
}

namespace {

// Appends to a text of fixed size; what does not fit is left out.
class Writer {
 public:
  explicit Writer(ShapeText* out) : out_(out) { out_->text[0] = '\0'; }

  [[gnu::format(printf, 2, 3)]] void add(const char* format, ...) {
    va_list arguments;
    va_start(arguments, format);
    const int wanted = vprint(out_->text + used_, sizeof(out_->text) - used_, format, arguments);
    va_end(arguments);
    if (wanted > 0) used_ = std::min(used_ + static_cast<size_t>(wanted), sizeof(out_->text) - 1);
  }

 private:
  ShapeText* out_;
  size_t used_ = 0;
};

// "[T = 3 or more, heads = 8, dim = 64]"
ShapeText expected_text(std::span<const Extent> expected) {
  ShapeText text;
  Writer writer(&text);
  for (size_t i = 0; i < expected.size(); ++i) {
    const Extent& extent = expected[i];
    writer.add("%s%s", i == 0 ? "[" : ", ", extent.symbol != nullptr ? extent.symbol : "");
    if (extent.rule == Extent::kAny) {
      if (extent.symbol == nullptr) writer.add("any");
      continue;
    }
    writer.add("%s%lld%s", extent.symbol != nullptr ? " = " : "", ll(extent.value),
               extent.rule == Extent::kAtLeast ? " or more" : "");
  }
  writer.add(expected.empty() ? "[]" : "]");
  return text;
}

}  // namespace

ShapeText shape_text(const DLTensor& tensor) {
  constexpr int kMostShown = 6;
  ShapeText text;
  Writer writer(&text);
  writer.add("[");
  for (int d = 0; tensor.shape != nullptr && d < std::min<int>(tensor.ndim, kMostShown); ++d)
    writer.add("%s%lld", d == 0 ? "" : ", ", ll(tensor.shape[d]));
  writer.add(tensor.ndim > kMostShown ? ", ...]" : "]");
  return text;
}

void check_rank(const DLTensor& tensor, const char* name, std::span<const Extent> expected) {
  if (tensor.ndim != static_cast<int>(expected.size())) {
    fail_with(KVC_E_SHAPE, tensor.ndim,
              "%s has %d dimensions, expected %zu: its shape is %s, expected %s", name, tensor.ndim,
              expected.size(), shape_text(tensor).text, expected_text(expected).text);
  }
  if (tensor.shape == nullptr) fail(KVC_E_INVALID_ARGUMENT, "%s.shape is NULL", name);
}

void check_extents(const DLTensor& tensor, const char* name, std::span<const Extent> expected) {
  for (size_t d = 0; d < expected.size(); ++d) {
    const int64_t extent = tensor.shape[d];
    const int64_t least = expected[d].rule == Extent::kAny ? 0 : expected[d].value;
    if (expected[d].rule == Extent::kEqual ? extent == least : extent >= least) continue;
    fail_with(KVC_E_SHAPE, extent, "%s has shape %s, expected %s", name, shape_text(tensor).text,
              expected_text(expected).text);
  }
}

}  // namespace kvc
