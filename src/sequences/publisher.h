// Full blocks of sequences go to the prefix index, and come back from it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/pages/allocator.h"
#include "src/plan/spec.h"
#include "src/prefix/index.h"
#include "src/sequences/sequence.h"

namespace kvc {

// Borrows all. External exclusion, as the cache's.
class Publisher {
 public:
  // Throws std::bad_alloc.
  Publisher(const Spec& spec, PrefixIndex* index, PageAllocator* allocator, PageMover* mover)
      : spec_(&spec),
        index_(index),
        allocator_(allocator),
        mover_(mover),
        pages_(static_cast<size_t>(index->blocks().shape.pages_per_block)) {}

  PrefixIndex& index() const { return *index_; }
  uint64_t num_copies() const { return num_copies_; }  // pages that blocks of their own needed

  // Publishes the sequence's full blocks of known tokens. Where the index has an equal block, the
  // sequence takes its pages over. Room for new blocks was made by PrefixIndex::reserve; what finds
  // none stays unpublished. Blocks with a token that is not written in every layer stay out.
  void publish(Sequence& sequence) noexcept {
    if (sequence.history.num_published < num_publishable(sequence)) publish_blocks(sequence);
  }
  // The state that the sequence keeps at its length goes to the block that ends there, where it has
  // one in the index. Room for num_to_reach() new blocks.
  void publish_state(Sequence& sequence) noexcept;
  // Blocks that publish_state() may have to insert anew; 0: it has nothing to do.
  int64_t num_to_reach(const Sequence& sequence) const noexcept;
  // The sequence's blocks were used until now.
  void release(const Sequence& sequence) noexcept;

  // Makes room for fill() of this match or a shorter one. Throws std::bad_alloc.
  void reserve(const PrefixMatch& match, Sequence* sequence) const;
  // The tables, state and checkpoint of a sequence whose tokens are `match`; all pages are on the
  // device. Holders are not counted yet.
  void fill(const PrefixMatch& match, Sequence* sequence) const noexcept;
  // Pages of the match that are on the host.
  void list_host_places(const PrefixMatch& match, std::vector<BlockPage>* places) const;

 private:
  const BlockTree& blocks() const noexcept { return index_->blocks(); }
  int64_t num_publishable(const Sequence& sequence) const noexcept {
    return std::min(static_cast<int64_t>(sequence.history.keys.size()),
                    sequence.first_unwritten / index_->block_tokens());
  }
  void publish_blocks(Sequence& sequence) noexcept;
  void gather(const Sequence& sequence, int64_t block) noexcept;
  bool make_own(Sequence& sequence, int64_t block, NodeId node) noexcept;
  void take_over(Sequence& sequence, int64_t block, NodeId node) noexcept;
  template <typename Visit>
  void visit_places(const PrefixMatch& match, Visit&& visit) const;

  const Spec* spec_;
  PrefixIndex* index_;
  PageAllocator* allocator_;
  PageMover* mover_;
  std::vector<PageId> pages_;  // of one block
  uint64_t num_copies_ = 0;
};

}  // namespace kvc
