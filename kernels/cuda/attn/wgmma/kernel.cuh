// Prefill with wgmma: two consumer warpgroups of 64 packed rows each; a producer warp loads K and V
// by TMA. README.md describes the pipeline.
#pragma once

#include "kernels/cuda/attn/wgmma/config.h"
#include "kernels/cuda/attn/wgmma/epilogue.cuh"
#include "kernels/cuda/attn/wgmma/producer.cuh"
#include "kernels/cuda/attn/wgmma/queries.cuh"
#include "kernels/cuda/attn/wgmma/softmax.cuh"
#include "kernels/cuda/ptx/hopper.cuh"
#include "kernels/cuda/ptx/wgmma_layout.h"

namespace kvc::cuda::wgmma {

static_assert(sizeof(ItemScope) == kScopeBytes);

struct KernelParams {
  AttnLaunch launch;
  // The maps of K, then of V. Without ragged keys only the first of each is used.
  TensorMap maps[2 * kRaggedMaps];
  int32_t box_rows;
};
static_assert(sizeof(KernelParams) <= 4096);

// Named barriers: 1 and 2 for the four warps of a consumer, 3 for both consumers, 4 and 5 for the
// turn of a consumer.
KVC_DEVICE void sync_consumer(int consumer) { sync_named(1 + consumer, 128); }
KVC_DEVICE int consumer_index() { return warp_id() / 4 - 1; }
KVC_DEVICE void sync_consumers() { sync_named(3, 256); }
// The consumers issue their products in turns: while those of one are computed, the other has its
// softmax (the ping-pong schedule of FlashAttention-3, arXiv 2407.08608).
KVC_DEVICE void take_turn() { sync_named(4 + consumer_index(), 256); }
KVC_DEVICE void pass_turn() { arrive_named(5 - consumer_index(), 256); }

// A consumer thread's first packed row. Computing it again is cheaper than keeping it.
KVC_DEVICE int32_t first_own_row(const ItemScope& scope) {
  return scope.row_begin + static_cast<int32_t>(threadIdx.x / 128 - 1) * kRowsOfConsumer +
         row_of_warpgroup();
}

template <class Shape, kernels::DType T>
KVC_DEVICE void multiply_qk(float (&s)[Shape::kKeyBlock / 2], uint64_t q, uint64_t k) {
#pragma unroll
  for (int step = 0; step < Shape::kKDim / 16; ++step) {
    wgmma_ss<T, Shape::kKeyBlock, false>(s, wgmma_advance(q, k_major_step(kRowsOfConsumer, step)),
                                         wgmma_advance(k, k_major_step(Shape::kKeyBlock, step)),
                                         step > 0);
  }
}
template <class Shape, kernels::DType T>
KVC_DEVICE void multiply_pv(float (&o)[Shape::kVDim / 2], uint32_t (&p)[Shape::kKeyBlock / 16][4],
                            uint64_t v) {
#pragma unroll
  for (int step = 0; step < Shape::kKeyBlock / 16; ++step)
    wgmma_rs<T, Shape::kVDim, true>(o, p[step], wgmma_advance(v, n_major_step(step)), true);
}

// Both consumers. V rows that are masked in every row of the item become zeros, because 0 * NaN is
// NaN. Boxes without any visible key are zeros already.
template <class Shape>
KVC_DEVICE void clear_masked(std::byte* v, const ItemScope& scope, int32_t key) {
  const int thread = static_cast<int>(threadIdx.x) - 128;
  constexpr int kColumnBoxes = Shape::kVDim / 64;
  constexpr int kThreadsOfRow = 256 / Shape::kKeyBlock;
  const int row = thread / kThreadsOfRow;
  if (!scope.visible_to_any(key + row)) {
    for (int i = thread % kThreadsOfRow; i < 8 * kColumnBoxes; i += kThreadsOfRow) {
      *reinterpret_cast<Words4*>(v + i / 8 * Shape::kKeyBlock * 128 + row * 128 + i % 8 * 16) =
          Words4{};
    }
  }
  fence_proxy_async();
  sync_consumers();
}

// One consumer. Prepares the scope and the queries of an item. The caller adds barriers before and
// after.
template <class Shape, kernels::DType T>
KVC_DEVICE void start_item(const AttnLaunch& launch, int32_t index, int32_t box_rows, int consumer,
                           std::byte* shared, ItemScope* scope) {
  const kernels::AttnParams& params = launch.params;
  const WorkItem& item = launch.schedule.items[index];
  const kernels::AttnSequence& sequence = params.sequences[item.sequence];
  const int thread = static_cast<int>(threadIdx.x & 127u);
  if (thread < 32)
    find_scope(sequence, item, params.causal, params.num_q_heads / params.num_kv_heads, box_rows,
               scope);
  load_queries<T, Shape::kKDim, kRowsOfConsumer, 128>(
      params, sequence, item.sink_part != 0 ? params.sink_q_rotation : params.q_rotation,
      item.kv_head, item.row_begin + consumer * kRowsOfConsumer, item.row_begin + item.num_rows,
      shared + consumer * (Shape::kQBytes / kConsumers), thread);
  fence_proxy_async();
}

template <class Shape, kernels::DType T>
KVC_DEVICE void consume(const AttnLaunch& launch, int32_t box_rows, std::byte* shared,
                        ItemScope* scopes, const Ring<Shape::kStages, Shape::kKBytes>& k_ring,
                        const Ring<Shape::kStages, Shape::kVBytes>& v_ring) {
  constexpr int kKeys = Shape::kKeyBlock;
  const kernels::AttnParams& params = launch.params;
  // Scores are scaled after the product, in float32. Under a soft cap the product is scaled first.
  const float scale = params.softcap != 0 ? params.softcap : params.q_scale;
  // Position of V. K is one block ahead while outputs are due.
  RingPosition<Shape::kStages> position;
  if (consumer_index() == 1) pass_turn();  // The first one begins.

  for (int32_t i = launch.schedule.cta_begin[blockIdx.x];
       i < launch.schedule.cta_begin[blockIdx.x + 1]; ++i) {
    const int consumer = consumer_index();
    // Everybody has finished with the queries and the scope of the last item.
    sync_consumer(consumer);
    start_item<Shape, T>(launch, i, box_rows, consumer, shared, scopes + consumer);
    sync_consumer(consumer);
    const ItemScope& scope = scopes[consumer];

    RowSums sums[2];
    float s[kKeys / 2], o[Shape::kVDim / 2], factor[2];
    uint32_t p[kKeys / 16][4];
#pragma unroll
    for (float& value : o) value = 0.0f;

    const auto issue_qk = [&](const RingPosition<Shape::kStages>& k_position) {
      // Computed again in every block: otherwise the compiler would keep the descriptors of all
      // steps in registers.
      uint32_t own[1] = {static_cast<uint32_t>(consumer)};
      wgmma_pin(own);
      const uint64_t q = wgmma_descriptor(shared + own[0] * (Shape::kQBytes / kConsumers), 0,
                                          kStrideBytes, kSwizzleBytes);
      wgmma_pin(s);
      wgmma_fence();
      multiply_qk<Shape, T>(
          s, q, wgmma_descriptor(k_ring.stage(k_position), 0, kStrideBytes, kSwizzleBytes));
      wgmma_commit();
    };
    const auto issue_pv = [&]() {
      wgmma_pin(o);
      wgmma_fence();
      multiply_pv<Shape, T>(o, p,
                            wgmma_descriptor(v_ring.stage(position), leading_bytes(kKeys),
                                             kStrideBytes, kSwizzleBytes));
      wgmma_commit();
    };
    const auto softmax_scores = [&](const RingPosition<Shape::kStages>& k_position, int32_t key) {
      wgmma_pin(s);
      k_ring.release(k_position);
      if (params.softcap != 0) cap_scores(s, params.q_scale);
      if (!scope.all_visible(key, key + kKeys))
        mask_scores<kKeys>(s, scope, params, first_own_row(scope), key);
      float m[2];
      find_maxima<kKeys>(s, sums, m);
      softmax<kKeys>(s, scale, m, sums, factor);
    };
    const auto finish_output = [&]() {
      wgmma_wait<0>();
      wgmma_pin(o);
      v_ring.release(position);
      ++position.blocks;
    };
    const auto wait_v = [&](int32_t key) {
      v_ring.wait(position);
      if (!scope.each_visible(key, key + kKeys))
        clear_masked<Shape>(v_ring.stage(position), scope, key);
    };

    int32_t key = scope.block(scope.first, kKeys);
    if (key < scope.key_end) {
      k_ring.wait(position);
      take_turn();
      issue_qk(position);
      pass_turn();
      wgmma_wait<0>();
      softmax_scores(position, key);
      pack_scores<T, kKeys>(s, p);
#pragma unroll 1
      while (true) {
        const int32_t next = scope.block(key + kKeys, kKeys);
        if (next >= scope.key_end) break;
        const RingPosition<Shape::kStages> ahead{position.blocks + 1};
        k_ring.wait(ahead);
        wait_v(key);
        take_turn();
        issue_qk(ahead);
        issue_pv();
        pass_turn();
        wgmma_wait<1>();
        softmax_scores(ahead, next);
        finish_output();  // wgmma reads p and writes o until here.
        rescale(o, factor);
        pack_scores<T, kKeys>(s, p);
        key = next;
      }
      wait_v(key);
      take_turn();
      issue_pv();
      pass_turn();
      finish_output();
    }
#pragma unroll
    for (RowSums& row : sums) row.l = sum_of_row(row.l);
    write_output(launch, scope, launch.schedule.items[i], first_own_row(scope), sums, scale, o, 0,
                 true);
  }
  if (consumer_index() == 0) take_turn();  // Nothing is left of the barriers.
}

template <class Shape, kernels::DType T>
__global__ void __launch_bounds__(kThreads, 1)
    attn_wgmma_kernel(const __grid_constant__ KernelParams params) {
  if constexpr (kHasHopper) {
    std::byte* shared = cta_shared();
    auto* barriers = reinterpret_cast<uint64_t*>(shared + Shape::kBarriersAt);
    constexpr int kStages = Shape::kStages;
    auto* scopes = reinterpret_cast<ItemScope*>(shared + Shape::kScopesAt);
    const Ring<kStages, Shape::kKBytes> k_ring{shared + Shape::kKAt, barriers, barriers + kStages};
    const Ring<kStages, Shape::kVBytes> v_ring{shared + Shape::kVAt, barriers + 2 * kStages,
                                               barriers + 3 * kStages};
    if (threadIdx.x == 0) {
      k_ring.init(4 * kConsumers);
      v_ring.init(4 * kConsumers);
      mbarrier_fence_init();
#pragma unroll 1
      for (int32_t i = 0; i < num_maps(params.launch.params.page_size); ++i) {
        tma_prefetch(params.maps + i);
        tma_prefetch(params.maps + kRaggedMaps + i);
      }
    }
    sync_cta();
    wait_for_previous_kernel();
    launch_dependents();  // The next kernel waits for the end of this one, on SMs that are done.
    if (warp_id() < 4) {
      registers_decrease<kProducerRegisters>();
      if (warp_id() == 0)
        produce<Shape>(params.launch, params.maps, params.box_rows, scopes + kConsumers, k_ring,
                       v_ring);
    } else {
      registers_increase<kConsumerRegisters>();
      consume<Shape, T>(params.launch, params.box_rows, shared, scopes, k_ring, v_ring);
    }
  }
}

}  // namespace kvc::cuda::wgmma
