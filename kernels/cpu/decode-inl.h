// Attention for few rows: every KV byte is read once from memory and used for all query rows of its
// head.
//
// The walk is chunk by chunk (16 keys at absolute multiples of 16), inside a chunk head by head, so
// one page is one burst of memory traffic. While a head's scores are computed the next head's K
// lines are prefetched, while its V is accumulated the next head's V lines; the last head
// prefetches from the next chunk. They are fetched into the second level only: the first one has
// few misses under way at a time, and fetches into it hold up the loads (a Zen 4 core then reads
// half as fast). Arithmetic is fp32 for every storage type: the kernel waits for memory, so exact
// arithmetic costs nothing. K that is rotated while it is read passes through 16 rows of scratch in
// fp32. The scales of quantised rows multiply scores and probabilities, not the rows.
//
// Query rows of one kv head (token rows x group) are cut into blocks, see decode_block-inl.h.
//
// A row's result depends on its query, its visible keys and the item's key range only: keys hidden
// from a row change its state by exact no-ops (max with -inf, times 2^0, plus 0).
//
// Included by the isa_<name>.cc files after a vec_<isa>.h.
#pragma once

#include "kernels/cpu/decode_block-inl.h"
#include "kernels/cpu/decode_scores-inl.h"
#include "kernels/cpu/epilogue-inl.h"
#include "kernels/cpu/rows-inl.h"

namespace kvc::kernels::cpu {
namespace {
namespace decode {

// Addresses of head 0's rows for the keys of a chunk; of keys that are masked in every row of the
// item, a row of zeros.
struct ChunkRows {
  const std::byte* k[kChunk];
  const std::byte* v[kChunk];
  // Scales of head 0's rows; set for keys that are present and rows that have scales of their own.
  const std::byte* k_scales[kChunk];
  const std::byte* v_scales[kChunk];
  uint32_t present;  // Bit per key: not a row of zeros.
};

constexpr int64_t padded(int64_t dim) { return (dim + 15) / 16 * 16; }

// Where everything of an item lies in its scratch memory.
struct ScratchLayout {
  int64_t rows, blocks;  // Per kv head: query rows, blocks of rows.
  int64_t q_stride, acc_stride;
  int64_t q, acc, states, keys, zeros, bytes;  // Byte offsets, total.
};

inline ScratchLayout scratch_layout(const AttnParams& params, int64_t token_rows,
                                    int64_t kv_heads) {
  ScratchLayout layout;
  layout.rows = token_rows * (params.num_q_heads / params.num_kv_heads);
  const int64_t per_block = block_rows(layout.rows);
  layout.blocks = (layout.rows + per_block - 1) / per_block;
  layout.q_stride = padded(params.k_dim);
  layout.acc_stride = padded(params.v_dim);
  const int64_t padded_rows = kv_heads * layout.blocks * per_block;
  const int64_t longest = params.k_dim > params.v_dim ? params.k_dim : params.v_dim;
  layout.q = 0;
  layout.acc = layout.q + padded_rows * layout.q_stride * 4;
  layout.states = layout.acc + padded_rows * layout.acc_stride * 4;
  layout.keys =
      layout.states + kv_heads * layout.blocks * static_cast<int64_t>(sizeof(SoftmaxState));
  const bool rotates = params.k_rotations[0].rotary_dim > 0 || params.k_rotations[1].rotary_dim > 0;
  layout.zeros = layout.keys + (rotates ? kChunk * layout.q_stride * 4 : 0);
  layout.bytes = layout.zeros + padded(longest) * 4;
  return layout;
}

class DecodeLoop {
 public:
  DecodeLoop(const AttnParams& params, const AttnItem& item, void* scratch)
      : params_(params),
        item_(item),
        sequence_(params.sequences[item.sequence]),
        visible_(visible_keys(params, item, item.row_begin, item.row_end)),
        key_rotation_(params, item),
        rotates_(key_rotation_.rotates()),
        group_(params.num_q_heads / params.num_kv_heads),
        layout_(
            scratch_layout(params, item.row_end - item.row_begin, item.head_end - item.head_begin)),
        k_type_(rotates_ ? DType::kF32 : block_dtype(params.k)),
        k_factor_(k_type_ == DType::kE4M3Low ? kLow : 1.0f),
        v_factor_(block_dtype(params.v) == DType::kE4M3Low ? kLow : 1.0f),
        kernels_(choose_block_kernels(layout_.rows, k_type_, block_dtype(params.v))),
        q_(reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + layout_.q)),
        acc_(reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + layout_.acc)),
        states_(reinterpret_cast<SoftmaxState*>(static_cast<std::byte*>(scratch) + layout_.states)),
        keys_(reinterpret_cast<float*>(static_cast<std::byte*>(scratch) + layout_.keys)),
        zeros_(static_cast<std::byte*>(scratch) + layout_.zeros) {}

  void run() {
    prepare();
    // Three chunks are in use: the one before (its last step is still to be accumulated), this one,
    // the next one.
    ChunkRows rows[3];
    int64_t key = visible_.first_block(kChunk);
    if (key < visible_.end()) locate(key, rows[0]);
    for (int current = 0; key < visible_.end();) {
      const int following = current == 2 ? 0 : current + 1;
      const int64_t next_key = visible_.next_block(key, kChunk);
      const bool has_next = next_key < visible_.end();
      if (has_next) locate(next_key, rows[following]);
      walk_heads(key, rows[current], rows[has_next ? following : current]);
      current = following;
      key = next_key;
    }
    if (pending_ != nullptr) accumulate(*pending_);
    finish();
  }

 private:
  // Addresses of a chunk's rows: the only place where the page table is read.
  void locate(int64_t chunk_key, ChunkRows& rows) const {
    const auto wanted = static_cast<uint32_t>(visible_.bits(chunk_key, kChunk));
    int64_t page_index = chunk_key / params_.page_size, offset = chunk_key % params_.page_size;
    const std::byte *k = nullptr, *v = nullptr, *k_scale = nullptr, *v_scale = nullptr;
    bool located = false, kept = false;
    rows.present = 0;
    for (int slot = 0; slot < kChunk; ++slot) {
      rows.k[slot] = rows.v[slot] = zeros_;
      if ((wanted >> slot & 1) != 0) {
        if (!located) {
          const int64_t page = sequence_.page(page_index);
          kept = page >= 0;
          k = row_address(params_.k, page, 0, offset), v = row_address(params_.v, page, 0, offset);
          k_scale = scale_address(params_.k, page, 0, offset);
          v_scale = scale_address(params_.v, page, 0, offset);
          located = true;
        }
        if (kept) {
          rows.k[slot] = k, rows.v[slot] = v, rows.present |= uint32_t{1} << slot;
          rows.k_scales[slot] = k_scale, rows.v_scales[slot] = v_scale;
        }
        k += params_.k.token_stride, v += params_.v.token_stride;
        k_scale += params_.k.scales.token_stride, v_scale += params_.v.scales.token_stride;
      } else {
        located = false;
      }
      if (++offset == params_.page_size) ++page_index, offset = 0, located = false;
    }
  }

  // The scales of one head's rows; 0 for keys that are not present.
  static void load_scales(const RowScales& scales, const std::byte* const* addresses,
                          uint32_t present, int64_t head, float factor, float* to /* [kChunk] */) {
    for (int key = 0; key < kChunk; ++key) {
      to[key] = 0.0f;
      if ((present >> key & 1) == 0) continue;
      to[key] = scales.shared;
      if (scales.base != nullptr)
        __builtin_memcpy(to + key, addresses[key] + head * scales.head_stride, sizeof(float));
      to[key] *= factor;
    }
  }

  void cut_rows(const ChunkRows& rows, int64_t head, ChunkRows& cut) const {
    for (int key = 0; key < kChunk; ++key) {
      const bool present = (rows.present >> key & 1) != 0;
      cut.k[key] = present ? rows.k[key] + head * params_.k.head_stride : zeros_;
      cut.v[key] = present ? rows.v[key] + head * params_.v.head_stride : zeros_;
    }
  }

  // The chunk's K rows of one head, rotated to their positions, into scratch; the next rows are
  // fetched meanwhile.
  void rotate_keys(int64_t chunk_key, const ChunkRows& rows, int64_t head, const ChunkRows& next,
                   int64_t next_head, const float* scales /* [kChunk] */) {
    const int64_t row_bytes = params_.k_dim * dtype_bytes(params_.k.dtype);
    for (int key = 0; key < kChunk; ++key) {
      const std::byte* ahead = next.k[key] + next_head * params_.k.head_stride;
      for (int64_t byte = 0; byte < row_bytes; byte += kCacheLine) prefetch_far(ahead + byte);
      rotated_.k[key] = zeros_;
      if ((rows.present >> key & 1) == 0) continue;
      float* to = keys_ + key * layout_.q_stride;
      rotated_.k[key] = reinterpret_cast<const std::byte*>(to);
      const std::byte* from = rows.k[key] + head * params_.k.head_stride;
      const int64_t row = key_rotation_.row_of(chunk_key + key);
      const float scale = is_quantised(params_.k.dtype) ? scales[key] : 1.0f;
      with_stored_dtype(params_.k.dtype, [&](auto type) {
        transform_row<decltype(type)::value, DType::kF32>(reinterpret_cast<std::byte*>(to), from,
                                                          params_.k_dim, key_rotation_.rotation,
                                                          row, scale);
      });
    }
  }

  void prepare() {
    const Rotation& rotation = item_.sink_part != 0 ? params_.sink_q_rotation : params_.q_rotation;
    const int64_t heads = item_.head_end - item_.head_begin;
    const int64_t rows_per_head = layout_.blocks * kernels_.rows;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t row = 0; row < rows_per_head; ++row) {
        float* q = q_ + (head * rows_per_head + row) * layout_.q_stride;
        if (row < layout_.rows) {
          const int64_t packed_row = packed_row_of(sequence_, item_.row_begin + row / group_);
          load_query_row(params_, rotation, packed_row,
                         (item_.head_begin + head) * group_ + row % group_, q);
          for (int64_t d = params_.k_dim; d < layout_.q_stride; ++d) q[d] = 0.0f;
          if (k_factor_ != 1.0f)
            for (int64_t d = 0; d < params_.k_dim; ++d) q[d] *= k_factor_;
          const int step = dot_step(k_type_);
          if (k_type_ == DType::kBF16) split_pairs(q, params_.k_dim / step * step);
        } else {
          __builtin_memset(q, 0, static_cast<size_t>(layout_.q_stride) * 4);
        }
      }
      for (int64_t block = 0; block < layout_.blocks; ++block) {
        states_[head * layout_.blocks + block] = {set1(kMinusInfinity), zero()};
      }
    }
    __builtin_memset(acc_, 0, static_cast<size_t>(heads * rows_per_head * layout_.acc_stride) * 4);
    __builtin_memset(zeros_, 0, static_cast<size_t>(layout_.bytes - layout_.zeros));
  }

  // One block of rows against one head of one chunk, between its softmax and its accumulation.
  struct Step {
    alignas(64) Vec scores[kMaxBlockRows * kChunk / kLanes];
    alignas(64) float alpha[kLanes];
    ChunkRows
        // Rows of a chunk that is not whole, with the zero rows in place, which no head offset may
        // move.
        cut;
    BlockArgs v;
    bool hidden;
  };

  void accumulate(const Step& step) const {
    (step.hidden ? kernels_.accumulate_visible : kernels_.accumulate)(step.v, step.alpha);
  }

  // All heads of the item against one chunk. A step's V is accumulated after the next step's
  // scores: softmax is a long chain of dependent instructions, and the next dot products, which
  // need nothing of it, run meanwhile.
  void walk_heads(int64_t chunk_key, const ChunkRows& rows, const ChunkRows& next_rows) {
    const bool all_visible = visible_.all_visible(chunk_key, kChunk);
    const bool rules_apply = !all_visible || params_.softcap != 0.0f || params_.alibi != nullptr ||
                             params_.bias != nullptr;
    const bool whole = rows.present == kWholeChunk;
    const bool scales_k = is_quantised(params_.k.dtype), scales_v = is_quantised(params_.v.dtype);
    alignas(64) float k_scales[kChunk], v_scales[kChunk];
    for (int64_t head = item_.head_begin; head < item_.head_end; ++head) {
      const int64_t k_offset = whole && !rotates_ ? head * params_.k.head_stride : 0,
                    v_offset = whole ? head * params_.v.head_stride : 0;
      const bool last_head = head + 1 == item_.head_end;
      const ChunkRows& next = last_head ? next_rows : rows;
      const int64_t next_head = last_head ? item_.head_begin : head + 1;
      const int64_t first_block = (head - item_.head_begin) * layout_.blocks;
      if (scales_k)
        load_scales(params_.k.scales, rows.k_scales, rows.present, head, k_factor_, k_scales);
      if (scales_v)
        load_scales(params_.v.scales, rows.v_scales, rows.present, head, v_factor_, v_scales);
      if (rotates_) rotate_keys(chunk_key, rows, head, next, next_head, k_scales);
      for (int64_t block = 0; block < layout_.blocks; ++block) {
        Step& step = pending_ == &steps_[0] ? steps_[1] : steps_[0];
        if (!whole) cut_rows(rows, head, step.cut);
        const ChunkRows& current = whole ? rows : step.cut;
        const std::byte* const* k_rows = rotates_ ? rotated_.k : current.k;
        const int64_t first_row = (first_block + block) * kernels_.rows;
        kernels_.dot({q_ + first_row * layout_.q_stride, nullptr, step.scores, k_rows,
                      rotates_ ? k_rows : next.k, k_offset,
                      rotates_ ? 0 : next_head * params_.k.head_stride, layout_.q_stride,
                      params_.k_dim});
        if (scales_k && !rotates_) kernels_.scale_scores(step.scores, k_scales);
        if (pending_ != nullptr) accumulate(*pending_);
        pending_ = &step;
        if (rules_apply) {
          step.hidden = modify_scores(
              {params_, sequence_, item_, chunk_key, rows.present, all_visible,
               block * kernels_.rows, layout_.rows, head * group_, group_, kernels_.rows},
              step.scores);
        } else {
          step.hidden = any_minus_infinity(step.scores, kernels_.rows * kChunk / kLanes);
        }
        store(step.alpha, kernels_.softmax(step.scores, states_[first_block + block]));
        if (scales_v) kernels_.scale_weights(step.scores, v_scales);
        step.v = {nullptr,
                  acc_ + first_row * layout_.acc_stride,
                  step.scores,
                  current.v,
                  next.v,
                  v_offset,
                  next_head * params_.v.head_stride,
                  layout_.acc_stride,
                  params_.v_dim};
      }
    }
  }

  void finish() {
    const int64_t heads = item_.head_end - item_.head_begin;
    const int keys = kLanes / kernels_.rows;
    for (int64_t head = 0; head < heads; ++head) {
      for (int64_t row = 0; row < layout_.rows; ++row) {
        const int64_t block = head * layout_.blocks + row / kernels_.rows;
        const int64_t first_lane = row % kernels_.rows * keys;
        alignas(64) float m[kLanes], l[kLanes];
        store(m, states_[block].m), store(l, states_[block].l);
        float* acc = acc_ + (head * layout_.blocks * kernels_.rows + row) * layout_.acc_stride;
        if (params_.v.dtype == DType::kBF16) join_pairs(acc, params_.v_dim);
        if (v_factor_ != 1.0f)
          for (int64_t d = 0; d < params_.v_dim; ++d) acc[d] *= v_factor_;
        // A visible NaN may have lost the maximum: the row is not one that saw nothing.
        const float row_max = l[first_lane] != l[first_lane] ? l[first_lane] : m[first_lane];
        store_row(params_, item_, item_.row_begin + row / group_,
                  (item_.head_begin + head) * group_ + row % group_, row_max, l[first_lane], acc);
      }
    }
  }

  const AttnParams& params_;
  const AttnItem& item_;
  const AttnSequence& sequence_;
  const VisibleKeys visible_;
  const KeyRotation key_rotation_;
  const bool rotates_;
  const int64_t group_;
  const ScratchLayout layout_;
  const DType k_type_;               // Element type of K in the dot products.
  const float k_factor_, v_factor_;  // See kLow.
  const BlockKernels kernels_;
  float* const q_;
  float* const acc_;
  SoftmaxState* const states_;
  float* const keys_;  // [kChunk][q_stride]: rotated K of one head and chunk.
  std::byte* const zeros_;
  ChunkRows rotated_;  // K only: rows of keys_, or zeros.
  Step steps_[2];
  Step* pending_ = nullptr;  // The step that is not accumulated yet.
};

}  // namespace decode

inline size_t attn_decode_scratch_bytes(const AttnParams& params, int64_t max_rows) {
  return static_cast<size_t>(decode::scratch_layout(params, max_rows, params.num_kv_heads).bytes);
}

inline void attn_decode(const AttnParams& params, const AttnItem& item, void* scratch) {
  decode::DecodeLoop(params, item, scratch).run();
}

}  // namespace
}  // namespace kvc::kernels::cpu
