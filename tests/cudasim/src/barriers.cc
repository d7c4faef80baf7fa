// Barriers 0 to 15 of a CTA. A warp takes part as a whole (PTX ISA, barrier: counted per warp).
#include "cudasim/engine.h"

namespace cudasim {
namespace {

Barrier& arrive(int index, uint32_t threads, const char* name, bool waits) {
  Lane& self = *here;
  Cta& cta = *self.cta;
  if (index < 0 || index > 15) fail("%s: barrier %d", name, index);
  if (threads == 0 || threads % 32 != 0 || threads > cta.block_dim.x)
    fail("%s: barrier %d for %u of %u threads", name, index, threads, cta.block_dim.x);
  Barrier& barrier = cta.barriers[index];
  if (barrier.arrived != 0 && barrier.threads != threads)
    fail("%s: barrier %d for %u threads, others have come to it for %u", name, index, threads,
         barrier.threads);
  const uint32_t bit = 1u << self.lane;
  if ((barrier.arrived_lanes[self.warp] & bit) != 0)
    fail("%s: a lane arrives at barrier %d a second time before it is complete", name, index);
  barrier.threads = threads;
  ++barrier.arrived;
  barrier.arrived_lanes[self.warp] |= bit;
  if (waits) barrier.waiting_lanes[self.warp] |= bit;
  return barrier;
}

bool completes(Barrier& barrier, int index, const char* name) {
  if (barrier.arrived != barrier.threads) return false;
  Cta& cta = *here->cta;
  for (uint32_t w = 0; w < cta.num_warps; ++w) {
    const uint32_t lanes = barrier.arrived_lanes[w];
    if (lanes != 0 && lanes != kAllLanes)
      fail("%s: barrier %d is complete with only lanes %08x of warp %u", name, index, lanes, w);
  }
  const Barrier done = barrier;
  barrier = {};
  for (uint32_t w = 0; w < cta.num_warps; ++w) {
    if (done.waiting_lanes[w] == 0) continue;
    Warp& warp = cta.warps[w];
    warp.runnable |= done.waiting_lanes[w];
    cta.active_warps |= 1u << w;
  }
  return true;
}

}  // namespace

void barrier_sync(int index, uint32_t threads, const char* name) {
  Barrier& barrier = arrive(index, threads, name, true);
  if (completes(barrier, index, name))
    pause();
  else
    sleep(name, nullptr);
}

void barrier_arrive(int index, uint32_t threads) {
  Barrier& barrier = arrive(index, threads, "arrive_named", false);
  completes(barrier, index, "arrive_named");
}

}  // namespace cudasim
