// A set of pages as a bitmap with a summary, so that a search skips 4,096 pages per word.
#pragma once

#include <algorithm>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "src/base/math.h"
#include "src/base/memory.h"

namespace kvc {

// Bit w of summary_ is set exactly when words_[w] is not 0. Nothing but reserve() allocates.
class PageBitmap {
 public:
  // Makes room for resize(). Throws std::bad_alloc.
  void reserve(int64_t num_pages) {
    words_.reserve(num_words(num_pages));
    summary_.reserve(num_words(static_cast<int64_t>(num_words(num_pages))));
  }
  // New pages are not in the set, and pages that go must not be.
  void resize(int64_t num_pages) noexcept {
    words_.resize(num_words(num_pages), 0);
    summary_.resize(num_words(static_cast<int64_t>(words_.size())), 0);
  }
  int64_t host_bytes() const { return kvc::host_bytes(words_) + kvc::host_bytes(summary_); }
  bool has(int64_t page) const { return (words_[word(page)] & bit(page)) != 0; }
  void add(int64_t page) noexcept {
    words_[word(page)] |= bit(page);
    summary_[word(page / kBits)] |= bit(page / kBits);
  }
  void remove(int64_t page) noexcept {
    words_[word(page)] &= ~bit(page);
    if (words_[word(page)] == 0) summary_[word(page / kBits)] &= ~bit(page / kBits);
  }
  void clear() noexcept {
    std::fill(words_.begin(), words_.end(), 0);
    std::fill(summary_.begin(), summary_.end(), 0);
  }

  // The first page of the set at or after `begin`, which may be one past the last page; -1: none.
  int64_t find(int64_t begin) const noexcept {
    if (word(begin) >= words_.size()) return -1;
    const uint64_t rest = words_[word(begin)] & (~uint64_t{0} << (begin % kBits));
    if (rest != 0) return begin / kBits * kBits + std::countr_zero(rest);
    for (int64_t w = begin / kBits + 1; w < static_cast<int64_t>(words_.size());
         w = (w / kBits + 1) * kBits) {
      const uint64_t candidates = summary_[word(w)] & (~uint64_t{0} << (w % kBits));
      if (candidates == 0) continue;
      const int64_t found = w / kBits * kBits + std::countr_zero(candidates);
      return found * kBits + std::countr_zero(words_[static_cast<size_t>(found)]);
    }
    return -1;
  }
  // As find(), from page 0 on where nothing follows.
  int64_t find_around(int64_t begin) const noexcept {
    const int64_t found = find(begin);
    return found >= 0 ? found : find(0);
  }
  // How many pages from `begin` on are in the set without a gap, `most` at most.
  int64_t run(int64_t begin, int64_t most) const noexcept {
    int64_t count = 0;
    while (count < most && word(begin + count) < words_.size()) {
      const int64_t at = begin + count, offset = at % kBits;
      const int64_t ones = std::countr_one(words_[word(at)] >> offset);
      count += std::min(ones, kBits - offset);
      if (ones < kBits - offset) break;
    }
    return std::min(count, most);
  }

 private:
  static constexpr int64_t kBits = 64;
  static constexpr uint64_t bit(int64_t index) { return uint64_t{1} << (index % kBits); }
  static constexpr size_t word(int64_t index) { return static_cast<size_t>(index / kBits); }
  static size_t num_words(int64_t bits) { return static_cast<size_t>(ceil_div(bits, kBits)); }

  std::vector<uint64_t> words_, summary_;
};

}  // namespace kvc
