// Which pages are free, and how many holders each used page has. Bitmaps, so that taking and
// freeing never allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvc {

using PageId = int32_t;  // a plain int32: page tables are handed to kernels and exports as they are
constexpr PageId kNoPage = -1;

// A page may be cached: the prefix index knows what it holds. The index is no holder: a cached page
// without holders is evictable and counts as free, but has to be uncached before it can be taken.
// Invariants: a page is vacant (bit set in free_) exactly when it has no holder and is not cached;
// the summary agrees; the counts are the counts. External exclusion, as the cache's.
class PageAllocator {
 public:
  // Throws std::bad_alloc.
  explicit PageAllocator(int64_t num_pages) { grow(num_pages); }

  int64_t num_pages() const { return static_cast<int64_t>(refs_.size()); }
  // That nobody holds: what can be taken, after evictions.
  int64_t num_available() const { return num_free() + num_cached_; }
  int64_t num_used() const { return num_pages() - num_available(); }
  // That can be taken now. Never negative.
  int64_t num_free() const { return num_free_bits_ - num_withheld_; }
  int64_t num_indexed() const { return num_indexed_; }
  int64_t num_cached() const { return num_cached_; }
  int64_t num_withheld() const { return num_withheld_; }
  int64_t num_shared() const { return num_shared_; }  // pages with more than one holder
  int32_t refs(PageId page) const { return refs_[static_cast<size_t>(page)]; }
  bool is_unreferenced(PageId page) const { return refs(page) == 0; }
  bool is_indexed(PageId page) const { return indexed_[static_cast<size_t>(page)] != 0; }
  // Nobody but its one holder knows what it holds: it may be written.
  bool is_private(PageId page) const { return refs(page) == 1 && !is_indexed(page); }
  // For audits
  bool is_free(PageId page) const { return (free_[word(page)] & bit(page)) != 0; }

  // Takes a page with one holder; num_free() must not be 0. Prefers the page right after
  // `previous` (the holder's last page, or kNoPage), because a walk over adjacent pages is up to a
  // third faster. `more` pages of the same run follow.
  PageId take(PageId previous, int64_t more) noexcept {
    int64_t page = previous + int64_t{1};
    const bool extends =
        previous != kNoPage && page < num_pages() && is_free(static_cast<PageId>(page));
    if (!extends) page = next_run(more);
    set_used(page);
    refs_[static_cast<size_t>(page)] = 1;
    return static_cast<PageId>(page);
  }
  void add_ref(PageId page) noexcept {
    const int32_t count = ++refs_[static_cast<size_t>(page)];
    if (count == 2) ++num_shared_;
    if (count == 1) --num_cached_;  // it was cached
  }
  void drop_ref(PageId page) noexcept {
    const int32_t left = --refs_[static_cast<size_t>(page)];
    if (left == 1) --num_shared_;
    if (left != 0) return;
    if (is_indexed(page)) {
      ++num_cached_;
    } else {
      set_free(page);
    }
  }
  // The page has a holder and is not cached.
  void mark_indexed(PageId page) noexcept {
    indexed_[static_cast<size_t>(page)] = 1;
    ++num_indexed_;
  }
  void unmark_indexed(PageId page) noexcept {
    indexed_[static_cast<size_t>(page)] = 0;
    --num_indexed_;
    if (!is_unreferenced(page)) return;
    --num_cached_;
    set_free(page);
  }
  // Takes so many vacant pages out of use, none in particular: their bytes serve something else.
  void withhold(int64_t pages) noexcept { num_withheld_ += pages; }
  void restore(int64_t pages) noexcept { num_withheld_ -= pages; }
  // Withheld pages that an eviction would restore.
  void add_cached(int64_t pages) noexcept { num_cached_ += pages; }

  // Throws std::bad_alloc and changes nothing then.
  void grow(int64_t num_pages);
  // The pages from num_pages on must be vacant.
  void shrink(int64_t num_pages) noexcept;
  // First page >= begin with a holder, or kNoPage.
  PageId first_used(int64_t begin) const;
  // First cached page >= begin, or kNoPage.
  PageId first_indexed(int64_t begin) const;
  // All pages vacant again, none cached, none withheld.
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
  int64_t next_run(int64_t more) noexcept;          // where a run of 1 + more pages begins
  int64_t find_free(int64_t begin) const noexcept;  // at or after begin, else from 0

  std::vector<int32_t> refs_;
  std::vector<uint64_t> free_;          // bit p: page p is free
  std::vector<uint64_t> free_summary_;  // bit w: free_[w] is not 0
  std::vector<uint8_t> indexed_;
  int64_t num_free_bits_ = 0;  // Bits set in free_.
  int64_t num_shared_ = 0;
  int64_t num_indexed_ = 0;
  // Cached pages without holders, and withheld ones that can be restored
  int64_t num_cached_ = 0;
  int64_t num_withheld_ = 0;
  int64_t cursor_ = 0;  // where the next run of pages starts looking
};

}  // namespace kvc
