// The class behind kvc_cache: composes pages, sequences, the open forward and attention.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "kvcache.h"
#include "src/base/tensor.h"
#include "src/cache/forward_handles.h"
#include "src/cache/host_tier.h"
#include "src/device/device.h"
#include "src/exec/cpu/page_copies.h"
#include "src/exec/engine.h"
#include "src/exec/page_pairs.h"
#include "src/pages/allocator.h"
#include "src/pages/host_pool.h"
#include "src/pages/pool.h"
#include "src/pages/state_pool.h"
#include "src/plan/plan.h"
#include "src/prefix/index.h"
#include "src/sequences/publisher.h"
#include "src/sequences/sequences.h"
#include "src/step/forward.h"

namespace kvc {

// Counters since creation, see kvc_stats.
struct CacheCounters {
  int64_t pages_peak = 0;
  uint64_t forwards = 0;
  uint64_t forwards_aborted = 0;
  uint64_t tokens_appended = 0;
  uint64_t pages_copied = 0;
  uint64_t no_pages = 0;
  uint64_t step_bytes = 0;
  uint64_t step_copies = 0;
  uint64_t pages_swapped_out = 0;
  uint64_t pages_swapped_in = 0;
};

// Every function throws Error or std::bad_alloc and has changed nothing then. Threads: as kvcache.h
// says for kvc_cache.
class Cache {
 public:
  explicit Cache(std::shared_ptr<const Plan> plan);
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  const Plan& plan() const { return *plan_; }
  const Spec& spec() const { return plan_->spec(); }
  const PageAllocator& allocator() const { return allocator_; }
  const SequenceTable& sequences() const { return sequences_; }
  SequenceTable& sequences() { return sequences_; }
  const PagePool& pool() const { return pool_; }
  const StatePool& states() const { return states_; }
  PrefixIndex& index() { return index_; }
  const PrefixIndex& index() const { return index_; }
  Forward& forward() { return forward_; }
  const Forward& forward() const { return forward_; }
  Engine& engine() { return *engine_; }
  const Engine& engine() const { return *engine_; }

  void clear();
  void resize(int64_t num_pages);
  bool is_empty() const { return sequences_.size() == 0 && allocator_.num_used() == 0; }
  kvc_stats stats() const;
  // Throws CORRUPT naming the page or the sequence.
  void check() const;

  kvc_seq_info sequence_info(kvc_seq id) const;
  int64_t missing_pages(const BatchRequest& request) const;
  int64_t nearest_position(kvc_seq id, kvc_seq_op op, int64_t position) const;
  void shift(kvc_seq id, int64_t begin, int64_t end, int64_t delta);
  void remove(kvc_seq id);
  // Keeps the state at the sequence's length; on the edge of a block it has published, the index
  // gets it too.
  void checkpoint(kvc_seq id);

  // Whole sequences to the host pool and back.
  void swap_out(size_t num_seqs, const kvc_seq* seqs);
  void swap_in(size_t num_seqs, const kvc_seq* seqs);
  const HostPool& host() const { return host_; }
  // Copies by page ids, checked; kvc_pages_swap and kvc_pages_copy.
  void swap_pages(const DLTensor* pairs, kvc_swap_direction direction);
  void copy_pages(const DLTensor* pairs);

  // The prefix index. Each returns the tokens that its function reports.
  int64_t prefix_match(const PrefixQuery& query) const;
  int64_t prefix_attach(kvc_seq id, const PrefixQuery& query);
  int64_t prefix_insert(kvc_seq id, const PrefixQuery& query);
  int64_t prefix_pin(const PrefixQuery& query);
  int64_t prefix_unpin(const PrefixQuery& query);
  int64_t prefix_evict(int64_t pages);  // pages that left the device
  void prefix_reset();
  // Refuses, by name, what a cache with CROSS layers cannot publish.
  void require_prefix_index(const char* what) const;

  kvc_forward* begin(const BatchRequest& request, GivenPositions given, bool is_replay = false,
                     bool is_partial = false);
  // Throws INVALID_STATE naming the layers that had to be written and were not.
  void end();
  void abort();
  // Keeps root -> leaves[i] of each sequence's tree.
  void commit_trees(size_t num_seqs, const kvc_seq* seqs, const int32_t* leaves);
  // Refuses, by name, calls on caches without tensor memory. `what` is the function.
  void require_storage(const char* what) const;
  // Refuses layers of quantised storage, which the kernels here do not read.
  void require_plain(int32_t local_layer, const char* what) const;
  // The same where the device's kernels don't read them either.
  void require_readable(int32_t local_layer, const char* what) const {
    if (!engine_->reads_quantised()) require_plain(local_layer, what);
  }
  // Throws INVALID_STATE when the layer is not in this cache.
  int32_t require_layer(int32_t layer) const;
  // And when it is of another kind; `what` is the function.
  int32_t require_state_layer(int32_t layer, int32_t state, const char* what) const;
  // Throws OUT_OF_RANGE.
  int32_t require_group(int32_t group) const;
  // May the host have written the pool itself, through a borrowed tensor or an export?
  bool host_can_write_pool() const {
    return spec().storage == KVC_STORAGE_BORROWED || pool_exported_;
  }
  void mark_pool_exported() { pool_exported_ = true; }
  // Nobody else can: then every layer has to be written by the forward's end.
  bool writes_pool_alone() const { return spec().storage == KVC_STORAGE_OWNED && !pool_exported_; }

  // Rows of one layer, by token; `global` names the layer in messages.
  struct LayerRows {
    int32_t local_layer;
    kernels::TokenRows k;  // base null: left out
    kernels::TokenRows v;
  };
  // Throws NOT_FOUND, OUT_OF_RANGE.
  void check_token_range(kvc_seq id, int64_t begin, int64_t end) const;
  void debug_get(kvc_seq id, int64_t begin, int64_t end, const std::vector<LayerRows>& layers,
                 kvc_stream stream) const;
  void debug_set(kvc_seq id, int64_t begin, int64_t count, const std::vector<LayerRows>& layers);
  void debug_get_state(kvc_seq id, int32_t local_layer, int32_t state, const StateRows& out,
                       kvc_stream stream) const;
  void debug_set_state(kvc_seq id, int32_t local_layer, int32_t state, const StateRows& value);

 private:
  template <typename Count>
  void check_table(const Sequence& sequence, size_t group, int64_t stored,
                   const Count& count) const;
  void check_host(const std::vector<int32_t>& refs) const;
  void check_counts(const std::vector<int32_t>& refs) const;
  void require_tokens(const Sequence& sequence, int64_t begin, int64_t end,
                      const std::vector<LayerRows>& layers) const;
  // Pages of [begin, end) tokens, in the groups that are marked, that others hold or the prefix
  // index knows.
  struct SharedPages {
    int64_t held = 0;  // by others: have to be copied
    // Known to the index alone: copied as long as pages are free, else forgotten there
    int64_t cached = 0;

    SharedPages& operator+=(const SharedPages& other);
  };
  template <typename Visit>
  void visit_shared_pages(const Sequence& sequence, int64_t begin, int64_t end,
                          const std::vector<uint8_t>& groups, Visit&& visit) const;
  SharedPages count_shared_pages(const Sequence& sequence, int64_t begin, int64_t end,
                                 const std::vector<uint8_t>& groups) const;
  // Throws NO_PAGES. Returns whether the index has to forget the cached ones.
  bool require_private_pages(const Sequence& sequence, const SharedPages& shared) const;
  // Gives the sequence pages of its own there; what has to be copied is added to `copies`, which
  // has room for it.
  void take_private(Sequence& sequence, int64_t begin, int64_t end,
                    const std::vector<uint8_t>& groups, bool forget_cached,
                    std::vector<PageCopy>& copies) noexcept;
  // Room for the copies of so many pages. Throws.
  std::vector<PageCopy> prepare_private(const SharedPages& shared, bool forget_cached);
  void copy_private(const std::vector<PageCopy>& copies) noexcept;
  struct Side;
  struct Moves;
  std::vector<Sequence*> swappable(size_t num_seqs, const kvc_seq* seqs, bool is_swapped,
                                   const char* what) const;
  void move_sequences(const std::vector<Sequence*>& sequences, const Side& from, const Side& to,
                      Moves& pages, Moves& slots, CopyDirection direction) noexcept;
  bool moves_whole_pages(size_t group, int64_t begin, int64_t end) const;
  void require_closed(const char* what) const;
  struct AttachPlan;
  AttachPlan plan_attach(KeyChain& chain) const;
  PrefixMatch fetch_match(KeyChain& chain, const AttachPlan& plan) noexcept;
  void keep_memory(TokenHistory& history) noexcept;
  TokenHistory take_memory() noexcept;
  // Is it known of every stored K by what it was rotated, so that a shift can turn it on?
  bool can_turn_keys() const;
  void close_gap(Sequence& sequence, int64_t begin, int64_t end) noexcept;
  void turn_keys(Sequence& sequence, int64_t begin, int64_t delta) noexcept;
  int64_t move_path(Sequence& sequence, int32_t leaf) noexcept;
  void keep_path(Sequence& sequence, int64_t num_kept) noexcept;
  void note_pages_used();
  int64_t num_unused_slots() const;
  int64_t committable_nodes(const Sequence& sequence) const;

  const Device* gpu() const { return device_.table == nullptr ? nullptr : &device_; }
  void make_engine();

  std::shared_ptr<const Plan> plan_;
  Device device_;  // of a cache on a GPU, else none
  // Before its tables: too many pages are refused before anything of their number is filled
  PagePool pool_;
  PageAllocator allocator_;
  StatePool states_;
  HostPool host_;
  StatePool host_states_;
  std::unique_ptr<Engine> engine_;
  std::unique_ptr<PageCopier> copier_;
  PoolHostTier host_tier_;
  PoolPageMover page_mover_;
  PrefixIndex index_;
  Publisher publisher_;
  SequenceTable sequences_;
  Forward forward_;
  int64_t num_swapped_ = 0;
  CacheCounters counters_;
  // Memory of sequences that are gone, the larger first: a request that is attached and then
  // published needs two.
  std::array<TokenHistory, 2> spare_histories_;
  bool pool_exported_ = false;
  ForwardHandle handle_{this};  // last: no call finds a cache that is half gone
};

}  // namespace kvc
