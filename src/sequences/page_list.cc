#include "src/sequences/page_list.h"

#include <algorithm>

namespace kvc {

bool PageList::make_room(int64_t size) {
  const auto wanted = static_cast<size_t>(size - (gap_end_ - gap_begin_));
  if (wanted <= entries_.capacity()) return false;
  entries_.reserve(std::max(wanted, entries_.capacity() * 2));
  return true;
}

void PageList::cut_gap(int64_t size) noexcept {
  const auto end = static_cast<int32_t>(std::max<int64_t>(size, gap_begin_));
  num_dropped_ -= gap_end_ - end;
  gap_end_ = end;
  if (gap_begin_ == gap_end_) gap_begin_ = gap_end_ = 0;
}

void PageList::clear() noexcept {
  entries_.clear();
  gap_begin_ = gap_end_ = num_dropped_ = 0;
}

void PageList::assign_dropped(int64_t size) {
  entries_.assign(static_cast<size_t>(size), kNoPage);
  gap_begin_ = gap_end_ = 0;
  num_dropped_ = static_cast<int32_t>(size);
}

void PageList::assign(const PageList& from, int64_t size) {
  gap_end_ = static_cast<int32_t>(std::min<int64_t>(from.gap_end_, size));
  gap_begin_ = std::min(from.gap_begin_, gap_end_);
  if (gap_begin_ == gap_end_) gap_begin_ = gap_end_ = 0;
  const int64_t gap_size = gap_end_ - gap_begin_;
  entries_.assign(from.entries_.begin(), from.entries_.begin() + (size - gap_size));
  num_dropped_ =
      static_cast<int32_t>(gap_size + std::count(entries_.begin(), entries_.end(), kNoPage));
}

void PageList::close_up(int64_t begin, int64_t end) noexcept {
  constexpr int64_t kFewest = 8;
  const int64_t dropped = end - begin - (gap_end_ - gap_begin_);
  if (dropped <= num_held() + kFewest) return;
  const auto first = entries_.begin() + begin;
  entries_.erase(first, first + dropped);
  gap_begin_ = static_cast<int32_t>(begin), gap_end_ = static_cast<int32_t>(end);
}

void PageList::open_up() {
  entries_.insert(entries_.begin() + gap_begin_, static_cast<size_t>(gap_end_ - gap_begin_),
                  kNoPage);
  gap_begin_ = gap_end_ = 0;
}

void PageList::rotate(int64_t first, int64_t middle) noexcept {
  std::rotate(entries_.begin() + first, entries_.begin() + middle, entries_.end());
}

}  // namespace kvc
