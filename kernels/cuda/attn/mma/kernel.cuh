// Attention over paged K and V by mma.sync: persistent CTAs of four warps run the work items of a
// schedule one after the other. See README.md.
#pragma once

#include "kernels/cuda/attn/mma/epilogue.cuh"
#include "kernels/cuda/attn/mma/load.cuh"
#include "kernels/cuda/attn/mma/nonfinite.cuh"
#include "kernels/cuda/attn/mma/query.cuh"
#include "kernels/cuda/attn/mma/tile.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda::attn_mma {

// With 16 rows a warp waits for its own ring only: the loop has no barrier of the CTA.
template <typename C>
KVC_DEVICE void sync_ring() {
  if constexpr (C::kRows == kWarpRows)
    sync_warp();
  else
    sync_cta();
}

template <typename C>
KVC_DEVICE void process_item(const AttnLaunch& launch, const WorkItem& work,
                             const Shared<C>& shared) {
  const int warp = warp_id();
  const int ring = C::kRows == kWarpRows ? warp : 0, slice = C::kRows == kWarpRows ? 0 : warp;
  describe_item(launch, work, shared);
  const Item& item = shared.item();
  const Row* rows = shared.rows() + (C::kRows == kWarpRows ? 0 : warp * kWarpRows);
  const int32_t end = item.rows_of_cta[warp].last_end;

  int32_t key = first_tile<C>(item, warp), next_key = key;
  KeyAddress next = locate(launch.params, shared, next_key + slice * C::kLoadKeys, warp);
  const auto load_next = [&](int slot) {
    if (next_key < end) {
      load_keys<C>(launch, item, shared.stage(ring, slot), slice, next);
      next_key = next_tile<C>(item, next_key, warp);
      next = locate(launch.params, shared, next_key + slice * C::kLoadKeys, warp);
    }
    copy_async_commit();
  };
#pragma unroll 1
  for (int slot = 0; slot < C::kStages - 1; ++slot) load_next(slot);

  load_query(launch.params, work.sink_part != 0, shared);
  sync_cta();
  Query<C> q;
  q.take(shared, warp);
  // The first warp may fill that stage before the other warps have read it. With 64 rows the loop
  // has a barrier at that point.
  if constexpr (C::kQInLastStage && C::kRows == kWarpRows) sync_cta();

  OnlineSoftmax<C> state;
#pragma unroll
  for (int n = 0; n < C::kVDim / 8; ++n) {
#pragma unroll
    for (int e = 0; e < 4; ++e) state.o[n][e] = 0.0f;
  }
  state.m[0] = state.m[1] = -__builtin_inff();
  state.l[0] = state.l[1] = 0.0f;
  state.v_unit = C::kEightBit && launch.v_storage.quant == Quant::kPerTokenHead ? 0x1p-100f : 1.0f;

  const bool has_bias = launch.params.bias != nullptr;
  int slot = 0;
#pragma unroll 1
  while (key < end) {
    copy_async_wait<C::kStages - 2>();
    // The tile has arrived, and all threads have finished with the stage that is filled next.
    sync_ring<C>();
    load_next(slot == 0 ? C::kStages - 1 : slot - 1);
    std::byte* stage = shared.stage(ring, slot);
    uint64_t nonfinite_keys = 0;
    if constexpr (C::kStored != Kv::kInt8) {
      if (has_bias || coverage_of(item, item.rows_of_cta[warp], key, C::kTileKeys) != Cover::kFull)
        nonfinite_keys = clear_nonfinite<C>(shared.item(), stage, slice);
    }
    const Cover visible_keys = coverage_of(item, item.rows_of_warp[warp], key, C::kTileKeys);
    if (visible_keys != Cover::kNone)
      process_tile(launch, item, rows, q, stage, key, visible_keys == Cover::kPartial,
                   nonfinite_keys, state);
    key = next_tile<C>(item, key, warp);
    slot = slot == C::kStages - 1 ? 0 : slot + 1;
  }
  copy_async_wait<0>();
  write_item(launch, work, shared, state);
}

template <typename C>
__global__ void __launch_bounds__(kThreads, C::kMinCtas)
    attn_mma(const __grid_constant__ AttnLaunch launch) {
  const Shared<C> shared = {cta_shared()};
  wait_for_previous_kernel();
  launch_dependents();  // The next kernel waits for the end of this one, on SMs that are done.
  const WorkSchedule& schedule = launch.schedule;
  const int32_t end = schedule.cta_begin[blockIdx.x + 1];
#pragma unroll 1
  for (int32_t index = schedule.cta_begin[blockIdx.x]; index < end; ++index)
    process_item(launch, schedule.items[index], shared);
}

// ---- Host: launches

template <typename C>
cudaError_t launch_kernel(const AttnLaunch& params, cudaStream_t stream) {
  static_assert(Shared<C>::kBytes <= 163 * 1024, "sm_80 has no more");
  static_assert(C::kMinCtas == 1 || Shared<C>::kBytes <= 113 * 1024, "two CTAs on an SM of sm_90");
  const cudaError_t error = allow_shared(attn_mma<C>, Shared<C>::kBytes);
  if (error != cudaSuccess) return error;
  LaunchShape shape;
  shape.grid[0] = static_cast<uint32_t>(params.schedule.num_ctas);
  shape.threads = kThreads;
  shape.shared_bytes = Shared<C>::kBytes;
  shape.may_overlap = true;
  return launch(attn_mma<C>, shape, stream, params);
}

template <Kv Stored, int Rows>
cudaError_t launch_rows(int dims, const AttnLaunch& params, cudaStream_t stream) {
  if (dims < 0 || dims >= kNumDims) return cudaErrorInvalidValue;
  int32_t shared_bytes = 0;
  const cudaError_t error = max_shared_bytes(&shared_bytes);
  if (error != cudaSuccess) return error;
  return with_config<Stored, Rows>(dims, shared_bytes,
                                   [&]<typename C>(C) { return launch_kernel<C>(params, stream); });
}

template <Kv Stored>
cudaError_t launch_mma(int rows, int dims, const AttnLaunch& params, cudaStream_t stream) {
  return rows == 16 ? launch_rows<Stored, 16>(dims, params, stream)
                    : launch_rows<Stored, 64>(dims, params, stream);
}

}  // namespace kvc::cuda::attn_mma
