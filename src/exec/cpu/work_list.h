// The schedule of one attention call on the CPU: its work items, and how threads run them. Keys are
// cut into KV chunks by a pure function of the sequence and the layer's shape. Results therefore do
// not depend on the number of threads, nor on the rest of the batch unless sequences may share a
// prefix. Cuts along heads and rows change no result and follow the number of threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kernels/cpu/table.h"
#include "kernels/params.h"
#include "src/base/executor.h"
#include "src/base/memory.h"
#include "src/exec/kv_chunks.h"

namespace kvc {

struct WorkShape {
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t k_dim;
  int32_t v_dim;
  bool causal;
  bool tiles_only;  // Batch-invariant mode: one arithmetic for prefill and decode.
  bool is_latent;   // The kernel for latents, best at 128 query rows and long splits.
  int32_t concurrency;

  int32_t group_size() const { return num_q_heads / num_kv_heads; }
  bool operator==(const WorkShape&) const = default;
};

// The first keys of several decode sequences, read once for all of them. One more entry of the
// sequence list stands for them: it holds the rows of all members, one member after the other.
struct SharedPrefix {
  struct Member {
    int32_t sequence;
    int64_t first_row;  // First of its rows inside the shared entry.
  };
  int32_t sequence;  // The shared entry.
  // Multiples of 64. Every row of every member attends to these keys, and every member has more.
  int64_t key_begin, key_end;
  std::vector<Member> members;
};

// Items [0, num_tile_items) run on the tile kernel, heaviest first. The others run on the decode
// kernel.
struct WorkList {
  std::vector<kernels::AttnItem> items;
  std::vector<kernels::AttnMergeGroup> groups;
  std::vector<int64_t> split_offsets;  // AttnParams::split_offsets
  int64_t num_tile_items = 0;
  int64_t partial_floats = 0;  // Size of the workspace for partial results.
  int64_t max_tile_rows = 0;   // Largest row_end - row_begin of a tile item.
  int64_t max_decode_rows = 0;
  double seconds = 0;  // Rough cost on one thread.

  int64_t host_bytes() const {
    return kvc::host_bytes(items) + kvc::host_bytes(groups) + kvc::host_bytes(split_offsets);
  }
};

// Keys per item of a shared prefix. Partial results are small beside so many keys.
constexpr int64_t kPrefixKeys = 2048;

// Keys per KV chunk of a decode item.
int64_t split_keys(const WorkShape& shape);

// Tokens of a tile, the last of a sequence aside.
int64_t tile_tokens(const WorkShape& shape);
// The most rows of a sequence whose items run on the decode kernel.
int64_t most_decode_rows(const WorkShape& shape);
// Whether the items of a sequence run on the decode kernel.
bool runs_on_decode(const WorkShape& shape, int64_t num_rows);

// Makes the list. Members of `prefixes` run on the decode kernel. Prefixes may nest: an outer one
// comes before its inner ones, which begin at its key_end. Members of an inner prefix follow each
// other in the outer one, in the same order. Throws std::bad_alloc.
void schedule_work(const kernels::AttnSequence* sequences, int64_t num_sequences,
                   const WorkShape& shape, std::span<const SharedPrefix> prefixes, WorkList* list);

// Runs a work list: scratch memory per worker, partial results and their reduction.

// Waking a sleeping thread costs 4 to 25 us; smaller calls stay on the caller's thread.
constexpr double kWorthThreads = 30e-6;

// The shape of a call. `params` has its heads, dims, rows and options.
WorkShape work_shape(const kernels::cpu::KernelTable& kernels, const kernels::AttnParams& params,
                     bool tiles_only, int32_t concurrency);

// One call at a time. Workspace grows and is kept, so that a steady decode allocates nothing.
class ItemRunner {
 public:
  // Borrows both.
  ItemRunner(const kernels::cpu::KernelTable* kernels, Executor* executor);

  // Everything that run() with the same arguments needs. Throws std::bad_alloc; call it before
  // anything is written.
  void secure(const WorkList& list, const kernels::AttnParams& params,
              const kernels::AttnParams* kept = nullptr);
  // Workspace (partials, split_offsets) is this object's, whatever `params` says. `kept`: the same
  // call with the kept rows for K and V, for items with kept_part; null: there are none.
  void run(const WorkList& list, const kernels::AttnParams& params,
           const kernels::AttnParams* kept = nullptr) noexcept;
  int64_t host_bytes() const {
    return buffer_bytes(scratch_) + partials_.host_bytes() +
           static_cast<int64_t>(finished_capacity_ * sizeof(std::atomic<int32_t>));
  }

 private:
  void run_item(const WorkList& list, const kernels::AttnParams& params,
                const kernels::AttnParams& kept, int64_t index, int32_t worker);

  const kernels::cpu::KernelTable* kernels_;
  Executor* executor_;
  std::vector<AlignedBuffer> scratch_;  // Per worker.
  AlignedBuffer partials_;
  std::unique_ptr<std::atomic<int32_t>[]> finished_;  // Chunks done, per reduction.
  size_t finished_capacity_ = 0;
};

}  // namespace kvc
