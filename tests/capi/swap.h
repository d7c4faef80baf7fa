// A model of all kinds of layers, patterns in all layers of a sequence, swaps by id, and memory
// overwritten in between: what the tests of swapping and of state files share.
#pragma once

#include <string>
#include <vector>

#include "tests/capi/layers.h"

namespace kvc::test {

// What K (half 0) or V (half 1) of a layer holds at one place under a seed: integers that every
// storage type holds exactly, int8 with the scale 1 too.
inline double pattern(uint64_t seed, int64_t layer, int64_t half, int64_t token, int64_t head,
                      int64_t d) {
  uint64_t z = seed * 0x9E3779B97F4A7C15ull;
  for (const int64_t part : {layer, half, token, head, d}) {
    z = (z ^ static_cast<uint64_t>(part + 1)) * 0xBF58476D1CE4E5B9ull;
    z ^= z >> 29;
  }
  return static_cast<double>(z >> 58) + 1;  // 1..64
}

inline void fill_pattern(HostTensor& rows, uint64_t seed, int64_t layer, int64_t half,
                         int64_t first_token) {
  rows.for_each([&](int64_t token, int64_t head, int64_t d, int64_t) {
    rows.set(pattern(seed, layer, half, first_token + token, head, d), token, head, d);
  });
}

inline kvc_plan_info plan_of(const kvc_plan* plan) {
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_info_get(plan, &info, nullptr), KVC_OK);
  return info;
}

inline kvc_layer_info layer_of(const Cache& cache, int32_t layer) {
  kvc_layer_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_plan_layer_get(cache.plan(), layer, &info, nullptr), KVC_OK);
  return info;
}

// A host budget of so many pages of this configuration.
inline void set_host_pages(kvc_config& config, int64_t pages) {
  kvc_plan* plan = nullptr;
  kvc_error error{};
  ASSERT_EQ(kvc_plan_create(&config, &plan, &error), KVC_OK) << error.message;
  config.host_byte_budget = static_cast<uint64_t>(pages) * plan_of(plan).page_bytes;
  kvc_plan_destroy(plan);
}

// K and V of one layer for `count` tokens; latents of MLA layers, no V where K is V.
struct LayerRows {
  LayerRows(const kvc_layer_info& info, int64_t count)
      : is_mla(info.kind == KVC_LAYER_MLA),
        has_v(!is_mla && (info.flags & KVC_LAYER_V_IS_K) == 0),
        k(Elem::kF32, {count, is_mla ? 1 : info.num_kv_heads,
                       is_mla ? info.latent_rank + info.latent_rope_dim : info.k_dim}),
        v(Elem::kF32, {count, is_mla ? 1 : info.num_kv_heads, is_mla ? 1 : info.v_dim}) {}
  DLTensor* v_or_null() { return has_v ? v.dl() : nullptr; }
  bool is_mla, has_v;
  HostTensor k, v;
};

inline bool keeps_rows(const kvc_layer_info& info) {
  const bool is_exact = info.quant == KVC_QUANT_NONE && info.v_quant == KVC_QUANT_NONE;
  return (is_exact || info.keep_tokens != 0) &&
         (info.kind == KVC_LAYER_ATTENTION || info.kind == KVC_LAYER_MLA ||
          info.kind == KVC_LAYER_CROSS);
}

// Appends `count` tokens (and writes `encoder` encoder tokens) of the pattern of `seed` to a
// sequence, which is added when it is not there. States become the pattern of the new length.
// `ids`: of the new tokens, whose blocks are then published.
inline void append_pattern(Cache& cache, kvc_seq seq, int64_t count, uint64_t seed,
                           int64_t encoder = 0, const std::vector<int32_t>& ids = {}) {
  const kvc_status added = kvc_seq_add(cache.get(), seq, nullptr);
  ASSERT_TRUE(added == KVC_OK || added == KVC_E_ALREADY_EXISTS);
  const int64_t length = length_of(cache, seq);
  Request request{{seq}, {count}};
  if (encoder > 0) request.cross_lengths = {encoder};
  request.tokens = ids;
  kvc_error error{};
  ASSERT_EQ(cache.begin_with(request, &error), KVC_OK) << error.message;
  const int32_t num_layers = plan_of(cache.plan()).num_layers;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    const kvc_layer_info info = layer_of(cache, layer);
    if (info.kind == KVC_LAYER_STATE) {
      HostTensor state(Elem::kF32, {1, 2, 3});
      fill_pattern(state, seed, layer, 0, length + count);
      ASSERT_EQ(kvc_state_set(cache.forward, layer, 0, state.dl(), &error), KVC_OK)
          << error.message;
    }
    if (!keeps_rows(info) || info.kind == KVC_LAYER_CROSS) continue;
    LayerRows rows(info, count);
    fill_pattern(rows.k, seed, layer, 0, length);
    fill_pattern(rows.v, seed, layer, 1, length);
    const kvc_status status =
        rows.is_mla ? kvc_mla_append(cache.forward, layer, rows.k.dl(), &error)
                    : kvc_kv_append(cache.forward, layer, rows.k.dl(), rows.v_or_null(), &error);
    ASSERT_EQ(status, KVC_OK) << error.message;
  }
  cache.finish();
  for (int32_t layer = 0; encoder > 0 && layer < num_layers; ++layer) {
    const kvc_layer_info info = layer_of(cache, layer);
    if (info.kind != KVC_LAYER_CROSS) continue;
    LayerRows rows(info, encoder);
    fill_pattern(rows.k, seed, layer, 0, 0);
    fill_pattern(rows.v, seed, layer, 1, 0);
    ASSERT_EQ(
        kvc_debug_set_layer(cache.get(), seq, layer, 0, rows.k.dl(), rows.v.dl(), nullptr, &error),
        KVC_OK)
        << error.message;
  }
}

// Empty when all layers hold what append_pattern wrote, as far as windows have kept it; else the
// first difference.
inline std::string pattern_difference(const Cache& cache, kvc_seq seq, uint64_t seed) {
  const kvc_seq_info sequence = info_of(cache, seq);
  const int32_t num_layers = plan_of(cache.plan()).num_layers;
  for (int32_t layer = 0; layer < num_layers; ++layer) {
    const kvc_layer_info info = layer_of(cache, layer);
    const auto text = [&](int64_t token, const char* what, double found, double expected) {
      return "layer " + std::to_string(layer) + " token " + std::to_string(token) + " " + what +
             ": " + std::to_string(found) + " instead of " + std::to_string(expected);
    };
    std::string found;
    const auto compare = [&](HostTensor& rows, int64_t half, int64_t first) {
      rows.for_each([&](int64_t token, int64_t head, int64_t d, int64_t) {
        const double expected = pattern(seed, layer, half, first + token, head, d);
        const double value = rows.get(token, head, d);
        if (found.empty() && value != expected)
          found = text(first + token, half == 0 ? "K" : "V", value, expected);
      });
    };
    kvc_error error{};
    if (info.kind == KVC_LAYER_STATE && sequence.length > 0) {
      HostTensor state(Elem::kF32, {1, 2, 3});
      DLTensor view = *state.dl();
      view.ndim = 2;
      view.shape += 1;
      view.strides = nullptr;
      if (kvc_debug_get_state(cache.get(), seq, layer, 0, &view, nullptr, &error) != KVC_OK)
        return error.message;
      compare(state, 0, sequence.length);
    }
    if (!found.empty()) return found;
    if (!keeps_rows(info)) continue;
    const int64_t end = info.kind == KVC_LAYER_CROSS ? sequence.cross_length : sequence.length;
    int64_t begin = 0;
    for (int attempt = 0; attempt < 2; ++attempt) {
      LayerRows rows(info, end - begin);
      const kvc_status status = kvc_debug_get_layer(cache.get(), seq, layer, begin, end,
                                                    rows.k.dl(), rows.v_or_null(), nullptr, &error);
      if (status == KVC_E_OUT_OF_RANGE && attempt == 0) {  // a window has dropped some
        begin = error.detail;
        continue;
      }
      if (status != KVC_OK) return error.message;
      compare(rows.k, 0, begin);
      if (rows.has_v) compare(rows.v, 1, begin);
      break;
    }
    if (!found.empty()) return found;
  }
  return "";
}

// Writes something else to every page that is free, so that only what was really moved survives.
inline void overwrite_free_pages(Cache& cache) {
  std::vector<kvc_seq> fillers;
  int64_t count =
      // Whole pages as long as they fit, then what is left
      std::max(1, plan_of(cache.plan()).prefix_block);
  for (kvc_seq seq = 1 << 20; fillers.size() < 1000; ++seq) {
    ASSERT_EQ(kvc_seq_add(cache.get(), seq, nullptr), KVC_OK);
    fillers.push_back(seq);
    int64_t missing = 0;
    kvc_status status = kvc_seq_can_append(cache.get(), 1, &seq, &count, &missing, nullptr);
    if ((status != KVC_OK || missing > 0) && count > 1) {
      count = 1;
      status = kvc_seq_can_append(cache.get(), 1, &seq, &count, &missing, nullptr);
    }
    if (status != KVC_OK || missing > 0) break;
    ASSERT_NO_FATAL_FAILURE(append_pattern(cache, seq, count, 999));
  }
  for (const kvc_seq seq : fillers) ASSERT_EQ(kvc_seq_remove(cache.get(), seq, nullptr), KVC_OK);
}

// Every kind of layer that keeps something.
struct AllKinds {
  explicit AllKinds(kvc_pool_layout layout = KVC_POOL_LAYER_FIRST)
      : net({attention_layer(), attention_layer(8), mla_layer(), joint_layer(), cross_layer(),
             state_layer(specs), shared_layer(0), layer_of_kind(KVC_LAYER_NONE),
             attention_layer(0, 6)},
            64) {
    net.layers[3].k_dtype = {kDLBfloat, 16, 1};
    net.layers[1].k_dtype = {kDLFloat, 16, 1};
    net.config.max_cross_len = 20;
    net.config.pool_layout = layout;
  }
  std::vector<int64_t> shape{2, 3};
  std::vector<kvc_state_spec> specs{state_spec(shape)};
  Net net;
};

inline void expect_same_info(const kvc_seq_info& before, const kvc_seq_info& after) {
  EXPECT_EQ(before.length, after.length);
  EXPECT_EQ(before.first_position, after.first_position);
  EXPECT_EQ(before.last_position, after.last_position);
  EXPECT_EQ(before.num_pages, after.num_pages);
  EXPECT_EQ(before.window, after.window);
  EXPECT_EQ(before.sink, after.sink);
  EXPECT_EQ(before.num_checkpoints, after.num_checkpoints);
  EXPECT_EQ(before.cross_length, after.cross_length);
  EXPECT_EQ(after.in_forward, 0);
  EXPECT_EQ(after.tree_nodes, 0);
}

inline kvc_status swap_out(const Cache& cache, const std::vector<kvc_seq>& seqs,
                           kvc_error* err = nullptr) {
  return kvc_swap_out(cache.get(), seqs.size(), seqs.data(), nullptr, nullptr, err);
}

inline kvc_status swap_in(const Cache& cache, const std::vector<kvc_seq>& seqs,
                          kvc_error* err = nullptr) {
  return kvc_swap_in(cache.get(), seqs.size(), seqs.data(), nullptr, nullptr, err);
}

inline void expect_sound(const Cache& cache) {
  kvc_error error{};
  EXPECT_EQ(kvc_cache_check(cache.get(), &error), KVC_OK) << error.message;
}

}  // namespace kvc::test
