// Layers of every kind in float32, views of tokens, and attention written out in double: what the
// tests of windows, trees and kinds of layers share.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <memory>
#include <vector>

#include "tests/capi/fixture.h"

namespace kvc::test {

constexpr int32_t kHeads = 2;  // query heads over 1 kv head
constexpr int32_t kDim = 8;
constexpr int32_t kRank = 8;  // of MLA latents, with kRopeDim rotated elements behind them
constexpr int32_t kRopeDim = 4;

inline kvc_attn_opt attn_opt() {
  kvc_attn_opt opt{};
  opt.struct_size = sizeof opt;
  return opt;
}

constexpr float kScale = 0.3f;

inline kvc_attn_opt scaled() {
  kvc_attn_opt opt = attn_opt();
  opt.scale = kScale;
  return opt;
}

inline kvc_layer layer_of_kind(kvc_layer_kind kind) {
  kvc_layer layer{};
  layer.struct_size = sizeof layer;
  layer.kind = kind;
  return layer;
}

inline kvc_layer attention_layer(int64_t window = 0, int64_t chunk = 0) {
  kvc_layer layer = layer_of_kind(KVC_LAYER_ATTENTION);
  layer.num_q_heads = kHeads;
  layer.num_kv_heads = 1;
  layer.k_dim = kDim;
  layer.k_dtype = {kDLFloat, 32, 1};
  layer.window = window;
  layer.chunk = chunk;
  return layer;
}

inline kvc_layer cross_layer() {
  kvc_layer layer = attention_layer();
  layer.kind = KVC_LAYER_CROSS;
  return layer;
}

// int8 with the scale 1, and the first tokens in bfloat16: both hold small integers.
inline kvc_layer kept_layer(int32_t keep_tokens, int64_t window = 0) {
  kvc_layer layer = attention_layer(window);
  layer.k_dtype = {kDLInt, 8, 1};
  layer.quant = KVC_QUANT_PER_TENSOR;
  layer.keep_tokens = keep_tokens;
  return layer;
}

// K = V: one row holds both.
inline kvc_layer joint_layer() {
  kvc_layer layer = attention_layer();
  layer.flags = KVC_LAYER_V_IS_K;
  return layer;
}

inline kvc_layer shared_layer(int32_t source) {
  kvc_layer layer = layer_of_kind(KVC_LAYER_SHARED);
  layer.source_layer = source;
  return layer;
}

inline kvc_layer mla_layer(int32_t self_dim = 0) {
  kvc_layer layer = layer_of_kind(KVC_LAYER_MLA);
  layer.num_q_heads = kHeads;
  layer.latent_rank = kRank;
  layer.latent_rope_dim = kRopeDim;
  layer.k_dim = self_dim;
  layer.k_dtype = {kDLFloat, 32, 1};
  return layer;
}

inline kvc_layer state_layer(const std::vector<kvc_state_spec>& states) {
  kvc_layer layer = layer_of_kind(KVC_LAYER_STATE);
  layer.states = states.data();
  layer.num_states = static_cast<int32_t>(states.size());
  return layer;
}

inline kvc_state_spec state_spec(const std::vector<int64_t>& shape, Elem elem = Elem::kF32) {
  kvc_state_spec spec{};
  spec.struct_size = sizeof spec;
  spec.ndim = static_cast<int32_t>(shape.size());
  spec.shape = shape.data();
  spec.dtype = dl_type(elem);
  return spec;
}

inline kvc_rope rope_of(kvc_rope_mode mode) {
  kvc_rope rope{};
  rope.struct_size = sizeof rope;
  rope.mode = mode;
  return rope;
}

// A configuration over its own layers: pages of 4 tokens, one thread.
struct Net {
  explicit Net(std::vector<kvc_layer> all, int64_t num_pages = 32) : layers(std::move(all)) {
    (void)kvc_config_init(&config, sizeof config);
    config.page_size = 4;
    config.num_layers = static_cast<int32_t>(layers.size());
    config.layers = layers.data();
    config.num_pages = num_pages;
    config.num_threads = 1;
  }
  Net(const Net&) = delete;
  Net& operator=(const Net&) = delete;

  std::vector<kvc_layer> layers;
  kvc_config config{};
};

// Rows [begin, begin + count) of dimension 0 of a tensor.
class Rows {
 public:
  Rows(HostTensor& tensor, int64_t begin, int64_t count)
      : shape_(tensor.shape()), view_(*tensor.dl()) {
    shape_[0] = count;
    view_.shape = shape_.data();
    view_.data = tensor.at(begin);
    view_.byte_offset = 0;
  }
  Rows(const Rows&) = delete;
  Rows& operator=(const Rows&) = delete;
  DLTensor* dl() { return &view_; }

 private:
  std::vector<int64_t> shape_;
  DLTensor view_;
};

// Random q, k and v of one layer for `count` tokens.
struct Tokens {
  explicit Tokens(int64_t count, uint64_t seed = 1, int64_t q_heads = kHeads, int64_t k_dim = kDim,
                  int64_t v_dim = kDim)
      : q(Elem::kF32, {count, q_heads, k_dim}),
        k(Elem::kF32, {count, 1, k_dim}),
        v(Elem::kF32, {count, 1, v_dim}) {
    Random random(seed);
    for (HostTensor* tensor : {&q, &k, &v}) tensor->fill_random(random);
  }
  HostTensor q, k, v;
};

inline void copy_row(HostTensor& from, int64_t from_row, HostTensor& to, int64_t to_row) {
  for (int64_t h = 0; h < from.size(1); ++h) {
    for (int64_t d = 0; d < from.size(2); ++d) to.set(from.get(from_row, h, d), to_row, h, d);
  }
}

// The largest difference; NaN when one of them holds one.
inline double largest_difference(HostTensor& a, HostTensor& b) {
  double largest = 0;
  a.for_each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
    const double error = std::fabs(a.get(i, j, k, l) - b.get(i, j, k, l));
    largest = error <= largest ? largest : error;
  });
  return largest;
}

// Appends tokens [begin, begin + count) of `tokens` to a layer of one sequence and attends; rows of
// `out` are written.
inline void attend_rows(Cache& cache, kvc_seq seq, int32_t layer, Tokens& tokens, int64_t begin,
                        int64_t count, HostTensor& out, const kvc_attn_opt* opt = nullptr) {
  ASSERT_EQ(cache.begin({seq}, {count}), KVC_OK);
  Rows q(tokens.q, begin, count), k(tokens.k, begin, count), v(tokens.v, begin, count),
      to(out, begin, count);
  kvc_error error{};
  ASSERT_EQ(kvc_attn(cache.forward, layer, opt, q.dl(), k.dl(), v.dl(), to.dl(), nullptr, &error),
            KVC_OK)
      << error.message;
  cache.finish();
}

// The factors are borrowed.
inline kvc_rope long_rope(kvc_rope_mode mode, const std::vector<float>& short_factors,
                          const std::vector<float>& long_factors, int64_t original_context) {
  kvc_rope rope = rope_of(mode);
  rope.scaling = KVC_ROPE_SCALING_LONGROPE;
  rope.num_freq_factors = static_cast<int32_t>(short_factors.size());
  rope.freq_factors = short_factors.data();
  rope.long_freq_factors = long_factors.data();
  rope.original_context = original_context;
  return rope;
}

// Pair (i, i + rotary/2) of `row` from element `begin` on, turned to a position: KVC_ROPE_HALF with
// theta 10000.
inline std::vector<double> rotated(std::vector<double> row, double position, size_t begin = 0) {
  const size_t pairs = (row.size() - begin) / 2;
  for (size_t i = 0; i < pairs; ++i) {
    const double angle =
        position * std::pow(10000.0, -static_cast<double>(i) / static_cast<double>(pairs));
    double &x = row[begin + i], &y = row[begin + i + pairs];
    const double turned = x * std::cos(angle) - y * std::sin(angle);
    y = x * std::sin(angle) + y * std::cos(angle);
    x = turned;
  }
  return row;
}

inline std::vector<double> row_of(HostTensor& tensor, int64_t row, int64_t head) {
  std::vector<double> values;
  for (int64_t d = 0; d < tensor.size(2); ++d) values.push_back(tensor.get(row, head, d));
  return values;
}

// One query over some keys. `turn(row, key)` rotates q (key = -1 - j asks for q as key j meets it)
// and keys; empty: no rotation.
struct NaiveQuery {
  using Turn = std::function<std::vector<double>(std::vector<double>, int64_t)>;
  Tokens& tokens;
  std::vector<int64_t> keys;
  Turn turn{};
  double scale = 0;   // 0: 1/sqrt(k_dim)
  int64_t v_dim = 0;  // of a K row that is V as well; 0: V is its own tensor

  std::vector<double> attend(int64_t row, int64_t head) const {
    const double factor = scale != 0 ? scale : 1 / std::sqrt(static_cast<double>(tokens.q.size(2)));
    HostTensor& values = v_dim != 0 ? tokens.k : tokens.v;
    std::vector<double> sum(static_cast<size_t>(v_dim != 0 ? v_dim : tokens.v.size(2)), 0);
    double weight = 0;
    for (const int64_t key : keys) {
      std::vector<double> q = row_of(tokens.q, row, head), k = row_of(tokens.k, key, 0);
      if (turn) q = turn(q, -1 - key), k = turn(k, key);
      double score = 0;
      for (size_t d = 0; d < q.size(); ++d) score += q[d] * k[d];
      const double share = std::exp(factor * score);
      weight += share;
      for (size_t d = 0; d < sum.size(); ++d)
        sum[d] += share * values.get(key, 0, static_cast<int64_t>(d));
    }
    for (double& element : sum) element = weight == 0 ? 0 : element / weight;
    return sum;
  }
};

inline void expect_row(HostTensor& out, int64_t out_row, const NaiveQuery& query, int64_t row,
                       double tolerance = 1e-5) {
  double largest = 0;
  for (int64_t head = 0; head < out.size(1); ++head) {
    const std::vector<double> expected = query.attend(row, head);
    for (size_t d = 0; d < expected.size(); ++d) {
      const double error = std::fabs(out.get(out_row, head, static_cast<int64_t>(d)) - expected[d]);
      largest = error <= largest ? largest : error;
    }
  }
  EXPECT_LE(largest, tolerance) << "row " << out_row;
}

inline std::vector<int64_t> key_range(int64_t begin, int64_t end) {
  std::vector<int64_t> keys;
  for (int64_t key = std::max<int64_t>(0, begin); key < end; ++key) keys.push_back(key);
  return keys;
}

// A snapshot of a table that the library exported, as numbers; its deleter has run.
inline std::vector<int64_t> taken(DLManagedTensorVersioned* exported) {
  std::unique_ptr<DLManagedTensorVersioned, void (*)(DLManagedTensorVersioned*)> owner(
      exported, [](DLManagedTensorVersioned* tensor) { tensor->deleter(tensor); });
  const DLTensor& tensor = exported->dl_tensor;
  int64_t count = 1;
  for (int32_t d = 0; d < tensor.ndim; ++d) count *= tensor.shape[d];
  std::vector<int64_t> values;
  for (int64_t i = 0; i < count; ++i) {
    values.push_back(tensor.dtype.bits == 64 ? static_cast<const int64_t*>(tensor.data)[i]
                                             : static_cast<const int32_t*>(tensor.data)[i]);
  }
  return values;
}

// Pages that one group of a sequence holds.
inline std::vector<int64_t> pages_of(const Cache& cache, kvc_seq seq, int32_t group) {
  DLManagedTensorVersioned* pages = nullptr;
  EXPECT_EQ(kvc_export_seq_pages(cache.get(), seq, group, &pages, nullptr), KVC_OK);
  return pages == nullptr ? std::vector<int64_t>{} : taken(pages);
}

inline std::vector<int64_t> table_of(const Cache& cache, int32_t group, kvc_table_kind kind) {
  DLManagedTensorVersioned* table = nullptr;
  EXPECT_EQ(kvc_export_page_table(cache.forward, group, kind, &table, nullptr), KVC_OK);
  return table == nullptr ? std::vector<int64_t>{} : taken(table);
}

inline kvc_seq_info info_of(const Cache& cache, kvc_seq seq) {
  kvc_seq_info info{};
  info.struct_size = sizeof info;
  EXPECT_EQ(kvc_seq_info_get(cache.get(), seq, &info, nullptr), KVC_OK);
  return info;
}

inline kvc_stats stats_of(const Cache& cache) {
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  EXPECT_EQ(kvc_cache_stats_get(cache.get(), &stats, nullptr), KVC_OK);
  return stats;
}

inline int64_t length_of(const Cache& cache, kvc_seq seq) { return info_of(cache, seq).length; }

// Appends so many tokens whose contents don't matter to a sequence, which is added when it is not
// there.
inline void add_tokens(Cache& cache, kvc_seq seq, int64_t count) {
  const kvc_status added = kvc_seq_add(cache.get(), seq, nullptr);
  ASSERT_TRUE(added == KVC_OK || added == KVC_E_ALREADY_EXISTS);
  kvc_error error{};
  ASSERT_EQ(cache.begin({seq}, {count}, &error), KVC_OK) << error.message;
  cache.finish();
}

}  // namespace kvc::test
