// The work list of attention on the device: what a persistent CTA does, and how partial results
// come together. Made by one pure function (planner/), on the host and on the device bit for bit
// the same.
#pragma once

#include <cstdint>

#include "kernels/target.h"
#include "kernels/params.h"

namespace kvc::cuda {

// Rows of the work are packed: row r of kv head h of a sequence is token row r / G, query head h*G
// + r % G, G = num_q_heads / num_kv_heads. So a decode step's G query heads that read one kv head
// lie in one tile of the matrix instructions.
//
// Rows [row_begin, row_begin + num_rows) x keys [key_begin, key_end), num_rows <=
// PlanShape::tile_rows. The kernel clips keys to what each row sees (kernels::AttnSequence); whole
// key blocks that no row sees (between sinks and window) are skipped, and may lie on dropped pages.
struct WorkItem {
  int32_t sequence;
  int32_t kv_head;
  int32_t row_begin;
  int32_t num_rows;
  int32_t key_begin;
  int32_t key_end;    // == key_begin: rows that see nothing, they get zeros
  int32_t slot;       // < 0: writes out and lse; else the partial slot
  int32_t sink_part;  // 1: q turns by sink_q_rotation
};
static_assert(sizeof(WorkItem) == 32);

// A partial slot holds for each of tile_rows rows: m (log2 units), l, then v_dim accumulators, all
// float32, un-normalised, as AttnItem::partial says. Row r of the item is row r of the slot.
KVC_HD int64_t slot_floats(int32_t tile_rows, int32_t v_dim) {
  return int64_t{tile_rows} * (2 + v_dim);
}

// Rows [row_begin, row_begin + num_rows) of a sequence and kv head are the merge of sources
// [first_source, first_source + num_sources), in this order.
struct MergeItem {
  int32_t sequence;
  int32_t kv_head;
  int32_t row_begin;
  int32_t num_rows;
  int32_t first_source;
  int32_t num_sources;
};
// Row i of the merge item is row `row` + i of slot `slot`.
struct MergeSource {
  int32_t slot;
  int32_t row;
};

// Lies on the device, at fixed addresses, sized for the declared most (planner/plan.h).
struct WorkPlan {
  int32_t* counts;  // [4]: items, merge items, merge sources, slots
  // [num_ctas + 1]: CTA c does items [cta_begin[c], cta_begin[c + 1]), in this order
  int32_t* cta_begin;
  WorkItem* items;
  MergeItem* merges;
  MergeSource* sources;
  float* partials;  // slots, each slot_floats long
  int32_t num_ctas;
  int32_t tile_rows;
};

// How rows are stored where they are not float32, float16 or bfloat16 (kvc_quant). Elements of 4
// bits: the first in the low half of a byte.
enum class Quant : int32_t { kNone = 0, kPerTensor = 1, kPerTokenHead = 2, kBlock16 = 3 };
enum class Stored : int32_t { kE4M3 = 0, kE5M2 = 1, kInt8 = 2, kInt4 = 3, kE2M1 = 4 };
struct RowStorage {
  Quant quant;
  Stored type;
  float scale;        // kPerTensor: value = element * scale
  std::byte* scales;  // kPerTokenHead: float32 per token and head; kBlock16: e4m3 per 16 elements
  int64_t scale_page_stride, scale_head_stride, scale_token_stride;  // bytes
};

// One attention launch. In `params` all pointers are the device's; `sequences` too. sinks and alibi
// are as the caller gave them (natural units, the kernel multiplies by log2(e)); partials and
// split_offsets are not used.
struct AttnLaunch {
  kernels::AttnParams params;
  WorkPlan plan;
  RowStorage k_storage,
      v_storage;  // quant kNone: params.k.dtype and params.v.dtype hold; else strides alone do
};

// Rows into the pool. num_rows_at (nullable): the count lies on the device and `num_rows` is the
// most it can be.
struct AppendLaunch {
  kernels::AppendParams params;  // slots on the device
  RowStorage k_storage, v_storage;
  int64_t num_rows;
  const int32_t* num_rows_at;
  int64_t num_slots = INT64_MAX;  // of the pool: rows whose slot is not below are left out
};

}  // namespace kvc::cuda
