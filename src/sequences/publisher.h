// Publishes full blocks of sequences to the prefix index, and fills sequences from it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/memory.h"
#include "src/device/device.h"
#include "src/pages/allocator.h"
#include "src/plan/spec.h"
#include "src/prefix/index.h"
#include "src/sequences/sequence.h"

namespace kvc {

// Who else wants the blocks that sequences publish.
class BlockSink {
 public:
  // add() would do something.
  virtual bool is_open() const noexcept = 0;
  // A block that is in the index now, with its pages on the device.
  virtual void add(const NewBlock& block, CallStream stream) noexcept = 0;

 protected:
  ~BlockSink() = default;
};

// Borrows all. External exclusion, as the cache's.
class Publisher {
 public:
  // `sink`, nullable, gets what is published. Throws std::bad_alloc.
  Publisher(const Spec& spec, PrefixIndex* index, PageAllocator* allocator, Device* device,
            BlockSink* sink = nullptr)
      : spec_(&spec),
        index_(index),
        allocator_(allocator),
        device_(device),
        sink_(sink),
        pages_(static_cast<size_t>(index->blocks().shape.pages_per_block)) {}

  PrefixIndex& index() const { return *index_; }
  int64_t host_bytes() const { return kvc::host_bytes(pages_); }
  // Pages copied so that a block could have pages of its own.
  uint64_t num_copies() const { return num_copies_; }

  // Publishes the full blocks of known tokens. When the index has an equal block, the sequence
  // takes its pages over. PrefixIndex::reserve() made room for new blocks; blocks without room stay
  // unpublished, as do blocks with a token that some layer lacks.
  void publish(Sequence& sequence, CallStream stream) noexcept {
    if (sequence.history.num_published < num_publishable(sequence))
      publish_blocks(sequence, stream);
  }
  // Gives the state that the sequence keeps at its length to the block that ends there, if that is
  // in the index. Needs room for num_to_reach() new blocks.
  void publish_state(Sequence& sequence, CallStream stream) noexcept;
  // Blocks that publish_state() may have to insert; 0: it has nothing to do.
  int64_t num_to_reach(const Sequence& sequence) const noexcept;
  // The sequence's blocks were used until now.
  void release(const Sequence& sequence) noexcept;

  // Makes room for so many tokens of a hit, and two states. Throws std::bad_alloc.
  void reserve(int64_t num_tokens, Sequence* sequence) const;
  // Sets tables, state and checkpoint of a sequence whose tokens are `match`. All pages that its
  // next query reads are on the device. References are not counted yet.
  void fill(const PrefixMatch& match, Sequence* sequence) const noexcept;
  // Pages of the match that are on the host.
  void list_host_places(const PrefixMatch& match, std::vector<BlockPage>* places) const;

 private:
  const BlockTree& blocks() const noexcept { return index_->blocks(); }
  int64_t num_publishable(const Sequence& sequence) const noexcept {
    return std::min(static_cast<int64_t>(sequence.history.keys.size()),
                    sequence.first_unwritten / index_->block_tokens());
  }
  void publish_blocks(Sequence& sequence, CallStream stream) noexcept;
  void gather(const Sequence& sequence, int64_t block) noexcept;
  bool make_own(Sequence& sequence, int64_t block, NodeId node, CallStream stream) noexcept;
  void take_over(Sequence& sequence, int64_t block, NodeId node) noexcept;
  void fill_reserve(const PrefixMatch& match, Sequence* sequence) const noexcept;
  template <typename Visit>
  void visit_places(const PrefixMatch& match, int64_t reserve, Visit&& visit) const;

  const Spec* spec_;
  PrefixIndex* index_;
  PageAllocator* allocator_;
  Device* device_;
  BlockSink* sink_;
  std::vector<PageId> pages_;  // Pages of one block.
  uint64_t num_copies_ = 0;
};

}  // namespace kvc
