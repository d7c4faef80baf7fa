// Sequence id -> Sequence by open addressing. Every begin looks ids up; a warm lookup takes a few
// nanoseconds.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <vector>

#include "src/sequences/sequence.h"

namespace kvc {

// Owns nothing. Erasing never allocates; inserting reserves first, so that a failed insert changes
// nothing.
class SequenceMap {
 public:
  Sequence* find(kvc_seq id) const noexcept {
    if (cells_.empty()) return nullptr;
    for (size_t i = home(id);; i = (i + 1) & mask()) {
      Sequence* sequence = cells_[i];
      if (sequence == nullptr || sequence->id == id) return sequence;
    }
  }

  // Makes room for so many more. Throws std::bad_alloc.
  void reserve(size_t count) {
    if ((size_ + count) * 2 <= cells_.size()) return;
    std::vector<Sequence*> old(std::bit_ceil(std::max<size_t>(16, (size_ + count) * 2)), nullptr);
    old.swap(cells_);
    for (Sequence* sequence : old) {
      if (sequence != nullptr) place(sequence);
    }
  }

  // Call it after reserve(). The id must be new.
  void insert(Sequence* sequence) noexcept {
    place(sequence);
    ++size_;
  }

  void erase(kvc_seq id) noexcept {
    size_t hole = home(id);
    while (cells_[hole]->id != id) hole = (hole + 1) & mask();
    // Backward-shift deletion: no tombstones, lookups stay short.
    for (size_t i = (hole + 1) & mask(); cells_[i] != nullptr; i = (i + 1) & mask()) {
      const size_t wanted = home(cells_[i]->id);
      if (((i - wanted) & mask()) >= ((i - hole) & mask())) {
        cells_[hole] = cells_[i];
        hole = i;
      }
    }
    cells_[hole] = nullptr;
    --size_;
  }

  void clear() noexcept {
    for (Sequence*& cell : cells_) cell = nullptr;
    size_ = 0;
  }

  size_t size() const { return size_; }

  template <typename Visit>
  void for_each(Visit&& visit) const {
    for (Sequence* sequence : cells_) {
      if (sequence != nullptr) visit(*sequence);
    }
  }

 private:
  size_t mask() const { return cells_.size() - 1; }
  size_t home(kvc_seq id) const {
    // Fibonacci hashing: consecutive ids spread, any id pattern mixes.
    return static_cast<size_t>((static_cast<uint64_t>(id) * 0x9E3779B97F4A7C15ull) >> 20) & mask();
  }
  void place(Sequence* sequence) noexcept {
    size_t i = home(sequence->id);
    while (cells_[i] != nullptr) i = (i + 1) & mask();
    cells_[i] = sequence;
  }

  std::vector<Sequence*> cells_;  // A power of two, at most half full.
  size_t size_ = 0;
};

}  // namespace kvc
