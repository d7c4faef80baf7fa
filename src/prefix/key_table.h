// From keys to ids: open addressing over a keyed hash of the key.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/base/memory.h"
#include "src/prefix/keys.h"

namespace kvc {

// Holds tags and ids only; `is_it(id)` decides whether an id with the tag of the key is the one.
// The table is at most half full, so probes are short and always end. Erasing moves later entries
// back, so there are no tombstones and lookups stay short.
class KeyTable {
 public:
  static constexpr int32_t kAbsent = -1;

  // Makes room for so many ids. Throws std::bad_alloc; nothing has changed then.
  void reserve(int64_t ids) {
    size_t size = slots_.empty() ? 16 : slots_.size();
    // A small table is at most a quarter full, because every probe beyond the first is an
    // unpredictable branch.
    const size_t room = static_cast<size_t>(ids) * (ids <= kSmall ? 4 : 2);
    while (size < room) size *= 2;
    if (size == slots_.size()) return;
    Slots before(size, kEmpty);
    before.swap(slots_);
    for (const uint64_t slot : before) {
      if (slot != kEmpty) put(slot);
    }
  }

  template <typename IsIt>
  int32_t find(const BlockKey& key, const IsIt& is_it) const noexcept {
    return find(tag_of(key), is_it);
  }
  // The same with the tag of the key, for lookups in several steps: prefetch, guess, find.
  template <typename IsIt>
  int32_t find(uint32_t tag, const IsIt& is_it) const noexcept {
    if (slots_.empty()) return kAbsent;
    for (size_t i = tag & mask();; i = (i + 1) & mask()) {
      if (slots_[i] == kEmpty) return kAbsent;
      if (static_cast<uint32_t>(slots_[i] >> 32) == tag && is_it(id_in(slots_[i])))
        return id_in(slots_[i]);
    }
  }
  // Callers may give keys of their own making. So the tag depends on the whole key, and on a secret
  // of this process.
  uint32_t tag_of(const BlockKey& key) const noexcept { return keyed_hash(secret_, key); }
  // An id that is probably the key's, for prefetching.
  int32_t guess(uint32_t tag) const noexcept {
    if (slots_.empty()) return kAbsent;
    const uint64_t slot = slots_[tag & mask()];
    return slot == kEmpty ? kAbsent : id_in(slot);
  }
  void prefetch(uint32_t tag) const noexcept {
    if (!slots_.empty()) __builtin_prefetch(&slots_[tag & mask()]);
  }

  // The id is new, and reserve() made room. Several ids may have one key.
  void insert(const BlockKey& key, int32_t id) noexcept {
    put(static_cast<uint64_t>(tag_of(key)) << 32 | static_cast<uint32_t>(id));
  }
  void erase(const BlockKey& key, int32_t id) noexcept {
    const uint64_t wanted = static_cast<uint64_t>(tag_of(key)) << 32 | static_cast<uint32_t>(id);
    size_t hole = tag_of(key) & mask();
    while (slots_[hole] != wanted) hole = (hole + 1) & mask();
    for (size_t i = (hole + 1) & mask(); slots_[i] != kEmpty; i = (i + 1) & mask()) {
      const size_t home = static_cast<size_t>(slots_[i] >> 32) & mask();
      // It would come to lie before its home.
      if (((i - home) & mask()) < ((i - hole) & mask())) continue;
      slots_[hole] = slots_[i];
      hole = i;
    }
    slots_[hole] = kEmpty;
  }
  int64_t host_bytes() const { return kvc::host_bytes(slots_); }
  void clear() noexcept { std::fill(slots_.begin(), slots_.end(), kEmpty); }
  int64_t count() const noexcept {
    int64_t used = 0;
    for (const uint64_t slot : slots_) used += slot != kEmpty;
    return used;
  }

 private:
  static constexpr int64_t kSmall = 16384;
  using Slots = std::vector<uint64_t, LargeAllocator<uint64_t>>;
  static constexpr uint64_t kEmpty = ~uint64_t{0};  // No id is negative.

  static int32_t id_in(uint64_t slot) noexcept { return static_cast<int32_t>(slot & 0xFFFFFFFFu); }
  size_t mask() const noexcept { return slots_.size() - 1; }
  void put(uint64_t slot) noexcept {
    size_t i = static_cast<size_t>(slot >> 32) & mask();
    while (slots_[i] != kEmpty) i = (i + 1) & mask();
    slots_[i] = slot;
  }

  KeySecret secret_ = process_secret();
  Slots slots_;  // Entries tag << 32 | id.
};

}  // namespace kvc
