// Tensor maps of paged rows, encoded on the host. The driver's function is looked up at run time,
// because the library does not link the driver.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include <algorithm>
#include <cstring>
#include <mutex>

#include "kernels/cuda/ptx/hopper.cuh"
#include "kernels/params.h"

namespace kvc::cuda {

// Rows of `dim` 16-bit elements, addressed by the coordinates (element, slot in page, head, page).
// A TMA box has 64 elements x box_rows slots.
struct PagedMapKey {
  const std::byte* base;
  int64_t token_stride, head_stride, page_stride;
  int32_t dim, page_slots, num_heads, box_rows;
  kernels::DType dtype;
  int32_t reserved;

  bool operator==(const PagedMapKey&) const = default;
};

// The number of pages is not known here, nor the number of slots of a ragged page, so the map
// covers two terabytes. TMA reads nothing outside of the tensor, for example at page -1, and
// delivers zeros.
inline int64_t max_extent(int64_t stride, int64_t max_value) {
  return std::clamp<int64_t>((int64_t{1} << 41) / std::max<int64_t>(stride, 16), 1, max_value);
}

inline PagedMapKey paged_map_key(const kernels::PagedRows& rows, int32_t dim, int32_t page_slots,
                                 int32_t num_heads, int32_t box_rows) {
  return {rows.base,  rows.token_stride, rows.head_stride, rows.page_stride, dim,
          page_slots, num_heads,         box_rows,         rows.dtype,       0};
}

// Whether TMA can address the rows. `why` gets the reason.
inline bool paged_map_fits(const kernels::PagedRows& rows, int32_t num_heads, const char** why) {
  const auto fits = [](int64_t stride, bool used) {
    return !used || (stride > 0 && stride % 16 == 0 && stride < int64_t{1} << 40);
  };
  if (reinterpret_cast<uintptr_t>(rows.base) % 16 != 0) {
    *why = "TMA: rows are not 16-byte aligned";
    return false;
  }
  if (!fits(rows.token_stride, true) || !fits(rows.head_stride, num_heads > 1) ||
      !fits(rows.page_stride, true)) {
    *why = "TMA: a stride is not a multiple of 16 bytes below 2^40";
    return false;
  }
  return true;
}

inline cudaError_t encode_paged_map(const PagedMapKey& key, TensorMap* out) {
  using Encode =
      CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                   const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t looked = cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function,
                                                              12000, cudaEnableDefault, &found);
  if (looked != cudaSuccess) return looked;
  if (found != cudaDriverEntryPointSuccess || function == nullptr) return cudaErrorNotSupported;
  static_assert(sizeof(CUtensorMap) == sizeof(TensorMap));
  CUtensorMap map{};
  const auto positive = [](int64_t stride) {
    return static_cast<cuuint64_t>(stride > 0 ? stride : 16);
  };
  const cuuint64_t dims[4] = {static_cast<cuuint64_t>(key.dim),
                              static_cast<cuuint64_t>(max_extent(key.token_stride, key.page_slots)),
                              static_cast<cuuint64_t>(key.num_heads),
                              static_cast<cuuint64_t>(max_extent(key.page_stride, 0x7fffffff))};
  // The stride of a single head has no meaning, but it must be one that the driver accepts.
  const cuuint64_t strides[3] = {
      positive(key.token_stride),
      key.num_heads > 1 ? positive(key.head_stride) : positive(key.token_stride),
      positive(key.page_stride)};
  const cuuint32_t box[4] = {64, static_cast<cuuint32_t>(key.box_rows), 1, 1};
  const cuuint32_t element_strides[4] = {1, 1, 1, 1};
  const CUtensorMapDataType type = key.dtype == kernels::DType::kBF16
                                       ? CU_TENSOR_MAP_DATA_TYPE_BFLOAT16
                                       : CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  const CUresult encoded = reinterpret_cast<Encode>(function)(
      &map, type, 4, const_cast<std::byte*>(key.base), dims, strides, box, element_strides,
      CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
      CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  // CUresult and cudaError_t share these numbers.
  if (encoded != CUDA_SUCCESS) return static_cast<cudaError_t>(encoded);
  std::memcpy(out, &map, sizeof(map));
  return cudaSuccess;
}

// Encoding takes about a microsecond, and a forward asks for the same few maps in each layer. So
// the latest maps are kept, and the oldest is overwritten. A map holds addresses only and belongs
// to no device.
inline cudaError_t paged_map(const PagedMapKey& key, TensorMap* out) {
  constexpr uint32_t kBuckets = 512, kKept = 4 * kBuckets;
  struct Table {
    std::mutex mutex;
    PagedMapKey keys[kKept];
    TensorMap maps[kKept];
    uint32_t next_of_bucket[kBuckets];
  };
  static Table* const table =
      // The table lives as long as the process, so that no order of destruction matters.
      new Table();
  uint64_t hash = reinterpret_cast<uintptr_t>(key.base) >> 4;
  hash = (hash ^ static_cast<uint64_t>(key.page_stride) << 20 ^
          static_cast<uint64_t>(key.box_rows) << 50) *
         0x9e3779b97f4a7c15u;
  // The high bits are used: only they depend on box_rows, and ragged keys have boxes of every power
  // of two.
  const auto bucket = static_cast<uint32_t>(hash >> 55);
  static_assert(kBuckets == 1u << (64 - 55));
  const std::lock_guard<std::mutex> lock(table->mutex);
  for (uint32_t i = 4 * bucket; i < 4 * bucket + 4; ++i) {
    if (!(table->keys[i] == key)) continue;
    *out = table->maps[i];
    return cudaSuccess;
  }
  const cudaError_t encoded = encode_paged_map(key, out);
  if (encoded != cudaSuccess) return encoded;
  const uint32_t place = 4 * bucket + table->next_of_bucket[bucket]++ % 4;
  table->keys[place] = key;
  table->maps[place] = *out;
  return cudaSuccess;
}

// Encodes `count` maps: that of `key`, then those of boxes with half as many rows, a quarter, and
// so on.
inline cudaError_t paged_maps(PagedMapKey key, int32_t count, TensorMap* out) {
  for (int32_t i = 0; i < count; ++i, key.box_rows /= 2) {
    const cudaError_t mapped = paged_map(key, out + i);
    if (mapped != cudaSuccess) return mapped;
  }
  return cudaSuccess;
}

// Whether the driver makes a map of these rows; it has the last word. This is asked before a kernel
// is chosen, and the map is kept for its launch.
inline bool driver_maps(const kernels::PagedRows& rows, int32_t dim,
                        const kernels::AttnParams& params, int32_t box_rows) {
  TensorMap map;
  if (paged_map(paged_map_key(rows, dim, params.page_size, params.num_kv_heads, box_rows), &map) ==
      cudaSuccess)
    return true;
  (void)cudaGetLastError();  // The runtime may not have found the function.
  return false;
}

}  // namespace kvc::cuda
