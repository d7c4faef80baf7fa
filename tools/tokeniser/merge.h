// Merging of byte pair encoding: of all neighbours that may be merged, those of the lowest rank
// first, and of equal ranks the leftmost.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

namespace kvc::tokeniser {

// A token, or a character without one, in the text that is merged.
struct Symbol {
  int32_t id;
  int32_t begin;
  int32_t bytes;  // 0: it was merged into the symbol before it.
  int32_t next;   // Index of the next symbol; -1: none.
  int32_t previous;
};

// What two neighbours become.
struct Merged {
  uint32_t rank;
  int32_t id;
};

// A text while it is merged. It may be used for one text after the other.
class Merging {
 public:
  void clear() { symbols_.clear(); }
  void append(int32_t id, size_t begin, size_t bytes) {
    const auto index = static_cast<int32_t>(symbols_.size());
    if (index > 0) symbols_.back().next = index;
    symbols_.push_back(
        {id, static_cast<int32_t>(begin), static_cast<int32_t>(bytes), -1, index - 1});
  }
  // In the order of the text. After run(), symbols with bytes are the result.
  const std::vector<Symbol>& symbols() const { return symbols_; }

  // `find(left, right)` says what two symbols become; empty: they are not merged. Returns how often
  // it was asked: at most three times for each symbol.
  template <typename Find>
  size_t run(const Find& find) {
    candidates_.clear();
    size_t asked = 0;
    const auto look = [&](int32_t left) {
      const int32_t right = symbols_[static_cast<size_t>(left)].next;
      if (right < 0) return false;
      const Symbol& a = symbols_[static_cast<size_t>(left)];
      const Symbol& b = symbols_[static_cast<size_t>(right)];
      ++asked;
      const std::optional<Merged> merged = find(a, b);
      if (merged) candidates_.push_back({merged->rank, left, a.bytes + b.bytes, merged->id});
      return merged.has_value();
    };
    for (size_t i = 0; i < symbols_.size(); ++i) look(static_cast<int32_t>(i));
    std::make_heap(candidates_.begin(), candidates_.end(), is_later);
    while (!candidates_.empty()) {
      std::pop_heap(candidates_.begin(), candidates_.end(), is_later);
      const Candidate candidate = candidates_.back();
      candidates_.pop_back();
      Symbol& left = symbols_[static_cast<size_t>(candidate.left)];
      if (left.bytes == 0 || left.next < 0) continue;
      Symbol& right = symbols_[static_cast<size_t>(left.next)];
      // Symbols only grow, so the same sum means the same pair.
      if (left.bytes + right.bytes != candidate.bytes) continue;
      left.id = candidate.id;
      left.bytes = candidate.bytes;
      left.next = right.next;
      right.bytes = 0;
      if (left.next >= 0) symbols_[static_cast<size_t>(left.next)].previous = candidate.left;
      for (const int32_t begin : {candidate.left, left.previous}) {
        if (begin >= 0 && look(begin))
          std::push_heap(candidates_.begin(), candidates_.end(), is_later);
      }
    }
    return asked;
  }

 private:
  struct Candidate {
    uint32_t rank;
    int32_t left;   // Index of the first symbol.
    int32_t bytes;  // Bytes of both.
    int32_t id;
  };
  static bool is_later(const Candidate& a, const Candidate& b) {
    return a.rank != b.rank ? a.rank > b.rank : a.left > b.left;
  }

  std::vector<Symbol> symbols_;
  std::vector<Candidate> candidates_;
};

}  // namespace kvc::tokeniser
