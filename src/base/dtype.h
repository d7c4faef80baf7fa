// Translates DLPack element types and the kernels' element types.
#pragma once

#include <cstddef>

#include "kernels/params.h"
#include "kvcache.h"

namespace kvc {

// Returns false when the library neither stores nor reads this type.
bool dtype_from_dlpack(DLDataType type, kernels::DType* out);
DLDataType dtype_to_dlpack(kernels::DType dtype);
// int8, float8_e4m3fn and float8_e5m2, which the kernels read as rows with scales.
bool is_quantised_type(DLDataType type);
inline bool same_type(DLDataType a, DLDataType b) {
  return a.code == b.code && a.bits == b.bits && a.lanes == b.lanes;
}
const char* dtype_name(kernels::DType dtype);

// Text for messages, such as "float16" or "int8x4".
struct DTypeText {
  char text[32];
};
DTypeText describe(DLDataType type);

// For float8_e4m3fn, float8_e5m2 and int8.
kernels::DType quantised_dtype(DLDataType type);

}  // namespace kvc
