// The batch as attention kernels see it: for one group and one scope of keys, which keys every row
// sees.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "src/step/forward.h"

namespace kvc {

// Which keys the new queries see.
enum class KeyScope {
  kAll,     // cached and new tokens, causal
  kCached,  // committed tokens before this forward
  kNew,     // the new tokens of this call, causal, not in the pool
  kCross,   // encoder tokens
};

// New tokens of an entry in [begin, end), absolute positions, see each other both ways.
struct Span {
  int32_t entry;
  int32_t begin;
  int32_t end;
};

struct KeyView {
  KeyScope scope = KeyScope::kAll;
  int32_t group = 0;
  int64_t window = 0;            // of the call; 0: none
  bool needs_positions = false;  // ALiBi, or K rotated on read
  int32_t rope = -1;             // of keys rotated on read; -1: none

  bool operator==(const KeyView&) const = default;
};

// Throws UNSUPPORTED (kNew over a tree of several forwards), OUT_OF_RANGE (a call's window against
// sinks).
void check_view(const Forward& forward, const KeyView& view);

class SequenceSet {
 public:
  // `spans` ascending per entry. Throws std::bad_alloc and what check_view throws.
  void build(Forward& forward, const Spec& spec, const KeyView& view,
             const std::vector<Span>* spans);

  const std::vector<kernels::AttnSequence>& sequences() const { return sequences_; }
  bool has_sinks() const { return has_sinks_; }
  // Sees everything before it: candidates for shared prefixes.
  bool is_plain(size_t entry) const {
    const kernels::AttnSequence& sequence = sequences_[entry];
    return sequence.key_begins == nullptr && sequence.tree_mask == nullptr;
  }

 private:
  void add_entry(Forward& forward, const Spec& spec, const KeyView& view, const BatchEntry& entry);
  void narrow(const Spec& spec, const KeyView& view, const BatchEntry& entry, int64_t first_key,
              kernels::AttnSequence& sequence);
  void add_tree(const Spec& spec, const KeyView& view, const BatchEntry& entry, int64_t first_key,
                kernels::AttnSequence& sequence);
  void add_positions(Forward& forward, const KeyView& view, const BatchEntry& entry,
                     kernels::AttnSequence& sequence);
  void add_spans(const KeyView& view, const std::vector<BatchEntry>& entries,
                 const std::vector<Span>& spans);

  std::vector<kernels::AttnSequence> sequences_;
  // KNew: the page table of each sequence's new keys
  std::vector<int32_t> first_rows_;
  std::vector<int32_t> key_begins_;                   // [rows]
  std::vector<int32_t> key_ends_;                     // [rows]
  std::vector<uint64_t> masks_;                       // of all trees
  std::vector<int32_t> positions_;                    // of all keys that need them
  std::vector<int64_t> mask_begin_, position_begin_;  // per sequence, -1: none
  bool has_sinks_ = false;
};

}  // namespace kvc
