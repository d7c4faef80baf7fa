// Which pages are free, and how many references each used page has. Bitmaps, so that taking and
// freeing never allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

#include "src/base/memory.h"
#include "src/base/page.h"
#include "src/pages/page_bitmap.h"

namespace kvc {

// A page is
//   free       without references and unknown to the prefix index: take() can return it;
//   cached     without references, but indexed: it holds data and has to be evicted before take();
//   available  free or cached;
//   used       with references, indexed or not.
// A free page is freed when it was used since the pool had its memory back from the system, else
// fresh: it may have no physical memory.
//
// Invariants:
// 1. free_ has exactly the pages without reference that are not indexed, and freed_ the freed ones
//    of them.
// 2. refs_[p] counts the page tables, pins and open batches that refer to p. The prefix index owns
//    no reference, so an indexed page without references is available.
// 3. num_free_bits_ counts the pages of free_, num_shared_ the pages with several references and
//    num_indexed_ the indexed pages.
// 4. num_withheld_ free pages are out of use, none in particular: recurrent states take their
//    bytes. num_free() never falls below 0.
// 5. num_cached_ counts cached pages, and withheld pages that the eviction of a state would
//    restore.
//
// External exclusion, as the cache's.
class PageAllocator {
 public:
  // Throws std::bad_alloc.
  explicit PageAllocator(int64_t num_pages) { grow(num_pages); }

  // Pages that are not counted in the hot path.
  struct Counts {
    int64_t indexed = 0;
    int64_t shared = 0;  // Pages with more than one reference.
    int64_t withheld = 0;
  };

  int64_t num_pages() const { return static_cast<int64_t>(refs_.size()); }
  int64_t host_bytes() const {
    return kvc::host_bytes(refs_) + kvc::host_bytes(indexed_) + free_.host_bytes() +
           freed_.host_bytes();
  }
  int64_t num_free() const { return num_free_bits_ - num_withheld_; }
  int64_t num_cached() const { return num_cached_; }
  int64_t num_available() const { return num_free() + num_cached_; }
  int64_t num_used() const { return num_pages() - num_available(); }
  Counts counts() const {
    return {.indexed = num_indexed_, .shared = num_shared_, .withheld = num_withheld_};
  }
  int32_t refs(PageId page) const { return refs_[page]; }
  bool is_indexed(PageId page) const { return indexed_[page] != 0; }
  bool is_free(PageId page) const { return free_.has(page); }

  // Takes a page with one reference; num_free() must not be 0. Prefers the page right after
  // `previous` (the last page of the table, or kNoPage), because a walk over adjacent pages is up
  // to a third faster. Else freed pages come before fresh ones, which would cost memory. `more`
  // pages of the same run follow.
  PageId take(PageId previous, int64_t more) noexcept {
    int64_t page = previous + int64_t{1};
    const bool extends =
        previous != kNoPage && page < num_pages() && is_free(static_cast<PageId>(page));
    if (!extends) page = next_run(more);
    set_used(page);
    refs_[page] = 1;
    return static_cast<PageId>(page);
  }
  // The free page with the smallest id, with one reference.
  PageId take_lowest() noexcept {
    const int64_t page = free_.find(0);
    set_used(page);
    refs_[page] = 1;
    return static_cast<PageId>(page);
  }
  // All that refers to a used page `from` refers to `to` now, which was just taken: `from` is free.
  void move_refs(PageId from, PageId to) noexcept {
    std::swap(refs_[from], refs_[to]);
    std::swap(indexed_[from], indexed_[to]);
    refs_[from] = 0;
    set_free(from);
  }
  void add_ref(PageId page) noexcept {
    const int32_t count = ++refs_[page];
    if (count == 2) ++num_shared_;
    if (count == 1) --num_cached_;
  }
  void drop_ref(PageId page) noexcept {
    const int32_t left = --refs_[page];
    if (left == 1) --num_shared_;
    if (left != 0) return;
    if (is_indexed(page)) {
      ++num_cached_;
    } else {
      set_free(page);
    }
  }
  // The page has a reference and is not indexed.
  void mark_indexed(PageId page) noexcept {
    indexed_[page] = 1;
    ++num_indexed_;
  }
  void unmark_indexed(PageId page) noexcept {
    indexed_[page] = 0;
    --num_indexed_;
    if (refs(page) != 0) return;
    --num_cached_;
    set_free(page);
  }
  // Withholds `pages` more free pages, and counts `cached` more withheld ones as cached. Negative
  // numbers restore.
  void withhold(int64_t pages, int64_t cached) noexcept {
    num_withheld_ += pages;
    num_cached_ += cached;
  }

  // Throws std::bad_alloc and changes nothing then.
  void grow(int64_t num_pages);
  // The pages from num_pages on must be free.
  void shrink(int64_t num_pages) noexcept;
  // One past the last page that is not fresh. O(pages).
  int64_t end_of_used() const noexcept;
  // First page >= begin with a reference, or kNoPage.
  PageId first_used(int64_t begin) const;
  // First indexed page >= begin, or kNoPage.
  PageId first_indexed(int64_t begin) const;
  // All pages are free again, none indexed, none withheld.
  void clear() noexcept;
  // visit(begin, end) for every run of free pages with a freed one in it: memory that lies on the
  // edge of a freed page is in the run, too.
  template <typename Visit>
  void for_each_freed_run(Visit&& visit) const {
    for (int64_t freed = freed_.find(0), begin = free_.find(0); freed >= 0;) {
      int64_t end = begin + free_.run(begin, num_pages() - begin);
      if (freed < end) {
        visit(begin, end);
        freed = freed_.find(end);
      }
      begin = free_.find(end);
    }
  }
  // Free pages have no memory any more: all are fresh.
  void forget_freed() noexcept { freed_.clear(); }

 private:
  void set_free(int64_t page) noexcept {
    free_.add(page);
    freed_.add(page);
    ++num_free_bits_;
  }
  void set_used(int64_t page) noexcept {
    free_.remove(page);
    freed_.remove(page);
    --num_free_bits_;
  }
  // Where a run of 1 + more pages begins.
  int64_t next_run(int64_t more) noexcept;
  // Where so many freed pages follow each other, or the longest run of them; -1: there are none.
  int64_t find_freed_run(int64_t pages) const noexcept;

  std::vector<int32_t> refs_;
  PageBitmap free_, freed_;
  std::vector<uint8_t> indexed_;
  int64_t num_free_bits_ = 0;
  int64_t num_shared_ = 0;
  int64_t num_indexed_ = 0;
  int64_t num_cached_ = 0;
  int64_t num_withheld_ = 0;
  int64_t cursor_ = 0;  // The next run of pages is looked for from here.
};

// Only its one page table knows the page, so its tokens may be written in place.
inline bool is_private(const PageAllocator& allocator, PageId page) {
  return allocator.refs(page) == 1 && !allocator.is_indexed(page);
}

}  // namespace kvc
