// Families that run some of their layers several times for a token. Each pass keeps K and V of its
// own. Rotations are left to the model.
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/model_config/families.h"
#include "src/model_config/keys.h"
#include "src/plan/spec.h"

namespace kvc::hf {
namespace {

struct Loop {
  size_t begin = 0, end = 0;  // Layers that run `passes` times.
  int64_t passes = 1;
};

// Appends the entries of the passes after the first, pass by pass, as transformers numbers them.
// Layers with two caches have two entries, an attention and a state.
void repeat_layers(const Loop& loop, Model& model) {
  std::vector<size_t> first_entries;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    if (model.layers[i].layer.kind != KVC_LAYER_STATE) first_entries.push_back(i);
  }
  first_entries.push_back(model.layers.size());
  const size_t begin = first_entries[loop.begin], end = first_entries[loop.end];
  const auto total = static_cast<int64_t>(model.layers.size()) +
                     (loop.passes - 1) * static_cast<int64_t>(end - begin);
  if (total > kMaxLayers) {
    fail_with(KVC_E_OUT_OF_RANGE, total,
              "the configuration makes %lld layers, at most %d are possible", ll(total),
              kMaxLayers);
  }
  model.layers.reserve(static_cast<size_t>(total));
  for (int64_t pass = 1; pass < loop.passes; ++pass) {
    for (size_t i = begin; i < end; ++i) model.layers.push_back(Layer(model.layers[i]));
  }
}

// Files list attention and MLP as blocks of their own, and count both. A configuration object may
// list attention alone. Drops the MLPs; true: there were some.
bool drop_mlps(const Fields& config, KeyedLayers& layers) {
  const auto is_none = [&](size_t i) { return layers.types[i] == LayerType::kNone; };
  bool has_mlps = false;
  for (size_t i = 0; i < layers.types.size(); ++i) has_mlps |= is_none(i);
  if (!has_mlps) return false;
  KeyedLayers attention;
  for (size_t i = 0; i < layers.types.size(); ++i) {
    if (is_none(i) != (i % 2 == 1)) refuse_layer_type(config, "layer_types", i);
    if (is_none(i)) continue;
    attention.types.push_back(layers.types[i]);
    attention.shapes.push_back(layers.shapes[i]);
  }
  layers = std::move(attention);
  return true;
}

}  // namespace

// Layers before the loop, in it and behind it.
void read_dory(const Fields& config, Model& model) {
  KeyedLayers layers = read_keyed_layers(config, model, [](int64_t i) {
    return (i + 1) % 4 == 0 ? LayerType::kFull : LayerType::kSliding;
  });
  model.keys.clear();  // Not read by keys alone.
  model.max_seq_len = read_max_len(config);
  const int64_t blocks = drop_mlps(config, layers) ? 2 : 1;
  const auto count = static_cast<int64_t>(layers.types.size());
  constexpr const char* kInput = "n_input_layers";
  constexpr const char* kLooped = "n_recurrent_layers";
  constexpr const char* kOutput = "n_output_layers";
  const int64_t input = config.integer_or(kInput, 8, 0, kMaxLayers) / blocks;
  const int64_t output = config.integer_or(kOutput, 8, 0, kMaxLayers) / blocks;
  const int64_t rest = count - input - output;
  const int64_t looped =
      config.has(kLooped) ? config.integer(kLooped, 0, kMaxLayers) / blocks : rest;
  if (looped < 0 || looped != rest) {
    fail_with(KVC_E_INVALID_ARGUMENT, looped,
              "%s = %lld with %s = %lld and %s = %lld is not the number of layers, %lld",
              config.path(kLooped).c_str(), ll(looped), kInput, ll(input), kOutput, ll(output),
              ll(count));
  }
  for (size_t i = 0; i < layers.types.size(); ++i) {
    if (layers.types[i] != LayerType::kFull && layers.types[i] != LayerType::kSliding)
      refuse_layer_type(config, "layer_types", i);
    model.add(attention_of(config, model, layers, i));
  }
  constexpr const char* kPasses = "n_recurrent_loops";
  constexpr const char* kMode = "recurrent_kv_cache_mode";
  const int64_t passes = config.integer_or(kPasses, 2, 1, kMaxLayers);
  const std::string mode = config.text_or(kMode, "per_loop");
  if (mode == "last_loop") return;  // The last pass alone keeps K and V; others read them.
  if (mode != "per_loop") config.refuse(kMode, "'per_loop' and 'last_loop' are known");
  repeat_layers({static_cast<size_t>(input), static_cast<size_t>(input + looped), passes}, model);
}

// The keys of loop_config, where a file has it, are those of the published file.
void read_inkling_loop(const Fields& config, Model& model) {
  read_inkling(config, model);
  const auto published = config.object("loop_config");
  const int64_t count = read_num_layers(config);
  const auto read = [&](const char* name, const char* name_in_file, int64_t fallback, int64_t least,
                        int64_t most) {
    if (published && published->has(name_in_file))
      return published->integer(name_in_file, least, most);
    return config.integer_or(name, fallback, least, most);
  };
  const int64_t begin = read("loop_layer_index_start", "core_start", 6, 0, count);
  const int64_t end = read("loop_layer_index_end", "core_end", 18, begin, count);
  const int64_t passes = read("loop_num_passes", "num_passes", 3, 1, kMaxLayers);
  repeat_layers({static_cast<size_t>(begin), static_cast<size_t>(end), passes}, model);
}

}  // namespace kvc::hf
