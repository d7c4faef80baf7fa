// kvc_cache_check: recount every invariant from the sequences' tables and compare.
#include <vector>

#include "src/base/error.h"
#include "src/cache/cache.h"

namespace kvc {
namespace {

void check_states(const StatePool& states, const std::vector<int32_t>& refs, const char* name) {
  for (int64_t slot = 0; slot < states.num_slots(); ++slot) {
    const int32_t expected = refs[static_cast<size_t>(slot)];
    const int32_t recorded = states.refs(static_cast<StateSlot>(slot));
    if (expected != recorded) {
      fail_with(KVC_E_CORRUPT, slot, "%s %lld has %d references recorded, counted %d", name,
                ll(slot), recorded, expected);
    }
  }
}

}  // namespace

// Every token that later queries can see has its page; every page is counted.
template <typename Count>
void Cache::check_table(const Sequence& sequence, size_t group, int64_t stored,
                        const Count& count) const {
  const PageTable& table = sequence.tables[group];
  const int32_t page_size = spec().groups[group].page_size;
  const auto size = static_cast<int64_t>(table.pages.size());
  if (stored < 0 || size != spec().groups[group].pages_for(stored)) {
    fail_with(KVC_E_CORRUPT, sequence.id,
              "sequence %lld of %lld tokens has a table of %lld pages, expected %lld",
              ll(sequence.id), ll(stored), ll(size), ll(spec().groups[group].pages_for(stored)));
  }
  int64_t dropped = 0;
  for (int64_t i = 0; i < size; ++i) {
    const PageId page = table.pages[static_cast<size_t>(i)];
    if (page != kNoPage) {
      count(sequence, page);
      continue;
    }
    ++dropped;
    const int64_t first = i * page_size, end = first + page_size;
    if (first < table.sink_kept || end > table.kept_begin) {
      fail_with(KVC_E_CORRUPT, sequence.id,
                "sequence %lld has dropped the page of its tokens %lld to %lld: it keeps the first "
                "%lld and "
                "those from "
                "%lld on",
                ll(sequence.id), ll(first), ll(end - 1), ll(table.sink_kept), ll(table.kept_begin));
    }
  }
  if (dropped != table.num_dropped) {
    fail_with(KVC_E_CORRUPT, sequence.id,
              "sequence %lld has dropped %lld pages of group %zu, recorded are %lld",
              ll(sequence.id), ll(dropped), group, ll(table.num_dropped));
  }
}

void Cache::check() const {
  const int64_t num_pages = allocator_.num_pages();
  std::vector<int32_t> refs(static_cast<size_t>(num_pages), 0);
  std::vector<int32_t> host_refs(static_cast<size_t>(host_.num_pages()), 0);
  std::vector<int32_t> host_state_refs(static_cast<size_t>(host_states_.num_slots()), 0);
  const auto count = [&](const Sequence& sequence, PageId page) {
    std::vector<int32_t>& counts = sequence.is_swapped ? host_refs : refs;
    if (page < 0 || page >= static_cast<PageId>(counts.size())) {
      fail_with(KVC_E_CORRUPT, page, "sequence %lld holds page %d: the pool has %zu pages",
                ll(sequence.id), page, counts.size());
    }
    ++counts[static_cast<size_t>(page)];
  };
  std::vector<int32_t> state_refs(static_cast<size_t>(states_.num_slots()), 0);
  const auto count_state = [&](const Sequence& sequence, StateSlot slot) {
    std::vector<int32_t>& counts = sequence.is_swapped ? host_state_refs : state_refs;
    if (slot < kInitialState || slot >= static_cast<StateSlot>(counts.size())) {
      fail_with(KVC_E_CORRUPT, slot, "sequence %lld holds state slot %d: there are %zu",
                ll(sequence.id), slot, counts.size());
    }
    if (slot != kInitialState) ++counts[static_cast<size_t>(slot)];
  };
  int64_t total_length = 0;
  int64_t num_swapped = 0;
  int64_t in_forward = 0;
  std::vector<uint8_t> slot_seen;
  sequences_.for_each([&](const Sequence& sequence) {
    total_length += sequence.length;
    num_swapped += sequence.is_swapped ? 1 : 0;
    const BatchEntry* entry = nullptr;
    if (sequence.in_forward()) {
      ++in_forward;
      const std::vector<BatchEntry>& entries = forward_.batch().entries();
      const auto index = static_cast<size_t>(sequence.batch_index);
      if (index >= entries.size() || entries[index].sequence != &sequence ||
          entries[index].old_length != sequence.length) {
        fail_with(KVC_E_CORRUPT, sequence.id,
                  "sequence %lld says it is entry %d of the open forward, which disagrees",
                  ll(sequence.id), sequence.batch_index);
      }
      entry = &entries[index];
      count_state(sequence, entry->new_state);
    }
    count_state(sequence, sequence.state);
    if (sequence.first_unwritten != kAllWritten &&
        (sequence.first_unwritten < 0 || sequence.first_unwritten >= sequence.length)) {
      fail_with(KVC_E_CORRUPT, sequence.id,
                "sequence %lld of %lld tokens says that token %lld is the first unwritten one",
                ll(sequence.id), ll(sequence.length), ll(sequence.first_unwritten));
    }
    int64_t before = -1;
    for (const Checkpoint& checkpoint : sequence.checkpoints) {
      if (checkpoint.position <= before || checkpoint.position > sequence.length) {
        fail_with(KVC_E_CORRUPT, sequence.id,
                  "sequence %lld of %lld tokens has a checkpoint at %lld after one at %lld",
                  ll(sequence.id), ll(sequence.length), ll(checkpoint.position), ll(before));
      }
      before = checkpoint.position;
      count_state(sequence, checkpoint.slot);
    }
    for (size_t group = 0; group < spec().groups.size(); ++group) {
      const bool is_cross = spec().groups[group].is_cross;
      const PageTable& table = sequence.tables[group];
      const int64_t stored =
          entry != nullptr ? entry->new_stored(is_cross) : sequence.stored(is_cross);
      check_table(sequence, group, stored, count);
      if (table.synced_pages < 0 || table.synced_pages > static_cast<int64_t>(table.pages.size())) {
        fail_with(KVC_E_CORRUPT, sequence.id,
                  "sequence %lld says %lld of its %zu table entries were sent", ll(sequence.id),
                  ll(table.synced_pages), table.pages.size());
      }
    }
    const auto slot = static_cast<size_t>(sequence.slot);
    if (slot >= slot_seen.size()) slot_seen.resize(slot + 1, 0);
    if (slot_seen[slot]++ != 0)
      fail_with(KVC_E_CORRUPT, sequence.id, "sequence %lld shares slot %d with another",
                ll(sequence.id), sequence.slot);
    if (sequences_.find(sequence.id) != &sequence)
      fail_with(KVC_E_CORRUPT, sequence.id, "sequence %lld is not found by its id",
                ll(sequence.id));
  });
  const bool open = forward_.is_open();
  if (in_forward != (open ? static_cast<int64_t>(forward_.batch().entries().size()) : 0)) {
    fail(KVC_E_CORRUPT, "%lld sequences say they are in the open forward, which has %zu",
         ll(in_forward), forward_.batch().entries().size());
  }
  for (const BatchEntry& entry : forward_.batch().entries()) {
    for (size_t group = 0; entry.change_begin >= 0 && group < spec().groups.size(); ++group) {
      const PageId replaced = forward_.batch().change(entry, group).replaced_page;
      if (replaced != kNoPage) count(*entry.sequence, replaced);
    }
  }
  index_.check(&refs, &state_refs);
  check_states(states_, state_refs, "state slot");
  check_states(host_states_, host_state_refs, "host state slot");
  check_host(host_refs);
  if (num_swapped != num_swapped_) {
    fail(KVC_E_CORRUPT, "%lld swapped sequences recorded, counted %lld", ll(num_swapped_),
         ll(num_swapped));
  }
  if (total_length != sequences_.total_length()) {
    fail(KVC_E_CORRUPT, "total length is %lld, the sequences have %lld",
         ll(sequences_.total_length()), ll(total_length));
  }
  check_counts(refs);
}

void Cache::check_host(const std::vector<int32_t>& refs) const {
  int64_t by_sequences = 0;
  for (size_t page = 0; page < refs.size(); ++page) {
    const int32_t recorded = host_.allocator().refs(static_cast<PageId>(page));
    // The index holds pages of its own, one reference each.
    if (refs[page] != recorded && !(refs[page] == 0 && recorded == 1)) {
      fail_with(KVC_E_CORRUPT, static_cast<int64_t>(page),
                "host page %zu has %d references recorded, swapped sequences hold it %d times",
                page, recorded, refs[page]);
    }
    by_sequences += refs[page] != 0 ? 1 : 0;
  }
  const int64_t withheld = host_states_.num_used() * host_states_.slot_pages();
  if (host_.allocator().num_used() !=
      by_sequences + index_.contents().num_host_pages() + withheld) {
    fail(KVC_E_CORRUPT,
         "%lld host pages are used: %lld by sequences, %lld by the index and %lld for states",
         ll(host_.allocator().num_used()), ll(by_sequences), ll(index_.contents().num_host_pages()),
         ll(withheld));
  }
}

void Cache::check_counts(const std::vector<int32_t>& refs) const {
  const int64_t num_pages = allocator_.num_pages();
  int64_t num_available = 0, num_shared = 0, num_indexed = 0, num_free = 0;
  for (int64_t page = 0; page < num_pages; ++page) {
    const auto id = static_cast<PageId>(page);
    const int32_t expected = refs[static_cast<size_t>(page)];
    const int32_t recorded = allocator_.refs(id);
    if (expected != recorded) {
      fail_with(KVC_E_CORRUPT, page,
                "page %lld has %d references recorded, the sequences and pins refer to it %d times",
                ll(page), recorded, expected);
    }
    const bool is_free = expected == 0 && !allocator_.is_indexed(id);
    if (allocator_.is_free(id) != is_free) {
      fail_with(KVC_E_CORRUPT, page, "page %lld has %d references, is %s, and is marked %s",
                ll(page), expected, allocator_.is_indexed(id) ? "indexed" : "not indexed",
                is_free ? "used" : "free");
    }
    num_available += expected == 0 ? 1 : 0;
    num_free += is_free ? 1 : 0;
    num_indexed += allocator_.is_indexed(id) ? 1 : 0;
    num_shared += expected > 1 ? 1 : 0;
  }
  // States that take pages out of use; those that the index alone knows could be evicted.
  const int64_t withheld = (states_.num_used() + states_.num_cached()) * states_.slot_pages();
  num_free -= withheld;
  num_available -= states_.num_used() * states_.slot_pages();
  if (num_available != allocator_.num_available() || num_shared != allocator_.counts().shared ||
      num_indexed != allocator_.counts().indexed || num_free != allocator_.num_free() ||
      withheld != allocator_.counts().withheld) {
    fail(KVC_E_CORRUPT,
         "%lld available, %lld free, %lld shared, %lld indexed and %lld withheld pages recorded, "
         "counted %lld, "
         "%lld, "
         "%lld, %lld and %lld",
         ll(allocator_.num_available()), ll(allocator_.num_free()), ll(allocator_.counts().shared),
         ll(allocator_.counts().indexed), ll(allocator_.counts().withheld), ll(num_available),
         ll(num_free), ll(num_shared), ll(num_indexed), ll(withheld));
  }
}

}  // namespace kvc
