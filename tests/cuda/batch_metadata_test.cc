// What the view kernel says that rows see, against the definition: key by key, row by row.
#include <gtest/gtest.h>

#include <algorithm>

#include "kernels/cuda/launches.h"
#include "tests/cuda/random_numbers.h"
#include "tests/cuda/step_writer.h"

namespace kvc::cuda {
namespace {

using kernels::AttnSequence;
using testing::DeviceArray;
using testing::finish;
using testing::Rng;
using testing::scaled;
using testing::StepDescription;
using testing::StepDevice;
using testing::StepLimits;
using testing::StepSequence;

struct Span {
  int32_t sequence, begin, end;
};
struct Case {
  StepDescription step;
  KeyScope scope;
  int32_t layer_window = 0, layer_chunk = 0, call_window = 0;
  bool needs_positions = false;
  int32_t rope = -1;
  bool has_spans = false;
  std::vector<Span> spans;
};

// One token or node of a sequence: how far it is from the first, and what its position is.
struct Token {
  int32_t index;     // windows count by it
  int32_t position;  // rotations and ALiBi go by it
  int32_t node;      // -1: committed, or of a chain
};
std::vector<Token> tokens_of(const StepSequence& s) {
  std::vector<Token> tokens;
  const int32_t total = s.stored + s.append;
  for (int32_t t = 0; t < total; ++t) {
    const bool is_new_chain = s.parents.empty() && t >= s.stored;
    if (t < s.committed()) {
      int32_t offset = 0;
      for (const auto& [begin, moved] : s.segments) offset = begin <= t ? moved : offset;
      tokens.push_back({t, t + offset, -1});
    } else if (is_new_chain) {
      tokens.push_back({t, t + s.offset, -1});
    } else {
      const int32_t node = t - s.committed();
      const int32_t depth = s.depths[static_cast<size_t>(node)];
      tokens.push_back({s.committed() + depth, s.committed() + s.offset + depth, node});
    }
  }
  return tokens;
}

// Whether windows let a query at `index` see a key at `key`.
bool in_windows(const Case& c, const StepSequence& s, int32_t index, int32_t key) {
  if (c.layer_window != 0 && key <= index - c.layer_window) return false;
  if (c.layer_chunk != 0 && key / c.layer_chunk < index / c.layer_chunk) return false;
  if (c.call_window != 0 && key <= index - c.call_window) return false;
  return s.window == 0 || key > index - (s.window - s.sink);
}
bool is_sink(const Case& c, const StepSequence& s, int32_t key) {
  return s.window != 0 && c.layer_window == 0 && c.call_window == 0 && key < s.sink;
}

bool is_on_path(const StepSequence& s, int32_t from, int32_t node) {
  for (; from >= 0; from = s.parents[static_cast<size_t>(from)])
    if (from == node) return true;
  return false;
}

bool definition_sees(const Case& c, size_t place, int32_t row, int32_t token) {
  const StepSequence& s = c.step.sequences[place];
  const std::vector<Token> tokens = tokens_of(s);
  const Token query = tokens[static_cast<size_t>(s.stored + row)],
              key = tokens[static_cast<size_t>(token)];
  if (c.scope == KeyScope::kCached && token >= s.committed()) return false;
  if (c.scope == KeyScope::kNew && token < s.stored) return false;
  if (!in_windows(c, s, query.index, key.index) && !is_sink(c, s, key.index)) return false;
  if (key.node >= 0) return is_on_path(s, query.node, key.node);
  if (query.node >= 0 || token <= s.stored + row) return true;
  for (const Span& span : c.spans) {
    const auto holds = [&](int32_t t) { return t >= span.begin && t < span.end; };
    if (span.sequence == static_cast<int32_t>(place) && holds(s.stored + row) && holds(token))
      return true;
  }
  return false;
}

StepSequence random_sequence(Rng& rng, const Case& c, bool may_be_tree, int32_t slot) {
  StepSequence s;
  s.slot = slot;
  s.stored = rng.chance(20) ? 0 : rng.upto(90);
  s.append = rng.chance(10) ? 0 : rng.chance(40) ? 1 : rng.upto(40);
  if (rng.chance(40)) {
    s.sink = rng.upto(5);
    // Layer and call windows above window - sink are refused, see visibility.h.
    s.window = s.sink + std::max({1, c.layer_window, c.call_window}) + rng.upto(30);
  }
  s.cross_stored = rng.upto(30);
  s.cross_append = rng.chance(50) ? 0 : rng.upto(10);
  s.long_ropes = rng.upto(7);
  if (rng.chance(40)) {
    s.segments = {{rng.upto(20), rng.between(-9, 9)}, {rng.between(21, 60), rng.between(-9, 9)}};
    s.offset = s.segments.back().second;
  }
  if (may_be_tree && s.append > 0 && rng.chance(40)) {
    const int32_t old_nodes =
        c.scope == KeyScope::kNew ? 0 : std::min(s.stored, rng.chance(20) ? 70 : rng.upto(12));
    s.length = s.stored - old_nodes;
    for (int32_t node = 0; node < old_nodes + s.append; ++node) {
      const int32_t parent = rng.chance(60) ? node - 1 : rng.between(-1, node - 1);
      s.parents.push_back(parent);
      s.depths.push_back(parent < 0 ? 0 : s.depths[static_cast<size_t>(parent)] + 1);
    }
  }
  return s;
}

Case random_case(Rng& rng, int32_t most_sequences) {
  Case c;
  c.scope = static_cast<KeyScope>(rng.upto(3));
  if (rng.chance(30)) c.layer_window = rng.between(1, 40);
  if (c.layer_window == 0 && rng.chance(30)) c.layer_chunk = rng.between(1, 30);
  if (rng.chance(20)) c.call_window = rng.between(1, 40);
  c.needs_positions = rng.chance(50);
  c.rope = rng.between(-1, 2);
  const bool is_causal = c.scope == KeyScope::kAll || c.scope == KeyScope::kNew;
  c.has_spans = is_causal && rng.chance(30);
  for (int32_t n = rng.between(1, most_sequences), i = 0; i < n; ++i) {
    const StepSequence s = random_sequence(rng, c, !c.has_spans, i);
    for (int32_t at = s.stored + rng.upto(6); c.has_spans && at < s.stored + s.append;) {
      const int32_t end = at + rng.between(1, 9);
      c.spans.push_back({i, at, end});
      at = end + rng.upto(5);
    }
    c.step.sequences.push_back(s);
  }
  return c;
}

// The outputs of the kernel, read back, and where they lay.
struct Viewed {
  BatchMetadataParams params;
  std::vector<AttnSequence> sequences;
  std::vector<int32_t> first_rows, key_begins, key_ends, key_positions, step_positions;
  std::vector<uint64_t> masks;
};

// As kernels/params.h says.
bool view_sees(const Viewed& view, const AttnSequence& q, bool is_causal, int32_t row,
               int32_t key) {
  const auto at = [&](const int32_t* array, const int32_t* base,
                      const std::vector<int32_t>& values) {
    return values.at(static_cast<size_t>(array - base + row));
  };
  const int64_t end = q.key_ends != nullptr ? at(q.key_ends, view.params.key_ends, view.key_ends)
                                            : q.first_key_end + (is_causal ? row : 0);
  if (key >= end) return false;
  if (q.key_begins != nullptr && key >= q.sink_end &&
      key < at(q.key_begins, view.params.key_begins, view.key_begins))
    return false;
  if (q.tree_mask == nullptr || key < q.tree_begin) return true;
  const int64_t node = key - q.tree_begin;
  const int64_t word = q.tree_mask - view.params.masks + row * q.tree_words + node / 64;
  return (view.masks.at(static_cast<size_t>(word)) >> (node % 64) & 1) != 0;
}

void expect_view(const Case& c, const Viewed& view, const StepState& state, size_t place,
                 int32_t row_begin) {
  const StepSequence& s = c.step.sequences[place];
  const AttnSequence& q = view.sequences[place];
  const bool is_causal = c.scope == KeyScope::kAll || c.scope == KeyScope::kNew;
  const bool is_tree = !s.parents.empty();
  const std::vector<Token> tokens = tokens_of(s);
  const int32_t first_key = c.scope == KeyScope::kNew ? s.stored : 0;
  ASSERT_EQ(q.row_begin, row_begin);
  ASSERT_EQ(q.num_rows, s.append);
  ASSERT_EQ(q.position, s.stored);
  ASSERT_EQ(q.key_position, first_key);
  ASSERT_EQ(q.row_map, nullptr);
  if (c.scope == KeyScope::kNew) {
    ASSERT_EQ(q.pages, view.params.first_rows + place);
    ASSERT_EQ(view.first_rows[place], row_begin);
  } else {
    const StepState::LayerGroup& group = state.groups[view.params.group];
    ASSERT_EQ(q.pages, group.table + s.slot * group.table_stride);
  }
  if (c.scope == KeyScope::kCross) {
    ASSERT_EQ(q.first_key_end, s.cross_stored + s.cross_append);
    ASSERT_TRUE(q.key_begins == nullptr && q.tree_mask == nullptr && q.key_ends == nullptr &&
                q.row_positions == nullptr && q.key_positions == nullptr &&
                q.k_rotation_index == 0);
    return;
  }
  ASSERT_EQ(q.k_rotation_index, c.rope >= 0 ? s.long_ropes >> c.rope & 1 : 0);
  ASSERT_EQ(q.key_ends != nullptr, c.has_spans);
  ASSERT_EQ(q.tree_mask != nullptr, is_tree && c.scope != KeyScope::kCached);

  // Plain where windows hide nothing that they could, and no query turns differently for sinks:
  // kernels are faster then.
  bool hides = c.rope >= 0 && s.append > 0 && is_sink(c, s, first_key);
  for (int32_t row = 0; row < s.append; ++row) {
    const int32_t most = is_tree ? s.committed() : s.stored + row + 1;
    const int32_t index = tokens[static_cast<size_t>(s.stored + row)].index;
    if (first_key < most && first_key <= index)
      hides = hides || !in_windows(c, s, index, first_key);
  }
  ASSERT_EQ(q.key_begins != nullptr, hides);
  ASSERT_TRUE(hides || q.sink_end == 0);

  const int32_t num_keys = c.scope == KeyScope::kCached ? s.committed() : s.stored + s.append;
  for (int32_t row = 0; row < s.append; ++row) {
    for (int32_t token = first_key; token < num_keys; ++token) {
      ASSERT_EQ(view_sees(view, q, is_causal, row, token - first_key),
                definition_sees(c, place, row, token))
          << "row " << row << " token " << token << " stored " << s.stored << " length "
          << s.committed() << " append " << s.append;
    }
    ASSERT_FALSE(view_sees(view, q, is_causal, row, num_keys - first_key) && !is_tree);
  }
  const bool is_moved = c.needs_positions && (is_tree || !s.segments.empty());
  ASSERT_EQ(q.row_positions != nullptr, is_moved);
  ASSERT_EQ(q.key_positions != nullptr, is_moved);
  if (!is_moved) return;
  ASSERT_EQ(q.row_positions, state.positions + row_begin);
  for (int32_t row = 0; row < s.append; ++row) {
    ASSERT_EQ(view.step_positions[static_cast<size_t>(row_begin + row)],
              tokens[static_cast<size_t>(s.stored + row)].position);
  }
  const bool is_of_step = c.scope == KeyScope::kNew;
  for (int32_t token = first_key; token < num_keys; ++token) {
    const int64_t at = (is_of_step ? q.key_positions - state.positions
                                   : q.key_positions - view.params.key_positions) +
                       token - first_key;
    ASSERT_EQ((is_of_step ? view.step_positions : view.key_positions).at(static_cast<size_t>(at)),
              tokens[static_cast<size_t>(token)].position)
        << "token " << token;
  }
}

void check(const Case& c) {
  int32_t rows = 0;
  int64_t masks = 0, keys = 0;
  for (const StepSequence& s : c.step.sequences) {
    rows += s.append;
    masks += s.append * static_cast<int64_t>((s.parents.size() + 63) / 64);
    keys += s.stored + s.append;
  }
  const auto n = static_cast<int32_t>(c.step.sequences.size());
  const std::vector<int32_t> words = testing::step_words(c.step);
  StepDevice device({.max_sequences = n,
                     .max_rows = rows,
                     .max_cross_rows = 40 * n,
                     .table_rows = n,
                     .table_entries = 40,
                     .words = std::max<int64_t>(60000, static_cast<int64_t>(words.size()) + 4),
                     .groups = {{16, false}, {16, c.scope == KeyScope::kCross}}});
  // Slots are looked up in the tables, whatever they hold here.
  device.write(words);
  ASSERT_EQ(cuda::step(device.state, {}, nullptr), cudaSuccess);

  DeviceArray<AttnSequence> sequences(static_cast<size_t>(n));
  DeviceArray<int32_t> first_rows(static_cast<size_t>(n)), key_begins(static_cast<size_t>(rows)),
      key_ends(static_cast<size_t>(rows)), key_positions(static_cast<size_t>(keys));
  DeviceArray<uint64_t> mask_words(static_cast<size_t>(masks));
  std::vector<int32_t> span_words;
  for (const Span& span : c.spans)
    span_words.insert(span_words.end(), {span.sequence, span.begin, span.end});
  DeviceArray<int32_t> spans(span_words);
  Viewed view;
  view.params = {.step = device.state,
                 .scope = c.scope,
                 .group = 1,
                 .layer_window = c.layer_window,
                 .layer_chunk = c.layer_chunk,
                 .call_window = c.call_window,
                 .needs_positions = c.needs_positions ? 1 : 0,
                 .rope = c.rope,
                 .spans = c.has_spans ? spans.data() : nullptr,
                 .num_spans = static_cast<int32_t>(c.spans.size()),
                 .sequences = sequences.data(),
                 .first_rows = first_rows.data(),
                 .key_begins = key_begins.data(),
                 .key_ends = key_ends.data(),
                 .masks = mask_words.data(),
                 .masks_capacity = masks,
                 .key_positions = key_positions.data(),
                 .key_positions_capacity = keys};
  ASSERT_EQ(cuda::batch_metadata(view.params, n, nullptr), cudaSuccess);
  finish();
  view.sequences = sequences.read();
  view.first_rows = first_rows.read();
  view.key_begins = key_begins.read();
  view.key_ends = key_ends.read();
  view.key_positions = key_positions.read();
  view.masks = mask_words.read();
  view.step_positions = device.read(device.state.positions);
  int32_t row_begin = 0;
  for (size_t place = 0; place < c.step.sequences.size(); ++place) {
    SCOPED_TRACE(::testing::Message() << "sequence " << place);
    expect_view(c, view, device.state, place, row_begin);
    if (::testing::Test::HasFatalFailure()) return;
    row_begin += c.step.sequences[place].append;
  }
}

TEST(CudaView, RowsSeeWhatTheDefinitionSays) {
  for (int seed = 0; seed < scaled(60); ++seed) {
    Rng rng(seed);
    const Case c = random_case(rng, 7);
    SCOPED_TRACE(::testing::Message()
                 << "seed " << seed << " scope " << static_cast<int>(c.scope) << " window "
                 << c.layer_window << " chunk " << c.layer_chunk << " call " << c.call_window);
    check(c);
    if (HasFatalFailure()) return;
  }
}

// Where the host has counted too few keys nothing beyond is written, and a sequence that finds no
// room goes by the indices of its keys.
TEST(CudaView, PositionsBeyondTheirCapacityAreLeftOut) {
  StepDescription step;
  for (int32_t i = 0; i < 3; ++i) {
    StepSequence s;
    s.slot = i;
    s.stored = 20 + i;
    s.append = 2;
    s.segments = {{4, 3}};
    s.offset = 3;
    step.sequences.push_back(s);
  }
  StepDevice device({.max_sequences = 3,
                     .max_rows = 6,
                     .max_cross_rows = 1,
                     .table_rows = 3,
                     .table_entries = 4,
                     .words = 600,
                     .groups = {{16, false}}});
  device.write(testing::step_words(step));
  ASSERT_EQ(cuda::step(device.state, {}, nullptr), cudaSuccess);
  constexpr int64_t kAll = 22 + 23 + 24;
  constexpr int32_t kUntouched = -77;
  for (const int64_t capacity :
       {int64_t{0}, int64_t{21}, int64_t{22}, int64_t{44}, int64_t{45}, kAll}) {
    SCOPED_TRACE(::testing::Message() << "capacity " << capacity);
    DeviceArray<AttnSequence> sequences(3);
    DeviceArray<int32_t> first_rows(3), key_begins(6), key_ends(6);
    DeviceArray<int32_t> positions(std::vector<int32_t>(kAll, kUntouched));
    BatchMetadataParams params{};
    params.step = device.state;
    params.scope = KeyScope::kAll;
    params.needs_positions = 1;
    params.rope = -1;
    params.sequences = sequences.data();
    params.first_rows = first_rows.data();
    params.key_begins = key_begins.data();
    params.key_ends = key_ends.data();
    params.key_positions = positions.data();
    params.key_positions_capacity = capacity;
    ASSERT_EQ(cuda::batch_metadata(params, 3, nullptr), cudaSuccess);
    finish();
    const std::vector<AttnSequence> viewed = sequences.read();
    const std::vector<int32_t> written = positions.read();
    int64_t at = 0;
    for (int32_t s = 0; s < 3; ++s) {
      const int64_t end = at + 22 + s;
      const bool fits = end <= capacity;
      EXPECT_EQ(viewed[static_cast<size_t>(s)].key_positions,
                fits ? positions.data() + at : nullptr);
      EXPECT_EQ(viewed[static_cast<size_t>(s)].row_positions != nullptr, fits);
      for (int64_t key = 0; at < end; ++at, ++key) {
        const auto moved = static_cast<int32_t>(key < 4 ? key : key + 3);
        EXPECT_EQ(written[static_cast<size_t>(at)], fits ? moved : kUntouched) << "at " << at;
      }
    }
  }
}

TEST(CudaView, MoreSequencesThanCtas) {
  for (int seed = 0; seed < scaled(3); ++seed) {
    Rng rng(seed + 1000);
    Case c = random_case(rng, 7);
    c.scope = KeyScope::kAll;
    c.has_spans = false;
    c.spans.clear();
    c.needs_positions = true;
    c.step.sequences.clear();
    for (int32_t i = 0; i < 300; ++i) c.step.sequences.push_back(random_sequence(rng, c, true, i));
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    check(c);
    if (HasFatalFailure()) return;
  }
}

// A thread per sequence, some of them twice; trees, moved tokens and rows that many windows narrow
// are left to whole CTAs.
TEST(CudaView, MoreSequencesThanThreads) {
  for (int seed = 0; seed < scaled(2); ++seed) {
    Rng rng(seed + 2000);
    Case c;
    c.scope = seed % 2 == 0 ? KeyScope::kAll : KeyScope::kNew;
    c.needs_positions = seed % 2 == 0;
    c.rope = 0;
    c.has_spans = seed % 2 == 1;
    c.layer_window = seed % 2 == 0 ? 3 : 0;
    for (int32_t i = 0; i < 128 * 128 + 300; ++i) {
      if (rng.chance(1)) {
        c.step.sequences.push_back(random_sequence(rng, c, !c.has_spans, i));
        continue;
      }
      StepSequence s{.slot = i, .stored = rng.upto(6), .append = rng.chance(90) ? 1 : rng.upto(7)};
      s.long_ropes = rng.upto(1);
      if (rng.chance(20)) s.sink = rng.upto(2), s.window = s.sink + 3 + rng.upto(2);
      if (c.has_spans && s.append > 1) c.spans.push_back({i, s.stored, s.stored + 2});
      c.step.sequences.push_back(s);
    }
    SCOPED_TRACE(::testing::Message() << "seed " << seed);
    check(c);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvc::cuda
