// MLA decode, absorbed: K is read once and serves as V. Two warpgroups work on the same 64 rows.
// README.md describes the pipeline.
#pragma once

#include "kernels/cuda/attn/latent/config.h"
#include "kernels/cuda/attn/wgmma/epilogue.cuh"
#include "kernels/cuda/attn/wgmma/producer.cuh"
#include "kernels/cuda/attn/wgmma/queries.cuh"
#include "kernels/cuda/attn/wgmma/softmax.cuh"
#include "kernels/cuda/ptx/hopper.cuh"
#include "kernels/cuda/ptx/wgmma_layout.h"

namespace kvc::cuda::latent {

using wgmma::ItemScope;
using wgmma::RowSums;
using RingPosition = wgmma::RingPosition<kStages>;
constexpr kernels::DType kType = kernels::DType::kBF16;
static_assert(sizeof(ItemScope) == kScopeBytes);

struct KernelParams {
  AttnLaunch launch;
  TensorMap maps[wgmma::kRaggedMaps];  // Without ragged keys only the first map is used.
  int32_t box_rows;
};
static_assert(sizeof(KernelParams) <= 4096);

// Like wgmma::Ring, with a full barrier per column of TMA boxes.
struct Ring {
  std::byte* memory;
  uint64_t* full;  // [stage][column]
  uint64_t* empty;

  KVC_DEVICE void init() const {
    for (int i = 0; i < kStages * kColumnBoxes; ++i) mbarrier_init(full + i, 1);
    for (int i = 0; i < kStages; ++i) mbarrier_init(empty + i, 4 * kConsumers);
  }
  KVC_DEVICE std::byte* stage(const RingPosition& position) const {
    return memory + position.stage() * kKBytes;
  }
  KVC_DEVICE uint64_t* column_barriers(const RingPosition& position) const {
    return full + position.stage() * kColumnBoxes;
  }

  KVC_DEVICE void acquire(const RingPosition& position) const {
    mbarrier_wait(empty + position.stage(), position.parity() ^ 1u);
    if (lane_id() < kColumnBoxes)
      mbarrier_arrive_expect(column_barriers(position) + lane_id(), kKBytes / kColumnBoxes);
    sync_warp();
  }
  KVC_DEVICE void wait(const RingPosition& position, int column) const {
    mbarrier_wait(column_barriers(position) + column, position.parity());
  }
  KVC_DEVICE void release(const RingPosition& position) const {
    if (lane_id() == 0) mbarrier_arrive(empty + position.stage());
  }
};

KVC_DEVICE int consumer_index() { return warp_id() / 4 - 1; }
KVC_DEVICE void sync_consumers() { sync_named(1, 128 * kConsumers); }

KVC_DEVICE void produce(const AttnLaunch& launch, const TensorMap* maps, int32_t box_rows,
                        ItemScope* scope_at, const Ring& ring) {
  const kernels::AttnParams& params = launch.params;
  RingPosition position;
  for (int32_t i = launch.schedule.cta_begin[blockIdx.x];
       i < launch.schedule.cta_begin[blockIdx.x + 1]; ++i) {
    const WorkItem& item = launch.schedule.items[i];
    const kernels::AttnSequence& sequence = params.sequences[item.sequence];
    find_scope(sequence, item, params.causal, params.num_q_heads / params.num_kv_heads, box_rows,
               scope_at);
    sync_warp();
    const ItemScope& scope = *scope_at;
    for (int32_t key = scope.block(scope.first, kKeyBlock); key < scope.key_end;
         key = scope.block(key + kKeyBlock, kKeyBlock)) {
      const wgmma::TmaBox boxes =
          find_tma_box(params, sequence, scope,
                       key + (lane_id() & (kKeyBlock / box_rows - 1)) * box_rows, box_rows);
      ring.acquire(position);
      wgmma::load_block<kKDim, kKeyBlock, true>(ring.stage(position),
                                                ring.column_barriers(position), maps, item.kv_head,
                                                boxes, box_rows);
      ++position.blocks;
    }
    sync_warp();  // The scope is overwritten next.
  }
}

// Both consumers. Rows of keys that are masked in every row of the item become zeros: as V, 0 * NaN
// would be NaN.
KVC_DEVICE void clear_masked(std::byte* rows, const ItemScope& scope, int32_t key) {
  const int thread = static_cast<int>(threadIdx.x) - 128, row = thread / 4;
  if (!scope.visible_to_any(key + row)) {
    for (int i = thread % 4; i < kVDim / 8; i += 4) {
      *reinterpret_cast<Words4*>(rows + i / 8 * kKeyBlock * kSwizzleBytes + row * kSwizzleBytes +
                                 i % 8 * 16) = Words4{};
    }
  }
  fence_proxy_async();
  sync_consumers();
}

// The warpgroup's scores: 64 rows x its 32 keys, column by column as they arrive.
KVC_DEVICE void multiply_qk(float (&s)[kOwnKeys / 2], uint64_t q, uint64_t k, const Ring& ring,
                            const RingPosition& position) {
#pragma unroll
  for (int step = 0; step < kKDim / 16; ++step) {
    if (step % 4 == 0) ring.wait(position, step / 4);
    wgmma_ss<kType, kOwnKeys, false>(s, wgmma_advance(q, k_major_step(kTileRows, step)),
                                     wgmma_advance(k, k_major_step(kKeyBlock, step)), step > 0);
  }
}
// The warpgroup's columns of the output, over all 64 keys.
KVC_DEVICE void multiply_pv(float (&o)[kColumns / 2], uint64_t p, uint64_t v) {
#pragma unroll
  for (int step = 0; step < kKeyBlock / 16; ++step) {
    wgmma_ss<kType, kColumns, true>(o, wgmma_advance(p, k_major_step(kTileRows, step)),
                                    wgmma_advance(v, n_major_step(step)), true);
  }
}

// Stores the probabilities of the warpgroup's keys as columns of the K-major A operand, which both
// warpgroups read.
KVC_DEVICE void store_probabilities(const float (&s)[kOwnKeys / 2], std::byte* p, int consumer) {
  const int lane = lane_id(), warp = static_cast<int>(threadIdx.x / 32 & 3u);
  const int row = 16 * warp + (lane & 15), column = kOwnKeys * consumer + lane / 16 * 8;
#pragma unroll
  for (int pair = 0; pair < kOwnKeys / 16; ++pair) {
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i)
      words[i] = pack<kType>(s[8 * pair + 2 * i], s[8 * pair + 2 * i + 1]);
    store_matrix_x4(p + block_offset(kTileRows, row, column + 16 * pair), words);
  }
}

// Passes a float per row from each warpgroup to the other.
struct RowExchange {
  float* values;  // [consumer][row]

  KVC_DEVICE void put(int consumer, const float (&own)[2]) const {
    if ((lane_id() & 3) != 0) return;
#pragma unroll
    for (int row = 0; row < 2; ++row)
      values[consumer * kTileRows + wgmma::row_of_warpgroup() + 8 * row] = own[row];
  }
  KVC_DEVICE float get(int consumer, int row) const {
    return values[(1 - consumer) * kTileRows + wgmma::row_of_warpgroup() + 8 * row];
  }
};

KVC_DEVICE void consume(const AttnLaunch& launch, int32_t box_rows, std::byte* shared,
                        const Ring& ring) {
  const kernels::AttnParams& params = launch.params;
  const float scale = params.softcap != 0 ? params.softcap : params.q_scale;
  const RowExchange exchange{reinterpret_cast<float*>(shared + kRowsAt)};
  std::byte* p_rows = shared + kPAt;
  RingPosition position;

  for (int32_t i = launch.schedule.cta_begin[blockIdx.x];
       i < launch.schedule.cta_begin[blockIdx.x + 1]; ++i) {
    const int consumer = consumer_index();
    ItemScope* scope_at = reinterpret_cast<ItemScope*>(shared + kScopesAt) + consumer;
    sync_consumers();  // Everybody has finished with the queries and the scope of the last item.
    {
      const WorkItem& item = launch.schedule.items[i];
      const kernels::AttnSequence& sequence = params.sequences[item.sequence];
      if ((threadIdx.x & 127u) < 32)
        find_scope(sequence, item, params.causal, params.num_q_heads / params.num_kv_heads,
                   box_rows, scope_at);
      wgmma::load_queries<kType, kKDim, kTileRows, 128 * kConsumers>(
          params, sequence, item.sink_part != 0 ? params.sink_q_rotation : params.q_rotation,
          item.kv_head, item.row_begin, item.row_begin + item.num_rows, shared,
          static_cast<int>(threadIdx.x) - 128);
      fence_proxy_async();
    }
    sync_consumers();
    const ItemScope& scope = *scope_at;

    RowSums sums[2];
    float s[kOwnKeys / 2], o[kColumns / 2], factor[2];
#pragma unroll
    for (float& value : o) value = 0.0f;

    const auto compute_scores = [&](int32_t key) {
      if (!scope.each_visible(key, key + kKeyBlock)) {
        for (int column = 0; column < kColumnBoxes; ++column) ring.wait(position, column);
        clear_masked(ring.stage(position), scope, key);
      }
      // Descriptors are computed again in every block: otherwise the compiler would keep those of
      // all steps in registers.
      uint32_t own[1] = {static_cast<uint32_t>(consumer_index())};
      wgmma_pin(own);
      const uint64_t q = wgmma_descriptor(shared, 0, kStrideBytes, kSwizzleBytes);
      const uint64_t k =
          wgmma_descriptor(ring.stage(position) + own[0] * (kOwnKeys * kSwizzleBytes), 0,
                           kStrideBytes, kSwizzleBytes);
      wgmma_pin(s);
      wgmma_fence();
      multiply_qk(s, q, k, ring, position);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(s);
    };
    const auto add_output = [&]() {
      uint32_t own[1] = {static_cast<uint32_t>(consumer_index())};
      wgmma_pin(own);
      const uint64_t p = wgmma_descriptor(p_rows, 0, kStrideBytes, kSwizzleBytes);
      const uint64_t v = wgmma_descriptor(
          ring.stage(position) + own[0] * (kColumns / kSwizzleElements * leading_bytes(kKeyBlock)),
          leading_bytes(kKeyBlock), kStrideBytes, kSwizzleBytes);
      wgmma_pin(o);
      wgmma_fence();
      multiply_pv(o, p, v);
      wgmma_commit();
      wgmma_wait<0>();
      wgmma_pin(o);
      ring.release(position);
      ++position.blocks;
    };
    // Turns scores into probabilities in registers, with the maximum over the keys of both
    // warpgroups.
    const auto softmax_scores = [&](int32_t key) {
      const int own = consumer_index();
      if (params.softcap != 0) wgmma::cap_scores(s, params.q_scale);
      if (!scope.all_visible(key, key + kKeyBlock)) {
        wgmma::mask_scores<kOwnKeys>(s, scope, params, scope.row_begin + wgmma::row_of_warpgroup(),
                                     key + kOwnKeys * own);
      }
      float m[2];
      wgmma::find_maxima<kOwnKeys>(s, sums, m);
      exchange.put(own, m);
      sync_consumers();
#pragma unroll
      for (int row = 0; row < 2; ++row) m[row] = fmaxf(m[row], exchange.get(own, row));
      wgmma::softmax<kOwnKeys>(s, scale, m, sums, factor);
    };
#pragma unroll 1
    for (int32_t key = scope.block(scope.first, kKeyBlock); key < scope.key_end;
         key = scope.block(key + kKeyBlock, kKeyBlock)) {
      compute_scores(key);
      // When its barrier opens, both have finished with the last block's probabilities.
      softmax_scores(key);
      store_probabilities(s, p_rows, consumer_index());
      fence_proxy_async();
      wgmma::rescale(o, factor);
      sync_consumers();
      add_output();
    }
    // These sums cover the warpgroup's own keys.
    float l[2] = {wgmma::sum_of_row(sums[0].l), wgmma::sum_of_row(sums[1].l)};
    sync_consumers();
    exchange.put(consumer_index(), l);
    sync_consumers();
#pragma unroll
    for (int row = 0; row < 2; ++row) sums[row].l = l[row] + exchange.get(consumer_index(), row);
    wgmma::write_output(launch, scope, launch.schedule.items[i],
                        scope.row_begin + wgmma::row_of_warpgroup(), sums, scale, o,
                        consumer_index() * kColumns, consumer_index() == 0);
  }
}

__global__ void __launch_bounds__(kThreads, 1)
    attn_latent_kernel(const __grid_constant__ KernelParams params) {
  if constexpr (kHasHopper) {
    std::byte* shared = cta_shared();
    auto* barriers = reinterpret_cast<uint64_t*>(shared + kBarriersAt);
    const Ring ring{shared + kKAt, barriers, barriers + kStages * kColumnBoxes};
    if (threadIdx.x == 0) {
      ring.init();
      mbarrier_fence_init();
#pragma unroll 1
      for (int32_t i = 0; i < wgmma::num_maps(params.launch.params.page_size); ++i)
        tma_prefetch(params.maps + i);
    }
    sync_cta();
    wait_for_previous_kernel();
    launch_dependents();  // The next kernel waits for the end of this one, on SMs that are done.
    if (warp_id() < 4) {
      registers_decrease<kProducerRegisters>();
      if (warp_id() == 0)
        produce(params.launch, params.maps, params.box_rows,
                reinterpret_cast<ItemScope*>(shared + kScopesAt) + kConsumers, ring);
    } else {
      registers_increase<kConsumerRegisters>();
      consume(params.launch, params.box_rows, shared, ring);
    }
  }
}

}  // namespace kvc::cuda::latent
