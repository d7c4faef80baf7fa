// Attention over latent rows (absorbed MLA, DeepSeek-V2, arXiv:2405.04434) for few token rows on
// AVX512-BF16: V is the beginning of the K row, and one row serves all query heads.
//
// With 16 heads and more such a step is bound by arithmetic: 30 flops and more per byte. So both
// products run on bf16 dot products (latent_block_bf16-inl.h), and a latent row crosses from memory
// once: while a block of 64 keys is computed, the rows of the next one are fetched, spread evenly
// over the tiles.
//
// Query rows (token row x head) are the lanes of vectors, 16 to a group; the last group is filled
// up with zero queries.
//
// A row's result depends on its query, its visible keys and the item's key range only: keys hidden
// from a row change its state by exact no-ops (max with -inf, times 2^0, plus 0).
//
// Included by isa_avx512bf16.cc alone, after decode-inl.h.
#pragma once

#include "kernels/cpu/decode_words_avx512-inl.h"
#include "kernels/cpu/epilogue-inl.h"
#include "kernels/cpu/latent_block_bf16-inl.h"
#include "kernels/cpu/rows-inl.h"
#include "kernels/cpu/tile_bf16-inl.h"
#include "kernels/cpu/visibility-inl.h"

namespace kvc::kernels::cpu {
namespace {
namespace latent {

// Fewer heads stay with the decode kernel: exact at the cost of 60 % more time, and three quarters
// of a register would idle.
constexpr int32_t kFewestHeads = 4;
// Lanes of one pass over the keys: their queries and accumulators (50 KB per group at 512 + 64)
// stay in the second-level cache beside two blocks of keys.
constexpr int64_t kPassLanes = 8 * kGroupLanes;

// A property of the layer alone, so that the choice of kernel does not depend on how the work is
// cut.
inline bool serves(const AttnParams& params) {
  return params.k.dtype == DType::kBF16 && params.v.dtype == DType::kBF16 &&
         params.v.base == params.k.base && params.v.page_stride == params.k.page_stride &&
         params.v.token_stride == params.k.token_stride && params.v_dim <= params.k_dim &&
         params.num_kv_heads == 1 && params.num_q_heads >= kFewestHeads && params.softcap == 0.0f &&
         params.alibi == nullptr && params.bias == nullptr &&
         params.k_rotations[0].rotary_dim == 0 && params.k_rotations[1].rotary_dim == 0;
}

// Where everything of a pass lies in its scratch memory.
struct ScratchLayout {
  int64_t groups;                                                       // Lane groups.
  int64_t q_words, acc_floats;                                          // Per group.
  int64_t q, acc, states, scores, weights, queries, row, zeros, bytes;  // Byte offsets, total.
};

inline ScratchLayout scratch_layout(const AttnParams& params, int64_t token_rows) {
  const int64_t lanes = token_rows * params.num_q_heads;
  ScratchLayout layout;
  layout.groups = ((lanes < kPassLanes ? lanes : kPassLanes) + kGroupLanes - 1) / kGroupLanes;
  layout.q_words = quads_of(params.k_dim) * kQuadWords;
  layout.acc_floats = columns_of(params.v_dim) * kColumnFloats;
  layout.q = 0;
  layout.acc = layout.q + layout.groups * layout.q_words * 4;
  layout.states = layout.acc + layout.groups * layout.acc_floats * 4;
  layout.scores = layout.states + layout.groups * static_cast<int64_t>(sizeof(SoftmaxState));
  layout.weights = layout.scores + int64_t{kBlockKeys} * kGroupLanes * 4;
  layout.queries = layout.weights + int64_t{kBlockPairs} * kGroupLanes * 4;
  const int64_t row_elements = columns_of(params.k_dim) * kColumn;
  layout.row = layout.queries + kHalfLanes * row_elements * 2;
  layout.zeros = layout.row + row_elements * 4;
  layout.bytes = layout.zeros + row_elements * 2;
  return layout;
}

// The rows of a block; of keys that are masked in every row of the pass, rows of zeros.
struct Block {
  const std::byte* rows[kBlockKeys];
  int64_t key = 0;   // Absolute key of rows[0].
  uint64_t visible;  // Bit k: key k of the block is visible to some row.
  int begin, end;    // No bits outside.
};

// Rows that are wanted soon, handed out at an even pace while something is computed.
struct Fetch {
  const std::byte* rows[2 * kBlockKeys];
  int64_t count;       // Rows listed.
  int64_t work;        // How much is computed meanwhile.
  int64_t done, next;  // Work, rows.

  void start(int64_t total_work) { count = done = next = 0, work = total_work; }
  void add(const Block& block, int begin) {
    for (int key = begin; key < block.end; ++key) rows[count++] = block.rows[key];
  }
  Ahead take(int64_t part) {
    done += part;
    const int64_t due = count * done / work;
    const Ahead ahead{rows + next, static_cast<int>(due - next)};
    next = due;
    return ahead;
  }
};

// Keys of an item that are fetched before anything is computed: two score tiles. The others of the
// first block follow while the first tiles run; fetched all at once they would keep everything
// waiting.
constexpr int kFirstKeys = 2 * kScoreKeys;

class LatentLoop {
 public:
  LatentLoop(const AttnParams& params, const AttnItem& item, void* scratch)
      : params_(params),
        item_(item),
        sequence_(params.sequences[item.sequence]),
        layout_(scratch_layout(params, item.row_end - item.row_begin)),
        q_(at<uint32_t>(scratch, layout_.q)),
        acc_(at<float>(scratch, layout_.acc)),
        states_(at<SoftmaxState>(scratch, layout_.states)),
        scores_(at<float>(scratch, layout_.scores)),
        weights_(at<uint32_t>(scratch, layout_.weights)),
        queries_(at<uint16_t>(scratch, layout_.queries)),
        row_(at<float>(scratch, layout_.row)),
        zeros_(at<std::byte>(scratch, layout_.zeros)) {
    __builtin_memset(zeros_, 0, static_cast<size_t>(layout_.bytes - layout_.zeros));
  }

  void run() {
    const int64_t lanes = (item_.row_end - item_.row_begin) * params_.num_q_heads;
    for (int64_t lane = 0; lane < lanes; lane += kPassLanes)
      attend(lane, lanes - lane < kPassLanes ? lanes - lane : kPassLanes);
  }

 private:
  template <typename T>
  static T* at(void* scratch, int64_t offset) {
    return reinterpret_cast<T*>(static_cast<std::byte*>(scratch) + offset);
  }

  int64_t token_row(int64_t lane) const {
    return item_.row_begin + (first_lane_ + lane) / params_.num_q_heads;
  }
  int64_t q_head(int64_t lane) const { return (first_lane_ + lane) % params_.num_q_heads; }

  // Lanes [first_lane, first_lane + num_lanes) against all keys of the item.
  void attend(int64_t first_lane, int64_t num_lanes) {
    first_lane_ = first_lane, num_lanes_ = num_lanes;
    groups_ = (num_lanes + kGroupLanes - 1) / kGroupLanes;
    visible_ = visible_keys(params_, item_, token_row(0), token_row(num_lanes - 1) + 1);
    Block blocks[2];
    locate(visible_.first_block(kBlockKeys), blocks[0]);
    prepare(blocks[0]);
    int fetched = blocks[0].begin + kFirstKeys;
    for (int current = 0; blocks[current].visible != 0; current ^= 1, fetched = kBlockKeys) {
      locate(visible_.next_block(blocks[current].key, kBlockKeys), blocks[current ^ 1]);
      walk_groups(blocks[current], fetched, blocks[current ^ 1]);
    }
    finish();
  }

  // The first block from `key` on with a key that is visible to some row, or one without any key.
  // The only place where the page table is read.
  void locate(int64_t key, Block& block) const {
    block.visible = 0;
    for (; key < visible_.end() && block.visible == 0; key = visible_.next_block(key, kBlockKeys)) {
      block.key = key;
      block.visible = visible_.bits(key, kBlockKeys);
    }
    block.begin = block.visible == 0 ? 0 : __builtin_ctzll(block.visible);
    block.end = block.visible == 0 ? 0 : kBlockKeys - __builtin_clzll(block.visible);
    for (int i = 0; i < block.begin; ++i) block.rows[i] = zeros_;
    for (int i = block.end; i < kBlockKeys; ++i) block.rows[i] = zeros_;
    int64_t page = (block.key + block.begin) / params_.page_size;
    int64_t offset = (block.key + block.begin) % params_.page_size;
    for (int i = block.begin; i < block.end; ++page, offset = 0) {
      const int64_t left =
          params_.page_size - offset < block.end - i ? params_.page_size - offset : block.end - i;
      // A page without a visible key may be dropped.
      const bool any = (block.visible >> i & bits_below(left)) != 0;
      const std::byte* row = any ? row_address(params_.k, sequence_.page(page), 0, offset) : zeros_;
      for (const int stop = i + static_cast<int>(left); i < stop;
           ++i, row += any ? params_.k.token_stride : 0)
        block.rows[i] = block.visible >> i & 1 ? row : zeros_;
    }
  }

  // Loads and packs the queries, meanwhile fetching the first keys.
  void prepare(const Block& first) {
    const Rotation& rotation = item_.sink_part != 0 ? params_.sink_q_rotation : params_.q_rotation;
    const int64_t k_bytes = params_.k_dim * 2;
    const int fetched = first.begin + kFirstKeys;
    fetch_.start(num_lanes_);
    for (int key = first.begin; key < first.end && key < fetched; ++key)
      fetch_.rows[fetch_.count++] = first.rows[key];
    __builtin_memset(acc_, 0, static_cast<size_t>(groups_ * layout_.acc_floats * 4));
    const int64_t row_elements = columns_of(params_.k_dim) * kColumn;
    for (int64_t lane = 0; lane < groups_ * kGroupLanes; ++lane) {
      const int64_t place = lane % kHalfLanes;
      uint16_t* rounded = queries_ + place * row_elements;
      if (lane < num_lanes_) {
        const Ahead ahead = fetch_.take(1);
        for (int i = 0; i < ahead.count; ++i) {
          for (int64_t byte = 0; byte < k_bytes; byte += kCacheLine)
            prefetch_far(ahead.rows[i] + byte);
        }
        load_query_row(params_, rotation, packed_row_of(sequence_, token_row(lane)), q_head(lane),
                       row_);
        round_query(row_, params_.k_dim, rounded);
      } else {
        __builtin_memset(rounded, 0, static_cast<size_t>(row_elements * 2));
      }
      if (place == kHalfLanes - 1) {
        uint32_t* q =
            q_ + lane / kGroupLanes * layout_.q_words + lane % kGroupLanes / kHalfLanes * kLanes;
        pack_queries(queries_, row_elements, quads_of(params_.k_dim), q);
      }
    }
    for (int64_t group = 0; group < groups_; ++group)
      states_[group] = {set1(kMinusInfinity), zero()};
  }

  // All groups against one block, whose rows from `fetched` on are still to be fetched.
  void walk_groups(const Block& block, int fetched, const Block& next) {
    const int64_t tiles = (block.end + kScoreKeys - 1) / kScoreKeys,
                  columns = columns_of(params_.v_dim);
    const int64_t halves = (num_lanes_ + kHalfLanes - 1) / kHalfLanes;
    const int num_pairs = (block.end + 1) / 2;
    const int64_t score_work = int64_t{kScoreKeys} * params_.k_dim,
                  value_work = int64_t{num_pairs} * kColumn;
    fetch_.start(halves * (tiles * score_work + columns * value_work));
    fetch_.add(block, fetched);
    fetch_.add(next, next.begin);
    int finite = -1;  // Not known.
    for (int64_t group = 0; group < groups_; ++group) {
      // A half without lanes is left out, which changes nothing for the other one.
      const int group_halves = static_cast<int>(halves - 2 * group < 2 ? 1 : 2);
      const auto score = group_halves == 1 ? score_tile<1> : score_tile<2>;
      for (int key = 0; key < block.end; key += kScoreKeys) {
        const Ahead ahead = fetch_.take(group_halves * score_work);
        score(q_ + group * layout_.q_words, block.rows + key, params_.k_dim, ahead,
              scores_ + key * kGroupLanes);
      }
      const bool hidden = mask_scores(block, group);
      if (hidden && finite < 0)
        finite = values_are_finite(block.rows, block.end, params_.v_dim) ? 1 : 0;
      const bool selects = hidden && finite == 0;
      uint64_t visible[kGroupLanes];
      if (selects) find_visible(block.end, visible);
      alignas(64) float alpha[kGroupLanes];
      store(alpha, softmax(scores_, num_pairs, states_[group], weights_));
      const ValueArgs args{block.rows, weights_, alpha, num_pairs, params_.v_dim};
      float* acc = acc_ + group * layout_.acc_floats;
      if (selects) {
        for (int lane = 0; lane < kGroupLanes; ++lane) value_lane(args, lane, visible[lane], acc);
      } else {
        for (int64_t column = 0; column < columns; ++column, acc += kColumnFloats) {
          const auto accumulate =
              (column + 1) * kColumn <= params_.v_dim ? value_tile<true> : value_tile<false>;
          for (int half = 0; half < group_halves; ++half) {
            const Ahead ahead = fetch_.take(value_work);
            accumulate(args, half * kHalfLanes, column, ahead, params_.k_dim * 2,
                       acc + half * kHalfLanes * kColumn);
          }
        }
      }
    }
  }

  // Sets the scores of masked keys to -inf. Returns whether some lane has a score of -inf for a key
  // whose row is read: a masked key, or a score that is -inf by itself.
  bool mask_scores(const Block& block, int64_t group) const {
    const Vec minus_infinity = set1(kMinusInfinity);
    if (block.end % 2 != 0) store(scores_ + block.end * kGroupLanes, minus_infinity);
    if (visible_.all_visible(block.key, kBlockKeys)) {
      Vec smallest = zero();
      for (int key = 0; key < kBlockKeys; ++key)
        smallest = min(load(scores_ + key * kGroupLanes), smallest);
      return mask_bits(equal(smallest, minus_infinity)) != 0;
    }
    alignas(64) uint64_t visible[kGroupLanes];
    const int64_t first = group * kGroupLanes;
    for (int lane = 0; lane < kGroupLanes; ++lane) {
      const int64_t row = token_row(first + lane < num_lanes_ ? first + lane : num_lanes_ - 1);
      visible[lane] = lane > 0 && row == token_row(first + lane - 1)
                          ? visible[lane - 1]
                          : visible_bits(params_, item_, row, block.key);
    }
    const __m512i low = _mm512_load_si512(visible), high = _mm512_load_si512(visible + kHalfLanes);
    uint32_t hidden = 0;
    for (int key = 0; key < block.end; ++key) {
      const __m512i bit = _mm512_set1_epi64(static_cast<int64_t>(uint64_t{1} << key));
      const uint32_t lanes = static_cast<uint32_t>(_mm512_test_epi64_mask(low, bit)) |
                             static_cast<uint32_t>(_mm512_test_epi64_mask(high, bit)) << kHalfLanes;
      float* at = scores_ + key * kGroupLanes;
      const Vec score = select(mask_of(lanes), load(at), minus_infinity);
      store(at, score);
      if ((block.visible >> key & 1) != 0) hidden |= mask_bits(equal(score, minus_infinity));
    }
    return hidden != 0;
  }

  // Bit k of a lane: its score of key k is not -inf.
  void find_visible(int end, uint64_t* visible /* [kGroupLanes] */) const {
    for (int lane = 0; lane < kGroupLanes; ++lane) visible[lane] = 0;
    for (int key = 0; key < end; ++key) {
      const uint32_t hidden =
          mask_bits(equal(load(scores_ + key * kGroupLanes), set1(kMinusInfinity)));
      for (int lane = 0; lane < kGroupLanes; ++lane)
        visible[lane] |= static_cast<uint64_t>((hidden >> lane & 1) ^ 1) << key;
    }
  }

  void finish() {
    for (int64_t group = 0; group < groups_; ++group) {
      alignas(64) float m[kGroupLanes], l[kGroupLanes];
      store(m, states_[group].m), store(l, states_[group].l);
      const float* acc = acc_ + group * layout_.acc_floats;
      const int64_t first = group * kGroupLanes;
      for (int i = 0; i < kGroupLanes && first + i < num_lanes_; ++i, acc += kColumn) {
        for (int64_t column = 0; column < columns_of(params_.v_dim); ++column)
          natural_column(acc + column * kColumnFloats, row_ + column * kColumn);
        // A visible NaN is not to be taken for a row that saw nothing.
        store_row(params_, item_, token_row(first + i), q_head(first + i),
                  l[i] != l[i] ? l[i] : m[i], l[i], row_);
      }
    }
  }

  const AttnParams& params_;
  const AttnItem& item_;
  const AttnSequence& sequence_;
  const ScratchLayout layout_;
  uint32_t* const q_;           // [groups][quads][kQuadWords]
  float* const acc_;            // [groups][columns][kGroupLanes][kColumn]
  SoftmaxState* const states_;  // [groups]
  float* const scores_;         // [kBlockKeys][kGroupLanes]
  uint32_t* const weights_;     // [kBlockPairs][kGroupLanes]
  uint16_t* const queries_;     // [kHalfLanes][row elements], on their way into q_
  float* const row_;            // A query or a result in the order of its elements.
  std::byte* const zeros_;
  VisibleKeys visible_{};
  Fetch fetch_;
  int64_t first_lane_ = 0, num_lanes_ = 0, groups_ = 0;
};

}  // namespace latent

void attn_decode_bf16(const AttnParams& params, const AttnItem& item, void* scratch) {
  if (!latent::serves(params)) return attn_decode_avx512(params, item, scratch);
  latent::LatentLoop(params, item, scratch).run();
}

size_t attn_decode_bf16_scratch_bytes(const AttnParams& params, int64_t max_rows) {
  if (!latent::serves(params)) return attn_decode_avx512_scratch_bytes(params, max_rows);
  return static_cast<size_t>(latent::scratch_layout(params, max_rows).bytes);
}

// Latents of any number of rows: one arithmetic for decode and prefill.
void attn_prefill_bf16(const AttnParams& params, const AttnItem& item, void* scratch) {
  if (!latent::serves(params)) return attn_tile_bf16(params, item, scratch);
  latent::LatentLoop(params, item, scratch).run();
}

size_t attn_prefill_bf16_scratch_bytes(const AttnParams& params, int64_t max_rows) {
  if (!latent::serves(params)) return attn_tile_bf16_scratch_bytes(params, max_rows);
  return static_cast<size_t>(latent::scratch_layout(params, max_rows).bytes);
}

}  // namespace
}  // namespace kvc::kernels::cpu
