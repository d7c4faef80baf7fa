// Shapes of the mma.sync attention kernel, with their reasons.
#pragma once

#include <cstdint>

#include "kernels/cuda/work.h"
#include "kernels/params.h"

namespace kvc::cuda::attn_mma {

// The storage of K and V in the pool. bf16 is multiplied as bf16, every other type as f16: e4m3,
// e5m2 and int8 fit f16 exactly, and conversion to bf16 takes three instructions instead of one.
enum class Kv : int32_t { kBF16 = 0, kF16 = 1, kE4M3 = 2, kE5M2 = 3, kInt8 = 4 };

constexpr int kThreads = 128;
constexpr int kWarps = 4;
constexpr int kWarpRows = 16;  // M of mma.m16n8k16.

// In shared memory, rows are padded with zeros to one of these dims.
struct Dims {
  int k, v;
};
constexpr Dims kDims[] = {{64, 64}, {128, 128}, {192, 128}, {256, 256}};
constexpr int kNumDims = 4;

// Index in kDims. -1: none fits.
constexpr int dims_index(int64_t k_dim, int64_t v_dim) {
  for (int i = 0; i < kNumDims; ++i)
    if (k_dim <= kDims[i].k && v_dim <= kDims[i].v) return i;
  return -1;
}

// CTAs per SM. Two CTAs hide each other's prologues and epilogues. With 256 dims the accumulators
// of a thread (128 registers) and the ring leave room for only one.
constexpr int ctas_per_sm(int v_dim) { return v_dim <= 128 ? 2 : 1; }

// Stages of a ring (or of four), given the bytes of K and V per stage. Beside Q and the rest they
// must fit into 113 KiB, half of an SM of sm_90, or into 163 KiB, the limit of a CTA on sm_80.
constexpr int stages(int stage_bytes, int ctas) {
  if (stage_bytes > (ctas == 2 ? 36 : 48) * 1024) return 2;
  return stage_bytes > 24 * 1024 ? 3 : 4;
}

constexpr int round_up(int bytes) { return (bytes + 127) / 128 * 128; }

// MostStages limits the stages for devices with less shared memory per CTA.
template <int Rows, int KDim, int VDim, Kv Of, int MostStages = 4>
struct Config {
  static constexpr Kv kStored = Of;
  static constexpr int kRows = Rows;  // 16: the warps share the keys. 64: the warps share the rows.
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

  // Keys of a tile. With 16 rows a warp loads one tile at a time, 8 KiB of 16-bit K and V. Larger
  // tiles need fewer page look-ups, but their scores cost registers. With 64 rows a tile is as
  // large as registers allow.
  static constexpr int kTileKeys = Rows == 64 ? (VDim <= 128 ? 64 : 32)
                                   : KDim <= 64 || (kEightBit && KDim <= 128) ? 32
                                                                              : 16;
  // Tiles lie at absolute multiples of kTileKeys. With 16 rows, tile t belongs to warp t % 4.
  static constexpr int kTileStep = Rows == 64 ? kTileKeys : kWarps * kTileKeys;
  // Keys that one warp loads per tile.
  static constexpr int kLoadKeys = Rows == 64 ? kTileKeys / kWarps : kTileKeys;

  // Memory latency needs at least 32 KiB in flight per SM. The target is 64 KiB and more: two CTAs,
  // each with one stage being read.
  static constexpr int kStageBytesKv = kTileKeys * (kKRowBytes + kVRowBytes);
  static constexpr int kScaleBytes = kEightBit ? 2 * kTileKeys * 4 : 0;
  static constexpr int kStageBytes = kStageBytesKv + kScaleBytes;
  static constexpr int kRings = Rows == 64 ? 1 : kWarps;
  static constexpr int kWantedStages = stages(kRings * kStageBytesKv, kMinCtas);
  static constexpr int kStages = kWantedStages < MostStages ? kWantedStages : MostStages;

  // Q stays in registers if it needs at most 32 of them. Otherwise it is read from shared memory
  // for every tile.
  static constexpr bool kQInRegisters = KDim <= 128;
  // Q in registers passes through the last stage (with 16 rows: of the first ring), which is filled
  // only after the first tile has arrived.
  static constexpr bool kQInLastStage = kQInRegisters && kStageBytes >= Rows * kQRowBytes;

  // Row stride of the output staging. The padding keeps the stores of a quarter warp in different
  // banks.
  static constexpr int kOutStride = VDim + (kEightBit ? 16 : 8);
  static constexpr int kOutRows = kWarps * kWarpRows;

  static constexpr int kRingBytes = kRings * kStages * kStageBytes;
  static constexpr int kOutBytes = round_up(kOutRows * kOutStride * 4);
  static constexpr int kRingOrOutBytes = kRingBytes > kOutBytes ? kRingBytes : kOutBytes;
  static constexpr int kQOffset = kQInLastStage ? (kStages - 1) * kStageBytes : kRingOrOutBytes;
  static constexpr int kRowsOffset = kRingOrOutBytes + (kQInLastStage ? 0 : Rows * kQRowBytes);
};

}  // namespace kvc::cuda::attn_mma
