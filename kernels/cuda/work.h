// The work list of attention on the device: the work items of each persistent CTA, and the
// reductions of partial results. One pure function (schedule/) makes it on the host and on the
// device, with the same bits.
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "kernels/target.h"

namespace kvc::cuda {

// Rows are packed: row r of KV head h of a sequence is token row r / G and query head h * G + r %
// G, with G = num_q_heads / num_kv_heads. So the G query heads of a decode step that read one KV
// head share one tile of the matrix instructions.
//
// A work item covers rows [row_begin, row_begin + num_rows) and keys [key_begin, key_end), with
// num_rows <= ScheduleShape::tile_rows. The kernel clips the keys to the visible range of each row
// (kernels::AttnSequence). It skips key blocks that are masked in every row (between sink tokens
// and window), which may lie on dropped pages.
struct WorkItem {
  int32_t sequence;
  int32_t kv_head;
  int32_t row_begin;
  int32_t num_rows;
  int32_t key_begin;
  int32_t key_end;    // == key_begin: the rows see no key and get zeros.
  int32_t split;      // < 0: the item writes out and lse. Otherwise it writes this split.
  int32_t sink_part;  // 1: q is rotated by sink_q_rotation.
};
static_assert(sizeof(WorkItem) == 32);

// The size of a split, the partial result of one work item. Each of its tile_rows rows holds m
// (log2 units), l, then v_dim accumulators: all float32 and un-normalised, as in AttnItem::partial.
// Row r of the item is row r of the split.
KVC_HD int64_t split_floats(int32_t tile_rows, int32_t v_dim) {
  return int64_t{tile_rows} * (2 + v_dim);
}

// Rows [row_begin, row_begin + num_rows) of a sequence and KV head are reduced from sources
// [first_source, first_source + num_sources), in this order.
struct ReduceItem {
  int32_t sequence;
  int32_t kv_head;
  int32_t row_begin;
  int32_t num_rows;
  int32_t first_source;
  int32_t num_sources;
};
// Row i of a ReduceItem is row `row` + i of split `split`.
struct ReduceSource {
  int32_t split;
  int32_t row;
};

// Lies on the device at fixed addresses, sized for the declared limits (schedule/bounds.h).
struct WorkSchedule {
  int32_t* counts;  // [4]: items, reductions, sources, splits.
  // [num_ctas + 1]: CTA c runs items [cta_begin[c], cta_begin[c + 1]) in this order.
  int32_t* cta_begin;
  WorkItem* items;
  ReduceItem* reductions;
  ReduceSource* sources;
  float* partials;  // The splits, split_floats() floats each.
  int32_t num_ctas;
  int32_t tile_rows;
};

// The storage of rows that are not float32, float16 or bfloat16 (kvc_quant). Of two 4-bit elements
// the first lies in the low half of the byte.
enum class Quant : int32_t { kNone = 0, kPerTensor = 1, kPerTokenHead = 2, kBlock16 = 3 };
enum class Stored : int32_t { kE4M3 = 0, kE5M2 = 1, kInt8 = 2, kInt4 = 3, kE2M1 = 4 };
struct RowStorage {
  Quant quant;
  Stored type;
  float scale;  // kPerTensor: value = element * scale.
  // kPerTokenHead: one float32 per token and head. kBlock16: one e4m3 per 16 elements.
  std::byte* scales;
  int64_t scale_page_stride, scale_head_stride, scale_token_stride;  // Bytes.
};

// One attention launch. All pointers in `params` are device pointers, `sequences` included. sinks
// (sink logits) and alibi are in natural units; the kernel multiplies by log2(e). partials and
// split_offsets are not used.
struct AttnLaunch {
  kernels::AttnParams params;
  WorkSchedule schedule;
  RowStorage k_storage,
      // With quant kNone, params.k.dtype and params.v.dtype apply. Otherwise only the strides of
      // params.k and params.v do.
      v_storage;
};

// Appends rows to the pool. num_rows_at (nullable): the count lies on the device, and `num_rows` is
// its upper bound.
struct AppendLaunch {
  kernels::AppendParams params;  // The slots lie on the device.
  RowStorage k_storage, v_storage;
  int64_t num_rows;
  const int32_t* num_rows_at;
  int64_t num_slots = INT64_MAX;  // Slots of the pool. Rows with a slot beyond them are skipped.
};

}  // namespace kvc::cuda
