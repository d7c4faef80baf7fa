#include "src/base/dtype.h"

#include <cstdio>

namespace kvc {

using kernels::DType;

bool dtype_from_dlpack(DLDataType type, DType* out) {
  if (type.lanes != 1) return false;
  if (type.code == kDLFloat && type.bits == 32) return *out = DType::kF32, true;
  if (type.code == kDLFloat && type.bits == 16) return *out = DType::kF16, true;
  if (type.code == kDLBfloat && type.bits == 16) return *out = DType::kBF16, true;
  return false;
}

DLDataType dtype_to_dlpack(DType dtype) {
  switch (dtype) {
    case DType::kF32: return {kDLFloat, 32, 1};
    case DType::kF16: return {kDLFloat, 16, 1};
    case DType::kBF16: return {kDLBfloat, 16, 1};
    case DType::kInt8: return {kDLInt, 8, 1};
    case DType::kE4M3Low:
    case DType::kE4M3: return {kDLFloat8_e4m3fn, 8, 1};
    case DType::kE5M2: return {kDLFloat8_e5m2, 8, 1};
  }
  return {kDLFloat, 32, 1};
}

const char* dtype_name(DType dtype) {
  switch (dtype) {
    case DType::kF32: return "float32";
    case DType::kF16: return "float16";
    case DType::kBF16: return "bfloat16";
    case DType::kInt8: return "int8";
    case DType::kE4M3Low:
    case DType::kE4M3: return "float8_e4m3fn";
    case DType::kE5M2: return "float8_e5m2";
  }
  return "?";
}

DTypeText describe(DLDataType type) {
  const char* code = "type";
  switch (type.code) {
    case kDLInt: code = "int"; break;
    case kDLUInt: code = "uint"; break;
    case kDLFloat: code = "float"; break;
    case kDLBfloat: code = "bfloat"; break;
    case kDLComplex: code = "complex"; break;
    case kDLBool: code = "bool"; break;
    // Their names say how wide they are.
    case kDLFloat8_e4m3fn: code = "float8_e4m3fn"; break;
    case kDLFloat8_e5m2: code = "float8_e5m2"; break;
    case kDLFloat4_e2m1fn: code = "float4_e2m1fn"; break;
    default: break;
  }
  DTypeText result;
  const bool is_usual_width =
      (type.code == kDLFloat4_e2m1fn && type.bits == 4) ||
      ((type.code == kDLFloat8_e4m3fn || type.code == kDLFloat8_e5m2) && type.bits == 8);
  if (is_usual_width && type.lanes == 1) {
    std::snprintf(result.text, sizeof result.text, "%s", code);
  } else if (type.lanes == 1) {
    std::snprintf(result.text, sizeof result.text, "%s%d", code, type.bits);
  } else {
    std::snprintf(result.text, sizeof result.text, "%s%dx%d", code, type.bits, type.lanes);
  }
  return result;
}

bool is_quantised_type(DLDataType type) {
  return same_type(type, dtype_to_dlpack(quantised_dtype(type)));
}

kernels::DType quantised_dtype(DLDataType type) {
  if (type.code == kDLFloat8_e4m3fn) return kernels::DType::kE4M3;
  return type.code == kDLFloat8_e5m2 ? kernels::DType::kE5M2 : kernels::DType::kInt8;
}

}  // namespace kvc
