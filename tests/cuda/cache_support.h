// A small model on a cache of the CPU and on one of a GPU: equal calls have to give equal results.
#pragma once

#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <memory>
#include <random>
#include <span>
#include <string>
#include <vector>

#include "kernels/cuda/table.h"
#include "kvcache.h"
#include "src/device/gpu.h"
#include "tests/cuda/test_runtime.h"

namespace kvc::test {

inline uint64_t seed_of_run() { return 20261121; }

// A float32 tensor in pinned memory: tests fill and read it where kernels read and write it.
// Only the tag says which device it is for.
class Tensor {
 public:
  Tensor(std::vector<int64_t> shape, DLDevice device) : shape_(std::move(shape)), device_(device) {
    int64_t size = 1;
    for (const int64_t extent : shape_) size *= extent;
    values.assign(static_cast<size_t>(size), std::nanf(""));
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  DLTensor* view() {
    view_ = {values.data(),
             device_,
             static_cast<int32_t>(shape_.size()),
             {kDLFloat, 32, 1},
             shape_.data(),
             nullptr,
             0};
    return &view_;
  }
  void fill(uint64_t seed) {
    std::mt19937_64 random(seed);
    std::uniform_real_distribution<float> uniform(-1, 1);
    for (float& value : values) value = uniform(random);
  }

  std::vector<float> copy() const { return {values.begin(), values.end()}; }

  std::vector<float, PinnedAllocator<float>> values;

 private:
  std::vector<int64_t> shape_;
  DLDevice device_;
  DLTensor view_{};
};

struct SmallModel {
  int32_t num_layers = 2;
  int32_t q_heads = 4, kv_heads = 2, dim = 16;
  int32_t page_size = 4;
  int64_t num_pages = 64;
  int64_t window = 0;
  int32_t max_seqs = 0;
  int64_t max_tokens = 0, max_seq_len = 0;
  uint64_t host_bytes = 0;
  uint64_t flags = 0;
  DLDataType storage{kDLFloat, 32, 1};
  DLDataType v_storage{};  // All zero: storage.
  kvc_quant quant = KVC_QUANT_NONE, v_quant = 0;
  float k_scale = 0, v_scale = 0;
  bool v_in_k = false;
  int32_t latent_rank = 0;  // MLA: the rest of `dim` are the elements that rotate.
  kvc_rope_mode rope = KVC_ROPE_ON_APPEND;
};

class OneCache {
 public:
  OneCache(const SmallModel& model, DLDevice device) : model_(model), device_(device) {
    rope_ = {};
    rope_.struct_size = sizeof rope_;
    rope_.mode = model.rope;
    for (int32_t l = 0; l < model.num_layers; ++l) {
      kvc_layer layer{};
      layer.struct_size = sizeof layer;
      layer.num_q_heads = model.q_heads;
      layer.num_kv_heads = model.kv_heads;
      layer.k_dim = layer.v_dim = model.dim;
      layer.k_dtype = model.storage;
      layer.v_dtype = model.v_storage.bits == 0 ? model.storage : model.v_storage;
      layer.quant = model.quant;
      layer.v_quant = model.v_quant;
      layer.k_scale = model.k_scale;
      layer.v_scale = model.v_scale;
      layer.flags = model.v_in_k ? KVC_LAYER_V_IS_K : 0;
      if (model.latent_rank != 0) {
        layer.kind = KVC_LAYER_MLA;
        layer.num_kv_heads = layer.k_dim = layer.v_dim = 0;
        layer.latent_rank = model.latent_rank;
        layer.latent_rope_dim = model.dim - model.latent_rank;
      }
      layer.window = model.window;
      layer.rope = &rope_;
      layers_.push_back(layer);
    }
    kvc_config config{};
    (void)kvc_config_init(&config, sizeof config);
    config.device = device;
    config.page_size = model.page_size;
    config.num_layers = model.num_layers;
    config.layers = layers_.data();
    config.num_pages = model.num_pages;
    config.max_seqs = model.max_seqs;
    config.max_tokens_per_forward = model.max_tokens;
    config.max_seq_len = model.max_seq_len;
    config.host_byte_budget = model.host_bytes;
    config.flags = model.flags;
    config.num_threads = 1;
    // Kernels of other instruction sets round q and weights for quantised rows.
    const bool is_quantised = model.quant != KVC_QUANT_NONE || model.v_quant != KVC_QUANT_NONE;
    if (is_quantised && device.device_type == kDLCPU) config.cpu_isa = KVC_CPU_ISA_REFERENCE;
    kvc_plan* plan = nullptr;
    kvc_error error = blank();
    EXPECT_EQ(kvc_plan_create(&config, &plan, &error), KVC_OK) << error.message;
    status = kvc_cache_create(plan, &cache, &error);
    message = error.message;
    kvc_plan_destroy(plan);
  }
  ~OneCache() { kvc_cache_destroy(cache); }
  OneCache(const OneCache&) = delete;
  OneCache& operator=(const OneCache&) = delete;

  static kvc_error blank() {
    kvc_error error{};
    error.struct_size = sizeof error;
    return error;
  }

  // One step of the whole model; the outputs of all layers, one behind the other. `seed`: of q, k
  // and v.
  std::vector<float> step(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                          uint64_t seed, kvc_stream stream = nullptr,
                          const int32_t* parents = nullptr) {
    std::vector<float> all;
    kvc_forward* forward = begin(seqs, lengths, stream, 0, parents);
    if (forward == nullptr) return all;
    run_layers(forward, seed);
    end(forward);
    finish_runtime();
    for (const auto& out : outs) all.insert(all.end(), out->values.begin(), out->values.end());
    return all;
  }

  kvc_forward* begin(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                     kvc_stream stream, uint64_t flags, const int32_t* parents = nullptr) {
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.stream = stream;
    desc.num_seqs = seqs.size();
    desc.seqs = seqs.data();
    desc.append_lengths = lengths.data();
    desc.tree_parents = parents;
    desc.flags = flags;
    kvc_forward* forward = nullptr;
    kvc_error error = blank();
    status = kvc_forward_begin(cache, &desc, &forward, &error);
    message = error.message;
    return status == KVC_OK ? forward : nullptr;
  }

  // Inputs of `rows` rows, which live until the next call: the device may read them later.
  void make_inputs(int64_t rows, uint64_t seed) {
    ins.clear(), outs.clear();
    for (int32_t l = 0; l < model_.num_layers; ++l) {
      const auto make = [&](int32_t heads, int32_t dim) {
        return std::make_unique<Tensor>(std::vector<int64_t>{rows, heads, dim}, device_);
      };
      for (const int32_t heads : {model_.q_heads, model_.kv_heads, model_.kv_heads})
        ins.push_back(make(heads, model_.dim));
      outs.push_back(
          make(model_.q_heads, model_.latent_rank == 0 ? model_.dim : model_.latent_rank));
    }
    fill_inputs(seed);
  }
  void fill_inputs(uint64_t seed) {
    for (size_t i = 0; i < ins.size(); ++i) ins[i]->fill(seed * 1000 + i / 3 * 10 + i % 3);
  }
  void attend(kvc_forward* forward) {
    for (int32_t l = 0; l < model_.num_layers; ++l) {
      const auto at = static_cast<size_t>(l);
      kvc_error error = blank();
      kvc_attn_opt opt{};
      opt.struct_size = sizeof opt;
      opt.scale = 0.25f;
      const bool has_v = !model_.v_in_k && model_.latent_rank == 0;
      status =
          kvc_attn(forward, l, &opt, ins[3 * at]->view(), ins[3 * at + 1]->view(),
                   has_v ? ins[3 * at + 2]->view() : nullptr, outs[at]->view(), nullptr, &error);
      message = error.message;
    }
  }
  void run_layers(kvc_forward* forward, uint64_t seed) {
    make_inputs(kvc_forward_num_tokens(forward), seed);
    attend(forward);
  }
  void end(kvc_forward* forward) {
    kvc_error error = blank();
    EXPECT_EQ(kvc_forward_end(forward, &error), KVC_OK) << error.message;
  }
  kvc_stats stats() const {
    kvc_stats stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(kvc_cache_stats_get(cache, &stats, nullptr), KVC_OK);
    return stats;
  }
  void check() const {
    kvc_error error = blank();
    EXPECT_EQ(kvc_cache_check(cache, &error), KVC_OK) << error.message;
  }

  kvc_cache* cache = nullptr;
  kvc_status status = KVC_OK;
  std::string message;
  std::vector<std::unique_ptr<Tensor>> ins, outs;

 private:
  SmallModel model_;
  DLDevice device_;
  kvc_rope rope_{};
  std::vector<kvc_layer> layers_;
};

inline void expect_close(std::span<const float> a, std::span<const float> b,
                         float tolerance = 2e-5f) {
  ASSERT_EQ(a.size(), b.size());
  for (size_t i = 0; i < a.size(); ++i) ASSERT_NEAR(a[i], b[i], tolerance) << "at element " << i;
}

// A cache of the CPU beside one of the device.
struct CachePair {
  explicit CachePair(const SmallModel& model, DLDevice gpu)
      : cpu(model, {kDLCPU, 0}), device(model, gpu) {
    EXPECT_EQ(device.status, KVC_OK) << device.message;
  }
  template <typename Call>
  void both(Call&& call) {
    kvc_error error = OneCache::blank();
    ASSERT_EQ(call(cpu.cache, &error), KVC_OK) << error.message;
    ASSERT_EQ(call(device.cache, &error), KVC_OK) << error.message;
  }
  void step(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths, uint64_t seed,
            kvc_stream stream = nullptr, const int32_t* parents = nullptr) {
    const std::vector<float> expected = cpu.step(seqs, lengths, seed, nullptr, parents);
    ASSERT_EQ(cpu.status, KVC_OK) << cpu.message;
    const std::vector<float> got = device.step(seqs, lengths, seed, stream, parents);
    ASSERT_EQ(device.status, KVC_OK) << device.message;
    expect_close(got, expected, tolerance);
  }
  OneCache cpu, device;
  float tolerance = 2e-5f;
};

// The back end is linked in; tests of the loader are elsewhere.
class CudaCache : public ::testing::Test {
 protected:
  void SetUp() override {
    reset_runtime();
    std::string why;
    ASSERT_TRUE(install_backend(kvc_cuda_backend(), &why)) << why;
  }
  void TearDown() override {
    reset_runtime();
    std::string why;
    (void)install_backend(nullptr, &why);
  }

  static constexpr DLDevice kGpu{kDLCUDA, 0};
};

}  // namespace kvc::test
