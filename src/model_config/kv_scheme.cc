#include "src/model_config/kv_scheme.h"

#include <optional>
#include <string>

#include "src/base/error.h"

namespace kvc::hf {
namespace {

struct Storage {
  DLDataType dtype{};
  kvc_quant quant = KVC_QUANT_NONE;
};

constexpr DLDataType kFp8{kDLFloat8_e4m3fn, 8, 1};

Storage of_scheme(const Fields& scheme) {
  const int64_t bits = scheme.integer("num_bits", 1, 64);
  const std::string type = scheme.text_or("type", "float");
  const std::string strategy = scheme.text_or("strategy", "tensor");
  if (strategy != "tensor") {
    fail(KVC_E_UNSUPPORTED, "%s = '%s' is not supported: a scale per tensor is",
         scheme.path("strategy").c_str(), shown(strategy).c_str());
  }
  if (scheme.flag_or("dynamic", false))
    scheme.refuse("dynamic", "scales of a checkpoint are constants");
  if (!scheme.flag_or("symmetric", true)) scheme.refuse("symmetric", "K and V have no zero points");
  if (bits == 8 && type == "float") return {kFp8, KVC_QUANT_PER_TENSOR};
  if (bits == 8 && type == "int") return {{kDLInt, 8, 1}, KVC_QUANT_PER_TENSOR};
  fail_with(KVC_E_UNSUPPORTED, bits,
            "%s = %lld of type '%s' is not supported: 8 of float or int is",
            scheme.path("num_bits").c_str(), ll(bits), shown(type).c_str());
}

std::optional<Storage> of_algorithm(const Fields& quantization, const char* name) {
  const std::string algorithm = quantization.text(name);
  if (algorithm == "FP8") return Storage{kFp8, KVC_QUANT_PER_TENSOR};
  if (algorithm == "NVFP4") return Storage{{kDLFloat4_e2m1fn, 4, 1}, KVC_QUANT_BLOCK16};
  if (algorithm.empty() || algorithm == "NONE") return std::nullopt;
  fail(KVC_E_UNSUPPORTED, "%s = '%s' is not supported: FP8 and NVFP4 are",
       quantization.path(name).c_str(), shown(algorithm).c_str());
}

std::optional<Storage> asked(const Fields& quantization) {
  if (const auto scheme = quantization.object("kv_cache_scheme")) return of_scheme(*scheme);
  constexpr const char* kAlgorithm = "kv_cache_quant_algo";
  if (quantization.has(kAlgorithm)) return of_algorithm(quantization, kAlgorithm);
  return std::nullopt;
}

}  // namespace

void apply_kv_scheme(const Fields& config, Model& model) {
  constexpr const char* kName = "quantization_config";
  const auto quantization = config.object(kName);
  if (!quantization) return;
  const std::optional<Storage> storage = asked(*quantization);
  if (!storage) return;
  for (Layer& entry : model.layers) {
    kvc_layer& layer = entry.layer;
    // K and V of an encoder are written once, in the model's type.
    if (layer.kind != KVC_LAYER_ATTENTION && layer.kind != KVC_LAYER_MLA) continue;
    const bool in_blocks = storage->quant == KVC_QUANT_BLOCK16;
    if (in_blocks &&
        (layer.kind == KVC_LAYER_MLA || layer.k_dim % 16 != 0 || layer.v_dim % 16 != 0))
      quantization->refuse("kv_cache_quant_algo",
                           "NVFP4 stores heads of a multiple of 16 elements");
    layer.k_dtype = layer.v_dtype = storage->dtype;
    layer.quant = storage->quant;
  }
}

}  // namespace kvc::hf
