// Cuts one attention call into pieces of work. A pure function of the sequences' lengths and masks
// and the layer's shape: where a sequence is cut along its keys never depends on threads or on the
// rest of the batch, so neither do results, unless the caller lets sequences share a prefix. (Cuts
// along heads and rows don't change any result, so those may follow the number of threads.)
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "kernels/params.h"
#include "src/exec/key_pieces.h"

namespace kvc {

struct WorkShape {
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t k_dim;
  int32_t v_dim;
  bool causal;
  bool tiles_only;  // batch-invariant mode: one arithmetic for prefill and decode
  // The queries of sinks turn differently: [0, sink_end) becomes an item with sink_part = 1
  bool split_sinks;
  // Both kernels are the one for latents, which is best at 128 query rows and at long splits
  bool is_latent;
  int32_t concurrency;

  int32_t group_size() const { return num_q_heads / num_kv_heads; }
  bool operator==(const WorkShape&) const = default;
};

// The first keys of several decode sequences, read once for all of them. They are those of one more
// entry of the list of sequences, which holds the rows of all members one after the other and gets
// no items but these.
struct SharedPrefix {
  struct Member {
    int32_t sequence;
    int64_t first_row;  // of its rows, inside the shared entry
  };
  int32_t sequence;  // the shared entry
  int64_t key_begin,
      // Multiples of 64; every row of every member sees them; they are no member's last keys
      key_end;
  std::vector<Member> members;
};

// Items [0, num_tile_items) run on the tile kernel, heaviest first; the others on the decode
// kernel.
struct WorkList {
  std::vector<kernels::AttnItem> items;
  std::vector<kernels::AttnMergeGroup> groups;
  std::vector<int64_t> split_offsets;  // AttnParams::split_offsets
  int64_t num_tile_items = 0;
  int64_t partial_floats = 0;  // size of the partials workspace
  int64_t max_tile_rows = 0;   // largest row_end - row_begin of a tile item
  int64_t max_decode_rows = 0;
  double seconds = 0;  // rough cost on one thread: below some 30 us waking threads does not pay
};

// Keys per item of a shared prefix: long enough that partial results are little beside the keys.
constexpr int64_t kPrefixKeys = 2048;

// Keys per split of a decode item.
int64_t split_keys(const WorkShape& shape);

// Whether a sequence's items run on the decode kernel.
bool runs_on_decode(const WorkShape& shape, int64_t num_rows);

// `prefixes` may nest: an outer one comes before the inner ones, whose key_begin is its key_end and
// whose members follow each other in it, in the same order. Members run on the decode kernel.
// Throws std::bad_alloc.
void plan_work(const kernels::AttnSequence* sequences, int64_t num_sequences,
               const WorkShape& shape, std::span<const SharedPrefix> prefixes, WorkList* list);

}  // namespace kvc
