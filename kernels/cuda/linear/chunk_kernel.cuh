// The assignment of long sequences to CTAs, and the loop over their chunks.
#pragma once

#include "kernels/cuda/linear/chunk.cuh"

namespace kvc::cuda::linear_kernels {

// warp. The long sequence that has `before` long ones in front of it. -1: there are fewer.
KVC_DEVICE int32_t find_long(const kernels::LinearSequence* sequences, int32_t n, int32_t before) {
  constexpr int kTogether = 4;  // Loads in flight.
  const uint32_t lanes_below = (1u << lane_id()) - 1;
  for (int32_t first = 0; first < n; first += 32 * kTogether) {
    bool is_long[kTogether];
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const int32_t s = first + 32 * i + lane_id();
      is_long[i] = s < n && sequences[s].num_rows >= linear_config::kChunkFrom;
    }
#pragma unroll
    for (int i = 0; i < kTogether; ++i) {
      const uint32_t mask = ballot(is_long[i]);
      const int32_t count = __builtin_popcount(mask);
      if (before < count) {
        const uint32_t is_it =
            ballot(is_long[i] && __builtin_popcount(mask & lanes_below) == before);
        return first + 32 * i + __builtin_popcount(is_it - 1);
      }
      before -= count;
    }
  }
  return -1;
}

// Processes a tile of columns of one head, from the first token of a sequence to the last.
template <int kKeyParts>
KVC_DEVICE void run_chunks(const LinearHead& at, const kernels::LinearSequence& sequence,
                           const ChunkShared& shared) {
  const kernels::LinearParams& params = at.params;
  const int warp = warp_id();
  ChunkThread thread{};
  if (sequence.state_in != nullptr) {
    visit_state(at, warp, sequence.state_in,
                [&](int i, int n, int j, const std::byte* row, int32_t c) {
                  thread.state[i][n][j] = load_value(row, params.state_dtype, c);
                });
  }
  for (int64_t first = 0; first < sequence.num_rows; first += ChunkShared::kTokens) {
    const int64_t token = sequence.row_begin + first;
    const auto num_tokens = static_cast<int32_t>(sequence.num_rows - first < ChunkShared::kTokens
                                                     ? sequence.num_rows - first
                                                     : ChunkShared::kTokens);
    if constexpr (kKeyParts == 1) {
      stage_rows(params.q, token, num_tokens, at.k_head, params.k_dim, shared, shared.q(0));
      stage_rows(params.k, token, num_tokens, at.k_head, params.k_dim, shared, shared.k(0));
      copy_async_commit();
    } else {
      stage_split_rows(params.q, token, num_tokens, at.k_head, params.k_dim, shared, shared.q(0),
                       shared.q(1));
      stage_split_rows(params.k, token, num_tokens, at.k_head, params.k_dim, shared, shared.k(0),
                       shared.k(1));
    }
    stage_values(at, token, num_tokens, shared);
    stage_gates(at, token, num_tokens, shared);
    store_state(thread, warp, shared);
    if constexpr (kKeyParts == 1) copy_async_wait<0>();
    sync_cta();
    multiply_decays(shared);
    sync_cta();
    multiply_tokens<kKeyParts>(thread, warp, shared, params.delta != 0);
    multiply_state<kKeyParts>(thread, warp, shared, params.delta != 0);
    sync_cta();
    if (params.delta != 0) solve(warp, shared);
    store_updates(shared);
    sync_cta();
    add_updates_to_outputs(thread, warp, shared);
    advance_state<kKeyParts>(thread, warp, shared);
    write_outputs(thread, warp, at, token, num_tokens);
    sync_cta();  // The next chunk's rows overwrite these.
  }
  if (sequence.state_out == nullptr) return;
  visit_state(at, warp, sequence.state_out, [&](int i, int n, int j, std::byte* row, int32_t c) {
    store_value(row, params.state_dtype, c, thread.state[i][n][j]);
  });
}

// Launched with one CTA per long sequence, head and tile of columns, for the `num_long` sequences
// that the host knows to be long. If there are more, they follow in turn. Shorter sequences are
// left to linear_kernel.
template <int kKeyParts>
__global__ void __launch_bounds__(linear_config::kChunkThreads, kKeyParts == 1 ? 2 : 1)
    linear_chunk_kernel(const __grid_constant__ kernels::LinearParams params, int32_t max_sequences,
                        const int32_t* num_sequences_at, int32_t num_long) {
  const int32_t n = num_sequences_at == nullptr ? max_sequences : *num_sequences_at;
  const int32_t tiles = (params.v_dim + ChunkShared::kColumns - 1) / ChunkShared::kColumns;
  const auto cta = static_cast<int32_t>(blockIdx.x);
  const int32_t head = cta / tiles % params.num_heads;
  const int32_t column = cta % tiles * ChunkShared::kColumns;
  const ChunkShared shared{
      .k_rows = (params.k_dim + 15) / 16 * 16, .key_parts = kKeyParts, .memory = cta_shared()};
  const LinearHead at{params, head, head / (params.num_heads / params.num_k_heads), column,
                      params.v_dim - column};
  for (int32_t before = cta / tiles / params.num_heads;; before += num_long) {
    const int32_t s = find_long(params.sequences, n, before);
    if (s < 0) return;
    const kernels::LinearSequence sequence = params.sequences[s];
    run_chunks<kKeyParts>(at, sequence, shared);
  }
}

}  // namespace kvc::cuda::linear_kernels
