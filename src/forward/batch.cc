#include "src/forward/batch.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/forward/request_check.h"

namespace kvc {
namespace {

constexpr size_t kStepHeaderWords = 2;
constexpr size_t kStepWordsPerSequence = 4;
constexpr size_t kStepWordsPerTable = 3;

long long ll(int64_t value) { return static_cast<long long>(value); }

// A partial last page with several holders that an entry of the batch appends to.
struct Sharer {
  PageId page;
  int64_t length;
  size_t change;
};

// Decides who copies such pages; returns the number of copies. See Batch's comment.
int64_t plan_copies(std::vector<Sharer>& sharers, const PageAllocator& allocator,
                    std::vector<TableChange>& changes) {
  std::sort(sharers.begin(), sharers.end(), [](const Sharer& a, const Sharer& b) {
    if (a.page != b.page) return a.page < b.page;
    return a.length != b.length ? a.length < b.length : a.change < b.change;
  });
  int64_t copies = 0;
  for (size_t first = 0; first < sharers.size();) {
    size_t next = first + 1;
    while (next < sharers.size() && sharers[next].page == sharers[first].page) ++next;
    const bool held_outside = allocator.refs(sharers[first].page) > static_cast<int32_t>(next - first);
    const size_t copying = held_outside ? next : next - 1;  // the longest comes last and keeps the page
    for (size_t i = first; i < copying; ++i) changes[sharers[i].change].copies_last_page = true;
    copies += static_cast<int64_t>(copying - first);
    first = next;
  }
  return copies;
}

}  // namespace

Batch::Measure Batch::measure(const BatchRequest& request, const Context& context, uint64_t stamp,
                              std::vector<BatchEntry>* entries, std::vector<TableChange>* changes) {
  check_request(request, context, stamp, entries);
  const std::vector<GroupSpec>& groups = context.plan.spec().groups;
  const int32_t page_size = context.plan.spec().page_size;
  changes->clear();
  changes->reserve(entries->size() * groups.size());
  std::vector<Sharer> sharers;  // stays empty, and unallocated, in a steady decode
  Measure needed;
  for (const BatchEntry& entry : *entries) {
    const PageTable* table = entry.sequence->tables.data();
    for (const GroupSpec& group : groups) {
      const auto held = static_cast<int64_t>(table->pages.size());
      const int64_t old_stored = entry.old_stored(group.is_cross);
      const int64_t new_stored = entry.new_stored(group.is_cross);
      const bool is_partial = old_stored != held * page_size;
      if (is_partial && new_stored != old_stored && context.allocator.refs(table->pages.back()) > 1)
        sharers.push_back({table->pages.back(), old_stored, changes->size()});
      const int64_t size = table->grown_size(new_stored, page_size);
      needed.pages += size - held;
      changes->push_back(
          {.old_num_pages = held, .new_num_pages = size, .replaced_page = kNoPage, .copies_last_page = false});
      ++table;
    }
  }
  needed.pages += plan_copies(sharers, context.allocator, *changes);
  if (context.states.is_used()) needed.state_slots = static_cast<int64_t>(entries->size());
  return needed;
}

int64_t Batch::missing(const Measure& needed, const Context& context) {
  return std::max<int64_t>(0, needed.pages - context.allocator.num_free()) +
         context.states.missing(needed.state_slots);
}

// Counts what the request takes and makes room for it: all of begin that can fail.
void Batch::prepare(const BatchRequest& request, const Plan& plan, SequenceTable& sequences,
                    PageAllocator& allocator, StatePool& states) {
  const Context context{plan, sequences, allocator, states};
  const Measure needed = measure(request, context, ++stamp_, &entries_, &changes_);
  if (needed.pages > allocator.num_free()) {
    const int64_t missing = needed.pages - allocator.num_free();
    fail_with(KVC_E_NO_PAGES, missing, "the forward needs %lld pages, %lld are free: %lld missing",
              ll(needed.pages), ll(allocator.num_free()), ll(missing));
  }
  if (states.missing(needed.state_slots) > 0) {
    fail_with(
        KVC_E_NO_PAGES, states.missing(needed.state_slots),
        "the forward needs %lld state slots, %lld of config.num_state_slots = %lld are in use: %lld missing",
        ll(needed.state_slots), ll(states.num_used()), ll(plan.spec().num_state_slots),
        ll(states.missing(needed.state_slots)));
  }
  num_groups_ = plan.spec().groups.size();
  states.prepare(needed.state_slots);
  size_t num_copies = 0;
  size_t num_words = kStepHeaderWords + kStepWordsPerSequence * entries_.size();
  for (size_t i = 0; i < entries_.size(); ++i) {
    const BatchEntry& entry = entries_[i];
    for (size_t group = 0; group < num_groups_; ++group) {
      PageTable& table = entry.sequence->tables[group];
      const auto size = static_cast<size_t>(change(i, group).new_num_pages);
      if (size > table.pages.capacity()) table.pages.reserve(std::max(size, table.pages.capacity() * 2));
      num_copies += change(i, group).copies_last_page ? 1 : 0;
      num_words += size - std::min(size, static_cast<size_t>(table.synced_pages)) + 1 + kStepWordsPerTable;
    }
    // What commit appends to must have room: it cannot throw.
    std::vector<Checkpoint>& checkpoints = entry.sequence->checkpoints;
    if (states.is_used() && checkpoints.size() == checkpoints.capacity())
      checkpoints.reserve(checkpoints.size() * 2 + 4);
    if (entry.is_tree) entry.sequence->tree.reserve(entry.old_nodes + entry.append_length);
  }
  copies_.clear();
  copies_.reserve(num_copies);
  step_words_.clear();
  step_words_.reserve(num_words);
}

void Batch::begin(const BatchRequest& request, const Plan& plan, SequenceTable& sequences,
                  PageAllocator& allocator, StatePool& states) {
  try {
    prepare(request, plan, sequences, allocator, states);
  } catch (...) {
    entries_.clear();
    changes_.clear();
    throw;
  }
  // Nothing throws from here on.
  const BatchEntry& last = entries_.back();
  num_rows_ = last.row_begin + last.append_length;
  num_cross_rows_ = last.cross_row_begin + last.cross_length;
  has_trees_ = false;
  step_words_.push_back(static_cast<int32_t>(entries_.size()));
  step_words_.push_back(static_cast<int32_t>(num_rows_));
  for (size_t i = 0; i < entries_.size(); ++i) {
    BatchEntry& entry = entries_[i];
    entry.sequence->batch_index = static_cast<int32_t>(i);
    take_pages(i, allocator);
    if (states.is_used()) entry.new_state = states.take();
    if (entry.is_tree) {
      has_trees_ = true;
      for (int64_t t = 0; t < entry.append_length; ++t)
        entry.sequence->tree.add(request.tree_parents[entry.row_begin + t]);
    }
    record_step(entry);
  }
}

void Batch::take_pages(size_t index, PageAllocator& allocator) noexcept {
  const BatchEntry& entry = entries_[index];
  for (size_t group = 0; group < num_groups_; ++group) {
    PageTable& table = entry.sequence->tables[group];
    TableChange& change = changes_[index * num_groups_ + group];
    std::vector<PageId>& pages = table.pages;
    const int64_t total = change.new_num_pages;
    if (change.copies_last_page) {
      change.replaced_page = pages.back();
      const PageId previous = pages.size() > 1 ? pages[pages.size() - 2] : kNoPage;
      pages.back() = allocator.take(previous, total - change.old_num_pages);
      copies_.push_back({change.replaced_page, pages.back(), static_cast<int32_t>(group)});
      table.synced_pages = std::min(table.synced_pages, change.old_num_pages - 1);
    }
    for (int64_t i = change.old_num_pages; i < total; ++i) {
      pages.push_back(allocator.take(pages.empty() ? kNoPage : pages.back(), total - i - 1));
    }
  }
}

void Batch::record_step(const BatchEntry& entry) noexcept {
  Sequence& sequence = *entry.sequence;
  step_words_.push_back(sequence.slot);
  step_words_.push_back(static_cast<int32_t>(entry.old_length + entry.old_nodes));
  step_words_.push_back(static_cast<int32_t>(entry.append_length));
  const size_t count_at = step_words_.size();
  step_words_.push_back(0);
  for (size_t group = 0; group < num_groups_; ++group) {
    PageTable& table = sequence.tables[group];
    const auto total = static_cast<int64_t>(table.pages.size());
    if (table.synced_pages == total) continue;
    ++step_words_[count_at];
    step_words_.push_back(static_cast<int32_t>(group));
    step_words_.push_back(static_cast<int32_t>(table.synced_pages));
    step_words_.push_back(static_cast<int32_t>(total - table.synced_pages));
    step_words_.insert(step_words_.end(), table.pages.begin() + table.synced_pages, table.pages.end());
    table.synced_pages = total;
  }
}

void Batch::commit(SequenceTable& sequences, PageAllocator& allocator, StatePool& states, const Spec& spec,
                   bool states_written) noexcept {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const BatchEntry& entry = entries_[i];
    Sequence& sequence = *entry.sequence;
    for (size_t group = 0; group < num_groups_; ++group) {
      if (change(i, group).replaced_page != kNoPage) allocator.drop_holder(change(i, group).replaced_page);
    }
    sequence.cross_length += entry.cross_length;
    if (entry.is_tree) continue;
    sequence.length += entry.append_length;
    sequences.add_to_total_length(entry.append_length);
    sequences.drop_unseen(sequence);
    if (!states.is_used()) continue;
    states.drop_holder(states_written ? sequence.state : entry.new_state);
    if (states_written) sequence.state = entry.new_state;
    if (spec.state_stride != 0 && sequence.length % spec.state_stride == 0) {
      sequence.checkpoints.push_back({sequence.length, sequence.state});
      states.add_holder(sequence.state);
    }
  }
  finish();
}

void Batch::rollback(PageAllocator& allocator, StatePool& states) noexcept {
  for (size_t i = 0; i < entries_.size(); ++i) {
    const BatchEntry& entry = entries_[i];
    Sequence& sequence = *entry.sequence;
    for (size_t group = 0; group < num_groups_; ++group) {
      PageTable& table = sequence.tables[group];
      const TableChange& change = changes_[i * num_groups_ + group];
      while (static_cast<int64_t>(table.pages.size()) > change.old_num_pages) {
        allocator.drop_holder(table.pages.back());
        table.pages.pop_back();
      }
      int64_t intact = change.old_num_pages;
      if (change.replaced_page != kNoPage) {
        allocator.drop_holder(table.pages.back());
        table.pages.back() = change.replaced_page;
        --intact;
      }
      table.synced_pages = std::min(table.synced_pages, intact);
    }
    sequence.tree.truncate(entry.old_nodes);
    states.drop_holder(entry.new_state);
  }
  finish();
}

void Batch::finish() noexcept {
  for (const BatchEntry& entry : entries_) entry.sequence->batch_index = -1;
  entries_.clear();
  changes_.clear();
  copies_.clear();
  num_rows_ = num_cross_rows_ = 0;
  has_trees_ = false;
}

int64_t Batch::longest(bool is_cross) const {
  int64_t longest = 0;
  for (const BatchEntry& entry : entries_) longest = std::max(longest, entry.new_stored(is_cross));
  return longest;
}

}  // namespace kvc
