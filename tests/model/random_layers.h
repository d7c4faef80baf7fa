// Layers of a model drawn from a seed, for the library and for the oracle, with everything that the
// specs point at.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tests/model/naive_cache.h"
#include "tests/model/random.h"

namespace kvc::test {

// What a drawn model is made of.
enum class Family {
  kPlain,    // full attention
  kWindows,  // windows, chunks, K = V, layers that share or keep nothing
  kMla,      // latents, with some attention
  kCross,    // encoder-decoder
  kState,    // recurrent layers between attention
  kHybrid    // everything in one cache
};

class RandomLayers {
 public:
  // `tiny`: two elements per head, for runs that compute nothing or little.
  void draw(Random& random, Family family, int page_size, bool tiny);

  const std::vector<kvc_layer>& specs() const { return specs_; }  // of the whole model
  std::vector<NaiveLayer>& naive() { return naive_; }             // of the slice
  const std::vector<NaiveLayer>& naive() const { return naive_; }
  int begin() const { return begin_; }
  int end() const { return begin_ + static_cast<int>(naive_.size()); }
  bool has_kept() const { return has_kept_; }      // A layer has keep_tokens.
  bool turns_kept() const { return turns_kept_; }  // Such a one stores K rotated.
  std::string describe() const;

 private:
  kvc_layer_kind draw_kind(Random& random, Family family, bool in_slice) const;
  void draw_layer(Random& random, kvc_layer_kind kind, Family family, bool in_slice);
  void draw_attention(Random& random, NaiveLayer* naive, kvc_layer* layer);
  void draw_mla(Random& random, NaiveLayer* naive, kvc_layer* layer);
  void draw_states(Random& random, NaiveLayer* naive, kvc_layer* layer);
  void draw_shared(Random& random, NaiveLayer* naive, kvc_layer* layer);
  void draw_window(Random& random, Family family, NaiveLayer* naive, kvc_layer* layer);
  // A rope over at most `dim` elements from element `begin` on; `whole`: exactly these.
  const kvc_rope* draw_rope(Random& random, int dim, bool whole, NaiveRope* naive, int begin);
  void draw_scaling(Random& random, kvc_rope* rope, int pairs);
  void draw_sections(Random& random, kvc_rope* rope, int pairs);
  const float* draw_factors(Random& random, int pairs);

  void draw_quant(NaiveLayer* naive, kvc_layer* layer);
  void draw_keep(NaiveLayer* naive, kvc_layer* layer);
  void draw_mix(Elem k_elem, Elem v_elem, NaiveLayer* naive, kvc_layer* layer);

  bool tiny_ = false;
  bool quantises_ = false;  // some layers are quantised
  bool keeps_ = false;      // Some of these keep their first tokens unquantised.
  bool has_kept_ = false, turns_kept_ = false;
  Random keep_random_{0};
  Random quant_random_{0};  // apart, so that other draws are what they were without it
  Random mix_random_{0};    // apart likewise: of K and V that are stored in two ways
  bool on_read_ = false;    // some layers rotate when they read
  bool sections_ = false;   // some layers turn by several positions
  bool chunks_ = false;
  std::vector<int64_t> windows_;
  int begin_ = 0;
  std::vector<kvc_layer> specs_;
  std::vector<NaiveLayer> naive_;
  std::vector<std::unique_ptr<kvc_rope>> ropes_;
  std::vector<std::unique_ptr<std::vector<float>>> factors_;
  std::vector<std::unique_ptr<std::vector<kvc_state_spec>>> state_specs_;
  std::vector<std::unique_ptr<std::vector<int64_t>>> shapes_;
  std::vector<std::unique_ptr<HostTensor>> inits_;
};

}  // namespace kvc::test
