// What a cache owns. The parts of a cache work on it (cache.h lists them); src/capi does not
// include it.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kvcache.h"
#include "src/cache/tier_blocks.h"
#include "src/device/device.h"
#include "src/device/gpu.h"
#include "src/exec/engine.h"
#include "src/pages/allocator.h"
#include "src/pages/pool.h"
#include "src/pages/state_pool.h"
#include "src/plan/plan.h"
#include "src/prefix/index.h"
#include "src/sequences/publisher.h"
#include "src/sequences/sequence.h"
#include "src/sequences/sequences.h"
#include "src/step/forward.h"

namespace kvc {

class StreamOrder;

// Memory of token histories that are gone, for those that come. Tokens and keys of a long prompt
// are hundreds of kilobytes, which the system hands out page by page: the next prompt writes over
// them. Two are kept, the larger first: a request that is attached and then published needs two.
class SpareHistories {
 public:
  void keep(TokenHistory& history) noexcept {
    for (TokenHistory& spare : spares_) {
      if (history.keys.capacity() > spare.keys.capacity()) std::swap(history.keys, spare.keys);
      if (history.ids.capacity() > spare.ids.capacity()) std::swap(history.ids, spare.ids);
    }
  }
  int64_t host_bytes() const { return spares_[0].host_bytes() + spares_[1].host_bytes(); }
  // Returns the larger one; its content is undefined.
  TokenHistory take() noexcept {
    std::swap(spares_[0], spares_[1]);
    return std::move(spares_[1]);
  }

 private:
  std::array<TokenHistory, 2> spares_;
};

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
  uint64_t values_saturated = 0;  // In rows that are set outside of forwards.
};

// Pages and states that something beside sequences and the index refers to, one reference each.
struct HeldPages {
  std::vector<PageId> pages;
  std::vector<StateSlot> states;
};

// Told of the rows that a forward writes, where somebody wants to know.
class RowObserver {
 public:
  virtual ~RowObserver() = default;
  // A call has written rows of the open forward in this layer.
  virtual void on_rows(int32_t local_layer) noexcept = 0;
  virtual void on_abort() noexcept = 0;  // Before the rows are gone.
  virtual void on_end() noexcept = 0;    // After the tokens have become the sequences'.
};

// Data first; the functions below are checks and sums that several parts share. Each check throws
// Error; `what` is the function that is refused, `action` a verb for the message.
struct CacheCore {
  // Throws Error or std::bad_alloc.
  explicit CacheCore(std::shared_ptr<const Plan> planned);
  CacheCore(const CacheCore&) = delete;
  CacheCore& operator=(const CacheCore&) = delete;

  const Spec& spec() const { return plan->spec(); }
  const LayerSpec& layer(int32_t local) const { return spec().layers[local]; }
  const GroupSpec& group(size_t index) const { return spec().groups[index]; }
  const GroupSpec& group_of(const LayerSpec& layer) const {
    return group(static_cast<size_t>(layer.group));
  }

  // DEVICE once the device has failed, in this call or before.
  void require_alive() const;
  // BUSY while a forward is open.
  void require_closed(const char* action) const;
  // UNSUPPORTED for a cache without tensor memory.
  void require_storage(const char* what) const;
  // UNSUPPORTED for a layer whose storage the kernels of the device do not read.
  void require_readable(int32_t local_layer, const char* what) const;
  // The library can rotate K of the layer that is stored rotated.
  bool can_rotate_keys(int32_t local_layer) const {
    return gpu() == nullptr ? layer(local_layer).is_k_served_by_cpu()
                            : layer(local_layer).k_quant == KVC_QUANT_NONE;
  }
  // UNSUPPORTED for a cache with CROSS layers, which publishes nothing.
  void require_prefix_index(const char* what) const;
  // OUT_OF_RANGE when the layer is not in this cache; returns its local index.
  int32_t require_layer(int32_t id) const;
  // The local layer whose pages a layer reads: its own, or its source's. UNSUPPORTED where it reads
  // none.
  int32_t require_paged_layer(int32_t id) const;
  // The layer's part of a page is not all of it. Throws UNSUPPORTED.
  void refuse_kept_rows(int32_t local_layer, const char* what) const;
  // OUT_OF_RANGE when there is no such layer group.
  void require_group(int32_t id) const;

  // The host may write the pool itself, through a borrowed tensor or an export.
  bool host_can_write_pool() const {
    return spec().storage == KVC_STORAGE_BORROWED || is_pool_exported;
  }
  // Nobody else writes the pool: every layer has to be written by the end of a forward.
  bool writes_pool_alone() const {
    return spec().storage == KVC_STORAGE_OWNED && !is_pool_exported;
  }
  // The sequence's entry in the batch of the open forward; null: it is not in it.
  const BatchEntry* entry_of(const Sequence& sequence) const {
    if (!sequence.in_forward()) return nullptr;
    return &forward.batch().entries()[sequence.batch_index];
  }
  // Nodes of the sequence's token tree, without those of the open forward.
  int64_t num_tree_nodes(const Sequence& sequence) const;
  // kvc_stats.host_bytes. O(1).
  int64_t host_bytes() const;
  // A forward has begun. Calls on it, which may run beside host_bytes(), change what is noted here;
  // for a host program that never asks, nothing is.
  void note_step_bytes() noexcept {
    if (is_asked_for_bytes_.load(std::memory_order_relaxed)) step_bytes_ = count_step_bytes();
  }
  void note_pages_used() {
    counters.pages_peak = std::max(counters.pages_peak, allocator.num_used());
    pool.note_pages(allocator);
  }

  std::shared_ptr<const Plan> plan;
  const Gpu found_gpu;  // None for a cache on the CPU.
  // The pool precedes its tables: a number of pages that cannot be had is refused before anything
  // of that size is filled.
  PagePool pool;
  PageAllocator allocator;
  StatePool states;
  HostPool host;
  StatePool host_states;
  // What the kind of device has: declared in this order, because the engine uses the device.
  struct Executors {
    std::unique_ptr<Device> device;
    std::unique_ptr<Engine> engine;
    StreamOrder* order = nullptr;  // Null on the CPU, where calls are complete on return.
  };
  const Executors executors;
  Device* const device;
  Engine* const engine;
  HostTier host_tier;
  PrefixIndex index;
  TierBlocks tiers;
  Publisher publisher;
  SequenceTable sequences;
  Forward forward;
  SpareHistories spare_histories;
  std::vector<const HeldPages*> holds;  // Those of transfers.
  RowObserver* observer = nullptr;      // Nullable.
  CacheCounters counters;
  int64_t num_swapped = 0;        // Sequences on the host.
  bool is_pool_exported = false;  // Once true for ever: the host may keep the tensor.

 private:
  const Gpu* gpu() const { return found_gpu.table == nullptr ? nullptr : &found_gpu; }
  Executors make_executors();
  int64_t count_step_bytes() const {
    return forward.host_bytes() + engine->host_bytes() + device->host_bytes();
  }

  mutable std::atomic<bool> is_asked_for_bytes_{false};
  int64_t step_bytes_ = 0;  // The forward's, engine's and device's, as of its begin.
};

// The slot of a token in the pages of its table.
inline int64_t slot_of(const PageTable& table, int64_t token, int64_t page_size) {
  return table.pages[token / page_size] * page_size + token % page_size;
}

}  // namespace kvc
