// All sequences of a cache by their ids, their checkpoints, and the operations that need neither a
// batch nor tensor memory: add, remove, fork, pop.
#pragma once

#include <algorithm>
#include <bit>
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvcache.h"
#include "src/base/memory.h"
#include "src/pages/allocator.h"
#include "src/pages/state_pool.h"
#include "src/plan/spec.h"
#include "src/sequences/sequence.h"
#include "src/sequences/table_trimmer.h"

namespace kvc {

// Sequence id -> Sequence by open addressing. Every begin looks ids up; a warm lookup takes a few
// nanoseconds.

// Owns nothing. Erasing never allocates; inserting reserves first, so that a failed insert changes
// nothing.
class SequenceMap {
 public:
  int64_t host_bytes() const { return kvc::host_bytes(cells_); }
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

// Lists of sequence ids in which none may come twice.

// Throws INVALID_ARGUMENT naming the id.
[[noreturn]] void fail_duplicate(kvc_seq id);
void require_distinct(std::vector<kvc_seq> ids);

// Checkpoints: recurrent states that sequences keep at positions.

// An automatic checkpoint of a sequence.
struct OldState {
  Sequence* sequence;
  int64_t position;
};

// Borrows all. Each checkpoint is one reference to its state slot.
class Checkpoints {
 public:
  Checkpoints(const SequenceMap* sequences, StatePool* states)
      : sequences_(sequences), states_(states) {}

  // Keeps the present state of the sequence, which is on the device. A kept one is no longer
  // automatic. Throws UNSUPPORTED without STATE layers, or std::bad_alloc.
  void take(Sequence& sequence);
  // Gives up the one at `position`. Throws NOT_FOUND, with the nearest below as detail.
  void release(Sequence& sequence, int64_t position);
  // Forgets the states beyond `position`. The one at `position` becomes the present state.
  void cut(Sequence& sequence, int64_t position) noexcept;

  // States that only automatic checkpoints refer to. O(checkpoints). Throws std::bad_alloc.
  int64_t num_reclaimable() const;
  // Automatic checkpoints of all sequences, the oldest positions first. Throws std::bad_alloc.
  std::vector<OldState> reclaimable() const;
  // Gives these up, in order, until so many states have become free or none is left.
  void reclaim(int64_t count, const std::vector<OldState>& oldest) noexcept;

 private:
  const SequenceMap* sequences_;
  StatePool* states_;
};

// Positions on both sides of one, itself among them; -1: none.
struct Neighbours {
  int64_t below = -1, above = -1;
};

// The positions that a sequence can be cut at: the next query must find its visible range.
class ResumePoints {
 public:
  // Borrows `spec`. `has_states`: some layer is of kind STATE.
  ResumePoints(const Spec& spec, bool has_states) : spec_(&spec), has_states_(has_states) {}

  // The sequence can go on from its first `position` tokens.
  bool allows(const Sequence& sequence, int64_t position) const;
  // The allowed positions next to `position`, which is at most the length. The end of the sequence
  // is always allowed. `looks`, for tests: counts the positions and checkpoints looked at.
  Neighbours around(const Sequence& sequence, int64_t position, int64_t* looks = nullptr) const;
  // Throws OUT_OF_RANGE, with the nearest one below as detail, when `position` is not allowed.
  // `argument` = `value` is what the caller was given.
  void check(const Sequence& sequence, int64_t position, const char* argument, int64_t value) const;

 private:
  int64_t lower(const Sequence& sequence, int64_t position, int64_t* looks) const;
  int64_t higher(const Sequence& sequence, int64_t position, int64_t* looks) const;
  // What keeps the sequence from going on at `position`.
  std::string reason(const Sequence& sequence, int64_t position) const;

  const Spec* spec_;
  bool has_states_;
};

// Sums over all sequences, kept up to date because nobody may walk 100,000 sequences to ask.
struct SequenceTotals {
  int64_t length = 0;        // Committed tokens.
  int64_t tree_nodes = 0;    // Uncommitted ones.
  int64_t unused_slots = 0;  // Token slots of pages on the device behind the last token.

  SequenceTotals& operator+=(const SequenceTotals& other) {
    length += other.length;
    tree_nodes += other.tree_nodes;
    unused_slots += other.unused_slots;
    return *this;
  }
  SequenceTotals operator-() const { return {-length, -tree_nodes, -unused_slots}; }
  bool operator==(const SequenceTotals&) const = default;
};

// Invariants:
// 1. `map_` finds exactly the sequences of `slots_`; a free slot is in free_slots_.
// 2. Each page of a table and each state of a sequence counts as one reference, on the host while
//    the sequence is swapped out.
// 3. totals_ is the sum of totals_of() over all sequences, and what the open batch adds to it.
// 4. counted_bytes of a sequence are its host_bytes(), and sequence_bytes_ is the sum of them.
//
// Throws Error (NOT_FOUND, ALREADY_EXISTS, OUT_OF_RANGE, BUSY, INVALID_STATE, INVALID_ARGUMENT) or
// std::bad_alloc; nothing has changed then.
class SequenceTable {
 public:
  // `prefix_block`: tokens per block of the prefix index. All are borrowed.
  SequenceTable(PageAllocator* allocator, StatePool* states, PageAllocator* host_allocator,
                StatePool* host_states, const Spec& spec, int32_t prefix_block)
      : allocator_(allocator),
        states_(states),
        host_allocator_(host_allocator),
        host_states_(host_states),
        spec_(&spec),
        prefix_block_(prefix_block),
        trimmer_(spec, allocator),
        checkpoints_(&map_, states),
        resume_points_(spec, states->is_used()) {}
  SequenceTable(const SequenceTable&) = delete;
  SequenceTable& operator=(const SequenceTable&) = delete;

  void add(kvc_seq id);
  // A sequence without tables that is in no table of sequences yet. Makes the next `num_adopted`
  // calls of adopt() succeed. Throws std::bad_alloc.
  std::unique_ptr<Sequence> make(kvc_seq id, size_t num_adopted = 1);
  // Adds a complete sequence and counts its references. Call check_new_id() before.
  Sequence& adopt(std::unique_ptr<Sequence> sequence);
  void check_new_id(kvc_seq id, const char* name) const;
  void remove(kvc_seq id);
  // A copy of all of a settled sequence, in no table of sequences. References are not counted.
  std::unique_ptr<Sequence> copy_of(const Sequence& sequence) const {
    return fork_of(sequence, sequence.id, sequence.length);
  }
  void fork(kvc_seq parent, kvc_seq child, int64_t position);
  void pop(kvc_seq id, int64_t num_tokens);
  void clear() noexcept;

  Sequence* find(kvc_seq id) const { return id < 0 ? nullptr : map_.find(id); }
  Sequence& get(kvc_seq id) const {  // Throws NOT_FOUND.
    Sequence* sequence = find(id);
    if (sequence == nullptr) fail_unknown(id);
    return *sequence;
  }
  // A sequence that is not swapped out. Throws NOT_FOUND, INVALID_STATE.
  Sequence& get_on_device(kvc_seq id, const char* action) const;
  // A sequence that is not in the open forward, nor on its way here. Throws NOT_FOUND, BUSY.
  Sequence& get_idle(kvc_seq id, const char* action) const;
  // An idle sequence on the device, without an uncommitted tree. Throws NOT_FOUND, BUSY,
  // INVALID_STATE.
  Sequence& get_settled(kvc_seq id, const char* action) const;

  size_t size() const { return map_.size(); }
  template <typename Visit>
  void for_each(Visit&& visit) const {
    map_.for_each(visit);
  }
  const SequenceTotals& totals() const { return totals_; }
  void add_to_totals(const SequenceTotals& change) { totals_ += change; }
  // What a sequence outside the open forward adds to the totals.
  SequenceTotals totals_of(const Sequence& sequence) const;

  int64_t host_bytes() const {
    return sequence_bytes_ + map_.host_bytes() + kvc::host_bytes(slots_) +
           kvc::host_bytes(free_slots_) + (spare_ == nullptr ? 0 : spare_->host_bytes());
  }
  // The sum of Sequence::counted_bytes.
  int64_t sequence_bytes() const { return sequence_bytes_; }
  // Call it when vectors of the sequence may have got other memory.
  void count_bytes(Sequence& sequence) noexcept {
    const int64_t bytes = sequence.host_bytes();
    sequence_bytes_ += bytes - sequence.counted_bytes;
    sequence.counted_bytes = bytes;
  }

  TableTrimmer& trimmer() { return trimmer_; }
  const TableTrimmer& trimmer() const { return trimmer_; }
  Checkpoints& checkpoints() { return checkpoints_; }
  const Checkpoints& checkpoints() const { return checkpoints_; }
  const ResumePoints& resume_points() const { return resume_points_; }

 private:
  void reserve(size_t count);
  Sequence& create(std::unique_ptr<Sequence> sequence);
  std::unique_ptr<Sequence> fork_of(const Sequence& parent, kvc_seq child_id, int64_t length) const;
  [[noreturn]] void fail_unknown(kvc_seq id) const;

  PageAllocator* allocator_;
  StatePool* states_;
  PageAllocator* host_allocator_;  // Pages of swapped sequences.
  StatePool* host_states_;
  const Spec* spec_;
  int32_t prefix_block_;
  SequenceMap map_;
  TableTrimmer trimmer_;
  Checkpoints checkpoints_;
  ResumePoints resume_points_;
  std::vector<std::unique_ptr<Sequence>> slots_;  // Null where free.
  // Its capacity is at least slots_.size(), so that freeing a slot never allocates.
  std::vector<int32_t> free_slots_;
  std::unique_ptr<Sequence> spare_;  // A removed sequence, whose memory the next one reuses.
  SequenceTotals totals_;
  int64_t sequence_bytes_ = 0;
};

// Counts a sequence again when what changes its length, its tree or its tables is done.
class Recount {
 public:
  Recount(SequenceTable& sequences, Sequence& sequence) noexcept
      : sequences_(sequences), sequence_(sequence) {
    sequences_.add_to_totals(-sequences_.totals_of(sequence_));
  }
  ~Recount() {
    sequences_.add_to_totals(sequences_.totals_of(sequence_));
    sequences_.count_bytes(sequence_);
  }
  Recount(const Recount&) = delete;
  Recount& operator=(const Recount&) = delete;

 private:
  SequenceTable& sequences_;
  Sequence& sequence_;
};

// The same for its memory alone, also when an exception ends what changes it.
class BytesRecount {
 public:
  BytesRecount(SequenceTable& sequences, Sequence& sequence) noexcept
      : sequences_(sequences), sequence_(sequence) {}
  ~BytesRecount() { sequences_.count_bytes(sequence_); }
  BytesRecount(const BytesRecount&) = delete;
  BytesRecount& operator=(const BytesRecount&) = delete;

 private:
  SequenceTable& sequences_;
  Sequence& sequence_;
};

std::vector<kvc_seq> sorted_ids(const SequenceTable& sequences);
[[noreturn]] void fail_away(const Sequence& sequence, const char* action);
// Throws INVALID_STATE for a sequence on the host, BUSY for one that a transfer brings. A step asks
// it of every sequence.
inline void check_on_device(const Sequence& sequence, const char* action) {
  if (sequence.is_swapped || sequence.is_arriving) fail_away(sequence, action);
}

}  // namespace kvc
