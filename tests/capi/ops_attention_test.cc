// kvcache.h, section "Operators": attention over the host's own pools and packed tensors, against
// plain double loops and a cache.
#include <time.h>

#include <cmath>
#include <limits>

#include "tests/capi/ops_fixture.h"
#include "tests/stress/executor.h"

namespace kvc::test {
namespace {

// One attention as the host states it, with every input that the formula has.
struct Problem {
  bool full = false;
  double scale = 0;
  double soft_cap = 0;
  int64_t window = 0;
  HostTensor* sinks = nullptr;   // [heads]
  HostTensor* slopes = nullptr;  // [heads]
  HostTensor* bias = nullptr;    // [heads, T, J]
};

struct Answer {
  std::vector<double> out;
  double lse;
};

// kvc_attn_opt's formula for one row and head. read_k(key, d), read_v(key, d).
template <typename ReadQ, typename ReadK, typename ReadV>
Answer answer(const Problem& problem, int64_t row, int64_t head, int64_t position, int64_t end,
              int64_t k_dim, int64_t v_dim, ReadQ&& q, ReadK&& k, ReadV&& v) {
  const int64_t begin =
      problem.window == 0 ? 0 : std::max<int64_t>(0, position - problem.window + 1);
  std::vector<double> scores;
  double top = -INFINITY;
  for (int64_t key = begin; key < end; ++key) {
    double s = 0;
    for (int64_t d = 0; d < k_dim; ++d) s += q(d) * k(key, d);
    s *= problem.scale == 0 ? 1 / std::sqrt(static_cast<double>(k_dim)) : problem.scale;
    if (problem.soft_cap > 0) s = problem.soft_cap * std::tanh(s / problem.soft_cap);
    if (problem.slopes != nullptr)
      s -= problem.slopes->get(head) * static_cast<double>(position - key);
    if (problem.bias != nullptr) s += problem.bias->get(head, row, key);
    scores.push_back(s);
    top = std::max(top, s);
  }
  Answer result{std::vector<double>(static_cast<size_t>(v_dim), 0.0), -INFINITY};
  if (top == -INFINITY) return result;
  double sum = 0;
  for (const double s : scores) sum += std::exp(s - top);
  const double all =
      sum + (problem.sinks == nullptr ? 0 : std::exp(problem.sinks->get(head) - top));
  for (size_t i = 0; i < scores.size(); ++i) {
    if (scores[i] == -INFINITY) continue;
    for (int64_t d = 0; d < v_dim; ++d)
      result.out[static_cast<size_t>(d)] +=
          std::exp(scores[i] - top) / all * v(begin + static_cast<int64_t>(i), d);
  }
  result.lse = top + std::log(sum);
  return result;
}

void expect_answer(const Answer& want, HostTensor& out, HostTensor& lse, int64_t row, int64_t head,
                   double tolerance) {
  for (size_t d = 0; d < want.out.size(); ++d) {
    ASSERT_NEAR(out.get(row, head, static_cast<int64_t>(d)), want.out[d], tolerance)
        << "row " << row << " head " << head;
  }
  if (std::isinf(want.lse)) {
    ASSERT_EQ(lse.get(row, head), want.lse) << "row " << row;
  } else {
    ASSERT_NEAR(lse.get(row, head), want.lse, tolerance * 4) << "row " << row << " head " << head;
  }
}

// float32 arithmetic over sums of some dozens; products of bfloat16 where the machine has them.
double tolerance_of(Elem elem) { return elem == Elem::kBF16 ? 2e-2 : 2e-5; }

kvc_attn_opt attn_of(const Problem& problem) {
  kvc_attn_opt attn = attn_options();
  attn.scale = static_cast<float>(problem.scale);
  attn.soft_cap = static_cast<float>(problem.soft_cap);
  attn.window = problem.window;
  attn.sink_logits = problem.sinks == nullptr ? nullptr : problem.sinks->dl();
  attn.alibi_slopes = problem.slopes == nullptr ? nullptr : problem.slopes->dl();
  attn.bias = problem.bias == nullptr ? nullptr : problem.bias->dl();
  return attn;
}

std::vector<int32_t> random_lengths(Random& random, bool full, std::vector<int32_t>* rows) {
  std::vector<int32_t> lengths;
  rows->clear();
  for (int64_t i = random.range(1, 5); i > 0; --i) {
    const auto length = static_cast<int32_t>(random.chance(0.2) ? 0 : random.range(1, 140));
    lengths.push_back(length);
    const int64_t most = full ? 40 : std::min(length, 40);
    rows->push_back(static_cast<int32_t>(random.chance(0.5) ? std::min<int64_t>(most, 1)
                                                            : random.range(0, most)));
  }
  return lengths;
}

TEST(OpAttentionPaged, EqualsTheFormulaOverAnyPoolTableAndOption) {
  for (uint64_t seed = 1; seed <= 60; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    PoolShape shape;
    shape.layout = random.pick_of<kvc_op_layout>({KVC_OP_HND, KVC_OP_NHD});
    shape.elem = random.pick_of({Elem::kF32, Elem::kF16, Elem::kBF16});
    shape.page_size = random.pick_of<int64_t>({1, 3, 16, 48});
    shape.pages = 5 * (140 / shape.page_size + 1) + 7;
    shape.heads = random.pick_of<int64_t>({1, 2, 3});
    shape.k_dim = random.pick_of<int64_t>({6, 16, 64, 80});
    shape.v_dim = random.pick_of<int64_t>({8, 33, 64});
    shape.v_is_k = random.chance(0.2);
    if (shape.v_is_k) shape.v_dim = shape.k_dim;
    shape.gap = random.pick_of<int64_t>({0, 0, 1, 5});
    const int64_t q_heads = shape.heads * random.pick_of<int64_t>({1, 2, 4});
    Problem problem;
    problem.full = random.chance(0.25);
    std::vector<int32_t> rows;
    const std::vector<int32_t> lengths = random_lengths(random, problem.full, &rows);
    Pool pool(shape);
    Tables tables(random, shape, lengths, rows);
    tables.fill(random, pool);
    const int64_t num_rows = tables.num_rows();
    HostTensor sinks(Elem::kF32, {q_heads}), slopes(Elem::kF32, {q_heads});
    HostTensor bias(Elem::kF32, {q_heads, num_rows, 140}, {.row_gap = 3});
    sinks.fill_random(random), slopes.fill_random(random, 0.1), bias.fill_random(random);
    bias.for_each([&](int64_t h, int64_t t, int64_t j, int64_t) {
      if (random.chance(0.05)) bias.set(-INFINITY, h, t, j);
    });
    if (random.chance(0.3)) problem.soft_cap = 3;
    if (random.chance(0.3)) problem.scale = 0.3125;
    if (random.chance(0.4) && !problem.full) problem.window = random.range(1, 70);
    if (random.chance(0.3)) problem.sinks = &sinks;
    if (random.chance(0.3)) problem.slopes = &slopes;
    if (random.chance(0.3) && num_rows > 0) problem.bias = &bias;
    const kvc_attn_opt attn = attn_of(problem);
    kvc_op_opt opt = op_options();
    opt.attn = &attn;
    opt.full = problem.full ? 1 : 0;
    opt.cpu_isa =
        random.pick_of<kvc_cpu_isa>({KVC_CPU_ISA_AUTO, KVC_CPU_ISA_SCALAR, KVC_CPU_ISA_REFERENCE});
    const kvc_op_table table = tables.c(random.chance(0.5));
    HostTensor q(random.pick_of({Elem::kF32, Elem::kBF16}), {num_rows, q_heads, shape.k_dim},
                 {.row_gap = 2});
    HostTensor out(Elem::kF32, {num_rows, q_heads, shape.v_dim}, {.extra_rows = 2, .inner_gap = 1});
    HostTensor lse(Elem::kF32, {num_rows, q_heads}, {.extra_rows = 1, .row_gap = 1});
    q.fill_random(random);
    expect_ok([&](kvc_error* err) {
      return kvc_op_attention_paged(pool.c(), &table, &opt, q.dl(), out.dl(), lse.dl(), err);
    });
    int64_t row = 0;
    for (int64_t i = 0; i < tables.count(); ++i) {
      for (int64_t r = 0; r < tables.rows(i); ++r, ++row) {
        const int64_t position = tables.length(i) - tables.rows(i) + r;
        for (int64_t head = 0; head < q_heads; ++head) {
          const int64_t kv_head = head / (q_heads / shape.heads);
          const Answer want = answer(
              problem, row, head, position, problem.full ? tables.length(i) : position + 1,
              shape.k_dim, shape.v_dim, [&](int64_t d) { return q.get(row, head, d); },
              [&](int64_t key, int64_t d) {
                return pool.get(pool.k(), tables.slot(i, key), kv_head, d);
              },
              [&](int64_t key, int64_t d) {
                return pool.get(pool.v(), tables.slot(i, key), kv_head, d);
              });
          expect_answer(want, out, lse, row, head, tolerance_of(shape.elem));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
    EXPECT_TRUE(out.padding_untouched() && lse.padding_untouched());
  }
}

TEST(OpAttentionPaged, WithoutQueryOffsetsEachSequenceHasOneRow) {
  Random random(3);
  const PoolShape shape{.layout = KVC_OP_NHD};
  Pool pool(shape);
  Tables tables(random, shape, {9, 1, 20}, {1, 1, 1});
  tables.fill(random, pool);
  HostTensor q(Elem::kF32, {3, 4, 8}), one(Elem::kF32, {3, 4, 8}), two(Elem::kF32, {3, 4, 8});
  q.fill_random(random);
  const kvc_op_table with = tables.c(true), without = tables.c(false, false);
  ASSERT_EQ(kvc_op_attention_paged(pool.c(), &with, nullptr, q.dl(), one.dl(), nullptr, nullptr),
            KVC_OK);
  ASSERT_EQ(kvc_op_attention_paged(pool.c(), &without, nullptr, q.dl(), two.dl(), nullptr, nullptr),
            KVC_OK);
  EXPECT_TRUE(one.same_bytes(two));
}

TEST(OpAttentionPaged, PagesThatAWindowHidesMayBeGone) {
  Random random(4);
  const PoolShape shape{.layout = KVC_OP_HND, .page_size = 4};
  Pool pool(shape);
  Tables tables(random, shape, {23}, {3});
  tables.fill(random, pool);
  HostTensor q(Elem::kF32, {3, 2, 8}), whole(Elem::kF32, {3, 2, 8}), cut(Elem::kF32, {3, 2, 8});
  q.fill_random(random);
  kvc_attn_opt attn = attn_options();
  attn.window = 9;  // rows 20..22: keys from 12 on, which is page 3
  kvc_op_opt opt = op_options();
  opt.attn = &attn;
  const kvc_op_table table = tables.c(false);
  ASSERT_EQ(kvc_op_attention_paged(pool.c(), &table, &opt, q.dl(), whole.dl(), nullptr, nullptr),
            KVC_OK);
  for (int64_t page = 0; page < 3; ++page) (*tables.page_indices)[page] = -1;
  ASSERT_EQ(kvc_op_attention_paged(pool.c(), &table, &opt, q.dl(), cut.dl(), nullptr, nullptr),
            KVC_OK);
  EXPECT_TRUE(whole.same_bytes(cut));
  cut.poison();
  (*tables.page_indices)[3] = -1;
  expect_error(KVC_E_OUT_OF_RANGE, {"page 3", "-1"}, [&](kvc_error* err) {
    return kvc_op_attention_paged(pool.c(), &table, &opt, q.dl(), cut.dl(), nullptr, err);
  });
  EXPECT_TRUE(cut.is_untouched());
}

// The same tokens through kvc_attn and through kvc_op_append and kvc_op_attention_paged give the
// same bits.
TEST(OpAttentionPaged, GivesTheBitsOfACacheWithTheSameRope) {
  for (const kvc_rope_style style : {KVC_ROPE_HALF, KVC_ROPE_INTERLEAVED}) {
    for (const Elem elem : {Elem::kF32, Elem::kF16, Elem::kBF16}) {
      for (const int64_t rows : {1, 30}) {
        kvc_rope rope = rope_on_append(style, 12);
        kvc_layer layer{};
        layer.struct_size = sizeof layer;
        layer.num_q_heads = 4, layer.num_kv_heads = 2, layer.k_dim = 16, layer.v_dim = 24;
        layer.k_dtype = dl_type(elem), layer.rope = &rope;
        kvc_config config{};
        (void)kvc_config_init(&config, sizeof config);
        config.page_size = 16, config.num_layers = 1, config.layers = &layer, config.num_pages = 16;
        config.num_threads = 1;
        Cache cache(config);
        Random random(21);
        const auto before = static_cast<int64_t>(37);
        const auto length = static_cast<int32_t>(before + rows);
        HostTensor k(Elem::kF32, {length, 2, 16}), v(Elem::kF32, {length, 2, 24}),
            q(Elem::kF32, {length, 4, 16});
        for (HostTensor* tensor : {&k, &v, &q}) tensor->fill_random(random);
        const auto rows_from = [](HostTensor& tensor, int64_t first, int64_t count,
                                  std::vector<int64_t>* shape) {
          *shape = {count, tensor.size(1), tensor.size(2)};
          DLTensor part = *tensor.dl();
          part.byte_offset = static_cast<uint64_t>(tensor.at(first) - tensor.at(0));
          part.shape = shape->data();
          return part;
        };
        std::vector<int64_t> shapes[3];
        HostTensor expected(Elem::kF32, {length, 4, 24}), out(Elem::kF32, {rows, 4, 24});
        HostTensor lse(Elem::kF32, {length, 4}), op_lse(Elem::kF32, {rows, 4});
        ASSERT_EQ(kvc_seq_add(cache.get(), 1, nullptr), KVC_OK);
        for (const auto& [first, count] :
             {std::pair(int64_t{0}, before), std::pair(before, rows)}) {
          ASSERT_EQ(cache.begin({1}, {count}), KVC_OK);
          const DLTensor q_part = rows_from(q, first, count, &shapes[0]),
                         k_part = rows_from(k, first, count, &shapes[1]),
                         v_part = rows_from(v, first, count, &shapes[2]);
          ASSERT_EQ(kvc_attn(cache.forward, 0, nullptr, &q_part, &k_part, &v_part, expected.dl(),
                             lse.dl(), nullptr),
                    KVC_OK);
          cache.end();
        }

        const PoolShape shape{.layout = KVC_OP_NHD,
                              .elem = elem,
                              .pages = 9,
                              .page_size = 16,
                              .k_dim = 16,
                              .v_dim = 24};
        Pool pool(shape);
        Tables tables(random, shape, {length}, {static_cast<int32_t>(rows)});
        std::vector<int64_t> slots;
        for (int64_t key = 0; key < length; ++key) slots.push_back(tables.slot(0, key));
        std::vector<int32_t> all(static_cast<size_t>(length));
        std::iota(all.begin(), all.end(), 0);
        Indices<int64_t> slot_tensor(slots);
        Indices<int32_t> key_positions(all),
            row_positions(std::vector<int32_t>(all.end() - rows, all.end()));
        kvc_op_opt opt = op_options();
        opt.rope = &rope, opt.positions = key_positions.dl();
        ASSERT_EQ(kvc_op_append(pool.c(), &opt, slot_tensor.dl(), k.dl(), v.dl(), nullptr), KVC_OK);
        opt.positions = row_positions.dl();
        const kvc_op_table table = tables.c(true);
        const DLTensor q_new = rows_from(q, before, rows, &shapes[0]);
        ASSERT_EQ(
            kvc_op_attention_paged(pool.c(), &table, &opt, &q_new, out.dl(), op_lse.dl(), nullptr),
            KVC_OK);
        out.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
          ASSERT_EQ(out.get(t, h, d), expected.get(t, h, d)) << name_of(elem) << " row " << t;
        });
        op_lse.for_each([&](int64_t t, int64_t h, int64_t, int64_t) {
          ASSERT_EQ(op_lse.get(t, h), lse.get(t, h));
        });
      }
    }
  }
}

TEST(OpAttentionRagged, EqualsTheFormulaWithKeysBeforeTheRows) {
  for (uint64_t seed = 100; seed < 130; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    const Elem elem = random.pick_of({Elem::kF32, Elem::kF16, Elem::kBF16});
    const int64_t kv_heads = random.pick_of<int64_t>({1, 2}),
                  q_heads = kv_heads * random.pick_of<int64_t>({1, 3});
    const int64_t k_dim = random.pick_of<int64_t>({8, 40}),
                  v_dim = random.pick_of<int64_t>({8, 20});
    Problem problem;
    problem.full = random.chance(0.3);
    if (!problem.full && random.chance(0.4)) problem.window = random.range(1, 60);
    std::vector<int32_t> rows;
    std::vector<int32_t> lengths = random_lengths(random, problem.full, &rows);
    const bool same = random.chance(0.3);
    if (same) lengths = rows;
    std::vector<int32_t> q_cuts{0}, kv_cuts{0};
    for (size_t i = 0; i < rows.size(); ++i) {
      q_cuts.push_back(q_cuts.back() + rows[i]);
      kv_cuts.push_back(kv_cuts.back() + lengths[i]);
    }
    Indices<int32_t> qo_indptr(q_cuts), kv_indptr(kv_cuts);
    const int64_t num_rows = q_cuts.back(), num_keys = kv_cuts.back();
    HostTensor q(Elem::kF32, {num_rows, q_heads, k_dim}, {.extra_rows = 1});
    HostTensor k(elem, {num_keys, kv_heads, k_dim},
                 {.extra_rows = 1, .row_gap = 3, .inner_gap = 1});
    HostTensor v(elem, {num_keys, kv_heads, v_dim}, {.inner_gap = 2});
    HostTensor out(Elem::kF32, {num_rows, q_heads, v_dim}), lse(Elem::kF32, {num_rows, q_heads});
    for (HostTensor* tensor : {&q, &k, &v}) tensor->fill_random(random);
    const kvc_attn_opt attn = attn_of(problem);
    kvc_op_opt opt = op_options();
    opt.attn = &attn, opt.full = problem.full ? 1 : 0;
    expect_ok([&](kvc_error* err) {
      return kvc_op_attention_ragged(qo_indptr.dl(), same ? nullptr : kv_indptr.dl(), &opt, q.dl(),
                                     k.dl(), v.dl(), out.dl(), lse.dl(), err);
    });
    for (size_t i = 0; i < rows.size(); ++i) {
      for (int64_t r = 0; r < rows[i]; ++r) {
        const int64_t row = q_cuts[i] + r, position = lengths[i] - rows[i] + r;
        for (int64_t head = 0; head < q_heads; ++head) {
          const int64_t kv_head = head / (q_heads / kv_heads);
          const Answer want = answer(
              problem, row, head, position, problem.full ? lengths[i] : position + 1, k_dim, v_dim,
              [&](int64_t d) { return q.get(row, head, d); },
              [&](int64_t key, int64_t d) { return k.get(kv_cuts[i] + key, kv_head, d); },
              [&](int64_t key, int64_t d) { return v.get(kv_cuts[i] + key, kv_head, d); });
          expect_answer(want, out, lse, row, head, tolerance_of(elem));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
    EXPECT_TRUE(out.padding_untouched());
  }
}

TEST(OpMlaPaged, EqualsTheFormulaOverLatentsWithItsRopeBehindThem) {
  for (uint64_t seed = 200; seed < 220; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Random random(seed);
    constexpr int64_t kRank = 48, kRope = 16, kHeads = 5;
    const PoolShape shape{.layout = KVC_OP_MLA,
                          .elem = random.pick_of({Elem::kF32, Elem::kF16, Elem::kBF16}),
                          .pages = 150,
                          .heads = 1,
                          .page_size = random.pick_of<int64_t>({7, 16, 48}),
                          .k_dim = kRank + kRope,
                          .v_dim = kRank,
                          .gap = random.pick_of<int64_t>({0, 3})};
    Problem problem;
    problem.scale = 0.125;
    std::vector<int32_t> rows;
    const std::vector<int32_t> lengths = random_lengths(random, false, &rows);
    Pool pool(shape);
    Tables tables(random, shape, lengths, rows);
    tables.fill(random, pool);
    const int64_t num_rows = tables.num_rows();
    HostTensor q(Elem::kF32, {num_rows, kHeads, kRank + kRope});
    HostTensor out(Elem::kF32, {num_rows, kHeads, kRank}), lse(Elem::kF32, {num_rows, kHeads});
    q.fill_random(random);
    const bool turns = random.chance(0.6);
    std::vector<int32_t> places;
    for (int64_t row = 0; row < num_rows; ++row)
      places.push_back(static_cast<int32_t>(random.range(-9, 5000)));
    Indices<int32_t> positions(places);
    const kvc_rope rope =
        rope_on_append(random.chance(0.5) ? KVC_ROPE_HALF : KVC_ROPE_INTERLEAVED, kRope);
    const kvc_attn_opt attn = attn_of(problem);
    kvc_op_opt opt = op_options();
    opt.attn = &attn;
    if (turns) opt.rope = &rope, opt.positions = positions.dl();
    const kvc_op_table table = tables.c(random.chance(0.5));
    expect_ok([&](kvc_error* err) {
      return kvc_op_mla_paged(pool.c(), &table, kRank, &opt, q.dl(), out.dl(), lse.dl(), err);
    });
    int64_t row = 0;
    for (int64_t i = 0; i < tables.count(); ++i) {
      for (int64_t r = 0; r < tables.rows(i); ++r, ++row) {
        const int64_t position = tables.length(i) - tables.rows(i) + r;
        for (int64_t head = 0; head < kHeads; ++head) {
          const auto plain = [&](int64_t d) { return q.get(row, head, d); };
          const auto key_row = [&](int64_t key, int64_t d) {
            return pool.get(pool.k(), tables.slot(i, key), 0, d);
          };
          const Answer want = answer(
              problem, row, head, position, position + 1, kRank + kRope, kRank,
              [&](int64_t d) {
                return turns ? turned(rope, kRank, positions[row], d, plain) : plain(d);
              },
              key_row, key_row);
          expect_answer(want, out, lse, row, head, tolerance_of(shape.elem));
          if (testing::Test::HasFatalFailure()) return;
        }
      }
    }
  }
}

double cpu_seconds(clockid_t clock) {
  timespec time{};
  EXPECT_EQ(clock_gettime(clock, &time), 0);
  return static_cast<double>(time.tv_sec) + 1e-9 * static_cast<double>(time.tv_nsec);
}

TEST(OpAttentionPaged, RunsOnTheCallersThreadOrOnTheHostsWithTheSameBits) {
  const PoolShape shape{
      .layout = KVC_OP_NHD, .pages = 320, .heads = 4, .page_size = 16, .k_dim = 64, .v_dim = 64};
  Random random(31);
  Pool pool(shape);
  Tables tables(random, shape, {1200, 3000, 700}, {1, 300, 1});
  tables.fill(random, pool);
  HostTensor q(Elem::kF32, {302, 8, 64}), alone(Elem::kF32, {302, 8, 64}),
      spread(Elem::kF32, {302, 8, 64});
  q.fill_random(random);
  const kvc_op_table table = tables.c(true);
  const double all_before = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID),
               own_before = cpu_seconds(CLOCK_THREAD_CPUTIME_ID);
  for (int i = 0; i < 8; ++i)
    ASSERT_EQ(
        kvc_op_attention_paged(pool.c(), &table, nullptr, q.dl(), alone.dl(), nullptr, nullptr),
        KVC_OK);
  const double own = cpu_seconds(CLOCK_THREAD_CPUTIME_ID) - own_before;
  const double all = cpu_seconds(CLOCK_PROCESS_CPUTIME_ID) - all_before;
  EXPECT_LT(all - own, 0.2 * all) << "without an executor no other thread works";
  ThreadedExecutor threads;
  const kvc_executor hooks = threads.hooks();
  kvc_op_opt opt = op_options();
  opt.executor = &hooks;
  ASSERT_EQ(kvc_op_attention_paged(pool.c(), &table, &opt, q.dl(), spread.dl(), nullptr, nullptr),
            KVC_OK);
  EXPECT_GT(threads.tasks, 0);
  EXPECT_TRUE(alone.same_bytes(spread));
}

TEST(OpAttentionPaged, BatchInvariantRowsDoNotDependOnHowAPromptIsCut) {
  const PoolShape shape{
      .layout = KVC_OP_HND, .elem = Elem::kF16, .page_size = 16, .k_dim = 64, .v_dim = 64};
  Random random(32);
  Pool pool(shape);
  Tables prompt(random, shape, {90}, {50});
  prompt.fill(random, pool);
  HostTensor q(Elem::kF32, {50, 4, 64}), whole(Elem::kF32, {50, 4, 64}),
      last(Elem::kF32, {1, 4, 64});
  HostTensor q_last(Elem::kF32, {1, 4, 64});
  q.fill_random(random);
  q_last.for_each(
      [&](int64_t, int64_t h, int64_t d, int64_t) { q_last.set(q.get(49, h, d), 0, h, d); });
  kvc_attn_opt attn = attn_options();
  attn.flags = KVC_ATTN_BATCH_INVARIANT;
  kvc_op_opt opt = op_options();
  opt.attn = &attn;
  kvc_op_table table = prompt.c(true);
  ASSERT_EQ(kvc_op_attention_paged(pool.c(), &table, &opt, q.dl(), whole.dl(), nullptr, nullptr),
            KVC_OK);
  table.qo_indptr = nullptr;
  ASSERT_EQ(
      kvc_op_attention_paged(pool.c(), &table, &opt, q_last.dl(), last.dl(), nullptr, nullptr),
      KVC_OK);
  last.for_each([&](int64_t, int64_t h, int64_t d, int64_t) {
    EXPECT_EQ(last.get(0, h, d), whole.get(49, h, d));
  });
}

}  // namespace
}  // namespace kvc::test
