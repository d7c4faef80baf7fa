// Storage types of K and V as the command line writes them.
#pragma once

#include <array>
#include <cstdint>
#include <string>
#include <string_view>

#include "kvcache.h"
#include "tools/refusal.h"

namespace kvc {

struct KvDtype {
  const char* name;
  DLDataType type;
  kvc_quant quant;
  int32_t keep_tokens = 0;  // kvc_layer.keep_tokens.
};
inline constexpr std::array<KvDtype, 8> kKvDtypes = {
    {{"bf16", {kDLBfloat, 16, 1}, KVC_QUANT_NONE},
     {"fp16", {kDLFloat, 16, 1}, KVC_QUANT_NONE},
     {"fp32", {kDLFloat, 32, 1}, KVC_QUANT_NONE},
     {"fp8", {kDLFloat8_e4m3fn, 8, 1}, KVC_QUANT_PER_TENSOR},
     {"fp8_e5m2", {kDLFloat8_e5m2, 8, 1}, KVC_QUANT_PER_TENSOR},
     {"int8", {kDLInt, 8, 1}, KVC_QUANT_PER_TOKEN_HEAD},
     {"int4", {kDLInt, 4, 1}, KVC_QUANT_PER_TOKEN_HEAD},
     {"nvfp4", {kDLFloat4_e2m1fn, 4, 1}, KVC_QUANT_BLOCK16}}};

// Bytes of K or V of one head of a token.
constexpr int64_t row_bytes(const KvDtype& dtype, int64_t dim) {
  const int64_t scale = dtype.quant == KVC_QUANT_PER_TOKEN_HEAD ? 4 : 0;
  return (dim * dtype.type.bits + 7) / 8 + scale;
}

// Null: there is no such name.
inline const KvDtype* find_kv_dtype(std::string_view name) {
  for (const KvDtype& dtype : kKvDtypes) {
    if (name == dtype.name) return &dtype;
  }
  return nullptr;
}

// The type that --kv-dtype names, where a model runs on the CPU; quantised ones with a scale per
// token and head, for which no checkpoint has to bring scales. Throws Refusal: attention there does
// not read it, or tokens are kept unquantised in a type that is not quantised.
inline KvDtype cpu_kv_dtype(const std::string& name, int32_t keep_tokens = 0) {
  const KvDtype* found = find_kv_dtype(name);
  if (found == nullptr || found->type.bits < 8)
    throw Refusal("--kv-dtype " + name +
                  ": attention on the CPU reads bf16, fp16, fp32, int8, fp8 and fp8_e5m2");
  KvDtype dtype = *found;
  if (dtype.quant != KVC_QUANT_NONE) dtype.quant = KVC_QUANT_PER_TOKEN_HEAD;
  if (keep_tokens != 0 && dtype.quant == KVC_QUANT_NONE)
    throw Refusal("--keep-tokens " + std::to_string(keep_tokens) + ": --kv-dtype " + name +
                  " is not quantised, int8, fp8 and fp8_e5m2 are");
  dtype.keep_tokens = keep_tokens;
  return dtype;
}

}  // namespace kvc
