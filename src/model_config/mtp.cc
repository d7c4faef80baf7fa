#include "src/model_config/mtp.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "src/base/error.h"
#include "src/model_config/families.h"
#include "src/plan/spec.h"

namespace kvc::hf {
namespace {

enum class Keeps {
  kAsFull,     // As the model's last layer without a window.
  kAsSliding,  // As the model's last layer with one.
  kPattern,    // A letter per block: * attends, E keeps nothing.
};

// Families with a reader of their own. All others say by a key how many layers there are, and these
// keep what full layers keep. Checked against vLLM's *_mtp.py of each family.
struct MtpFamily {
  const char* model_type;
  Keeps keeps;
  int64_t without_key;  // Layers of a model whose file has no key; 0: none.
};

constexpr MtpFamily kMtpFamilies[] = {
    {"deepseek_v3", Keeps::kAsFull, 0},      {"kimi_k2", Keeps::kAsFull, 0},
    {"longcat_flash", Keeps::kAsFull, 1},    {"mimo_v2", Keeps::kAsSliding, 3},
    {"mimo_v2_flash", Keeps::kAsSliding, 3}, {"nemotron_h", Keeps::kPattern, 0},
    {"qwen3_next", Keeps::kAsFull, 1},       {"qwen3_5", Keeps::kAsFull, 1},
    {"qwen3_5_text", Keeps::kAsFull, 1},     {"qwen3_5_moe", Keeps::kAsFull, 1},
    {"qwen3_5_moe_text", Keeps::kAsFull, 1},
};

constexpr const char* kMtpTypes = "mtp_layer_types";
constexpr const char* kMtpWindows = "mtp_sliding_windows";
constexpr const char* kMtpLetters = "mtp_hybrid_override_pattern";

const char* count_name(const Fields& config) {
  return config.first_of(
      {"num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules"});
}

[[noreturn]] void refuse_mtp(const std::string& model_type, int64_t count, const char* why) {
  fail_with(KVC_E_UNSUPPORTED, count, "opt->mtp_layers = %lld is not supported: model_type '%s' %s",
            ll(count), shown(model_type).c_str(), why);
}

MtpFamily family_of(const std::string& model_type, int64_t count) {
  const auto found =
      std::find_if(std::begin(kMtpFamilies), std::end(kMtpFamilies),
                   [&](const MtpFamily& row) { return model_type == row.model_type; });
  if (found != std::end(kMtpFamilies)) return *found;
  if (model_type == "gemma4" || model_type == "gemma4_text")
    refuse_mtp(model_type, count,
               "drafts by a model of its own, which reads these layers' K and V");
  if (has_own_reader(model_type)) refuse_mtp(model_type, count, "has no MTP layers that are known");
  return {"", Keeps::kAsFull, 0};
}

// The last entry that keeps keys, with or without a window; null: there is none.
const Layer* last_attending(const Model& model, bool slides) {
  const auto found =
      std::find_if(model.layers.rbegin(), model.layers.rend(), [&](const Layer& one) {
        const bool attends =
            one.layer.kind == KVC_LAYER_ATTENTION || one.layer.kind == KVC_LAYER_MLA;
        return attends && (one.layer.window != 0) == slides && one.layer.chunk == 0;
      });
  return found == model.layers.rend() ? nullptr : &*found;
}

Layer template_of(const std::string& model_type, const Model& model, bool slides, int64_t count) {
  const Layer* like = last_attending(model, slides);
  if (like == nullptr) like = last_attending(model, !slides);
  if (like == nullptr) refuse_mtp(model_type, count, "has no layer that keeps K and V");
  return *like;
}

// mtp_layer_types has an entry per MTP layer, and mtp_sliding_windows may give each its window.
std::vector<Layer> listed_layers(const std::string& model_type, const Fields& config, int64_t count,
                                 const Model& model) {
  const auto total = static_cast<int64_t>(config.texts(kMtpTypes).size());
  const std::vector<LayerType> types = read_layer_types(config, kMtpTypes, total, {});
  if (total < count) {
    fail_with(KVC_E_INVALID_ARGUMENT, total,
              "%s has %lld entries, expected one per MTP layer: %lld",
              config.path(kMtpTypes).c_str(), ll(total), ll(count));
  }
  std::vector<int64_t> windows;
  if (config.has(kMtpWindows)) windows = config.integers(kMtpWindows, 0, kMaxSequenceLength);
  std::vector<Layer> layers;
  for (size_t i = 0; i < static_cast<size_t>(count); ++i) {
    const bool slides = types[i] == LayerType::kSliding;
    if (!slides && types[i] != LayerType::kFull) refuse_layer_type(config, kMtpTypes, i);
    Layer layer = template_of(model_type, model, slides, count);
    if (!slides) layer.layer.window = 0;
    if (slides && i < windows.size() && windows[i] != 0) layer.layer.window = windows[i];
    if (slides && layer.layer.window == 0) layer.layer.window = read_window(config);
    layers.push_back(layer);
  }
  return layers;
}

void add_pattern(const std::string& model_type, const Fields& config, int64_t count, Model& model) {
  const std::string letters = config.text(kMtpLetters);
  const Layer attention = template_of(model_type, model, false, count);
  for (int64_t i = 0; i < count; ++i) {
    for (const char letter : letters) {
      if (letter != '*' && letter != 'E') {
        fail_with(KVC_E_UNSUPPORTED, i, "%s has the letter '%s': * and E are known",
                  config.path(kMtpLetters).c_str(), shown(std::string(1, letter)).c_str());
      }
      if (letter == '*')
        model.layers.push_back(attention);
      else
        model.add_none();
      if (model.layers.size() > static_cast<size_t>(kMaxLayers)) return;  // Refused by the caller.
    }
  }
}

}  // namespace

void add_mtp_layers(const std::string& model_type, const Fields& config, int64_t count,
                    Model& model) {
  const MtpFamily family = family_of(model_type, count);
  const char* name = count_name(config);
  const int64_t known = config.integer_or(name, family.without_key, 0, kMaxLayers);
  if (known == 0) {
    const std::string why = config.has(name)
                                ? "has no MTP layers: " + config.path(name) + " is 0"
                                : "has no MTP layers: " + config.path(name) + " is missing";
    refuse_mtp(model_type, count, why.c_str());
  }
  if (count > known) {
    fail_with(KVC_E_OUT_OF_RANGE, known, "opt->mtp_layers = %lld out of range: %s = %lld%s",
              ll(count), config.path(name).c_str(), ll(known),
              config.has(name) ? "" : " in this family, where no key says so");
  }
  if (family.keeps == Keeps::kPattern) return add_pattern(model_type, config, count, model);
  std::vector<Layer> layers;
  if (config.has(kMtpTypes)) {
    layers = listed_layers(model_type, config, count, model);
  } else {
    const bool slides = family.keeps == Keeps::kAsSliding;
    layers.assign(static_cast<size_t>(count), template_of(model_type, model, slides, count));
  }
  model.layers.insert(model.layers.end(), layers.begin(), layers.end());
}

}  // namespace kvc::hf
