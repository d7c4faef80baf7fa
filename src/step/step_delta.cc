#include "src/step/step_delta.h"

#include <algorithm>

#include "kernels/step_words.h"
#include "src/step/batch.h"

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

}  // namespace kvc
