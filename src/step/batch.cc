#include "src/step/batch.h"

#include <algorithm>

#include "kernels/step_words.h"
#include "src/base/error.h"
#include "src/base/math.h"
#include "src/step/request_check.h"

namespace kvc {
namespace {

using kernels::ChangeKind;
using kernels::StepChange;

constexpr int64_t kBaseColumns = 3;
constexpr int64_t kChangeWords = sizeof(StepChange) / sizeof(int32_t);

// Words per entry of what add_columns() adds.
int64_t num_columns(int32_t columns) {
  int64_t count = kBaseColumns;
  for (const int32_t one : {kernels::kColumnOffset, kernels::kColumnLength, kernels::kColumnLong})
    count += (columns & one) != 0 ? 1 : 0;
  for (const int32_t two : {kernels::kColumnWindow, kernels::kColumnCross, kernels::kColumnState})
    count += (columns & two) != 0 ? 2 : 0;
  return count;
}

bool has_segments(const BatchEntry& entry) { return !entry.sequence->segments.empty(); }
int64_t num_nodes(const BatchEntry& entry) {
  return entry.is_tree ? entry.sequence->tree.size() : 0;
}

// One word per rotation; a device has 32 of them at most (see DeviceStep).
int32_t long_ropes(const Spec& spec, const BatchEntry& entry) {
  int32_t bits = 0;
  for (size_t rope = 0; rope < spec.ropes.size(); ++rope) {
    if (uses_long_factors(spec.ropes[rope], entry)) bits |= int32_t{1} << rope;
  }
  return bits;
}

bool has_long_factors(const Spec& spec) {
  return std::any_of(spec.ropes.begin(), spec.ropes.end(),
                     [](const RopeSpec& rope) { return !rope.long_inverse_frequencies.empty(); });
}

}  // namespace

int64_t StepDelta::reserve(const std::vector<BatchEntry>& entries, const TableWork& work,
                           const Spec& spec) {
  int64_t num_words =
      kernels::kStepHeaderWords +
      num_columns(columns_of(entries, spec)) * static_cast<int64_t>(entries.size()) +
      kChangeWords * work.num_changes + work.num_entries + 2 * work.num_copies;
  for (size_t i = 0; has_memory_ && i < entries.size(); ++i) {
    const BatchEntry& entry = entries[i];
    if (entry.is_tree) num_words += kChangeWords + 2 * (entry.old_nodes + entry.append_length);
    if (has_segments(entry))
      num_words += kChangeWords + 2 * static_cast<int64_t>(entry.sequence->segments.size());
  }
  words_.clear();
  words_.reserve(num_words);
  return num_words;
}

int32_t StepDelta::columns_of(const std::vector<BatchEntry>& entries,
                              const Spec& spec) const noexcept {
  if (!has_memory_) return 0;
  int32_t columns = spec.has_states() ? kernels::kColumnState : 0;
  if (has_long_factors(spec)) columns |= kernels::kColumnLong;
  for (const BatchEntry& entry : entries) {
    if (entry.sequence->window != 0) columns |= kernels::kColumnWindow;
    if (entry.sequence->next_position() != entry.old_length) columns |= kernels::kColumnOffset;
    if (entry.sequence->cross_length != 0 || entry.cross_length != 0)
      columns |= kernels::kColumnCross;
    if (entry.old_nodes != 0) columns |= kernels::kColumnLength;
  }
  return columns;
}

void StepDelta::add_columns(const std::vector<BatchEntry>& entries, int32_t columns,
                            const Spec& spec) noexcept {
  const auto add = [&](const auto& value) {
    for (const BatchEntry& entry : entries) words_.push_back(static_cast<int32_t>(value(entry)));
  };
  add([](const BatchEntry& entry) { return entry.sequence->slot; });
  add([](const BatchEntry& entry) { return entry.old_length + entry.old_nodes; });
  add([](const BatchEntry& entry) { return entry.append_length; });
  if (columns == 0) return;
  if ((columns & kernels::kColumnWindow) != 0) {
    add([](const BatchEntry& entry) { return entry.sequence->window; });
    add([](const BatchEntry& entry) { return entry.sequence->sink; });
  }
  if ((columns & kernels::kColumnOffset) != 0)
    add([](const BatchEntry& entry) { return entry.sequence->next_position() - entry.old_length; });
  if ((columns & kernels::kColumnCross) != 0) {
    add([](const BatchEntry& entry) { return entry.sequence->cross_length; });
    add([](const BatchEntry& entry) { return entry.cross_length; });
  }
  if ((columns & kernels::kColumnState) != 0) {
    add([](const BatchEntry& entry) { return entry.sequence->state; });
    add([](const BatchEntry& entry) { return entry.new_state; });
  }
  if ((columns & kernels::kColumnLength) != 0)
    add([](const BatchEntry& entry) { return entry.old_length; });
  if ((columns & kernels::kColumnLong) != 0)
    add([&](const BatchEntry& entry) { return long_ropes(spec, entry); });
}

// First all changes, then their data in the same order.
void StepDelta::add_changes(const std::vector<BatchEntry>& entries,
                            const std::vector<PageCopy>& copies, size_t num_groups) noexcept {
  const auto add = [&](ChangeKind kind, size_t group, size_t entry, int64_t first, int64_t count) {
    words_.push_back(static_cast<int32_t>(kind) << 16 | static_cast<int32_t>(group));
    words_.push_back(static_cast<int32_t>(entry));
    words_.push_back(static_cast<int32_t>(first));
    words_.push_back(static_cast<int32_t>(count));
    ++words_[3];
  };
  for (size_t group = 0; !copies.empty() && group < num_groups; ++group) {
    const auto count = std::count_if(copies.begin(), copies.end(), [&](const PageCopy& copy) {
      return copy.group == static_cast<int32_t>(group);
    });
    if (count == 0) continue;
    add(ChangeKind::kCopy, group, 0, 0, count);
    words_[2] += 1 << kernels::kStepCopiesShift;
  }
  for (size_t i = 0; i < entries.size(); ++i) {
    const BatchEntry& entry = entries[i];
    for (size_t group = 0; entry.change_begin >= 0 && group < num_groups; ++group) {
      const PageTable& table = entry.sequence->tables[group];
      const int64_t total = table.pages.size();
      if (table.synced_pages != total)
        add(ChangeKind::kTable, group, i, table.synced_pages, total - table.synced_pages);
    }
    if (!has_memory_) continue;
    if (entry.is_tree) add(ChangeKind::kTree, 0, i, 0, num_nodes(entry));
    if (has_segments(entry))
      add(ChangeKind::kSegments, 0, i, 0, static_cast<int64_t>(entry.sequence->segments.size()));
  }
  for (size_t group = 0; !copies.empty() && group < num_groups; ++group) {
    for (const PageCopy& copy : copies) {
      if (copy.group != static_cast<int32_t>(group)) continue;
      words_.push_back(copy.from);
      words_.push_back(copy.to);
    }
  }
  for (const BatchEntry& entry : entries) {
    Sequence& sequence = *entry.sequence;
    for (size_t group = 0; entry.change_begin >= 0 && group < num_groups; ++group) {
      PageTable& table = sequence.tables[group];
      const int64_t total = table.pages.size();
      table.pages.append_to(table.synced_pages, total, &words_);
      table.synced_pages = static_cast<int32_t>(total);
    }
    if (!has_memory_) continue;
    if (entry.is_tree) {
      const TokenTree& tree = sequence.tree;
      words_.insert(words_.end(), tree.parents.begin(), tree.parents.begin() + tree.size());
      words_.insert(words_.end(), tree.depths.begin(), tree.depths.begin() + tree.size());
    }
    for (const PositionSegment& segment : sequence.segments) {
      words_.push_back(static_cast<int32_t>(segment.begin));
      words_.push_back(static_cast<int32_t>(segment.offset));
    }
  }
}

void StepDelta::build(const std::vector<BatchEntry>& entries, int64_t num_rows,
                      const std::vector<PageCopy>& copies, const Spec& spec) noexcept {
  const int32_t columns = columns_of(entries, spec);
  words_.push_back(static_cast<int32_t>(entries.size()));
  words_.push_back(static_cast<int32_t>(num_rows));
  words_.push_back(columns);
  words_.push_back(0);
  add_columns(entries, columns, spec);
  add_changes(entries, copies, spec.groups.size());
}

namespace {

// A shared partial last page that an entry of the batch appends to.
struct Sharer {
  PageId page;
  int64_t length;
  size_t change;
};

// Decides which sharers copy their page (see Batch). Returns the number of copies.
int64_t plan_copies(std::vector<Sharer>& sharers, const PageAllocator& allocator,
                    bool forgets_indexed, std::vector<TableChange>& changes) {
  std::sort(sharers.begin(), sharers.end(), [](const Sharer& a, const Sharer& b) {
    if (a.page != b.page) return a.page < b.page;
    return a.length != b.length ? a.length < b.length : a.change < b.change;
  });
  int64_t copies = 0;
  for (size_t first = 0; first < sharers.size();) {
    size_t next = first + 1;
    while (next < sharers.size() && sharers[next].page == sharers[first].page) ++next;
    const PageId page = sharers[first].page;
    const bool held_outside = allocator.refs(page) > static_cast<int32_t>(next - first);
    const bool is_kept = held_outside || (allocator.is_indexed(page) && !forgets_indexed);
    const size_t copying = is_kept ? next : next - 1;  // The longest keeps the page.
    for (size_t i = first; i < next; ++i) changes[sharers[i].change].copies_last_page = i < copying;
    if (!is_kept && allocator.is_indexed(page))
      changes[sharers[next - 1].change].forgets_last_page = true;
    copies += static_cast<int64_t>(copying - first);
    first = next;
  }
  return copies;
}

// Pages of a table to which nobody else refers.
int64_t count_private(const PageTable& table, const Batch::Context& context) {
  int64_t count = 0;
  for (int64_t i = 0; i < table.pages.size(); ++i)
    count += context.allocator.refs(table.pages[i]) == 1 ? 1 : 0;
  return count;
}

// Of the pages that windows keep for pops alone, those that nobody else refers to.
int64_t count_spare_pages(const std::vector<BatchEntry>& entries, const Batch::Context& context) {
  if (context.plan.spec().window_reserve == 0) return 0;
  int64_t count = 0;
  for (const BatchEntry& entry : entries) {
    for (size_t group = 0; group < entry.sequence->tables.size(); ++group) {
      const PageRange spare =
          context.sequences.trimmer().spare_pages(*entry.sequence, group, entry.new_stored(false));
      const PageList& pages = entry.sequence->tables[group].pages;
      for (int64_t i = spare.begin; i < spare.end; ++i)
        count += pages[i] != kNoPage && context.allocator.refs(pages[i]) == 1 ? 1 : 0;
    }
  }
  return count;
}

}  // namespace

Batch::Measure Batch::measure(const BatchRequest& request, const Context& context, uint64_t stamp,
                              std::vector<BatchEntry>* entries, std::vector<TableChange>* changes) {
  check_request(request, context, stamp, entries);
  const std::vector<GroupSpec>& groups = context.plan.spec().groups;
  changes->clear();
  std::vector<Sharer> sharers;  // Empty, and unallocated, in a steady decode.
  Measure needed;
  for (BatchEntry& entry : *entries) {
    if (entry.changes_no_table()) continue;
    entry.change_begin = static_cast<int32_t>(changes->size());
    const PageTable* table = entry.sequence->tables.data();
    for (const GroupSpec& group : groups) {
      const int64_t held = entry.old_size(*table, group);
      const int64_t old_stored = entry.old_stored(group);
      const int64_t new_stored = entry.new_stored(group);
      const bool is_partial = old_stored != held * group.page_size;
      if (is_partial && !table->owns_last && new_stored != old_stored &&
          !is_private(context.allocator, table->pages.back()))
        sharers.push_back({table->pages.back(), old_stored, changes->size()});
      const int64_t size = entry.new_size(*table, group);
      needed.pages += size - held;
      if (held != table->pages.size()) needed.replaced_pages += count_private(*table, context);
      changes->push_back({.old_num_pages = held, .new_num_pages = size});
      ++table;
    }
  }
  if (context.states.is_used()) {
    needed.state_slots = static_cast<int64_t>(entries->size());
    needed.pages += needed.state_slots * context.states.slot_pages();
  }
  const int64_t fresh = needed.pages;
  needed.pages = fresh + plan_copies(sharers, context.allocator, false, *changes);
  const auto lacks_pages = [&] {
    return needed.pages >
           context.allocator.num_available() + needed.spare_pages + needed.replaced_pages;
  };
  if (lacks_pages()) needed.spare_pages = count_spare_pages(*entries, context);
  if (lacks_pages() && !sharers.empty()) {
    needed.forgets_indexed = true;
    needed.pages = fresh + plan_copies(sharers, context.allocator, true, *changes);
  }
  if (context.states.is_used() && (lacks_pages() || context.states.missing(needed.state_slots) > 0))
    check_states_fit(*entries, context);
  return needed;
}

Batch::Missing Batch::missing(const Measure& needed, const Context& context) {
  Missing missing{
      needed.pages - context.allocator.num_available() - needed.spare_pages - needed.replaced_pages,
      context.states.missing(needed.state_slots)};
  if ((missing.pages > 0 || missing.state_slots > 0) && context.states.is_used()) {
    missing.reclaimable_slots = context.sequences.checkpoints().num_reclaimable();
    missing.pages -= missing.reclaimable_slots * context.states.slot_pages();
    missing.state_slots -= missing.reclaimable_slots;
  }
  missing.pages = std::max<int64_t>(0, missing.pages);
  missing.state_slots = std::max<int64_t>(0, missing.state_slots);
  return missing;
}

void Batch::prepare(const BatchRequest& request, const Plan& plan, SequenceTable& sequences,
                    PageAllocator& allocator, StatePool& states, PrefixIndex& index) {
  try {
    make_room(request, plan, sequences, allocator, states, index);
  } catch (...) {
    discard();
    throw;
  }
}

void Batch::discard() noexcept {
  entries_.clear();
  changes_.clear();
  num_rows_ = num_cross_rows_ = num_new_blocks_ = 0;
  has_trees_ = false;
}

void Batch::make_room(const BatchRequest& request, const Plan& plan, SequenceTable& sequences,
                      PageAllocator& allocator, StatePool& states, PrefixIndex& index) {
  const Context context{plan, sequences, allocator, states};
  const Measure needed = measure(request, context, ++stamp_, &entries_, &changes_);
  const Missing missing = Batch::missing(needed, context);
  if (missing.pages > 0) {
    fail_with(KVC_E_NO_PAGES, missing.pages,
              "the forward needs %lld pages, %lld are free: %lld missing", ll(needed.pages),
              ll(needed.pages - missing.pages), ll(missing.pages));
  }
  if (missing.state_slots > 0) {
    fail_with(KVC_E_NO_PAGES, missing.state_slots,
              "the forward needs %lld state slots, %lld of config.num_state_slots = %lld are in "
              "use: %lld missing",
              ll(needed.state_slots), ll(states.num_used()), ll(plan.spec().num_state_slots),
              ll(missing.state_slots));
  }
  num_groups_ = plan.spec().groups.size();
  try {
    reserve_tables(states, plan.spec(), sequences);
    reserve_tokens(request, index, sequences);
  } catch (...) {
    for (const BatchEntry& entry : entries_) sequences.count_bytes(*entry.sequence);
    throw;
  }
  int64_t reclaimed = 0;
  if (missing.reclaimable_slots > 0) {
    const int64_t slot_pages = states.slot_pages();
    const int64_t pages =
        needed.pages - allocator.num_available() - needed.spare_pages - needed.replaced_pages;
    const int64_t for_pages = slot_pages == 0 || pages <= 0 ? 0 : ceil_div(pages, slot_pages);
    reclaimed = std::max(for_pages, states.missing(needed.state_slots));
  }
  states.prepare(needed.state_slots - reclaimed);
  if (reclaimed > 0) reclaimed_states_ = sequences.checkpoints().reclaimable();
  const BatchEntry& last = entries_.back();
  num_rows_ = last.row_begin + last.append_length;
  num_cross_rows_ = last.cross_row_begin + last.cross_length;
  has_trees_ = std::any_of(entries_.begin(), entries_.end(),
                           [](const BatchEntry& entry) { return entry.is_tree; });
  needed_ = needed;
  more_unused_slots_ = count_unused_slots(plan.spec());
  num_reclaimed_states_ = reclaimed;
}

void Batch::reserve_tables(const StatePool& states, const Spec& spec, SequenceTable& sequences) {
  StepDelta::TableWork work;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const BatchEntry& entry = entries_[i];
    bool has_grown = false;
    for (size_t group = 0; entry.change_begin >= 0 && group < num_groups_; ++group) {
      PageTable& table = entry.sequence->tables[group];
      const int64_t size = change(entry, group).new_num_pages;
      if (table.pages.make_room(size)) has_grown = true;
      int64_t synced = std::min<int64_t>(table.synced_pages, change(entry, group).old_num_pages);
      if (change(entry, group).copies_last_page) {
        synced = std::min(synced, change(entry, group).old_num_pages - 1);
        ++work.num_copies;
      }
      work.num_entries += size - synced;
      work.num_changes += size != synced ? 1 : 0;
    }
    // commit() cannot throw, so the arrays that it appends to need room.
    std::vector<Checkpoint>& checkpoints = entry.sequence->checkpoints;
    if (states.is_used() && checkpoints.size() == checkpoints.capacity()) {
      checkpoints.reserve(checkpoints.size() * 2 + 4);
      has_grown = true;
    }
    if (entry.is_tree && entry.sequence->tree.reserve(entry.old_nodes + entry.append_length))
      has_grown = true;
    if (has_grown) sequences.count_bytes(*entry.sequence);
  }
  copies_.clear();
  for (size_t group = 0; work.num_copies != 0 && group < num_groups_; ++group) {
    work.num_changes += std::any_of(entries_.begin(), entries_.end(), [&](const BatchEntry& entry) {
      return entry.change_begin >= 0 && change(entry, group).copies_last_page;
    });
  }
  copies_.reserve(work.num_copies);
  taken_pages_.clear();
  notes_taken_ = spec.clears_pages;
  if (notes_taken_) {
    int64_t num_taken = 0;
    for (const TableChange& change : changes_)
      num_taken += change.new_num_pages - change.old_num_pages;
    taken_pages_.reserve(num_taken);
  }
  num_delta_words_ = step_delta_.reserve(entries_, work, spec);
}

void Batch::reserve_tokens(const BatchRequest& request, PrefixIndex& index,
                           SequenceTable& sequences) {
  tokens_.clear();
  if (request.tokens == nullptr) return;
  prefix_block_ = index.block_tokens();
  const BatchEntry& last = entries_.back();
  tokens_.assign(request.tokens, request.tokens + last.row_begin + last.append_length);
  int64_t num_blocks = 0;
  for (const BatchEntry& entry : entries_) {
    TokenHistory& history = entry.sequence->history;
    if (history.reserve(entry.append_length, prefix_block_)) sequences.count_bytes(*entry.sequence);
    num_blocks +=
        (entry.old_length + entry.append_length) / prefix_block_ - entry.old_length / prefix_block_;
  }
  if (num_blocks != 0) index.reserve(num_blocks);
  num_new_blocks_ = num_blocks;
}

void Batch::begin(const BatchRequest& request, const Plan& plan, SequenceTable& sequences,
                  PageAllocator& allocator, StatePool& states, PrefixIndex& index,
                  CallStream stream) noexcept {
  const Measure& needed = needed_;
  if (num_reclaimed_states_ > 0)
    sequences.checkpoints().reclaim(num_reclaimed_states_, reclaimed_states_);
  for (size_t i = 0; needed.forgets_indexed && i < entries_.size(); ++i) {
    const BatchEntry& entry = entries_[i];
    for (size_t group = 0; entry.change_begin >= 0 && group < num_groups_; ++group) {
      if (!change(entry, group).forgets_last_page) continue;
      const PageId page = entry.sequence->tables[group].pages.back();
      // Another page of its block may have been forgotten with it.
      if (allocator.is_indexed(page)) index.eviction().forget_page(page);
    }
  }
  for (size_t i = 0; needed.spare_pages > 0 && i < entries_.size(); ++i)
    sequences.trimmer().drop_spare(*entries_[i].sequence, entries_[i].new_stored(false));
  for (size_t i = 0; num_cross_rows_ > 0 && i < entries_.size(); ++i) {
    if (entries_[i].replaces_cross) drop_cross(entries_[i], plan.spec(), sequences, allocator);
  }
  if (needed.pages > allocator.num_free()) index.eviction().evict_for(needed.pages, stream);
  if (states.to_evict(needed.state_slots) > 0)
    index.eviction().evict_states_for(needed.state_slots);
  for (size_t i = 0; i < entries_.size(); ++i) {
    BatchEntry& entry = entries_[i];
    entry.sequence->batch_index = static_cast<int32_t>(i);
    if (entry.change_begin >= 0) take_pages(entry, allocator);
    if (states.is_used()) entry.new_state = states.take();
    if (entry.is_tree) {
      for (int64_t t = 0; t < entry.append_length; ++t)
        entry.sequence->tree.add(request.tree_parents[entry.row_begin + t]);
      learn_tokens(entry);
    }
    note_next_table_change(entry, plan.spec());
  }
  sequences.add_to_totals({.unused_slots = more_unused_slots_});
  std::sort(taken_pages_.begin(), taken_pages_.end());
  step_delta_.build(entries_, num_rows_, copies_, plan.spec());
}

// Ids of tree nodes stay with the tree until it is committed; other ids become known at once. After
// a missing id, later ones are of no use.
void Batch::learn_tokens(const BatchEntry& entry) noexcept {
  if (tokens_.empty()) return;
  const int32_t* ids = tokens_.data() + entry.row_begin;
  Sequence& sequence = *entry.sequence;
  if (entry.is_tree) {
    TokenTree& tree = sequence.tree;
    if (static_cast<int64_t>(tree.ids.size()) == entry.old_nodes)
      tree.ids.insert(tree.ids.end(), ids, ids + entry.append_length);
  } else if (sequence.history.num_known == entry.old_length && !sequence.history.has_diverged) {
    sequence.history.add(ids, entry.append_length, prefix_block_);
  }
}

// Slots of the pages that begin() takes, less those that the new tokens fill in every layer group.
int64_t Batch::count_unused_slots(const Spec& spec) const {
  int64_t more = 0;
  for (size_t i = 0; i < changes_.size(); ++i) {
    more += (changes_[i].new_num_pages - changes_[i].old_num_pages) *
            spec.groups[i % num_groups_].page_size;
  }
  for (const GroupSpec& group : spec.groups) {
    if (!group.has_kept_rows()) {
      more -= group.is_cross ? num_cross_rows_ : num_rows_;
      continue;
    }
    for (const BatchEntry& entry : entries_)
      more -= entry.new_stored(group) - entry.old_stored(group);
  }
  return more;
}

void Batch::drop_cross(BatchEntry& entry, const Spec& spec, SequenceTable& sequences,
                       PageAllocator& allocator) noexcept {
  Sequence& sequence = *entry.sequence;
  const Recount recount(sequences, sequence);
  for (size_t group = 0; group < num_groups_; ++group) {
    if (spec.groups[group].is_cross) TableTrimmer::cut(sequence.tables[group], 0, allocator);
  }
  sequence.cross_length = 0;
  sequence.invalidate_tables();
  entry.replaces_cross = false;
}

void Batch::take_pages(const BatchEntry& entry, PageAllocator& allocator) noexcept {
  for (size_t group = 0; group < num_groups_; ++group) {
    PageTable& table = entry.sequence->tables[group];
    TableChange& change = changes_[static_cast<size_t>(entry.change_begin) + group];
    PageList& pages = table.pages;
    const int64_t total = change.new_num_pages;
    if (change.copies_last_page) {
      change.replaced_page = pages.back();
      const PageId previous = pages.size() > 1 ? pages[pages.size() - 2] : kNoPage;
      pages.set(pages.size() - 1, allocator.take(previous, total - change.old_num_pages));
      copies_.push_back({change.replaced_page, pages.back(), static_cast<int32_t>(group)});
      table.send_from(change.old_num_pages - 1);
    }
    for (int64_t i = change.old_num_pages; i < total; ++i) {
      pages.push_back(allocator.take(pages.empty() ? kNoPage : pages.back(), total - i - 1));
      if (notes_taken_) taken_pages_.push_back(pages.back());
    }
    table.owns_last = change.copies_last_page || change.forgets_last_page ||
                      total > change.old_num_pages || table.owns_last;
  }
}

void Batch::note_next_table_change(const BatchEntry& entry, const Spec& spec) noexcept {
  if (entry.change_begin < 0) return;
  int64_t no_table_change_before = INT64_MAX;
  for (size_t group = 0; group < num_groups_; ++group) {
    const PageTable& table = entry.sequence->tables[group];
    const int64_t total = table.pages.size();
    // A table of kept rows that is full changes no more.
    if (spec.groups[group].has_kept_rows() &&
        entry.new_stored(spec.groups[group]) == spec.groups[group].keep_tokens)
      continue;
    if (!spec.groups[group].is_cross)
      no_table_change_before = std::min(no_table_change_before,
                                        table.owns_last ? total * spec.groups[group].page_size : 0);
  }
  entry.sequence->no_table_change_before = no_table_change_before;
}

void Batch::forget_sent() noexcept {
  for (const BatchEntry& entry : entries_) {
    entry.sequence->invalidate_tables();
    for (PageTable& table : entry.sequence->tables) table.synced_pages = 0;
  }
}

bool uses_long_factors(const RopeSpec& rope, const BatchEntry& entry) noexcept {
  if (rope.long_inverse_frequencies.empty()) return false;
  int64_t length = entry.new_length();
  if (entry.is_tree) {
    const std::vector<int32_t>& depths = entry.sequence->tree.depths;
    length = entry.old_length + 1 + *std::max_element(depths.begin(), depths.end());
  }
  return length > rope.original_context;
}

void Batch::commit(SequenceTable& sequences, PageAllocator& allocator, StatePool& states,
                   const Spec& spec, Publisher& publisher, const Written& written,
                   CallStream stream) noexcept {
  SequenceTotals appended;
  for (size_t i = 0; i < entries_.size(); ++i) {
    const BatchEntry& entry = entries_[i];
    Sequence& sequence = *entry.sequence;
    for (size_t group = 0; !copies_.empty() && entry.change_begin >= 0 && group < num_groups_;
         ++group) {
      if (change(entry, group).replaced_page != kNoPage)
        allocator.drop_ref(change(entry, group).replaced_page);
    }
    sequence.cross_length += entry.cross_length;
    if (entry.is_tree) {
      appended.tree_nodes += entry.append_length;
      if (!written.rows) sequence.tree.mark_unwritten(entry.old_nodes);
      continue;
    }
    learn_tokens(entry);
    if (!written.rows)
      sequence.first_unwritten = std::min(sequence.first_unwritten, sequence.length);
    sequence.length += entry.append_length;
    appended.length += entry.append_length;
    if (states.is_used()) {
      states.drop_ref(written.states ? sequence.state : entry.new_state);
      if (written.states) sequence.state = entry.new_state;
      if (spec.state_stride != 0 && sequence.length % spec.state_stride == 0) {
        sequence.checkpoints.push_back({sequence.length, sequence.state, true});
        states.add_ref(sequence.state);
      }
    }
    if (!tokens_.empty() && written.publishes) publisher.publish(sequence, stream);
    sequences.trimmer().drop_hidden(sequence);
  }
  sequences.add_to_totals(appended);
  finish();
}

void Batch::rollback(SequenceTable& sequences, PageAllocator& allocator,
                     StatePool& states) noexcept {
  sequences.add_to_totals({.unused_slots = -more_unused_slots_});
  for (size_t i = 0; i < entries_.size(); ++i) {
    const BatchEntry& entry = entries_[i];
    Sequence& sequence = *entry.sequence;
    if (entry.change_begin >= 0) sequence.invalidate_tables();
    for (size_t group = 0; entry.change_begin >= 0 && group < num_groups_; ++group) {
      PageTable& table = sequence.tables[group];
      const TableChange& change = this->change(entry, group);
      table.pages.truncate(change.old_num_pages, [&](PageId page) { allocator.drop_ref(page); });
      int64_t intact = change.old_num_pages;
      if (change.replaced_page != kNoPage) {
        allocator.drop_ref(table.pages.back());
        table.pages.set(table.pages.size() - 1, change.replaced_page);
        --intact;
      }
      table.send_from(intact);
      table.owns_last = false;
    }
    sequence.tree.truncate(entry.old_nodes);
    states.drop_ref(entry.new_state);
  }
  finish();
}

void Batch::finish() noexcept {
  for (const BatchEntry& entry : entries_) entry.sequence->batch_index = -1;
  entries_.clear();
  changes_.clear();
  copies_.clear();
  taken_pages_.clear();
  num_rows_ = num_cross_rows_ = num_new_blocks_ = 0;
  has_trees_ = false;
}

int64_t Batch::longest(bool is_cross) const {
  int64_t longest = 0;
  for (const BatchEntry& entry : entries_) longest = std::max(longest, entry.new_stored(is_cross));
  return longest;
}

}  // namespace kvc
