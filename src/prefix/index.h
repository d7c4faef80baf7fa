// The prefix index: which blocks of tokens lie in which pages, who may use them, which go first.
#pragma once

#include <cstdint>
#include <vector>

#include "src/pages/allocator.h"
#include "src/pages/state_pool.h"
#include "src/plan/plan.h"
#include "src/prefix/block_contents.h"
#include "src/prefix/block_events.h"
#include "src/prefix/block_tree.h"
#include "src/prefix/eviction.h"
#include "src/prefix/eviction_order.h"
#include "src/prefix/match.h"
#include "src/prefix/metrics.h"

namespace kvc {

// A full recount of the index, for audits. Throws CORRUPT when links, marks, heaps or quotas
// disagree. Adds the reference of each pin to page_refs [page] and state_refs [slot].
void check_index(const BlockTree& tree, const BlockContents& contents, const EvictionOrder& order,
                 const PageAllocator& allocator, const StatePool& states,
                 std::vector<int32_t>* page_refs, std::vector<int32_t>* state_refs);

// A block of a sequence that is to be published.
struct NewBlock {
  const BlockKey* key;
  NodeId parent;          // kNoNode: the first block of its namespace.
  const BlockKey* root;   // Root key of the namespace.
  const int32_t* tokens;  // Nullable, [block_tokens].
  const PageId* pages;    // [pages_per_block]; kNoPage where the sequence has dropped the page.
  StateSlot state;        // State at the end of the block; kInitialState: none was kept.
  int32_t priority;
  // A block behind it is inserted next, or touch() is called: no leaf yet.
  bool is_followed = false;
  // Tokens before its first extra key; kUnknownPlain where the caller gave the block's key.
  int32_t num_plain = kUnknownPlain;
};

// Blocks of tokens with their pages and states, found by key, evicted when their room is needed.
// BlockTree keeps keys and links, BlockContents pages and states, EvictionOrder the ranks; Eviction
// decides what leaves.
//
// The index owns no reference to a page or state, except through pins. An unreferenced page counts
// as available while it is indexed, and is evicted when the allocator needs it. A node on the
// device lacks a page where a window dropped it or an eviction took it.
//
// Pages of a (node, layer group) may lie in both tiers: a hit that needs some of them copies those
// back. The layer group counts as on the host until the last page is back (BlockContents).
//
// Pages that are evicted to the host are copied on the stream of the call.
//
// External exclusion for functions that are not const. Functions that are noexcept use room that
// reserve() made.
class PrefixIndex {
 public:
  // `host` may be null. All are borrowed. Throws std::bad_alloc.
  PrefixIndex(const Plan& plan, PageAllocator* allocator, StatePool* states, HostTier* host,
              int64_t event_capacity);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  int32_t block_tokens() const { return tree_.shape.block_tokens; }
  const BlockTree& blocks() const { return tree_; }
  // See BlockContents.
  void move_page(PageId from, PageId to) noexcept { contents_.move_page(from, to); }
  const BlockContents& contents() const { return contents_; }
  Eviction& eviction() { return eviction_; }
  const Eviction& eviction() const { return eviction_; }
  BlockEvents& events() { return events_; }
  const BlockEvents& events() const { return events_; }
  PrefixMetrics& metrics() { return metrics_; }

  // The longest hit of at most `max_tokens` tokens. Throws std::bad_alloc (keys are computed).
  PrefixMatch match(KeyChain& chain, int64_t max_tokens, bool whole_blocks,
                    const HostPages& host) const {
    return find_match(tree_, chain, max_tokens, whole_blocks, host);
  }

  // Uses and ages go by the time of the last call, of reserve() or of an eviction.
  void read_clock() noexcept { order_.read_clock(); }
  // Makes room for so many new blocks, and for their token ids when they have them. Reads the
  // clock. Throws std::bad_alloc.
  void reserve(int64_t num_blocks, bool with_tokens = true);
  // Publishes a block, or completes a known one with device pages and a state that it lacks. Pages
  // that the index already has on the device, or that another block owns, stay with the caller; the
  // caller takes over the pages of the index. Returns kNoNode when a quota, a lack of room or a
  // page of another block keeps a new block out.
  NodeId insert(const NewBlock& block, CallStream stream) noexcept;
  // The node and all before it were used now: O(1), plus the pages in the visible range at its end.
  // `hit`: by a lookup, which the metrics count. Raises priorities to `priority`.
  void touch(NodeId node, bool hit, int32_t priority) noexcept;
  // A host page was copied back to `device_page`, which the caller refers to. Releases the host
  // page. When the quota has no room the host page stays, and `device_page` is the caller's alone.
  void promoted(NodeId node, int32_t index, PageId device_page, CallStream stream) noexcept;
  // Until unlock(), nothing of the node and its ancestors leaves its place. For the time between a
  // match and the copies from the host.
  void lock(NodeId node) noexcept { add_locks(node, 1); }
  void unlock(NodeId node) noexcept { add_locks(node, -1); }

  // Refers to the pages and states from the first block to `node`, up to the first block that has
  // pages on the host or lacks one of full attention. Returns the number of blocks.
  int64_t pin(NodeId node) noexcept;
  // Returns how many blocks of the path were pinned.
  int64_t unpin(NodeId node) noexcept;
  // Throws OUT_OF_RANGE, std::bad_alloc.
  void set_quota(const BlockKey& root, uint64_t max_bytes, CallStream stream);
  // Forgets everything but quotas. Call it before the allocator and the states are cleared.
  void reset() noexcept;

  int64_t host_bytes() const {
    return tree_.host_bytes() + contents_.host_bytes() + order_.host_bytes() +
           events_.log().host_bytes() + metrics_.host_bytes();
  }
  // Sets the fields prefix_*, recent_*, block_* and events_*.
  void add_stats(kvc_stats* stats) const noexcept;
  // Recounts everything. Throws CORRUPT. Adds the reference of each pin to both arrays.
  void check(std::vector<int32_t>* page_refs, std::vector<int32_t>* state_refs) const {
    check_index(tree_, contents_, order_, *allocator_, *states_, page_refs, state_refs);
  }

 private:
  uint64_t missing_bytes(NodeId node, const NewBlock& block) const noexcept;
  bool has_foreign_pages(const NewBlock& block) const noexcept;
  bool fill(NodeId node, const NewBlock& block) noexcept;
  void add_locks(NodeId node, int32_t count) noexcept;

  PageAllocator* allocator_;
  StatePool* states_;
  HostTier* host_;
  BlockTree tree_;
  BlockContents contents_;
  EvictionOrder order_;
  BlockEvents events_;
  PrefixMetrics metrics_;
  Eviction eviction_;
  int64_t last_reserved_ = 0;  // Blocks that the last reserve() made room for.
};

}  // namespace kvc
