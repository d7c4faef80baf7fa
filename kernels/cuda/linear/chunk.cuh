// Long sequences of the recurrence, 64 tokens at a time on the tensor cores (Yang et al.,
// "Parallelizing linear transformers with the delta rule over sequence length", 2024, sections 3
// and 4; Dao and Gu, "Transformers are SSMs", 2024, section 6).
//
// Let A(t, s) be the decay from after token s up to token t, A(t) the decay from the begin of the
// chunk, and S0 the state there:
//   U = solution of  u_t + beta_t sum_{s < t} A(t, s) (k_t k_s) u_s = beta_t (v_t - A(t) S0^T k_t)
//   without delta: u_t = beta_t v_t
//   out_t = scale * (A(t) S0^T q_t + sum_{s <= t} A(t, s) (q_t k_s) u_s) + skip * v_t
//   S = A(end) S0 + sum_s A(end, s) k_s u_s^T
//
// Products use bfloat16 units with float32 sums. S0, U and A(t, s) (q_t k_s) are split into two
// parts each, which keep 16 bits of fraction: the outputs show no loss against the token-by-token
// kernel. q and k are bfloat16 as given, or float16 in two exact parts. In products of two parts by
// two, the smallest term is omitted. The state itself stays float32, in registers.
#pragma once

#include "kernels/cuda/linear/chunk_shared.cuh"
#include "kernels/cuda/linear/elements.cuh"
#include "kernels/cuda/linear/token.cuh"
#include "kernels/linear_params.h"

namespace kvc::cuda::linear_kernels {

// The registers of a thread. Warp w has token rows 16 w to 16 w + 15, and the state rows of tiles w
// and w + 4.
struct ChunkThread {
  static constexpr int kStateTiles = 2;
  static constexpr int kTiles = linear_config::kChunkColumns / 8;  // Tiles of columns.

  float state[kStateTiles][kTiles][4];
  float p[4][2][4];      // A(t, s) (q_t k_s): tiles of 16 tokens s, with tiles of 8 inside.
  float out[kTiles][4];  // S0^T q_t, then the outputs without scale.
};

constexpr auto kBF16 = kernels::DType::kBF16;

// Row and column of element i of a fragment of d (ptx.cuh).
KVC_DEVICE int32_t fragment_row(int i) { return lane_id() / 4 + i / 2 * 8; }
KVC_DEVICE int32_t fragment_column(int i) { return lane_id() % 4 * 2 + i % 2; }

// Loads q or k of the chunk's tokens; zeros beyond the tokens and beyond k_dim. Aligned rows are
// copied asynchronously: the caller waits for the copies.
KVC_DEVICE void stage_rows(const kernels::TokenRows& rows, int64_t token, int32_t num_tokens,
                           int32_t head, int32_t k_dim, const ChunkShared& shared, uint16_t* to) {
  const std::byte* base = token_row(rows, token, head);
  const bool is_aligned =
      ((reinterpret_cast<uintptr_t>(base) | static_cast<uint64_t>(rows.token_stride)) & 15) == 0;
  const int32_t groups = shared.k_rows / 8;
  for (auto i = static_cast<int32_t>(threadIdx.x); i < ChunkShared::kTokens * groups;
       i += linear_config::kChunkThreads) {
    const int32_t t = i / groups, first = i % groups * 8;
    const std::byte* from = base + t * rows.token_stride + 2 * first;
    uint16_t* row = to + t * shared.row_stride() + first;
    const int32_t elements = t >= num_tokens || first >= k_dim ? 0
                             : k_dim - first < 8               ? k_dim - first
                                                               : 8;
    if (is_aligned) {
      copy_async_16(row, elements > 0 ? from : base, 2 * elements);
    } else {
      for (int j = 0; j < 8; ++j)
        row[j] = j < elements ? reinterpret_cast<const uint16_t*>(from)[j] : uint16_t{0};
    }
  }
}

// The same in two parts, from 16-bit elements of any type. Four loads of a thread are in flight
// together.
KVC_DEVICE void stage_split_rows(const kernels::TokenRows& rows, int64_t token, int32_t num_tokens,
                                 int32_t head, int32_t k_dim, const ChunkShared& shared,
                                 uint16_t* high, uint16_t* low) {
  constexpr int32_t kTogether = 4, kThreads = linear_config::kChunkThreads;
  const std::byte* base = token_row(rows, token, head);
  const bool is_aligned =
      ((reinterpret_cast<uintptr_t>(base) | static_cast<uint64_t>(rows.token_stride)) & 15) == 0;
  const bool by_vectors = is_aligned && k_dim % 8 == 0;
  const int32_t groups = shared.k_rows / 8, end = ChunkShared::kTokens * groups;
  for (auto begin = static_cast<int32_t>(threadIdx.x); begin < end; begin += kTogether * kThreads) {
    Words4 pairs[kTogether];
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const int32_t i = begin + n * kThreads, t = i / groups, first = i % groups * 8;
      const std::byte* from = base + t * rows.token_stride;
      pairs[n] = {{0, 0, 0, 0}};
      if (t >= num_tokens) continue;
      if (by_vectors) {
        if (first < k_dim) pairs[n] = load_16(from + 2 * first);
        continue;
      }
#pragma unroll
      for (int j = 0; j < 8; ++j) {
        if (first + j < k_dim)
          pairs[n].x[j / 2] |= load_bits(from, rows.dtype, first + j) << (j % 2 * 16);
      }
    }
#pragma unroll
    for (int n = 0; n < kTogether; ++n) {
      const int32_t i = begin + n * kThreads;
      if (i >= end) break;
      const int32_t to = i / groups * shared.row_stride() + i % groups * 8;
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        uint32_t high_pair, low_pair;
        split_pair(value_of(pairs[n].x[j] & 0xffffu, rows.dtype),
                   value_of(pairs[n].x[j] >> 16, rows.dtype), high_pair, low_pair);
        *reinterpret_cast<uint32_t*>(high + to + 2 * j) = high_pair;
        *reinterpret_cast<uint32_t*>(low + to + 2 * j) = low_pair;
      }
    }
  }
}

// Loads v of the tile's columns, with all loads in flight together.
KVC_DEVICE void stage_values(const LinearHead& at, int64_t token, int32_t num_tokens,
                             const ChunkShared& shared) {
  constexpr int32_t kEach =
      ChunkShared::kTokens * ChunkShared::kColumns / linear_config::kChunkThreads;
  static_assert(ChunkShared::kColumns == 32);
  const kernels::TokenRows& rows = at.params.v;
  const int32_t first = static_cast<int32_t>(threadIdx.x) / 32, column = lane_id();
  const bool exists = at.first_column + column < at.params.v_dim;
  const std::byte* from = token_row(rows, token, at.head);
  uint32_t bits[kEach];
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int32_t t = first + i * (linear_config::kChunkThreads / 32);
    bits[i] = exists && t < num_tokens
                  ? load_bits(from + t * rows.token_stride, rows.dtype, at.first_column + column)
                  : 0;
  }
#pragma unroll
  for (int i = 0; i < kEach; ++i) {
    const int32_t t = first + i * (linear_config::kChunkThreads / 32);
    shared.right()[t * ChunkShared::kRightStride + column] = value_of(bits[i], rows.dtype);
  }
}

// Loads decay and beta of each token. Beyond the last token they are neutral.
KVC_DEVICE void stage_gates(const LinearHead& at, int64_t token, int32_t num_tokens,
                            const ChunkShared& shared) {
  const auto t = static_cast<int32_t>(threadIdx.x);
  if (t >= ChunkShared::kTokens) return;
  const kernels::LinearParams& params = at.params;
  float decay = 1, beta = 0;
  if (t < num_tokens) {
    beta =
        params.beta == nullptr ? 1 : params.beta[(token + t) * params.beta_token_stride + at.head];
    if (params.decay != nullptr)
      decay = expf(params.decay[(token + t) * params.decay_token_stride +
                                at.head * params.decay_head_stride]);
  }
  shared.decay()[t] = decay;
  shared.beta()[t] = beta;
}

// Uses products of decays rather than powers of sums: a decay of 0 needs no special case, and
// nothing is lost to cancellation.
KVC_DEVICE void multiply_decays(const ChunkShared& shared) {
  constexpr int32_t kTokens = ChunkShared::kTokens;
  const auto thread = static_cast<int32_t>(threadIdx.x);
  const float* decay = shared.decay();
  if (thread < kTokens) {
    float product = 0;
    for (int32_t t = 0; t < kTokens; ++t) {
      product = t == thread ? 1 : product * decay[t];
      shared.square()[t * ChunkShared::kSquareStride + thread] = product;
    }
    shared.to_end()[thread] = product;
  } else if (thread == kTokens) {
    float product = 1;
    for (int32_t t = 0; t < kTokens; ++t) shared.from_start()[t] = product *= decay[t];
  }
}

// Stores the state in two parts for products.
KVC_DEVICE void store_state(const ChunkThread& thread, int warp, const ChunkShared& shared) {
  for (int i = 0; i < ChunkThread::kStateTiles; ++i) {
    const int32_t first = 16 * (warp + 4 * i);
    for (int n = 0; n < ChunkThread::kTiles; ++n) {
      for (int j = 0; j < 4; j += 2) {
        uint32_t high, low;
        split_pair(thread.state[i][n][j], thread.state[i][n][j + 1], high, low);
        const int32_t at =
            (first + fragment_row(j)) * ChunkShared::kTileStride + 8 * n + fragment_column(j);
        if (first < shared.k_rows) {
          *reinterpret_cast<uint32_t*>(shared.state(0) + at) = high;
          *reinterpret_cast<uint32_t*>(shared.state(1) + at) = low;
        }
      }
    }
  }
}

// Computes p, and writes the matrix of the triangular system over the decays.
template <int kKeyParts>
KVC_DEVICE void multiply_tokens(ChunkThread& thread, int warp, const ChunkShared& shared,
                                bool has_delta) {
  const int32_t stride = shared.row_stride();
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    if (tile > warp) continue;  // These are later tokens.
    float by_q[2][4] = {}, by_k[2][4] = {};
    for (int32_t first = 0; first < shared.k_rows; first += 16) {
#pragma unroll
      for (int part = 0; part < kKeyParts; ++part) {
        uint32_t b[4];
        load_rows(b, shared.k(part), stride, 16 * tile, first);
#pragma unroll
        for (int other = 0; other + part < kKeyParts; ++other) {
          uint32_t q[4], k[4];
          load_rows(q, shared.q(other), stride, 16 * warp, first);
          for (int n = 0; n < 2; ++n) mma_16816<kBF16>(by_q[n], q, b[n], b[n + 2]);
          if (has_delta) {
            load_rows(k, shared.k(other), stride, 16 * warp, first);
            for (int n = 0; n < 2; ++n) mma_16816<kBF16>(by_k[n], k, b[n], b[n + 2]);
          }
        }
      }
    }
    for (int n = 0; n < 2; ++n) {
      for (int i = 0; i < 4; ++i) {
        const int32_t t = 16 * warp + fragment_row(i), s = 16 * tile + 8 * n + fragment_column(i);
        float& element = shared.square()[t * ChunkShared::kSquareStride + s];
        thread.p[tile][n][i] = element * by_q[n][i];
        element *= shared.beta()[t] * by_k[n][i];
      }
    }
  }
}

// out = S0^T q_t, decayed. The right side of the system replaces v.
template <int kKeyParts>
KVC_DEVICE void multiply_state(ChunkThread& thread, int warp, const ChunkShared& shared,
                               bool has_delta) {
  const int32_t stride = shared.row_stride();
  float by_k[ChunkThread::kTiles][4] = {};
  for (int n = 0; n < ChunkThread::kTiles; ++n)
    for (int i = 0; i < 4; ++i) thread.out[n][i] = 0;
  for (int32_t first = 0; first < shared.k_rows; first += 16) {
    uint32_t b[4];
#pragma unroll
    for (int key_part = 0; key_part < kKeyParts; ++key_part) {
      uint32_t q[4], k[4];
      load_rows(q, shared.q(key_part), stride, 16 * warp, first);
      load_rows(k, shared.k(key_part), stride, 16 * warp, first);
      for (int part = 0; part + key_part < 2; ++part) {
        for (int n = 0; n < ChunkThread::kTiles; n += 2) {
          load_columns(b, shared.state(part), ChunkShared::kTileStride, first, 8 * n);
          for (int half = 0; half < 2; ++half) {
            mma_16816<kBF16>(thread.out[n + half], q, b[2 * half], b[2 * half + 1]);
            if (has_delta) mma_16816<kBF16>(by_k[n + half], k, b[2 * half], b[2 * half + 1]);
          }
        }
      }
    }
  }
  for (int n = 0; n < ChunkThread::kTiles; ++n) {
    for (int i = 0; i < 4; ++i) {
      const int32_t t = 16 * warp + fragment_row(i), c = 8 * n + fragment_column(i);
      const float decayed = shared.from_start()[t];
      float& right = shared.right()[t * ChunkShared::kRightStride + c];
      right = shared.beta()[t] * (right - decayed * by_k[n][i]);
      thread.out[n][i] *= decayed;
    }
  }
}

// Solves for U in place of the right side, 16 tokens at a time. All warps subtract the terms of
// earlier tokens; one warp solves within the 16.
KVC_DEVICE void solve(int warp, const ChunkShared& shared) {
  constexpr int32_t kBlock = 16, kSquare = ChunkShared::kSquareStride,
                    kRight = ChunkShared::kRightStride;
  const int32_t column = lane_id();
  const float* matrix = shared.square();
  float* right = shared.right();
  for (int32_t first = 0; first < ChunkShared::kTokens; first += kBlock) {
    if (first > 0) {
      const int32_t row = first + 4 * warp;
      float sum[4];
      for (int i = 0; i < 4; ++i) sum[i] = right[(row + i) * kRight + column];
      for (int32_t s = 0; s < first; ++s) {
        const float u = right[s * kRight + column];
        for (int i = 0; i < 4; ++i) sum[i] -= matrix[(row + i) * kSquare + s] * u;
      }
      for (int i = 0; i < 4; ++i) right[(row + i) * kRight + column] = sum[i];
      sync_cta();
    }
    if (warp == 0) {
      float u[kBlock];
#pragma unroll
      for (int i = 0; i < kBlock; ++i) {
        u[i] = right[(first + i) * kRight + column];
#pragma unroll
        for (int j = 0; j < i; ++j) u[i] -= matrix[(first + i) * kSquare + first + j] * u[j];
        right[(first + i) * kRight + column] = u[i];
      }
    }
    sync_cta();
  }
}

// Stores U, and U decayed to the end of the chunk, in two parts each.
KVC_DEVICE void store_updates(const ChunkShared& shared) {
  for (auto i = static_cast<int32_t>(threadIdx.x); i < ChunkShared::kTokens * ChunkShared::kColumns;
       i += linear_config::kChunkThreads) {
    const int32_t t = i / ChunkShared::kColumns, c = i % ChunkShared::kColumns;
    const float u = shared.right()[t * ChunkShared::kRightStride + c];
    const int32_t at = t * ChunkShared::kTileStride + c;
    split(u, shared.update(0)[at], shared.update(1)[at]);
    split(u * shared.to_end()[t], shared.update(2)[at], shared.update(3)[at]);
  }
}

KVC_DEVICE void add_updates_to_outputs(ChunkThread& thread, int warp, const ChunkShared& shared) {
#pragma unroll
  for (int tile = 0; tile < 4; ++tile) {
    if (tile > warp) continue;
    uint32_t high[4], low[4];
    for (int i = 0; i < 4; ++i) {
      const float* pair = &thread.p[tile][i / 2][i % 2 * 2];
      split_pair(pair[0], pair[1], high[i], low[i]);
    }
    for (int n = 0; n < ChunkThread::kTiles; n += 2) {
      uint32_t b[4], b_low[4];
      load_columns(b, shared.update(0), ChunkShared::kTileStride, 16 * tile, 8 * n);
      load_columns(b_low, shared.update(1), ChunkShared::kTileStride, 16 * tile, 8 * n);
      for (int half = 0; half < 2; ++half) {
        mma_16816<kBF16>(thread.out[n + half], high, b[2 * half], b[2 * half + 1]);
        mma_16816<kBF16>(thread.out[n + half], low, b[2 * half], b[2 * half + 1]);
        mma_16816<kBF16>(thread.out[n + half], high, b_low[2 * half], b_low[2 * half + 1]);
      }
    }
  }
}

template <int kKeyParts>
KVC_DEVICE void advance_state(ChunkThread& thread, int warp, const ChunkShared& shared) {
  const float decay = shared.from_start()[ChunkShared::kTokens - 1];
#pragma unroll
  for (int i = 0; i < ChunkThread::kStateTiles; ++i) {
    const int32_t first = 16 * (warp + 4 * i);
    if (first >= shared.k_rows) continue;
    for (int n = 0; n < ChunkThread::kTiles; ++n)
      for (int j = 0; j < 4; ++j) thread.state[i][n][j] *= decay;
    for (int32_t s = 0; s < ChunkShared::kTokens; s += 16) {
#pragma unroll
      for (int key_part = 0; key_part < kKeyParts; ++key_part) {
        uint32_t a[4], b[4];
        load_transposed(a, shared.k(key_part), shared.row_stride(), s, first);
        for (int part = 2; part + key_part < 4; ++part) {
          for (int n = 0; n < ChunkThread::kTiles; n += 2) {
            load_columns(b, shared.update(part), ChunkShared::kTileStride, s, 8 * n);
            for (int half = 0; half < 2; ++half)
              mma_16816<kBF16>(thread.state[i][n + half], a, b[2 * half], b[2 * half + 1]);
          }
        }
      }
    }
  }
}

KVC_DEVICE void write_outputs(const ChunkThread& thread, int warp, const LinearHead& at,
                              int64_t token, int32_t num_tokens) {
  const kernels::LinearParams& params = at.params;
  // Outputs may need v once more. All loads are in flight together again.
  uint32_t v[ChunkThread::kTiles][4] = {};
  const auto place = [&](int n, int i, int32_t& t, int32_t& column) {
    t = 16 * warp + fragment_row(i);
    column = at.first_column + 8 * n + fragment_column(i);
    return t < num_tokens && column < params.v_dim;
  };
  int32_t t, column;
#pragma unroll
  for (int j = 0; j < 4 * ChunkThread::kTiles; ++j) {
    if (params.skip != nullptr && place(j / 4, j % 4, t, column))
      v[j / 4][j % 4] = load_bits(token_row(params.v, token + t, at.head), params.v.dtype, column);
  }
  const float skip = params.skip == nullptr ? 0 : params.skip[at.head];
#pragma unroll
  for (int j = 0; j < 4 * ChunkThread::kTiles; ++j) {
    if (!place(j / 4, j % 4, t, column)) continue;
    std::byte* row =
        params.out.base + (token + t) * params.out.token_stride + at.head * params.out.head_stride;
    store_value(
        row, params.out.dtype, column,
        params.scale * thread.out[j / 4][j % 4] + skip * value_of(v[j / 4][j % 4], params.v.dtype));
  }
}

// Calls visit(register element, its address in the state) for every existing element of the state.
template <typename Byte, typename Visit>
KVC_DEVICE void visit_state(const LinearHead& at, int warp, Byte* state, Visit&& visit) {
  const kernels::LinearParams& params = at.params;
#pragma unroll
  for (int i = 0; i < ChunkThread::kStateTiles; ++i) {
#pragma unroll
    for (int n = 0; n < ChunkThread::kTiles; ++n) {
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        const int32_t row = 16 * (warp + 4 * i) + fragment_row(j);
        const int32_t column = at.first_column + 8 * n + fragment_column(j);
        if (row < params.k_dim && column < params.v_dim)
          visit(i, n, j, state + at.head * params.state_head_stride + row * params.state_row_stride,
                column);
      }
    }
  }
}

}  // namespace kvc::cuda::linear_kernels
