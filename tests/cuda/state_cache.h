// A cache of one STATE layer, on the CPU or on a GPU: S [2, 16, 16] of linear attention, and the
// last inputs of a convolution of 200 channels and width 4.
#pragma once

#include <bit>
#include <map>
#include <memory>

#include "tests/cuda/cache_support.h"

namespace kvc::test {

class StateCache {
 public:
  static constexpr int64_t kHeads = 2, kDim = 16, kChannels = 200, kWidth = 4;

  // What a step of so many tokens is given, and what it gives. q and k are bfloat16, as chunks of
  // long sequences take them.
  struct Step {
    Step(int64_t tokens, DLDevice device)
        : q({tokens, kHeads, kDim / 2}, device),
          v({tokens, kHeads, kDim}, device),
          x({tokens, kChannels}, device),
          weight({kChannels, kWidth}, device),
          out({tokens, kHeads, kDim}, device),
          y({tokens, kChannels}, device) {}
    void fill(uint64_t seed) {
      std::mt19937_64 random(seed);
      std::uniform_real_distribution<float> uniform(-0.5, 0.5);
      const auto bits = [&] { return std::bit_cast<uint32_t>(uniform(random)) >> 16; };
      for (float& pair : q.values) pair = std::bit_cast<float>(bits() << 16 | bits());
      v.fill(seed + 1), x.fill(seed + 2), weight.fill(seed + 3);
    }
    DLTensor* keys() {
      shape_[0] = q.view()->shape[0];
      keys_ = *q.view();
      keys_.dtype = {kDLBfloat, 16, 1};
      keys_.shape = shape_;
      return &keys_;
    }

    Tensor q, v, x, weight, out, y;

   private:
    int64_t shape_[3]{0, kHeads, kDim};
    DLTensor keys_{};
  };

  StateCache(DLDevice device, int32_t num_seqs) : device_(device) {
    const int64_t matrix[] = {kHeads, kDim, kDim}, inputs[] = {kChannels, kWidth - 1};
    kvc_state_spec specs[2]{};
    for (kvc_state_spec& spec : specs) spec.struct_size = sizeof spec;
    specs[0].ndim = 3, specs[0].shape = matrix;
    specs[1].ndim = 2, specs[1].shape = inputs;
    kvc_layer layer{};
    layer.struct_size = sizeof layer;
    layer.kind = KVC_LAYER_STATE;
    layer.states = specs;
    layer.num_states = 2;
    kvc_config config{};
    (void)kvc_config_init(&config, sizeof config);
    config.device = device;
    config.page_size = 16;
    config.num_layers = 1;
    config.layers = &layer;
    config.num_pages = 1;
    config.max_seqs = num_seqs;
    config.max_tokens_per_forward = 2 * num_seqs;
    config.max_seq_len = 1000;
    config.num_threads = 1;
    kvc_plan* plan = nullptr;
    kvc_error error = OneCache::blank();
    EXPECT_EQ(kvc_plan_create(&config, &plan, &error), KVC_OK) << error.message;
    EXPECT_EQ(kvc_cache_create(plan, &cache_, &error), KVC_OK) << error.message;
    kvc_plan_destroy(plan);
    for (kvc_seq id = 0; id < num_seqs; ++id) EXPECT_EQ(kvc_seq_add(cache_, id, nullptr), KVC_OK);
  }
  ~StateCache() { kvc_cache_destroy(cache_); }
  StateCache(const StateCache&) = delete;
  StateCache& operator=(const StateCache&) = delete;

  kvc_forward* begin(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                     kvc_stream stream = nullptr, uint64_t flags = 0) {
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.stream = stream;
    desc.num_seqs = seqs.size();
    desc.seqs = seqs.data();
    desc.append_lengths = lengths.data();
    desc.flags = flags;
    kvc_forward* forward = nullptr;
    kvc_error error = OneCache::blank();
    EXPECT_EQ(kvc_forward_begin(cache_, &desc, &forward, &error), KVC_OK) << error.message;
    return forward;
  }
  static void run(kvc_forward* forward, Step& step) {
    kvc_error error = OneCache::blank();
    EXPECT_EQ(kvc_attn_linear(forward, 0, nullptr, step.keys(), step.keys(), step.v.view(), nullptr,
                              nullptr, step.out.view(), &error),
              KVC_OK)
        << error.message;
    EXPECT_EQ(kvc_state_conv(forward, 0, 1, step.x.view(), step.weight.view(), nullptr,
                             KVC_ACTIVATION_NONE, step.y.view(), &error),
              KVC_OK)
        << error.message;
  }
  static void end(kvc_forward* forward) {
    kvc_error error = OneCache::blank();
    EXPECT_EQ(kvc_forward_end(forward, &error), KVC_OK) << error.message;
  }

  // A whole step, with inputs of `seed`.
  std::unique_ptr<Step> step(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                             uint64_t seed) {
    int64_t tokens = 0;
    for (const int64_t length : lengths) tokens += length;
    auto step = std::make_unique<Step>(tokens, device_);
    step->fill(seed);
    kvc_forward* forward = begin(seqs, lengths);
    run(forward, *step);
    end(forward);
    finish_runtime();
    return step;
  }

 private:
  DLDevice device_;
  kvc_cache* cache_ = nullptr;
};

}  // namespace kvc::test
