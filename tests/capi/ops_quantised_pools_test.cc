// kvcache.h, section "Operators", over quantised pools of the host: against arithmetic in double,
// against caches with the same rows, and what is refused.
#include <cmath>
#include <limits>

#include "tests/capi/code_tensor.h"
#include "tests/capi/layers.h"
#include "tests/capi/ops_fixture.h"
#include "tests/stress/executor.h"

namespace kvc::test {
namespace {

struct PoolKind {
  kvc_quant quant;
  Code code;
};
constexpr PoolKind kPoolKinds[] = {
    {KVC_QUANT_PER_TOKEN_HEAD, Code::kInt8}, {KVC_QUANT_PER_TOKEN_HEAD, Code::kE4M3},
    {KVC_QUANT_PER_TOKEN_HEAD, Code::kE5M2}, {KVC_QUANT_PER_TENSOR, Code::kInt8},
    {KVC_QUANT_PER_TENSOR, Code::kE4M3},     {KVC_QUANT_PER_TENSOR, Code::kE5M2}};

// The scales of K and V differ.
float pool_scale(Code code, bool is_v) {
  return (is_v ? 0.9f : 1.1f) / static_cast<float>(largest_code(code));
}

NaiveStorage pool_storage(const PoolKind& kind, bool is_v) {
  return {Elem::kF32, kind.code,
          kind.quant == KVC_QUANT_PER_TENSOR ? pool_scale(kind.code, is_v) : 0.0f};
}

// A quantised pool of the host: 0xFF in all that no append has written.
class QuantisedPool {
 public:
  QuantisedPool(const PoolKind& kind, const PoolShape& shape)
      : shape_(shape),
        k_(kind.code, extents(shape.k_dim), shape.gap),
        v_(kind.code, extents(shape.v_dim), shape.gap),
        k_scales_(Elem::kF32, extents(0), placement()),
        v_scales_(Elem::kF32, extents(0), placement()) {
    const bool has_v = shape.layout != KVC_OP_MLA && !shape.v_is_k;
    pool_.struct_size = sizeof pool_;
    pool_.k = k_.dl();
    pool_.v = has_v ? v_.dl() : nullptr;
    pool_.layout = shape.layout;
    pool_.quant = kind.quant;
    if (kind.quant == KVC_QUANT_PER_TENSOR) {
      pool_.k_scale = pool_scale(kind.code, false);
      pool_.v_scale = has_v ? pool_scale(kind.code, true) : 0;
    } else {
      pool_.k_scales = k_scales_.dl();
      pool_.v_scales = has_v ? v_scales_.dl() : nullptr;
    }
  }
  QuantisedPool(const QuantisedPool&) = delete;
  QuantisedPool& operator=(const QuantisedPool&) = delete;

  const kvc_op_pool* c() const { return &pool_; }
  kvc_op_pool& edit() { return pool_; }
  CodeTensor& k() { return k_; }
  CodeTensor& v() { return v_; }
  HostTensor& k_scales() { return k_scales_; }
  HostTensor& v_scales() { return v_scales_; }
  bool same_bytes(const QuantisedPool& other) const {
    return k_.same_bytes(other.k_) && v_.same_bytes(other.v_) &&
           k_scales_.same_bytes(other.k_scales_) && v_scales_.same_bytes(other.v_scales_);
  }

 private:
  // dim 0: of scales.
  std::vector<int64_t> extents(int64_t dim) const {
    std::vector<int64_t> all{shape_.pages};
    if (shape_.layout == KVC_OP_HND) all.push_back(shape_.heads);
    all.push_back(shape_.page_size);
    if (shape_.layout == KVC_OP_NHD) all.push_back(shape_.heads);
    if (dim != 0) all.push_back(dim);
    return all;
  }
  Placement placement() const {
    Placement placement;
    placement.row_gap = 2 * shape_.gap;
    placement.inner_gap = shape_.gap;
    return placement;
  }

  PoolShape shape_;
  CodeTensor k_, v_;
  HostTensor k_scales_, v_scales_;
  kvc_op_pool pool_{};
};

// The values that a pool holds of rows [T][heads][dim].
std::vector<double> stored_values(const PoolKind& kind, bool is_v, HostTensor& rows) {
  std::vector<double> all;
  for (int64_t t = 0; t < rows.size(0); ++t) {
    std::vector<double> row;
    for (int64_t h = 0; h < rows.size(1); ++h)
      for (int64_t d = 0; d < rows.size(2); ++d) row.push_back(rows.get(t, h, d));
    const std::vector<double> stored = stored_row(pool_storage(kind, is_v), row, rows.size(1));
    all.insert(all.end(), stored.begin(), stored.end());
  }
  return all;
}

// Kernels round q and the weights of these types: see KernelTable::attn_decode and attn_tile.
double attention_tolerance(Code code) { return code == Code::kInt8 ? 4e-3 : 2e-2; }

// Rows of a pool as they are kept: heads, and elements of K and V. Rows of V are v_row_dim apart.
struct KeptRows {
  int64_t heads, k_dim, v_dim, v_row_dim;
};

// Causal attention in double over the kept values of all sequences, packed in their order.
void expect_attention(const Tables& tables, const KeptRows& rows, const std::vector<double>& k,
                      const std::vector<double>& v, double scale, HostTensor& q, HostTensor& out,
                      HostTensor* lse, double tolerance) {
  const int64_t group = q.size(1) / rows.heads;
  int64_t row = 0, first_key = 0;
  for (int64_t i = 0; i < tables.count(); first_key += tables.length(i), ++i) {
    for (int64_t r = 0; r < tables.rows(i); ++r, ++row) {
      const int64_t keys = tables.length(i) - tables.rows(i) + r + 1;
      for (int64_t head = 0; head < q.size(1); ++head) {
        const auto at = [&](int64_t key, int64_t dim) {
          return static_cast<size_t>(((first_key + key) * rows.heads + head / group) * dim);
        };
        std::vector<double> weights;
        double top = -INFINITY, sum = 0;
        for (int64_t key = 0; key < keys; ++key) {
          double s = 0;
          for (int64_t d = 0; d < rows.k_dim; ++d)
            s += q.get(row, head, d) * k[at(key, rows.k_dim) + static_cast<size_t>(d)];
          weights.push_back(scale * s);
          top = std::max(top, weights.back());
        }
        for (double& weight : weights) sum += weight = std::exp(weight - top);
        for (int64_t d = 0; d < rows.v_dim; ++d) {
          double want = 0;
          for (int64_t key = 0; key < keys; ++key) {
            want += weights[static_cast<size_t>(key)] / sum *
                    v[at(key, rows.v_row_dim) + static_cast<size_t>(d)];
          }
          ASSERT_NEAR(out.get(row, head, d), want, tolerance) << "row " << row << " head " << head;
        }
        if (lse != nullptr) {
          ASSERT_NEAR(lse->get(row, head), top + std::log(sum), 2 * tolerance) << "row " << row;
        }
      }
    }
  }
}

struct PoolCase {
  kvc_op_layout layout;
  int64_t heads, page_size, k_dim, v_dim, gap;
};
constexpr PoolCase kPoolCases[] = {{KVC_OP_HND, 1, 16, 64, 64, 0},
                                   {KVC_OP_HND, 3, 1, 80, 65, 3},
                                   {KVC_OP_NHD, 3, 48, 65, 80, 0},
                                   {KVC_OP_NHD, 1, 16, 128, 128, 5}};

PoolShape case_shape(const PoolCase& c) {
  PoolShape shape;
  shape.layout = c.layout, shape.heads = c.heads, shape.page_size = c.page_size;
  shape.k_dim = c.k_dim, shape.v_dim = c.v_dim, shape.gap = c.gap;
  shape.pages = 140 / c.page_size + 8;
  return shape;
}

std::vector<int64_t> pool_slots(const Tables& tables) {
  std::vector<int64_t> slots;
  for (int64_t i = 0; i < tables.count(); ++i)
    for (int64_t key = 0; key < tables.length(i); ++key) slots.push_back(tables.slot(i, key));
  return slots;
}

// Sequences of no, one and many keys, appended in one call, then gathered and attended to.
TEST(OpQuantisedPools, AppendGatherAndAttendAsArithmeticInDoubleSays) {
  for (const kvc_cpu_isa isa : isas()) {
    for (const PoolKind& kind : kPoolKinds) {
      for (const PoolCase& c : kPoolCases) {
        SCOPED_TRACE(testing::Message()
                     << "isa " << isa << " " << name_of(pool_storage(kind, false)) << " layout "
                     << c.layout << " page_size " << c.page_size);
        Random random(31);
        const PoolShape shape = case_shape(c);
        QuantisedPool pool(kind, shape);
        Tables tables(random, shape, {0, 1, 70, 41}, {0, 1, 1, 9});
        const int64_t num_keys = tables.num_keys(), q_heads = 2 * c.heads;
        HostTensor k(Elem::kF32, {num_keys, c.heads, c.k_dim}, {.row_gap = 1}),
            v(Elem::kBF16, {num_keys, c.heads, c.v_dim});
        k.fill_random(random), v.fill_random(random);
        Indices<int64_t> slots(pool_slots(tables));
        kvc_op_opt opt = op_options();
        opt.cpu_isa = isa;
        expect_ok([&](kvc_error* err) {
          return kvc_op_append(pool.c(), &opt, slots.dl(), k.dl(), v.dl(), err);
        });
        const std::vector<double> k_stored = stored_values(kind, false, k),
                                  v_stored = stored_values(kind, true, v);

        kvc_op_table table = tables.c(false, false);
        HostTensor k_out(Elem::kF32, {num_keys, c.heads, c.k_dim}, {.extra_rows = 1}),
            v_out(Elem::kF16, {num_keys, c.heads, c.v_dim}, {.inner_gap = 2});
        expect_ok([&](kvc_error* err) {
          return kvc_op_gather(pool.c(), &table, &opt, k_out.dl(), v_out.dl(), err);
        });
        size_t at = 0;
        k_out.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
          ASSERT_EQ(k_out.get(t, h, d), k_stored[at++]) << "K of key " << t;
        });
        at = 0;
        v_out.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
          ASSERT_EQ(v_out.get(t, h, d), round_to(Elem::kF16, v_stored[at++])) << "V of key " << t;
        });
        EXPECT_TRUE(k_out.padding_untouched() && v_out.padding_untouched());

        table = tables.c(true);
        const int64_t num_rows = tables.num_rows();
        HostTensor q(Elem::kF32, {num_rows, q_heads, c.k_dim}),
            out(Elem::kF32, {num_rows, q_heads, c.v_dim}), lse(Elem::kF32, {num_rows, q_heads});
        q.fill_random(random);
        expect_ok([&](kvc_error* err) {
          return kvc_op_attention_paged(pool.c(), &table, &opt, q.dl(), out.dl(), lse.dl(), err);
        });
        expect_attention(tables, {c.heads, c.k_dim, c.v_dim, c.v_dim}, k_stored, v_stored,
                         1 / std::sqrt(static_cast<double>(c.k_dim)), q, out, &lse,
                         attention_tolerance(kind.code));
        if (testing::Test::HasFailure()) return;
        EXPECT_TRUE(pool.k().padding_untouched() && pool.v().padding_untouched());
        EXPECT_TRUE(pool.k_scales().padding_untouched() && pool.v_scales().padding_untouched());
      }
    }
  }
}

DLTensor token_rows(HostTensor& tensor, int64_t first, int64_t count, std::vector<int64_t>* shape) {
  *shape = tensor.shape();
  (*shape)[0] = count;
  DLTensor part = *tensor.dl();
  part.byte_offset = static_cast<uint64_t>(tensor.at(first) - tensor.at(0));
  part.shape = shape->data();
  return part;
}

// The layer of a cache that stores what a pool of this kind does.
kvc_layer layer_like(const PoolKind& kind, const kvc_rope* rope) {
  kvc_layer layer{};
  layer.struct_size = sizeof layer;
  layer.quant = kind.quant;
  layer.k_dtype = dl_type(pool_storage(kind, false));
  layer.rope = rope;
  if (kind.quant == KVC_QUANT_PER_TENSOR)
    layer.k_scale = pool_scale(kind.code, false), layer.v_scale = pool_scale(kind.code, true);
  return layer;
}

TEST(OpQuantisedPools, GiveTheBitsOfACacheWithTheSameRows) {
  constexpr int64_t kBefore = 61, kHeads = 3, kRowDim = 80;
  for (const kvc_cpu_isa isa : isas()) {
    for (const PoolKind& kind : kPoolKinds) {
      for (const int32_t page_size : {1, 16, 48}) {
        for (const int64_t rows : {1, 30}) {
          SCOPED_TRACE(testing::Message()
                       << "isa " << isa << " " << name_of(pool_storage(kind, false))
                       << " page_size " << page_size << " rows " << rows);
          kvc_rope rope = rope_on_append(KVC_ROPE_HALF, 32);
          kvc_layer layer = layer_like(kind, &rope);
          layer.num_q_heads = 6, layer.num_kv_heads = kHeads;
          layer.k_dim = layer.v_dim = kRowDim;
          const int64_t length = kBefore + rows;
          Net net({layer}, length / page_size + 2);
          net.config.page_size = page_size;
          net.config.cpu_isa = isa;
          Cache cache(net.config);
          Random random(22);
          HostTensor k(Elem::kF32, {length, kHeads, kRowDim}),
              v(Elem::kBF16, {length, kHeads, kRowDim}), q(Elem::kF32, {length, 6, kRowDim});
          for (HostTensor* tensor : {&k, &v, &q}) tensor->fill_random(random);
          std::vector<int64_t> shapes[3];
          HostTensor expected(Elem::kF32, {length, 6, kRowDim}),
              out(Elem::kF32, {rows, 6, kRowDim});
          HostTensor lse(Elem::kF32, {length, 6}), op_lse(Elem::kF32, {rows, 6});
          ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
          for (const auto& [first, count] :
               {std::pair(int64_t{0}, kBefore), std::pair(kBefore, rows)}) {
            ASSERT_EQ(cache.begin({1}, {count}), KVC_OK);
            const DLTensor q_part = token_rows(q, first, count, &shapes[0]),
                           k_part = token_rows(k, first, count, &shapes[1]),
                           v_part = token_rows(v, first, count, &shapes[2]);
            ASSERT_EQ(kvc_attn(cache.forward, 0, nullptr, &q_part, &k_part, &v_part, expected.dl(),
                               lse.dl(), nullptr),
                      KVC_OK);
            cache.end();
          }

          PoolShape shape;
          shape.layout = KVC_OP_NHD, shape.heads = kHeads, shape.page_size = page_size;
          shape.k_dim = shape.v_dim = kRowDim, shape.pages = length / page_size + 5;
          QuantisedPool pool(kind, shape);
          Tables tables(random, shape, {static_cast<int32_t>(length)},
                        {static_cast<int32_t>(rows)});
          Indices<int64_t> slots(pool_slots(tables));
          std::vector<int32_t> all(static_cast<size_t>(length));
          std::iota(all.begin(), all.end(), 0);
          Indices<int32_t> key_positions(all),
              row_positions(std::vector<int32_t>(all.end() - rows, all.end()));
          kvc_op_opt opt = op_options();
          opt.cpu_isa = isa, opt.rope = &rope, opt.positions = key_positions.dl();
          ASSERT_EQ(kvc_op_append(pool.c(), &opt, slots.dl(), k.dl(), v.dl(), nullptr), KVC_OK);
          opt.positions = row_positions.dl();
          const kvc_op_table table = tables.c(true);
          const DLTensor q_new = token_rows(q, kBefore, rows, &shapes[0]);
          ASSERT_EQ(kvc_op_attention_paged(pool.c(), &table, &opt, &q_new, out.dl(), op_lse.dl(),
                                           nullptr),
                    KVC_OK);
          out.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
            ASSERT_EQ(out.get(t, h, d), expected.get(t, h, d)) << "row " << t;
          });
          op_lse.for_each([&](int64_t t, int64_t h, int64_t, int64_t) {
            ASSERT_EQ(op_lse.get(t, h), lse.get(t, h));
          });

          HostTensor k_cache(Elem::kF32, {length, kHeads, kRowDim}),
              v_cache(Elem::kF32, {length, kHeads, kRowDim}),
              k_pool(Elem::kF32, {length, kHeads, kRowDim}),
              v_pool(Elem::kF32, {length, kHeads, kRowDim});
          ASSERT_EQ(kvc_debug_get_layer(cache.get(), 1, 0, 0, length, k_cache.dl(), v_cache.dl(),
                                        nullptr, nullptr),
                    KVC_OK);
          const kvc_op_table keys = tables.c(false, false);
          kvc_op_opt plain = op_options();
          plain.cpu_isa = isa;
          ASSERT_EQ(kvc_op_gather(pool.c(), &keys, &plain, k_pool.dl(), v_pool.dl(), nullptr),
                    KVC_OK);
          EXPECT_TRUE(k_pool.same_bytes(k_cache) && v_pool.same_bytes(v_cache));
          if (testing::Test::HasFailure()) return;
        }
      }
    }
  }
}

constexpr int32_t kLatentRank = 64, kRotated = 16, kWidth = kLatentRank + kRotated;

// Tokens of a sequence in a cache of latents: the outputs of the last `rows` tokens.
void attend_in_cache(const PoolKind& kind, kvc_cpu_isa isa, int64_t before, int64_t rows,
                     HostTensor& latents, HostTensor& q, const kvc_attn_opt& attn,
                     HostTensor& out) {
  kvc_layer layer = layer_like(kind, nullptr);
  layer.kind = KVC_LAYER_MLA, layer.num_q_heads = static_cast<int32_t>(q.size(1));
  layer.latent_rank = kLatentRank, layer.latent_rope_dim = kRotated;
  layer.v_scale = 0;
  Net net({layer}, 8);
  net.config.page_size = 16;
  net.config.cpu_isa = isa;
  Cache cache(net.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  std::vector<int64_t> shapes[2];
  for (const auto& [first, count] : {std::pair(int64_t{0}, before), std::pair(before, rows)}) {
    ASSERT_EQ(cache.begin({1}, {count}), KVC_OK);
    const DLTensor q_part = token_rows(q, first, count, &shapes[0]),
                   k_part = token_rows(latents, first, count, &shapes[1]);
    ASSERT_EQ(
        kvc_attn(cache.forward, 0, &attn, &q_part, &k_part, nullptr, out.dl(), nullptr, nullptr),
        KVC_OK);
    cache.end();
  }
}

TEST(OpQuantisedPools, LatentsServeAllHeads) {
  constexpr int64_t kBefore = 45;
  for (const kvc_cpu_isa isa : isas()) {
    for (const PoolKind& kind : kPoolKinds) {
      for (const int64_t rows : {1, 20}) {
        SCOPED_TRACE(testing::Message() << "isa " << isa << " "
                                        << name_of(pool_storage(kind, false)) << " rows " << rows);
        const int64_t length = kBefore + rows;
        Random random(23);
        HostTensor latents(Elem::kBF16, {length, 1, kWidth}), q(Elem::kF32, {length, 5, kWidth});
        latents.fill_random(random), q.fill_random(random);
        HostTensor new_q(Elem::kF32, {rows, 5, kWidth}), out(Elem::kF32, {rows, 5, kLatentRank}),
            lse(Elem::kF32, {rows, 5});
        new_q.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
          new_q.set(q.get(kBefore + t, h, d), t, h, d);
        });
        kvc_attn_opt attn = attn_options();
        attn.scale = 0.125f;

        PoolShape shape;
        shape.layout = KVC_OP_MLA, shape.heads = 1, shape.page_size = 16, shape.pages = 9;
        shape.k_dim = shape.v_dim = kWidth, shape.gap = 2;
        QuantisedPool pool(kind, shape);
        Tables tables(random, shape, {static_cast<int32_t>(length)}, {static_cast<int32_t>(rows)});
        Indices<int64_t> slots(pool_slots(tables));
        kvc_op_opt opt = op_options();
        opt.cpu_isa = isa;
        ASSERT_EQ(kvc_op_append(pool.c(), &opt, slots.dl(), latents.dl(), nullptr, nullptr),
                  KVC_OK);
        opt.attn = &attn;
        const kvc_op_table table = tables.c(true);
        expect_ok([&](kvc_error* err) {
          return kvc_op_mla_paged(pool.c(), &table, kLatentRank, &opt, new_q.dl(), out.dl(),
                                  lse.dl(), err);
        });
        const std::vector<double> stored = stored_values(kind, false, latents);
        expect_attention(tables, {1, kWidth, kLatentRank, kWidth}, stored, stored, 0.125, new_q,
                         out, &lse, attention_tolerance(kind.code));
        // Caches keep latents with one scale for all.
        if (kind.quant == KVC_QUANT_PER_TENSOR) {
          HostTensor expected(Elem::kF32, {length, 5, kLatentRank});
          attend_in_cache(kind, isa, kBefore, rows, latents, q, attn, expected);
          out.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
            ASSERT_EQ(out.get(t, h, d), expected.get(t, h, d)) << "row " << t;
          });
        }
        if (testing::Test::HasFailure()) return;
      }
    }
  }
}

TEST(OpQuantisedPools, PagesAreCopiedWithTheirScalesAndNothingElseIs) {
  for (const PoolKind& kind : kPoolKinds) {
    for (const kvc_op_layout layout : {KVC_OP_HND, KVC_OP_NHD, KVC_OP_MLA}) {
      for (const int64_t gap : {0, 3}) {
        SCOPED_TRACE(testing::Message()
                     << name_of(pool_storage(kind, false)) << " layout " << layout);
        Random random(24);
        PoolShape shape;
        shape.layout = layout, shape.heads = layout == KVC_OP_MLA ? 1 : 3, shape.pages = 6;
        shape.page_size = 16, shape.k_dim = 65, shape.v_dim = layout == KVC_OP_MLA ? 65 : 80;
        shape.gap = gap;
        QuantisedPool pool(kind, shape), want(kind, shape);
        HostTensor k(Elem::kF32, {32, shape.heads, 65}), v(Elem::kF32, {32, shape.heads, 80});
        k.fill_random(random), v.fill_random(random);
        DLTensor* v_rows = layout == KVC_OP_MLA ? nullptr : v.dl();
        std::vector<int64_t> there(32), copies(32);
        std::iota(there.begin(), there.end(), 16);    // Pages 1 and 2.
        std::iota(copies.begin(), copies.end(), 64);  // Pages 4 and 5.
        Indices<int64_t> own(there), other(copies), pairs({1, 4, 2, 5}, {2, 2});
        ASSERT_EQ(kvc_op_append(pool.c(), nullptr, own.dl(), k.dl(), v_rows, nullptr), KVC_OK);
        expect_ok(
            [&](kvc_error* err) { return kvc_op_copy_pages(pool.c(), nullptr, pairs.dl(), err); });
        for (Indices<int64_t>* slots : {&own, &other})
          ASSERT_EQ(kvc_op_append(want.c(), nullptr, slots->dl(), k.dl(), v_rows, nullptr), KVC_OK);
        EXPECT_TRUE(pool.same_bytes(want));
      }
    }
  }
}

TEST(OpQuantisedPools, AValueThatIsAKeyTooHasItsScale) {
  for (const PoolKind& kind : kPoolKinds) {
    SCOPED_TRACE(name_of(pool_storage(kind, false)));
    Random random(25);
    PoolShape shape;
    shape.heads = 1, shape.k_dim = shape.v_dim = 33, shape.v_is_k = true;
    QuantisedPool pool(kind, shape);
    Tables tables(random, shape, {1}, {1});
    HostTensor k(Elem::kF32, {1, 1, 33}), q(Elem::kF32, {1, 1, 33}), out(Elem::kF32, {1, 1, 33});
    k.fill_random(random), q.fill_random(random);
    Indices<int64_t> slots(pool_slots(tables));
    ASSERT_EQ(kvc_op_append(pool.c(), nullptr, slots.dl(), k.dl(), nullptr, nullptr), KVC_OK);
    const kvc_op_table table = tables.c(true);
    ASSERT_EQ(kvc_op_attention_paged(pool.c(), &table, nullptr, q.dl(), out.dl(), nullptr, nullptr),
              KVC_OK);
    const std::vector<double> stored = stored_values(kind, false, k);
    for (int64_t d = 0; d < 33; ++d)
      EXPECT_NEAR(out.get(0, 0, d), stored[static_cast<size_t>(d)], attention_tolerance(kind.code));
  }
}

TEST(OpQuantisedPools, AScaleOfZeroIsOne) {
  PoolShape shape;
  shape.heads = 1, shape.pages = 1;
  const PoolKind kind{KVC_QUANT_PER_TENSOR, Code::kInt8};
  QuantisedPool pool(kind, shape);
  pool.edit().k_scale = 0, pool.edit().v_scale = 2;
  HostTensor rows(Elem::kF32, {1, 1, 8});
  for (int64_t d = 0; d < 8; ++d) rows.set(static_cast<double>(d) * 2, 0, 0, d);
  Indices<int64_t> slots({3});
  ASSERT_EQ(kvc_op_append(pool.c(), nullptr, slots.dl(), rows.dl(), rows.dl(), nullptr), KVC_OK);
  for (int64_t d = 0; d < 8; ++d) {
    EXPECT_EQ(pool.k().get(0, 3, 0, d), d * 2);
    EXPECT_EQ(pool.v().get(0, 3, 0, d), d);
  }
}

TEST(OpQuantisedPools, TheHostsThreadsGiveTheSameBits) {
  const PoolKind kind{KVC_QUANT_PER_TOKEN_HEAD, Code::kInt8};
  PoolShape shape;
  shape.pages = 90, shape.heads = 4, shape.page_size = 16, shape.k_dim = shape.v_dim = 64;
  ThreadedExecutor threads;
  const kvc_executor hooks = threads.hooks();
  kvc_op_opt alone = op_options(), spread = op_options();
  spread.executor = &hooks;
  Random random(26);
  Tables tables(random, shape, {600, 700}, {1, 40});
  HostTensor k(Elem::kF32, {1300, 4, 64}), v(Elem::kF32, {1300, 4, 64});
  HostTensor q(Elem::kF32, {41, 8, 64}), one_out(Elem::kF32, {41, 8, 64}),
      many_out(Elem::kF32, {41, 8, 64});
  for (HostTensor* tensor : {&k, &v, &q}) tensor->fill_random(random);
  QuantisedPool one(kind, shape), many(kind, shape);
  Indices<int64_t> slots(pool_slots(tables));
  const kvc_op_table table = tables.c(true);
  for (const auto& [pool, opt, out] :
       {std::tuple(&one, &alone, &one_out), std::tuple(&many, &spread, &many_out)}) {
    ASSERT_EQ(kvc_op_append(pool->c(), opt, slots.dl(), k.dl(), v.dl(), nullptr), KVC_OK);
    ASSERT_EQ(kvc_op_attention_paged(pool->c(), &table, opt, q.dl(), out->dl(), nullptr, nullptr),
              KVC_OK);
  }
  EXPECT_GT(threads.tasks, 0);
  EXPECT_TRUE(one.same_bytes(many) && one_out.same_bytes(many_out));
}

class OpQuantisedPoolRefusals : public testing::Test {
 protected:
  OpQuantisedPoolRefusals() : rows_pool(kPoolKinds[0], shape), shared_pool(kPoolKinds[3], shape) {
    Random random(27);
    k.fill_random(random), v.fill_random(random);
  }
  // By every function that takes a pool; none of them writes.
  void refused(QuantisedPool& pool, kvc_status status, std::initializer_list<const char*> parts) {
    expect_error(status, parts, [&](kvc_error* err) {
      return kvc_op_append(pool.c(), nullptr, slots.dl(), k.dl(), v.dl(), err);
    });
    expect_error(status, parts, [&](kvc_error* err) {
      return kvc_op_copy_pages(pool.c(), nullptr, pairs.dl(), err);
    });
    const kvc_op_table table = tables.c(true), keys = tables.c(true, false);
    expect_error(status, parts, [&](kvc_error* err) {
      return kvc_op_attention_paged(pool.c(), &table, nullptr, k.dl(), out.dl(), nullptr, err);
    });
    expect_error(status, parts, [&](kvc_error* err) {
      return kvc_op_gather(pool.c(), &keys, nullptr, out.dl(), nullptr, err);
    });
    EXPECT_TRUE(pool.k().is_untouched() && pool.v().is_untouched() && out.is_untouched());
  }

  PoolShape shape{.layout = KVC_OP_NHD};
  QuantisedPool rows_pool, shared_pool;
  Random random{28};
  Tables tables{random, shape, {2}, {2}};
  Indices<int64_t> slots{{4, 5}}, pairs{{0, 1}, {1, 2}};
  HostTensor k{Elem::kF32, {2, 2, 8}}, v{Elem::kF32, {2, 2, 8}}, out{Elem::kF32, {2, 2, 8}};
};

TEST_F(OpQuantisedPoolRefusals, TypesAndKindsThatDoNotBelongTogether) {
  const kvc_op_pool right = *rows_pool.c();
  kvc_op_pool& edited = rows_pool.edit();
  edited.quant = KVC_QUANT_NONE, edited.k_scales = edited.v_scales = nullptr;
  refused(rows_pool, KVC_E_DTYPE,
          {"pool.k is int8", "pool.quant = NONE (0)", "PER_TENSOR (1)", "PER_TOKEN_HEAD (2)"});
  edited = right, edited.quant = KVC_QUANT_BLOCK16;
  refused(rows_pool, KVC_E_UNSUPPORTED, {"pool.quant = BLOCK16, 3", "PER_TOKEN_HEAD (2)"});
  edited = right, edited.quant = 9;
  refused(rows_pool, KVC_E_UNSUPPORTED, {"pool.quant = 9"});
  edited = right;
  for (const bool is_v : {false, true}) {
    const std::string name = is_v ? "pool.v" : "pool.k";
    HostTensor floats(Elem::kF32, {24, 4, 2, 8});
    (is_v ? edited.v : edited.k) = floats.dl();
    refused(rows_pool, KVC_E_DTYPE,
            {(name + " is float32").c_str(), "PER_TOKEN_HEAD (2)", "int8, float8_e4m3fn"});
    edited = right;
    DLTensor* tensor = (is_v ? rows_pool.v() : rows_pool.k()).dl();
    tensor->dtype = {kDLInt, 4, 1};
    refused(rows_pool, KVC_E_UNSUPPORTED, {(name + " is int4").c_str(), "8 bits"});
    tensor->dtype = {kDLUInt, 8, 1};
    refused(rows_pool, KVC_E_DTYPE, {(name + " is uint8").c_str(), "int8, float8_e4m3fn"});
    tensor->dtype = {kDLInt, 8, 1};
  }
  HostTensor floats(Elem::kF32, {24, 4, 2, 8});
  edited.quant = KVC_QUANT_NONE, edited.k_scales = edited.v_scales = nullptr,
  edited.k = floats.dl();
  refused(rows_pool, KVC_E_DTYPE, {"pool.v is int8", "pool.quant = NONE (0)"});
}

TEST_F(OpQuantisedPoolRefusals, ScalesThatAreMissingOrDoNotFit) {
  const kvc_op_pool right = *rows_pool.c();
  kvc_op_pool& edited = rows_pool.edit();
  HostTensor few(Elem::kF32, {23, 4, 2}), turned(Elem::kF32, {24, 2, 4}),
      half(Elem::kF16, {24, 4, 2}), flat(Elem::kF32, {24, 4});
  for (const bool is_v : {false, true}) {
    const std::string name = is_v ? "pool.v_scales" : "pool.k_scales";
    const auto with = [&](const DLTensor* scales, kvc_status status,
                          std::initializer_list<const char*> parts) {
      edited = right;
      (is_v ? edited.v_scales : edited.k_scales) = scales;
      refused(rows_pool, status, parts);
    };
    with(nullptr, KVC_E_INVALID_ARGUMENT, {(name + " is NULL").c_str()});
    with(few.dl(), KVC_E_SHAPE, {name.c_str(), "[23, 4, 2]", "24"});
    with(turned.dl(), KVC_E_SHAPE, {name.c_str(), "[24, 2, 4]", "4, 2"});
    with(flat.dl(), KVC_E_SHAPE, {name.c_str(), "2 dimensions", "3"});
    with(half.dl(), KVC_E_DTYPE, {(name + " is float16").c_str(), "float32"});
  }
  edited = right, edited.v = nullptr;
  refused(rows_pool, KVC_E_INVALID_ARGUMENT, {"pool.v_scales is set", "pool.v is NULL"});
  edited = right, edited.k_scale = 0.5f;
  refused(rows_pool, KVC_E_INVALID_ARGUMENT, {"pool.k_scale = 0.5", "PER_TOKEN_HEAD (2)"});
  edited = right, edited.v_scale = -2;
  refused(rows_pool, KVC_E_INVALID_ARGUMENT, {"pool.v_scale = -2", "PER_TOKEN_HEAD (2)"});
  edited = right, edited.quant = KVC_QUANT_PER_TENSOR;
  refused(rows_pool, KVC_E_INVALID_ARGUMENT, {"pool.k_scales is set", "PER_TENSOR (1)"});
  edited.k_scales = nullptr;
  refused(rows_pool, KVC_E_INVALID_ARGUMENT, {"pool.v_scales is set", "PER_TENSOR (1)"});
}

TEST_F(OpQuantisedPoolRefusals, ScalesOfAllRowsThatAreNoDivisors) {
  const kvc_op_pool right = *shared_pool.c();
  kvc_op_pool& edited = shared_pool.edit();
  const float inf = std::numeric_limits<float>::infinity();
  for (const float bad : {-0.25f, std::nanf(""), inf, -inf}) {
    edited = right, edited.k_scale = bad;
    refused(shared_pool, KVC_E_OUT_OF_RANGE, {"pool.k_scale = ", "finite"});
    edited = right, edited.v_scale = bad;
    refused(shared_pool, KVC_E_OUT_OF_RANGE, {"pool.v_scale = ", "finite"});
  }
  edited = right, edited.v = nullptr;
  refused(shared_pool, KVC_E_INVALID_ARGUMENT, {"pool.v_scale is set", "pool.v is NULL"});
}

TEST_F(OpQuantisedPoolRefusals, ScalesWithoutQuantisedRows) {
  Pool plain(shape);
  HostTensor scales(Elem::kF32, {24, 4, 2});
  const kvc_op_pool right = *plain.c();
  const auto call = [&](kvc_error* err) {
    return kvc_op_append(plain.c(), nullptr, slots.dl(), k.dl(), v.dl(), err);
  };
  plain.edit().k_scale = 2;
  expect_error(KVC_E_INVALID_ARGUMENT, {"pool.k_scale = 2", "pool.quant = NONE (0)"}, call);
  plain.edit() = right, plain.edit().v_scales = scales.dl();
  expect_error(KVC_E_INVALID_ARGUMENT, {"pool.v_scales is set", "pool.quant = NONE (0)"}, call);
  plain.edit() = right, plain.edit().quant = KVC_QUANT_PER_TENSOR;
  expect_error(KVC_E_DTYPE, {"pool.k is float32", "pool.quant = PER_TENSOR (1)"}, call);
  EXPECT_TRUE(plain.k().is_untouched() && plain.v().is_untouched());
  plain.edit() = right;
  // A caller of the first header has a shorter struct.
  plain.edit().quant = KVC_QUANT_PER_TENSOR,
  plain.edit().struct_size = offsetof(kvc_op_pool, quant);
  EXPECT_EQ(call(nullptr), KVC_OK);
}

TEST_F(OpQuantisedPoolRefusals, PagesWhoseScalesOverlap) {
  int64_t strides[] = {2, 2, 1};
  rows_pool.k_scales().dl()->strides = strides;
  expect_error(KVC_E_SHAPE, {"pool.k_scales", "overlap"}, [&](kvc_error* err) {
    return kvc_op_copy_pages(rows_pool.c(), nullptr, pairs.dl(), err);
  });
  EXPECT_TRUE(rows_pool.k().is_untouched());
}

}  // namespace
}  // namespace kvc::test
