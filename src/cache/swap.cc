// Whole sequences between the device and the host: pages, states, checkpoints. What they share
// stays shared.
#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/cache/cache.h"

namespace kvc {
namespace {

template <typename Visit>
void visit_pages(const Sequence& sequence, Visit&& visit) {
  for (const PageTable& table : sequence.tables) {
    for (const PageId page : table.pages) visit(page);
  }
}

template <typename Visit>
void visit_states(const Sequence& sequence, Visit&& visit) {
  visit(sequence.state);
  for (const Checkpoint& checkpoint : sequence.checkpoints) visit(checkpoint.slot);
}

}  // namespace

// Ids on one side and the other, ascending by the first.
struct Cache::Moves {
  std::vector<int32_t> from, to;

  void note(int32_t id) {
    if (id >= 0) from.push_back(id);
  }
  // Each id once; room for the other side.
  void settle() {
    std::sort(from.begin(), from.end());
    from.erase(std::unique(from.begin(), from.end()), from.end());
    to.reserve(from.size());
  }
  int64_t count() const { return static_cast<int64_t>(from.size()); }
  int32_t target(int32_t id) const noexcept {
    const auto at = std::lower_bound(from.begin(), from.end(), id);
    return to[static_cast<size_t>(at - from.begin())];
  }
};

// One side of a swap: where pages and states lie.
struct Cache::Side {
  PageAllocator& pages;
  StatePool& states;
};

std::vector<Sequence*> Cache::swappable(size_t num_seqs, const kvc_seq* seqs, bool is_swapped,
                                        const char* what) const {
  if (num_seqs == 0) fail(KVC_E_INVALID_ARGUMENT, "n = 0: at least 1 sequence");
  if (seqs == nullptr) fail(KVC_E_INVALID_ARGUMENT, "seqs is NULL with n = %zu", num_seqs);
  std::vector<Sequence*> found;
  found.reserve(std::min(num_seqs, sequences_.size() + 1));
  std::vector<kvc_seq> ids;
  for (size_t i = 0; i < num_seqs; ++i) {
    Sequence& sequence = sequences_.get_idle(seqs[i], what);
    if (sequence.is_swapped != is_swapped) {
      fail_with(KVC_E_INVALID_STATE, seqs[i],
                "cannot %s sequence %lld: its is_swapped = %d, expected %d", what, ll(seqs[i]),
                sequence.is_swapped ? 1 : 0, is_swapped ? 1 : 0);
    }
    if (!is_swapped) sequences_.get_settled(seqs[i], what);
    if (found.size() == sequences_.size()) break;  // more can't be distinct
    found.push_back(&sequence);
    ids.push_back(seqs[i]);
  }
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end() || found.size() < num_seqs) {
    const kvc_seq id = twice != ids.end() ? *twice : seqs[num_seqs - 1];
    fail_with(KVC_E_INVALID_ARGUMENT, id,
              "sequence %lld appears twice in seqs: ids must be distinct", ll(id));
  }
  return found;
}

// Moves what the sequences hold from one side to the other. All room was made.
void Cache::move_sequences(const std::vector<Sequence*>& sequences, const Side& from,
                           const Side& to, Moves& pages, Moves& slots,
                           CopyDirection direction) noexcept {
  for (int64_t i = 0; i < pages.count(); ++i)
    pages.to.push_back(to.pages.take(i == 0 ? kNoPage : pages.to.back(), pages.count() - i - 1));
  copier_->copy(direction, pages.from.data(), pages.to.data(), pages.count());
  for (int64_t i = 0; i < slots.count(); ++i) {
    slots.to.push_back(to.states.take());
    from.states.memory().copy_to(slots.from[static_cast<size_t>(i)], to.states.memory(),
                                 slots.to.back());
  }
  for (Sequence* sequence : sequences) {
    sequence->invalidate_tables();
    for (PageTable& table : sequence->tables) {
      for (PageId& page : table.pages) {
        if (page == kNoPage) continue;
        const PageId target = pages.target(page);
        to.pages.add_ref(target);
        from.pages.drop_ref(page);
        page = target;
      }
      table.synced_pages = 0;
      table.owns_last = false;
    }
    const auto move_state = [&](StateSlot& slot) {
      if (slot == kInitialState) return;
      const StateSlot target = slots.target(slot);
      to.states.add_ref(target);
      from.states.drop_ref(slot);
      slot = target;
    };
    move_state(sequence->state);
    for (Checkpoint& checkpoint : sequence->checkpoints) move_state(checkpoint.slot);
    sequence->is_swapped = direction == CopyDirection::kDeviceToHost;
  }
  // The reference that each was taken with.
  for (const PageId page : pages.to) to.pages.drop_ref(page);
  for (const StateSlot slot : slots.to) to.states.drop_ref(slot);
}

void Cache::swap_out(size_t num_seqs, const kvc_seq* seqs) {
  const std::vector<Sequence*> sequences = swappable(num_seqs, seqs, false, "swap out");
  host_.check_use(HostUse::kManaged, "kvc_swap_out");
  Moves pages, slots;
  for (const Sequence* sequence : sequences) {
    visit_pages(*sequence, [&](PageId page) { pages.note(page); });
    visit_states(*sequence, [&](StateSlot slot) { slots.note(slot); });
  }
  pages.settle();
  slots.settle();
  const int64_t needed = pages.count() + slots.count() * host_states_.slot_pages();
  const int64_t available = host_.allocator().num_available() + index_.contents().num_host_pages();
  if (needed > available) {
    fail_with(KVC_E_NO_PAGES, needed - available,
              "swapping out takes %lld host pages, %lld are free: %lld missing", ll(needed),
              ll(available), ll(needed - available));
  }
  host_states_.prepare(slots.count());
  // Nothing throws from here on.
  host_.start_use(HostUse::kManaged);
  if (needed > host_.allocator().num_free()) index_.eviction().evict_host_for(needed);
  for (const Sequence* sequence : sequences) publisher_.release(*sequence);
  move_sequences(sequences, {allocator_, states_}, {host_.allocator(), host_states_}, pages, slots,
                 CopyDirection::kDeviceToHost);
  num_swapped_ += static_cast<int64_t>(sequences.size());
  counters_.pages_swapped_out += static_cast<uint64_t>(pages.count());
}

void Cache::swap_in(size_t num_seqs, const kvc_seq* seqs) {
  const std::vector<Sequence*> sequences = swappable(num_seqs, seqs, true, "swap in");
  Moves pages, slots;
  int64_t num_blocks = 0;
  bool has_ids = false;
  for (const Sequence* sequence : sequences) {
    visit_pages(*sequence, [&](PageId page) { pages.note(page); });
    visit_states(*sequence, [&](StateSlot slot) { slots.note(slot); });
    num_blocks += static_cast<int64_t>(sequence->history.keys.size());
    has_ids = has_ids || !sequence->history.ids.empty();
  }
  pages.settle();
  slots.settle();
  const int64_t needed = pages.count() + slots.count() * states_.slot_pages();
  const int64_t missing = std::max<int64_t>(0, needed - allocator_.num_available());
  const int64_t missing_slots = states_.missing(slots.count());
  if (missing > 0 || missing_slots > 0) {
    fail_with(
        KVC_E_NO_PAGES, missing + missing_slots,
        "swapping in takes %lld pages and %lld state slots: %lld pages and %lld slots are missing",
        ll(needed), ll(slots.count()), ll(missing), ll(missing_slots));
  }
  states_.prepare(slots.count());
  index_.reserve(num_blocks + forward_.batch().num_new_blocks(), has_ids);
  // Nothing throws from here on.
  if (needed > allocator_.num_free()) index_.eviction().evict_for(needed);
  if (states_.to_evict(slots.count()) > 0) index_.eviction().evict_states_for(slots.count());
  move_sequences(sequences, {host_.allocator(), host_states_}, {allocator_, states_}, pages, slots,
                 CopyDirection::kHostToDevice);
  // Where the index still has their blocks, its pages are taken over.
  for (Sequence* sequence : sequences) {
    sequence->history.num_published = 0;
    publisher_.publish(*sequence);
  }
  num_swapped_ -= static_cast<int64_t>(sequences.size());
  counters_.pages_swapped_in += static_cast<uint64_t>(pages.count());
  note_pages_used();
}

}  // namespace kvc
