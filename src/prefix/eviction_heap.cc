#include "src/prefix/eviction_heap.h"

#include <algorithm>

namespace kvc {

void EvictionHeap::sift_up(size_t at) noexcept {
  const Entry entry = entries_[at];
  while (at > 0) {
    const size_t parent = (at - 1) / 2;
    if (entries_[parent].rank <= entry.rank) break;
    place(at, entries_[parent]);
    at = parent;
  }
  place(at, entry);
}

void EvictionHeap::sift_down(size_t at) noexcept {
  const Entry entry = entries_[at];
  for (;;) {
    size_t child = 2 * at + 1;
    if (child >= size_) break;
    if (child + 1 < size_ && entries_[child + 1].rank < entries_[child].rank) ++child;
    if (entry.rank <= entries_[child].rank) break;
    place(at, entries_[child]);
    at = child;
  }
  place(at, entry);
}

void EvictionHeap::set(NodeId node, uint64_t rank) noexcept {
  const int32_t found = position(node);
  if (found < 0) {
    entries_.push_back({rank, node});
    // The first parked entry makes room.
    if (size_ + 1 < entries_.size()) place(entries_.size() - 1, entries_[size_]);
    place(size_, {rank, node});
    sift_up(size_++);
    return;
  }
  const auto at = static_cast<size_t>(found);
  const uint64_t before = entries_[at].rank;
  entries_[at].rank = rank;
  if (at >= size_) return;
  if (rank < before) {
    sift_up(at);
  } else if (rank > before) {
    sift_down(at);
  }
}

void EvictionHeap::replace(NodeId old_node, NodeId node, uint64_t rank) noexcept {
  const auto at = static_cast<size_t>(position(old_node));
  const uint64_t before = entries_[at].rank;
  (*positions_)[old_node] = -1;
  place(at, {rank, node});
  if (at >= size_) return;
  if (rank < before) {
    sift_up(at);
  } else if (rank > before) {
    sift_down(at);
  }
}

void EvictionHeap::erase(NodeId node) noexcept {
  const int32_t found = position(node);
  if (found < 0) return;
  (*positions_)[node] = -1;
  auto at = static_cast<size_t>(found);
  if (at < size_) {
    --size_;
    if (at != size_) {
      const Entry moved = entries_[size_];
      const uint64_t before = entries_[at].rank;
      place(at, moved);
      if (moved.rank < before) {
        sift_up(at);
      } else {
        sift_down(at);
      }
    }
    at = size_;
  }
  if (at != entries_.size() - 1) place(at, entries_.back());
  entries_.pop_back();
}

void EvictionHeap::clear() noexcept {
  for (const Entry& entry : entries_) (*positions_)[entry.node] = -1;
  entries_.clear();
  size_ = 0;
}

void EvictionHeap::park_top() noexcept {
  const Entry parked = entries_[0];
  --size_;
  if (size_ != 0) {
    place(0, entries_[size_]);
    sift_down(0);
  }
  place(size_, parked);
}

void EvictionHeap::sort_parked() noexcept {
  const auto parked = entries_.begin() + static_cast<std::ptrdiff_t>(size_);
  std::sort(parked, entries_.end(), [](const Entry& a, const Entry& b) { return a.rank < b.rank; });
  for (size_t at = size_; at < entries_.size(); ++at) place(at, entries_[at]);
}

void EvictionHeap::unpark(uint64_t rank) noexcept {
  entries_[size_].rank = rank;
  sift_up(size_++);
}

bool EvictionHeap::is_sound() const {
  if (size_ != entries_.size()) return false;
  for (size_t i = 0; i < size_; ++i) {
    if (position(entries_[i].node) != static_cast<int32_t>(i)) return false;
    if (i > 0 && entries_[(i - 1) / 2].rank > entries_[i].rank) return false;
  }
  return true;
}

}  // namespace kvc
