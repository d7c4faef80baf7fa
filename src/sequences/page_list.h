// The pages of one page table by their places.
#pragma once

#include <cstdint>
#include <utility>
#include <vector>

#include "kernels/params.h"
#include "src/base/memory.h"
#include "src/pages/allocator.h"

namespace kvc {

// A place holds a page, or kNoPage where a window has dropped it. A sequence that streams drops far
// more pages than it keeps: most of their places are a gap that takes no room, so that the list
// grows with what is kept.
class PageList {
 public:
  // Places, those in the gap too.
  int64_t size() const { return static_cast<int64_t>(entries_.size()) + gap_end_ - gap_begin_; }
  bool empty() const { return size() == 0; }
  int64_t num_dropped() const { return num_dropped_; }
  int64_t num_held() const { return size() - num_dropped_; }
  PageId operator[](int64_t place) const {
    return static_cast<PageId>(kernels::page_at(entries_.data(), gap(), place));
  }
  PageId back() const { return (*this)[size() - 1]; }
  // For kernels: entries of the places outside the gap. They stay where they are until the list
  // changes.
  const PageId* data() const { return entries_.data(); }
  kernels::TableGap gap() const { return {gap_begin_, gap_end_}; }
  // Calls visit(place, page) for each place that holds a page, ascending.
  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (int64_t i = 0; i < static_cast<int64_t>(entries_.size()); ++i) {
      if (entries_[i] != kNoPage) visit(place_of(i), entries_[i]);
    }
  }
  void append_to(int64_t begin, int64_t end, std::vector<int32_t>* out) const {
    for (int64_t place = begin; place < end; ++place) out->push_back((*this)[place]);
  }

  int64_t host_bytes() const { return kvc::host_bytes(entries_); }
  // Room for `size` places; at least doubles it. Returns whether it had to. Throws std::bad_alloc.
  bool make_room(int64_t size);
  // A place outside the gap.
  void set(int64_t place, PageId page) noexcept {
    PageId& entry = entries_[place < gap_begin_ ? place : place - (gap_end_ - gap_begin_)];
    num_dropped_ += (page == kNoPage ? 1 : 0) - (entry == kNoPage ? 1 : 0);
    entry = page;
  }
  // Allocates where there is no room.
  void push_back(PageId page) {
    entries_.push_back(page);
    num_dropped_ += page == kNoPage ? 1 : 0;
  }
  // Keeps the first `size` places; visit(page) for each page that goes.
  template <typename Visit>
  void truncate(int64_t size, Visit&& visit) noexcept {
    while (this->size() > size) {
      if (this->size() == gap_end_) {
        cut_gap(size);
        continue;
      }
      if (back() != kNoPage) visit(back());
      num_dropped_ -= back() == kNoPage ? 1 : 0;
      entries_.pop_back();
    }
  }
  void clear() noexcept;
  // `size` dropped places, then their pages by set(). Allocates where there is no room.
  void assign_dropped(int64_t size);
  // The first `size` places of another list. Throws std::bad_alloc.
  void assign(const PageList& from, int64_t size);
  // Each page becomes map(page).
  template <typename Map>
  void map_pages(Map&& map) noexcept {
    for (PageId& entry : entries_) {
      if (entry != kNoPage) entry = map(entry);
    }
  }

  // Places [begin, end) are dropped, and nothing beyond them is: gives up their room once that is
  // more than what the rest takes. Costs a move of the rest once in as many dropped places.
  void close_up(int64_t begin, int64_t end) noexcept;
  // No gap: rotate() may follow. Throws std::bad_alloc.
  void open_up();
  // The places from `middle` on go to `first`, those between to the end.
  void rotate(int64_t first, int64_t middle) noexcept;

 private:
  // The places end with the gap.
  void cut_gap(int64_t size) noexcept;
  int64_t place_of(int64_t index) const {
    return index < gap_begin_ ? index : index + gap_end_ - gap_begin_;
  }

  std::vector<PageId> entries_;
  // 32 bits hold every place of a sequence: kMaxSequenceLength. The page table stays in a cache
  // line.
  int32_t gap_begin_ = 0, gap_end_ = 0, num_dropped_ = 0;
};

}  // namespace kvc
