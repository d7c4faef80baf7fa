// The prefix index: which blocks of tokens lie in which pages, who may use them, which go first.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/pages/allocator.h"
#include "src/pages/state_pool.h"
#include "src/plan/plan.h"
#include "src/prefix/events.h"
#include "src/prefix/eviction_heap.h"
#include "src/prefix/key_table.h"
#include "src/prefix/keys.h"
#include "src/prefix/metrics.h"
#include "src/prefix/namespaces.h"
#include "src/prefix/node_pool.h"

namespace kvc {

// Copies pages inside the device.
class PageMover {
 public:
  virtual ~PageMover() = default;
  virtual void copy(PageId from, PageId to) noexcept = 0;
};

// Slower memory for evicted pages. None of these throws.
class HostTier {
 public:
  virtual ~HostTier() = default;
  virtual int64_t num_available() const noexcept = 0;
  // Copies a device page there and returns its host page; kNoPage when full.
  virtual PageId demote(PageId device_page) noexcept = 0;
  // Copies; the host page stays
  virtual void promote(PageId host_page, PageId device_page) noexcept = 0;
  virtual void release(PageId host_page) noexcept = 0;
};

struct PrefixMatch {
  int64_t num_tokens = 0;  // hit, those of the tail included
  int64_t num_blocks = 0;  // whole ones
  NodeId last = kNoNode;   // of block num_blocks - 1; its parents are the blocks before
  NodeId tail = kNoNode;   // whose first tail_tokens tokens hit as well
  int64_t tail_tokens = 0;
};

// A page of a block, wherever it lies.
struct BlockPage {
  NodeId node;
  int32_t index;

  friend bool operator<(const BlockPage& a, const BlockPage& b) {
    return a.node != b.node ? a.node < b.node : a.index < b.index;
  }
};

// Which pages on the host a match counts as there.
struct HostPages {
  bool all = false;
  const std::vector<BlockPage>* some = nullptr;  // Sorted. Nullable: none.
};

// A block that a sequence holds and wants known. `pages`: [pages_per_block()] in the order of
// page(): kNoPage where the sequence has dropped it.
struct NewBlock {
  const BlockKey* key;
  NodeId parent;          // kNoNode: the first of its namespace
  const BlockKey* root;   // of the namespace
  const int32_t* tokens;  // nullable, [block_tokens]
  const PageId* pages;
  StateSlot state;  // at the block's end; kInitialState: not kept
  int32_t priority;
  // A block behind it is inserted next, or touch() is called: not yet a leaf to be found.
  bool is_followed = false;
};

// A tree of blocks, found by their keys. Each node has pages_per_block() page places (per group
// block / page_size of them, in the order of groups; cross groups have none) and maybe a state.
// The pages that it knows on the device are marked cached in the allocator, its states in the
// StatePool; the index is no holder, so what nobody else holds can be evicted, and counts as free.
// A page or state is known to one node at most.
//
// Order of eviction: nodes without quota before nodes with one; lower priority first; then least
// recently used. A use of a node is a use of all before it: only the node is stamped, and what
// leaves hands its stamp and priority to its parent. Whole nodes leave from the leaves up; pages of
// windowed groups and states leave one (node, group) at a time anywhere, in the same order, by the
// time of their own last use. What is found to be in use counts as used then. Whatever the order,
// evict_for succeeds as long as evictable pages are left: at last it forgets nodes that others
// still follow.
//
// Of a (node, group) the pages move to the host together. Where they lie in both tiers (a hit that
// needs a part copies that part back) the group counts as on the host, for events too, until the
// last one is back; it is held at all when every page is somewhere.
//
// External exclusion for what is not const. Functions that are noexcept use room that reserve()
// made.
class PrefixIndex {
 public:
  // `host` may be null. All are borrowed.
  PrefixIndex(const Plan& plan, PageAllocator* allocator, StatePool* states, HostTier* host,
              int64_t event_capacity);
  PrefixIndex(const PrefixIndex&) = delete;
  PrefixIndex& operator=(const PrefixIndex&) = delete;

  int32_t block_tokens() const { return block_tokens_; }
  int32_t pages_per_block() const { return pages_per_block_; }
  // A group has several pages in a block: some may be whole where a sequence leaves the block.
  bool has_inner_pages() const { return pages_per_block_ > static_cast<int32_t>(groups_.size()); }
  int32_t first_page(int32_t group) const {
    return groups_[static_cast<size_t>(group)].first_page;
  }  // among them
  int32_t num_pages(int32_t group) const {
    return groups_[static_cast<size_t>(group)].num_pages;
  }  // cross: 0

  // The longest hit of at most `max_tokens` tokens that every group can serve. Throws
  // std::bad_alloc (keys are computed).
  PrefixMatch match(KeyChain& chain, int64_t max_tokens, bool whole_blocks,
                    const HostPages& host) const;
  // The block of this key in the namespace of `root`; kNoNode: none. Keys that a caller gives may
  // be those of another namespace, so a key alone names no block: each namespace has blocks of its
  // own.
  NodeId find(const BlockKey& root, const BlockKey& key) const noexcept {
    return find_in(spaces_.find(root), key);
  }
  // The deepest block that the keys of the query lead to, one behind the other.
  NodeId find_deepest(KeyChain& chain) const;
  // A find() or insert() of it follows soon.
  void prefetch(const BlockKey& key) const noexcept { table_.prefetch(table_.tag_of(key)); }
  NodeId parent(NodeId node) const noexcept { return nodes_[node].parent; }
  // Blocks up to and with it
  int32_t depth(NodeId node) const noexcept { return nodes_[node].depth; }
  // The last insert() made it: what it holds is the inserter's.
  bool is_newest(NodeId node) const noexcept { return nodes_[node].birth == newest_birth_; }
  const BlockKey& key(NodeId node) const noexcept { return nodes_[node].key; }
  PagePlace page(NodeId node, int32_t index) const noexcept { return nodes_.place(node, index); }
  StateSlot state(NodeId node) const noexcept { return nodes_[node].state; }  // kInitialState: none
  bool has_host_pages(NodeId node) const noexcept { return nodes_[node].num_host != 0; }

  // What follows happens now: uses and ages go by the time of the last call, of reserve() or of an
  // eviction.
  void read_clock() noexcept;
  // Makes room for so many new blocks, and for their token ids when they have them. Reads the clock
  // for what follows. Throws std::bad_alloc.
  void reserve(int64_t num_blocks, bool with_tokens = true);
  // Publishes a block, or completes one that is there with what it lacks on the device. Places of
  // `pages` that the index had already on the device stay as they are: the caller takes the index's
  // over (page()). So do pages and states that another block is known by. Returns kNoNode when a
  // quota, lack of reserved room or such a page keeps a new block out.
  NodeId insert(const NewBlock& block) noexcept;
  // The node and all before it were used now: O(1), and the pages that a window sees from its end.
  // `hit`: a lookup did (for the metrics); raises priorities.
  void touch(NodeId node, bool hit, int32_t priority) noexcept;
  // A host page is on the device again, in `device_page`, which the caller holds and has copied to.
  // The host page is released. Where a quota leaves no room the host page stays, and `device_page`
  // is the caller's alone.
  void promoted(NodeId node, int32_t index, PageId device_page) noexcept;
  // Until unlock(), nothing of the node and of those before it leaves its place: for the time
  // between a match and the copies from the host.
  void lock(NodeId node) noexcept { add_locks(node, 1); }
  void unlock(NodeId node) noexcept { add_locks(node, -1); }

  // Pages that promoted() can bring back while `deepest` and those before it are locked, after
  // evictions and within the quota.
  int64_t num_fetchable(NodeId deepest) const;

  // Evicts until so many pages are vacant (allocator.num_free()), or nothing evictable is left.
  void evict_for(int64_t pages) noexcept;
  // Evicts until so many states can be taken.
  void evict_states_for(int64_t slots) noexcept;
  // Returns how many pages left the device.
  int64_t evict(int64_t pages) noexcept;
  // Forgets the block of this cached device page and all that follow it: somebody will write into
  // the page, or the pool shrinks. Pages that nobody holds become free.
  void forget_page(PageId page) noexcept;
  // Host pages that the index may give up: frees until the tier has so many, or nothing is left.
  void evict_host_for(int64_t pages) noexcept { make_host_room(pages, UINT64_MAX); }
  int64_t num_host_pages() const noexcept { return num_host_pages_; }  // held by the index

  // From the first block to `node`; pages and states get a holder. Of the path up to the first node
  // that has pages on the host, or lacks one of a group that sees all tokens. Returns how many
  // blocks that were.
  int64_t pin(NodeId node) noexcept;
  int64_t unpin(NodeId node) noexcept;                       // blocks of the path that were pinned
  void set_quota(const BlockKey& root, uint64_t max_bytes);  // throws OUT_OF_RANGE, std::bad_alloc
  // Forgets everything but quotas. Before the allocator's and the states' own clear().
  void reset() noexcept;

  EventLog& events() { return events_; }
  const EventLog& events() const { return events_; }
  const int32_t* tokens(NodeId node, uint64_t birth) const noexcept;  // null: gone or unknown
  // Everything held as STORED events, parents first. Throws std::bad_alloc.
  std::vector<Event> snapshot() const;

  // Sets the fields prefix_*, recent_*, block_* and events_*.
  void add_stats(kvc_stats* stats) const noexcept;
  void count_lookup(int64_t query_tokens, int64_t hit_tokens) noexcept {
    metrics_.count_lookup(query_tokens, hit_tokens);
  }
  // Throws CORRUPT: recounts links, cached marks, heaps, quotas. Both [ids], increased for each
  // pin's holder.
  void check(std::vector<int32_t>* page_refs, std::vector<int32_t>* state_refs) const;

 private:
  struct Group {
    const GroupSpec* spec;
    int32_t first_page;
    int32_t num_pages;
    int32_t page_size;
    // Whose heap its pages are in; -1: it sees all tokens, its pages leave with the node
    int32_t piece;
  };
  // An order of eviction and the places of nodes in it.
  struct Order {
    std::vector<int32_t> positions;
    EvictionHeap heap{&positions};
  };
  // Where a group of a node is.
  enum class Held { kNowhere, kDevice, kHost };
  class Matcher;

  // index.cc: the clock, and what a node holds
  uint64_t next_stamp() noexcept { return ++stamp_; }
  uint64_t rank_of(NodeId node, uint64_t stamp) const noexcept {
    return make_rank(has_quota(nodes_[node]), nodes_[node].priority, stamp);
  }
  Held held(NodeId node, const Group& group) const noexcept;
  void add_page(NodeId node, int32_t index, bool sees_all, PageId page) noexcept;
  void drop_page(NodeId node, int32_t index, bool sees_all) noexcept;
  void drop_host_page(NodeId node, int32_t index, bool sees_all) noexcept;
  void count_host_page(NodeId node, bool sees_all, int32_t by) noexcept;
  void add_state(NodeId node, StateSlot slot) noexcept;
  void drop_state(NodeId node) noexcept;
  void order_piece(NodeId node, const Group& group, uint64_t stamp) noexcept;
  void order_host(NodeId node, uint64_t stamp) noexcept;
  // But the leaf's, after its priority or quota has changed
  void renew_ranks(NodeId node) noexcept;
  bool raise_priority(NodeId node, int32_t priority) noexcept;  // true: settle() it
  void hand_up(const Node& leaving) noexcept;
  // Is it live, is it a leaf, where in the order; and its parents.
  void settle(NodeId node, bool may_be_leaf = true) noexcept;
  void announce(kvc_event_type type, kvc_tier tier, kvc_tier from, int32_t group,
                NodeId node) noexcept;
  void announce_change(NodeId node, const Group& group, Held before) noexcept;
  Event stored_event(NodeId node, int32_t group, kvc_tier tier) const noexcept;
  const BlockKey& parent_key(const Node& node) const noexcept;
  NodeId find_in(int32_t name_space, const BlockKey& key) const noexcept {
    return find_in(name_space, key, table_.tag_of(key));
  }
  NodeId find_in(int32_t name_space, const BlockKey& key, uint32_t tag) const noexcept {
    if (name_space == -1) return kNoNode;
    return table_.find(tag, [&](int32_t node) {
      return nodes_[node].key == key && nodes_[node].name_space == name_space;
    });
  }
  uint64_t bytes_in_use(int32_t name_space, NodeId locked) const;

  NodeId* children_of(const Node& node) noexcept {  // the list that it is in
    return node.parent == kNoNode ? &spaces_[node.name_space].first_child
                                  : &nodes_[node.parent].first_child;
  }

  bool has_quota(const Node& node) const noexcept {
    return spaces_[node.name_space].max_bytes != 0;
  }
  bool has_windows() const noexcept { return pieces_.size() > static_cast<size_t>(has_states_); }
  EvictionHeap* state_order() noexcept { return has_states_ ? &pieces_.back()->heap : nullptr; }

  // index_insert.cc
  bool is_new_page(PageId page) const noexcept;
  bool is_new_state(StateSlot state) const noexcept;
  uint64_t missing_bytes(NodeId node, const NewBlock& block) const noexcept;
  NodeId add_node(const NewBlock& block) noexcept;
  bool fill(NodeId node, const NewBlock& block) noexcept;  // false: it had all that is given
  bool make_quota_room(int32_t name_space, uint64_t bytes) noexcept;

  // index_evict.cc
  bool is_busy(NodeId node) const noexcept;
  bool evict_one() noexcept;
  void evict_node(NodeId node) noexcept;
  bool evict_piece(NodeId node, const Group& group) noexcept;
  bool evict_state(NodeId node) noexcept;
  bool demote(NodeId node, const Group& group) noexcept;
  bool make_host_room(int64_t pages, uint64_t rank) noexcept;
  void drop_host_pages(NodeId node) noexcept;
  void settle_or_prune(NodeId node) noexcept;
  bool forget_unreachable(PageId* cursor) noexcept;
  void forget(NodeId node) noexcept;
  void drop_content(NodeId node) noexcept;
  void remove(NodeId node) noexcept;
  void prune(NodeId node, bool is_eviction) noexcept;
  void unpark_all() noexcept;
  void unpark(EvictionHeap* heap) noexcept;

  // index.cc, index_check.cc
  void add_locks(NodeId node, int32_t count) noexcept;
  void hold(NodeId node, bool add) noexcept;
  NodeId next_in_tree(NodeId node) const noexcept;  // parents first; kNoNode: the end
  void check_node(NodeId node) const;
  void check_orders(NodeId node, bool is_leaf) const;
  void check_counts() const;

  PageAllocator* allocator_;
  StatePool* states_;
  HostTier* host_;
  int32_t block_tokens_ = 0;
  int32_t pages_per_block_ = 0;
  int32_t full_pages_ = 0;  // of them, of groups that see all tokens
  bool has_states_;
  uint64_t page_bytes_, state_bytes_;
  std::vector<GroupSpec> specs_;
  std::vector<Group> groups_;
  NodePool nodes_;
  KeyTable table_;
  Namespaces spaces_;
  std::vector<NodeId> page_nodes_;  // [page]: who knows it
  Order leaves_;
  // Per windowed group, then of states where there are any
  std::vector<std::unique_ptr<Order>> pieces_;
  Order host_pages_;                      // nodes with pages on the host, as they came there
  uint64_t newest_birth_ = 0;             // of the node that was added last
  int64_t last_reserved_ = 0;             // blocks
  std::vector<int32_t> quota_positions_;  // in Namespace::leaves
  int64_t num_host_pages_ = 0, num_host_nodes_ = 0, num_pinned_ = 0;
  uint64_t pages_left_ = 0;  // the device, ever
  uint64_t stamp_ = 0;       // the newest: ticks since `start_`, made unique
  int64_t start_;
  PrefixMetrics metrics_;
  EventLog events_;
};

}  // namespace kvc
