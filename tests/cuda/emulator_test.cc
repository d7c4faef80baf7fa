// The emulator itself: lanes, barriers, asynchronous copies and matrix fragments do what ptx.cuh
// says, and mistakes of kernels show.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <numeric>
#include <random>
#include <set>
#include <vector>

#include "cudasim/cudasim.h"
#include "kernels/cuda/runtime/launch.cuh"

namespace {

using namespace kvc::cuda;
using kvc::kernels::DType;

LaunchShape shape_of(uint32_t ctas, uint32_t threads, uint32_t shared_bytes) {
  LaunchShape shape;
  shape.grid[0] = ctas;
  shape.threads = threads;
  shape.shared_bytes = shared_bytes;
  return shape;
}

// ----------------------------------------------------------------------------------------------
// lanes

struct Lanes {
  int32_t from_lane, from_xor, from_up;
  double wide;
  uint32_t odd;
  int32_t warp;
  bool any_first, all_below_32;
};

void exchange(Lanes* out) {
  const int t = static_cast<int>(threadIdx.x);
  Lanes mine{};
  mine.from_lane = shuffle(t, (lane_id() + 3) % 32);
  mine.from_xor = shuffle_xor(t, 5);
  mine.from_up = shuffle_up(t, 4);
  mine.wide = shuffle_xor(t + 0.25, 1);
  mine.odd = ballot(t % 2 == 1);
  mine.warp = warp_id();
  mine.any_first = any(t == 0);
  mine.all_below_32 = all(t < 32);
  out[blockIdx.x * blockDim.x + threadIdx.x] = mine;
}

TEST(EmulatedLanes, ExchangeValuesInsideTheirWarp) {
  std::vector<Lanes> out(3 * 96);
  ASSERT_EQ(launch(exchange, shape_of(3, 96, 0), nullptr, out.data()), cudaSuccess);
  for (int cta = 0; cta < 3; ++cta)
    for (int t = 0; t < 96; ++t) {
      const Lanes& lane = out[static_cast<size_t>(cta * 96 + t)];
      const int warp = t / 32;
      EXPECT_EQ(lane.from_lane, warp * 32 + (t + 3) % 32);
      EXPECT_EQ(lane.from_xor, t ^ 5);
      EXPECT_EQ(lane.from_up, t % 32 < 4 ? t : t - 4);
      EXPECT_EQ(lane.wide, (t ^ 1) + 0.25);
      EXPECT_EQ(lane.odd, 0xaaaaaaaau);
      EXPECT_EQ(lane.warp, warp);
      EXPECT_EQ(lane.any_first, warp == 0);
      EXPECT_EQ(lane.all_below_32, warp == 0);
    }
}

struct Grid {
  uint32_t* visits;
  uint32_t* done;
  uint32_t* last_sum;
  float* sum;
  int32_t* most;
};

// The last CTA to finish adds up what the others have counted.
void last_cta(const __grid_constant__ Grid p) {
  auto* is_last = reinterpret_cast<uint32_t*>(cta_shared());
  const uint32_t cta = (blockIdx.z * gridDim.y + blockIdx.y) * gridDim.x + blockIdx.x;
  const uint32_t ctas = gridDim.x * gridDim.y * gridDim.z;
  atomicAdd(&p.visits[cta], threadIdx.x);
  atomicAdd(p.sum, 0.5f);
  atomicMax(p.most, static_cast<int>(cta));
  sync_cta();
  if (threadIdx.x == 0) is_last[0] = atomic_add_fenced(p.done, 1) == ctas - 1;
  sync_cta();
  if (is_last[0] == 0) return;
  uint32_t sum = 0;
  for (uint32_t i = threadIdx.x; i < ctas; i += blockDim.x) sum += p.visits[i];
  atomicAdd(p.last_sum, sum);
}

TEST(EmulatedGrid, LastCtaSeesTheWorkOfAll) {
  for (const uint32_t threads : {1u, 3u}) {
    cudasim::set_cta_threads(threads);
    std::vector<uint32_t> visits(60);
    uint32_t done = 0, last_sum = 0;
    float sum = 0;
    int32_t most = -1;
    LaunchShape shape = shape_of(5, 64, 4);
    shape.grid[1] = 4;
    shape.grid[2] = 3;
    ASSERT_EQ(launch(last_cta, shape, nullptr, Grid{visits.data(), &done, &last_sum, &sum, &most}),
              cudaSuccess);
    EXPECT_EQ(last_sum, 60u * 63 * 32);
    EXPECT_EQ(sum, 60 * 64 * 0.5f);
    EXPECT_EQ(most, 59);
  }
  cudasim::reset();
}

void order_of_ctas(uint32_t* next, uint32_t* order) {
  if (threadIdx.x == 0) order[atomicAdd(next, 1)] = blockIdx.x;
}

TEST(EmulatedGrid, OrderOfCtasIsTheSeeds) {
  const auto run = [](uint64_t seed) {
    cudasim::seed(seed);
    std::vector<uint32_t> order(20);
    uint32_t next = 0;
    EXPECT_EQ(launch(order_of_ctas, shape_of(20, 32, 0), nullptr, &next, order.data()),
              cudaSuccess);
    return order;
  };
  const auto first = run(1);
  EXPECT_EQ(first, run(1));
  EXPECT_NE(first, run(2));
  EXPECT_EQ(std::set<uint32_t>(first.begin(), first.end()).size(), 20u);
  cudasim::reset();
}

// Reverses through shared memory; `synchronises` is the barrier in between.
void reverse(int* out, bool synchronises) {
  auto* words = reinterpret_cast<int*>(cta_shared());
  words[threadIdx.x] = static_cast<int>(threadIdx.x);
  if (synchronises) sync_cta();
  out[threadIdx.x] = words[blockDim.x - 1 - threadIdx.x];
}

TEST(EmulatedBarrier, OrdersSharedMemoryAndItsAbsenceShows) {
  std::vector<int> expected(128), out(128);
  std::iota(expected.rbegin(), expected.rend(), 0);
  for (uint64_t seed = 1; seed <= 10; ++seed) {
    cudasim::seed(seed);
    ASSERT_EQ(launch(reverse, shape_of(1, 128, 512), nullptr, out.data(), true), cudaSuccess);
    EXPECT_EQ(out, expected);
    ASSERT_EQ(launch(reverse, shape_of(1, 128, 512), nullptr, out.data(), false), cudaSuccess);
    EXPECT_NE(out, expected);
  }
  cudasim::reset();
}

// Two producers hand words to two consumers; barrier 1: full, 2: empty.
void hand_over(int* out, int rounds) {
  auto* words = reinterpret_cast<volatile int*>(cta_shared());
  const int warp = warp_id();
  int sum = 0;
  for (int i = 0; i < rounds; ++i) {
    if (warp < 2) {
      sync_named(2, 128);
      words[threadIdx.x] = i * static_cast<int>(threadIdx.x);
      arrive_named(1, 128);
    } else {
      arrive_named(2, 128);
      sync_named(1, 128);
      sum += words[threadIdx.x - 64];
    }
  }
  if (warp >= 2) out[threadIdx.x - 64] = sum;
}

TEST(EmulatedBarrier, NamedOnesCountArrivalsOfSomeWarps) {
  std::vector<int> out(64);
  ASSERT_EQ(launch(hand_over, shape_of(1, 128, 256), nullptr, out.data(), 10), cudaSuccess);
  for (int t = 0; t < 64; ++t) EXPECT_EQ(out[static_cast<size_t>(t)], 45 * t);
}

enum class BarrierMistake : int {
  kEndsInWarp,
  kOtherFunction,
  kHalfWarpAtBarrier,
  kUnequalCounts,
  kTwice,
  kMisalignedLoad,
  kSharedAsGlobal,
  kBeyondShared,
  kMisalignedMatrix,
  kInvalidAddress,
};

void makes(BarrierMistake mistake) {
  switch (mistake) {
    case BarrierMistake::kEndsInWarp:
      if (lane_id() == 7) return;
      sync_warp();
      break;
    case BarrierMistake::kOtherFunction:
      if (lane_id() < 16)
        (void)ballot(true);
      else
        (void)shuffle(1, 0);
      break;
    case BarrierMistake::kHalfWarpAtBarrier:
      if (lane_id() < 16) sync_named(3, 32);
      break;
    case BarrierMistake::kUnequalCounts: sync_named(3, threadIdx.x < 32 ? 64 : 32); break;
    case BarrierMistake::kTwice:
      arrive_named(3, 64);
      arrive_named(3, 64);
      break;
    case BarrierMistake::kMisalignedLoad:
      (void)load_16(reinterpret_cast<const std::byte*>(0x1008));
      break;
    case BarrierMistake::kSharedAsGlobal: (void)load_16(cta_shared()); break;
    case BarrierMistake::kBeyondShared:
      copy_async_16(cta_shared() + 512, reinterpret_cast<const void*>(0x1000), 0);
      break;
    case BarrierMistake::kMisalignedMatrix: {
      uint32_t r[4];
      load_matrix_x4(r, cta_shared() + 8);
      break;
    }
    case BarrierMistake::kInvalidAddress: store_16(reinterpret_cast<void*>(0x1000), {}); break;
  }
}

TEST(EmulatorDeathTest, NamesTheMistakeAndItsPlace) {
  const auto run = [](BarrierMistake mistake, uint32_t threads = 32) {
    (void)launch(makes, shape_of(1, threads, 512), nullptr, mistake);
  };
  EXPECT_DEATH(run(BarrierMistake::kEndsInWarp),
               "kernel makes, CTA \\(0, 0, 0\\), warp 0.*(ended.*sync_warp|sync_warp.*ended)");
  EXPECT_DEATH(run(BarrierMistake::kOtherFunction), "(ballot.*shuffle|shuffle.*ballot)");
  EXPECT_DEATH(run(BarrierMistake::kHalfWarpAtBarrier),
               "deadlock(.|\n)*0000ffff: in sync_named(.|\n)*barrier 3: 16 of 32");
  EXPECT_DEATH(run(BarrierMistake::kUnequalCounts, 64),
               "barrier 3 for (32|64) threads, others have come to it for (32|64)");
  EXPECT_DEATH(run(BarrierMistake::kTwice, 64), "second time");
  EXPECT_DEATH(run(BarrierMistake::kMisalignedLoad), "load_16: 0x1008 is not 16-byte aligned");
  EXPECT_DEATH(run(BarrierMistake::kSharedAsGlobal), "load_16: an address in shared memory");
  EXPECT_DEATH(run(BarrierMistake::kBeyondShared),
               "copy_async_16 to: shared memory 512 to 528, the CTA has 512 bytes");
  EXPECT_DEATH(run(BarrierMistake::kMisalignedMatrix), "load_matrix_x4: .* is not 16-byte aligned");
  EXPECT_DEATH(run(BarrierMistake::kInvalidAddress),
               "kernel makes, CTA \\(0, 0, 0\\), warp 0, lane [0-9]+: (invalid address|stopped by "
               "the sanitizer)");
}

// ------------------------------------------------------------------------------- asynchronous
// copies

struct Copies {
  const uint32_t* in;
  uint32_t* out;
  int32_t num_tiles;
  bool waits, releases;
};

// A ring of two tiles of 512 bytes.
void through_ring(const __grid_constant__ Copies p) {
  const auto fetch = [&](int tile) {
    if (tile < p.num_tiles)
      copy_async_16(cta_shared() + tile % 2 * 512 + 16 * threadIdx.x,
                    p.in + (tile * 128 + 4 * static_cast<int>(threadIdx.x)), 16);
    copy_async_commit();
  };
  fetch(0);
  for (int tile = 0; tile < p.num_tiles; ++tile) {
    fetch(tile + 1);
    if (p.waits) copy_async_wait<1>();
    sync_cta();
    const auto* words = reinterpret_cast<const uint32_t*>(cta_shared() + tile % 2 * 512);
    for (uint32_t i = 0; i < 4; ++i)
      p.out[static_cast<uint32_t>(tile) * 128 + 4 * threadIdx.x + i] =
          words[127 - (4 * threadIdx.x + i)];
    if (p.releases) sync_cta();
  }
}

TEST(EmulatedCopies, ArriveWithTheWaitAndMissingSynchronisationShows) {
  constexpr int kTiles = 9;
  std::vector<uint32_t> in(kTiles * 128 + 4), out(kTiles * 128), expected(kTiles * 128);
  size_t shift = 0;
  while (reinterpret_cast<uintptr_t>(&in[shift]) % 16 != 0) ++shift;
  std::iota(in.begin() + static_cast<ptrdiff_t>(shift), in.end(), 0u);
  for (size_t i = 0; i < expected.size(); ++i)
    expected[i] = static_cast<uint32_t>(i / 128 * 128 + 127 - i % 128);
  const auto run = [&](bool waits, bool releases) {
    EXPECT_EQ(launch(through_ring, shape_of(1, 32, 1024), nullptr,
                     Copies{&in[shift], out.data(), kTiles, waits, releases}),
              cudaSuccess);
    return out == expected;
  };
  int without_wait = 0, without_release = 0;
  for (uint64_t seed = 1; seed <= 20; ++seed) {
    cudasim::seed(seed);
    EXPECT_TRUE(run(true, true)) << "seed " << seed;
    without_wait += run(false, true) ? 0 : 1;
    without_release += run(true, false) ? 0 : 1;
  }
  EXPECT_EQ(without_wait, 20);
  EXPECT_GT(without_release, 10);
  cudasim::reset();
}

void partial(const std::byte* in, std::byte* out) {
  copy_async_16(cta_shared() + 16 * threadIdx.x, in, static_cast<int>(threadIdx.x % 17));
  copy_async_commit();
  copy_async_wait<0>();
  for (uint32_t i = 0; i < 16; ++i) out[16 * threadIdx.x + i] = cta_shared()[16 * threadIdx.x + i];
}

TEST(EmulatedCopies, ReadOnlyTheirBytesAndFillWithZeros) {
  alignas(16) std::byte in[16];
  std::byte out[32 * 16];
  std::fill(in, in + 16, std::byte{5});
  ASSERT_EQ(launch(partial, shape_of(1, 32, 512), nullptr, in, out), cudaSuccess);
  for (size_t t = 0; t < 32; ++t)
    for (size_t i = 0; i < 16; ++i)
      EXPECT_EQ(out[16 * t + i], i < t % 17 ? std::byte{5} : std::byte{0});
}

// ----------------------------------------------------------------------------------- matrix
// fragments

// D = A * B by load_matrix and mma, from row-major A [16][16], B [16][8] (transposed load) or its
// transpose (plain load).
struct Matrices {
  const uint16_t* a;
  const uint16_t* b;
  const uint16_t* b_transposed;
  float* d;
};

template <DType Type>
void multiply(const __grid_constant__ Matrices p) {
  auto* a_rows = reinterpret_cast<uint16_t*>(cta_shared());
  uint16_t* b_rows = a_rows + 256;     // [16][8]
  uint16_t* b_columns = b_rows + 128;  // [8][16]
  for (int i = lane_id(); i < 256; i += 32) a_rows[i] = p.a[i];
  for (int i = lane_id(); i < 128; i += 32) b_rows[i] = p.b[i];
  for (int i = lane_id(); i < 128; i += 32) b_columns[i] = p.b_transposed[i];
  sync_warp();
  const int matrix = lane_id() / 8, row = lane_id() % 8;
  uint32_t a[4], b[4], b_from_columns[4];
  load_matrix_x4(a, a_rows + (row + matrix % 2 * 8) * 16 + matrix / 2 * 8);
  load_matrix_x4_transposed(b, b_rows + (row + matrix % 2 * 8) * 8);
  load_matrix_x4(b_from_columns, b_columns + row * 16 + matrix % 2 * 8);
  float d[4] = {1, 2, 3, 4};
  mma_16816<Type>(d, a, b[0], b[1]);
  mma_16816<Type>(d, a, b_from_columns[0], b_from_columns[1]);
  const int group = lane_id() / 4, pair = 2 * (lane_id() % 4);
  p.d[group * 8 + pair] = d[0] - 1;
  p.d[group * 8 + pair + 1] = d[1] - 2;
  p.d[(group + 8) * 8 + pair] = d[2] - 3;
  p.d[(group + 8) * 8 + pair + 1] = d[3] - 4;
}

template <DType Type>
void check_multiply() {
  std::mt19937 random(3);
  std::vector<uint16_t> a(256), b(128), b_transposed(128);
  const auto encode = [](float value) {
    return Type == DType::kBF16 ? float_to_bf16(value) : float_to_f16(value);
  };
  const auto decode = [](uint16_t bits) {
    return Type == DType::kBF16 ? bf16_to_float(bits) : f16_to_float(bits);
  };
  const auto integer = [&] {
    return encode(static_cast<float>(static_cast<int>(random() % 31) - 15));
  };
  std::generate(a.begin(), a.end(), integer);
  std::generate(b.begin(), b.end(), integer);
  for (size_t k = 0; k < 16; ++k)
    for (size_t n = 0; n < 8; ++n) b_transposed[n * 16 + k] = b[k * 8 + n];
  std::vector<float> d(128);
  ASSERT_EQ(launch(multiply<Type>, shape_of(1, 32, 1024), nullptr,
                   Matrices{a.data(), b.data(), b_transposed.data(), d.data()}),
            cudaSuccess);
  for (size_t i = 0; i < 16; ++i)
    for (size_t j = 0; j < 8; ++j) {
      float expected = 0;
      for (size_t k = 0; k < 16; ++k) expected += decode(a[i * 16 + k]) * decode(b[k * 8 + j]);
      EXPECT_EQ(d[i * 8 + j], 2 * expected) << i << ", " << j;
    }
}

TEST(EmulatedMma, MultipliesWhatLoadMatrixLoads) {
  check_multiply<DType::kBF16>();
  check_multiply<DType::kF16>();
}

TEST(EmulatedConversions, AreExactThereAndRoundToNearestEvenBack) {
  for (uint32_t bits = 0; bits < 65536; ++bits) {
    const auto half = static_cast<uint16_t>(bits);
    const float f16 = f16_to_float(half), bf16 = bf16_to_float(half);
    const int exponent = static_cast<int>(bits >> 10 & 31);
    const double mantissa = bits & 1023;
    if (exponent != 31) {
      const double value =
          exponent == 0 ? std::ldexp(mantissa, -24) : std::ldexp(1024 + mantissa, exponent - 25);
      ASSERT_EQ(f16, (bits & 0x8000) != 0 ? -value : value) << bits;
    }
    ASSERT_EQ(float_to_f16(f16), std::isnan(f16) ? 0x7fff : half) << bits;
    ASSERT_EQ(float_to_bf16(bf16), std::isnan(bf16) ? 0x7fff : half) << bits;
    // Halfway to the next: to the even one.
    if (std::isfinite(f16) && (bits & 0x7fff) < 0x7bff) {
      const float next = f16_to_float(static_cast<uint16_t>(bits + 1));
      const float middle = f16 + (next - f16) / 2;
      ASSERT_EQ(float_to_f16(middle), bits % 2 == 0 ? bits : bits + 1);
      ASSERT_EQ(float_to_f16(std::nextafterf(middle, f16)), bits);
      ASSERT_EQ(float_to_f16(std::nextafterf(middle, next)), bits + 1);
    }
  }
  EXPECT_EQ(float_to_f16(65519.0f), 0x7bff);
  EXPECT_EQ(float_to_f16(65520.0f), 0x7c00);
  EXPECT_EQ(float_to_f16(std::numeric_limits<float>::denorm_min()), 0);
  EXPECT_EQ(float_to_bf16(std::numeric_limits<float>::max()), 0x7f80);
  EXPECT_EQ(pack<DType::kBF16>(1.0f, -2.0f), 0xc0003f80u);
  EXPECT_EQ(pack<DType::kF16>(1.0f, -2.0f), 0xc0003c00u);
  float first = 0, second = 0;
  unpack<DType::kF16>(0xc0003c00u, first, second);
  EXPECT_EQ(first, 1.0f);
  EXPECT_EQ(second, -2.0f);
  EXPECT_EQ(exp2_fast(-INFINITY), 0.0f);
  EXPECT_EQ(log2_fast(0.0f), -INFINITY);
}

// ----------------------------------------------------------------------------------------------
// launches

void does_nothing(const std::byte*) {}

struct Large {
  std::byte bytes[4097];
};
void takes_large(Large) {}

TEST(EmulatedLaunch, RefusesWhatTheDeviceCannotDo) {
  EXPECT_EQ(launch(does_nothing, shape_of(0, 32, 0), nullptr, nullptr),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(does_nothing, shape_of(1, 2048, 0), nullptr, nullptr),
            cudaErrorInvalidConfiguration);
  EXPECT_EQ(launch(takes_large, shape_of(1, 32, 0), nullptr, Large{}), cudaErrorInvalidValue);
  EXPECT_EQ(launch(does_nothing, shape_of(1, 32, 50000), nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(allow_shared(does_nothing, 300000), cudaErrorInvalidValue);
  EXPECT_EQ(allow_shared(does_nothing, 60000), cudaSuccess);
  EXPECT_EQ(launch(does_nothing, shape_of(1, 32, 50000), nullptr, nullptr), cudaSuccess);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
}

TEST(EmulatedLaunch, IsCountedByKernel) {
  cudasim::reset_counters();
  ASSERT_EQ(launch(does_nothing, shape_of(2, 32, 0), nullptr, nullptr), cudaSuccess);
  ASSERT_EQ(launch(multiply<DType::kF16>, shape_of(0, 32, 0), nullptr, Matrices{}),
            cudaErrorInvalidConfiguration);
  const cudasim::Counters counters = cudasim::counters();
  EXPECT_EQ(counters.kernel_launches, 1u);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidConfiguration);
  EXPECT_EQ(counters.launches_by_kernel, (std::map<std::string, uint64_t>{{"does_nothing", 1}}));
}

}  // namespace
