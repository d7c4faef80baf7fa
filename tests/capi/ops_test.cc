// kvcache.h, section "Operators", without attention: append, gather, copy, rotate, merge over the
// host's own pools.
#include <array>
#include <cmath>
#include <limits>

#include "tests/capi/ops_fixture.h"
#include "tests/stress/executor.h"

namespace kvc::test {
namespace {

const std::vector<PoolShape>& shapes() {
  static const std::vector<PoolShape> all = {
      {.layout = KVC_OP_HND},
      {.layout = KVC_OP_NHD, .elem = Elem::kF16, .k_dim = 6, .v_dim = 10},
      {.layout = KVC_OP_NHD, .elem = Elem::kBF16, .heads = 3, .page_size = 1, .gap = 5},
      {.layout = KVC_OP_HND,
       .elem = Elem::kBF16,
       .pages = 5,
       .page_size = 48,
       .k_dim = 80,
       .v_dim = 64,
       .gap = 1},
      {.layout = KVC_OP_NHD,
       .pages = 6,
       .heads = 1,
       .page_size = 16,
       .k_dim = 17,
       .v_dim = 17,
       .v_is_k = true},
      {.layout = KVC_OP_MLA,
       .elem = Elem::kF16,
       .heads = 1,
       .page_size = 3,
       .k_dim = 12,
       .v_dim = 12,
       .gap = 2}};
  return all;
}

std::string text(const PoolShape& shape) {
  return std::string("layout ") + std::to_string(shape.layout) + " " + name_of(shape.elem) +
         " page_size " + std::to_string(shape.page_size);
}

TEST(OpAppend, WritesTheNamedSlotsOfAnyPoolAndNothingElse) {
  for (const PoolShape& shape : shapes()) {
    SCOPED_TRACE(text(shape));
    Random random(5);
    Pool pool(shape), untouched(shape);
    const std::vector<int64_t> slots = {7, 8, 9, -1, 0, 13, -5, shape.pages * shape.page_size - 1};
    Indices<int64_t> slot_tensor(slots);
    const auto rows = static_cast<int64_t>(slots.size());
    HostTensor k(Elem::kF32, {rows, shape.heads, shape.k_dim}, {.extra_rows = 2, .row_gap = 3});
    HostTensor v(Elem::kF32, {rows, shape.heads, shape.v_dim}, {.inner_gap = 2});
    k.fill_random(random), v.fill_random(random);
    for (int64_t d = 0; d < shape.k_dim; ++d) k.set(NAN, 3, 0, d);  // a skipped row
    const bool has_v = pool.c()->v != nullptr;
    expect_ok([&](kvc_error* err) {
      return kvc_op_append(pool.c(), nullptr, slot_tensor.dl(), k.dl(), has_v ? v.dl() : nullptr,
                           err);
    });
    for (size_t row = 0; row < slots.size(); ++row) {
      if (slots[row] < 0) continue;
      for (int64_t head = 0; head < shape.heads; ++head) {
        const auto t = static_cast<int64_t>(row);
        for (int64_t d = 0; d < shape.k_dim; ++d) {
          EXPECT_EQ(pool.get(pool.k(), slots[row], head, d),
                    round_to(shape.elem, k.get(t, head, d)));
          pool.set(pool.k(), 0, slots[row], head, d),
              untouched.set(untouched.k(), 0, slots[row], head, d);
        }
        for (int64_t d = 0; has_v && d < shape.v_dim; ++d) {
          EXPECT_EQ(pool.get(pool.v(), slots[row], head, d),
                    round_to(shape.elem, v.get(t, head, d)));
          pool.set(pool.v(), 0, slots[row], head, d),
              untouched.set(untouched.v(), 0, slots[row], head, d);
        }
      }
    }
    EXPECT_TRUE(pool.k().same_bytes(untouched.k()) && pool.v().same_bytes(untouched.v()))
        << "something beyond the named slots was written";
  }
}

TEST(OpAppend, RotatesKByItsPositionsAndLeavesVAlone) {
  for (const kvc_cpu_isa isa : isas()) {
    for (const kvc_rope_style style : {KVC_ROPE_HALF, KVC_ROPE_INTERLEAVED}) {
      Random random(6);
      Pool pool({.layout = KVC_OP_NHD, .k_dim = 12, .v_dim = 12});
      Indices<int64_t> slots({3, 11, -1});
      Indices<int32_t> positions({1000, -4, 2147483647, 9});  // one more than T
      HostTensor k(Elem::kF32, {3, 2, 12}), v(Elem::kF32, {3, 2, 12});
      k.fill_random(random), v.fill_random(random);
      const kvc_rope rope = rope_on_append(style, 10);
      kvc_op_opt opt = op_options();
      opt.cpu_isa = isa, opt.rope = &rope, opt.positions = positions.dl();
      ASSERT_EQ(kvc_op_append(pool.c(), &opt, slots.dl(), k.dl(), v.dl(), nullptr), KVC_OK);
      for (int64_t t = 0; t < 2; ++t) {
        for (int64_t d = 0; d < 12; ++d) {
          const double want =
              turned(rope, 0, positions[t], d, [&](int64_t e) { return k.get(t, 1, e); });
          EXPECT_NEAR(pool.get(pool.k(), slots[t], 1, d), want, 1e-6)
              << "isa " << isa << " d " << d;
          EXPECT_EQ(pool.get(pool.v(), slots[t], 1, d), v.get(t, 1, d));
        }
      }
    }
  }
}

TEST(OpGather, PacksTheKeysOfAllSequencesInOrder) {
  for (const PoolShape& shape : shapes()) {
    for (const bool padded : {false, true}) {
      SCOPED_TRACE(text(shape));
      Random random(7);
      Pool pool(shape);
      const auto page = static_cast<int32_t>(shape.page_size);
      Tables tables(random, shape, {page + 1, 0, 2 * page, 1, 0}, {0, 0, 0, 0, 0});
      tables.fill(random, pool);
      const kvc_op_table table = tables.c(padded, false);
      HostTensor k(Elem::kF32, {tables.num_keys(), shape.heads, shape.k_dim},
                   {.extra_rows = 1, .row_gap = 2});
      HostTensor v(Elem::kBF16, {tables.num_keys(), shape.heads, shape.v_dim});
      const bool has_v = pool.c()->v != nullptr;
      expect_ok([&](kvc_error* err) {
        return kvc_op_gather(pool.c(), &table, nullptr, k.dl(), has_v ? v.dl() : nullptr, err);
      });
      if (has_v) {
        EXPECT_EQ(kvc_op_gather(pool.c(), &table, nullptr, nullptr, v.dl(), nullptr), KVC_OK);
      }
      int64_t row = 0;
      for (int64_t i = 0; i < tables.count(); ++i) {
        for (int64_t key = 0; key < tables.length(i); ++key, ++row) {
          for (int64_t head = 0; head < shape.heads; ++head) {
            const int64_t slot = tables.slot(i, key);
            for (int64_t d = 0; d < shape.k_dim; ++d)
              EXPECT_EQ(k.get(row, head, d), pool.get(pool.k(), slot, head, d));
            for (int64_t d = 0; has_v && d < shape.v_dim; ++d)
              EXPECT_EQ(v.get(row, head, d),
                        round_to(Elem::kBF16, pool.get(pool.v(), slot, head, d)));
          }
        }
      }
      EXPECT_TRUE(k.padding_untouched());
    }
  }
}

TEST(OpCopyPages, CopiesWholePagesOfAnyPoolAndNothingElse) {
  for (const PoolShape& shape : shapes()) {
    SCOPED_TRACE(text(shape));
    Random random(8);
    Pool pool(shape), expected(shape);
    for (int64_t slot = 0; slot < shape.pages * shape.page_size; ++slot)
      pool.fill_slot(random, slot);
    pool.set(pool.k(), NAN, 2 * shape.page_size, 0, 0);  // copied like any bits
    const auto copy_all = [&](HostTensor& from, HostTensor& to) {
      from.for_each([&](int64_t a, int64_t b, int64_t c, int64_t d) {
        std::memcpy(to.at(a, b, c, d), from.at(a, b, c, d),
                    static_cast<size_t>(bytes_of(shape.elem)));
      });
    };
    copy_all(pool.k(), expected.k());
    if (pool.c()->v != nullptr) copy_all(pool.v(), expected.v());
    Indices<int64_t> pairs({2, 0, 1, 4, 2, 3}, {3, 2});
    for (int64_t i = 0; i < 3; ++i) {
      for (int64_t offset = 0; offset < shape.page_size; ++offset) {
        const int64_t from = pairs[2 * i] * shape.page_size + offset,
                      to = pairs[2 * i + 1] * shape.page_size + offset;
        for (int64_t head = 0; head < shape.heads; ++head) {
          for (int64_t d = 0; d < shape.k_dim; ++d)
            expected.set(expected.k(), expected.get(expected.k(), from, head, d), to, head, d);
          for (int64_t d = 0; pool.c()->v != nullptr && d < shape.v_dim; ++d)
            expected.set(expected.v(), expected.get(expected.v(), from, head, d), to, head, d);
        }
      }
    }
    ASSERT_EQ(kvc_op_copy_pages(pool.c(), nullptr, pairs.dl(), nullptr), KVC_OK);
    EXPECT_TRUE(std::isnan(pool.get(pool.k(), 0, 0, 0)));
    EXPECT_TRUE(pool.k().same_bytes(expected.k()) && pool.v().same_bytes(expected.v()));
  }
}

TEST(OpRotate, TurnsRowsInPlaceOrElsewhereOnEveryInstructionSet) {
  for (const kvc_cpu_isa isa : isas()) {
    for (const kvc_rope_style style : {KVC_ROPE_HALF, KVC_ROPE_INTERLEAVED}) {
      for (const int32_t rotary : {2, 38, 80}) {
        Random random(9);
        HostTensor x(Elem::kF32, {3, 2, 80}, {.row_gap = 4}),
            out(Elem::kBF16, {3, 2, 80}, {.inner_gap = 1});
        x.fill_random(random);
        Indices<int32_t> positions({0, 31, 100000});
        const kvc_rope rope = rope_on_append(style, rotary);
        kvc_op_opt opt = op_options();
        opt.cpu_isa = isa, opt.rope = &rope, opt.positions = positions.dl();
        std::vector<double> want;
        x.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
          want.push_back(
              turned(rope, 0, positions[t], d, [&](int64_t e) { return x.get(t, h, e); }));
        });
        expect_ok([&](kvc_error* err) { return kvc_op_rotate(&opt, x.dl(), out.dl(), err); });
        size_t i = 0;
        out.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
          EXPECT_NEAR(out.get(t, h, d), want[i], 0.01) << "isa " << isa << " rotary " << rotary;
          ++i;
        });
        EXPECT_TRUE(out.padding_untouched());
        ASSERT_EQ(kvc_op_rotate(&opt, x.dl(), x.dl(), nullptr), KVC_OK);
        i = 0;
        x.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
          EXPECT_NEAR(x.get(t, h, d), want[i], 1e-6)
              << "in place, isa " << isa << " rotary " << rotary;
          ++i;
        });
      }
    }
  }
}

TEST(OpMerge, EqualsTheMergeOfAForward) {
  Model model;
  Cache cache(model.config);
  ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(cache.begin({1}, {5}), KVC_OK);
  Random random(10);
  HostTensor out(Elem::kF16, {5, 4, 8}), lse(Elem::kF32, {5, 4});
  HostTensor same(Elem::kF16, {5, 4, 8}), same_lse(Elem::kF32, {5, 4});
  HostTensor other(Elem::kF32, {5, 4, 8}, {.extra_rows = 2}),
      other_lse(Elem::kF32, {5, 4}, {.extra_rows = 2});
  for (HostTensor* tensor : {&out, &lse, &other, &other_lse}) tensor->fill_random(random, 3);
  lse.set(-INFINITY, 1, 1), other_lse.set(-INFINITY, 2, 3);
  out.for_each(
      [&](int64_t t, int64_t h, int64_t d, int64_t) { same.set(out.get(t, h, d), t, h, d); });
  lse.for_each([&](int64_t t, int64_t h, int64_t, int64_t) { same_lse.set(lse.get(t, h), t, h); });
  ASSERT_EQ(kvc_attn_merge(cache.forward, out.dl(), lse.dl(), other.dl(), other_lse.dl(), nullptr),
            KVC_OK);
  expect_ok([&](kvc_error* err) {
    return kvc_op_merge(nullptr, same.dl(), same_lse.dl(), other.dl(), other_lse.dl(), err);
  });
  EXPECT_TRUE(out.same_bytes(same) && lse.same_bytes(same_lse));
}

TEST(Operators, SpreadOverTheHostsThreadsWithTheSameBits) {
  // Large enough to be worth threads.
  const PoolShape shape{
      .layout = KVC_OP_NHD, .pages = 80, .heads = 4, .page_size = 16, .k_dim = 64, .v_dim = 64};
  ThreadedExecutor threads;
  const kvc_executor hooks = threads.hooks();
  kvc_op_opt alone = op_options(), spread = op_options();
  spread.executor = &hooks;
  Random random(11);
  Pool one(shape), many(shape);
  constexpr int64_t kRows = 620;
  HostTensor k(Elem::kF32, {kRows, 4, 64}), v(Elem::kF32, {kRows, 4, 64});
  k.fill_random(random), v.fill_random(random);
  std::vector<int64_t> slots(kRows);
  std::iota(slots.begin(), slots.end(), 16);
  Indices<int64_t> slot_tensor(slots);
  Indices<int64_t> pairs({1, 60, 2, 61, 3, 62, 4, 63, 5, 64, 6, 65, 7, 66, 8, 67, 9, 68, 10, 69},
                         {10, 2});
  for (const auto& [pool, opt] : {std::pair(&one, &alone), std::pair(&many, &spread)}) {
    ASSERT_EQ(kvc_op_append(pool->c(), opt, slot_tensor.dl(), k.dl(), v.dl(), nullptr), KVC_OK);
    const int64_t after_append = threads.tasks;
    EXPECT_EQ(after_append > 0, opt == &spread);
    ASSERT_EQ(kvc_op_copy_pages(pool->c(), opt, pairs.dl(), nullptr), KVC_OK);
    EXPECT_EQ(threads.tasks > after_append, opt == &spread);
  }
  EXPECT_TRUE(one.k().same_bytes(many.k()) && one.v().same_bytes(many.v()));
  const int64_t before = threads.tasks;
  Indices<int32_t> lengths({500, 100}), indptr({0, 32, 39});
  std::vector<int32_t> pages(39);
  std::iota(pages.begin(), pages.end(), 1);
  Indices<int32_t> page_tensor(pages);
  kvc_op_table table{};
  table.struct_size = sizeof table, table.seq_lens = lengths.dl();
  table.page_indptr = indptr.dl(), table.page_indices = page_tensor.dl();
  HostTensor k_out(Elem::kF32, {600, 4, 64}), v_out(Elem::kF32, {600, 4, 64});
  ASSERT_EQ(kvc_op_gather(many.c(), &table, &spread, k_out.dl(), v_out.dl(), nullptr), KVC_OK);
  EXPECT_GT(threads.tasks, before);
  for (int64_t row = 0; row < 500; ++row) EXPECT_EQ(k_out.get(row, 3, 63), k.get(row, 3, 63));
  for (int64_t row = 0; row < 100; ++row)
    EXPECT_EQ(v_out.get(500 + row, 1, 5), v.get(512 + row, 1, 5));
}

class OpRefusals : public testing::Test {
 protected:
  OpRefusals() {
    Random random(12), again(12);
    for (int64_t slot = 0; slot < 12; ++slot)
      pool.fill_slot(random, slot), before.fill_slot(again, slot);
    k.fill_random(random), v.fill_random(random);
  }
  kvc_status append(const kvc_op_opt* opt, kvc_error* err) {
    return kvc_op_append(pool.c(), opt, slots.dl(), k.dl(), v.dl(), err);
  }
  void refused(kvc_status status, std::initializer_list<const char*> parts, const Call& fn) {
    expect_error(status, parts, fn);
    EXPECT_TRUE(pool.k().same_bytes(before.k()) && pool.v().same_bytes(before.v()))
        << "a refused call wrote";
  }

  PoolShape shape{.layout = KVC_OP_NHD};
  Pool pool{shape}, before{shape};
  Indices<int64_t> slots{{4, 5}};
  HostTensor k{Elem::kF32, {2, 2, 8}}, v{Elem::kF32, {2, 2, 8}};
};

TEST_F(OpRefusals, PoolsThatCannotBeRead) {
  const auto call = [&](kvc_error* err) { return append(nullptr, err); };
  const kvc_op_pool right = *pool.c();
  kvc_op_pool& edited = pool.edit();
  expect_error(KVC_E_INVALID_ARGUMENT, {"pool", "NULL"}, [&](kvc_error* err) {
    return kvc_op_append(nullptr, nullptr, slots.dl(), k.dl(), v.dl(), err);
  });
  edited.struct_size = 0;
  refused(KVC_E_INVALID_ARGUMENT, {"pool", "struct_size"}, call);
  edited = right, edited.layout = 3;
  refused(KVC_E_UNSUPPORTED, {"pool.layout", "3"}, call);
  edited = right, edited.reserved = 1;
  refused(KVC_E_UNSUPPORTED, {"pool.reserved"}, call);
  edited = right, edited.k = nullptr;
  refused(KVC_E_INVALID_ARGUMENT, {"pool.k", "NULL"}, call);
  edited = right, edited.layout = KVC_OP_MLA;
  refused(KVC_E_INVALID_ARGUMENT, {"pool.v", "MLA"}, call);
  edited = right, edited.v = nullptr;
  refused(KVC_E_INVALID_ARGUMENT, {"v is set", "pool.v is NULL"}, call);
  edited = right, edited.layout = KVC_OP_MLA, edited.v = nullptr;
  refused(KVC_E_SHAPE, {"pool.k", "dimensions", "3"}, call);
  edited = right;
  DLTensor* tensor = pool.k().dl();
  const DLTensor k_right = *tensor;
  tensor->dtype = {kDLInt, 8, 1};
  refused(KVC_E_DTYPE, {"pool.k", "int8"}, call);
  *tensor = k_right, tensor->device = {kDLROCM, 0};
  refused(KVC_E_DEVICE_MISMATCH, {"pool.k"}, call);
  tensor->device = {kDLCUDA, 0};
  if (kvc_has_feature("cuda") == 0) refused(KVC_E_UNSUPPORTED, {"no CUDA back end"}, call);
  *tensor = k_right;
  std::vector<int64_t> odd = {24, 4, 2, 0}, strides = {64, 16, 8, 2};
  tensor->shape = odd.data();
  refused(KVC_E_SHAPE, {"pool.k", "shape[3]", "0"}, call);
  odd[3] = 513;
  refused(KVC_E_SHAPE, {"pool.k", "shape[3]", "513", "512"}, call);
  *tensor = k_right, tensor->strides = strides.data();
  refused(KVC_E_SHAPE, {"pool.k", "stride 2"}, call);
  *tensor = k_right;
  DLTensor* v_tensor = pool.v().dl();
  const DLTensor v_right = *v_tensor;
  odd = {23, 4, 2, 8}, v_tensor->shape = odd.data();
  refused(KVC_E_SHAPE, {"pool.v", "23", "24"}, call);
  *v_tensor = v_right;
  EXPECT_EQ(append(nullptr, nullptr), KVC_OK);
}

TEST_F(OpRefusals, AppendsThatDoNotFitThePool) {
  const auto call = [&](kvc_error* err) { return append(nullptr, err); };
  slots[1] = 96;
  refused(KVC_E_OUT_OF_RANGE, {"slots[1]", "96", "24 pages"}, call);
  slots[1] = 5;
  refused(KVC_E_INVALID_ARGUMENT, {"v", "NULL"}, [&](kvc_error* err) {
    return kvc_op_append(pool.c(), nullptr, slots.dl(), k.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"slots", "NULL"}, [&](kvc_error* err) {
    return kvc_op_append(pool.c(), nullptr, nullptr, k.dl(), v.dl(), err);
  });
  Indices<int32_t> narrow({4, 5});
  refused(KVC_E_DTYPE, {"slots", "int32", "int64"}, [&](kvc_error* err) {
    return kvc_op_append(pool.c(), nullptr, narrow.dl(), k.dl(), v.dl(), err);
  });
  Indices<int64_t> three({4, 5, 6});
  refused(KVC_E_SHAPE, {"k", "2", "3"}, [&](kvc_error* err) {
    return kvc_op_append(pool.c(), nullptr, three.dl(), k.dl(), v.dl(), err);
  });
  Pool mla({.layout = KVC_OP_MLA, .heads = 1});
  HostTensor latent(Elem::kF32, {2, 8});
  latent.set(1, 0, 0);
  const kvc_rope rope = rope_on_append(KVC_ROPE_HALF, 4);
  Indices<int32_t> positions({0, 1});
  kvc_op_opt opt = op_options();
  opt.rope = &rope, opt.positions = positions.dl();
  expect_error(KVC_E_UNSUPPORTED, {"opt.rope", "MLA"}, [&](kvc_error* err) {
    return kvc_op_append(mla.c(), &opt, slots.dl(), latent.dl(), nullptr, err);
  });
  EXPECT_EQ(kvc_op_append(mla.c(), nullptr, slots.dl(), latent.dl(), nullptr, nullptr), KVC_OK);
  EXPECT_EQ(mla.get(mla.k(), 4, 0, 0), 1.0);
}

TEST_F(OpRefusals, OptionsThatAreNotUsedOrNotServed) {
  kvc_op_opt opt = op_options();
  const auto call = [&](kvc_error* err) { return append(&opt, err); };
  const kvc_attn_opt attn = attn_options();
  const kvc_ext ext{};
  Indices<int32_t> positions({0, 1});
  kvc_rope rope = rope_on_append(KVC_ROPE_HALF, 8);
  opt.struct_size = 3;
  refused(KVC_E_INVALID_ARGUMENT, {"opt", "struct_size"}, call);
  opt = op_options(), opt.ext = &ext;
  refused(KVC_E_UNSUPPORTED, {"opt->ext"}, call);
  opt = op_options(), opt.cpu_isa = 77;
  refused(KVC_E_OUT_OF_RANGE, {"opt.cpu_isa", "77"}, call);
  opt = op_options(), opt.full = 1;
  refused(KVC_E_INVALID_ARGUMENT, {"opt.full", "kvc_op_append"}, call);
  opt = op_options(), opt.attn = &attn;
  refused(KVC_E_INVALID_ARGUMENT, {"opt.attn", "kvc_op_append"}, call);
  opt = op_options(), opt.positions = positions.dl();
  refused(KVC_E_INVALID_ARGUMENT, {"opt.positions", "opt.rope", "NULL"}, call);
  opt = op_options(), opt.rope = &rope;
  refused(KVC_E_INVALID_ARGUMENT, {"opt.positions", "NULL"}, call);
  opt.positions = positions.dl();
  rope.rotary_dim = 9;
  refused(KVC_E_OUT_OF_RANGE, {"opt.rope->rotary_dim", "9", "8"}, call);
  rope = rope_on_append(KVC_ROPE_HALF, 8), rope.mode = KVC_ROPE_ON_READ;
  refused(KVC_E_UNSUPPORTED, {"opt.rope->mode", "ON_READ"}, call);
  rope = rope_on_append(KVC_ROPE_HALF, 8), rope.num_sections = 2,
  rope.sections[0] = rope.sections[1] = 2;
  refused(KVC_E_UNSUPPORTED, {"opt.rope->num_sections", "2"}, call);
  const float factors[] = {1, 1, 1, 1};
  rope = rope_on_append(KVC_ROPE_HALF, 8), rope.scaling = KVC_ROPE_SCALING_LONGROPE;
  rope.freq_factors = rope.long_freq_factors = factors, rope.num_freq_factors = 4,
  rope.original_context = 16;
  refused(KVC_E_UNSUPPORTED, {"opt.rope->scaling", "LONGROPE"}, call);
  rope = {}, rope.struct_size = sizeof rope;
  refused(KVC_E_INVALID_ARGUMENT, {"opt.positions", "mode NONE"}, call);
  opt = op_options();
  kvc_executor executor{};
  executor.struct_size = sizeof executor;
  opt.executor = &executor;
  refused(KVC_E_INVALID_ARGUMENT, {"opt.executor->concurrency", "NULL"}, call);
  ThreadedExecutor none;
  none.workers = 0;
  executor = none.hooks();
  refused(KVC_E_INVALID_ARGUMENT, {"executor", "concurrency", "0"}, call);
  opt = op_options(), opt.rope = &rope;
  EXPECT_EQ(append(&opt, nullptr), KVC_OK) << "mode NONE turns nothing";
}

TEST_F(OpRefusals, TablesThatDoNotHoldTheirSequences) {
  Random random(13);
  Tables tables(random, shape, {6, 3}, {1, 1});
  kvc_op_table table = tables.c(false, false);
  HostTensor out(Elem::kF32, {9, 2, 8});
  const auto call = [&](kvc_error* err) {
    const kvc_status status = kvc_op_gather(pool.c(), &table, nullptr, out.dl(), nullptr, err);
    EXPECT_TRUE(out.is_untouched());
    return status;
  };
  expect_error(KVC_E_INVALID_ARGUMENT, {"table", "NULL"}, [&](kvc_error* err) {
    return kvc_op_gather(pool.c(), nullptr, nullptr, out.dl(), nullptr, err);
  });
  table.struct_size = 1;
  refused(KVC_E_INVALID_ARGUMENT, {"table", "struct_size"}, call);
  table = tables.c(false, false), table.seq_lens = nullptr;
  refused(KVC_E_INVALID_ARGUMENT, {"table.seq_lens", "NULL"}, call);
  table = tables.c(false, true);
  refused(KVC_E_INVALID_ARGUMENT, {"table.qo_indptr", "kvc_op_gather"}, call);
  table = tables.c(false, false), table.block_table = tables.block_table->dl();
  refused(KVC_E_INVALID_ARGUMENT, {"table.block_table is set", "one form"}, call);
  table.block_table = table.page_indptr = table.page_indices = nullptr;
  refused(KVC_E_INVALID_ARGUMENT, {"table.block_table is NULL", "one form"}, call);
  table = tables.c(false, false), table.page_indices = nullptr;
  refused(KVC_E_INVALID_ARGUMENT, {"table.page_indices", "NULL"}, call);
  table = tables.c(false, false);
  Indices<int32_t>& lens = *tables.seq_lens;
  Indices<int32_t>& indptr = *tables.page_indptr;
  lens[1] = -1;
  refused(KVC_E_OUT_OF_RANGE, {"table.seq_lens[1]", "-1"}, call);
  lens[1] = 5;
  refused(KVC_E_OUT_OF_RANGE, {"table.seq_lens[1]", "5", "2 pages", "lists 1"}, call);
  lens[1] = 3, indptr[0] = 1;
  refused(KVC_E_OUT_OF_RANGE, {"table.page_indptr[0]", "1"}, call);
  indptr[0] = 0, indptr[1] = 4;
  refused(KVC_E_OUT_OF_RANGE, {"table.page_indptr[2]", "3", "4"}, call);
  indptr[1] = 2, indptr[2] = 9;
  refused(KVC_E_SHAPE, {"table.page_indices", "3", "9"}, call);
  indptr[2] = 3;
  for (const int32_t page : {-1, 24, std::numeric_limits<int32_t>::max()}) {
    const int32_t right = (*tables.page_indices)[1];
    (*tables.page_indices)[1] = page;
    refused(KVC_E_OUT_OF_RANGE, {"page 1 of sequence 0", std::to_string(page).c_str(), "24"}, call);
    (*tables.page_indices)[1] = right;
  }
  Indices<int32_t> short_indptr({0, 2});
  table.page_indptr = short_indptr.dl();
  refused(KVC_E_SHAPE, {"table.page_indptr", "2", "3"}, call);
  table = tables.c(true, false), lens[0] = 100;
  refused(KVC_E_OUT_OF_RANGE, {"table.seq_lens[0]", "100", "25 pages"}, call);
  lens[0] = 6;
  Indices<int32_t> one_row({1, 2}, {1, 2});
  table.block_table = one_row.dl();
  refused(KVC_E_SHAPE, {"table.block_table", "1", "2"}, call);
  table = tables.c(true, false);
  HostTensor few(Elem::kF32, {8, 2, 8});
  refused(KVC_E_SHAPE, {"k_out", "8", "9"}, [&](kvc_error* err) {
    return kvc_op_gather(pool.c(), &table, nullptr, few.dl(), nullptr, err);
  });
  refused(KVC_E_INVALID_ARGUMENT, {"k_out", "v_out", "NULL"}, [&](kvc_error* err) {
    return kvc_op_gather(pool.c(), &table, nullptr, nullptr, nullptr, err);
  });
  pool.edit().v = nullptr;
  refused(KVC_E_INVALID_ARGUMENT, {"v_out", "pool.v"}, [&](kvc_error* err) {
    return kvc_op_gather(pool.c(), &table, nullptr, nullptr, out.dl(), err);
  });
  pool.edit().v = pool.v().dl();
  EXPECT_EQ(kvc_op_gather(pool.c(), &table, nullptr, out.dl(), nullptr, nullptr), KVC_OK);
}

TEST_F(OpRefusals, CopiesThatWouldOverlap) {
  const auto pairs_refused = [&](kvc_status status, std::initializer_list<const char*> parts,
                                 std::vector<int64_t> pairs) {
    const auto count = static_cast<int64_t>(pairs.size()) / 2;
    Indices<int64_t> tensor(std::move(pairs), {count, 2});
    refused(status, parts,
            [&](kvc_error* err) { return kvc_op_copy_pages(pool.c(), nullptr, tensor.dl(), err); });
  };
  pairs_refused(KVC_E_OUT_OF_RANGE, {"pairs[1][0]", "24"}, {0, 1, 24, 2});
  pairs_refused(KVC_E_OUT_OF_RANGE, {"pairs[0][1]", "-1"}, {0, -1});
  pairs_refused(KVC_E_INVALID_ARGUMENT, {"page 5", "two"}, {0, 5, 1, 5});
  pairs_refused(KVC_E_INVALID_ARGUMENT, {"pairs[0]", "page 2", "source"}, {2, 5, 1, 2});
  pairs_refused(KVC_E_INVALID_ARGUMENT, {"page 3", "source"}, {3, 3});
  Indices<int64_t> flat({0, 1});
  refused(KVC_E_SHAPE, {"pairs", "1 dimensions"},
          [&](kvc_error* err) { return kvc_op_copy_pages(pool.c(), nullptr, flat.dl(), err); });
  Indices<int32_t> narrow({0, 1}, {1, 2});
  refused(KVC_E_DTYPE, {"pairs", "int32"},
          [&](kvc_error* err) { return kvc_op_copy_pages(pool.c(), nullptr, narrow.dl(), err); });
  Indices<int64_t> none({}, {0, 2});
  EXPECT_EQ(kvc_op_copy_pages(pool.c(), nullptr, none.dl(), nullptr), KVC_OK);

  // Pages of 4 tokens with 8 elements each, of which the strides say that they begin 8 elements
  // apart.
  std::vector<float> memory(64, 1.0f);
  std::array<int64_t, 4> shape = {2, 4, 1, 8}, strides = {8, 8, 8, 1};
  const DLTensor k = {memory.data(), {kDLCPU, 0},    4, {kDLFloat, 32, 1},
                      shape.data(),  strides.data(), 0};
  kvc_op_pool overlapping{};
  overlapping.struct_size = sizeof overlapping;
  overlapping.k = &k;
  overlapping.layout = KVC_OP_NHD;
  Indices<int64_t> pair({0, 1}, {1, 2});
  refused(KVC_E_SHAPE, {"pool.k", "32 bytes apart", "128 bytes"},
          [&](kvc_error* err) { return kvc_op_copy_pages(&overlapping, nullptr, pair.dl(), err); });
}

TEST_F(OpRefusals, RotationsAndMergesThatMakeNoSense) {
  HostTensor out(Elem::kF32, {2, 2, 8});
  Indices<int32_t> positions({0, 1});
  kvc_rope rope = rope_on_append(KVC_ROPE_HALF, 8);
  kvc_op_opt opt = op_options();
  const auto rotate = [&](kvc_error* err) {
    const kvc_status status = kvc_op_rotate(&opt, k.dl(), out.dl(), err);
    EXPECT_TRUE(out.is_untouched());
    return status;
  };
  expect_error(KVC_E_INVALID_ARGUMENT, {"opt", "NULL"},
               [&](kvc_error* err) { return kvc_op_rotate(nullptr, k.dl(), out.dl(), err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"opt.rope", "NULL"}, rotate);
  opt.rope = &rope;
  expect_error(KVC_E_INVALID_ARGUMENT, {"opt.positions", "NULL"}, rotate);
  Indices<int32_t> one({0});
  opt.positions = one.dl();
  expect_error(KVC_E_SHAPE, {"opt.positions", "1", "2"}, rotate);
  opt.positions = positions.dl(), opt.full = 1;
  expect_error(KVC_E_INVALID_ARGUMENT, {"opt.full"}, rotate);
  opt.full = 0;
  DLTensor narrow = *k.dl();
  narrow.dtype = {kDLBfloat, 16, 1};
  expect_error(KVC_E_INVALID_ARGUMENT, {"out", "x", "overlap"},
               [&](kvc_error* err) { return kvc_op_rotate(&opt, k.dl(), &narrow, err); });
  HostTensor none(Elem::kF32, {0, 2, 8});
  EXPECT_EQ(kvc_op_rotate(&opt, none.dl(), none.dl(), nullptr), KVC_OK);

  HostTensor lse(Elem::kF32, {2, 2}), other_lse(Elem::kF32, {1, 2});
  expect_error(KVC_E_INVALID_ARGUMENT, {"out", "NULL"}, [&](kvc_error* err) {
    return kvc_op_merge(nullptr, nullptr, lse.dl(), k.dl(), lse.dl(), err);
  });
  expect_error(KVC_E_SHAPE, {"other_lse", "1", "2"}, [&](kvc_error* err) {
    return kvc_op_merge(nullptr, out.dl(), lse.dl(), k.dl(), other_lse.dl(), err);
  });
  opt = op_options(), opt.positions = positions.dl();
  expect_error(KVC_E_INVALID_ARGUMENT, {"opt.positions", "kvc_op_merge"}, [&](kvc_error* err) {
    return kvc_op_merge(&opt, out.dl(), lse.dl(), k.dl(), lse.dl(), err);
  });
  EXPECT_TRUE(out.is_untouched() && lse.is_untouched());
}

}  // namespace
}  // namespace kvc::test
