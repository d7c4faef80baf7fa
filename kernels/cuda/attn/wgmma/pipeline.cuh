// The ring of stages in shared memory between the producer's TMA loads and wgmma.
#pragma once

#include "kernels/cuda/ptx/hopper.cuh"

namespace kvc::cuda::wgmma {

// Number of blocks so far. It gives the stage of the next block and the parity of its round.
template <int Stages>
struct RingPosition {
  static_assert((Stages & (Stages - 1)) == 0);
  uint32_t blocks = 0;

  KVC_DEVICE uint32_t stage() const { return blocks & (Stages - 1); }
  KVC_DEVICE uint32_t parity() const { return blocks / Stages & 1u; }
};

// full: all bytes of a stage have arrived. empty: every consumer warp has finished with them.
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
  KVC_DEVICE std::byte* stage(const RingPosition<Stages>& position) const {
    return memory + position.stage() * Bytes;
  }

  // The producer warp waits for a free stage and announces its bytes.
  KVC_DEVICE void acquire(const RingPosition<Stages>& position) const {
    mbarrier_wait(empty + position.stage(), position.parity() ^ 1u);
    if (lane_id() == 0) mbarrier_arrive_expect(full + position.stage(), Bytes);
    sync_warp();
  }
  KVC_DEVICE void wait(const RingPosition<Stages>& position) const {
    mbarrier_wait(full + position.stage(), position.parity());
  }
  // A consumer warp has finished reading the stage.
  KVC_DEVICE void release(const RingPosition<Stages>& position) const {
    if (lane_id() == 0) mbarrier_arrive(empty + position.stage());
  }
};

}  // namespace kvc::cuda::wgmma
