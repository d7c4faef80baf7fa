// Shapes of the mma.sync attention kernel, and why they are what they are.
#pragma once

#include <cstdint>

#include "kernels/cuda/work.h"
#include "kernels/params.h"

namespace kvc::cuda::attn_mma {

// What K and V hold in the pool. bf16 is multiplied as bf16, everything else as f16: e4m3, e5m2 and
// int8 fit f16 exactly, and the way to bf16 takes three conversions instead of one.
enum class Kv : int32_t { kBF16 = 0, kF16 = 1, kE4M3 = 2, kE5M2 = 3, kInt8 = 4 };

constexpr int kThreads = 128;
constexpr int kWarps = 4;
constexpr int kWarpRows = 16;  // of an mma.m16n8k16

// Dims of rows are padded with zeros to one of these in shared memory.
struct Dims {
  int k, v;
};
constexpr Dims kDims[] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}};
constexpr int kNumDims = 4;

// The place in kDims, -1: none.
constexpr int dims_index(int64_t k_dim, int64_t v_dim) {
  for (int i = 0; i < kNumDims; ++i)
    if (k_dim <= kDims[i].k && v_dim <= kDims[i].v) return i;
  return -1;
}

// CTAs per SM. Two hide each other's prologues and epilogues; at 256 the accumulators of a thread
// (128 registers) and the ring leave room for one.
constexpr int ctas_per_sm(int v_dim) { return v_dim <= 128 ? 2 : 1; }

// Of a ring (or four), for as many KiB of K and V per stage: what fits beside Q and the rest into
// 113 KiB, half of an SM of sm_90, or 163 KiB, a CTA's limit on sm_80.
constexpr int stages(int stage_bytes, int ctas) {
  if (stage_bytes > (ctas == 2 ? 36 : 48) * 1024) return 2;
  return stage_bytes > 24 * 1024 ? 3 : 4;
}

constexpr int round_up(int bytes) { return (bytes + 127) / 128 * 128; }

// MostStages: for devices whose CTAs can have less shared memory.
template <int Rows, int KDim, int VDim, Kv Of, int MostStages = 4>
struct Config {
  static constexpr Kv kStored = Of;
  static constexpr int kRows = Rows;  // 16: the warps share the keys; 64: they share the rows
  static constexpr int kKDim = KDim;
  static constexpr int kVDim = VDim;
  static constexpr Stored kStored8 = Of == Kv::kE4M3   ? Stored::kE4M3
                                     : Of == Kv::kE5M2 ? Stored::kE5M2
                                                       : Stored::kInt8;
  static constexpr bool kEightBit = Of != Kv::kBF16 && Of != Kv::kF16;
  static constexpr kernels::DType kMma =
      Of == Kv::kBF16 ? kernels::DType::kBF16 : kernels::DType::kF16;
  static constexpr int kElementBytes = kEightBit ? 1 : 2;
  static constexpr int kKRowBytes = KDim * kElementBytes;
  static constexpr int kVRowBytes = VDim * kElementBytes;
  static constexpr int kQRowBytes = KDim * 2;
  static constexpr int kMinCtas = ctas_per_sm(VDim);

  // Keys of a tile. 16 rows: what one warp takes at a time, 8 KiB of 16-bit K and V; fewer, larger
  // pieces save page look-ups, more scores cost registers. 64 rows: as many as registers allow.
  static constexpr int kTileKeys = Rows == 64 ? (VDim <= 128 ? 64 : 32)
                                   : KDim <= 64 || (kEightBit && KDim <= 128) ? 32
                                                                              : 16;
  // Tiles lie at absolute multiples of kTileKeys; with 16 rows tile t belongs to warp t % 4.
  static constexpr int kTileStep = Rows == 64 ? kTileKeys : kWarps * kTileKeys;
  // Keys that one warp brings in per tile.
  static constexpr int kLoadKeys = Rows == 64 ? kTileKeys / kWarps : kTileKeys;

  // 32 KiB in flight per SM are the least that cover memory's latency; 64 and more are aimed at
  // (two CTAs, one stage being read).
  static constexpr int kStageBytesKv = kTileKeys * (kKRowBytes + kVRowBytes);
  static constexpr int kScaleBytes = kEightBit ? 2 * kTileKeys * 4 : 0;
  static constexpr int kStageBytes = kStageBytesKv + kScaleBytes;
  static constexpr int kRings = Rows == 64 ? 1 : kWarps;
  static constexpr int kWantedStages = stages(kRings * kStageBytesKv, kMinCtas);
  static constexpr int kStages = kWantedStages < MostStages ? kWantedStages : MostStages;

  // Q stays in registers where it takes at most 32 of them, else it is read from shared memory for
  // every tile.
  static constexpr bool kQInRegisters = KDim <= 128;
  // Q in registers passes through the last stage (16 rows: of the first ring), which is filled
  // after the first tile has arrived.
  static constexpr bool kQInLastStage = kQInRegisters && kStageBytes >= Rows * kQRowBytes;

  // Accumulators on their way out; the pad keeps the stores of a quarter warp in different banks.
  static constexpr int kOutStride = VDim + (kEightBit ? 16 : 8);
  static constexpr int kOutRows = kWarps * kWarpRows;

  static constexpr int kRingBytes = kRings * kStages * kStageBytes;
  static constexpr int kOutBytes = round_up(kOutRows * kOutStride * 4);
  static constexpr int kRingOrOutBytes = kRingBytes > kOutBytes ? kRingBytes : kOutBytes;
  static constexpr int kQOffset = kQInLastStage ? (kStages - 1) * kStageBytes : kRingOrOutBytes;
  static constexpr int kRowsOffset = kRingOrOutBytes + (kQInLastStage ? 0 : Rows * kQRowBytes);
};

}  // namespace kvc::cuda::attn_mma
