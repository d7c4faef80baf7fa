// Plain-data parameters shared by every kernel back end: no C++ types, no ownership, no allocation.
//
// The host layers (src/) fill these structs; kernels/reference, kernels/cpu and kernels/cuda read
// them. All pointers are borrowed for the call. All strides are in bytes unless the name says
// otherwise.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvc::kernels {

// Element types a tensor or the pool may have. Values are internal, not part of the C ABI. Those of
// 8 bits are quantised rows of the pool (RowScales) and no types of a tensor. CPU only: on CUDA
// RowStorage names them.
enum class DType : int32_t {
  kF32 = 0,
  kF16 = 1,
  kBF16 = 2,
  kInt8 = 3,
  kE4M3 = 4,
  kE5M2 = 5,
  // Inside decode kernels: an e4m3 element read as 2^-120 of its value, which a shift of its byte
  // is. NaN is read as 480.
  kE4M3Low = 6
};

// A bias counts as at most so much either way, but for -inf, which masks: log2(e) times more is no
// float32.
constexpr float kMaxBias = 2.35e38f;

constexpr bool is_quantised(DType dtype) { return dtype >= DType::kInt8; }
constexpr int64_t dtype_bytes(DType dtype) {
  return dtype == DType::kF32 ? 4 : is_quantised(dtype) ? 1 : 2;
}

// The scales of quantised rows: value = element * scale. With `base` there is one float32 per token
// and head, which an append writes; without it all rows have `shared`. CPU only: on CUDA RowStorage
// has them.
//   scale(page, head, offset) at base + page*page_stride + head*head_stride + offset*token_stride
struct RowScales {
  std::byte* base = nullptr;
  int64_t page_stride = 0;
  int64_t head_stride = 0;
  int64_t token_stride = 0;
  float shared = 1;
};

// The K half or the V half of one layer in the pool: the only place where page addresses are
// computed.
//   row(page, head, offset) = base + page*page_stride + head*head_stride + offset*token_stride
// The elements of a row are contiguous. Both pool layouts, the host's own pools (HND, NHD) and
// ragged
// tensors (one page of any length per sequence) are expressed by strides alone.
struct PagedRows {
  std::byte* base;
  int64_t page_stride;
  int64_t head_stride;
  int64_t token_stride;
  DType dtype;
  RowScales scales{};
};

[[gnu::always_inline]] static inline std::byte* row_address(const PagedRows& rows, int64_t page,
                                                            int64_t head, int64_t offset) {
  return rows.base + page * rows.page_stride + head * rows.head_stride + offset * rows.token_stride;
}

// Of rows with RowScales::base.
[[gnu::always_inline]] static inline std::byte* scale_address(const PagedRows& rows, int64_t page,
                                                              int64_t head, int64_t offset) {
  return rows.scales.base + page * rows.scales.page_stride + head * rows.scales.head_stride +
         offset * rows.scales.token_stride;
}

// The scale of a row, 1 where it is not quantised.
[[gnu::always_inline]] static inline float row_scale(const PagedRows& rows, int64_t page,
                                                     int64_t head, int64_t offset) {
  if (rows.scales.base == nullptr) return rows.scales.shared;
  float scale;
  __builtin_memcpy(&scale, scale_address(rows, page, head, offset), sizeof scale);
  return scale;
}

// Packed tokens x heads x dim, as the caller's tensor has it; dim is contiguous, the strides are
// free.
struct TokenRows {
  std::byte* base;
  int64_t token_stride;
  int64_t head_stride;
  DType dtype;
};

// Rotation of `rotary_dim` elements of a head (0: none) from element `begin` on. cos and sin are
// [rows][rotary_dim/2] float32; which row belongs to a vector is said where the rotation is used.
// half split:   pairs (i, i + rotary_dim/2)     interleaved: pairs (2i, 2i+1)     i counted from
// `begin`
//   x' = x*cos - y*sin,  y' = x*sin + y*cos
struct Rotation {
  const float* cos;
  const float* sin;
  int32_t rotary_dim;
  int32_t interleaved;
  int32_t begin;

  Rotation from(int32_t element) const {
    Rotation rotation = *this;
    rotation.begin = element;
    return rotation;
  }
};

// Places [begin, end) of a page table are dropped pages without an entry; those from `end` on
// follow at once. CPU only: tables on a device have all entries.
struct TableGap {
  int64_t begin, end;
};

// The page at a place; -1: dropped.
inline int64_t page_at(const int32_t* pages, const TableGap& gap, int64_t place) {
  if (place < gap.end) return place < gap.begin ? pages[place] : -1;
  return pages[place - (gap.end - gap.begin)];
}

// Token rows and keys of attention: one sequence of the batch, or a prefix that several of its
// sequences share. Row i (0 <= i < num_rows) is packed token row_map[i], or row_begin + i without a
// map.
//
// Key k is visible to row i exactly when all of these hold:
//   k < end(i)                                 end(i): key_ends[i], or without them first_key_end,
//                                              plus i where the call is causal
//   k >= key_begins[i] or k < sink_end         windows, chunks; without key_begins: always
//   k < tree_begin or bit (k - tree_begin) of row i of tree_mask      without tree_mask: always
// Keys that are masked in every row of an item may lie on dropped pages: a page table entry < 0,
// which is never read.
struct AttnSequence {
  const int32_t* pages;   // Page table; key k is at pages[k / page_size], slot k % page_size.
  int64_t row_begin;      // First packed row in q, out, lse.
  int64_t num_rows;       // Token rows.
  int64_t first_key_end;  // end(0)
  int64_t position;       // Absolute position of row 0 (ALiBi).
  int64_t key_position;   // Absolute position of key 0 (ALiBi, key rotation), its bias column.
  // From here on: all zero for a plain causal sequence.
  const int32_t* row_map;     // Nullable [num_rows]
  const int32_t* key_begins;  // Nullable [num_rows]
  const int32_t* key_ends;    // Nullable [num_rows], never decreasing.
  int64_t sink_end;
  int64_t tree_begin;         // Key of the tree's node 0.
  const uint64_t* tree_mask;  // Nullable [num_rows][tree_words]
  int64_t tree_words;         // (nodes + 63) / 64; a row's bits beyond its end(i) do not matter.
  // Nullable [num_rows]: absolute positions of the rows; else position + i.
  const int32_t* row_positions;
  const int32_t* key_positions;  // Nullable, per key: absolute positions; else key_position + k.
  int64_t k_rotation_index;      // Which of AttnParams::k_rotations turns its keys.
  // Nullable: turns its keys in place of that, except in items with sink_part, by row
  // key - own_rotation_begin, from k_rotations[0].begin on. CPU only.
  const Rotation* own_k_rotation;
  int64_t own_rotation_begin;
  // Keys before it meet q that is rotated by sink_q_rotation: a chunk of keys ends there. CPU only.
  int64_t sink_q_end;
  // Keys before it are read from kept rows: a chunk of keys ends there. CPU only.
  int64_t kept_end;
  TableGap gap;  // Places of `pages` without an entry.

  int64_t page(int64_t place) const { return page_at(pages, gap, place); }
};

// What one attention call computes for every item. Scores are in log2 units:
//   s = dot(q * q_scale, k)                       q_scale = scale * log2(e)
//   s = softcap * tanh(s)                         with a soft cap: q_scale = scale / cap, softcap =
//                                                 cap * log2(e); without one softcap = 0
//   s += -alibi[h] * (q_position - k_position)    alibi pre-multiplied by log2(e)
//   s += bias[...] * log2(e)                      bias as the caller gave it
//   m = max s, l = sum 2^(s-m), O = sum 2^(s-m) V / (l + 2^(sink-m)), lse = ln(2) * (m + log2(l))
// Sink logits are pre-multiplied by log2(e). They enter the denominator of O only, never the LSE.
// A row without a visible key, or with every score -inf: O = 0, lse = -inf.
// Masked keys and unused slots may hold NaN or Inf, which must not reach an output.
struct AttnParams {
  // [T][num_q_heads][k_dim], as the caller gave it (not rotated, not scaled).
  TokenRows q;
  Rotation q_rotation;       // Applied to q while it is loaded; row = packed token.
  Rotation sink_q_rotation;  // The same for items with sink_part.
  // Applied to K while it is read; rotary_dim 0: K is stored rotated, or has no RoPE. Row =
  // absolute key position; on CUDA two rows where that is far (cuda/step.h).
  Rotation k_rotations[2];
  float q_scale;      // Multiplies q after the rotation.
  PagedRows k;        // k_dim elements per row.
  PagedRows v;        // v_dim elements per row; may be the K rows or their beginning (MLA, K = V).
  int32_t page_size;  // Tokens per page, any value >= 1.
  int32_t num_q_heads;
  int32_t num_kv_heads;  // q head h reads kv head h / (num_q_heads / num_kv_heads).
  int32_t k_dim;
  int32_t v_dim;
  int32_t causal;      // See AttnSequence.
  float softcap;       // 0: off.
  const float* sinks;  // Nullable [num_q_heads]
  const float* alibi;  // Nullable [num_q_heads]
  // Nullable; element (h, t, j) at bias + h*bias_head_stride + t*bias_token_stride + j.
  const float* bias;
  int64_t bias_head_stride;  // In elements; 0: the same for all heads.
  // In elements; t = packed row, j = key_position + k: the key's place, wherever it stands.
  int64_t bias_token_stride;
  TokenRows out;             // [T][num_q_heads][v_dim]
  float* lse;                // Nullable; element (t, h) at lse + t*lse_token_stride + h.
  int64_t lse_token_stride;  // In elements.
  const AttnSequence* sequences;
  float* partials;               // Workspace for split items, see AttnItem::partial.
  const int64_t* split_offsets;  // See AttnMergeGroup.
};

// A work item: rows x KV heads x keys of one sequence. Rows are token rows of the sequence. Each
// stands for the num_q_heads / num_kv_heads query heads of every KV head in [head_begin, head_end).
// partial < 0: the item covers every visible key and writes out and lse itself. Otherwise it writes
// un-normalised partial results at partials + partial, in floats, laid out
//   [row in item][q head in item][2 + v_dim]:  m (log2), l, then v_dim accumulators;
// an empty one is m = -inf, l = 0, accumulators 0.
// The keys of a tile item begin at a multiple of 64, or where sink tokens end. Between sink tokens
// and window an item may have keys that are masked in every row; kernels skip whole blocks of them.
struct AttnItem {
  int32_t sequence;
  int32_t head_begin, head_end;  // Kv heads.
  int32_t sink_part;             // 1: q turns by sink_q_rotation.
  // First of the plan's merge groups that take this partial; -1 when partial < 0.
  int32_t merge_group;
  int32_t num_merge_groups;    // 1, or one per sequence of a shared prefix.
  int64_t row_begin, row_end;  // Token rows inside the sequence.
  int64_t key_begin,
      key_end;  // Absolute range of keys; a kernel clips it to the visible range of each row.
  int64_t partial;
  int32_t kept_part = 0;  // 1: the keys are kept rows. For whoever runs the item: their parameters.
};

// The splits of one output. Whoever finishes the last of them merges all in index order, so that
// the result depends on nothing but where keys are split. Split s of row row_begin lies at partials
// + split_offsets[first_split + s]; the next rows follow it: all splits of a group have the same
// heads.
struct AttnMergeGroup {
  int32_t sequence;  // Sequence that the rows belong to.
  int32_t head_begin, head_end;
  int32_t num_splits;
  int64_t row_begin, row_end;
  int64_t first_split;
};

// Write new rows into the pool: rotate K, convert, store. slot = page*page_size + offset, < 0: skip
// the row. Quantised rows are made of float32 values v:
//   scale = max(max |v| / largest element, 2^-126)    with RowScales::base; else RowScales::shared
//   element = v / scale, rounded to nearest even and saturated
// With RowScales::base a row with a NaN or an infinity gets elements 0 and the scale NaN: all of it
// is NaN. Otherwise NaN stays NaN, or becomes 0 in int8.
struct AppendParams {
  TokenRows k, v;       // [T][num_kv_heads][dim]; v.base null: K only (and the other way round).
  Rotation k_rotation;  // Applied to k before it is stored; row = packed token.
  PagedRows k_pages, v_pages;
  const int64_t* slots;  // [T]
  int32_t page_size;
  int32_t num_kv_heads;
  int32_t k_dim, v_dim;
};

// Read rows [key_begin, key_end) of one sequence out of the pool, one half (K or V) per call,
// converted to out.dtype.
struct GatherParams {
  PagedRows rows;
  const int32_t* pages;
  TokenRows out;  // Row k - key_begin of out receives key k.
  int32_t page_size;
  int32_t num_heads;
  int32_t dim;
  // Keys from rotate_from on are rotated by its only row; rotary_dim 0: none. CPU only.
  Rotation rotation{};
  int64_t rotate_from = 0;
  TableGap gap{};  // Places of `pages` without an entry. CPU only.
};

// out, lse <- merge(out, lse, other_out, other_lse): softmax-weighted by natural-log LSEs, in
// place. Either LSE -inf: the other part unchanged; both: O = 0, lse = -inf.
struct MergeParams {
  TokenRows out, other_out;  // [T][num_heads][dim]
  float* lse;                // (t, h) at lse + t*lse_token_stride + h.
  const float* other_lse;
  int64_t lse_token_stride, other_lse_token_stride;  // In elements.
  int32_t num_heads;
  int32_t dim;
};

}  // namespace kvc::kernels
