#include "src/cache/swap_store.h"

#include <algorithm>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/cache/cache_core.h"
#include "src/cache/context_shift.h"
#include "src/exec/page_pairs.h"
#include "src/sequences/sequences.h"

namespace kvc {
namespace {

// Ids of pages or slots on one side and the other, ascending by the first.
struct Moves {
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
    return to[at - from.begin()];
  }
};

// Pages and state slots of sequences, each once however many of them share it.
struct Content {
  explicit Content(const std::vector<Sequence*>& sequences) {
    for (const Sequence* sequence : sequences) {
      for (const PageTable& table : sequence->tables) {
        table.pages.for_each([&](int64_t, PageId page) { pages.note(page); });
      }
      slots.note(sequence->state);
      for (const Checkpoint& checkpoint : sequence->checkpoints) slots.note(checkpoint.slot);
    }
    pages.settle();
    slots.settle();
  }
  int64_t num_pages(const StatePool& states) const {
    return pages.count() + slots.count() * states.slot_pages();
  }

  Moves pages, slots;
};

// One side of a swap: where pages and states lie.
struct Side {
  PageAllocator& pages;
  StatePool& states;
};

std::vector<Sequence*> swappable(const CacheCore& core, size_t num_seqs, const kvc_seq* seqs,
                                 bool is_swapped, const char* what) {
  if (num_seqs == 0) fail(KVC_E_INVALID_ARGUMENT, "n = 0: at least 1 sequence");
  if (seqs == nullptr) fail(KVC_E_INVALID_ARGUMENT, "seqs is NULL with n = %zu", num_seqs);
  std::vector<Sequence*> found;
  found.reserve(std::min(num_seqs, core.sequences.size() + 1));
  std::vector<kvc_seq> ids;
  for (size_t i = 0; i < num_seqs; ++i) {
    Sequence& sequence = core.sequences.get_idle(seqs[i], what);
    if (sequence.is_swapped != is_swapped) {
      fail_with(KVC_E_INVALID_STATE, seqs[i],
                "cannot %s sequence %lld: its is_swapped = %d, expected %d", what, ll(seqs[i]),
                sequence.is_swapped ? 1 : 0, is_swapped ? 1 : 0);
    }
    if (!is_swapped) core.sequences.get_settled(seqs[i], what);
    found.push_back(&sequence);
    ids.push_back(seqs[i]);
    if (ids.size() > core.sequences.size()) break;  // No more can be distinct.
  }
  require_distinct(std::move(ids));
  return found;
}

// Moves the content of the sequences from one side to the other. All room was made.
void move_sequences(CacheCore& core, CallStream stream, const std::vector<Sequence*>& sequences,
                    const Side& from, const Side& to, Content& content,
                    CopyDirection direction) noexcept {
  Device& device = *core.device;
  Moves& pages = content.pages;
  Moves& slots = content.slots;
  for (int64_t i = 0; i < pages.count(); ++i)
    pages.to.push_back(to.pages.take(i == 0 ? kNoPage : pages.to.back(), pages.count() - i - 1));
  device.copy_pages(direction, pages.from.data(), pages.to.data(), pages.count(), stream);
  for (int64_t i = 0; i < slots.count(); ++i) {
    slots.to.push_back(to.states.take());
    from.states.memory().copy(slots.from[i], to.states.memory(), slots.to.back(), device, stream);
  }
  for (Sequence* sequence : sequences) {
    const Recount recount(core.sequences, *sequence);
    sequence->invalidate_tables();
    for (PageTable& table : sequence->tables) {
      table.pages.map_pages([&](PageId page) {
        const PageId target = pages.target(page);
        to.pages.add_ref(target);
        from.pages.drop_ref(page);
        return target;
      });
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

}  // namespace

void SwapStore::out(size_t num_seqs, const kvc_seq* seqs, CallStream stream) {
  const std::vector<Sequence*> sequences = swappable(core_, num_seqs, seqs, false, "swap out");
  core_.host.check_use(HostUse::kManaged, "kvc_swap_out");
  Content content(sequences);
  const int64_t needed = content.num_pages(core_.host_states);
  const int64_t available =
      core_.host.allocator().num_available() + core_.index.contents().num_host_pages();
  if (needed > available) {
    fail_with(KVC_E_NO_PAGES, needed - available,
              "swapping out takes %lld host pages, %lld are free: %lld missing", ll(needed),
              ll(available), ll(needed - available));
  }
  core_.host_states.prepare(content.slots.count());
  // Nothing throws from here on.
  core_.host.start_use(HostUse::kManaged);
  if (needed > core_.host.allocator().num_free()) core_.index.eviction().evict_host_for(needed);
  for (const Sequence* sequence : sequences) core_.publisher.release(*sequence);
  move_sequences(core_, stream, sequences, {core_.allocator, core_.states},
                 {core_.host.allocator(), core_.host_states}, content,
                 CopyDirection::kDeviceToHost);
  core_.num_swapped += static_cast<int64_t>(sequences.size());
  core_.counters.pages_swapped_out += static_cast<uint64_t>(content.pages.count());
}

void SwapStore::in(size_t num_seqs, const kvc_seq* seqs, CallStream stream) {
  const std::vector<Sequence*> sequences = swappable(core_, num_seqs, seqs, true, "swap in");
  Content content(sequences);
  int64_t num_blocks = 0;
  bool has_ids = false;
  for (const Sequence* sequence : sequences) {
    num_blocks += static_cast<int64_t>(sequence->history.keys.size());
    has_ids = has_ids || !sequence->history.ids.empty();
  }
  const int64_t num_slots = content.slots.count();
  const int64_t needed = content.num_pages(core_.states);
  const int64_t missing = std::max<int64_t>(0, needed - core_.allocator.num_available());
  const int64_t missing_slots = core_.states.missing(num_slots);
  if (missing > 0 || missing_slots > 0) {
    fail_with(
        KVC_E_NO_PAGES, missing + missing_slots,
        "swapping in takes %lld pages and %lld state slots: %lld pages and %lld slots are missing",
        ll(needed), ll(num_slots), ll(missing), ll(missing_slots));
  }
  core_.states.prepare(num_slots);
  core_.index.reserve(num_blocks + core_.forward.batch().num_new_blocks(), has_ids);
  // Nothing throws from here on.
  if (needed > core_.allocator.num_free()) core_.index.eviction().evict_for(needed, stream);
  if (core_.states.to_evict(num_slots) > 0) core_.index.eviction().evict_states_for(num_slots);
  move_sequences(core_, stream, sequences, {core_.host.allocator(), core_.host_states},
                 {core_.allocator, core_.states}, content, CopyDirection::kHostToDevice);
  // Where the index still has their blocks, its pages are taken over.
  for (Sequence* sequence : sequences) {
    sequence->history.num_published = 0;
    core_.publisher.publish(*sequence, stream);
  }
  core_.num_swapped -= static_cast<int64_t>(sequences.size());
  core_.counters.pages_swapped_in += static_cast<uint64_t>(content.pages.count());
  core_.note_pages_used();
}

void SwapStore::swap_pages(const DLTensor* pairs, kvc_swap_direction direction, CallStream stream) {
  if (direction != KVC_SWAP_OUT && direction != KVC_SWAP_IN) {
    fail_with(KVC_E_UNSUPPORTED, direction,
              "direction = %d is not supported: OUT (0) and IN (1) are", direction);
  }
  core_.require_storage("kvc_pages_swap");
  core_.host.check_use(HostUse::kByPage, "kvc_pages_swap");
  const PairedPool device{"device pool", core_.allocator.num_pages()},
      host{"host pool", core_.host.num_pages()};
  const bool is_out = direction == KVC_SWAP_OUT;
  const PagePairs checked =
      is_out ? read_page_pairs(pairs, device, host) : read_page_pairs(pairs, host, device);
  if (checked.size() == 0) return;  // The pool stays without a use.
  settle_key_leads(core_);
  core_.host.start_use(HostUse::kByPage);
  core_.device->copy_pages(is_out ? CopyDirection::kDeviceToHost : CopyDirection::kHostToDevice,
                           checked.from.data(), checked.to.data(), checked.size(), stream);
  (is_out ? core_.counters.pages_swapped_out : core_.counters.pages_swapped_in) +=
      static_cast<uint64_t>(checked.size());
}

void SwapStore::copy_pages(const DLTensor* pairs, CallStream stream) {
  core_.require_storage("kvc_pages_copy");
  const PagePairs checked = read_page_pairs(pairs, {"device pool", core_.allocator.num_pages()});
  settle_key_leads(core_);
  core_.device->copy_pages(CopyDirection::kInsideDevice, checked.from.data(), checked.to.data(),
                           checked.size(), stream);
}

}  // namespace kvc
