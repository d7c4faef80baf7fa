#include "src/plan/rows.h"

#include <algorithm>
#include <iterator>

namespace kvc {
namespace {

bool is_float8(DLDataType type) {
  return type.bits == 8 && (type.code == kDLFloat8_e4m3fn || type.code == kDLFloat8_e5m2);
}

bool is_int(DLDataType type, int bits) { return type.code == kDLInt && type.bits == bits; }

int64_t scale_bytes(kvc_quant quant, int32_t dim) {
  if (quant == KVC_QUANT_PER_TOKEN_HEAD) return sizeof(float);
  return quant == KVC_QUANT_BLOCK16 ? dim / kScaleBlock : 0;
}

}  // namespace

RowBytes row_bytes(const LayerSpec& layer) {
  RowBytes row;
  const int32_t v_dim = layer.v_in_k ? 0 : layer.v_dim;
  if (!layer.is_quantised()) {
    row.k_alignment = kernels::dtype_bytes(layer.k_dtype);
    row.v_alignment = kernels::dtype_bytes(layer.v_dtype);
    row.k = layer.k_dim * row.k_alignment;
    row.v = v_dim * row.v_alignment;
    return row;
  }
  row.k = int64_t{layer.k_dim} * layer.k_type.bits / 8;
  row.v = int64_t{v_dim} * layer.v_type.bits / 8;
  row.k_scale = scale_bytes(layer.quant, layer.k_dim);
  row.v_scale = v_dim == 0 ? 0 : scale_bytes(layer.quant, layer.v_dim);
  if (layer.quant == KVC_QUANT_PER_TOKEN_HEAD) row.scale_alignment = sizeof(float);
  return row;
}

bool stores_type(kvc_quant quant, DLDataType type) {
  if (type.lanes != 1) return false;
  switch (quant) {
    case KVC_QUANT_PER_TENSOR: return is_float8(type) || is_int(type, 8);
    case KVC_QUANT_PER_TOKEN_HEAD: return is_float8(type) || is_int(type, 8) || is_int(type, 4);
    case KVC_QUANT_BLOCK16: return type.code == kDLFloat4_e2m1fn && type.bits == 4;
    default: return false;
  }
}

const char* quant_name(kvc_quant quant) {
  static constexpr const char* kNames[] = {"NONE", "PER_TENSOR", "PER_TOKEN_HEAD", "BLOCK16"};
  return quant >= 0 && quant < static_cast<kvc_quant>(std::size(kNames)) ? kNames[quant] : "?";
}

const char* quant_types(kvc_quant quant) {
  switch (quant) {
    case KVC_QUANT_PER_TENSOR: return "float8_e4m3fn, float8_e5m2 or int8";
    case KVC_QUANT_PER_TOKEN_HEAD: return "float8_e4m3fn, float8_e5m2, int8 or int4";
    case KVC_QUANT_BLOCK16: return "float4_e2m1fn";
    default: return "float32, float16 or bfloat16";
  }
}

}  // namespace kvc
