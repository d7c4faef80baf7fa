// The class behind kvc_cache: composes pages, sequences, the open forward and attention.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "kvcache.h"
#include "src/attention/engine.h"
#include "src/forward/forward.h"
#include "src/pages/allocator.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"
#include "src/sequences/sequences.h"

namespace kvc {
class Cache;
}

// A caller's handle of one step. Lives in its cache, so that a dead handle is still recognised; reused after many steps.
struct kvc_forward {
  kvc::Cache* cache = nullptr;
  bool open = false;
};

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
};

// Every function throws Error or std::bad_alloc and has changed nothing then. Threads: as kvcache.h says for kvc_cache.
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
  Forward& forward() { return forward_; }
  const Forward& forward() const { return forward_; }
  AttentionEngine& engine() { return engine_; }
  const AttentionEngine& engine() const { return engine_; }

  void clear();
  void resize(int64_t num_pages);
  bool is_empty() const { return sequences_.size() == 0 && allocator_.num_used() == 0; }
  kvc_stats stats() const;
  // Throws CORRUPT naming the page or the sequence.
  void check() const;

  kvc_seq_info sequence_info(kvc_seq id) const;
  int64_t missing_pages(const BatchRequest& request) const;
  int64_t nearest_position(kvc_seq id, kvc_seq_op op, int64_t position) const;

  kvc_forward* begin(const BatchRequest& request);
  void end(kvc_forward* handle);
  void abort(kvc_forward* handle);
  // Refuses, by name, calls on caches without tensor memory. `what` is the function.
  void require_storage(const char* what) const;
  // Throws INVALID_STATE when the layer is not in this cache.
  int32_t require_layer(int32_t layer) const;
  // May the host have written the pool itself, through a borrowed tensor or an export?
  bool host_can_write_pool() const { return spec().storage == KVC_STORAGE_BORROWED || pool_exported_; }
  void mark_pool_exported() { pool_exported_ = true; }

  void debug_get(kvc_seq id, int64_t begin, int64_t end, const DLTensor* k, const DLTensor* v) const;
  void debug_set(kvc_seq id, int64_t begin, const DLTensor* k, const DLTensor* v);

 private:
  void make_private(Sequence& sequence, int64_t begin_page, int64_t end_page);
  void note_pages_used();

  static constexpr size_t kHandles = 16;

  std::shared_ptr<const Plan> plan_;
  PageAllocator allocator_;
  PagePool pool_;
  SequenceTable sequences_;
  Forward forward_;
  AttentionEngine engine_;
  std::array<kvc_forward, kHandles> handles_{};
  size_t next_handle_ = 0;
  CacheCounters counters_;
  bool pool_exported_ = false;
};

}  // namespace kvc
