// Linear attention of many tokens, a chunk of n at a time as matrix products (Mamba-2's SSD,
// arXiv:2405.21060; the delta rule as a
// triangular system: arXiv:2406.06484, arXiv:2412.06464). With S the state before the chunk, G_i
// the product of the decays of tokens
// 0..i and D_ij that of j+1..i (scalars, or diagonal over the rows of S):
//   u_i = beta_i (v_i - S^T G_i k_i - sum_{j<i} (k_i . D_ij k_j) u_j)        delta rule; else u_i =
// beta_i v_i
//   o_i = S^T G_i q_i + sum_{j<=i} (q_i . D_ij k_j) u_j
//   S'  = G_last S + sum_j (D_last,j k_j) u_j^T
// Every factor is a product of decays, built by multiplying: nothing is divided, so nothing
// overflows and a decay of 0 is exact.
// A token's row reads earlier tokens only. Columns of S never meet, so a panel of columns is taken
// from S to S' before the next.
//
// The three products with S cost 3 k_dim v_dim multiply-adds per token, as token by token; pairs
// inside the chunk add about n/2 (k_dim + v_dim) each for u and o. What is won is that S is read
// and written once per chunk, from register tiles.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_tile-inl.h"

namespace kvc::kernels::cpu {
namespace {

// Tokens of a chunk: pairs cost more with each token, passes over S less. Decays per channel cost
// more per pair.
constexpr int kChunkTokens = 32;
constexpr int kChannelChunkTokens = 16;
static_assert(kChunkTokens % kLanes == 0 && kChannelChunkTokens % kLanes == 0);

// Float rows are padded with zeros to whole vectors: k_padded, v_padded.
struct ChunkScratch {
  int64_t k_padded, v_padded;
  // Of a q and k head.
  float* q;          // [kChunkTokens][k_padded]
  float* k;          // [kChunkTokens][k_padded]
  float* k_columns;  // [k_dim][kChunkTokens]
  float* q_dots;     // [kChunkTokens][kChunkTokens]  q_i . k_j.
  float* k_dots;     // [kChunkTokens][kChunkTokens]  k_i . k_j.
  // Of a head.
  float* decay;        // [kChunkTokens], per channel [kChunkTokens][k_padded].
  float* beta;         // [kChunkTokens]
  float* grown;        // [kChunkTokens]              G_i; 1 when it is in decayed_q and decayed_k.
  float* decayed_q;    // [kChunkTokens][k_padded]    G_i q_i, per channel only.
  float* decayed_k;    // [kChunkTokens][k_padded]    G_i k_i, per channel only.
  float* to_end;       // [kChunkTokens][k_padded]    D_last,j k_j.
  float* state_decay;  // [k_padded]                  G_last.
  // [kChunkTokens]: a row of D; per channel [k_dim][kChunkTokens]: D_ij k_j of the present i.
  float* products;
  float* outputs;      // [kChunkTokens][kChunkTokens]   q_i . D_ij k_j.
  float* corrections;  // [kChunkTokens][kChunkTokens]   -beta_i k_i . D_ij k_j.
  float* u;            // [kChunkTokens][v_padded]
};

inline ChunkScratch allocate_chunk(const LinearParams& params, ScratchCursor& cursor) {
  ChunkScratch s = {};
  s.k_padded = whole_vectors(params.k_dim);
  s.v_padded = whole_vectors(params.v_dim);
  const int64_t k_rows = kChunkTokens * s.k_padded, pairs = kChunkTokens * kChunkTokens;
  s.q = take_array<float>(cursor, k_rows);
  s.k = take_array<float>(cursor, k_rows);
  s.k_columns = take_array<float>(cursor, k_rows);
  s.q_dots = take_array<float>(cursor, pairs);
  s.k_dots = take_array<float>(cursor, pairs);
  s.decay = take_array<float>(cursor, k_rows);
  s.beta = take_array<float>(cursor, kChunkTokens);
  s.grown = take_array<float>(cursor, kChunkTokens);
  s.decayed_q = take_array<float>(cursor, k_rows);
  s.decayed_k = take_array<float>(cursor, k_rows);
  s.to_end = take_array<float>(cursor, k_rows);
  s.state_decay = take_array<float>(cursor, s.k_padded);
  s.products = take_array<float>(cursor, k_rows);
  s.outputs = take_array<float>(cursor, pairs);
  s.corrections = take_array<float>(cursor, pairs);
  s.u = take_array<float>(cursor, kChunkTokens * s.v_padded);
  return s;
}

// ------------------------------------------------------------------------------------------ of a q
// and k head

// k [tokens][k_padded] -> k_columns; tokens up to a whole vector are zero.
inline void transpose_keys(const ChunkScratch& s, int64_t k_dim, int64_t tokens) {
  for (int64_t i = 0; i < k_dim; i += kLanes) {
    const int64_t rows = lanes_from(i, k_dim);
    for (int64_t t = 0; t < tokens; t += kLanes) {
      Vec square[kLanes];
      KVC_UNROLL
      for (int lane = 0; lane < kLanes; ++lane)
        square[lane] = t + lane < tokens ? load(s.k + (t + lane) * s.k_padded + i) : zero();
      transpose(square);
      KVC_UNROLL
      for (int row = 0; row < kLanes; ++row) {
        if (row < rows) store(s.k_columns + (i + row) * kChunkTokens + t, square[row]);
      }
    }
  }
}

// dots[i][j] = rows_i . k_j for j <= i; more of a vector than that is garbage.
inline void dot_rows(const ChunkScratch& s, const float* rows, int64_t k_dim, int64_t tokens,
                     float* dots) {
  for (int64_t j = 0; j < tokens; j += kLanes) {
    for_row_tiles(j, tokens, [&]<int kRows>(int64_t i) {
      Vec acc[kRows][1];
      KVC_UNROLL
      for (int r = 0; r < kRows; ++r) acc[r][0] = zero();
      multiply_add<kRows, 1>(rows + i * s.k_padded, s.k_padded, 1, s.k_columns + j, kChunkTokens,
                             k_dim, acc);
      KVC_UNROLL
      for (int r = 0; r < kRows; ++r) store(dots + (i + r) * kChunkTokens + j, acc[r][0]);
    });
  }
}

inline void load_chunk_keys(const LinearParams& params, int64_t token, int64_t tokens,
                            int64_t k_head, const ChunkScratch& s) {
  for (int64_t t = 0; t < tokens; ++t) {
    widen_row(s.q + t * s.k_padded, row_of(params.q, token + t, k_head), params.q.dtype,
              params.k_dim);
    widen_row(s.k + t * s.k_padded, row_of(params.k, token + t, k_head), params.k.dtype,
              params.k_dim);
  }
  transpose_keys(s, params.k_dim, tokens);
  if (params.decay_per_channel != 0) return;
  dot_rows(s, s.q, params.k_dim, tokens, s.q_dots);
  if (params.delta != 0) dot_rows(s, s.k, params.k_dim, tokens, s.k_dots);
}

// ----------------------------------------------------------------------------------------- decays
// of one head

// One decay per token: D scales the dot products, which all heads of the group share.
inline void weigh_by_token(const LinearParams& params, int64_t token, int64_t tokens, int64_t h,
                           const ChunkScratch& s) {
  for (int64_t t = 0; t < kChunkTokens; ++t)
    s.decay[t] = t < tokens && params.decay != nullptr ? *decay_of(params, token + t, h) : 0.0f;
  for (int64_t t = 0; t < tokens; t += kLanes) store(s.decay + t, decay_factor(load(s.decay + t)));
  for (int64_t j = 0; j < kChunkTokens; j += kLanes) store(s.products + j, zero());
  float grown = 1.0f;
  for (int64_t i = 0; i < tokens; ++i) {
    grown *= s.decay[i];
    s.grown[i] = grown;
    const Vec decay = set1(s.decay[i]), weight = set1(-s.beta[i]);
    for (int64_t j = 0; j <= i; j += kLanes) {
      Vec products = mul(decay, load(s.products + j));
      if (i - j < kLanes)
        products =
            select(equal(lane_index(), set1(static_cast<float>(i - j))), set1(1.0f), products);
      store(s.products + j, products);
      const int64_t at = i * kChunkTokens + j;
      store(s.outputs + at, mul(products, load(s.q_dots + at)));
      if (params.delta != 0)
        store(s.corrections + at, mul(mul(weight, products), load(s.k_dots + at)));
    }
  }
  for (int64_t i = 0; i < s.k_padded; i += kLanes) store(s.state_decay + i, set1(grown));
  float left = 1.0f;
  for (int64_t t = tokens - 1; t >= 0; --t) {
    for (int64_t i = 0; i < s.k_padded; i += kLanes)
      store(s.to_end + t * s.k_padded + i, mul(set1(left), load(s.k + t * s.k_padded + i)));
    left *= s.decay[t];
  }
}

// A decay per channel stands inside the dot products: tokens j in lanes, D_ij k_j of every channel
// is multiplied on from i to i + 1.
inline void weigh_pairs_by_channel(const LinearParams& params, int64_t i, const ChunkScratch& s) {
  constexpr int kChains = 2;  // Independent chains of additions: neither waits for the other.
  for (int64_t j = 0; j <= i; j += kLanes) {
    const bool has_own = i - j < kLanes;
    const bool first = i == j;  // Nothing of this vector's tokens yet.
    const Mask own = equal(lane_index(), set1(static_cast<float>(i - j)));
    const float* decay = s.decay + i * s.k_padded;
    const float* q = s.q + i * s.k_padded;
    const float* k = s.k + i * s.k_padded;
    Vec output[kChains], correction[kChains];
    KVC_UNROLL
    for (int chain = 0; chain < kChains; ++chain) output[chain] = correction[chain] = zero();
    for (int64_t c = 0; c < s.k_padded; c += kChains) {  // Rows behind k_dim: q and k are 0 there.
      KVC_UNROLL
      for (int chain = 0; chain < kChains; ++chain) {
        float* at = s.products + (c + chain) * kChunkTokens + j;
        Vec products = first ? zero() : mul(set1(decay[c + chain]), load(at));
        if (has_own) products = select(own, set1(k[c + chain]), products);
        store(at, products);
        output[chain] = fma(set1(q[c + chain]), products, output[chain]);
        if (params.delta != 0)
          correction[chain] = fma(set1(k[c + chain]), products, correction[chain]);
      }
    }
    const int64_t at = i * kChunkTokens + j;
    store(s.outputs + at, add(output[0], output[1]));
    if (params.delta != 0)
      store(s.corrections + at, mul(set1(-s.beta[i]), add(correction[0], correction[1])));
  }
}

inline void weigh_by_channel(const LinearParams& params, int64_t token, int64_t tokens, int64_t h,
                             const ChunkScratch& s) {
  for (int64_t i = 0; i < s.k_padded; i += kLanes) store(s.state_decay + i, set1(1.0f));
  for (int64_t t = 0; t < tokens; ++t) {
    const int64_t row = t * s.k_padded;
    const float* decay = decay_of(params, token + t, h);
    for (int64_t i = 0; i < params.k_dim; i += kLanes) {
      const Vec factor = decay_factor(load_tail(decay + i, lanes_from(i, params.k_dim)));
      const Vec grown = mul(factor, load(s.state_decay + i));
      store(s.decay + row + i, factor);
      store(s.state_decay + i, grown);
      store(s.decayed_q + row + i, mul(grown, load(s.q + row + i)));
      store(s.decayed_k + row + i, mul(grown, load(s.k + row + i)));
    }
    s.grown[t] = 1.0f;
    weigh_pairs_by_channel(params, t, s);
  }
  for (int64_t i = 0; i < s.k_padded; i += kLanes) {
    Vec left = set1(1.0f);
    for (int64_t t = tokens - 1; t >= 0; --t) {
      store(s.to_end + t * s.k_padded + i, mul(left, load(s.k + t * s.k_padded + i)));
      left = mul(left, load(s.decay + t * s.k_padded + i));
    }
  }
}

// ------------------------------------------------------------------------------------------ the
// next chunk's rows

// A token's row often lies on a page of its own, which the processor's own prefetchers do not cross
// into. So the rows of the next chunk are asked for a few lines at a time between the tiles of this
// one.
struct RowFetch {
  const std::byte* row;
  int64_t stride, row_bytes, rows_left, at;
};

struct ChunkFetch {
  RowFetch parts[4];
  int32_t num_parts, part;
};

inline void add_fetch(ChunkFetch& fetch, const TokenRows& rows, int64_t token, int64_t tokens,
                      int64_t head, int64_t dim) {
  if (tokens <= 0) return;
  fetch.parts[fetch.num_parts++] = {row_of(rows, token, head), rows.token_stride,
                                    dim * dtype_bytes(rows.dtype), tokens, 0};
}

inline void fetch_some(ChunkFetch& fetch) {
  constexpr int kLines = 12;
  for (int line = 0; line < kLines && fetch.part < fetch.num_parts; ++line) {
    RowFetch& part = fetch.parts[fetch.part];
    prefetch_far(part.row + part.at);
    part.at += kCacheLine;
    if (part.at < part.row_bytes) continue;
    part.row += part.stride, part.at = 0;
    if (--part.rows_left == 0) ++fetch.part;
  }
}

// --------------------------------------------------------------------------------------- a panel
// of columns

struct ChunkHead {
  const LinearParams* params;
  const ChunkScratch* s;
  ChunkFetch* fetch;
  int64_t token, tokens, head;
  const float* q;  // [tokens][k_padded], to be multiplied by S and s->grown.
  const float* k;
  const float* state_in;
  float* state_out;
  int64_t state_in_row, state_out_row;  // In floats.
};

// Computes u of the delta rule in s.u, which holds v before, token by token: first subtracts the
// prediction of the state S, then the changes that earlier tokens of the chunk made to it.
template <int kRows, int kColumns>
inline void solve_tile(const ChunkHead& head, int64_t column, int64_t row) {
  const ChunkScratch& s = *head.s;
  float* u = s.u + row * s.v_padded + column;
  Vec acc[kRows][kColumns];
  KVC_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c) acc[r][c] = zero();
  }
  multiply_add<kRows, kColumns>(head.k + row * s.k_padded, s.k_padded, 1, head.state_in + column,
                                head.state_in_row, head.params->k_dim, acc);
  KVC_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const Vec grown = set1(s.grown[row + r]), beta = set1(s.beta[row + r]);
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c)
      acc[r][c] = mul(beta, fnma(grown, acc[r][c], load(u + r * s.v_padded + c * kLanes)));
  }
  const float* weights = s.corrections + row * kChunkTokens;
  multiply_add<kRows, kColumns>(weights, kChunkTokens, 1, s.u + column, s.v_padded, row, acc);
  KVC_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVC_UNROLL
    for (int earlier = 0; earlier < r; ++earlier) {
      const Vec weight = set1(weights[r * kChunkTokens + row + earlier]);
      KVC_UNROLL
      for (int c = 0; c < kColumns; ++c) acc[r][c] = fma(weight, acc[earlier][c], acc[r][c]);
    }
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c) store(u + r * s.v_padded + c * kLanes, acc[r][c]);
  }
}

template <int kRows, int kColumns>
inline void output_tile(const ChunkHead& head, int64_t column, int64_t row) {
  const LinearParams& params = *head.params;
  const ChunkScratch& s = *head.s;
  Vec acc[kRows][kColumns];
  KVC_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c) acc[r][c] = zero();
  }
  multiply_add<kRows, kColumns>(head.q + row * s.k_padded, s.k_padded, 1, head.state_in + column,
                                head.state_in_row, params.k_dim, acc);
  KVC_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const Vec grown = set1(s.grown[row + r]);
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c) acc[r][c] = mul(grown, acc[r][c]);
  }
  const float* weights = s.outputs + row * kChunkTokens;
  multiply_add<kRows, kColumns>(weights, kChunkTokens, 1, s.u + column, s.v_padded, row, acc);
  KVC_UNROLL
  for (int earlier = 0; earlier < kRows; ++earlier) {
    Vec u[kColumns];
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c)
      u[c] = load(s.u + (row + earlier) * s.v_padded + column + c * kLanes);
    KVC_UNROLL
    for (int r = earlier; r < kRows; ++r) {
      const Vec weight = set1(weights[r * kChunkTokens + row + earlier]);
      KVC_UNROLL
      for (int c = 0; c < kColumns; ++c) acc[r][c] = fma(weight, u[c], acc[r][c]);
    }
  }
  const Vec scale = set1(params.scale);
  const Vec skip = set1(params.skip == nullptr ? 0.0f : params.skip[head.head]);
  const int64_t out_bytes = dtype_bytes(params.out.dtype), v_bytes = dtype_bytes(params.v.dtype);
  for (int r = 0; r < kRows; ++r) {
    const int64_t token = head.token + row + r;
    std::byte* out =
        params.out.base + token * params.out.token_stride + head.head * params.out.head_stride;
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c) {
      const int64_t at = column + c * kLanes;
      const int lanes = lanes_from(at, params.v_dim);
      Vec result = mul(scale, acc[r][c]);
      if (params.skip != nullptr) {
        const std::byte* v = row_of(params.v, token, head.head) + at * v_bytes;
        result = fma(skip, load_any(v, params.v.dtype, lanes), result);
      }
      store_any(out + at * out_bytes, params.out.dtype, result, lanes);
    }
  }
}

template <int kRows, int kColumns>
inline void state_tile(const ChunkHead& head, int64_t column, int64_t row) {
  const ChunkScratch& s = *head.s;
  const float* from = head.state_in + row * head.state_in_row + column;
  float* to = head.state_out + row * head.state_out_row + column;
  Vec acc[kRows][kColumns];
  KVC_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const Vec decay = set1(s.state_decay[row + r]);
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c)
      acc[r][c] = mul(decay, load(from + r * head.state_in_row + c * kLanes));
  }
  multiply_add<kRows, kColumns>(s.to_end + row, 1, s.k_padded, s.u + column, s.v_padded,
                                head.tokens, acc);
  KVC_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c) store(to + r * head.state_out_row + c * kLanes, acc[r][c]);
  }
}

template <int kColumns>
inline void chunk_panel(const ChunkHead& head, int64_t column) {
  if (head.params->delta != 0) {
    for_row_tiles(0, head.tokens, [&]<int kRows>(int64_t row) {
      fetch_some(*head.fetch);
      solve_tile<kRows, kColumns>(head, column, row);
    });
  }
  for_row_tiles(0, head.tokens, [&]<int kRows>(int64_t row) {
    fetch_some(*head.fetch);
    output_tile<kRows, kColumns>(head, column, row);
  });
  for_row_tiles(0, head.params->k_dim, [&]<int kRows>(int64_t row) {
    fetch_some(*head.fetch);
    state_tile<kRows, kColumns>(head, column, row);
  });
}

// One chunk of one head, whose q and k head has been loaded. The state rows are v_padded floats at
// least.
inline void linear_chunk(const ChunkHead& where) {
  ChunkHead head = where;
  const LinearParams& params = *head.params;
  const ChunkScratch& s = *head.s;
  for (int64_t t = 0; t < head.tokens; ++t) s.beta[t] = beta_of(params, head.token + t, head.head);
  if (params.decay_per_channel != 0) {
    weigh_by_channel(params, head.token, head.tokens, head.head, s);
  } else {
    weigh_by_token(params, head.token, head.tokens, head.head, s);
  }
  head.q = params.decay_per_channel != 0 ? s.decayed_q : s.q;
  head.k = params.decay_per_channel != 0 ? s.decayed_k : s.k;
  for (int64_t t = 0; t < head.tokens; ++t) {
    float* u = s.u + t * s.v_padded;
    widen_row(u, row_of(params.v, head.token + t, head.head), params.v.dtype, params.v_dim);
    if (params.delta != 0) continue;
    for (int64_t c = 0; c < s.v_padded; c += kLanes)
      store(u + c, mul(set1(s.beta[t]), load(u + c)));
  }
  int64_t column = 0;
  for (; column + kLinearColumns * kLanes <= s.v_padded; column += kLinearColumns * kLanes)
    chunk_panel<kLinearColumns>(head, column);
  if constexpr (kLinearColumns > 2) {
    for (; column + 2 * kLanes <= s.v_padded; column += 2 * kLanes) chunk_panel<2>(head, column);
  }
  for (; column < s.v_padded; column += kLanes) chunk_panel<1>(head, column);
}

}  // namespace
}  // namespace kvc::kernels::cpu
