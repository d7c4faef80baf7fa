// kvcache.h, section "Plan": kvc_config_from_hf.
//
// Behind the layers, in elements of the same array, lie the rotations, the states, their shapes and
// the frequency factors, in this order, each aligned to 8 bytes.
#include <algorithm>
#include <cstddef>
#include <cstring>
#include <string_view>
#include <vector>

#include "src/base/log.h"
#include "src/capi/guard.h"
#include "src/model_config/fields.h"
#include "src/model_config/model_config.h"
#include "src/plan/spec.h"

namespace {

using kvc::fail;
using kvc::fail_with;
namespace hf = kvc::hf;

constexpr size_t kAlignment = 8;

size_t aligned(size_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

// Offsets of everything behind the layers, from its first byte.
struct Attachments {
  explicit Attachments(const hf::Model& model) {
    for (size_t i = 0; i < model.ropes.size(); ++i) ropes.push_back(take(sizeof(kvc_rope)));
    for (const std::vector<hf::State>& set : model.states)
      states.push_back(take(set.size() * sizeof(kvc_state_spec)));
    for (const std::vector<hf::State>& set : model.states) {
      for (const hf::State& state : set)
        shapes.push_back(take(state.shape.size() * sizeof(int64_t)));
    }
    for (const hf::Rope& rope : model.ropes) {
      factors.push_back(take(rope.factors.size() * sizeof(float)));
      long_factors.push_back(take(rope.long_factors.size() * sizeof(float)));
    }
  }

  std::vector<size_t> ropes, states, shapes, factors, long_factors;
  size_t bytes = 0;

 private:
  size_t take(size_t size) {
    const size_t offset = bytes;
    bytes += aligned(size);
    return offset;
  }
};

void check_stride(size_t stride) {
  kvc::check_struct_size(stride, sizeof(kvc_layer), "layers");
  if (stride % kAlignment != 0) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(stride),
              "layers->struct_size = %zu is not a multiple of %zu: elements would be misaligned",
              stride, kAlignment);
  }
}

// Writes elements of `stride` bytes for the layers, and what they point at.
size_t elements(const hf::Model& model, const Attachments& attachments, size_t stride) {
  return model.layers.size() + (attachments.bytes + stride - 1) / stride;
}

// A caller's struct of an older version may have no room for what these layers need.
void check_room(const hf::Model& model, size_t stride) {
  if (stride >= sizeof(kvc_layer)) return;
  for (size_t i = 0; i < model.layers.size(); ++i) {
    kvc_layer whole = model.layers[i].layer;
    // The address does not matter, only whether the field lies within the stride.
    if (model.layers[i].states >= 0)
      whole.states = reinterpret_cast<const kvc_state_spec*>(kAlignment);
    if (model.layers[i].rope >= 0) whole.rope = reinterpret_cast<const kvc_rope*>(kAlignment);
    const auto* bytes = reinterpret_cast<const unsigned char*>(&whole);
    if (std::any_of(bytes + stride, bytes + sizeof whole,
                    [](unsigned char byte) { return byte != 0; })) {
      fail_with(KVC_E_VERSION, static_cast<int64_t>(stride),
                "layers->struct_size = %zu has no room for what layer %zu needs: this library "
                "knows %zu bytes",
                stride, i, sizeof whole);
    }
  }
}

void write_array(const void* values, size_t bytes, std::byte* out) {
  if (bytes != 0) std::memcpy(out, values, bytes);
}

void write_attachments(const hf::Model& model, const Attachments& at, std::byte* base) {
  size_t shape = 0;
  for (size_t i = 0; i < model.states.size(); ++i) {
    for (size_t k = 0; k < model.states[i].size(); ++k, ++shape) {
      const hf::State& state = model.states[i][k];
      kvc_state_spec spec{};
      spec.struct_size = sizeof spec;
      spec.ndim = static_cast<int32_t>(state.shape.size());
      spec.dtype = state.dtype;
      spec.shape = reinterpret_cast<const int64_t*>(base + at.shapes[shape]);
      write_array(state.shape.data(), state.shape.size() * sizeof(int64_t),
                  base + at.shapes[shape]);
      std::memcpy(base + at.states[i] + k * sizeof spec, &spec, sizeof spec);
    }
  }
  for (size_t i = 0; i < model.ropes.size(); ++i) {
    const hf::Rope& rope = model.ropes[i];
    kvc_rope whole = rope.rope;
    if (!rope.factors.empty())
      whole.freq_factors = reinterpret_cast<const float*>(base + at.factors[i]);
    if (!rope.long_factors.empty())
      whole.long_freq_factors = reinterpret_cast<const float*>(base + at.long_factors[i]);
    write_array(rope.factors.data(), rope.factors.size() * sizeof(float), base + at.factors[i]);
    write_array(rope.long_factors.data(), rope.long_factors.size() * sizeof(float),
                base + at.long_factors[i]);
    std::memcpy(base + at.ropes[i], &whole, sizeof whole);
  }
}

void write_layers(const hf::Model& model, const Attachments& at, size_t stride, std::byte* out) {
  std::byte* base = out + model.layers.size() * stride;
  std::memset(out, 0, elements(model, at, stride) * stride);
  for (size_t i = 0; i < model.layers.size(); ++i) {
    const hf::Layer& layer = model.layers[i];
    kvc_layer whole = layer.layer;
    whole.struct_size = stride;
    if (layer.rope >= 0)
      whole.rope = reinterpret_cast<const kvc_rope*>(base + at.ropes[layer.rope]);
    if (layer.states >= 0)
      whole.states = reinterpret_cast<const kvc_state_spec*>(base + at.states[layer.states]);
    std::memcpy(out + i * stride, &whole, std::min(stride, sizeof whole));
  }
  write_attachments(model, at, base);
}

// Only these fields of the caller's config are written.
void write_config(const hf::Model& model, const kvc_layer* layers, int32_t cp_size,
                  kvc_config* config) {
  if (cp_size != 0) config->cp_size = cp_size;
  config->num_layers = static_cast<int32_t>(model.layers.size());
  config->layers = layers;
  config->max_seq_len = model.max_seq_len;
  constexpr size_t kCrossEnd = offsetof(kvc_config, max_cross_len) + sizeof(config->max_cross_len);
  if (model.max_cross_len != 0 && config->struct_size >= kCrossEnd)
    config->max_cross_len = model.max_cross_len;
}

void check_config(const kvc_config* config) {
  kvc::check_output(config, "config");
  constexpr size_t kNeeded = offsetof(kvc_config, max_seq_len) + sizeof(config->max_seq_len);
  if (config->struct_size < kNeeded) {
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(config->struct_size),
              "config->struct_size = %zu ends before max_seq_len, which needs %zu",
              config->struct_size, kNeeded);
  }
}

kvc::HfRequest request_of(const kvc_hf_options* opt) {
  if (opt == nullptr) return {};
  const auto read = kvc::read_struct(opt, "opt");
  if (read.flags != 0) {
    fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(read.flags),
              "opt->flags = %llu is not supported: 0 is",
              static_cast<unsigned long long>(read.flags));
  }
  if (read.cp_size < 0 || read.cp_size > kvc::kMaxContextRanks) {
    fail_with(KVC_E_OUT_OF_RANGE, read.cp_size, "opt->cp_size = %d out of range: 0 to %d",
              read.cp_size, kvc::kMaxContextRanks);
  }
  return {.assume = read.assume, .mtp_layers = read.mtp_layers, .cp_size = read.cp_size};
}

}  // namespace

kvc_status kvc_config_from_hf_json(const char* json, kvc_config* config, kvc_layer* layers,
                                   size_t* n, kvc_error* err) noexcept {
  return kvc_config_from_hf(json, nullptr, config, layers, n, err);
}

kvc_status kvc_config_from_hf(const char* json, const kvc_hf_options* opt, kvc_config* config,
                              kvc_layer* layers, size_t* n, kvc_error* err) noexcept {
  return kvc::guard(err, [&] {
    kvc::require(json, "json");
    kvc::require(n, "n");
    check_config(config);
    const kvc::HfRequest request = request_of(opt);
    constexpr size_t kRanksEnd = offsetof(kvc_config, cp_size) + sizeof(config->cp_size);
    if (request.cp_size != 0 && config->struct_size < kRanksEnd) {
      fail_with(KVC_E_VERSION, static_cast<int64_t>(config->struct_size),
                "config->struct_size = %zu has no room for cp_size, which needs %zu",
                config->struct_size, kRanksEnd);
    }
    if (layers != nullptr) {
      if (*n == 0)
        fail(KVC_E_INVALID_ARGUMENT,
             "*n = 0 elements with layers set: layers[0].struct_size is read");
      if (reinterpret_cast<uintptr_t>(layers) % kAlignment != 0)
        fail(KVC_E_INVALID_ARGUMENT, "layers is not aligned to %zu bytes", kAlignment);
      check_stride(layers->struct_size);
    }
    // One byte beyond the limit is enough for a refusal by length.
    const std::string_view text(json, strnlen(json, hf::kMaxTextBytes + 1));
    const hf::Model model = kvc::read_hf_config(text, request);
    const Attachments attachments(model);
    const size_t stride = layers == nullptr ? sizeof(kvc_layer) : layers->struct_size;
    const size_t needed = elements(model, attachments, stride);
    const size_t capacity = *n;
    if (layers != nullptr) check_room(model, stride);
    *n = needed;
    if (layers == nullptr) return;
    if (capacity < needed) {
      fail_with(KVC_E_BUFFER_TOO_SMALL, static_cast<int64_t>(needed),
                "layers holds %zu elements, %zu are needed for %zu layers", capacity, needed,
                model.layers.size());
    }
    write_layers(model, attachments, stride, reinterpret_cast<std::byte*>(layers));
    write_config(model, layers, request.cp_size, config);
    if (!model.warning.empty()) kvc::log(KVC_LOG_WARNING, "%s", model.warning.c_str());
  });
}
