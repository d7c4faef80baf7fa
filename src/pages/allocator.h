// Which pages are free, and how many holders each used page has. Bitmaps, so that taking and freeing never allocate.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace kvc {

using PageId = int32_t;  // a plain int32: page tables are handed to kernels and exports as they are
constexpr PageId kNoPage = -1;

// Invariants: refs[p] == 0 exactly when p is free; free_ and its summary agree; num_free and num_shared are the counts.
// External exclusion, as the cache's.
class PageAllocator {
 public:
  // Throws std::bad_alloc.
  explicit PageAllocator(int64_t num_pages) { grow(num_pages); }

  int64_t num_pages() const { return static_cast<int64_t>(refs_.size()); }
  int64_t num_free() const { return num_free_; }
  int64_t num_used() const { return num_pages() - num_free_; }
  int64_t num_shared() const { return num_shared_; }  // pages with more than one holder
  int32_t refs(PageId page) const { return refs_[static_cast<size_t>(page)]; }
  bool is_free(PageId page) const { return refs(page) == 0; }
  bool is_marked_free(PageId page) const {
    return (free_[static_cast<size_t>(page) / 64] >> (page % 64) & 1) != 0;
  }  // for audits

  // Takes a page with one holder; num_free() must not be 0. Prefers the page right after `previous` (the holder's last page, or
  // kNoPage), because a walk over adjacent pages is up to a third faster. `more` pages of the same run follow.
  PageId take(PageId previous, int64_t more) noexcept;
  void add_holder(PageId page) noexcept;
  void drop_holder(PageId page) noexcept;

  // Throws std::bad_alloc and changes nothing then.
  void grow(int64_t num_pages);
  // The pages from num_pages on must be free.
  void shrink(int64_t num_pages) noexcept;
  // First used page >= begin, or kNoPage.
  PageId first_used(int64_t begin) const;
  // All pages free again.
  void clear() noexcept;

 private:
  void set_free(int64_t page) noexcept;
  void set_used(int64_t page) noexcept;
  int64_t find_free(int64_t begin) const noexcept;  // at or after begin, else from 0

  std::vector<int32_t> refs_;
  std::vector<uint64_t> free_;          // bit p: page p is free
  std::vector<uint64_t> free_summary_;  // bit w: free_[w] is not 0
  int64_t num_free_ = 0;
  int64_t num_shared_ = 0;
  int64_t cursor_ = 0;  // where the next run of pages starts looking
};

}  // namespace kvc
