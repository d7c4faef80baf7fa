// The layers of a configuration, before they are laid out in the caller's array.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kvcache.h"

namespace kvc::hf {

struct State {
  DLDataType dtype{};
  std::vector<int64_t> shape;

  bool operator==(const State& other) const {
    return dtype.code == other.dtype.code && dtype.bits == other.dtype.bits && shape == other.shape;
  }
};

// The pointers of `rope` are NULL; the factors are in the vectors.
struct Rope {
  kvc_rope rope{};
  std::vector<float> factors, long_factors;
};

// The pointers of `layer` are NULL; `rope` and `states` index Model::ropes and Model::states (-1:
// none).
struct Layer {
  kvc_layer layer{};
  int32_t rope = -1;
  int32_t states = -1;
};

// One entry per cache of a layer. A layer of the model with two caches has two entries in a row: K
// and V beside a recurrent state, or beside the encoder's K and V. Layer ids of the library count
// entries.
struct Model {
  std::vector<Layer> layers;
  std::vector<Rope> ropes;
  std::vector<std::vector<State>> states;  // Sets that layers share.
  DLDataType dtype{kDLBfloat, 16, 1};      // Type of K, V and convolution states.
  int64_t max_seq_len = 0;                 // 0: the model has no limit.
  int64_t max_cross_len = 0;               // 0: unknown.

  void add(const kvc_layer& layer, int32_t rope = -1) { layers.push_back({layer, rope, -1}); }
  void add_none() {
    kvc_layer layer{};
    layer.kind = KVC_LAYER_NONE;
    layers.push_back({layer, -1, -1});
  }
  void add_states(int32_t set) {
    kvc_layer layer{};
    layer.kind = KVC_LAYER_STATE;
    layer.num_states = static_cast<int32_t>(states[set].size());
    layers.push_back({layer, -1, set});
  }
  int32_t state_set(std::vector<State> set) {
    states.push_back(std::move(set));
    return static_cast<int32_t>(states.size() - 1);
  }
};

}  // namespace kvc::hf
