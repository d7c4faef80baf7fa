// The recurrence of linear attention, token by token (LinearParams): one CTA per sequence, head and
// tile of columns. Sequences with more than `most_rows` tokens are left to linear_chunk_kernel.
#pragma once

#include "kernels/cuda/linear/config.h"
#include "kernels/cuda/linear/elements.cuh"
#include "kernels/cuda/linear/token.cuh"
#include "kernels/linear_params.h"

namespace kvc::cuda::linear_kernels {

// Shared memory of a CTA, in floats.
struct LinearShared {
  int32_t rows;  // Rows of state that the CTA has room for.
  int32_t warps;
  int32_t tile;  // Columns of the tile.
  float* memory;

  KVC_HD float* stage(int64_t token) const {
    return memory + token % linear_config::kStages * 3 * rows;  // k, q and decay.
  }
  KVC_HD int32_t partial_floats() const { return 2 * tile + 4; }  // S^T k, S^T q, and k q.
  KVC_HD float* partial(int64_t token, int32_t warp) const {
    return memory + linear_config::kStages * 3 * rows +
           static_cast<int32_t>(token % 2 * warps + warp) * partial_floats();
  }
  KVC_HD int32_t floats() const {
    return linear_config::kStages * 3 * rows + 2 * warps * partial_floats();
  }
};

// The state of one thread: rows row_of(0), row_of(1) and so on, and four columns. Rows alternate
// over warps, so that all warps have about the same number.
template <kernels::DType State, int kLanes, int kRows>
struct LinearThread {
  static constexpr int kTogether = 32 / kLanes;  // Rows of a warp's load.

  float s[kRows][4];
  int32_t first_row;
  int32_t row_step;

  KVC_DEVICE int32_t row_of(int i) const { return first_row + i * row_step; }

  // The load has two halves: other loads can be issued in between, before the state has arrived.
  KVC_DEVICE void fetch(const kernels::LinearParams& params, const std::byte* state,
                        const LinearHead& at, Stored4<State> (&stored)[kRows]) const {
    const bool is_aligned = is_vector(params, state);
    for (int i = 0; i < kRows; ++i) {
      const bool exists = state != nullptr && row_of(i) < params.k_dim;
      stored[i] = load_4<State>(exists ? address(params, state, at, row_of(i)) : nullptr,
                                exists ? at.columns : 0, is_aligned);
    }
  }
  KVC_DEVICE void take(const Stored4<State> (&stored)[kRows]) {
    for (int i = 0; i < kRows; ++i) to_floats<State>(stored[i], s[i]);
  }
  KVC_DEVICE void store(const kernels::LinearParams& params, std::byte* state,
                        const LinearHead& at) const {
    const bool is_aligned = is_vector(params, state);
    for (int i = 0; i < kRows; ++i) {
      if (row_of(i) < params.k_dim)
        store_4<State>(const_cast<std::byte*>(address(params, state, at, row_of(i))), at.columns,
                       is_aligned, s[i]);
    }
  }

 private:
  static constexpr int64_t kBytes = State == kernels::DType::kF32 ? 4 : 2;

  KVC_DEVICE static const std::byte* address(const kernels::LinearParams& params,
                                             const std::byte* state, const LinearHead& at,
                                             int32_t row) {
    return state + at.head * params.state_head_stride + row * params.state_row_stride +
           at.first_column * kBytes;
  }
  KVC_DEVICE static bool is_vector(const kernels::LinearParams& params, const std::byte* state) {
    const auto bits = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(state)) |
                      static_cast<uint64_t>(params.state_head_stride) |
                      static_cast<uint64_t>(params.state_row_stride);
    return bits % (4 * kBytes) == 0;
  }
};

// Decays the state and sums S^T k, S^T q and k q over the rows of the warp. Its first lanes leave
// them for the other warps.
template <kernels::DType State, int kLanes, int kRows>
KVC_DEVICE void sum_rows(LinearThread<State, kLanes, kRows>& thread, const float* stage,
                         int32_t rows, float decay, float* partial, int32_t tile) {
  float by_k[4] = {0, 0, 0, 0}, by_q[4] = {0, 0, 0, 0}, k_by_q = 0;
  for (int i = 0; i < kRows; ++i) {
    const int32_t row = thread.row_of(i);
    const float k = stage[row], q = stage[rows + row], a = decay * stage[2 * rows + row];
    k_by_q += k * q;
    for (int c = 0; c < 4; ++c) {
      thread.s[i][c] *= a;
      by_k[c] += k * thread.s[i][c];
      by_q[c] += q * thread.s[i][c];
    }
  }
  for (int mask = kLanes; mask < 32; mask *= 2) {
    for (int c = 0; c < 4; ++c) {
      by_k[c] += shuffle_xor(by_k[c], mask);
      by_q[c] += shuffle_xor(by_q[c], mask);
    }
    k_by_q += shuffle_xor(k_by_q, mask);
  }
  const int lane = lane_id();
  if (lane < kLanes) {
    for (int c = 0; c < 4; ++c) {
      partial[4 * lane + c] = by_k[c];
      partial[tile + 4 * lane + c] = by_q[c];
    }
  }
  if (lane == 0) partial[2 * tile] = k_by_q;
}

// Adds the sums of all warps, updates the state, and computes the output. `u` receives beta * (v -
// S^T k).
template <int kLanes>
KVC_DEVICE void finish_token(const LinearHead& at, const LinearShared& shared, int64_t index,
                             int64_t token, const float (&v)[4], float beta, float skip,
                             float (&u)[4]) {
  const kernels::LinearParams& params = at.params;
  float by_k[4] = {0, 0, 0, 0}, by_q[4] = {0, 0, 0, 0}, k_by_q = 0;
  const int lane = lane_id() % kLanes;
  for (int32_t warp = 0; warp < shared.warps; ++warp) {
    const float* partial = shared.partial(index, warp);
    for (int c = 0; c < 4; ++c) {
      by_k[c] += partial[4 * lane + c];
      by_q[c] += partial[shared.tile + 4 * lane + c];
    }
    k_by_q += partial[2 * shared.tile];
  }
  for (int c = 0; c < 4; ++c) u[c] = beta * (params.delta != 0 ? v[c] - by_k[c] : v[c]);
  // Warps take turns writing, so that none falls behind.
  if (warp_id() != static_cast<int>(index % shared.warps) || lane_id() >= kLanes) return;
  std::byte* out =
      params.out.base + token * params.out.token_stride + at.head * params.out.head_stride;
  for (int c = 0; c < 4; ++c) {
    if (c < at.columns) {
      store_value(out, params.out.dtype, at.first_column + c,
                  params.scale * (by_q[c] + k_by_q * u[c]) + skip * v[c]);
    }
  }
}

template <kernels::DType State, int kLanes, int kRows>
__global__ void __launch_bounds__(linear_config::max_threads(kLanes, kRows),
                                  linear_config::least_ctas(kLanes, kRows))
    linear_kernel(const __grid_constant__ kernels::LinearParams params,
                  const int32_t* num_sequences_at, int64_t max_rows) {
  const auto warps = static_cast<int32_t>(blockDim.x / 32);
  const LinearShared shared{.rows = warps * (32 / kLanes) * kRows,
                            .warps = warps,
                            .tile = 4 * kLanes,
                            .memory = reinterpret_cast<float*>(cta_shared())};
  const int32_t tiles = (params.v_dim + shared.tile - 1) / shared.tile;
  const auto cta = static_cast<int32_t>(blockIdx.x);
  const int32_t s = cta / tiles / params.num_heads;
  if (num_sequences_at != nullptr && s >= *num_sequences_at) return;
  const kernels::LinearSequence sequence = params.sequences[s];
  if (sequence.num_rows > max_rows) return;
  const int32_t head = cta / tiles % params.num_heads;
  const int32_t column = cta % tiles * shared.tile + 4 * (lane_id() % kLanes);
  const LinearHead at{params, head, head / (params.num_heads / params.num_k_heads), column,
                      params.v_dim - column};

  LinearThread<State, kLanes, kRows> thread;
  thread.first_row = warp_id() * thread.kTogether + lane_id() / kLanes;
  thread.row_step = warps * thread.kTogether;
  Stored4<State> stored[kRows];
  thread.fetch(params, sequence.state_in, at, stored);

  const auto element = static_cast<int32_t>(threadIdx.x);
  const auto put = [&](int64_t index, const TokenElement& x) {
    if (element >= shared.rows) return;
    float* stage = shared.stage(index);
    stage[element] = value_of(x.k, params.k.dtype);
    stage[shared.rows + element] = value_of(x.q, params.q.dtype);
    stage[2 * shared.rows + element] = expf(x.log_decay);
  };
  const float skip = params.skip == nullptr ? 0 : params.skip[head];
  TokenElement next{};
  TokenValues values{};
  if (sequence.num_rows > 0) {
    next = read_token_element(at, sequence.row_begin, element);
    values = read_token_values(at, sequence.row_begin);
  }
  thread.take(stored);
  if (sequence.num_rows > 0) put(0, next);
  sync_cta();
  for (int64_t index = 0; index < sequence.num_rows; ++index) {
    const int64_t token = sequence.row_begin + index;
    const bool has_next = index + 1 < sequence.num_rows;
    TokenValues next_values{};
    if (has_next) {
      next = read_token_element(at, token + 1, element);
      next_values = read_token_values(at, token + 1);
    }
    float v[4];
    for (int c = 0; c < 4; ++c) v[c] = value_of(values.v[c], params.v.dtype);
    const float* stage = shared.stage(index);
    sum_rows(thread, stage, shared.rows, expf(values.log_decay), shared.partial(index, warp_id()),
             shared.tile);
    if (has_next) put(index + 1, next);
    sync_cta();
    float u[4];
    finish_token<kLanes>(at, shared, index, token, v, values.beta, skip, u);
    for (int i = 0; i < kRows; ++i) {
      const float k = stage[thread.row_of(i)];
      for (int c = 0; c < 4; ++c) thread.s[i][c] += k * u[c];
    }
    values = next_values;
  }
  if (sequence.state_out != nullptr) thread.store(params, sequence.state_out, at);
}

}  // namespace kvc::cuda::linear_kernels
