#include "src/pages/allocator.h"

#include <algorithm>
#include <bit>

#include "src/base/math.h"

namespace kvc {
namespace {

// Pages left free behind a new run, so that the sequence can grow in place. The gaps are used when
// the pool fills.
constexpr int64_t kGrowthGap = 16;

}  // namespace

int64_t PageAllocator::next_run(int64_t more) noexcept {
  const int64_t page = find_free(cursor_);
  const int64_t gap = std::min(kGrowthGap, num_pages() / 64);
  cursor_ = (page + 1 + more + gap) % num_pages();
  return page;
}

int64_t PageAllocator::find_free(int64_t begin) const noexcept {
  // Looks at the rest of begin's word, then at the summary from the next word on, wrapping once.
  const uint64_t rest = free_[word(begin)] & (~uint64_t{0} << (begin % kBits));
  if (rest != 0) return begin / kBits * kBits + std::countr_zero(rest);
  const auto num_words = static_cast<int64_t>(free_.size());
  int64_t next_word = begin / kBits + 1;
  for (int pass = 0; pass < 2; ++pass) {
    for (int64_t w = next_word; w < num_words;) {
      const uint64_t candidates = free_summary_[word(w)] & (~uint64_t{0} << (w % kBits));
      if (candidates != 0) {
        const int64_t found = w / kBits * kBits + std::countr_zero(candidates);
        return found * kBits + std::countr_zero(free_[found]);
      }
      w = (w / kBits + 1) * kBits;
    }
    next_word = 0;
  }
  return -1;
}

void PageAllocator::grow(int64_t num_pages) {
  const int64_t before = this->num_pages();
  const int64_t words = ceil_div(num_pages, kBits);
  refs_.reserve(num_pages);
  indexed_.reserve(num_pages);
  free_.reserve(words);
  free_summary_.reserve(ceil_div(words, kBits));
  // Nothing throws from here on.
  refs_.resize(static_cast<size_t>(num_pages), 0);
  indexed_.resize(static_cast<size_t>(num_pages), 0);
  free_.resize(static_cast<size_t>(words), 0);
  free_summary_.resize(static_cast<size_t>(ceil_div(words, kBits)), 0);
  for (int64_t page = before; page < num_pages; ++page) set_free(page);
}

void PageAllocator::shrink(int64_t num_pages) noexcept {
  for (int64_t page = num_pages; page < this->num_pages(); ++page) set_used(page);
  const int64_t words = ceil_div(num_pages, kBits);
  refs_.resize(num_pages);
  indexed_.resize(num_pages);
  free_.resize(words);
  free_summary_.resize(ceil_div(words, kBits));
  cursor_ = 0;
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
