// Steps as the host sends them, from a plain description, and the arrays that the step kernel
// fills: for the tests of kernels that read StepState.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <map>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/cuda/step.h"
#include "tests/cuda/device_memory.h"

namespace kvc::cuda::testing {

// Entries [first, first + pages.size()) of a sequence's table of a group.
struct TableRun {
  int32_t group;
  int32_t first;
  std::vector<int32_t> pages;
};
struct StepSequence {
  int32_t slot = 0;
  int32_t stored = 0;
  int32_t append = 0;
  int32_t length = -1;  // -1: stored
  int32_t window = 0, sink = 0;
  int32_t offset = 0;
  int32_t cross_stored = 0, cross_append = 0;
  int32_t state_in = -1, state_out = -1;
  int32_t long_ropes = 0;
  std::vector<int32_t> parents = {}, depths = {};          // of its tree, old and new nodes
  std::vector<std::pair<int32_t, int32_t>> segments = {};  // begin, offset
  std::vector<TableRun> tables = {};

  int32_t committed() const { return length < 0 ? stored : length; }
};
struct StepPageCopy {
  int32_t group, from, to;
};
struct StepDescription {
  std::vector<StepSequence> sequences;
  std::vector<StepPageCopy> copies;
  int32_t columns = 0;  // sent even where all have the default
};

inline int32_t needed_columns(const StepDescription& step) {
  int32_t columns = step.columns;
  for (const StepSequence& s : step.sequences) {
    if (s.window != 0 || s.sink != 0) columns |= kColumnWindow;
    if (s.offset != 0) columns |= kColumnOffset;
    if (s.cross_stored != 0 || s.cross_append != 0) columns |= kColumnCross;
    if (s.state_in != -1 || s.state_out != -1) columns |= kColumnState;
    if (s.length >= 0 && s.length != s.stored) columns |= kColumnLength;
    if (s.long_ropes != 0) columns |= kColumnLong;
  }
  return columns;
}

inline std::vector<int32_t> step_words(const StepDescription& step) {
  std::vector<StepChange> changes;
  std::vector<int32_t> data;
  const auto add_change = [&](ChangeKind kind, int32_t group, size_t sequence, int32_t first,
                              size_t count) {
    changes.push_back({static_cast<int32_t>(kind) << 16 | group, static_cast<int32_t>(sequence),
                       first, static_cast<int32_t>(count)});
  };
  std::map<int32_t, std::vector<int32_t>> copies;  // by group
  for (const StepPageCopy& copy : step.copies) {
    std::vector<int32_t>& pairs = copies[copy.group];
    pairs.insert(pairs.end(), {copy.from, copy.to});
  }
  for (const auto& [group, pairs] : copies) {
    add_change(ChangeKind::kCopy, group, 0, 0, pairs.size() / 2);
    data.insert(data.end(), pairs.begin(), pairs.end());
  }
  for (size_t s = 0; s < step.sequences.size(); ++s) {
    const StepSequence& sequence = step.sequences[s];
    for (const TableRun& run : sequence.tables) {
      add_change(ChangeKind::kTable, run.group, s, run.first, run.pages.size());
      data.insert(data.end(), run.pages.begin(), run.pages.end());
    }
    if (!sequence.parents.empty()) {
      add_change(ChangeKind::kTree, 0, s, 0, sequence.parents.size());
      data.insert(data.end(), sequence.parents.begin(), sequence.parents.end());
      data.insert(data.end(), sequence.depths.begin(), sequence.depths.end());
    }
    if (!sequence.segments.empty()) {
      add_change(ChangeKind::kSegments, 0, s, 0, sequence.segments.size());
      for (const auto& [begin, offset] : sequence.segments)
        data.insert(data.end(), {begin, offset});
    }
  }

  const int32_t columns = needed_columns(step);
  int32_t rows = 0;
  for (const StepSequence& s : step.sequences) rows += s.append;
  std::vector<int32_t> words = {static_cast<int32_t>(step.sequences.size()), rows,
                                columns | static_cast<int32_t>(copies.size()) << kStepCopiesShift,
                                static_cast<int32_t>(changes.size())};
  const auto add_column = [&](int32_t column, auto&& value) {
    if (column != 0 && (columns & column) == 0) return;
    for (const StepSequence& s : step.sequences) words.push_back(value(s));
  };
  add_column(0, [](const StepSequence& s) { return s.slot; });
  add_column(0, [](const StepSequence& s) { return s.stored; });
  add_column(0, [](const StepSequence& s) { return s.append; });
  add_column(kColumnWindow, [](const StepSequence& s) { return s.window; });
  add_column(kColumnWindow, [](const StepSequence& s) { return s.sink; });
  add_column(kColumnOffset, [](const StepSequence& s) { return s.offset; });
  add_column(kColumnCross, [](const StepSequence& s) { return s.cross_stored; });
  add_column(kColumnCross, [](const StepSequence& s) { return s.cross_append; });
  add_column(kColumnState, [](const StepSequence& s) { return s.state_in; });
  add_column(kColumnState, [](const StepSequence& s) { return s.state_out; });
  add_column(kColumnLength, [](const StepSequence& s) { return s.committed(); });
  add_column(kColumnLong, [](const StepSequence& s) { return s.long_ropes; });
  for (const StepChange& change : changes)
    words.insert(words.end(), {change.kind_group, change.sequence, change.first, change.count});
  words.insert(words.end(), data.begin(), data.end());
  return words;
}

struct StepLimits {
  int32_t max_sequences = 0;
  int32_t max_rows = 0;
  int32_t max_cross_rows = 0;
  int32_t table_rows = 0;
  int32_t table_entries = 0;
  int64_t words = 100000;
  struct Group {
    int32_t page_size;
    bool is_cross;
  };
  std::vector<Group> groups = {};
};

// Memory behind a StepState, and the host's end of the ring.
class StepDevice {
 public:
  explicit StepDevice(const StepLimits& limits, uint32_t first_entry = 0)
      : entry_(first_entry),
        ring_(size_t{kStepEntries} * kStepEntryWords),
        progress_(1),
        counters_(std::vector<uint32_t>{first_entry, 0}),
        slots_(limits.groups.size() *
               static_cast<size_t>(limits.max_rows + limits.max_cross_rows)) {
    const auto sequences = static_cast<size_t>(limits.max_sequences);
    const auto rows = static_cast<size_t>(limits.max_rows);
    state.counts = ints(8);
    for (int32_t** array : {&state.slot, &state.stored, &state.append, &state.length, &state.window,
                            &state.sink, &state.offset, &state.cross_stored, &state.cross_append,
                            &state.state_in, &state.state_out, &state.long_ropes, &state.tree_at,
                            &state.tree_nodes, &state.segments_at, &state.num_segments})
      *array = ints(sequences);
    state.row_begin = ints(sequences + 1);
    state.cross_row_begin = ints(sequences + 1);
    state.row_sequence = ints(rows);
    state.cross_row_sequence = ints(static_cast<size_t>(limits.max_cross_rows));
    state.positions = ints(rows);
    state.slots = slots_.data();
    state.slots_stride = limits.max_rows + limits.max_cross_rows;
    state.words_capacity = limits.words;
    state.words = ints(static_cast<size_t>(limits.words));
    state.num_groups = static_cast<int32_t>(limits.groups.size());
    for (size_t g = 0; g < limits.groups.size(); ++g) {
      state.groups[g].table = ints(static_cast<size_t>(limits.table_rows * limits.table_entries));
      state.groups[g].table_stride = limits.table_entries;
      state.groups[g].page_size = limits.groups[g].page_size;
      state.groups[g].is_cross = limits.groups[g].is_cross ? 1 : 0;
    }
    state.ring = ring_.data();
    state.next_entry = counters_.data();
    state.ctas_done = counters_.data() + 1;
    state.progress = progress_.data();
  }

  // Writes a step into the next entry; long ones, and others that are to be, behind a pointer.
  void write(const std::vector<int32_t>& words, bool behind_pointer = false) {
    uint32_t* entry = ring_.data() + static_cast<size_t>(entry_++ % kStepEntries) * kStepEntryWords;
    std::memset(entry, 0xff, kStepEntryWords * 4);
    if (!behind_pointer && words.size() <= kStepEntryWords) {
      std::memcpy(entry, words.data(), words.size() * 4);
      return;
    }
    auto& copy = long_steps_.emplace_back(std::make_unique<PinnedArray<uint32_t>>(words.size()));
    std::memcpy(copy->data(), words.data(), words.size() * 4);
    const auto address = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(copy->data()));
    std::memcpy(entry, words.data(), 12);
    entry[3] = 0xffffffffu;
    entry[4] = static_cast<uint32_t>(address);
    entry[5] = static_cast<uint32_t>(address >> 32);
  }
  uint32_t entries_written() const { return entry_; }
  uint32_t progress() const { return progress_[0]; }
  std::vector<uint32_t> counters() const { return counters_.read(); }
  std::vector<int64_t> slots() const { return slots_.read(); }
  // The array of `state` that begins at `pointer`.
  std::vector<int32_t> read(const int32_t* pointer) const {
    for (const DeviceArray<int32_t>& array : arrays_)
      if (array.data() == pointer) return array.read();
    throw std::out_of_range("StepDevice::read");
  }

  StepState state{};

 private:
  int32_t* ints(size_t count) { return arrays_.emplace_back(count).data(); }

  uint32_t entry_;
  PinnedArray<uint32_t> ring_, progress_;
  std::vector<std::unique_ptr<PinnedArray<uint32_t>>> long_steps_;
  DeviceArray<uint32_t> counters_;
  DeviceArray<int64_t> slots_;
  std::vector<DeviceArray<int32_t>> arrays_;
};

}  // namespace kvc::cuda::testing
