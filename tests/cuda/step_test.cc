// The step kernel against a model that keeps page tables and arrays on the host: random steps one
// behind the other.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <set>

#include "kernels/cuda/launches.h"
#include "tests/cuda/random_numbers.h"
#include "tests/cuda/step_writer.h"

namespace kvc::cuda {
namespace {

using testing::DeviceArray;
using testing::finish;
using testing::Rng;
using testing::scaled;
using testing::StepDescription;
using testing::StepDevice;
using testing::StepLimits;
using testing::StepSequence;

// A tree of `old_nodes` + `append` nodes.
void grow_tree(Rng& rng, int32_t nodes, StepSequence* s) {
  for (int32_t node = 0; node < nodes; ++node) {
    const int32_t parent = rng.between(-1, node - 1);
    s->parents.push_back(parent);
    s->depths.push_back(parent < 0 ? 0 : s->depths[static_cast<size_t>(parent)] + 1);
  }
}

// What the device's arrays should hold.
struct Model {
  StepLimits limits;
  // (group, slot): entry, page
  std::map<std::pair<int32_t, int32_t>, std::map<int32_t, int32_t>> tables;

  void apply(const StepDescription& step) {
    for (const StepSequence& s : step.sequences)
      for (const testing::TableRun& run : s.tables)
        for (size_t i = 0; i < run.pages.size(); ++i)
          tables[{run.group, s.slot}][run.first + static_cast<int32_t>(i)] = run.pages[i];
  }
  int64_t slot(int32_t group, int32_t table_row, int32_t token) {
    const int32_t tokens = limits.groups[static_cast<size_t>(group)].page_size;
    const int32_t page = tables[{group, table_row}].at(token / tokens);
    return page < 0 ? -1 : int64_t{page} * tokens + token % tokens;
  }
};

StepDescription random_step(Rng& rng, const StepLimits& limits, Model* model, int32_t num_sequences,
                            int32_t most_append) {
  StepDescription step;
  std::vector<int32_t> free_slots(static_cast<size_t>(limits.table_rows));
  for (size_t i = 0; i < free_slots.size(); ++i) free_slots[i] = static_cast<int32_t>(i);
  std::shuffle(free_slots.begin(), free_slots.end(), rng.engine);
  int32_t rows_left = limits.max_rows, cross_left = limits.max_cross_rows;
  const bool has_windows = rng.chance(30), has_states = rng.chance(30), has_cross = rng.chance(50);
  if (rng.chance(20)) step.columns = rng.upto(63);
  // Their pairs lie in front of what other changes bring. Without pages nothing is copied.
  if (rng.chance(30)) {
    for (int32_t i = rng.upto(20); i > 0; --i)
      step.copies.push_back({rng.upto(5), rng.upto(9), 10 + i});
  }
  for (int32_t i = 0; i < num_sequences; ++i) {
    StepSequence s;
    s.slot = free_slots[static_cast<size_t>(i)];
    s.append = std::min(rows_left, rng.chance(10) ? 0 : rng.chance(60) ? 1 : rng.upto(most_append));
    s.stored = rng.upto(200);
    if (has_windows) s.window = rng.upto(64), s.sink = rng.upto(4);
    if (rng.chance(20)) s.offset = rng.between(-20, 20);
    if (has_states) s.state_in = rng.between(-1, 10), s.state_out = rng.upto(10);
    if (rng.chance(10)) s.long_ropes = rng.upto(7);
    if (has_cross) {
      s.cross_stored = rng.upto(50);
      s.cross_append = std::min(cross_left, rng.chance(60) ? 0 : rng.upto(20));
    }
    if (rng.chance(15) && s.append > 0) {
      const int32_t old_nodes = std::min(s.stored, rng.upto(10));
      s.length = s.stored - old_nodes;
      grow_tree(rng, old_nodes + s.append, &s);
    }
    if (rng.chance(10)) s.segments = {{0, 3}, {rng.between(1, 30), -7}};
    rows_left -= s.append;
    cross_left -= s.cross_append;
    for (size_t g = 0; g < limits.groups.size(); ++g) {
      const auto& group = limits.groups[g];
      const int32_t tokens = group.is_cross ? s.cross_stored + s.cross_append : s.stored + s.append;
      const int32_t pages = (tokens + group.page_size - 1) / group.page_size;
      auto& known = model->tables[{static_cast<int32_t>(g), s.slot}];
      // Runs of what the device does not know, some of what it knows again.
      for (int32_t first = 0; first < pages;) {
        if (known.count(first) != 0 && rng.chance(80)) {
          ++first;
          continue;
        }
        const int32_t count = std::min(pages - first, rng.chance(50) ? 1 : rng.between(1, 40));
        testing::TableRun run{static_cast<int32_t>(g), first, {}};
        for (int32_t j = 0; j < count; ++j)
          run.pages.push_back(rng.chance(5) ? -1 : rng.upto(1 << 20));
        s.tables.push_back(run);
        first += count;
      }
    }
    step.sequences.push_back(s);
  }
  model->apply(step);
  return step;
}

void expect_arrays(const StepDescription& step, StepDevice& device, Model& model) {
  const StepState& state = device.state;
  const std::vector<int32_t> words = testing::step_words(step);
  const auto n = step.sequences.size();
  const auto expect = [&](const char* name, const int32_t* array, auto&& value) {
    const std::vector<int32_t> found = device.read(array);
    for (size_t s = 0; s < n; ++s)
      ASSERT_EQ(found[s], value(step.sequences[s])) << name << " of " << s;
  };
  expect("slot", state.slot, [](const StepSequence& s) { return s.slot; });
  expect("stored", state.stored, [](const StepSequence& s) { return s.stored; });
  expect("append", state.append, [](const StepSequence& s) { return s.append; });
  expect("length", state.length, [](const StepSequence& s) { return s.committed(); });
  expect("window", state.window, [](const StepSequence& s) { return s.window; });
  expect("sink", state.sink, [](const StepSequence& s) { return s.sink; });
  expect("offset", state.offset, [](const StepSequence& s) { return s.offset; });
  expect("cross_stored", state.cross_stored, [](const StepSequence& s) { return s.cross_stored; });
  expect("cross_append", state.cross_append, [](const StepSequence& s) { return s.cross_append; });
  expect("state_in", state.state_in, [](const StepSequence& s) { return s.state_in; });
  expect("state_out", state.state_out, [](const StepSequence& s) { return s.state_out; });
  expect("long_ropes", state.long_ropes, [](const StepSequence& s) { return s.long_ropes; });
  const auto sizes = [](const auto& v) { return static_cast<int32_t>(v.size()); };
  expect("tree_nodes", state.tree_nodes, [&](const StepSequence& s) { return sizes(s.parents); });
  expect("num_segments", state.num_segments,
         [&](const StepSequence& s) { return sizes(s.segments); });

  const std::vector<int32_t> on_device = device.read(state.words);
  ASSERT_TRUE(std::equal(words.begin(), words.end(), on_device.begin()));
  const std::vector<int32_t> tree_at = device.read(state.tree_at),
                             segments_at = device.read(state.segments_at);
  const std::vector<int32_t> row_begin = device.read(state.row_begin),
                             cross_begin = device.read(state.cross_row_begin),
                             row_sequence = device.read(state.row_sequence),
                             cross_sequence = device.read(state.cross_row_sequence),
                             positions = device.read(state.positions);
  const std::vector<int64_t> slots = device.slots();
  int32_t row = 0, cross_row = 0;
  for (size_t i = 0; i < n; ++i) {
    const StepSequence& s = step.sequences[i];
    ASSERT_EQ(s.parents.empty(), tree_at[i] == -1);
    if (!s.parents.empty()) {
      const auto at = words.begin() + tree_at[i];
      ASSERT_TRUE(std::equal(s.parents.begin(), s.parents.end(), at));
      ASSERT_TRUE(std::equal(s.depths.begin(), s.depths.end(), at + sizes(s.parents)));
    }
    ASSERT_EQ(s.segments.empty(), segments_at[i] == -1);
    if (!s.segments.empty()) {
      ASSERT_EQ(words[static_cast<size_t>(segments_at[i] + 2)], s.segments[1].first);
    }
    ASSERT_EQ(row_begin[i], row);
    ASSERT_EQ(cross_begin[i], cross_row);
    for (int32_t j = 0; j < s.append; ++j, ++row) {
      const auto r = static_cast<size_t>(row);
      ASSERT_EQ(row_sequence[r], static_cast<int32_t>(i));
      const int32_t beyond =
          s.depths.empty() ? j : s.depths[static_cast<size_t>(s.stored - s.committed() + j)];
      ASSERT_EQ(positions[r], s.committed() + s.offset + beyond) << "row " << row;
      for (int32_t g = 0; g < state.num_groups; ++g) {
        if (state.groups[g].is_cross != 0) continue;
        ASSERT_EQ(slots[static_cast<size_t>(g * state.slots_stride) + r],
                  model.slot(g, s.slot, s.stored + j))
            << "row " << row << " of group " << g;
      }
    }
    for (int32_t j = 0; j < s.cross_append; ++j, ++cross_row) {
      const auto r = static_cast<size_t>(cross_row);
      ASSERT_EQ(cross_sequence[r], static_cast<int32_t>(i));
      for (int32_t g = 0; g < state.num_groups; ++g) {
        if (state.groups[g].is_cross == 0) continue;
        ASSERT_EQ(slots[static_cast<size_t>(g * state.slots_stride) + r],
                  model.slot(g, s.slot, s.cross_stored + j));
      }
    }
  }
  ASSERT_EQ(row_begin[n], row);
  ASSERT_EQ(cross_begin[n], cross_row);
  const std::vector<int32_t> counts = {
      static_cast<int32_t>(n), row, cross_row, testing::needed_columns(step), words[3], 0, 0, 0};
  ASSERT_EQ(device.read(state.counts), counts);
  std::vector<std::vector<int32_t>> tables;
  for (int32_t g = 0; g < state.num_groups; ++g)
    tables.push_back(device.read(state.groups[g].table));
  for (const auto& [key, table] : model.tables) {
    const int64_t stride = state.groups[key.first].table_stride;
    for (const auto& [entry, page] : table)
      ASSERT_EQ(
          tables[static_cast<size_t>(key.first)][static_cast<size_t>(key.second * stride + entry)],
          page);
  }
  // Every launch moves on by one entry, and says so.
  ASSERT_EQ(device.counters(), (std::vector<uint32_t>{device.entries_written(), 0}));
  ASSERT_EQ(device.progress(), device.entries_written());
}

void run_steps(int64_t seed, const StepLimits& limits, int num_steps, int32_t most_sequences,
               int32_t most_append) {
  SCOPED_TRACE(::testing::Message() << "seed " << seed);
  Rng rng(seed);
  // Close to where the number of the entry begins again.
  StepDevice device(limits, rng.chance(50) ? 0xfffffffeu : 7u);
  Model model{limits, {}};
  for (int i = 0; i < num_steps; ++i) {
    SCOPED_TRACE(::testing::Message() << "step " << i);
    const StepDescription step =
        random_step(rng, limits, &model, rng.upto(most_sequences), most_append);
    device.write(testing::step_words(step), rng.chance(20));
    ASSERT_EQ(cuda::step(device.state, {}, nullptr), cudaSuccess);
    finish();
    expect_arrays(step, device, model);
    if (::testing::Test::HasFatalFailure()) return;
  }
}

TEST(CudaStep, ArraysTablesAndSlotsAreThoseOfTheModelStepAfterStep) {
  for (int seed = 0; seed < scaled(6); ++seed) {
    Rng rng(seed + 100);
    StepLimits limits{.max_sequences = 40,
                      .max_rows = 500,
                      .max_cross_rows = 100,
                      .table_rows = 50,
                      .table_entries = 400};
    const int32_t page_sizes[] = {1, 16, 48, 256, 7};
    for (int32_t g = rng.between(1, 4); g > 0; --g)
      limits.groups.push_back({page_sizes[rng.upto(4)], rng.chance(30)});
    run_steps(seed, limits, 8, 40, 60);
    if (HasFatalFailure()) return;
  }
}

TEST(CudaStep, MoreSequencesChangesAndRowsThanThreadsOfACta) {
  StepLimits limits{.max_sequences = 2600,
                    .max_rows = 9000,
                    .max_cross_rows = 50,
                    .table_rows = 2600,
                    .table_entries = 300,
                    .words = 200000,
                    .groups = {{16, false}, {3, false}, {16, true}}};
  run_steps(1, limits, 2, 2600, 8);
}

// A thread meets several rows of a prompt, then rows of the next sequences, of encoders and trees.
TEST(CudaStep, LongPromptsLieBesideDecodes) {
  const StepLimits limits{.max_sequences = 12,
                          .max_rows = 20000,
                          .max_cross_rows = 4000,
                          .table_rows = 12,
                          .table_entries = 600,
                          .words = 200000,
                          .groups = {{16, false}, {48, false}, {16, true}}};
  for (uint64_t seed = 1; seed <= static_cast<uint64_t>(scaled(3)); ++seed) {
    run_steps(seed, limits, 3, 12, 5000);
    if (HasFatalFailure()) return;
  }
}

// Sequences that have their pages, each `stored` tokens: one or two rows each, no table changes but
// in the first step.
StepDescription decode_step(int32_t num_sequences, int32_t stored, bool is_first) {
  StepDescription step;
  for (int32_t i = 0; i < num_sequences; ++i) {
    StepSequence s{
        .slot = num_sequences - 1 - i, .stored = stored, .append = 1 + (i + stored) % 3 / 2};
    if (is_first) s.tables = {{0, 0, {3 * i, 3 * i + 1, 3 * i + 2}}};
    step.sequences.push_back(s);
  }
  return step;
}

TEST(CudaStep, ASteadyDecodeStepSendsNoChanges) {
  const StepLimits limits{.max_sequences = 200,
                          .max_rows = 400,
                          .table_rows = 200,
                          .table_entries = 4,
                          .groups = {{16, false}}};
  StepDevice device(limits);
  Model model{limits, {}};
  for (int32_t stored = 14; stored < 20; ++stored) {
    const StepDescription step = decode_step(200, stored, stored == 14);
    model.apply(step);
    device.write(testing::step_words(step));
    ASSERT_EQ(cuda::step(device.state, {}, nullptr), cudaSuccess);
    finish();
    expect_arrays(step, device, model);
    if (HasFatalFailure()) return;
  }
}

// The host is ahead by several steps when the device comes to the first.
TEST(CudaStep, ReplaysOfACapturedLaunchFindTheirOwnSteps) {
  const StepLimits limits{.max_sequences = 40,
                          .max_rows = 80,
                          .table_rows = 40,
                          .table_entries = 4,
                          .groups = {{16, false}}};
  StepDevice device(limits, 30);
  Model model{limits, {}};
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), cudaSuccess);
  ASSERT_EQ(cuda::step(device.state, {}, stream), cudaSuccess);
  cudaGraph_t graph = nullptr;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  StepDescription step;
  for (int32_t stored = 5; stored < 10; ++stored) {
    step = decode_step(40, stored, stored == 5);
    model.apply(step);
    device.write(testing::step_words(step), stored == 7);
  }
  // The stream does not wait for the default stream, on which memory is filled.
  finish();
  for (int i = 0; i < 5; ++i) ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  finish(stream);
  expect_arrays(step, device, model);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

// More pairs than are read at once, in groups whose pairs begin and end anywhere: group 3 has no
// part.
TEST(CudaStep, ThousandsOfPagesAreCopied) {
  const StepLimits limits{.max_sequences = 4,
                          .max_rows = 8,
                          .max_cross_rows = 1,
                          .table_rows = 4,
                          .table_entries = 8,
                          .groups = {{16, false}, {16, false}, {16, false}, {16, false}}};
  constexpr int32_t kPages = 3000, kSources = 500;
  const int32_t pairs_of_group[] = {700, 1324, 30, 2400};
  const int32_t groups_of_parts[] = {2, 0, 1, 0, 2};
  constexpr int64_t kBytes = 48;
  Rng rng(3);
  std::vector<uint8_t> pool(std::size(groups_of_parts) * kPages * kBytes);
  for (uint8_t& byte : pool) byte = static_cast<uint8_t>(rng.upto(255));
  DeviceArray<uint8_t> on_device(pool);
  std::vector<PageRegion> parts;
  for (size_t i = 0; i < std::size(groups_of_parts); ++i) {
    parts.push_back({reinterpret_cast<std::byte*>(on_device.data() + i * kPages * kBytes), kBytes,
                     kBytes, groups_of_parts[i], 0});
  }
  const DeviceArray<PageRegion> slots(parts);
  StepDescription step;
  step.sequences.push_back({.slot = 1,
                            .stored = 0,
                            .append = 3,
                            .tables = {{0, 0, {5}}, {1, 0, {6}}, {2, 0, {7}}, {3, 0, {8}}}});
  std::vector<uint8_t> expected = pool;
  for (int32_t group = 0; group < 4; ++group) {
    for (int32_t i = 0; i < pairs_of_group[group]; ++i) {
      const testing::StepPageCopy copy{group, rng.upto(kSources - 1), kSources + i};
      step.copies.push_back(copy);
      for (size_t part = 0; part < parts.size(); ++part) {
        if (groups_of_parts[part] != group) continue;
        const auto begin = pool.begin() + static_cast<int64_t>(part) * kPages * kBytes;
        std::copy_n(
            begin + copy.from * kBytes, kBytes,
            expected.begin() + static_cast<int64_t>(part) * kPages * kBytes + copy.to * kBytes);
      }
    }
  }
  StepDevice device(limits);
  Model model{limits, {}};
  model.apply(step);
  device.write(testing::step_words(step));
  ASSERT_EQ(cuda::step(device.state, {slots.data(), static_cast<int32_t>(parts.size())}, nullptr),
            cudaSuccess);
  finish();
  EXPECT_EQ(on_device.read(), expected);
  expect_arrays(step, device, model);
}

// Parts of pages with odd sizes and addresses.
TEST(CudaStep, PagesAreCopiedBeforeTheForwardWhateverTheirAlignment) {
  for (int seed = 0; seed < scaled(8); ++seed) {
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    Rng rng(seed);
    StepLimits limits{.max_sequences = 4,
                      .max_rows = 8,
                      .max_cross_rows = 1,
                      .table_rows = 4,
                      .table_entries = 8,
                      .groups = {{16, false}, {16, false}}};
    StepDevice device(limits);
    constexpr int32_t kPages = 12;
    std::vector<uint8_t> pool;
    std::vector<PageRegion> parts;
    std::vector<int64_t> begins;
    const int64_t alignments[] = {16, 4, 2, 1};
    for (int32_t i = rng.between(1, 9); i > 0; --i) {
      const int64_t alignment = alignments[rng.upto(3)];
      const int64_t bytes =
          rng.chance(20) ? 70000 / alignment * alignment : rng.between(1, 300) * alignment;
      const int64_t stride = bytes + rng.upto(3) * alignment;
      begins.push_back(static_cast<int64_t>((pool.size() + 15) / 16 * 16) +
                       rng.upto(3) * alignment);
      parts.push_back({nullptr, stride, bytes, rng.upto(1), 0});
      pool.resize(static_cast<size_t>(begins.back() + stride * kPages));
    }
    for (uint8_t& byte : pool) byte = static_cast<uint8_t>(rng.upto(255));
    DeviceArray<uint8_t> on_device(pool);
    for (size_t i = 0; i < parts.size(); ++i)
      parts[i].base = reinterpret_cast<std::byte*>(on_device.data() + begins[i]);
    DeviceArray<PageRegion> slots(parts);

    StepDescription step;
    step.sequences.push_back(
        {.slot = 1, .stored = 0, .append = 3, .tables = {{0, 0, {5}}, {1, 0, {6}}}});
    std::set<std::pair<int32_t, int32_t>> written;
    for (int32_t i = rng.upto(7); i > 0; --i) {
      // From pages below 4 to others, each written once.
      const testing::StepPageCopy copy{rng.upto(1), rng.upto(3), rng.between(4, kPages - 1)};
      if (written.insert({copy.group, copy.to}).second) step.copies.push_back(copy);
    }
    std::vector<uint8_t> expected = pool;
    for (const testing::StepPageCopy& copy : step.copies) {
      for (size_t i = 0; i < parts.size(); ++i) {
        if (parts[i].group != copy.group) continue;
        std::copy_n(pool.begin() + begins[i] + copy.from * parts[i].page_stride, parts[i].bytes,
                    expected.begin() + begins[i] + copy.to * parts[i].page_stride);
      }
    }
    device.write(testing::step_words(step), rng.chance(30));
    ASSERT_EQ(cuda::step(device.state, {slots.data(), static_cast<int32_t>(parts.size())}, nullptr),
              cudaSuccess);
    finish();
    EXPECT_EQ(on_device.read(), expected);
    EXPECT_EQ(device.counters(), (std::vector<uint32_t>{1, 0}));
    EXPECT_EQ(device.progress(), 1u);
  }
}

}  // namespace
}  // namespace kvc::cuda
