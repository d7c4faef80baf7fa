#include "src/pages/allocator.h"

#include <algorithm>

namespace kvc {
namespace {

// Pages left free behind a new run, so that the sequence can grow in place. The gaps are used when
// the pool fills.
constexpr int64_t kGrowthGap = 16;
// Runs of freed pages that a search looks at. It takes the longest where none is long enough.
constexpr int32_t kMostRuns = 32;

}  // namespace

int64_t PageAllocator::next_run(int64_t more) noexcept {
  int64_t page = find_freed_run(1 + more);
  if (page < 0) page = free_.find_around(cursor_);
  const int64_t gap = std::min(kGrowthGap, num_pages() / 64);
  cursor_ = (page + 1 + more + gap) % num_pages();
  return page;
}

int64_t PageAllocator::find_freed_run(int64_t pages) const noexcept {
  int64_t best = -1, longest = 0;
  int64_t page = freed_.find_around(cursor_);
  for (int32_t looked_at = 0; page >= 0 && looked_at < kMostRuns; ++looked_at) {
    const int64_t length = freed_.run(page, pages);
    if (length > longest) best = page, longest = length;
    if (longest == pages) break;
    page = freed_.find_around(page + length);
  }
  return best;
}

void PageAllocator::grow(int64_t num_pages) {
  const int64_t before = this->num_pages();
  refs_.reserve(num_pages);
  indexed_.reserve(num_pages);
  free_.reserve(num_pages);
  freed_.reserve(num_pages);
  // Nothing throws from here on.
  refs_.resize(static_cast<size_t>(num_pages), 0);
  indexed_.resize(static_cast<size_t>(num_pages), 0);
  free_.resize(num_pages);
  freed_.resize(num_pages);
  for (int64_t page = before; page < num_pages; ++page) free_.add(page);
  num_free_bits_ += num_pages - before;
}

void PageAllocator::shrink(int64_t num_pages) noexcept {
  for (int64_t page = num_pages; page < this->num_pages(); ++page) set_used(page);
  refs_.resize(num_pages);
  indexed_.resize(num_pages);
  free_.resize(num_pages);
  freed_.resize(num_pages);
  cursor_ = 0;
}

int64_t PageAllocator::end_of_used() const noexcept {
  int64_t page = num_pages();
  while (page > 0 && free_.has(page - 1) && !freed_.has(page - 1)) --page;
  return page;
}

PageId PageAllocator::first_used(int64_t begin) const {
  for (int64_t page = begin; page < num_pages(); ++page) {
    if (refs(static_cast<PageId>(page)) != 0) return static_cast<PageId>(page);
  }
  return kNoPage;
}

PageId PageAllocator::first_indexed(int64_t begin) const {
  for (int64_t page = begin; page < num_pages(); ++page) {
    if (is_indexed(static_cast<PageId>(page))) return static_cast<PageId>(page);
  }
  return kNoPage;
}

void PageAllocator::clear() noexcept {
  for (int64_t page = 0; page < num_pages(); ++page) {
    if (!is_free(static_cast<PageId>(page))) set_free(page);
    refs_[page] = 0;
    indexed_[page] = 0;
  }
  num_shared_ = num_indexed_ = num_cached_ = num_withheld_ = 0;
  cursor_ = 0;
}

}  // namespace kvc
