// Cuts one attention call into pieces of work. A pure function of the sequences' lengths and the layer's shape: where a sequence is
// cut along its keys never depends on threads or on the rest of the batch, so neither do results. (Cuts along heads and rows don't change any result,
// so those may follow the number of threads.)
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"

namespace kvc {

struct WorkShape {
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t k_dim;
  int32_t v_dim;
  bool causal;
  bool tiles_only;  // batch-invariant mode: one arithmetic for prefill and decode
  int32_t concurrency;

  int32_t group_size() const { return num_q_heads / num_kv_heads; }
  bool operator==(const WorkShape&) const = default;
};

// Items [0, num_tile_items) run on the tile kernel, heaviest first; the others on the decode kernel.
struct WorkList {
  std::vector<kernels::AttnItem> items;
  std::vector<kernels::AttnMergeGroup> groups;
  int64_t num_tile_items = 0;
  int64_t partial_floats = 0;  // size of the partials workspace
  int64_t max_tile_rows = 0;   // largest row_end - row_begin of a tile item
  int64_t max_decode_rows = 0;
  double seconds = 0;  // rough cost on one thread: below some 30 us waking threads does not pay
};

// Keys per split of a decode item: a constant, see the comment on top.
constexpr int64_t kSplitKeys = 512;

// Throws std::bad_alloc.
void plan_work(const kernels::AttnSequence* sequences, int64_t num_sequences, const WorkShape& shape,
               WorkList* list);

}  // namespace kvc
