#include "src/model_config/model_config.h"

#include <string>

#include "src/base/error.h"
#include "src/model_config/families.h"
#include "src/model_config/fields.h"
#include "src/model_config/kv_scheme.h"
#include "src/model_config/mtp.h"
#include "src/plan/spec.h"

namespace kvc {
namespace {

using hf::Fields;

// Where a model of text and images keeps the part that has a cache.
Fields text_part(const Fields& root) {
  for (const char* name : {"text_config", "llm_config", "language_config"}) {
    if (root.is(name, hf::Json::Type::kObject)) return *root.object(name);
  }
  if (root.is("thinker_config", hf::Json::Type::kObject))
    return text_part(*root.object("thinker_config"));
  return root;
}

}  // namespace

hf::Model read_hf_config(std::string_view json, const HfRequest& request) {
  const hf::Json tree = hf::parse_json(json);
  const Fields root(tree, "");
  const Fields text = text_part(root);
  hf::Model model;
  for (const Fields* fields : {&text, &root}) {
    const char* name = fields->first_of({"torch_dtype", "dtype"});
    if (!fields->has(name)) continue;
    model.dtype = hf::dtype_of(*fields, name);
    break;
  }
  const Fields& named = text.has("model_type") ? text : root;
  if (request.assume != nullptr) {
    hf::read_assumed(request.assume, named.text_or("model_type", ""), text, model);
  } else {
    if (text.is_nested() && root.is("model_type", hf::Json::Type::kString))
      hf::refuse_family(root.text("model_type"), root);
    hf::read_family(named.text("model_type"), text, model);
  }
  if (request.mtp_layers < 0 || request.mtp_layers > kMaxLayers) {
    fail_with(KVC_E_OUT_OF_RANGE, request.mtp_layers,
              "opt->mtp_layers = %lld out of range: 0 to %d", ll(request.mtp_layers), kMaxLayers);
  }
  if (request.mtp_layers != 0) {
    hf::add_mtp_layers(request.assume != nullptr ? request.assume : named.text("model_type"), text,
                       request.mtp_layers, model);
  }
  hf::apply_kv_scheme(text.has("quantization_config") ? text : root, model);
  if (model.layers.size() > static_cast<size_t>(kMaxLayers)) {
    fail_with(KVC_E_OUT_OF_RANGE, static_cast<int64_t>(model.layers.size()),
              "the configuration makes %zu layers, at most %d are possible", model.layers.size(),
              kMaxLayers);
  }
  return model;
}

}  // namespace kvc
