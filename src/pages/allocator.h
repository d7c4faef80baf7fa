// Which pages are free, and how many references each used page has. Bitmaps, so that taking and
// freeing never allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/page.h"

namespace kvc {

// A page is
//   free       without references and unknown to the prefix index: take() can return it;
//   cached     without references, but indexed: it holds data and has to be evicted before take();
//   available  free or cached;
//   used       with references, indexed or not.
//
// Invariants:
// 1. Bit p of free_ is set exactly when page p has no reference and is not indexed. Bit w of
//    free_summary_ is set exactly when free_[w] is not 0.
// 2. refs_[p] counts the page tables, pins and open batches that refer to p. The prefix index owns
//    no reference, so an indexed page without references is available.
// 3. num_free_bits_ counts the bits of free_, num_shared_ the pages with several references and
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
  int64_t num_free() const { return num_free_bits_ - num_withheld_; }
  int64_t num_cached() const { return num_cached_; }
  int64_t num_available() const { return num_free() + num_cached_; }
  int64_t num_used() const { return num_pages() - num_available(); }
  Counts counts() const {
    return {.indexed = num_indexed_, .shared = num_shared_, .withheld = num_withheld_};
  }
  int32_t refs(PageId page) const { return refs_[page]; }
  bool is_indexed(PageId page) const { return indexed_[page] != 0; }
  bool is_free(PageId page) const { return (free_[word(page)] & bit(page)) != 0; }

  // Takes a page with one reference; num_free() must not be 0. Prefers the page right after
  // `previous` (the last page of the table, or kNoPage), because a walk over adjacent pages is up
  // to a third faster. `more` pages of the same run follow.
  PageId take(PageId previous, int64_t more) noexcept {
    int64_t page = previous + int64_t{1};
    const bool extends =
        previous != kNoPage && page < num_pages() && is_free(static_cast<PageId>(page));
    if (!extends) page = next_run(more);
    set_used(page);
    refs_[page] = 1;
    return static_cast<PageId>(page);
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
  // First page >= begin with a reference, or kNoPage.
  PageId first_used(int64_t begin) const;
  // First indexed page >= begin, or kNoPage.
  PageId first_indexed(int64_t begin) const;
  // All pages are free again, none indexed, none withheld.
  void clear() noexcept;

 private:
  static constexpr int64_t kBits = 64;
  static constexpr uint64_t bit(int64_t index) { return uint64_t{1} << (index % kBits); }
  static constexpr size_t word(int64_t index) { return static_cast<size_t>(index / kBits); }

  void set_free(int64_t page) noexcept {
    free_[word(page)] |= bit(page);
    free_summary_[word(page / kBits)] |= bit(page / kBits);
    ++num_free_bits_;
  }
  void set_used(int64_t page) noexcept {
    free_[word(page)] &= ~bit(page);
    if (free_[word(page)] == 0) free_summary_[word(page / kBits)] &= ~bit(page / kBits);
    --num_free_bits_;
  }
  // Where a run of 1 + more pages begins.
  int64_t next_run(int64_t more) noexcept;
  // The first free page at or after begin, else from 0 on.
  int64_t find_free(int64_t begin) const noexcept;

  std::vector<int32_t> refs_;
  std::vector<uint64_t> free_;
  std::vector<uint64_t> free_summary_;
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
