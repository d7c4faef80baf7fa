// The ring of stages in shared memory between the producer's TMA loads and wgmma.
#pragma once

#include "kernels/cuda/ptx/hopper.cuh"

namespace kvc::cuda::wgmma {

// Blocks so far: the next one's stage, and the parity of its round.
template <int Stages>
struct RingPosition {
  static_assert((Stages & (Stages - 1)) == 0);
  uint32_t blocks = 0;

  KVC_DEVICE uint32_t stage() const { return blocks & (Stages - 1); }
  KVC_DEVICE uint32_t parity() const { return blocks / Stages & 1u; }
};

// full: the bytes of a stage are there; empty: every consumer warp is done with them.
template <int Stages, int Bytes>
struct Ring {
  std::byte* memory;
  uint64_t* full;
  uint64_t* empty;

  KVC_DEVICE void init(uint32_t consumer_warps) const {
#pragma unroll
    for (int stage = 0; stage < Stages; ++stage) {
      mbarrier_init(full + stage, 1);
      mbarrier_init(empty + stage, consumer_warps);
    }
  }
  KVC_DEVICE std::byte* stage(const RingPosition<Stages>& place) const {
    return memory + place.stage() * Bytes;
  }

  // The producer's warp: the stage is free, and its bytes are announced.
  KVC_DEVICE void acquire(const RingPosition<Stages>& place) const {
    mbarrier_wait(empty + place.stage(), place.parity() ^ 1u);
    if (lane_id() == 0) mbarrier_arrive_expect(full + place.stage(), Bytes);
    sync_warp();
  }
  KVC_DEVICE void wait(const RingPosition<Stages>& place) const {
    mbarrier_wait(full + place.stage(), place.parity());
  }
  // A consumer warp has read all it needs.
  KVC_DEVICE void release(const RingPosition<Stages>& place) const {
    if (lane_id() == 0) mbarrier_arrive(empty + place.stage());
  }
};

}  // namespace kvc::cuda::wgmma
