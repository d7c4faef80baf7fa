#include "src/cache/audit.h"

#include <vector>

#include "src/base/error.h"
#include "src/cache/cache_core.h"

namespace kvc {
namespace {

void check_states(const StatePool& states, const std::vector<int32_t>& refs, const char* name) {
  for (int64_t slot = 0; slot < states.num_slots(); ++slot) {
    const int32_t expected = refs[slot];
    const int32_t recorded = states.refs(static_cast<StateSlot>(slot));
    if (expected != recorded) {
      fail_with(KVC_E_CORRUPT, slot, "%s %lld has %d references recorded, counted %d", name,
                ll(slot), recorded, expected);
    }
  }
}

// One audit. Counts are per page and per state slot, of the device and of the host.
class Audit {
 public:
  explicit Audit(const CacheCore& core)
      : core_(core),
        refs_(static_cast<size_t>(core.allocator.num_pages()), 0),
        host_refs_(static_cast<size_t>(core.host.num_pages()), 0),
        state_refs_(static_cast<size_t>(core.states.num_slots()), 0),
        host_state_refs_(static_cast<size_t>(core.host_states.num_slots()), 0) {}

  void run();

 private:
  void count_page(const Sequence& sequence, PageId page);
  void count_state(const Sequence& sequence, StateSlot slot);
  // Null for a sequence that is not in the open forward.
  const BatchEntry* find_entry(const Sequence& sequence) const;
  void check_sequence(const Sequence& sequence);
  void check_checkpoints(const Sequence& sequence);
  void check_table(const Sequence& sequence, size_t group, int64_t stored);
  void check_ids(const Sequence& sequence);
  void check_forward();
  void check_totals() const;
  void check_host_pages() const;
  void check_pages() const;

  const CacheCore& core_;
  std::vector<int32_t> refs_, host_refs_;
  std::vector<int32_t> state_refs_, host_state_refs_;
  std::vector<uint8_t> slot_seen_;
  SequenceTotals totals_;
  int64_t num_swapped_ = 0, num_in_forward_ = 0, sequence_bytes_ = 0;
};

void Audit::count_page(const Sequence& sequence, PageId page) {
  std::vector<int32_t>& counts = sequence.is_swapped ? host_refs_ : refs_;
  if (page < 0 || page >= static_cast<PageId>(counts.size())) {
    fail_with(KVC_E_CORRUPT, page, "sequence %lld holds page %d: the pool has %zu pages",
              ll(sequence.id), page, counts.size());
  }
  ++counts[page];
}

void Audit::count_state(const Sequence& sequence, StateSlot slot) {
  std::vector<int32_t>& counts = sequence.is_swapped ? host_state_refs_ : state_refs_;
  if (slot < kInitialState || slot >= static_cast<StateSlot>(counts.size())) {
    fail_with(KVC_E_CORRUPT, slot, "sequence %lld holds state slot %d: there are %zu",
              ll(sequence.id), slot, counts.size());
  }
  if (slot != kInitialState) ++counts[slot];
}

const BatchEntry* Audit::find_entry(const Sequence& sequence) const {
  if (!sequence.in_forward()) return nullptr;
  const std::vector<BatchEntry>& entries = core_.forward.batch().entries();
  const auto index = static_cast<size_t>(sequence.batch_index);
  if (index >= entries.size() || entries[index].sequence != &sequence ||
      entries[index].old_length != sequence.length) {
    fail_with(KVC_E_CORRUPT, sequence.id,
              "sequence %lld says it is entry %d of the open forward, which disagrees",
              ll(sequence.id), sequence.batch_index);
  }
  return &entries[index];
}

void Audit::check_checkpoints(const Sequence& sequence) {
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
}

// Every token that later queries can see has its page, and no page stays for tokens that nobody
// reads again; every page is counted.
void Audit::check_table(const Sequence& sequence, size_t group, int64_t stored) {
  const PageTable& table = sequence.tables[group];
  const int32_t page_size = core_.group(group).page_size;
  const int64_t size = table.pages.size();
  if (stored < 0 || size != core_.group(group).pages_for(stored)) {
    fail_with(KVC_E_CORRUPT, sequence.id,
              "sequence %lld of %lld tokens has a table of %lld pages, expected %lld",
              ll(sequence.id), ll(stored), ll(size), ll(core_.group(group).pages_for(stored)));
  }
  int64_t dropped = 0;
  for (int64_t i = 0; i < size; ++i) {
    const PageId page = table.pages[i];
    const int64_t first = i * page_size, end = first + page_size;
    const bool is_kept = first < table.sink_kept || end > table.kept_begin;
    if (page != kNoPage) {
      count_page(sequence, page);
    } else {
      ++dropped;
    }
    if (is_kept != (page != kNoPage)) {
      fail_with(KVC_E_CORRUPT, sequence.id,
                "sequence %lld has %s the page of its tokens %lld to %lld in layer group %zu: it "
                "keeps the first %lld and those from %lld on",
                ll(sequence.id), is_kept ? "dropped" : "held on to", ll(first), ll(end - 1), group,
                ll(table.sink_kept), ll(table.kept_begin));
    }
  }
  if (dropped != table.pages.num_dropped()) {
    fail_with(KVC_E_CORRUPT, sequence.id,
              "sequence %lld has dropped %lld pages of group %zu, recorded are %lld",
              ll(sequence.id), ll(dropped), group, ll(table.pages.num_dropped()));
  }
  if (table.synced_pages < 0 || table.synced_pages > size) {
    fail_with(KVC_E_CORRUPT, sequence.id,
              "sequence %lld says %d of its %lld table entries were sent", ll(sequence.id),
              table.synced_pages, ll(size));
  }
}

// Two sequences never share a slot of the table of sequences, and each is found by its id.
void Audit::check_ids(const Sequence& sequence) {
  const auto slot = static_cast<size_t>(sequence.slot);
  if (slot >= slot_seen_.size()) slot_seen_.resize(slot + 1, 0);
  if (slot_seen_[slot]++ != 0)
    fail_with(KVC_E_CORRUPT, sequence.id, "sequence %lld shares slot %d with another",
              ll(sequence.id), sequence.slot);
  if (core_.sequences.find(sequence.id) != &sequence)
    fail_with(KVC_E_CORRUPT, sequence.id, "sequence %lld is not found by its id", ll(sequence.id));
}

void Audit::check_sequence(const Sequence& sequence) {
  totals_ += {.length = sequence.length, .tree_nodes = core_.num_tree_nodes(sequence)};
  num_swapped_ += sequence.is_swapped ? 1 : 0;
  num_in_forward_ += sequence.in_forward() ? 1 : 0;
  const BatchEntry* entry = find_entry(sequence);
  if (entry != nullptr) count_state(sequence, entry->new_state);
  count_state(sequence, sequence.state);
  if (sequence.first_unwritten != kAllWritten &&
      (sequence.first_unwritten < 0 || sequence.first_unwritten >= sequence.length)) {
    fail_with(KVC_E_CORRUPT, sequence.id,
              "sequence %lld of %lld tokens says that token %lld is the first unwritten one",
              ll(sequence.id), ll(sequence.length), ll(sequence.first_unwritten));
  }
  check_checkpoints(sequence);
  for (size_t group = 0; group < core_.spec().groups.size(); ++group) {
    const GroupSpec& spec = core_.group(group);
    const int64_t stored = entry != nullptr ? entry->new_stored(spec) : sequence.stored(spec);
    check_table(sequence, group, stored);
    if (!sequence.is_swapped)
      totals_.unused_slots +=
          sequence.tables[group].pages.size() * core_.group(group).page_size - stored;
  }
  check_ids(sequence);
  sequence_bytes_ += sequence.counted_bytes;
  if (sequence.counted_bytes != sequence.host_bytes()) {
    fail_with(KVC_E_CORRUPT, sequence.id,
              "sequence %lld has %lld bytes of host memory recorded, its vectors have %lld",
              ll(sequence.id), ll(sequence.counted_bytes), ll(sequence.host_bytes()));
  }
}

// Pages that a forward has replaced keep their reference until it ends.
void Audit::check_forward() {
  const std::vector<BatchEntry>& entries = core_.forward.batch().entries();
  const int64_t expected = core_.forward.is_open() ? static_cast<int64_t>(entries.size()) : 0;
  if (num_in_forward_ != expected) {
    fail(KVC_E_CORRUPT, "%lld sequences say they are in the open forward, which has %zu",
         ll(num_in_forward_), entries.size());
  }
  for (const BatchEntry& entry : entries) {
    for (size_t group = 0; entry.change_begin >= 0 && group < core_.spec().groups.size(); ++group) {
      const PageId replaced = core_.forward.batch().change(entry, group).replaced_page;
      if (replaced != kNoPage) count_page(*entry.sequence, replaced);
    }
  }
}

void Audit::check_totals() const {
  if (num_swapped_ != core_.num_swapped) {
    fail(KVC_E_CORRUPT, "%lld swapped sequences recorded, counted %lld", ll(core_.num_swapped),
         ll(num_swapped_));
  }
  const SequenceTotals& recorded = core_.sequences.totals();
  if (!(totals_ == recorded)) {
    fail(KVC_E_CORRUPT,
         "%lld tokens, %lld tree nodes and %lld unused slots recorded, the sequences have %lld, "
         "%lld and %lld",
         ll(recorded.length), ll(recorded.tree_nodes), ll(recorded.unused_slots),
         ll(totals_.length), ll(totals_.tree_nodes), ll(totals_.unused_slots));
  }
  if (sequence_bytes_ != core_.sequences.sequence_bytes()) {
    fail(KVC_E_CORRUPT, "%lld bytes of sequences recorded, counted %lld",
         ll(core_.sequences.sequence_bytes()), ll(sequence_bytes_));
  }
}

void Audit::check_host_pages() const {
  int64_t by_sequences = 0;
  for (size_t page = 0; page < host_refs_.size(); ++page) {
    const int32_t recorded = core_.host.allocator().refs(static_cast<PageId>(page));
    // The index holds pages of its own, one reference each.
    if (host_refs_[page] != recorded && !(host_refs_[page] == 0 && recorded == 1)) {
      fail_with(KVC_E_CORRUPT, static_cast<int64_t>(page),
                "host page %zu has %d references recorded, swapped sequences hold it %d times",
                page, recorded, host_refs_[page]);
    }
    by_sequences += host_refs_[page] != 0 ? 1 : 0;
  }
  const int64_t withheld = core_.host_states.num_used() * core_.host_states.slot_pages();
  if (core_.host.allocator().num_used() !=
      by_sequences + core_.index.contents().num_host_pages() + withheld) {
    fail(KVC_E_CORRUPT,
         "%lld host pages are used: %lld by sequences, %lld by the index and %lld for states",
         ll(core_.host.allocator().num_used()), ll(by_sequences),
         ll(core_.index.contents().num_host_pages()), ll(withheld));
  }
}

void Audit::check_pages() const {
  const int64_t num_pages = core_.allocator.num_pages();
  int64_t num_available = 0, num_shared = 0, num_indexed = 0, num_free = 0;
  for (int64_t page = 0; page < num_pages; ++page) {
    const auto id = static_cast<PageId>(page);
    const int32_t expected = refs_[page];
    const int32_t recorded = core_.allocator.refs(id);
    if (expected != recorded) {
      fail_with(KVC_E_CORRUPT, page,
                "page %lld has %d references recorded, the sequences and pins refer to it %d times",
                ll(page), recorded, expected);
    }
    const bool is_free = expected == 0 && !core_.allocator.is_indexed(id);
    if (core_.allocator.is_free(id) != is_free) {
      fail_with(KVC_E_CORRUPT, page, "page %lld has %d references, is %s, and is marked %s",
                ll(page), expected, core_.allocator.is_indexed(id) ? "indexed" : "not indexed",
                is_free ? "used" : "free");
    }
    num_available += expected == 0 ? 1 : 0;
    num_free += is_free ? 1 : 0;
    num_indexed += core_.allocator.is_indexed(id) ? 1 : 0;
    num_shared += expected > 1 ? 1 : 0;
  }
  // States that take pages out of use; those that the index alone knows could be evicted.
  const int64_t withheld =
      (core_.states.num_used() + core_.states.num_cached()) * core_.states.slot_pages();
  num_free -= withheld;
  num_available -= core_.states.num_used() * core_.states.slot_pages();
  if (num_available != core_.allocator.num_available() ||
      num_shared != core_.allocator.counts().shared ||
      num_indexed != core_.allocator.counts().indexed || num_free != core_.allocator.num_free() ||
      withheld != core_.allocator.counts().withheld) {
    fail(KVC_E_CORRUPT,
         "%lld available, %lld free, %lld shared, %lld indexed and %lld withheld pages recorded, "
         "counted %lld, %lld, %lld, %lld and %lld",
         ll(core_.allocator.num_available()), ll(core_.allocator.num_free()),
         ll(core_.allocator.counts().shared), ll(core_.allocator.counts().indexed),
         ll(core_.allocator.counts().withheld), ll(num_available), ll(num_free), ll(num_shared),
         ll(num_indexed), ll(withheld));
  }
}

void Audit::run() {
  core_.sequences.for_each([this](const Sequence& sequence) { check_sequence(sequence); });
  check_forward();
  for (const HeldPages* held : core_.holds) {
    for (const PageId page : held->pages) ++refs_[page];
    for (const StateSlot slot : held->states) ++state_refs_[slot];
  }
  core_.index.check(&refs_, &state_refs_);
  check_states(core_.states, state_refs_, "state slot");
  check_states(core_.host_states, host_state_refs_, "host state slot");
  check_host_pages();
  check_totals();
  check_pages();
}

}  // namespace

void audit(const CacheCore& core) { Audit(core).run(); }

}  // namespace kvc
