// A scenario's configuration as the C structs, and what the checks need to know of each layer.
#pragma once

#include <deque>
#include <map>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tests/conformance/schema.h"
#include "tests/conformance/tensor.h"
#include "tests/conformance/values.h"

namespace kvc::conformance {

struct StateView {
  std::vector<int64_t> shape;
  int64_t init;  // id of the initial value; -1: zeros
};

struct LayerView {
  kvc_layer_kind kind = KVC_LAYER_ATTENTION;
  int32_t q_heads = 1, kv_heads = 1, k_dim = 4, v_dim = 4;  // MLA: of the absorbed form
  bool v_is_k = false;
  int32_t source = -1;
  int32_t latent_rank = 0;
  Rope rope;
  std::vector<StateView> states;

  bool keeps_tokens() const { return kind == KVC_LAYER_ATTENTION || kind == KVC_LAYER_MLA; }
};

// Fills `rope` for the C call; `factors` owns its arrays. Returns what the checks need.
Rope read_rope(const Json& json, int32_t head_dim, int32_t offset, kvc_rope& rope,
               std::deque<std::vector<float>>& factors);

class Model {
 public:
  Model(const Json& config, kvc_cpu_isa isa);
  Model(const Model&) = delete;
  Model& operator=(const Model&) = delete;

  const kvc_config& config() const { return config_; }
  const std::vector<LayerView>& layers() const { return views_; }
  int32_t layer_begin() const { return config_.layer_end == 0 ? 0 : config_.layer_begin; }
  int32_t layer_end() const { return config_.layer_end == 0 ? config_.num_layers : config_.layer_end; }
  bool has_storage() const { return config_.storage != KVC_STORAGE_NONE; }
  // The layer whose keys `layer` reads.
  int32_t keys_of(int32_t layer) const {
    const LayerView& view = views_.at(static_cast<size_t>(layer));
    return view.kind == KVC_LAYER_SHARED ? view.source : layer;
  }
  const LayerView& view(int32_t layer) const { return views_.at(static_cast<size_t>(layer)); }

 private:
  void read_layer(const Json& json);
  void read_states(const Json& json, kvc_layer& layer, LayerView& view);

  kvc_config config_{};
  kvc_allocator allocator_{};
  std::vector<kvc_layer> layers_;
  std::vector<LayerView> views_;
  // Elements must not move: the C structs point at them.
  std::deque<kvc_rope> ropes_;
  std::deque<std::vector<float>> factors_;
  std::deque<std::vector<kvc_state_spec>> specs_;
  std::deque<HostTensor> inits_;
  std::deque<std::vector<int64_t>> shapes_;
};

// A number of the library's by its name without prefix: look_up("CROSS", {{"CROSS", KVC_LAYER_CROSS}, ...}).
int32_t look_up(const std::string& name, const std::map<std::string, int32_t>& table);

}  // namespace kvc::conformance
