// A model of several groups beside one cache per layer, whose pages have as many tokens as the
// layer's group: every call goes to all of them, and outputs, contents and tables have to agree.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <vector>

#include "tests/capi/layers.h"

namespace kvc::test {

inline kvc_layer sized_layer(int32_t kv_heads, int32_t k_dim, int32_t v_dim = 0, int64_t window = 0,
                             int64_t chunk = 0) {
  kvc_layer layer = attention_layer(window, chunk);
  layer.num_kv_heads = kv_heads;
  layer.num_q_heads = 2 * kv_heads;
  layer.k_dim = k_dim;
  layer.v_dim = v_dim == 0 ? k_dim : v_dim;
  return layer;
}

class Twin {
 public:
  Twin(const std::vector<kvc_layer>& layers, uint64_t seed, int64_t num_pages = 400,
       kvc_pool_layout layout = KVC_POOL_LAYER_FIRST, uint64_t flags = 0)
      : random(seed), net_(layers, num_pages) {
    net_.config.pool_layout = layout;
    net_.config.flags = flags;
    mixed = std::make_unique<Cache>(net_.config);
    for (size_t l = 0; l < layers.size(); ++l) {
      kvc_layer_info info{};
      info.struct_size = sizeof info;
      EXPECT_EQ(kvc_plan_layer_get(mixed->plan(), static_cast<int32_t>(l), &info, nullptr), KVC_OK);
      infos.push_back(info);
      Net net({layers[l]}, num_pages);
      net.config.page_size = info.page_size;
      singles.push_back(std::make_unique<Cache>(net.config));
    }
  }

  size_t num_layers() const { return infos.size(); }
  std::set<int32_t> page_size() const {
    std::set<int32_t> sizes;
    for (const kvc_layer_info& info : infos) sizes.insert(info.page_size);
    return sizes;
  }
  std::vector<Cache*> all() const {
    std::vector<Cache*> caches{mixed.get()};
    for (const auto& single : singles) caches.push_back(single.get());
    return caches;
  }
  // Accepted by all.
  template <typename Fn>
  void each(Fn&& call) {
    for (Cache* cache : all()) {
      kvc_error error{};
      ASSERT_EQ(call(*cache, &error), KVC_OK) << error.message;
    }
  }
  // Accepted by the model exactly when every layer by itself could: `at` is a position that
  // kvc_seq_can is asked about.
  template <typename Fn>
  bool where_possible(kvc_seq seq, kvc_seq_op op, int64_t at, Fn&& call) {
    bool possible = true;
    for (const auto& single : singles) {
      int64_t nearest = -1;
      EXPECT_EQ(kvc_seq_can(single->get(), seq, op, at, &nearest, nullptr), KVC_OK);
      possible = possible && nearest == at;
    }
    kvc_error error{};
    const kvc_status status = call(*mixed, &error);
    EXPECT_EQ(status, possible ? KVC_OK : KVC_E_OUT_OF_RANGE) << error.message;
    if (status == KVC_OK && possible) {
      for (const auto& single : singles) EXPECT_EQ(call(*single, nullptr), KVC_OK);
    }
    return possible;
  }

  // Accepted by the model exactly when every layer by itself accepts it, as a fork tells.
  template <typename Fn>
  void where_accepted(kvc_seq seq, Fn&& call) {
    constexpr kvc_seq kTrial = INT64_MAX;
    bool by_each = true, together = false;
    for (Cache* cache : all()) {
      EXPECT_EQ(kvc_seq_fork(cache->get(), seq, kTrial, -1, nullptr), KVC_OK);
      const bool accepts = call(*cache, kTrial, nullptr) == KVC_OK;
      if (cache == mixed.get())
        together = accepts;
      else
        by_each = by_each && accepts;
      EXPECT_EQ(kvc_seq_remove(cache->get(), kTrial, nullptr), KVC_OK);
    }
    EXPECT_EQ(together, by_each);
    if (together) each([&](Cache& cache, kvc_error* err) { return call(cache, seq, err); });
  }

  // One forward: random rows to every layer; outputs, tables and slots agree.
  void step(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
            const std::vector<int32_t>& parents = {}) {
    const Request request{seqs, lengths, parents};
    ASSERT_NO_FATAL_FAILURE(
        each([&](Cache& cache, kvc_error* err) { return cache.begin_with(request, err); }));
    int64_t rows = 0;
    for (const int64_t length : lengths) rows += length;
    for (size_t l = 0; l < num_layers(); ++l) {
      const kvc_layer_info& info = infos[l];
      HostTensor q(Elem::kF32, {rows, info.num_q_heads, info.k_dim});
      HostTensor k(Elem::kF32, {rows, info.num_kv_heads, info.k_dim});
      HostTensor v(Elem::kF32, {rows, info.num_kv_heads, info.v_dim});
      for (HostTensor* tensor : {&q, &k, &v}) tensor->fill_random(random);
      HostTensor out(Elem::kF32, {rows, info.num_q_heads, info.v_dim}),
          expected(Elem::kF32, {rows, info.num_q_heads, info.v_dim});
      kvc_error error{};
      ASSERT_EQ(kvc_attn(mixed->forward, static_cast<int32_t>(l), nullptr, q.dl(), k.dl(), v.dl(),
                         out.dl(), nullptr, &error),
                KVC_OK)
          << error.message;
      ASSERT_EQ(kvc_attn(singles[l]->forward, 0, nullptr, q.dl(), k.dl(), v.dl(), expected.dl(),
                         nullptr, &error),
                KVC_OK)
          << error.message;
      ASSERT_LE(largest_difference(out, expected), 2e-5) << "layer " << l;
      compare_tables(l);
    }
    compare_gathered(
        seqs[static_cast<size_t>(random.range(0, static_cast<int64_t>(seqs.size()) - 1))]);
    for (Cache* cache : all()) cache->end();
  }

  // What a table says of places and lengths does not depend on page ids; slots end in the same
  // offsets.
  void compare_tables(size_t l) {
    const Cache& single = *singles[l];
    const int32_t group = infos[l].group, tokens = infos[l].page_size;
    for (const kvc_table_kind kind : {KVC_TABLE_INDPTR, KVC_TABLE_LAST_PAGE_LEN, KVC_TABLE_SEQ_LENS,
                                      KVC_TABLE_QO_INDPTR, KVC_TABLE_PAGE_POSITION})
      EXPECT_EQ(table_of(*mixed, group, kind), table_of(single, 0, kind))
          << "layer " << l << " kind " << kind;
    const auto pattern = [](std::vector<int64_t> table) {
      for (int64_t& page : table) page = page < 0 ? -1 : 0;
      return table;
    };
    const std::vector<int64_t> blocks = table_of(*mixed, group, KVC_TABLE_BLOCK_TABLE);
    EXPECT_EQ(pattern(blocks), pattern(table_of(single, 0, KVC_TABLE_BLOCK_TABLE)))
        << "layer " << l;
    const std::vector<int64_t> slots = table_of(*mixed, group, KVC_TABLE_SLOT_MAPPING);
    const std::vector<int64_t> others = table_of(single, 0, KVC_TABLE_SLOT_MAPPING);
    const std::vector<int64_t> ends = table_of(*mixed, group, KVC_TABLE_QO_INDPTR);
    const std::vector<int64_t> lengths = table_of(*mixed, group, KVC_TABLE_SEQ_LENS);
    ASSERT_EQ(slots.size(), others.size());
    const size_t width = blocks.size() / lengths.size();
    for (size_t s = 0; s < lengths.size(); ++s) {
      for (int64_t row = ends[s]; row < ends[s + 1]; ++row) {
        const int64_t token = lengths[s] - (ends[s + 1] - row),
                      slot = slots[static_cast<size_t>(row)];
        EXPECT_EQ(slot % tokens, token % tokens);
        EXPECT_EQ(slot / tokens, blocks[s * width + static_cast<size_t>(token / tokens)]);
        EXPECT_EQ(slot % tokens, others[static_cast<size_t>(row)] % tokens);
      }
    }
  }

  // kvc_kv_gather of a sequence of the open forward.
  void compare_gathered(kvc_seq seq) {
    for (size_t l = 0; l < num_layers(); ++l) {
      const kvc_layer_info& info = infos[l];
      const std::vector<int64_t> lengths = table_of(*mixed, info.group, KVC_TABLE_SEQ_LENS);
      const int64_t most = *std::max_element(lengths.begin(), lengths.end());
      HostTensor k1(Elem::kF32, {most, info.num_kv_heads, info.k_dim}), k2(Elem::kF32, k1.shape());
      HostTensor v1(Elem::kF32, {most, info.num_kv_heads, info.v_dim}), v2(Elem::kF32, v1.shape());
      const kvc_status status =
          kvc_kv_gather(mixed->forward, static_cast<int32_t>(l), seq, k1.dl(), v1.dl(), nullptr);
      ASSERT_EQ(kvc_kv_gather(singles[l]->forward, 0, seq, k2.dl(), v2.dl(), nullptr), status);
      ASSERT_TRUE(status == KVC_OK || status == KVC_E_OUT_OF_RANGE) << kvc_status_name(status);
      EXPECT_TRUE(k1.same_bytes(k2) && v1.same_bytes(v2)) << "layer " << l;
    }
  }

  // Stored K and V of one sequence are bit for bit those of the layers by themselves.
  void compare_contents(kvc_seq seq) {
    for (size_t l = 0; l < num_layers(); ++l) {
      const auto layer = static_cast<int32_t>(l);
      const kvc_layer_info& info = infos[l];
      const int64_t end = length_of(*singles[l], seq);
      ASSERT_EQ(length_of(*mixed, seq), end);
      HostTensor k(Elem::kF32, {end, info.num_kv_heads, info.k_dim}),
          v(Elem::kF32, {end, info.num_kv_heads, info.v_dim});
      kvc_error error{}, other{};
      const kvc_status status =
          kvc_debug_get_layer(mixed->get(), seq, layer, 0, end, k.dl(), v.dl(), nullptr, &error);
      ASSERT_EQ(
          kvc_debug_get_layer(singles[l]->get(), seq, 0, 0, end, k.dl(), v.dl(), nullptr, &other),
          status);
      int64_t begin = 0;
      if (status != KVC_OK) {
        ASSERT_EQ(status, KVC_E_OUT_OF_RANGE) << error.message;
        ASSERT_EQ(error.detail, other.detail) << "first kept token of layer " << l;
        begin = error.detail;
      }
      HostTensor k1(Elem::kF32, {end - begin, info.num_kv_heads, info.k_dim}),
          k2(Elem::kF32, k1.shape());
      HostTensor v1(Elem::kF32, {end - begin, info.num_kv_heads, info.v_dim}),
          v2(Elem::kF32, v1.shape());
      ASSERT_EQ(kvc_debug_get_layer(mixed->get(), seq, layer, begin, end, k1.dl(), v1.dl(), nullptr,
                                    nullptr),
                KVC_OK);
      ASSERT_EQ(kvc_debug_get_layer(singles[l]->get(), seq, 0, begin, end, k2.dl(), v2.dl(),
                                    nullptr, nullptr),
                KVC_OK);
      EXPECT_TRUE(k1.same_bytes(k2)) << "K of layer " << l;
      EXPECT_TRUE(v1.same_bytes(v2)) << "V of layer " << l;
      EXPECT_EQ(pages_of(*mixed, seq, info.group).size(), pages_of(*singles[l], seq, 0).size());
    }
  }
  void check() {
    for (Cache* cache : all()) {
      kvc_error error{};
      ASSERT_EQ(kvc_cache_check(cache->get(), &error), KVC_OK) << error.message;
    }
  }

  Random random;
  std::unique_ptr<Cache> mixed;
  std::vector<std::unique_ptr<Cache>> singles;
  std::vector<kvc_layer_info> infos;

 private:
  Net net_;
};

}  // namespace kvc::test
