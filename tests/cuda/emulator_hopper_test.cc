// The emulator's Hopper part against naive computations: TMA boxes with every swizzle, wgmma with
// every operand form, mbarriers; and that mistakes in their use show.
#include <cuda.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <vector>

#include "cudasim/cudasim.h"
#include "kernels/cuda/ptx/hopper.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace {

using namespace kvc::cuda;
using kvc::kernels::DType;

uint16_t to_bf16(float value) {
  uint32_t bits;
  std::memcpy(&bits, &value, 4);
  return static_cast<uint16_t>(bits >> 16);  // values of the tests are exact
}
float from_bf16(uint16_t bits) {
  const uint32_t wide = uint32_t{bits} << 16;
  float value;
  std::memcpy(&value, &wide, 4);
  return value;
}

// Small integers: products and sums are exact in float32.
std::vector<uint16_t> small_integers(size_t count, uint32_t seed) {
  std::mt19937 random(seed);
  std::vector<uint16_t> values(count);
  for (uint16_t& value : values)
    value = to_bf16(static_cast<float>(static_cast<int>(random() % 17) - 8));
  return values;
}

// The driver's function, as the back end gets it.
TensorMap make_map(const void* address, std::vector<uint64_t> dims, std::vector<uint64_t> strides,
                   std::vector<uint32_t> box, CUtensorMapSwizzle swizzle) {
  using Encode =
      CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                   const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  void* function = nullptr;
  cudaDriverEntryPointQueryResult result{};
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                             cudaEnableDefault, &result),
            cudaSuccess);
  const std::vector<uint32_t> ones(dims.size(), 1);
  CUtensorMap encoded;
  EXPECT_EQ(reinterpret_cast<Encode>(function)(
                &encoded, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, static_cast<cuuint32_t>(dims.size()),
                const_cast<void*>(address), dims.data(), strides.data(), box.data(), ones.data(),
                CU_TENSOR_MAP_INTERLEAVE_NONE, swizzle, CU_TENSOR_MAP_L2_PROMOTION_L2_256B,
                CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE),
            CUDA_SUCCESS);
  TensorMap map;
  std::memcpy(&map, &encoded, sizeof map);
  return map;
}

// ----------------------------------------------------------------------------------------------
// TMA

struct LoadBox {
  TensorMap map;
  std::byte* out;
  int32_t at[5];
  int32_t rank;
  uint32_t bytes;
};

void load_box(const __grid_constant__ LoadBox p) {
  auto* barrier = reinterpret_cast<uint64_t*>(cta_shared() + p.bytes);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_fence_init();
  }
  sync_cta();
  if (threadIdx.x == 0) {
    tma_prefetch(&p.map);
    mbarrier_arrive_expect(barrier, p.bytes);
    std::byte* to = cta_shared();
    if (p.rank == 2) tma_load_2d(to, &p.map, barrier, p.at[0], p.at[1]);
    if (p.rank == 3) tma_load_3d(to, &p.map, barrier, p.at[0], p.at[1], p.at[2]);
    if (p.rank == 4) tma_load_4d(to, &p.map, barrier, p.at[0], p.at[1], p.at[2], p.at[3]);
    if (p.rank == 5) tma_load_5d(to, &p.map, barrier, p.at[0], p.at[1], p.at[2], p.at[3], p.at[4]);
  }
  mbarrier_wait(barrier, 0);
  for (uint32_t i = threadIdx.x; i < p.bytes; i += blockDim.x) p.out[i] = cta_shared()[i];
}

TEST(EmulatedTma, DeliversBoxesOfEveryRankAndSwizzleWithZerosOutside) {
  std::mt19937 generator(7);
  const auto random = [&] { return static_cast<uint32_t>(generator()); };
  constexpr CUtensorMapSwizzle kSwizzles[] = {CU_TENSOR_MAP_SWIZZLE_NONE, CU_TENSOR_MAP_SWIZZLE_32B,
                                              CU_TENSOR_MAP_SWIZZLE_64B,
                                              CU_TENSOR_MAP_SWIZZLE_128B};
  for (int round = 0; round < 200; ++round) {
    const int rank = 2 + static_cast<int>(random() % 4);
    const uint32_t mode = random() % 4;
    LoadBox p{};
    p.rank = rank;
    std::vector<uint64_t> dims, strides;
    std::vector<uint32_t> box;
    uint64_t stride = 2;
    p.bytes = 2;
    for (int i = 0; i < rank; ++i) {
      dims.push_back(i == 0 ? 8 * (1 + random() % 12) : 1 + random() % 5);
      box.push_back(i != 0 ? 1 + random() % 4 : mode == 0 ? 8 * (1 + random() % 8) : 8u << mode);
      p.bytes *= box.back();
      stride *= dims.back();
      if (i == 0) stride += 16 * (random() % 3);
      if (i + 1 < rank) strides.push_back(stride);
      p.at[i] = static_cast<int32_t>(random() % (dims.back() + 12)) - 6;
    }
    p.bytes = (p.bytes + 7) / 8 * 8;
    const std::vector<uint16_t> tensor = small_integers(stride / 2, static_cast<uint32_t>(round));
    std::vector<uint16_t> aligned(tensor.size() + 8);
    size_t shift = 0;
    while (reinterpret_cast<uintptr_t>(&aligned[shift]) % 16 != 0) ++shift;
    std::copy(tensor.begin(), tensor.end(), aligned.begin() + static_cast<ptrdiff_t>(shift));
    p.map = make_map(&aligned[shift], dims, strides, box, kSwizzles[mode]);
    std::vector<std::byte> out(p.bytes);
    p.out = out.data();
    LaunchShape shape;
    shape.threads = 64;
    shape.shared_bytes = p.bytes + 8;
    ASSERT_EQ(launch(load_box, shape, nullptr, p), cudaSuccess);

    const uint32_t mask = mode == 0 ? 0 : (1u << mode) - 1;
    std::vector<uint32_t> index(5, 0);
    box.resize(5, 1);
    for (uint32_t n = 0; n < p.bytes / 2; ++n) {
      float expected = 0;
      bool inside = true;
      uint64_t from = 0;
      uint32_t rest = n;
      for (int i = 0; i < rank; ++i) {
        const int64_t c = p.at[i] + static_cast<int64_t>(rest % box[static_cast<size_t>(i)]);
        rest /= box[static_cast<size_t>(i)];
        inside &= c >= 0 && c < static_cast<int64_t>(dims[static_cast<size_t>(i)]);
        from += static_cast<uint64_t>(c) * (i == 0 ? 2 : strides[static_cast<size_t>(i) - 1]);
      }
      if (inside) expected = from_bf16(tensor[from / 2]);
      const uint32_t at = 2 * n ^ ((2 * n >> 7 & mask) << 4);
      uint16_t got;
      std::memcpy(&got, &out[at], 2);
      ASSERT_EQ(from_bf16(got), expected) << "round " << round << " element " << n;
    }
  }
}

struct TwoBoxes {
  TensorMap map;
  float* out;
  int32_t waits_for;  // boxes
};

void two_boxes(const __grid_constant__ TwoBoxes p) {
  auto* barriers = reinterpret_cast<uint64_t*>(cta_shared() + 2048);
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) mbarrier_init(barriers + i, 1);
    mbarrier_fence_init();
    for (int i = 0; i < 2; ++i) {
      mbarrier_arrive_expect(barriers + i, 1024);
      tma_load_2d(cta_shared() + 1024 * i, &p.map, barriers + i, 0, 8 * i);
    }
  }
  sync_cta();
  for (int i = 0; i < p.waits_for; ++i) mbarrier_wait(barriers + i, 0);
  if (threadIdx.x == 0)
    *p.out = bf16_to_float(*reinterpret_cast<const uint16_t*>(cta_shared() + 1024));
  for (int i = p.waits_for; i < 2; ++i) mbarrier_wait(barriers + i, 0);
}

TEST(EmulatedTma, ShowsAMissingWait) {
  void* device;
  ASSERT_EQ(cudaMalloc(&device, 2048), cudaSuccess);
  std::fill_n(static_cast<uint16_t*>(device), 1024, to_bf16(3.0f));
  float out = 0;
  TwoBoxes p{make_map(device, {64, 16}, {128}, {64, 8}, CU_TENSOR_MAP_SWIZZLE_128B), &out, 2};
  LaunchShape shape;
  shape.shared_bytes = 2048 + 16;
  int wrong = 0;
  for (uint64_t seed = 1; seed <= 40; ++seed) {
    cudasim::seed(seed);
    p.waits_for = 2;
    ASSERT_EQ(launch(two_boxes, shape, nullptr, p), cudaSuccess);
    ASSERT_EQ(out, 3.0f) << "seed " << seed;
    p.waits_for = 1;
    ASSERT_EQ(launch(two_boxes, shape, nullptr, p), cudaSuccess);
    wrong += out != 3.0f ? 1 : 0;
  }
  EXPECT_GT(wrong, 8);
  cudaFree(device);
  cudasim::reset();
}

TEST(EmulatedTma, RefusesWhatTheDriverRefuses) {
  void* function = nullptr;
  ASSERT_EQ(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000,
                                             cudaEnableDefault, nullptr),
            cudaSuccess);
  using Encode =
      CUresult (*)(CUtensorMap*, CUtensorMapDataType, cuuint32_t, void*, const cuuint64_t*,
                   const cuuint64_t*, const cuuint32_t*, const cuuint32_t*, CUtensorMapInterleave,
                   CUtensorMapSwizzle, CUtensorMapL2promotion, CUtensorMapFloatOOBfill);
  alignas(16) uint16_t data[64];
  const auto encode = [&](void* address, uint64_t stride, uint32_t inner) {
    const cuuint64_t dims[2] = {64, 4};
    const cuuint32_t box[2] = {inner, 1}, ones[2] = {1, 1};
    CUtensorMap map;
    return reinterpret_cast<Encode>(function)(
        &map, CU_TENSOR_MAP_DATA_TYPE_BFLOAT16, 2, address, dims, &stride, box, ones,
        CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B, CU_TENSOR_MAP_L2_PROMOTION_NONE,
        CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  };
  EXPECT_EQ(encode(data, 128, 64), CUDA_SUCCESS);
  EXPECT_EQ(encode(data + 1, 128, 64), CUDA_ERROR_INVALID_VALUE);  // base
  EXPECT_EQ(encode(data, 120, 64), CUDA_ERROR_INVALID_VALUE);      // stride
  EXPECT_EQ(encode(data, 128, 72), CUDA_ERROR_INVALID_VALUE);      // wider than the swizzle
  EXPECT_EQ(encode(data, 128, 4), CUDA_ERROR_INVALID_VALUE);       // 8 bytes
}

// ----------------------------------------------------------------------------------------------
// wgmma

struct Product {
  TensorMap a, b;  // boxes of 64 elements x rows
  float* out;      // [64][n]
  const uint16_t* a_rows;
  int32_t k;  // a multiple of 64
};

// D = A * B with tiles that TMA brings, 128-byte swizzle: A [64][k] K-major; B [n][k] K-major, or
// [k][n] N-major.
template <int N, bool TransposedB, bool ARegisters>
void product(const __grid_constant__ Product p) {
  std::byte* a_tile = cta_shared();
  std::byte* b_tile = a_tile + 64 * 128;
  auto* barrier = reinterpret_cast<uint64_t*>(b_tile + 64 * N * 2);
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    mbarrier_fence_init();
  }
  sync_cta();
  float d[N / 2];
  for (float& each : d) each = 3.0f;  // overwritten by the first product
  for (int step = 0; step < p.k / 64; ++step) {
    if (threadIdx.x == 0) {
      mbarrier_arrive_expect(barrier, 64 * 128 + 64 * N * 2);
      tma_load_2d(a_tile, &p.a, barrier, 64 * step, 0);
      if (TransposedB)
        for (int c = 0; c < N; c += 64) tma_load_2d(b_tile + c * 128, &p.b, barrier, c, 64 * step);
      else
        tma_load_2d(b_tile, &p.b, barrier, 64 * step, 0);
    }
    mbarrier_wait(barrier, static_cast<uint32_t>(step & 1));
    uint32_t a[4][4];
    const int warp = static_cast<int>(threadIdx.x / 32), lane = lane_id();
    for (int s = 0; s < 4; ++s)
      for (int i = 0; i < 4; ++i) {
        const int row = 16 * warp + lane / 4 + (i & 1) * 8;
        const int column = 64 * step + 16 * s + 2 * (lane % 4) + (i & 2) * 4;
        std::memcpy(&a[s][i], p.a_rows + row * p.k + column, 4);
      }
    const uint64_t from_a = wgmma_descriptor(a_tile, 0, 1024, 128);
    const uint64_t from_b = TransposedB ? wgmma_descriptor(b_tile, 64 * 128, 1024, 128)
                                        : wgmma_descriptor(b_tile, 0, 1024, 128);
    wgmma_fence();
    for (int s = 0; s < 4; ++s) {
      const uint64_t b = wgmma_advance(from_b, s * (TransposedB ? 16 * 128 : 32));
      if constexpr (ARegisters)
        wgmma_rs<DType::kBF16, N, TransposedB>(d, a[s], b, step + s > 0);
      else
        wgmma_ss<DType::kBF16, N, TransposedB>(d, wgmma_advance(from_a, s * 32), b, step + s > 0);
    }
    wgmma_commit();
    wgmma_wait<0>();
    sync_cta();
  }
  const int row = 16 * static_cast<int>(threadIdx.x / 32) + lane_id() / 4;
  for (int j = 0; j < N / 8; ++j)
    for (int i = 0; i < 4; ++i)
      p.out[(row + (i / 2) * 8) * N + 8 * j + 2 * (lane_id() % 4) + i % 2] = d[4 * j + i];
}

template <int N, bool TransposedB, bool ARegisters>
void check_product(int k) {
  SCOPED_TRACE(::testing::Message()
               << "N " << N << " transposed " << TransposedB << " A in registers " << ARegisters);
  const std::vector<uint16_t> a = small_integers(static_cast<size_t>(64 * k), 11);
  const std::vector<uint16_t> b = small_integers(static_cast<size_t>(N * k), 12);
  void *a_device, *b_device;
  ASSERT_EQ(cudaMalloc(&a_device, a.size() * 2), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&b_device, b.size() * 2), cudaSuccess);
  std::memcpy(a_device, a.data(), a.size() * 2);
  std::memcpy(b_device, b.data(), b.size() * 2);
  const auto width = static_cast<uint64_t>(k);
  std::vector<float> out(64 * N);
  Product p{};
  p.a = make_map(a_device, {width, 64}, {width * 2}, {64, 64}, CU_TENSOR_MAP_SWIZZLE_128B);
  p.b = TransposedB
            ? make_map(b_device, {N, width}, {N * 2}, {64, 64}, CU_TENSOR_MAP_SWIZZLE_128B)
            : make_map(b_device, {width, N}, {width * 2}, {64, N}, CU_TENSOR_MAP_SWIZZLE_128B);
  p.out = out.data();
  p.a_rows = static_cast<const uint16_t*>(a_device);
  p.k = k;
  LaunchShape shape;
  shape.shared_bytes = 64 * 128 + 64 * N * 2 + 8;
  ASSERT_EQ(launch(product<N, TransposedB, ARegisters>, shape, nullptr, p), cudaSuccess);
  for (int i = 0; i < 64; ++i)
    for (int j = 0; j < N; ++j) {
      float expected = 0;
      for (int n = 0; n < k; ++n)
        expected += from_bf16(a[static_cast<size_t>(i * k + n)]) *
                    from_bf16(b[static_cast<size_t>(TransposedB ? n * N + j : j * k + n)]);
      ASSERT_EQ(out[static_cast<size_t>(i * N + j)], expected) << i << ", " << j;
    }
  cudaFree(a_device);
  cudaFree(b_device);
}

TEST(EmulatedWgmma, MultipliesTilesThatTmaBrings) {
  check_product<64, false, false>(128);
  check_product<128, false, false>(64);
  check_product<128, false, true>(128);
  check_product<64, true, false>(128);
  check_product<128, true, true>(128);
  check_product<32, false, true>(64);
}

// Operands written by threads, for the layouts that no kernel loads by TMA. One instruction, 64 x
// 32 x 16.
struct SmallProduct {
  const uint16_t* a;  // [64][16]
  const uint16_t* b;  // [32][16]
  float* out;
  int32_t swizzle;
};

template <bool TransposedB>
void small_product(const __grid_constant__ SmallProduct p) {
  // Row of `span` bytes, 8 rows make a tile; tiles of A: 8 of rows x (32 / span) of k.
  const int span = p.swizzle == 0 ? 16 : p.swizzle;
  const auto put = [&](std::byte* base, int row, int byte, int tiles_apart, int byte_tiles_apart,
                       uint16_t value) {
    const int mask = p.swizzle == 0 ? 0 : p.swizzle / 16 - 1;
    int at = row / 8 * tiles_apart + row % 8 * span + byte / span * byte_tiles_apart + byte % span;
    at += static_cast<int>(base - cta_shared());
    at ^= (at >> 7 & mask) << 4;
    std::memcpy(cta_shared() + at, &value, 2);
  };
  std::byte* a_tile = cta_shared();
  std::byte* b_tile = cta_shared() + 16384;
  const int t = static_cast<int>(threadIdx.x);
  for (int i = t; i < 64 * 16; i += 128)
    put(a_tile, i / 16, i % 16 * 2, 8 * span, 64 * span, p.a[i]);
  for (int i = t; i < 32 * 16; i += 128) {
    const int n = i / 16, k = i % 16;
    if (TransposedB)
      put(b_tile, k, n * 2, 8 * span, 16 * span, p.b[i]);
    else
      put(b_tile, n, k * 2, 8 * span, 32 * span, p.b[i]);
  }
  fence_proxy_async();
  sync_cta();
  uint64_t b;
  if (!TransposedB)
    b = wgmma_descriptor(b_tile, 32 * span, 8 * span, p.swizzle);
  else if (p.swizzle == 0)  // without swizzle the two strides of an N-major operand change places
    b = wgmma_descriptor(b_tile, 8 * span, 16 * span, 0);
  else
    b = wgmma_descriptor(b_tile, 16 * span, 8 * span, p.swizzle);
  float d[16];
  wgmma_fence();
  wgmma_ss<DType::kBF16, 32, TransposedB>(
      d, wgmma_descriptor(a_tile, 64 * span, 8 * span, p.swizzle), b, false);
  wgmma_commit();
  wgmma_wait<0>();
  const int row = 16 * (t / 32) + lane_id() / 4;
  for (int j = 0; j < 4; ++j)
    for (int i = 0; i < 4; ++i)
      p.out[(row + (i / 2) * 8) * 32 + 8 * j + 2 * (lane_id() % 4) + i % 2] = d[4 * j + i];
}

TEST(EmulatedWgmma, ReadsEverySwizzleAndMajorness) {
  const std::vector<uint16_t> a = small_integers(64 * 16, 21), b = small_integers(32 * 16, 22);
  for (const int swizzle : {0, 32, 64, 128})
    for (const bool transposed : {false, true}) {
      std::vector<float> out(64 * 32);
      LaunchShape shape;
      shape.shared_bytes = 32768;
      const SmallProduct p{a.data(), b.data(), out.data(), swizzle};
      ASSERT_EQ(launch(transposed ? small_product<true> : small_product<false>, shape, nullptr, p),
                cudaSuccess);
      for (size_t i = 0; i < 64; ++i)
        for (size_t j = 0; j < 32; ++j) {
          float expected = 0;
          for (size_t k = 0; k < 16; ++k)
            expected += from_bf16(a[i * 16 + k]) * from_bf16(b[j * 16 + k]);
          ASSERT_EQ(out[i * 32 + j], expected)
              << "swizzle " << swizzle << " transposed " << transposed << ' ' << i << ", " << j;
        }
    }
}

// What goes wrong with wgmma on purpose.
enum class WgmmaMistake { kNone, kNoFence, kNoWait, kReadsEarly, kOverwritesA };
struct Wrong {
  WgmmaMistake mistake;
  float* out;
};

void wrong_wgmma(const __grid_constant__ Wrong p) {
  auto* words = reinterpret_cast<uint32_t*>(cta_shared());
  for (uint32_t i = threadIdx.x; i < 1024; i += 128) words[i] = 0x3f803f80u;  // ones
  fence_proxy_async();
  sync_cta();
  float d[16] = {};
  uint32_t a[4] = {0x3f803f80u, 0x3f803f80u, 0x3f803f80u, 0x3f803f80u};
  if (p.mistake != WgmmaMistake::kNoFence) wgmma_fence();
  wgmma_rs<DType::kBF16, 32, false>(d, a, wgmma_descriptor(cta_shared(), 0, 1024, 128), false);
  wgmma_commit();
  if (p.mistake == WgmmaMistake::kOverwritesA) a[0] = 0;
  if (p.mistake == WgmmaMistake::kReadsEarly) p.out[threadIdx.x] = d[0];
  if (p.mistake != WgmmaMistake::kNoWait) wgmma_wait<0>();
  if (p.mistake != WgmmaMistake::kReadsEarly) p.out[threadIdx.x] = d[0];
}

cudaError_t run_wrong(WgmmaMistake mistake, float* out) {
  LaunchShape shape;
  shape.shared_bytes = 4096;
  return launch(wrong_wgmma, shape, nullptr, Wrong{mistake, out});
}

TEST(EmulatedWgmma, ShowsRegistersUsedTooEarly) {
  float out[128];
  ASSERT_EQ(run_wrong(WgmmaMistake::kNone, out), cudaSuccess);
  EXPECT_EQ(out[5], 16.0f);
  ASSERT_EQ(run_wrong(WgmmaMistake::kReadsEarly, out), cudaSuccess);
  EXPECT_NE(out[5], 16.0f);
  ASSERT_EQ(run_wrong(WgmmaMistake::kOverwritesA, out), cudaSuccess);
  EXPECT_NE(out[5], 16.0f);
}

TEST(EmulatedWgmmaDeathTest, ReportsMissingFencesAndWaits) {
  float out[128];
  EXPECT_DEATH((void)run_wrong(WgmmaMistake::kNoFence, out),
               "kernel wrong_wgmma.*without wgmma_fence");
  EXPECT_DEATH((void)run_wrong(WgmmaMistake::kNoWait, out), "wgmma that nobody waited for");
}

// ----------------------------------------------------------------------------------------------
// mbarriers

struct Ring {
  TensorMap map;
  float* out;
  int32_t num_rounds;
  int32_t releases_early;
};

// One warp fills a ring of two buffers, four warps read it.
void ring(const __grid_constant__ Ring p) {
  auto* full = reinterpret_cast<uint64_t*>(cta_shared() + 2 * 1024);
  uint64_t* empty = full + 2;
  if (threadIdx.x == 0) {
    for (int i = 0; i < 2; ++i) {
      mbarrier_init(full + i, 1);
      mbarrier_init(empty + i, 4);
    }
    mbarrier_fence_init();
  }
  sync_cta();
  const int warp = warp_id();
  if (warp == 4) {
    registers_decrease<24>();
    if (lane_id() == 0)
      for (int i = 0; i < p.num_rounds; ++i) {
        mbarrier_wait(empty + i % 2, static_cast<uint32_t>((i / 2 + 1) & 1));
        mbarrier_arrive_expect(full + i % 2, 1024);
        tma_load_2d(cta_shared() + i % 2 * 1024, &p.map, full + i % 2, 0, 8 * i);
      }
    return;
  }
  float sum = 0;
  for (int i = 0; i < p.num_rounds; ++i) {
    mbarrier_wait(full + i % 2, static_cast<uint32_t>((i / 2) & 1));
    sync_warp();
    if (p.releases_early != 0 && lane_id() == 0) mbarrier_arrive(empty + i % 2);
    const auto* values = reinterpret_cast<const uint16_t*>(cta_shared() + i % 2 * 1024);
    for (int j = lane_id(); j < 512; j += 32) {
      sync_warp();  // others go on between the reads
      sum += bf16_to_float(values[j]);
    }
    sync_warp();
    if (p.releases_early == 0 && lane_id() == 0) mbarrier_arrive(empty + i % 2);
  }
  for (int mask = 16; mask != 0; mask /= 2) sum += shuffle_xor(sum, mask);
  p.out[warp] = sum;
}

TEST(EmulatedMbarrier, CarriesARingAndShowsBuffersReleasedTooEarly) {
  constexpr int kRounds = 20;
  const std::vector<uint16_t> values = small_integers(64 * 8 * kRounds, 31);
  float expected = 0;
  for (const uint16_t value : values) expected += from_bf16(value);
  void* device;
  ASSERT_EQ(cudaMalloc(&device, values.size() * 2), cudaSuccess);
  std::memcpy(device, values.data(), values.size() * 2);
  float out[4];
  Ring p{make_map(device, {64, 8 * kRounds}, {128}, {64, 8}, CU_TENSOR_MAP_SWIZZLE_128B), out,
         kRounds, 0};
  LaunchShape shape;
  shape.threads = 160;
  shape.shared_bytes = 2 * 1024 + 32;
  for (int seed = 1; seed < 30; ++seed) {
    cudasim::seed(static_cast<uint64_t>(seed));
    ASSERT_EQ(launch(ring, shape, nullptr, p), cudaSuccess);
    for (const float sum : out) ASSERT_EQ(sum, expected) << "seed " << seed;
  }
  p.releases_early = 1;
  int wrong = 0;
  for (int seed = 1; seed < 30; ++seed) {
    cudasim::seed(static_cast<uint64_t>(seed));
    ASSERT_EQ(launch(ring, shape, nullptr, p), cudaSuccess);
    wrong += out[0] != expected || out[1] != expected || out[2] != expected || out[3] != expected;
  }
  EXPECT_GT(wrong, 10);
  cudaFree(device);
  cudasim::reset();
}

void waits_forever(int missing_bytes) {
  auto* barrier = reinterpret_cast<uint64_t*>(cta_shared());
  if (threadIdx.x == 0) mbarrier_init(barrier, 1);
  sync_cta();
  if (threadIdx.x == 0) mbarrier_arrive_expect(barrier, static_cast<uint32_t>(missing_bytes));
  mbarrier_wait(barrier, 0);
}

void overwrites_barrier(int) {
  auto* barrier = reinterpret_cast<uint64_t*>(cta_shared());
  if (threadIdx.x == 0) {
    mbarrier_init(barrier, 1);
    *reinterpret_cast<uint32_t*>(barrier) = 1;
    mbarrier_arrive(barrier);
  }
}

TEST(EmulatedMbarrierDeathTest, ReportsBarriersThatNeverEndAndOverwrittenOnes) {
  LaunchShape shape;
  shape.shared_bytes = 8;
  EXPECT_EQ(launch(waits_forever, shape, nullptr, 0), cudaSuccess);
  EXPECT_DEATH((void)launch(waits_forever, shape, nullptr, 16),
               "deadlock(.|\n)*in mbarrier_wait.* 16 bytes missing");
  EXPECT_DEATH((void)launch(overwrites_barrier, shape, nullptr, 0), "has been overwritten");
}

// --------------------------------------------------------------------------------------- stmatrix

void store_and_load(uint32_t* same) {
  uint32_t r[4], back[4];
  for (uint32_t i = 0; i < 4; ++i) r[i] = 1000 * i + threadIdx.x;
  std::byte* row = cta_shared() + 16 * lane_id();
  store_matrix_x4(row, r);
  sync_warp();
  load_matrix_x4(back, row);
  same[threadIdx.x] = r[0] == back[0] && r[1] == back[1] && r[2] == back[2] && r[3] == back[3];
}

TEST(EmulatedStoreMatrix, IsTheInverseOfLoadMatrix) {
  uint32_t same[32] = {};
  LaunchShape shape;
  shape.threads = 32;
  shape.shared_bytes = 512;
  ASSERT_EQ(launch(store_and_load, shape, nullptr, same), cudaSuccess);
  EXPECT_TRUE(std::all_of(same, same + 32, [](uint32_t s) { return s == 1; }));
}

}  // namespace
