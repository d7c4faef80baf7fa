// kvc_cache_check: recount every invariant from the sequences' tables and compare.
#include <vector>

#include "src/base/error.h"
#include "src/cache/cache.h"

namespace kvc {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

}  // namespace

// Every token that later queries can see has its page; every page is counted.
template <typename Count>
void Cache::check_table(const Sequence& sequence, size_t group, int64_t stored, const Count& count) const {
  const PageTable& table = sequence.tables[group];
  const auto size = static_cast<int64_t>(table.pages.size());
  if (stored < 0 || size != plan_->pages_for_tokens(stored)) {
    fail_with(KVC_E_CORRUPT, sequence.id,
              "sequence %lld of %lld tokens has a table of %lld pages, expected %lld", ll(sequence.id),
              ll(stored), ll(size), ll(plan_->pages_for_tokens(stored)));
  }
  int64_t dropped = 0;
  for (int64_t i = 0; i < size; ++i) {
    const PageId page = table.pages[static_cast<size_t>(i)];
    if (page != kNoPage) {
      count(sequence, page);
      continue;
    }
    ++dropped;
    const int64_t first = i * spec().page_size, end = first + spec().page_size;
    if (first < table.sink_kept || end > table.kept_begin) {
      fail_with(KVC_E_CORRUPT, sequence.id,
                "sequence %lld has dropped the page of its tokens %lld to %lld: it keeps the first %lld and "
                "those from "
                "%lld on",
                ll(sequence.id), ll(first), ll(end - 1), ll(table.sink_kept), ll(table.kept_begin));
    }
  }
  if (dropped != table.num_dropped) {
    fail_with(KVC_E_CORRUPT, sequence.id,
              "sequence %lld has dropped %lld pages of group %zu, recorded are %lld", ll(sequence.id),
              ll(dropped), group, ll(table.num_dropped));
  }
}

void Cache::check() const {
  const int64_t num_pages = allocator_.num_pages();
  std::vector<int32_t> holders(static_cast<size_t>(num_pages), 0);
  const auto count = [&](const Sequence& sequence, PageId page) {
    if (page < 0 || page >= num_pages) {
      fail_with(KVC_E_CORRUPT, page, "sequence %lld holds page %d: the pool has %lld pages", ll(sequence.id),
                page, ll(num_pages));
    }
    ++holders[static_cast<size_t>(page)];
  };
  std::vector<int32_t> state_holders(static_cast<size_t>(states_.num_slots()), 0);
  const auto count_state = [&](const Sequence& sequence, StateSlot slot) {
    if (slot < kInitialState || slot >= states_.num_slots()) {
      fail_with(KVC_E_CORRUPT, slot, "sequence %lld holds state slot %d: there are %lld", ll(sequence.id),
                slot, ll(states_.num_slots()));
    }
    if (slot != kInitialState) ++state_holders[static_cast<size_t>(slot)];
  };
  int64_t total_length = 0;
  int64_t in_forward = 0;
  std::vector<uint8_t> slot_seen;
  sequences_.for_each([&](const Sequence& sequence) {
    total_length += sequence.length;
    const BatchEntry* entry = nullptr;
    if (sequence.in_forward()) {
      ++in_forward;
      const std::vector<BatchEntry>& entries = forward_.batch().entries();
      const auto index = static_cast<size_t>(sequence.batch_index);
      if (index >= entries.size() || entries[index].sequence != &sequence ||
          entries[index].old_length != sequence.length) {
        fail_with(KVC_E_CORRUPT, sequence.id,
                  "sequence %lld says it is entry %d of the open forward, which disagrees", ll(sequence.id),
                  sequence.batch_index);
      }
      entry = &entries[index];
      count_state(sequence, entry->new_state);
    }
    count_state(sequence, sequence.state);
    int64_t before = -1;
    for (const Checkpoint& checkpoint : sequence.checkpoints) {
      if (checkpoint.position <= before || checkpoint.position > sequence.length) {
        fail_with(KVC_E_CORRUPT, sequence.id,
                  "sequence %lld of %lld tokens has a checkpoint at %lld after one at %lld", ll(sequence.id),
                  ll(sequence.length), ll(checkpoint.position), ll(before));
      }
      before = checkpoint.position;
      count_state(sequence, checkpoint.slot);
    }
    for (size_t group = 0; group < spec().groups.size(); ++group) {
      const bool is_cross = spec().groups[group].is_cross;
      const PageTable& table = sequence.tables[group];
      const int64_t stored = entry != nullptr ? entry->new_stored(is_cross) : sequence.stored(is_cross);
      check_table(sequence, group, stored, count);
      if (table.synced_pages < 0 || table.synced_pages > static_cast<int64_t>(table.pages.size())) {
        fail_with(KVC_E_CORRUPT, sequence.id, "sequence %lld says %lld of its %zu table entries were sent",
                  ll(sequence.id), ll(table.synced_pages), table.pages.size());
      }
    }
    const auto slot = static_cast<size_t>(sequence.slot);
    if (slot >= slot_seen.size()) slot_seen.resize(slot + 1, 0);
    if (slot_seen[slot]++ != 0)
      fail_with(KVC_E_CORRUPT, sequence.id, "sequence %lld shares slot %d with another", ll(sequence.id),
                sequence.slot);
    if (sequences_.find(sequence.id) != &sequence)
      fail_with(KVC_E_CORRUPT, sequence.id, "sequence %lld is not found by its id", ll(sequence.id));
  });
  const bool open = forward_.is_open();
  if (in_forward != (open ? static_cast<int64_t>(forward_.batch().entries().size()) : 0)) {
    fail(KVC_E_CORRUPT, "%lld sequences say they are in the open forward, which has %zu", ll(in_forward),
         forward_.batch().entries().size());
  }
  for (size_t i = 0; i < forward_.batch().entries().size(); ++i) {
    for (size_t group = 0; group < spec().groups.size(); ++group) {
      const PageId replaced = forward_.batch().change(i, group).replaced_page;
      if (replaced != kNoPage) count(*forward_.batch().entries()[i].sequence, replaced);
    }
  }
  for (int64_t slot = 0; slot < states_.num_slots(); ++slot) {
    const int32_t expected = state_holders[static_cast<size_t>(slot)];
    const int32_t recorded = states_.holders(static_cast<StateSlot>(slot));
    if (expected != recorded) {
      fail_with(KVC_E_CORRUPT, slot,
                "state slot %lld has %d holders recorded, the sequences hold it %d times", ll(slot), recorded,
                expected);
    }
  }
  if (total_length != sequences_.total_length()) {
    fail(KVC_E_CORRUPT, "total length is %lld, the sequences have %lld", ll(sequences_.total_length()),
         ll(total_length));
  }
  int64_t num_free = 0;
  int64_t num_shared = 0;
  for (int64_t page = 0; page < num_pages; ++page) {
    const int32_t expected = holders[static_cast<size_t>(page)];
    const int32_t recorded = allocator_.refs(static_cast<PageId>(page));
    if (expected != recorded) {
      fail_with(KVC_E_CORRUPT, page, "page %lld has %d holders recorded, the sequences hold it %d times",
                ll(page), recorded, expected);
    }
    if (allocator_.is_marked_free(static_cast<PageId>(page)) != (expected == 0)) {
      fail_with(KVC_E_CORRUPT, page, "page %lld has %d holders and is marked %s", ll(page), expected,
                expected == 0 ? "used" : "free");
    }
    num_free += expected == 0 ? 1 : 0;
    num_shared += expected > 1 ? 1 : 0;
  }
  if (num_free != allocator_.num_free() || num_shared != allocator_.num_shared()) {
    fail(KVC_E_CORRUPT, "%lld free and %lld shared pages recorded, counted %lld and %lld",
         ll(allocator_.num_free()), ll(allocator_.num_shared()), ll(num_free), ll(num_shared));
  }
}

}  // namespace kvc
