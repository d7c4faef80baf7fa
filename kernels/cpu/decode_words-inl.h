// Attention for few rows over K and V of 8 bits, both of one type, without going through float32:
// elements become words, and products are summed by instructions that take pairs of words.
//
// The walk is that of decode-inl.h in steps of 32 keys at absolute multiples of 32, and rows are
// fetched two heads ahead: those of one head are half as many bytes as there. Per step and head, a
// block of query rows
//   1. multiplies q as words with the K rows; the sums, times the scale of each row and the factor
//      of q, are the scores;
//   2. makes probabilities of them, as decode-inl.h does;
//   3. multiplies the probabilities by the scales of V, and rounds them to words relative to the
//      largest of the row and step;
//   4. multiplies them with V, pairs of keys at once, and adds the sums to the accumulators.
// Step 4 comes after the next head's step 1, whose dot products run meanwhile.
//
// A row's result depends on its query, its visible keys and the item's key range only, as there. A
// masked key has the word 0 for a weight, and words of V are always finite.
//
// `Math` is the arithmetic, one of decode_words_<isa>-inl.h:
//   Words                  a register of kWords words, or of kUnit bytes
//   Sum                    kLanes sums of products
//   load_key               kUnit elements of a K row as words, in the order of place_query
//   place_query            kUnit words of a query in that order
//   pair_values<part>      words (a, b) of element 4l + part + i of two V rows in dword l of x[i]
//   word_factor(largest)   by which values up to `largest` are multiplied to become words
//   product_factor(largest)  by which their products with elements are multiplied in turn
//   kValueParts            how many of the four elements 4l + i are worked on together
#pragma once

#include "kernels/cpu/decode_block-inl.h"
#include "kernels/cpu/decode_scores-inl.h"
#include "kernels/cpu/epilogue-inl.h"
#include "kernels/cpu/rows-inl.h"

namespace kvc::kernels::cpu {
namespace {
namespace words {

using decode::kChunk;
using decode::SoftmaxState;

constexpr int kStepKeys = 32;
constexpr int kHalves = kStepKeys / kChunk;
constexpr int kMaxRows = 4;
// Elements of a row that are worked on together: bytes of a register.
constexpr int kUnit = 4 * kLanes;
constexpr int kWords = 2 * kLanes;  // Per register.

// int8: a register's words are filled by the largest of a query row, or of a row's weights in a
// step. q then has 16 bits and P has 15, so that nothing of them shows beside the rounding of the
// rows; sums of products are exact, and the same on every instruction set. 0 gets 0.
struct IntegerFactors {
  static constexpr DType kType = DType::kInt8;
  static constexpr bool kLosesSmall = false;
  static constexpr float kLargestWord = 32767.0f;
  KVC_VEC_INLINE static void place_query(const uint16_t* natural, uint16_t* to) {
    __builtin_memcpy(to, natural, kUnit * sizeof *to);
  }
  KVC_VEC_INLINE static Vec word_factor(Vec largest) {
    return select(less(zero(), largest), div(set1(kLargestWord), largest), zero());
  }
  KVC_VEC_INLINE static Vec product_factor(Vec largest) {
    return mul(largest, set1(1.0f / kLargestWord));
  }
};

constexpr int64_t units_of(int64_t dim) { return (dim + kUnit - 1) / kUnit; }

// Whether attention over such rows runs here. K that is rotated while it is read does not.
template <typename Math>
inline bool serves(const AttnParams& params) {
  const bool scales = params.k.scales.base != nullptr && params.v.scales.base != nullptr;
  return params.k.dtype == Math::kType && params.v.dtype == Math::kType && params.k_dim <= 512 &&
         (scales || !Math::kLosesSmall) && params.k_rotations[0].rotary_dim == 0 &&
         params.k_rotations[1].rotary_dim == 0;
}

// Rows of a step's keys, of head 0; of keys that are masked in every row of the item, zeros.
struct StepRows {
  const std::byte* k[kStepKeys];
  const std::byte* v[kStepKeys];
  // Their scales, where rows have some of their own. Set for keys that are present.
  const std::byte* k_scales[kStepKeys];
  const std::byte* v_scales[kStepKeys];
  uint32_t present;             // Bit per key: not a row of zeros.
  bool scales_follow[kHalves];  // The scales of these keys lie one behind the other.
};

struct ScratchLayout {
  int64_t rows, blocks;                                // Per kv head: query rows, blocks of rows.
  int64_t q_words, acc_floats;                         // Per block.
  int64_t q, factors, acc, states, row, zeros, bytes;  // Byte offsets, total.
};

inline int block_rows(int64_t rows) { return rows <= 1 ? 1 : rows <= 2 ? 2 : kMaxRows; }

inline ScratchLayout scratch_layout(const AttnParams& params, int64_t token_rows,
                                    int64_t kv_heads) {
  ScratchLayout layout;
  layout.rows = token_rows * (params.num_q_heads / params.num_kv_heads);
  const int64_t per_block = block_rows(layout.rows);
  layout.blocks = (layout.rows + per_block - 1) / per_block;
  layout.q_words = units_of(params.k_dim) * kUnit * per_block;
  layout.acc_floats = units_of(params.v_dim) * kUnit * per_block;
  const int64_t blocks = kv_heads * layout.blocks;
  const int64_t longest = params.k_dim > params.v_dim ? params.k_dim : params.v_dim;
  layout.q = 0;
  layout.factors = layout.q + blocks * layout.q_words * 2;
  layout.acc = layout.factors + blocks * kLanes * 4;
  layout.states = layout.acc + blocks * layout.acc_floats * 4;
  layout.row = layout.states + blocks * static_cast<int64_t>(sizeof(SoftmaxState));
  layout.zeros = layout.row + units_of(longest) * kUnit * 4;
  layout.bytes = layout.zeros + units_of(longest) * kUnit;
  return layout;
}

// What one step of a block reads ahead, a key at a time.
struct AheadRows {
  const std::byte* const* rows;  // [kStepKeys], at offset.
  int64_t offset;
  const std::byte* at(int key) const { return rows[key] + offset; }
};

// Adds the products of kUnit elements of every q row with those of kKeys keys, `left` of a row that
// ends earlier.
template <typename Math, int kRows, bool kWhole>
KVC_VEC_INLINE void dot_unit(const uint16_t* words, const std::byte* const* key, int d, int left,
                             typename Math::Sum* sums) {
  constexpr int kKeys = kLanes / kRows;
  // As many q rows at a time as leave registers for the sums.
  typename Math::Words query[2 * kRows];
  KVC_UNROLL
  for (int i = 0; i < 2 * kRows; ++i) query[i] = Math::load_words(words + i * kWords);
  KVC_UNROLL
  for (int j = 0; j < kKeys; ++j) {
    typename Math::Words front, behind;
    if constexpr (kWhole) {
      Math::load_key(key[j] + d, front, behind);
    } else {
      Math::load_key_tail(key[j] + d, left, front, behind);
    }
    KVC_UNROLL
    for (int r = 0; r < kRows; ++r) {
      sums[r * kKeys + j] = Math::add_products(sums[r * kKeys + j], query[2 * r], front);
      sums[r * kKeys + j] = Math::add_products(sums[r * kKeys + j], query[2 * r + 1], behind);
    }
  }
}

// scores[t] lane r * kKeys + j = factors * sum over words of q row r times key t * kKeys + j. A
// function of its own, and accumulate_step too: inlined, their sums share the registers with the
// constants of the softmax and are spilled.
template <typename Math, int kRows>
[[gnu::noinline]] void dot_step(const uint16_t* q, const float* factors,
                                const std::byte* const* rows, int64_t offset,
                                const AheadRows& ahead, int dim, Vec* scores) {
  constexpr int kKeys = kLanes / kRows;
  for (int first = 0; first < kStepKeys; first += kKeys) {
    const std::byte *key[kKeys], *next[kKeys];
    KVC_UNROLL
    for (int j = 0; j < kKeys; ++j) {
      key[j] = rows[first + j] + offset;
      next[j] = ahead.at(first + j);
    }
    typename Math::Sum sums[kLanes];
    KVC_UNROLL
    for (int i = 0; i < kLanes; ++i) sums[i] = Math::no_sum();
    const uint16_t* words = q;
    int d = 0;
    for (; d + kUnit <= dim; d += kUnit, words += kUnit * kRows) {
      KVC_UNROLL
      for (int j = 0; j < kKeys; ++j) prefetch_far(next[j] + d);
      dot_unit<Math, kRows, true>(words, key, d, kUnit, sums);
    }
    if (d < dim) {
      KVC_UNROLL
      for (int j = 0; j < kKeys; ++j) prefetch_far(next[j] + d);
      dot_unit<Math, kRows, false>(words, key, d, dim - d, sums);
    }
    scores[first / kKeys] = mul(Math::sum_all(sums), load(factors));
  }
}

// Probabilities on their way to V.
struct Weights {
  // Words of vector t, row r from (t * kRows + r) * kKeys on.
  alignas(64) uint16_t words[kStepKeys * kMaxRows];
  alignas(64) float alpha[kLanes];    // Factors of the accumulators, lane r * kKeys.
  alignas(64) float product[kLanes];  // Factors of the sums of products.
};

// acc = acc * alpha + product * (P V), one unit of elements.
template <typename Math, int kRows, bool kWhole, int kPart>
KVC_VEC_INLINE void accumulate_part(const Weights& weights, const std::byte* const* rows,
                                    int64_t offset, const AheadRows& ahead, int d, int left,
                                    float* acc) {
  constexpr int kKeys = kLanes / kRows, kParts = Math::kValueParts;
  typename Math::Sum sums[kRows * kParts];
  KVC_UNROLL
  for (int i = 0; i < kRows * kParts; ++i) sums[i] = Math::no_sum();
  for (int key = 0; key < kStepKeys; key += 2) {
    if constexpr (kPart == 0) {
      prefetch_far(ahead.at(key) + d);
      prefetch_far(ahead.at(key + 1) + d);
    }
    const std::byte* even = rows[key] + offset + d;
    const std::byte* odd = rows[key + 1] + offset + d;
    typename Math::Words x[kParts];
    if constexpr (kWhole) {
      Math::template pair_values<kPart>(Math::load_bytes(even), Math::load_bytes(odd), x);
    } else {
      Math::template pair_values<kPart>(Math::load_bytes_tail(even, left),
                                        Math::load_bytes_tail(odd, left), x);
    }
    const uint16_t* pair = weights.words + key / kKeys * kLanes + key % kKeys;
    KVC_UNROLL
    for (int r = 0; r < kRows; ++r) {
      const typename Math::Words weight = Math::broadcast_pair(pair + r * kKeys);
      KVC_UNROLL
      for (int i = 0; i < kParts; ++i)
        sums[r * kParts + i] = Math::add_products(sums[r * kParts + i], x[i], weight);
    }
  }
  KVC_UNROLL
  for (int r = 0; r < kRows; ++r) {
    const Vec alpha = set1(weights.alpha[r * kKeys]), product = set1(weights.product[r * kKeys]);
    KVC_UNROLL
    for (int i = 0; i < kParts; ++i) {
      float* at = acc + r * kUnit + (kPart + i) * kLanes;
      store(at, fma(Math::to_float(sums[r * kParts + i]), product, mul(load(at), alpha)));
    }
  }
}

template <typename Math, int kRows, bool kWhole>
inline void accumulate_unit(const Weights& weights, const std::byte* const* rows, int64_t offset,
                            const AheadRows& ahead, int d, int left, float* acc) {
  accumulate_part<Math, kRows, kWhole, 0>(weights, rows, offset, ahead, d, left, acc);
  if constexpr (Math::kValueParts <= 2)
    accumulate_part<Math, kRows, kWhole, 2>(weights, rows, offset, ahead, d, left, acc);
  if constexpr (Math::kValueParts == 1) {
    accumulate_part<Math, kRows, kWhole, 1>(weights, rows, offset, ahead, d, left, acc);
    accumulate_part<Math, kRows, kWhole, 3>(weights, rows, offset, ahead, d, left, acc);
  }
}

template <typename Math, int kRows>
[[gnu::noinline]] void accumulate_step(const Weights& weights, const std::byte* const* rows,
                                       int64_t offset, const AheadRows& ahead, int dim,
                                       float* acc) {
  int d = 0;
  for (; d + kUnit <= dim; d += kUnit, acc += kUnit * kRows)
    accumulate_unit<Math, kRows, true>(weights, rows, offset, ahead, d, kUnit, acc);
  if (d < dim) accumulate_unit<Math, kRows, false>(weights, rows, offset, ahead, d, dim - d, acc);
}

// Scores of a step to words of weights; `v_scales` [kStepKeys].
template <typename Math, int kRows>
inline void weigh_step(Vec* scores, SoftmaxState& state, const float* const* v_scales,
                       Weights& weights) {
  constexpr int kKeys = kLanes / kRows, kVectors = kStepKeys / kKeys;
  store(weights.alpha, softmax_block<kRows, kStepKeys>(scores, state));
  // A key that weighs nothing may have a scale of NaN. That of another one is not lost: NaN - NaN.
  Vec top = zero(), poison = zero();
  KVC_UNROLL
  for (int t = 0; t < kVectors; ++t) {
    const int key = t * kKeys;
    const Vec scale = load_repeated<kKeys>(v_scales[key / kChunk] + key % kChunk);
    const Vec scaled = mul(scores[t], scale);
    scores[t] = select(equal(scores[t], zero()), zero(), scaled);
    top = max(scores[t], top);
    poison = add(poison, sub(scores[t], scores[t]));
  }
  top = add(segment_max<kKeys>(top), segment_sum<kKeys>(poison));
  store(weights.product, Math::product_factor(top));
  const Vec factor = Math::word_factor(top);
  KVC_UNROLL
  for (int t = 0; t < kVectors; ++t)
    Math::store_words(weights.words + t * kLanes, mul(scores[t], factor));
}

template <typename Math>
class WordLoop {
 public:
  WordLoop(const AttnParams& params, const AttnItem& item, void* scratch)
      : params_(params),
        item_(item),
        sequence_(params.sequences[item.sequence]),
        visible_(visible_keys(params, item, item.row_begin, item.row_end)),
        group_(params.num_q_heads / params.num_kv_heads),
        layout_(
            scratch_layout(params, item.row_end - item.row_begin, item.head_end - item.head_begin)),
        q_(at<uint16_t>(scratch, layout_.q)),
        factors_(at<float>(scratch, layout_.factors)),
        acc_(at<float>(scratch, layout_.acc)),
        states_(at<SoftmaxState>(scratch, layout_.states)),
        row_(at<float>(scratch, layout_.row)),
        zeros_(at<std::byte>(scratch, layout_.zeros)) {}

  void run() {
    switch (block_rows(layout_.rows)) {
      case 1: return walk<1>();
      case 2: return walk<2>();
      default: return walk<4>();
    }
  }

 private:
  template <typename T>
  static T* at(void* scratch, int64_t offset) {
    return reinterpret_cast<T*>(static_cast<std::byte*>(scratch) + offset);
  }

  // What is left to do of a step and head after its softmax. Of a step that is not whole, the rows
  // with the zeros in place, which no head offset may move.
  struct Pending {
    Weights weights;
    const std::byte* cut_k[kStepKeys];
    const std::byte* cut_v[kStepKeys];
    const std::byte* const* v;
    int64_t v_offset;
    AheadRows ahead;
    float* acc;
  };

  template <int kRows>
  void walk() {
    prepare(kRows);
    // The step before (its last head is still to be accumulated), this one, the next one.
    StepRows rows[3];
    int64_t key = visible_.first_block(kStepKeys);
    if (key < visible_.end()) locate(key, rows[0]);
    for (int current = 0; key < visible_.end();) {
      const int following = current == 2 ? 0 : current + 1;
      const int64_t next_key = visible_.next_block(key, kStepKeys);
      const bool has_next = next_key < visible_.end();
      if (has_next) locate(next_key, rows[following]);
      walk_heads<kRows>(key, rows[current], rows[has_next ? following : current]);
      current = following;
      key = next_key;
    }
    if (pending_ != nullptr) accumulate<kRows>(*pending_);
    finish(kRows);
  }

  // Addresses of a step's rows: the only place where the page table is read.
  void locate(int64_t step_key, StepRows& rows) const {
    const auto wanted = static_cast<uint32_t>(visible_.bits(step_key, kStepKeys));
    int64_t page_index = step_key / params_.page_size, offset = step_key % params_.page_size;
    const std::byte *k = nullptr, *v = nullptr, *k_scale = nullptr, *v_scale = nullptr;
    bool located = false, kept = false;
    rows.present = 0;
    for (int key = 0; key < kStepKeys; ++key) {
      rows.k[key] = rows.v[key] = zeros_;
      if ((wanted >> key & 1) != 0) {
        if (!located) {
          const int64_t page = sequence_.page(page_index);
          kept = page >= 0;
          k = row_address(params_.k, page, 0, offset), v = row_address(params_.v, page, 0, offset);
          k_scale = scale_address(params_.k, page, 0, offset);
          v_scale = scale_address(params_.v, page, 0, offset);
          located = true;
        }
        if (kept) {
          rows.k[key] = k, rows.v[key] = v, rows.present |= uint32_t{1} << key;
          rows.k_scales[key] = k_scale, rows.v_scales[key] = v_scale;
        }
        k += params_.k.token_stride, v += params_.v.token_stride;
        k_scale += params_.k.scales.token_stride, v_scale += params_.v.scales.token_stride;
      } else {
        located = false;
      }
      if (++offset == params_.page_size) ++page_index, offset = 0, located = false;
    }
    constexpr uint32_t kWholeHalf = (uint32_t{1} << kChunk) - 1;
    constexpr int64_t kBehind = (kChunk - 1) * static_cast<int64_t>(sizeof(float));
    for (int half = 0; half < kHalves; ++half) {
      const int first = half * kChunk, last = first + kChunk - 1;
      rows.scales_follow[half] = params_.k.scales.base != nullptr &&
                                 params_.v.scales.base != nullptr &&
                                 (rows.present >> first & kWholeHalf) == kWholeHalf &&
                                 rows.k_scales[last] - rows.k_scales[first] == kBehind &&
                                 rows.v_scales[last] - rows.v_scales[first] == kBehind;
    }
  }

  // Where the scales of one head's rows are: in the page where they follow each other, else
  // gathered into `to`, 0 for keys that are not present.
  static void find_scales(const RowScales& scales, const std::byte* const* addresses,
                          const StepRows& rows, int64_t head, float* to /* [kStepKeys] */,
                          const float** found /* [kHalves] */) {
    for (int half = 0; half < kHalves; ++half) {
      const int first = half * kChunk;
      found[half] = to + first;
      if (rows.scales_follow[half]) {
        found[half] = reinterpret_cast<const float*>(addresses[first] + head * scales.head_stride);
        continue;
      }
      for (int key = first; key < first + kChunk; ++key) {
        to[key] = 0.0f;
        if ((rows.present >> key & 1) == 0) continue;
        to[key] = scales.shared;
        if (scales.base != nullptr)
          __builtin_memcpy(to + key, addresses[key] + head * scales.head_stride, sizeof(float));
      }
    }
  }

  void prefetch_scales(const StepRows& next, int64_t head) const {
    for (int half = 0; half < kHalves; ++half) {
      if (!next.scales_follow[half]) continue;
      prefetch_far(next.k_scales[half * kChunk] + head * params_.k.scales.head_stride);
      prefetch_far(next.v_scales[half * kChunk] + head * params_.v.scales.head_stride);
    }
  }

  void prepare(int block_rows) {
    const Rotation& rotation = item_.sink_part != 0 ? params_.sink_q_rotation : params_.q_rotation;
    const int64_t blocks = (item_.head_end - item_.head_begin) * layout_.blocks;
    const int keys = kLanes / block_rows;
    const int64_t dims = units_of(params_.k_dim) * kUnit;
    for (int64_t block = 0; block < blocks; ++block) {
      const int64_t head = block / layout_.blocks;
      for (int r = 0; r < block_rows; ++r) {
        const int64_t row = block % layout_.blocks * block_rows + r;
        if (row < layout_.rows) {
          const int64_t packed_row = packed_row_of(sequence_, item_.row_begin + row / group_);
          load_query_row(params_, rotation, packed_row,
                         (item_.head_begin + head) * group_ + row % group_, row_);
          for (int64_t d = params_.k_dim; d < dims; ++d) row_[d] = 0.0f;
        } else {
          __builtin_memset(row_, 0, static_cast<size_t>(dims) * 4);
        }
        // A query that is not finite makes all of its scores NaN.
        Vec widest = zero(), poison = zero();
        for (int64_t d = 0; d < dims; d += kLanes) {
          const Vec x = load(row_ + d);
          widest = max(max(x, sub(zero(), x)), widest);
          poison = add(poison, sub(x, x));
        }
        const float largest = horizontal_max(widest);
        const bool finite = mask_bits(mask_not(equal(poison, zero()))) == 0;
        const Vec factor = Math::word_factor(set1(largest));
        uint16_t* to = q_ + block * layout_.q_words + r * kUnit;
        for (int64_t unit = 0; unit < dims; unit += kUnit, to += kUnit * block_rows) {
          alignas(64) uint16_t natural[kUnit];
          for (int d = 0; d < kUnit; d += kLanes)
            Math::store_words(natural + d, mul(load(row_ + unit + d), factor));
          Math::place_query(natural, to);
        }
        alignas(64) float product[kLanes];
        store(product, Math::product_factor(set1(finite ? largest : __builtin_nanf(""))));
        for (int key = 0; key < keys; ++key) factors_[block * kLanes + r * keys + key] = product[0];
      }
      states_[block] = {set1(kMinusInfinity), zero()};
    }
    __builtin_memset(acc_, 0, static_cast<size_t>(blocks * layout_.acc_floats) * 4);
    __builtin_memset(zeros_, 0, static_cast<size_t>(layout_.bytes - layout_.zeros));
  }

  template <int kRows>
  void accumulate(const Pending& step) const {
    accumulate_step<Math, kRows>(step.weights, step.v, step.v_offset, step.ahead, params_.v_dim,
                                 step.acc);
  }

  // All heads of the item against one step.
  template <int kRows>
  void walk_heads(int64_t step_key, const StepRows& rows, const StepRows& next_rows) {
    constexpr int kKeys = kLanes / kRows, kVectors = kStepKeys / kKeys;
    constexpr int kHeadsAhead = 2;
    const bool all_visible = visible_.all_visible(step_key, kStepKeys);
    const bool rules_apply = !all_visible || params_.softcap != 0.0f || params_.alibi != nullptr ||
                             params_.bias != nullptr;
    const bool whole = rows.present == ~uint32_t{0};
    const int64_t heads = item_.head_end - item_.head_begin;
    for (int64_t index = 0; index < heads; ++index) {
      const int64_t head = item_.head_begin + index;
      const bool stays = index + kHeadsAhead < heads;
      const int64_t ahead_index = stays ? index + kHeadsAhead : (index + kHeadsAhead) % heads;
      const StepRows& ahead = stays ? rows : next_rows;
      const int64_t ahead_head = item_.head_begin + ahead_index;
      prefetch_scales(next_rows, head);
      alignas(64) float k_scales[kStepKeys], v_scales[kStepKeys];
      const float* k_found[kHalves];
      const float* v_found[kHalves];
      find_scales(params_.k.scales, rows.k_scales, rows, head, k_scales, k_found);
      find_scales(params_.v.scales, rows.v_scales, rows, head, v_scales, v_found);
      for (int64_t block = index * layout_.blocks; block < (index + 1) * layout_.blocks; ++block) {
        Pending& step = pending_ == &steps_[0] ? steps_[1] : steps_[0];
        if (!whole) cut_rows(rows, head, step);
        Vec scores[kVectors];
        dot_step<Math, kRows>(q_ + block * layout_.q_words, factors_ + block * kLanes,
                              whole ? rows.k : step.cut_k, whole ? head * params_.k.head_stride : 0,
                              {ahead.k, ahead_head * params_.k.head_stride}, params_.k_dim, scores);
        KVC_UNROLL
        for (int t = 0; t < kVectors; ++t) {
          const int key = t * kKeys;
          scores[t] = mul(scores[t], load_repeated<kKeys>(k_found[key / kChunk] + key % kChunk));
        }
        if (pending_ != nullptr) accumulate<kRows>(*pending_);
        pending_ = &step;
        if (rules_apply) modify<kRows>(step_key, rows.present, all_visible, block, head, scores);
        weigh_step<Math, kRows>(scores, states_[block], v_found, step.weights);
        step.v = whole ? rows.v : step.cut_v;
        step.v_offset = whole ? head * params_.v.head_stride : 0;
        step.ahead = {ahead.v, ahead_head * params_.v.head_stride};
        step.acc = acc_ + block * layout_.acc_floats;
      }
    }
  }

  void cut_rows(const StepRows& rows, int64_t head, Pending& step) const {
    for (int key = 0; key < kStepKeys; ++key) {
      const bool present = (rows.present >> key & 1) != 0;
      step.cut_k[key] = present ? rows.k[key] + head * params_.k.head_stride : zeros_;
      step.cut_v[key] = present ? rows.v[key] + head * params_.v.head_stride : zeros_;
    }
  }

  template <int kRows>
  void modify(int64_t step_key, uint32_t present, bool all_visible, int64_t block, int64_t head,
              Vec* scores) const {
    constexpr int kVectorsOfHalf = kChunk * kRows / kLanes;
    for (int half = 0; half < kHalves; ++half) {
      (void)decode::modify_scores(
          {params_, sequence_, item_, step_key + half * kChunk,
           present >> (half * kChunk) & decode::kWholeChunk, all_visible,
           block % layout_.blocks * kRows, layout_.rows, head * group_, group_, kRows},
          scores + half * kVectorsOfHalf);
    }
  }

  void finish(int block_rows) {
    const int64_t heads = item_.head_end - item_.head_begin;
    const int keys = kLanes / block_rows;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t row = 0; row < layout_.rows; ++row) {
        const int64_t block = head * layout_.blocks + row / block_rows;
        const int64_t r = row % block_rows;
        alignas(64) float m[kLanes], l[kLanes];
        store(m, states_[block].m), store(l, states_[block].l);
        const float* acc = acc_ + block * layout_.acc_floats + r * kUnit;
        for (int64_t unit = 0; unit < params_.v_dim; unit += kUnit, acc += kUnit * block_rows) {
          for (int lane = 0; lane < kLanes; ++lane) {
            for (int i = 0; i < 4; ++i) row_[unit + 4 * lane + i] = acc[i * kLanes + lane];
          }
        }
        // A visible NaN may have lost the maximum: the row is not one that saw nothing.
        const float sum = l[r * keys], row_max = sum != sum ? sum : m[r * keys];
        store_row(params_, item_, item_.row_begin + row / group_,
                  (item_.head_begin + head) * group_ + row % group_, row_max, sum, row_);
      }
    }
  }

  const AttnParams& params_;
  const AttnItem& item_;
  const AttnSequence& sequence_;
  const VisibleKeys visible_;
  const int64_t group_;
  const ScratchLayout layout_;
  uint16_t* const q_;     // [blocks][units][rows][kUnit]
  float* const factors_;  // [blocks][kLanes]
  float* const acc_;      // [blocks][units][rows][4][kLanes], element 4 * lane + i at [i][lane].
  SoftmaxState* const states_;  // [blocks]
  float* const row_;            // A query or a result in the order of its elements.
  std::byte* const zeros_;
  Pending steps_[2];
  Pending* pending_ = nullptr;  // The one that is not accumulated yet.
};

}  // namespace words

inline size_t attn_decode_words_scratch_bytes(const AttnParams& params, int64_t max_rows) {
  return static_cast<size_t>(words::scratch_layout(params, max_rows, params.num_kv_heads).bytes);
}

template <typename Math>
void attn_decode_words(const AttnParams& params, const AttnItem& item, void* scratch) {
  words::WordLoop<Math>(params, item, scratch).run();
}

}  // namespace
}  // namespace kvc::kernels::cpu
