// The operators on the emulated device, through the C interface, against those of the CPU on the
// same tensors: device memory is host memory there, so that only the tags differ.
#include <cuda_runtime_api.h>

#include <array>
#include <cmath>
#include <limits>
#include <memory>

#include "cudasim/cudasim.h"
#include "kernels/cuda/table.h"
#include "src/device/gpu.h"
#include "tests/capi/ops_fixture.h"

namespace kvc::test {
namespace {

constexpr DLDevice kGpu{kDLCUDA, 0};

// These tensors lie on a device as long as it lives.
class Tagged {
 public:
  explicit Tagged(std::vector<const DLTensor*> tensors, DLDevice device = kGpu)
      : tensors_(std::move(tensors)) {
    for (const DLTensor* tensor : tensors_) set(tensor, device);
  }
  ~Tagged() {
    for (const DLTensor* tensor : tensors_) set(tensor, {kDLCPU, 0});
  }
  Tagged(const Tagged&) = delete;
  Tagged& operator=(const Tagged&) = delete;

 private:
  static void set(const DLTensor* tensor, DLDevice device) {
    if (tensor != nullptr) const_cast<DLTensor*>(tensor)->device = device;
  }
  std::vector<const DLTensor*> tensors_;
};

std::vector<const DLTensor*> tensors_of(const kvc_op_pool& pool) { return {pool.k, pool.v}; }
std::vector<const DLTensor*> tensors_of(const kvc_op_table& table) {
  return {table.seq_lens, table.qo_indptr, table.page_indptr, table.page_indices,
          table.block_table};
}
std::vector<const DLTensor*> tensors_of(const kvc_op_opt& opt) {
  std::vector<const DLTensor*> all{opt.positions};
  if (opt.attn != nullptr)
    all.insert(all.end(), {opt.attn->sink_logits, opt.attn->alibi_slopes, opt.attn->bias});
  return all;
}
std::vector<const DLTensor*> join(std::initializer_list<std::vector<const DLTensor*>> lists) {
  std::vector<const DLTensor*> all;
  for (const auto& list : lists) all.insert(all.end(), list.begin(), list.end());
  return all;
}

void expect_same(HostTensor& got, HostTensor& want, double tolerance, const char* what) {
  bool is_same = true;
  got.for_each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
    const double a = got.get(i, j, k, l), b = want.get(i, j, k, l);
    if (!is_same || a == b || (std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= tolerance)
      return;
    is_same = false;
    ADD_FAILURE() << what << "[" << i << "," << j << "," << k << "," << l << "] is " << a
                  << ", on the CPU " << b;
  });
  EXPECT_TRUE(got.padding_untouched()) << what;
}

// Sums of float32 in another order; with 16-bit pools also weights of 16 bits.
double tolerance_of(Elem pool) { return pool == Elem::kF32 ? 3e-5 : 2e-2; }

class CudaOps : public ::testing::Test {
 protected:
  void SetUp() override {
    cudasim::reset();
    std::string why;
    ASSERT_TRUE(install_backend(kvc_cuda_backend(), &why)) << why;
    for (cudaStream_t& stream : streams_)
      ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  void TearDown() override {
    cudasim::finish_all();
    for (cudaStream_t stream : streams_) EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
    kvc_cuda_backend()->trim(0);
    cudasim::reset();
    (void)install_backend(nullptr, nullptr);
  }
  static void ok(const std::function<kvc_status(kvc_error*)>& call) {
    kvc_error error{};
    error.struct_size = sizeof error;
    ASSERT_EQ(call(&error), KVC_OK) << error.message;
  }
  // The call on the device; nothing in it may wait.
  void ok_on_gpu(const std::vector<const DLTensor*>& tensors,
                 const std::function<kvc_status(kvc_error*)>& call) {
    const Tagged tagged(tensors);
    cudasim::reset_counters();
    ok(call);
    EXPECT_EQ(cudasim::counters().synchronizations, 0u);
    EXPECT_EQ(cudasim::counters().host_to_device_bytes, 0u);
    cudasim::finish_all();
  }

  cudaStream_t streams_[2];
};

// ---- Attention

struct Attention {
  PoolShape pool;
  int64_t group = 1;
  std::vector<int32_t> lengths, rows;
  bool padded = false, full = false;
  int64_t window = 0;
  double soft_cap = 0;
  bool sinks = false, slopes = false, bias = false, rope = false;
  Elem q = Elem::kF32;
};

std::string describe(const Attention& a) {
  std::string text = "page_size " + std::to_string(a.pool.page_size) + ", heads " +
                     std::to_string(a.pool.heads) + " x " + std::to_string(a.group) + ", dims " +
                     std::to_string(a.pool.k_dim) + "/" + std::to_string(a.pool.v_dim) + ", elem " +
                     std::to_string(static_cast<int>(a.pool.elem)) + ", lengths";
  for (size_t i = 0; i < a.lengths.size(); ++i)
    text += " " + std::to_string(a.rows[i]) + "/" + std::to_string(a.lengths[i]);
  return text;
}

// One attention with all its tensors, and its results on the CPU and on the device.
class AttentionCall {
 public:
  AttentionCall(Random& random, const Attention& a)
      : pool(a.pool), tables(random, a.pool, a.lengths, a.rows) {
    const int64_t heads = a.pool.heads * a.group, rows = tables.num_rows();
    tables.fill(random, pool);
    q = std::make_unique<HostTensor>(a.q, std::vector<int64_t>{rows, heads, a.pool.k_dim});
    q->fill_random(random);
    for (auto* each : {&out, &expected_out}) {
      *each =
          std::make_unique<HostTensor>(Elem::kF32, std::vector<int64_t>{rows, heads, a.pool.v_dim},
                                       Placement{.extra_rows = 1, .inner_gap = 4});
    }
    for (auto* each : {&lse, &expected_lse})
      *each = std::make_unique<HostTensor>(Elem::kF32, std::vector<int64_t>{rows, heads});
    sinks = std::make_unique<HostTensor>(Elem::kF32, std::vector<int64_t>{heads});
    slopes = std::make_unique<HostTensor>(Elem::kF32, std::vector<int64_t>{heads});
    bias = std::make_unique<HostTensor>(Elem::kF32, std::vector<int64_t>{heads, rows, 700});
    sinks->fill_random(random), slopes->fill_random(random, 0.1);
    if (a.bias) bias->fill_random(random);
    std::vector<int32_t> at;
    for (int64_t row = 0; row < rows; ++row)
      at.push_back(static_cast<int32_t>(random.range(0, 900)));
    positions = std::make_unique<Indices<int32_t>>(at);
    attn = attn_options();
    attn.window = a.window;
    attn.soft_cap = static_cast<float>(a.soft_cap);
    if (a.sinks) attn.sink_logits = sinks->dl();
    if (a.slopes) attn.alibi_slopes = slopes->dl();
    if (a.bias) attn.bias = bias->dl();
    opt = op_options();
    opt.attn = &attn;
    opt.full = a.full ? 1 : 0;
    if (a.rope) {
      rope = rope_on_append(KVC_ROPE_HALF, static_cast<int32_t>(a.pool.k_dim / 2));
      opt.rope = &rope;
      opt.positions = positions->dl();
    }
    table = tables.c(a.padded);
  }

  std::vector<const DLTensor*> tensors() const {
    return join({tensors_of(*pool.c()),
                 tensors_of(table),
                 tensors_of(opt),
                 {q->dl(), out->dl(), lse->dl()}});
  }
  kvc_status run(kvc_error* error) {
    return kvc_op_attention_paged(pool.c(), &table, &opt, q->dl(), out->dl(), lse->dl(), error);
  }
  kvc_status run_on_cpu(kvc_error* error) {
    return kvc_op_attention_paged(pool.c(), &table, &opt, q->dl(), expected_out->dl(),
                                  expected_lse->dl(), error);
  }
  void expect_equal(double tolerance) {
    expect_same(*out, *expected_out, tolerance, "out");
    expect_same(*lse, *expected_lse, 2 * tolerance, "lse");
  }

  Pool pool;
  Tables tables;
  std::unique_ptr<HostTensor> q, out, expected_out, lse, expected_lse, sinks, slopes, bias;
  std::unique_ptr<Indices<int32_t>> positions;
  kvc_attn_opt attn;
  kvc_op_opt opt;
  kvc_rope rope{};
  kvc_op_table table;
};

PoolShape pool_shape(kvc_op_layout layout, Elem elem, int64_t page_size, int64_t heads,
                     int64_t k_dim, int64_t v_dim) {
  PoolShape shape;
  shape.layout = layout;
  shape.elem = elem;
  shape.page_size = page_size;
  shape.pages = 1200 / page_size + 9;
  shape.heads = heads, shape.k_dim = k_dim, shape.v_dim = v_dim;
  return shape;
}

TEST_F(CudaOps, AttentionOverPagesGivesWhatTheCpuGives) {
  const std::vector<Attention> cases = {
      {.pool = pool_shape(KVC_OP_HND, Elem::kBF16, 16, 2, 64, 64),
       .group = 4,
       .lengths = {1, 33, 300, 17},
       .rows = {1, 1, 1, 1},
       .q = Elem::kBF16},
      {.pool = pool_shape(KVC_OP_NHD, Elem::kBF16, 16, 1, 80, 80),
       .group = 3,
       .lengths = {90, 0, 7, 40},
       .rows = {70, 0, 1, 0},
       .padded = true,
       .q = Elem::kBF16},
      {.pool = pool_shape(KVC_OP_NHD, Elem::kF16, 48, 3, 192, 128),
       .group = 1,
       .lengths = {50, 130},
       .rows = {1, 40},
       .q = Elem::kF16},
      {.pool = pool_shape(KVC_OP_HND, Elem::kF32, 1, 2, 16, 16),
       .group = 5,
       .lengths = {3, 70, 1},
       .rows = {2, 1, 1},
       .padded = true,
       .window = 9},
      {.pool = pool_shape(KVC_OP_NHD, Elem::kF32, 256, 1, 24, 40),
       .group = 2,
       .lengths = {300, 256, 5},
       .rows = {4, 20, 5},
       .full = true,
       .slopes = true},
      {.pool = pool_shape(KVC_OP_HND, Elem::kBF16, 256, 1, 128, 128),
       .group = 8,
       .lengths = {600, 20},
       .rows = {1, 9},
       .window = 100,
       .soft_cap = 4,
       .sinks = true,
       .rope = true},
      {.pool = pool_shape(KVC_OP_NHD, Elem::kBF16, 48, 7, 64, 64),
       .group = 1,
       .lengths = {100, 61},
       .rows = {3, 1},
       .padded = true,
       .bias = true},
      {.pool = pool_shape(KVC_OP_HND, Elem::kBF16, 16, 1, 128, 128),
       .group = 2,
       .lengths = {200},
       .rows = {180},
       .rope = true,
       .q = Elem::kBF16},
  };
  uint64_t seed = 20261122;
  for (const Attention& a : cases) {
    SCOPED_TRACE("seed " + std::to_string(++seed) + ": " + describe(a));
    Random random(seed);
    AttentionCall call(random, a);
    ok([&](kvc_error* error) { return call.run_on_cpu(error); });
    call.opt.stream = streams_[0];
    ok_on_gpu(call.tensors(), [&](kvc_error* error) { return call.run(error); });
    call.expect_equal(tolerance_of(a.pool.elem));
    if (HasFailure()) return;
  }
}

TEST_F(CudaOps, WithoutCutsEachSequenceHasOneRow) {
  Random random(7);
  Attention a{.pool = pool_shape(KVC_OP_NHD, Elem::kF32, 16, 2, 32, 32),
              .group = 20,
              .lengths = {30, 1, 77},
              .rows = {1, 1, 1}};
  AttentionCall call(random, a);
  call.table = call.tables.c(true, false);
  ok([&](kvc_error* error) { return call.run_on_cpu(error); });
  ok_on_gpu(call.tensors(), [&](kvc_error* error) { return call.run(error); });
  call.expect_equal(tolerance_of(a.pool.elem));
}

// What the CPU refuses: on a device the sequence sees nothing, and the others what they should.
TEST_F(CudaOps, ASequenceOutsideOfThePoolOrItsTableSeesNothing) {
  const std::vector<int32_t> lengths{20, 33, 50, 40}, rows{1, 3, 20, 2};
  for (const bool padded : {false, true}) {
    for (int wrong = 0; wrong < 6; ++wrong) {
      SCOPED_TRACE("case " + std::to_string(wrong) + (padded ? ", padded" : ", CSR"));
      Random random(31);
      const Attention a{.pool = pool_shape(KVC_OP_HND, Elem::kBF16, 16, 1, 64, 64),
                        .group = 2,
                        .lengths = lengths,
                        .rows = rows,
                        .padded = padded};
      AttentionCall call(random, a);
      ok([&](kvc_error* error) { return call.run_on_cpu(error); });
      const int64_t columns = call.tables.block_table->dl()->shape[1];
      // Sequence 2 is in rows 4 to 23.
      int32_t& page =
          padded ? (*call.tables.block_table)[2 * columns + 1] : (*call.tables.page_indices)[6];
      if (wrong == 0) page = -1;
      if (wrong == 1) page = static_cast<int32_t>(a.pool.pages);
      if (wrong == 2) page = std::numeric_limits<int32_t>::max();
      if (wrong == 3) (*call.tables.seq_lens)[2] = -5;
      if (wrong == 4) (*call.tables.seq_lens)[2] = 1 << 30;
      if (wrong == 5) (*call.tables.seq_lens)[2] = 19;  // fewer keys than rows
      ok_on_gpu(call.tensors(), [&](kvc_error* error) { return call.run(error); });
      call.out->for_each([&](int64_t row, int64_t head, int64_t d, int64_t) {
        const bool is_wrong = row >= 4 && row < 24;
        const double want = is_wrong ? 0 : call.expected_out->get(row, head, d);
        if (std::abs(call.out->get(row, head, d) - want) <= 2e-2) return;
        ADD_FAILURE() << "row " << row << ": " << call.out->get(row, head, d) << " instead of "
                      << want;
      });
      EXPECT_EQ(call.lse->get(10, 1), -std::numeric_limits<double>::infinity());
      if (HasFailure()) return;
    }
  }
}

TEST_F(CudaOps, CutsThatDoNotAscendComputeNothing) {
  for (const int32_t wrong : {-1, 2, 1000}) {
    Random random(5);
    const Attention a{.pool = pool_shape(KVC_OP_NHD, Elem::kF32, 16, 1, 16, 16),
                      .group = 1,
                      .lengths = {20, 33, 50},
                      .rows = {3, 1, 2}};
    AttentionCall call(random, a);
    (*call.tables.qo_indptr)[2] = wrong;
    ok_on_gpu(call.tensors(), [&](kvc_error* error) { return call.run(error); });
    EXPECT_TRUE(call.out->is_untouched() && call.lse->is_untouched()) << wrong;
  }
}

TEST_F(CudaOps, LatentsAreAttendedAsOnTheCpu) {
  struct Case {
    Elem elem;
    int64_t rank, rope, heads;
  };
  for (const Case& c : {Case{Elem::kBF16, 512, 64, 16}, Case{Elem::kF32, 32, 8, 3}}) {
    SCOPED_TRACE("rank " + std::to_string(c.rank));
    Random random(11);
    PoolShape shape;
    shape.layout = KVC_OP_MLA;
    shape.elem = c.elem;
    shape.page_size = 16, shape.pages = 20, shape.heads = 1, shape.k_dim = c.rank + c.rope;
    Pool pool(shape);
    Tables tables(random, shape, {70, 1, 40}, {1, 1, 3});
    tables.fill(random, pool);
    const kvc_op_table table = tables.c(false);
    const int64_t rows = tables.num_rows();
    HostTensor q(c.elem, {rows, c.heads, shape.k_dim});
    q.fill_random(random);
    HostTensor out(Elem::kF32, {rows, c.heads, c.rank}),
        expected(Elem::kF32, {rows, c.heads, c.rank});
    HostTensor lse(Elem::kF32, {rows, c.heads}), expected_lse(Elem::kF32, {rows, c.heads});
    kvc_attn_opt attn = attn_options();
    attn.scale = 0.05f;
    kvc_op_opt opt = op_options();
    opt.attn = &attn;
    const auto rank = static_cast<int32_t>(c.rank);
    ok([&](kvc_error* error) {
      return kvc_op_mla_paged(pool.c(), &table, rank, &opt, q.dl(), expected.dl(),
                              expected_lse.dl(), error);
    });
    ok_on_gpu(join({tensors_of(*pool.c()), tensors_of(table), {q.dl(), out.dl(), lse.dl()}}),
              [&](kvc_error* error) {
                return kvc_op_mla_paged(pool.c(), &table, rank, &opt, q.dl(), out.dl(), lse.dl(),
                                        error);
              });
    expect_same(out, expected, tolerance_of(c.elem), "out");
    expect_same(lse, expected_lse, 2 * tolerance_of(c.elem), "lse");
  }
}

TEST_F(CudaOps, RaggedKeysAreAttendedAsOnTheCpu) {
  for (const bool full : {false, true}) {
    for (const Elem elem : {Elem::kF32, Elem::kBF16}) {
      SCOPED_TRACE(full ? "full" : "causal");
      Random random(13);
      Indices<int32_t> rows({0, 3, 3, 40, 41}), keys({0, 10, 10, 60, 90});
      HostTensor q(elem, {41, 6, 64}), k(elem, {90, 3, 64}), v(elem, {90, 3, 64});
      q.fill_random(random), k.fill_random(random), v.fill_random(random);
      HostTensor out(Elem::kF32, {41, 6, 64}), expected(Elem::kF32, {41, 6, 64});
      HostTensor lse(Elem::kF32, {41, 6}), expected_lse(Elem::kF32, {41, 6});
      kvc_op_opt opt = op_options();
      opt.full = full ? 1 : 0;
      const auto run = [&](HostTensor& o, HostTensor& l, kvc_error* error) {
        return kvc_op_attention_ragged(rows.dl(), keys.dl(), &opt, q.dl(), k.dl(), v.dl(), o.dl(),
                                       l.dl(), error);
      };
      ok([&](kvc_error* error) { return run(expected, expected_lse, error); });
      const std::vector<const DLTensor*> tensors{rows.dl(), keys.dl(), q.dl(),  k.dl(),
                                                 v.dl(),    out.dl(),  lse.dl()};
      ok_on_gpu(tensors, [&](kvc_error* error) { return run(out, lse, error); });
      expect_same(out, expected, tolerance_of(elem), "out");
      expect_same(lse, expected_lse, 2 * tolerance_of(elem), "lse");
      keys[2] = 91;  // beyond k: its two sequences see nothing
      ok_on_gpu(tensors, [&](kvc_error* error) { return run(out, lse, error); });
      EXPECT_EQ(out.get(20, 1, 1), 0);
      EXPECT_EQ(lse.get(20, 1), -std::numeric_limits<double>::infinity());
      EXPECT_NEAR(out.get(1, 1, 1), expected.get(1, 1, 1), tolerance_of(elem));
    }
  }
}

// ---- Rows

TEST_F(CudaOps, RowsAreAppendedAsOnTheCpuAndSlotsOutsideAreSkipped) {
  for (const kvc_op_layout layout : {KVC_OP_HND, KVC_OP_NHD}) {
    for (const Elem elem : {Elem::kF32, Elem::kBF16}) {
      for (const int64_t gap : {0, 3}) {
        Random random(17);
        PoolShape shape = pool_shape(layout, elem, 16, 3, 64, 80);
        shape.pages = 5, shape.gap = gap;
        Pool pool(shape), expected(shape);
        const int64_t num_slots = shape.pages * shape.page_size;
        Indices<int64_t> slots({7, -1, 0, num_slots - 1, 33, -5, 40});
        HostTensor k(elem, {7, 3, 64}), v(elem, {8, 3, 80});
        k.fill_random(random), v.fill_random(random);
        Indices<int32_t> positions({5, 6, 7, 1000, -3, 0, 2});
        const kvc_rope rope = rope_on_append(KVC_ROPE_INTERLEAVED, 32);
        kvc_op_opt opt = op_options();
        opt.rope = &rope, opt.positions = positions.dl(), opt.stream = streams_[1];
        ok([&](kvc_error* error) {
          return kvc_op_append(expected.c(), &opt, slots.dl(), k.dl(), v.dl(), error);
        });
        slots[1] = num_slots, slots[5] = int64_t{1} << 60;  // what the CPU would refuse
        ok_on_gpu(join({tensors_of(*pool.c()), tensors_of(opt), {slots.dl(), k.dl(), v.dl()}}),
                  [&](kvc_error* error) {
                    return kvc_op_append(pool.c(), &opt, slots.dl(), k.dl(), v.dl(), error);
                  });
        for (int64_t slot = 0; slot < num_slots; ++slot) {
          for (int64_t head = 0; head < 3; ++head) {
            for (int64_t d = 0; d < 64; ++d) {
              const double a = pool.get(pool.k(), slot, head, d),
                           b = expected.get(expected.k(), slot, head, d);
              ASSERT_TRUE((std::isnan(a) && std::isnan(b)) || std::abs(a - b) <= tolerance_of(elem))
                  << slot << " " << head << " " << d << ": " << a << " " << b;
            }
          }
        }
        EXPECT_TRUE(pool.v().same_bytes(expected.v()));
      }
    }
  }
}

TEST_F(CudaOps, PagesAreCopiedAsOnTheCpuAndPairsOutsideAreSkipped) {
  for (const kvc_op_layout layout : {KVC_OP_HND, KVC_OP_NHD, KVC_OP_MLA}) {
    for (const int64_t gap : {0, 1, 8}) {
      Random random(19);
      PoolShape shape = pool_shape(layout, Elem::kF16, 5, 3, 24, 40);
      shape.pages = 12, shape.gap = gap;
      if (layout == KVC_OP_MLA) shape.heads = 1;
      Pool pool(shape), expected(shape);
      for (int64_t slot = 0; slot < shape.pages * shape.page_size; ++slot) {
        Random one(static_cast<uint64_t>(slot)), other(static_cast<uint64_t>(slot));
        pool.fill_slot(one, slot), expected.fill_slot(other, slot);
      }
      Indices<int64_t> pairs({3, 0, 5, 11, 3, 7, 1, 2}, {4, 2});
      ok([&](kvc_error* error) {
        return kvc_op_copy_pages(expected.c(), nullptr, pairs.dl(), error);
      });
      Indices<int64_t> more({3, 0, -1, 4, 5, 11, 12, 6, 3, 7, 9, int64_t{1} << 40, 1, 2}, {7, 2});
      ok_on_gpu(join({tensors_of(*pool.c()), {more.dl()}}), [&](kvc_error* error) {
        return kvc_op_copy_pages(pool.c(), nullptr, more.dl(), error);
      });
      EXPECT_TRUE(pool.k().same_bytes(expected.k()));
      EXPECT_TRUE(pool.v().same_bytes(expected.v()));
    }
  }
}

TEST_F(CudaOps, PartsAreMergedAsOnTheCpu) {
  Random random(23);
  HostTensor out(Elem::kBF16, {9, 5, 40}), other(Elem::kF32, {9, 5, 40}),
      expected(Elem::kBF16, {9, 5, 40});
  HostTensor lse(Elem::kF32, {9, 5}), other_lse(Elem::kF32, {9, 5}),
      expected_lse(Elem::kF32, {9, 5});
  other.fill_random(random), other_lse.fill_random(random);
  out.for_each([&](int64_t t, int64_t h, int64_t d, int64_t) {
    const double value = random.symmetric();
    out.set(value, t, h, d), expected.set(value, t, h, d);
  });
  lse.for_each([&](int64_t t, int64_t h, int64_t, int64_t) {
    const double value = t == 3 ? -std::numeric_limits<double>::infinity() : random.symmetric();
    lse.set(value, t, h), expected_lse.set(value, t, h);
  });
  ok([&](kvc_error* error) {
    return kvc_op_merge(nullptr, expected.dl(), expected_lse.dl(), other.dl(), other_lse.dl(),
                        error);
  });
  ok_on_gpu({out.dl(), lse.dl(), other.dl(), other_lse.dl()}, [&](kvc_error* error) {
    return kvc_op_merge(nullptr, out.dl(), lse.dl(), other.dl(), other_lse.dl(), error);
  });
  expect_same(out, expected, 1e-2, "out");
  expect_same(lse, expected_lse, 1e-5, "lse");
}

TEST_F(CudaOps, RowsAreRotatedAsOnTheCpuAlsoInPlace) {
  struct Case {
    int64_t dim;
    int32_t rotary_dim;
    kvc_rope_style style;
  };
  for (const Case& c : {Case{80, 80, KVC_ROPE_HALF}, Case{64, 20, KVC_ROPE_INTERLEAVED},
                        Case{1024, 1024, KVC_ROPE_HALF}}) {
    Random random(29);
    HostTensor x(Elem::kF32, {6, 3, c.dim}), expected(Elem::kF32, {6, 3, c.dim});
    HostTensor out(Elem::kF32, {6, 3, c.dim}, {.row_gap = 3});
    x.fill_random(random);
    Indices<int32_t> positions({0, 1, 17, -4, 4000, 3});
    const kvc_rope rope = rope_on_append(c.style, c.rotary_dim);
    kvc_op_opt opt = op_options();
    opt.rope = &rope, opt.positions = positions.dl();
    ok([&](kvc_error* error) { return kvc_op_rotate(&opt, x.dl(), expected.dl(), error); });
    ok_on_gpu({x.dl(), out.dl(), positions.dl()},
              [&](kvc_error* error) { return kvc_op_rotate(&opt, x.dl(), out.dl(), error); });
    expect_same(out, expected, 1e-4, "out");
    ok_on_gpu({x.dl(), positions.dl()},
              [&](kvc_error* error) { return kvc_op_rotate(&opt, x.dl(), x.dl(), error); });
    expect_same(x, expected, 1e-4, "x");
  }
}

TEST_F(CudaOps, StatesGoOnAsOnTheCpu) {
  for (const bool has_cuts : {false, true}) {
    Random random(37);
    Indices<int32_t> cuts({0, 1, 1, 6});
    const int64_t rows = has_cuts ? 6 : 3;
    HostTensor states(Elem::kF32, {3, 4, 16, 24}, {.row_gap = 5}),
        before(Elem::kF32, {3, 4, 16, 24});
    before.fill_random(random);
    HostTensor expected(Elem::kF32, {3, 4, 16, 24}, {.row_gap = 5});
    before.for_each([&](int64_t i, int64_t j, int64_t k, int64_t l) {
      states.set(before.get(i, j, k, l), i, j, k, l),
          expected.set(before.get(i, j, k, l), i, j, k, l);
    });
    HostTensor q(Elem::kF32, {rows, 2, 16}), k(Elem::kF32, {rows, 2, 16}),
        v(Elem::kF32, {rows, 4, 24});
    HostTensor out(Elem::kF32, {rows, 4, 24}), expected_out(Elem::kF32, {rows, 4, 24});
    HostTensor decay(Elem::kF32, {rows, 4}), beta(Elem::kF32, {rows, 4});
    for (HostTensor* each : {&q, &k, &v, &beta}) each->fill_random(random);
    decay.for_each(
        [&](int64_t t, int64_t h, int64_t, int64_t) { decay.set(-random.unit(), t, h); });
    kvc_linear_opt linear{};
    linear.struct_size = sizeof linear;
    linear.decay = KVC_DECAY_TOKEN;
    linear.flags = KVC_LINEAR_DELTA;
    kvc_op_opt opt = op_options();
    opt.stream = streams_[0];
    const auto run = [&](HostTensor& s, HostTensor& o, kvc_error* error) {
      return kvc_op_linear_step(&linear, &opt, has_cuts ? cuts.dl() : nullptr, s.dl(), q.dl(),
                                k.dl(), v.dl(), decay.dl(), beta.dl(), o.dl(), error);
    };
    ok([&](kvc_error* error) { return run(expected, expected_out, error); });
    ok_on_gpu({states.dl(), out.dl(), cuts.dl(), q.dl(), k.dl(), v.dl(), decay.dl(), beta.dl()},
              [&](kvc_error* error) { return run(states, out, error); });
    expect_same(states, expected, 1e-4, "states");
    expect_same(out, expected_out, 1e-4, "out");
  }
}

// ---- Places, streams, graphs

TEST_F(CudaOps, TensorsOfSeveralDevicesAreRefused) {
  Random random(41);
  const Attention a{.pool = pool_shape(KVC_OP_NHD, Elem::kF32, 16, 1, 16, 16),
                    .group = 1,
                    .lengths = {20},
                    .rows = {1},
                    .sinks = true};
  AttentionCall call(random, a);
  const auto refused = [&](kvc_status status, std::initializer_list<const char*> parts) {
    expect_error(status, parts, [&](kvc_error* error) { return call.run(error); });
    EXPECT_TRUE(call.out->is_untouched());
  };
  for (const DLTensor* one : call.tensors()) {
    if (one == nullptr) continue;
    {
      const Tagged tagged({one});  // the others on the host
      refused(KVC_E_DEVICE_MISMATCH, {"lives on device type"});
    }
    const Tagged all(call.tensors());
    {
      const Tagged tagged({one}, {kDLCUDA, 1});
      refused(KVC_E_DEVICE_MISMATCH, {"lives on device type CUDA (2), number"});
    }
    const Tagged host({one}, {kDLCPU, 0});
    refused(KVC_E_DEVICE_MISMATCH, {"lives on device type"});
  }
  {
    const Tagged all(call.tensors(), {kDLCUDA, 9});
    refused(KVC_E_OUT_OF_RANGE, {"no CUDA device 9"});
  }
  const Tagged all(call.tensors());
  call.attn.flags = KVC_ATTN_BATCH_INVARIANT;
  refused(KVC_E_UNSUPPORTED, {"KVC_ATTN_BATCH_INVARIANT", "CUDA device 0"});
  kvc_op_table table = call.tables.c(false, false);
  expect_error(KVC_E_UNSUPPORTED, {"kvc_op_gather", "CUDA device 0"}, [&](kvc_error* error) {
    return kvc_op_gather(call.pool.c(), &table, nullptr, call.out->dl(), nullptr, error);
  });
  kvc_op_pool quantised = *call.pool.c();
  quantised.quant = KVC_QUANT_PER_TENSOR;
  expect_error(KVC_E_UNSUPPORTED, {"pool.quant = PER_TENSOR (1)", "CUDA device 0"},
               [&](kvc_error* error) {
                 return kvc_op_gather(&quantised, &table, nullptr, call.out->dl(), nullptr, error);
               });
  DLTensor* const rows = call.out->dl();
  expect_error(KVC_E_UNSUPPORTED, {"kvc_op_quantize", "CUDA device 0"}, [&](kvc_error* error) {
    return kvc_op_quantize(nullptr, KVC_QUANT_PER_TENSOR, rows, rows, rows, nullptr, error);
  });
  expect_error(KVC_E_UNSUPPORTED, {"kvc_op_dequantize", "CUDA device 0"}, [&](kvc_error* error) {
    return kvc_op_dequantize(nullptr, KVC_QUANT_PER_TENSOR, rows, rows, rows, error);
  });
}

TEST_F(CudaOps, NothingToDoIsNoWork) {
  Random random(43);
  const Attention a{
      .pool = pool_shape(KVC_OP_HND, Elem::kF32, 16, 1, 16, 16), .lengths = {}, .rows = {}};
  AttentionCall call(random, a);
  ok_on_gpu(call.tensors(), [&](kvc_error* error) { return call.run(error); });
  Indices<int64_t> none(std::vector<int64_t>{}), pairs({}, {0, 2});
  HostTensor k(Elem::kF32, {0, 1, 16});
  ok_on_gpu(
      join({tensors_of(*call.pool.c()), {none.dl(), pairs.dl(), k.dl()}}), [&](kvc_error* error) {
        const kvc_status status =
            kvc_op_append(call.pool.c(), nullptr, none.dl(), k.dl(), k.dl(), error);
        return status != KVC_OK ? status
                                : kvc_op_copy_pages(call.pool.c(), nullptr, pairs.dl(), error);
      });
  EXPECT_EQ(cudasim::counters().kernel_launches, 0u);
}

// Scratch of one call goes to the next, also to one on another stream: late streams must not
// notice.
TEST_F(CudaOps, CallsOnStreamsThatRunLateKeepTheirScratchApart) {
  cudasim::set_stream_order(cudasim::StreamOrder::kLazy);
  for (uint64_t seed = 1; seed <= 4; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    cudasim::seed(seed);
    Random random(seed);
    std::vector<std::unique_ptr<AttentionCall>> calls;
    for (int i = 0; i < 6; ++i) {
      const Attention a{.pool = pool_shape(KVC_OP_NHD, Elem::kF32, 16, 1, 16, 16),
                        .group = 2,
                        .lengths = {20 + 30 * i, 40},
                        .rows = {1, 5},
                        .window = i % 2 * 30,
                        .rope = i % 3 == 0};
      calls.push_back(std::make_unique<AttentionCall>(random, a));
      ok([&](kvc_error* error) { return calls.back()->run_on_cpu(error); });
    }
    cudasim::reset_counters();
    for (size_t i = 0; i < calls.size(); ++i) {
      const Tagged tagged(calls[i]->tensors());
      calls[i]->opt.stream = streams_[i % 2];
      ok([&](kvc_error* error) { return calls[i]->run(error); });
    }
    EXPECT_EQ(cudasim::counters().synchronizations, 0u);
    cudasim::finish_all();
    for (const auto& call : calls) call->expect_equal(3e-5);
    if (HasFailure()) return;
  }
}

TEST_F(CudaOps, ACapturedCallIsReplayedOverWhatTheTensorsHoldThen) {
  const uint64_t before = cudasim::live().device_allocations;
  Random random(47);
  const Attention a{.pool = pool_shape(KVC_OP_NHD, Elem::kBF16, 16, 2, 64, 64),
                    .group = 4,
                    .lengths = {20, 100, 64},
                    .rows = {1, 1, 1},
                    .rope = true};
  AttentionCall call(random, a);
  call.opt.stream = streams_[0];
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  {
    const Tagged tagged(call.tensors());
    ASSERT_EQ(cudaStreamBeginCapture(streams_[0], cudaStreamCaptureModeGlobal), cudaSuccess);
    ok([&](kvc_error* error) { return call.run(error); });
    ASSERT_EQ(cudaStreamEndCapture(streams_[0], &graph), cudaSuccess);
  }
  EXPECT_TRUE(call.out->is_untouched()) << "captured, not run";
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  for (const int32_t length : {20, 3, 32}) {
    (*call.tables.seq_lens)[0] = length;
    (*call.positions)[1] = 5 * length;
    call.q->fill_random(random);
    ok([&](kvc_error* error) { return call.run_on_cpu(error); });
    ASSERT_EQ(cudaGraphLaunch(executable, streams_[0]), cudaSuccess);
    cudasim::finish_all();
    call.expect_equal(2e-2);
  }
  ASSERT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudasim::live().device_allocations, before) << "the graph's scratch went with it";
}

TEST_F(CudaOps, ACallWithoutMemoryWritesNothing) {
  Random random(53);
  const Attention a{.pool = pool_shape(KVC_OP_HND, Elem::kF32, 16, 1, 16, 16),
                    .group = 2,
                    .lengths = {20, 40},
                    .rows = {1, 5}};
  AttentionCall call(random, a);
  const Tagged tagged(call.tensors());
  kvc_cuda_backend()->trim(0);
  cudasim::fail_call("cudaMallocFromPoolAsync", 1, cudaErrorMemoryAllocation);
  kvc_error error{};
  error.struct_size = sizeof error;
  EXPECT_EQ(call.run(&error), KVC_E_NO_MEMORY) << error.message;
  EXPECT_TRUE(call.out->is_untouched());
  cudasim::clear_failures();
  ok([&](kvc_error* err) { return call.run(err); });
  cudasim::finish_all();
}

}  // namespace
}  // namespace kvc::test
