// What the mma.sync attention kernel promises beside numbers: which launches it takes, that rows do
// not depend on each other, what becomes of Inf and NaN.
#if defined(KVC_CUDA_EMULATION)
#include <sys/mman.h>
#endif

#include <cstring>

#include "tests/cuda/attn_mma_run.h"

namespace kvc::cuda {
namespace {

using test::AttnErrors;
using test::AttnProblemShape;
using test::AttnResult;
using test::DeviceAttnProblem;
using test::HostSchedule;
using test::plan_for;
using test::run_mma;

constexpr int32_t kTiles[] = {16, 64};

// The rows of the last `count` tokens of the only sequence, as bits.
std::vector<uint32_t> last_tokens(const DeviceAttnProblem& problem, const AttnResult& result,
                                  int64_t count) {
  const int64_t row = problem.num_q_heads * problem.shape.v_dim;
  std::vector<uint32_t> bits(static_cast<size_t>(count * (row + problem.num_q_heads)));
  std::memcpy(bits.data(), result.out.data() + (problem.tokens - count) * row,
              static_cast<size_t>(count * row) * 4);
  std::memcpy(bits.data() + count * row,
              result.lse.data() + (problem.tokens - count) * problem.num_q_heads,
              static_cast<size_t>(count * problem.num_q_heads) * 4);
  return bits;
}

// The last tokens of a prompt get the same bits alone as together with those before them, when keys
// are cut at fixed places: their rows then lie elsewhere in tiles, beside others, and their tiles
// are covered otherwise.
TEST(AttnMma, GivesRowsTheSameBitsWhateverElseIsInTheirTile) {
  uint64_t seed = 1;
  for (const Element stored : {Element::kBF16, Element::kF16, Element::kE4M3}) {
    for (const bool window : {false, true}) {
      for (const int32_t tile : kTiles) {
        AttnProblemShape shape;
        shape.stored = stored, shape.window = window, shape.group = 3, shape.scales_per_row = true;
        shape.window_tokens =
            100;  // two pieces at least: merged here in double, which one piece alone would not be
        shape.softcap = shape.rotation = window, shape.sinks = true;
        shape.rows = {71}, shape.keys = {300};
        SCOPED_TRACE("seed " + std::to_string(seed));
        DeviceAttnProblem problem(seed++, shape);
        const int64_t last = 10;
        const AttnResult together = run_mma(problem, plan_for(problem, tile, 5, 64));
        kernels::AttnSequence& sequence = problem.sequences[0];
        const int64_t before = sequence.num_rows - last;
        sequence.num_rows = last, sequence.row_begin += before, sequence.first_key_end += before,
        sequence.position += before;
        if (window) {
          auto& begins = problem.arrays[0]->begins;
          begins.host.erase(begins.host.begin(), begins.host.begin() + before);
          begins.device = nullptr;
          sequence.key_begins = begins.host.data();
        }
        const AttnResult alone = run_mma(problem, plan_for(problem, tile, 3, 64));
        EXPECT_EQ(last_tokens(problem, together, last), last_tokens(problem, alone, last));
      }
    }
  }
}

TEST(AttnMma, TurnsQueriesOtherwiseForSinksOfTheirOwn) {
  uint64_t seed = 100;
  for (const int32_t tile : kTiles) {
    for (int round = 0; round < 8; ++round) {
      AttnProblemShape shape;
      shape.window = shape.rotation = true;
      // With the longer window nothing lies between sinks and window, and the second item begins in
      // the middle of a tile.
      shape.window_tokens = round % 2 == 0 ? 100 : 20;
      shape.rows = {5, 1}, shape.keys = {round < 4 ? 90 : 190, 140};
      DeviceAttnProblem problem(seed++, shape);
      SCOPED_TRACE(problem.describe());
      HostSchedule plan = plan_for(problem, tile, 4, 0, true);
      const AttnResult actual = run_mma(problem, plan);
      std::vector<float> out, lse;
      problem.clear(&out, &lse);
      plan.reserve_partials(shape.v_dim);
      test::execute_schedule(problem.host_params(out, lse), plan.view());
      const AttnErrors errors = test::errors_of(actual, out, lse, shape.v_dim);
      EXPECT_LT(errors.out, 8e-3);  // of bf16, as in attn_mma_test.cc
      EXPECT_LT(errors.lse, 2e-2);
    }
  }
}

// Inf or NaN in V of the last token: only its own rows see it.
TEST(AttnMma, KeepsInfAndNanOfAKeyFromRowsThatDoNotSeeIt) {
  uint64_t seed = 200;
  for (const bool in_values : {true, false}) {
    for (const Element stored : {Element::kBF16, Element::kF16, Element::kE4M3, Element::kE5M2}) {
      for (const int32_t tile : kTiles) {
        for (const int64_t rows : {2, 30}) {
          AttnProblemShape shape;
          shape.stored = stored, shape.kv_heads = 1;
          shape.rows = {rows}, shape.keys = {77};
          DeviceAttnProblem problem(seed++, shape);
          SCOPED_TRACE(problem.describe());
          const int64_t key = 76;
          const int32_t page =
              problem.arrays[0]->pages.host[static_cast<size_t>(key / shape.page_size)];
          (in_values ? problem.v : problem.k).write_infinity(page, 0, key % shape.page_size, 5);
          const AttnResult actual = run_mma(problem, plan_for(problem, tile, 2));
          std::vector<float> out, lse;
          problem.reference(&out, &lse);
          const size_t last = static_cast<size_t>((rows - 1) * shape.group),
                       v_dim = static_cast<size_t>(shape.v_dim);
          for (size_t row = last; row < lse.size(); ++row) {
            // Inf of K times a negative query is a score of -inf: the key counts nothing, as in the
            // reference.
            const bool spoilt = in_values || !std::isfinite(out[row * v_dim]);
            EXPECT_TRUE(!spoilt || !std::isfinite(actual.out[row * v_dim + 5]));
          }
          AttnResult others = actual;
          others.out.resize(last * v_dim), others.lse.resize(last);
          out.resize(last * v_dim), lse.resize(last);
          const AttnErrors errors = test::errors_of(others, out, lse, shape.v_dim);
          EXPECT_LT(errors.out, 8e-3);
          EXPECT_LT(errors.lse, 2e-2);
        }
      }
    }
  }
}

#if defined(KVC_CUDA_EMULATION)

// Address space that is backed where it is touched.
class Spread {
 public:
  explicit Spread(size_t bytes) : bytes_(bytes) {
    memory_ = mmap(nullptr, bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  }
  ~Spread() {
    if (memory_ != MAP_FAILED) munmap(memory_, bytes_);
  }
  Spread(const Spread&) = delete;
  Spread& operator=(const Spread&) = delete;
  std::byte* data() const {
    return memory_ != MAP_FAILED ? static_cast<std::byte*>(memory_) : nullptr;
  }

 private:
  void* memory_;
  size_t bytes_;
};

TEST(AttnMma, FindsPagesBeyondFourGibibytes) {
  constexpr int64_t kStride = (int64_t{3} << 30) + 64;
  for (const int32_t tile : kTiles) {
    AttnProblemShape shape;
    shape.rows = {2}, shape.keys = {40};
    DeviceAttnProblem problem(300, shape);
    const int64_t pages =
        static_cast<int64_t>(problem.k.bytes.host.size()) / problem.k.stored.page_stride;
    const Spread k(static_cast<size_t>(pages * kStride)), v(static_cast<size_t>(pages * kStride));
    if (k.data() == nullptr || v.data() == nullptr) GTEST_SKIP() << "no address space";
    const auto spread = [&](const Spread& to, const test::TwinPool& from,
                            kernels::PagedRows& rows) {
      const int64_t bytes = from.stored.page_stride;
      for (int64_t page = 0; page < pages; ++page)
        std::memcpy(to.data() + page * kStride, from.bytes.host.data() + page * bytes,
                    static_cast<size_t>(bytes));
      rows.base = to.data(), rows.page_stride = kStride;
    };
    const AttnResult actual = run_mma(problem, plan_for(problem, tile, 1), [&](AttnLaunch& launch) {
      spread(k, problem.k, launch.params.k);
      spread(v, problem.v, launch.params.v);
    });
    std::vector<float> out, lse;
    problem.reference(&out, &lse);
    EXPECT_LT(test::errors_of(actual, out, lse, shape.v_dim).out, 8e-3);
  }
}

#endif

AttnLaunch plain_launch() {
  AttnLaunch launch{};
  kernels::AttnParams& p = launch.params;
  p.num_q_heads = 8, p.num_kv_heads = 2, p.k_dim = p.v_dim = 128, p.page_size = 16;
  p.q = {nullptr, 8 * 256, 256, kernels::DType::kBF16};
  p.k = p.v = {nullptr, 2 * 16 * 256, 16 * 256, 256, kernels::DType::kBF16};
  launch.schedule.tile_rows = 16;
  return launch;
}

TEST(AttnMma, SaysWhatItDoesNotTake) {
  const char* why = nullptr;
  constexpr int32_t kShared = 163 * 1024;  // of sm_80
  EXPECT_TRUE(attn_mma16_fits(plain_launch(), {.arch = 80, .shared_bytes = kShared}, &why));
  EXPECT_TRUE(attn_mma16_fits(plain_launch(), {.arch = 80, .shared_bytes = kShared}, nullptr));
  const auto refuses = [](int arch, void (*change)(AttnLaunch&)) {
    AttnLaunch launch = plain_launch();
    change(launch);
    const char* reason = nullptr;
    const bool fits = attn_mma16_fits(launch, {.arch = arch, .shared_bytes = kShared}, &reason);
    return !fits && reason != nullptr;
  };
  EXPECT_TRUE(refuses(75, [](AttnLaunch&) {}));
  EXPECT_TRUE(refuses(90, [](AttnLaunch& l) { l.schedule.tile_rows = 64; }));
  EXPECT_TRUE(refuses(
      90, [](AttnLaunch& l) { l.params.k.dtype = l.params.v.dtype = kernels::DType::kF32; }));
  EXPECT_TRUE(refuses(90, [](AttnLaunch& l) { l.params.v.dtype = kernels::DType::kF16; }));
  EXPECT_TRUE(refuses(90, [](AttnLaunch& l) { l.params.k_dim = 576; }));
  EXPECT_TRUE(refuses(90, [](AttnLaunch& l) { l.params.k_dim = l.params.v_dim = 60; }));
  EXPECT_TRUE(refuses(90, [](AttnLaunch& l) { l.params.k.token_stride = 264; }));
  EXPECT_TRUE(refuses(90, [](AttnLaunch& l) { l.params.v.base += 8; }));
  EXPECT_TRUE(refuses(90, [](AttnLaunch& l) { l.params.q.head_stride = 258; }));
  EXPECT_TRUE(refuses(90, [](AttnLaunch& l) { l.params.k_rotations[1].rotary_dim = 64; }));
  EXPECT_TRUE(refuses(90, [](AttnLaunch& l) { l.k_storage.quant = Quant::kPerTensor; }));
  EXPECT_TRUE(refuses(90, [](AttnLaunch& l) {
    l.k_storage.quant = l.v_storage.quant = Quant::kPerTokenHead;
    l.k_storage.type = l.v_storage.type = Stored::kInt4;
  }));
}

TEST(AttnMma, AsksForWholeWavesOfItsTiles) {
  EXPECT_EQ(attn_mma16_geometry({.num_sms = 132}, 128, 128).num_ctas, 264);
  EXPECT_EQ(attn_mma16_geometry({.num_sms = 132}, 128, 128).tile_rows, 16);
  EXPECT_EQ(attn_mma64_geometry({.num_sms = 132}, 192, 128).num_ctas, 264);
  EXPECT_EQ(attn_mma64_geometry({.num_sms = 132}, 256, 256).num_ctas, 132);
  EXPECT_EQ(attn_mma64_geometry({.num_sms = 108}, 80, 80).tile_rows, 64);
  for (const int32_t dim : {64, 128, 256})
    EXPECT_EQ(attn_mma16_geometry({.num_sms = 1}, dim, dim).key_block, 64);
}

}  // namespace
}  // namespace kvc::cuda
