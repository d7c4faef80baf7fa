// Attention over paged K and V by mma.sync: persistent CTAs of four warps that do the items of a
// plan, one after the other. See README.md.
#pragma once

#include "kernels/cuda/attn_mma/finish.cuh"
#include "kernels/cuda/attn_mma/guard.cuh"
#include "kernels/cuda/attn_mma/load.cuh"
#include "kernels/cuda/attn_mma/query.cuh"
#include "kernels/cuda/attn_mma/tile.cuh"

namespace kvc::cuda::attn_mma {

// 16 rows: a warp waits for its own ring only, there is no barrier of the CTA in the loop.
template <typename C>
KVC_DEVICE void sync_ring() {
  if constexpr (C::kRows == kWarpRows)
    sync_warp();
  else
    sync_cta();
}

template <typename C>
KVC_DEVICE void do_item(const AttnLaunch& launch, const WorkItem& work, const Shared<C>& shared) {
  const int warp = warp_id();
  const int ring = C::kRows == kWarpRows ? warp : 0, part = C::kRows == kWarpRows ? 0 : warp;
  describe_item(launch, work, shared);
  const Item& item = shared.item();
  const Row* rows = shared.rows() + (C::kRows == kWarpRows ? 0 : warp * kWarpRows);
  const int32_t end = item.rows_of_cta[warp].last_end;

  int32_t key = first_tile<C>(item, warp), next_key = key;
  Place next = locate(launch.params, shared, next_key + part * C::kLoadKeys, warp);
  const auto load_next = [&](int slot) {
    if (next_key < end) {
      load_keys<C>(launch, item, shared.stage(ring, slot), part, next);
      next_key = next_tile<C>(item, next_key, warp);
      next = locate(launch.params, shared, next_key + part * C::kLoadKeys, warp);
    }
    copy_async_commit();
  };
#pragma unroll 1
  for (int slot = 0; slot < C::kStages - 1; ++slot) load_next(slot);

  load_query(launch.params, work.sink_part != 0, shared);
  sync_cta();
  Query<C> q;
  q.take(shared, warp);
  // The first warp may fill that stage before the others have read it: with 64 rows the loop has a
  // barrier there.
  if constexpr (C::kQInLastStage && C::kRows == kWarpRows) sync_cta();

  Running<C> running;
#pragma unroll
  for (int n = 0; n < C::kVDim / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) running.o[n][e] = 0.0f;
  }
  running.m[0] = running.m[1] = -__builtin_inff();
  running.l[0] = running.l[1] = 0.0f;
  running.v_unit =
      C::kEightBit && launch.v_storage.quant == Quant::kPerTokenHead ? 0x1p-100f : 1.0f;

  const bool has_bias = launch.params.bias != nullptr;
  int slot = 0;
#pragma unroll 1
  while (key < end) {
    copy_async_wait<C::kStages - 2>();
    // The tile is there for all, and all are done with the stage that is filled next
    sync_ring<C>();
    load_next(slot == 0 ? C::kStages - 1 : slot - 1);
    std::byte* stage = shared.stage(ring, slot);
    uint64_t bad_keys = 0;
    if constexpr (C::kStored != Kv::kInt8) {
      if (has_bias || cover_of(item, item.rows_of_cta[warp], key, C::kTileKeys) != Cover::kFull)
        bad_keys = guard_values<C>(shared.item(), stage, part);
    }
    const Cover seen = cover_of(item, item.rows_of_warp[warp], key, C::kTileKeys);
    if (seen != Cover::kNone)
      take_tile(launch, item, rows, q, stage, key, seen == Cover::kPartial, bad_keys, running);
    key = next_tile<C>(item, key, warp);
    slot = slot == C::kStages - 1 ? 0 : slot + 1;
  }
  copy_async_wait<0>();
  finish_item(launch, work, shared, running);
}

template <typename C>
__global__ void __launch_bounds__(kThreads, C::kMinCtas)
    attn_mma(const __grid_constant__ AttnLaunch launch) {
  const Shared<C> shared = {cta_shared()};
  wait_for_previous_kernel();
  launch_dependents();  // they wait for the end, on SMs that are done
  const WorkPlan& plan = launch.plan;
  const int32_t end = plan.cta_begin[blockIdx.x + 1];
#pragma unroll 1
  for (int32_t index = plan.cta_begin[blockIdx.x]; index < end; ++index)
    do_item(launch, plan.items[index], shared);
}

}  // namespace kvc::cuda::attn_mma
