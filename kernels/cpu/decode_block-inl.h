// One block of query rows against one head of one chunk of keys: the inner loops of decode
// attention (decode-inl.h).
//
// Scores of a block live in vectors of kLanes = kRows * kKeys lanes, lane = row * kKeys + key: what
// an add tree over kLanes dot products delivers. One maximum, one exp2 and one sum then serve all
// rows of the block at once. The order of a row's arithmetic is the same in every block shape, so
// its result has the same bits whatever other rows are in the block.
#pragma once

namespace kvc::kernels::cpu {
namespace {
namespace decode {

constexpr int kChunk = 16;
constexpr int kMaxBlockRows = kVectorRegisters >= 32 ? 8 : 4;

// One block of query rows against one head of one chunk.
struct BlockArgs {
  const float* q;  // [kRows][stride], in the order of load_pair_as.
  float* acc;      // [kRows][stride], in the order of load_pair_as.
  // [kRows * kChunk]: dot_block writes scores, the softmax replaces them by probabilities, which
  // the accumulation reads.
  Vec* scores;
  const std::byte* const* rows;  // [kChunk], at offset.
  const std::byte* const* next;  // [kChunk] to prefetch, at next_offset.
  int64_t offset, next_offset;
  int64_t stride;  // Floats per row of q or acc.
  int dim;
};

// Q and the accumulators are stored in the order in which load_pair_as returns elements: runs of
// 2 * kLanes. The elements behind the last whole run (of Q: the last whole step of dot_block) are
// in natural order.
constexpr int kPair = 2 * kLanes;
constexpr int line_elements(DType dtype) {
  return static_cast<int>(kCacheLine / dtype_bytes(dtype));
}
constexpr int dot_step(DType dtype) {
  return line_elements(dtype) > kPair ? line_elements(dtype) : kPair;
}

// scores[t] lane r*kKeys + j = dot(q row r, key t*kKeys + j).
template <DType kType, int kRows>
void dot_block(const BlockArgs& args) {
  constexpr int kKeys = kLanes / kRows;
  constexpr int kElement = static_cast<int>(dtype_bytes(kType));
  constexpr int kStep = dot_step(kType);
  constexpr int kStepLines = kStep / line_elements(kType);
  const int dim = args.dim;
  const int64_t stride = args.stride;
  for (int first = 0; first < kChunk; first += kKeys) {
    const std::byte* rows[kKeys];
    const std::byte* next[kKeys];
    KVC_UNROLL
    for (int j = 0; j < kKeys; ++j) {
      rows[j] = args.rows[first + j] + args.offset;
      next[j] = args.next[first + j] + args.next_offset;
    }
    Vec sums[kLanes];
    KVC_UNROLL
    for (int i = 0; i < kLanes; ++i) sums[i] = zero();
    const float* q = args.q;
    int64_t byte = 0;
    int d = 0;
    for (; d + kStep <= dim; d += kStep, byte += kStep * kElement) {
      KVC_UNROLL
      for (int j = 0; j < kKeys; ++j) {
        KVC_UNROLL
        for (int line = 0; line < kStepLines; ++line)
          prefetch_far(next[j] + byte + line * kCacheLine);
      }
      KVC_UNROLL
      for (int pair = 0; pair < kStep; pair += kPair, q += kPair) {
        // The smaller of the two sides stays in registers, the other passes by once.
        if constexpr (kKeys <= kRows) {
          Vec a[kKeys], b[kKeys];
          KVC_UNROLL
          for (int j = 0; j < kKeys; ++j)
            load_pair_as<kType>(rows[j] + byte + pair * kElement, a[j], b[j]);
          KVC_UNROLL
          for (int r = 0; r < kRows; ++r) {
            const Vec qa = load(q + r * stride), qb = load(q + r * stride + kLanes);
            KVC_UNROLL
            for (int j = 0; j < kKeys; ++j)
              sums[r * kKeys + j] = fma(qa, a[j], sums[r * kKeys + j]);
            KVC_UNROLL
            for (int j = 0; j < kKeys; ++j)
              sums[r * kKeys + j] = fma(qb, b[j], sums[r * kKeys + j]);
          }
        } else {
          Vec qa[kRows], qb[kRows];
          KVC_UNROLL
          for (int r = 0; r < kRows; ++r)
            qa[r] = load(q + r * stride), qb[r] = load(q + r * stride + kLanes);
          KVC_UNROLL
          for (int j = 0; j < kKeys; ++j) {
            Vec a, b;
            load_pair_as<kType>(rows[j] + byte + pair * kElement, a, b);
            KVC_UNROLL
            for (int r = 0; r < kRows; ++r)
              sums[r * kKeys + j] = fma(qb[r], b, fma(qa[r], a, sums[r * kKeys + j]));
          }
        }
      }
    }
    if (d < dim) {
      KVC_UNROLL
      for (int j = 0; j < kKeys; ++j) prefetch_far(next[j] + byte);
      for (; d < dim; d += kLanes, byte += kLanes * kElement, q += kLanes) {
        const int n = dim - d < kLanes ? dim - d : kLanes;
        KVC_UNROLL
        for (int j = 0; j < kKeys; ++j) {
          const Vec key =
              n == kLanes ? load_as<kType>(rows[j] + byte) : load_as_tail<kType>(rows[j] + byte, n);
          KVC_UNROLL
          for (int r = 0; r < kRows; ++r)
            sums[r * kKeys + j] = fma(load(q + r * stride), key, sums[r * kKeys + j]);
        }
      }
    }
    args.scores[first / kKeys] = sum_lanes(sums);
  }
}

// acc[r] = acc[r] * alpha[r] + sum over keys of p[r][key] * V[key], for kColumns vectors at d;
// `tail`: elements of a one-column pass that ends the row.
template <DType kType, int kRows, int kColumns, bool kFetches>
KVC_VEC_INLINE void accumulate_columns(const BlockArgs& args, const float* alpha, int d,
                                       int tail = kLanes) {
  constexpr int kKeys = kLanes / kRows;
  constexpr int kElement = static_cast<int>(dtype_bytes(kType));
  constexpr int64_t kPassBytes = kColumns * kLanes * kElement;
  const float* p = reinterpret_cast<const float*>(args.scores);
  float* acc = args.acc + d;
  const int64_t stride = args.stride;
  const int64_t offset = args.offset + d * kElement, next_offset = args.next_offset + d * kElement;
  Vec sums[kRows * kColumns];
  KVC_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const Vec scale = set1(alpha[r * kKeys]);
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c)
      sums[r * kColumns + c] = mul(load(acc + r * stride + c * kLanes), scale);
  }
  for (int first = 0; first < kChunk; first += kKeys, p += kLanes) {
    KVC_UNROLL
    for (int j = 0; j < kKeys; ++j) {
      const std::byte* row = args.rows[first + j] + offset;
      if constexpr (kFetches) {
        KVC_UNROLL
        for (int64_t byte = 0; byte < kPassBytes; byte += kCacheLine)
          prefetch_far(args.next[first + j] + next_offset + byte);
      }
      Vec value[kColumns];
      if constexpr (kColumns == 1) {
        value[0] = tail == kLanes ? load_as<kType>(row) : load_as_tail<kType>(row, tail);
      } else {
        KVC_UNROLL
        for (int c = 0; c < kColumns; c += 2)
          load_pair_as<kType>(row + c * kLanes * kElement, value[c], value[c + 1]);
      }
      KVC_UNROLL
      for (int r = 0; r < kRows; ++r) {
        const Vec weight = set1(p[r * kKeys + j]);
        KVC_UNROLL
        for (int c = 0; c < kColumns; ++c)
          sums[r * kColumns + c] = fma(weight, value[c], sums[r * kColumns + c]);
      }
    }
  }
  KVC_UNROLL
  for (int r = 0; r < kRows; ++r) {
    KVC_UNROLL
    for (int c = 0; c < kColumns; ++c) store(acc + r * stride + c * kLanes, sums[r * kColumns + c]);
  }
}

// As many columns as registers allow: rows x columns sums, columns values and a weight.
template <int kRows>
constexpr int accumulate_width() {
  if (kVectorRegisters >= 32) return kRows == 8 ? 2 : kRows == 1 ? 8 : 4;
  return kRows == 4 ? 2 : kRows == 2 ? 4 : 8;
}

// A pass that is narrower than a cache line prefetches when it starts one.
template <DType kType, int kRows, int kColumns>
KVC_VEC_INLINE void accumulate_pass(const BlockArgs& args, const float* alpha, int d,
                                    int tail = kLanes) {
  constexpr int kElement = static_cast<int>(dtype_bytes(kType));
  if (kColumns * kLanes * kElement >= kCacheLine || d * kElement % kCacheLine == 0) {
    accumulate_columns<kType, kRows, kColumns, true>(args, alpha, d, tail);
  } else {
    accumulate_columns<kType, kRows, kColumns, false>(args, alpha, d, tail);
  }
}

template <DType kType, int kRows>
void accumulate_block(const BlockArgs& args, const float* alpha) {
  constexpr int kColumns = accumulate_width<kRows>();
  int d = 0;
  for (; d + kColumns * kLanes <= args.dim; d += kColumns * kLanes) {
    accumulate_pass<kType, kRows, kColumns>(args, alpha, d);
  }
  if constexpr (kColumns > 2) {
    for (; d + kPair <= args.dim; d += kPair) accumulate_pass<kType, kRows, 2>(args, alpha, d);
  }
  for (; d < args.dim; d += kLanes) {
    accumulate_pass<kType, kRows, 1>(args, alpha, d, args.dim - d < kLanes ? args.dim - d : kLanes);
  }
}

// The same where some scores are -inf: the V of a masked key may be NaN, and NaN * 0 must not reach
// a sum.
template <DType kType, int kRows>
void accumulate_block_visible(const BlockArgs& args, const float* alpha) {
  constexpr int kKeys = kLanes / kRows;
  constexpr int kElement = static_cast<int>(dtype_bytes(kType));
  const float* p = reinterpret_cast<const float*>(args.scores);
  for (int r = 0; r < kRows; ++r) {
    const Vec scale = set1(alpha[r * kKeys]);
    float* acc = args.acc + r * args.stride;
    for (int d = 0; d < args.dim; d += kLanes) store(acc + d, mul(load(acc + d), scale));
  }
  for (int key = 0; key < kChunk; ++key) {
    const std::byte* row = args.rows[key] + args.offset;
    for (int r = 0; r < kRows; ++r) {
      const float weight = p[key / kKeys * kLanes + r * kKeys + key % kKeys];
      if (weight == 0.0f) continue;
      const Vec w = set1(weight);
      float* acc = args.acc + r * args.stride;
      int d = 0;
      for (; d + kPair <= args.dim; d += kPair) {
        Vec a, b;
        load_pair_as<kType>(row + d * kElement, a, b);
        store(acc + d, fma(w, a, load(acc + d))),
            store(acc + d + kLanes, fma(w, b, load(acc + d + kLanes)));
      }
      for (; d < args.dim; d += kLanes) {
        const int n = args.dim - d < kLanes ? args.dim - d : kLanes;
        const std::byte* from = row + d * kElement;
        const Vec value = n == kLanes ? load_as<kType>(from) : load_as_tail<kType>(from, n);
        store(acc + d, fma(w, value, load(acc + d)));
      }
    }
  }
}

// Natural order -> the order of load_pair_as, and back.
inline void split_pairs(float* row, int count) {
  for (int d = 0; d + kPair <= count; d += kPair) {
    Vec even, odd;
    deinterleave(load(row + d), load(row + d + kLanes), even, odd);
    store(row + d, even), store(row + d + kLanes, odd);
  }
}
inline void join_pairs(float* row, int count) {
  for (int d = 0; d + kPair <= count; d += kPair) {
    Vec first, second;
    interleave(load(row + d), load(row + d + kLanes), first, second);
    store(row + d, first), store(row + d + kLanes, second);
  }
}

// Both the same in all kKeys lanes of a row.
struct SoftmaxState {
  Vec m;  // The running maximum.
  Vec l;  // The running sum of 2^(s - m).
};

// Scores of `kStep` keys -> probabilities; returns the factors of the old accumulators.
template <int kRows, int kStep = kChunk>
inline Vec softmax_block(Vec* scores, SoftmaxState& state) {
  constexpr int kKeys = kLanes / kRows;
  constexpr int kVectors = kStep / kKeys;
  Vec largest = scores[0];
  KVC_UNROLL
  for (int t = 1; t < kVectors; ++t) largest = max(largest, scores[t]);
  const Vec m = max(state.m, segment_max<kKeys>(largest));
  const Vec reference = select(equal(m, set1(kMinusInfinity)), zero(), m);
  const Vec alpha = exp2(sub(state.m, reference));
  Vec sums[kVectors];
  KVC_UNROLL
  for (int t = 0; t < kVectors; ++t) sums[t] = scores[t] = exp2(sub(scores[t], reference));
  // One tree over the keys, the highest bit of the key first, whatever kRows is: the same bits for
  // a row in any block.
  KVC_UNROLL
  for (int half = kVectors / 2; half > 0; half /= 2) {
    KVC_UNROLL
    for (int t = 0; t < half; ++t) sums[t] = add(sums[t], sums[t + half]);
  }
  state.m = m;
  state.l = fma(state.l, alpha, segment_sum<kKeys>(sums[0]));
  return alpha;
}

// The scales of quantised rows, one per key of the chunk, times the scores of all rows of a block.
template <int kRows>
void scale_scores(Vec* scores, const float* scales /* [kChunk] */) {
  constexpr int kKeys = kLanes / kRows;
  KVC_UNROLL
  for (int t = 0; t < kChunk / kKeys; ++t)
    scores[t] = mul(scores[t], load_repeated<kKeys>(scales + t * kKeys));
}
// Times the probabilities: a key that weighs nothing may have a scale of NaN.
template <int kRows>
void scale_weights(Vec* weights, const float* scales /* [kChunk] */) {
  constexpr int kKeys = kLanes / kRows;
  KVC_UNROLL
  for (int t = 0; t < kChunk / kKeys; ++t) {
    const Vec scaled = mul(weights[t], load_repeated<kKeys>(scales + t * kKeys));
    weights[t] = select(equal(weights[t], zero()), zero(), scaled);
  }
}

using DotBlock = void (*)(const BlockArgs&);
using AccumulateBlock = void (*)(const BlockArgs&, const float* alpha);
using SoftmaxBlock = Vec (*)(Vec* scores, SoftmaxState& state);
using ScaleBlock = void (*)(Vec* scores, const float* scales);

struct BlockKernels {
  int rows;
  DotBlock dot;
  SoftmaxBlock softmax;
  AccumulateBlock accumulate, accumulate_visible;
  ScaleBlock scale_scores, scale_weights;
};

// Stored types, and those that stand for them here.
template <typename F>
inline void with_block_dtype(DType dtype, F&& f) {
  if (dtype == DType::kE4M3Low) return f(DTypeConstant<DType::kE4M3Low>{});
  with_stored_dtype(dtype, f);
}

// e4m3 rows that have scales are read as kE4M3Low: their elements fill the type's range, so that
// few are subnormal, and those are subnormal floats, with which processors are slow. q and the
// weights are multiplied by kLow, and so are scores and outputs.
constexpr float kLow = small_float_power(60);
inline DType block_dtype(const PagedRows& rows) {
  return rows.dtype == DType::kE4M3 && rows.scales.base != nullptr ? DType::kE4M3Low : rows.dtype;
}

template <int kRows>
inline BlockKernels block_kernels(DType k_type, DType v_type) {
  BlockKernels kernels{kRows,
                       nullptr,
                       softmax_block<kRows>,
                       nullptr,
                       nullptr,
                       scale_scores<kRows>,
                       scale_weights<kRows>};
  with_block_dtype(k_type,
                   [&](auto type) { kernels.dot = dot_block<decltype(type)::value, kRows>; });
  with_block_dtype(v_type, [&](auto type) {
    kernels.accumulate = accumulate_block<decltype(type)::value, kRows>;
    kernels.accumulate_visible = accumulate_block_visible<decltype(type)::value, kRows>;
  });
  return kernels;
}

inline int block_rows(int64_t rows) {
  const int widest = rows <= 1 ? 1 : rows <= 2 ? 2 : rows <= 4 ? 4 : 8;
  return widest < kMaxBlockRows ? widest : kMaxBlockRows;
}

inline BlockKernels choose_block_kernels(int64_t rows, DType k_type, DType v_type) {
  switch (block_rows(rows)) {
    case 1: return block_kernels<1>(k_type, v_type);
    case 2: return block_kernels<2>(k_type, v_type);
    case 4: return block_kernels<4>(k_type, v_type);
    default: return block_kernels<kMaxBlockRows>(k_type, v_type);
  }
}

}  // namespace decode
}  // namespace
}  // namespace kvc::kernels::cpu
