// Tensor maps: cuTensorMapEncodeTiled with its documented limits, and what TMA reads by them.
#include <algorithm>
#include <cstring>

#include "driver.h"
#include "hopper_state.h"

namespace cudasim {
namespace {

constexpr uint64_t kMark = 0x74656e736f726d70ull;

uint32_t bytes_of(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8: return 1;
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16: return 2;
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32: return 4;
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64: return 8;
  }
  return 0;
}

uint32_t bytes_of(CUtensorMapSwizzle swizzle) {
  switch (swizzle) {
    case CU_TENSOR_MAP_SWIZZLE_NONE: return 0;
    case CU_TENSOR_MAP_SWIZZLE_32B: return 32;
    case CU_TENSOR_MAP_SWIZZLE_64B: return 64;
    case CU_TENSOR_MAP_SWIZZLE_128B: return 128;
  }
  return 0;
}

// 128 bytes: mark, address, rank | element bytes | swizzle, five dims of 32 bits (minus one), four
// strides, five box sides of 16 bits.
struct Packed {
  uint64_t mark;
  uint64_t address;
  uint8_t rank, element_bytes, swizzle, reserved;
  uint32_t last[5];
  uint64_t strides[4];
  uint16_t box[5];
};
static_assert(sizeof(Packed) <= 128);

}  // namespace

CUresult encode_tensor_map(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank,
                           void* address, const cuuint64_t* dims, const cuuint64_t* strides,
                           const cuuint32_t* box, const cuuint32_t* element_strides,
                           CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                           CUtensorMapL2promotion, CUtensorMapFloatOOBfill) {
  const uint32_t element_bytes = bytes_of(type);
  const auto misaligned = [](const void* p, uintptr_t to) {
    return reinterpret_cast<uintptr_t>(p) % to != 0;
  };
  if (map == nullptr || misaligned(map, 64) || element_bytes == 0 || rank == 0 || rank > 5 ||
      address == nullptr || misaligned(address, 16) || interleave != CU_TENSOR_MAP_INTERLEAVE_NONE)
    return CUDA_ERROR_INVALID_VALUE;
  Packed packed{};
  packed.mark = kMark;
  packed.address = reinterpret_cast<uint64_t>(address);
  packed.rank = static_cast<uint8_t>(rank);
  packed.element_bytes = static_cast<uint8_t>(element_bytes);
  packed.swizzle = static_cast<uint8_t>(bytes_of(swizzle));
  for (cuuint32_t i = 0; i < rank; ++i) {
    if (dims[i] == 0 || dims[i] > uint64_t{1} << 32 || box[i] == 0 || box[i] > 256 ||
        element_strides[i] != 1)
      return CUDA_ERROR_INVALID_VALUE;
    packed.last[i] = static_cast<uint32_t>(dims[i] - 1);
    packed.box[i] = static_cast<uint16_t>(box[i]);
    if (i + 1 < rank) {
      if (strides[i] % 16 != 0 || strides[i] >= uint64_t{1} << 40) return CUDA_ERROR_INVALID_VALUE;
      packed.strides[i] = strides[i];
    }
  }
  const uint32_t inner = box[0] * element_bytes;
  if (inner % 16 != 0 || (packed.swizzle != 0 && inner > packed.swizzle))
    return CUDA_ERROR_INVALID_VALUE;
  std::memset(static_cast<void*>(map), 0, sizeof *map);
  std::memcpy(static_cast<void*>(map), &packed, sizeof packed);
  return CUDA_SUCCESS;
}

TensorShape decode_tensor_map(const void* map) {
  require_aligned(map, 64, "tensor map");
  Packed packed;
  std::memcpy(&packed, map, sizeof packed);
  if (packed.mark != kMark) fail("a tensor map that cuTensorMapEncodeTiled has not made");
  TensorShape shape{};
  shape.address = reinterpret_cast<const std::byte*>(packed.address);
  shape.rank = packed.rank;
  shape.element_bytes = packed.element_bytes;
  shape.swizzle = packed.swizzle;
  for (int i = 0; i < 5; ++i) {
    const bool has = i < shape.rank;
    shape.dims[i] = has ? uint64_t{packed.last[i]} + 1 : 1;
    shape.box[i] = has ? packed.box[i] : 1;
    shape.strides[i] = i == 0 ? shape.element_bytes : has ? packed.strides[i - 1] : 0;
  }
  return shape;
}

uint64_t TensorShape::box_bytes() const {
  uint64_t bytes = element_bytes;
  for (const uint32_t side : box) bytes *= side;
  return bytes;
}

size_t swizzled(size_t offset, uint32_t swizzle) {
  const size_t mask = swizzle == 128 ? 7 : swizzle == 64 ? 3 : swizzle == 32 ? 1 : 0;
  return offset ^ ((offset >> 7 & mask) << 4);
}

void copy_box(const TensorShape& shape, const std::array<int32_t, 5>& at, std::byte* shared,
              size_t to) {
  const size_t row_bytes = size_t{shape.box[0]} * shape.element_bytes;
  // What of a row lies inside.
  const int64_t first = std::max<int64_t>(0, -int64_t{at[0]});
  const int64_t last = std::min<int64_t>(shape.box[0], static_cast<int64_t>(shape.dims[0]) - at[0]);
  std::byte row[256 * 8];
  uint32_t index[5] = {};
  for (;;) {
    std::memset(row, 0, row_bytes);
    bool inside = first < last;
    const std::byte* from = shape.address;
    for (int i = 1; i < 5; ++i) {
      const int64_t c = int64_t{at[static_cast<size_t>(i)]} + index[i];
      inside &= c >= 0 && c < static_cast<int64_t>(shape.dims[i]);
      if (inside) from += c * static_cast<int64_t>(shape.strides[i]);
    }
    if (inside)
      std::memcpy(row + first * shape.element_bytes, from + (at[0] + first) * shape.element_bytes,
                  static_cast<size_t>(last - first) * shape.element_bytes);
    for (size_t b = 0; b < row_bytes; b += 16)
      std::memcpy(shared + swizzled(to + b, shape.swizzle), row + b, 16);
    to += row_bytes;
    int i = 1;
    while (i < 5 && ++index[i] == shape.box[i]) index[i++] = 0;
    if (i == 5) return;
  }
}

}  // namespace cudasim
