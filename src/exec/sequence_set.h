// The batch as attention kernels take it: the visible keys of every row, for one layer group and
// one scope of keys.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "src/base/memory.h"
#include "src/step/forward.h"

namespace kvc {

// The keys that a call attends to.
enum class KeyScope {
  kAll,     // Cached and new tokens, causal.
  kCached,  // Tokens committed before this forward.
  kNew,     // The new tokens of this call, causal; they are not in the pool.
  kCross,   // Encoder tokens.
};

// New tokens of an entry at absolute positions [begin, end) attend to each other both ways.
struct Span {
  int32_t entry;
  int32_t begin;
  int32_t end;
};

struct KeySelection {
  KeyScope scope = KeyScope::kAll;
  int32_t group = 0;
  int64_t window = 0;            // Window of the call; 0: none.
  bool needs_positions = false;  // ALiBi, or K rotated on read.
  int32_t rope = -1;             // RoPE of keys rotated on read; -1: none.
  bool has_leads = false;        // Keys are stored rotated, and some sequence has a KeyLead.
  int32_t kept_group = -1;       // Layer group of the kept rows; -1: none are read.

  bool operator==(const KeySelection&) const = default;
};

// Throws UNSUPPORTED: kNew over a token tree of several forwards; OUT_OF_RANGE: the call's window
// reaches beyond the sink tokens of a sequence.
void check_selection(const Forward& forward, const KeySelection& selection);

class HostCosSin;

class SequenceSet {
 public:
  // `spans` ascending per entry. Throws std::bad_alloc and what check_selection throws.
  void build(Forward& forward, const Spec& spec, const KeySelection& selection,
             const std::vector<Span>* spans, HostCosSin& cos_sin);

  const std::vector<kernels::AttnSequence>& sequences() const { return sequences_; }
  // The same with the page tables of the kept rows; empty: none are read.
  const std::vector<kernels::AttnSequence>& kept_sequences() const { return kept_sequences_; }
  int64_t host_bytes() const {
    return kvc::host_bytes(sequences_) + kvc::host_bytes(kept_sequences_) +
           kvc::host_bytes(first_rows_) + kvc::host_bytes(key_begins_) +
           kvc::host_bytes(key_ends_) + kvc::host_bytes(masks_) + kvc::host_bytes(positions_) +
           kvc::host_bytes(mask_begin_) + kvc::host_bytes(position_begin_);
  }
  // Q is rotated in two ways: AttnSequence::sink_q_end is set somewhere.
  bool has_two_q_rotations() const { return has_two_q_rotations_; }

 private:
  void add_entry(Forward& forward, const Spec& spec, const KeySelection& selection,
                 const BatchEntry& entry, HostCosSin& cos_sin);
  void narrow(const Spec& spec, const KeySelection& selection, const BatchEntry& entry,
              int64_t first_key, kernels::AttnSequence& sequence);
  void add_tree(const Spec& spec, const KeySelection& selection, const BatchEntry& entry,
                int64_t first_key, kernels::AttnSequence& sequence);
  void add_positions(Forward& forward, const KeySelection& selection, const BatchEntry& entry,
                     kernels::AttnSequence& sequence);
  void add_kept(const Spec& spec, const KeySelection& selection,
                const std::vector<BatchEntry>& entries);
  void add_spans(const KeySelection& selection, const std::vector<BatchEntry>& entries,
                 const std::vector<Span>& spans);

  std::vector<kernels::AttnSequence> sequences_, kept_sequences_;
  std::vector<int32_t> first_rows_;                   // kNew: page tables of the new keys.
  std::vector<int32_t> key_begins_;                   // [rows]
  std::vector<int32_t> key_ends_;                     // [rows]
  std::vector<uint64_t> masks_;                       // Masks of all token trees.
  std::vector<int32_t> positions_;                    // Positions of all keys that need them.
  std::vector<int64_t> mask_begin_, position_begin_;  // Per sequence; -1: none.
  bool has_two_q_rotations_ = false;
};

}  // namespace kvc
