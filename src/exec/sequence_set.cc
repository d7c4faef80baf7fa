#include "src/exec/sequence_set.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/exec/cpu/cos_sin.h"
#include "src/sequences/visibility.h"

namespace kvc {
namespace {

using kernels::AttnSequence;

// Token index that a row's windows count from: its place in a chain, its depth in a tree.
int64_t row_index(const BatchEntry& entry, int64_t row) {
  if (!entry.is_tree) return entry.old_length + row;
  return entry.old_length + entry.sequence->tree.depths[entry.old_nodes + row];
}

// A call's own window must lie inside what the sequence's sinks allow, see keys_of_query.
void check_call_window(const Sequence& sequence, int64_t window) {
  if (window != 0 && sequence.sink != 0 && window > sequence.window - sequence.sink) {
    fail_with(
        KVC_E_OUT_OF_RANGE, window,
        "opt.window = %lld, but sequence %lld has a window of %lld with %lld sinks: at most %lld",
        ll(window), ll(sequence.id), ll(sequence.window), ll(sequence.sink),
        ll(sequence.window - sequence.sink));
  }
}

}  // namespace

void check_selection(const Forward& forward, const KeySelection& selection) {
  if (selection.scope == KeyScope::kCross) return;
  for (const BatchEntry& entry : forward.batch().entries()) {
    if (selection.scope == KeyScope::kNew && entry.is_tree && entry.old_nodes != 0) {
      fail_with(KVC_E_UNSUPPORTED, entry.old_nodes,
                "attention among new tokens of sequence %lld: its token tree has %lld nodes of "
                "earlier forwards",
                ll(entry.sequence->id), ll(entry.old_nodes));
    }
    check_call_window(*entry.sequence, selection.window);
  }
}

void SequenceSet::build(Forward& forward, const Spec& spec, const KeySelection& selection,
                        const std::vector<Span>* spans, HostCosSin& cos_sin) {
  check_selection(forward, selection);
  const std::vector<BatchEntry>& entries = forward.batch().entries();
  sequences_.clear();
  sequences_.reserve(entries.size());
  first_rows_.clear();
  first_rows_.reserve(entries.size());
  key_begins_.resize(forward.batch().num_rows());
  masks_.clear();
  positions_.clear();
  mask_begin_.assign(entries.size(), -1);
  position_begin_.assign(entries.size(), -1);
  has_two_q_rotations_ = false;
  for (const BatchEntry& entry : entries) add_entry(forward, spec, selection, entry, cos_sin);
  // The arrays are complete and don't move any more.
  for (size_t i = 0; i < sequences_.size(); ++i) {
    if (mask_begin_[i] >= 0) sequences_[i].tree_mask = masks_.data() + mask_begin_[i];
    if (position_begin_[i] >= 0)
      sequences_[i].key_positions = positions_.data() + position_begin_[i];
  }
  if (spans != nullptr) add_spans(selection, entries, *spans);
  kept_sequences_.clear();
  if (selection.kept_group >= 0) add_kept(spec, selection, entries);
}

void SequenceSet::add_kept(const Spec& spec, const KeySelection& selection,
                           const std::vector<BatchEntry>& entries) {
  const int64_t keep_tokens = spec.groups[selection.kept_group].keep_tokens;
  const bool is_new = selection.scope == KeyScope::kNew;
  for (size_t i = 0; i < entries.size(); ++i) {
    const int64_t first_key = is_new ? entries[i].old_stored(false) : 0;
    sequences_[i].kept_end = std::max<int64_t>(0, keep_tokens - first_key);
  }
  kept_sequences_ = sequences_;
  for (size_t i = 0; !is_new && i < entries.size(); ++i) {
    const PageList& pages = entries[i].sequence->tables[selection.kept_group].pages;
    kept_sequences_[i].pages = pages.data();
    kept_sequences_[i].gap = pages.gap();
  }
}

void SequenceSet::add_entry(Forward& forward, const Spec& spec, const KeySelection& selection,
                            const BatchEntry& entry, HostCosSin& cos_sin) {
  const bool is_cross = selection.scope == KeyScope::kCross;
  AttnSequence sequence{};
  const PageList& pages = entry.sequence->tables[selection.group].pages;
  sequence.pages = pages.data();
  sequence.gap = pages.gap();
  sequence.row_begin = entry.row_begin;
  sequence.num_rows = entry.append_length;
  sequence.position = entry.old_stored(false);
  int64_t first_key = 0;  // Token index of key 0.
  switch (selection.scope) {
    case KeyScope::kAll: sequence.first_key_end = entry.old_stored(false) + 1; break;
    case KeyScope::kCached: sequence.first_key_end = entry.old_length; break;
    case KeyScope::kNew:
      first_rows_.push_back(static_cast<int32_t>(entry.row_begin));
      sequence.pages = &first_rows_.back();
      sequence.gap = {};
      sequence.first_key_end = 1;
      first_key = sequence.key_position = entry.old_stored(false);
      break;
    case KeyScope::kCross: sequence.first_key_end = entry.new_stored(true); break;
  }
  if (!is_cross) {
    narrow(spec, selection, entry, first_key, sequence);
    if (entry.is_tree && selection.scope != KeyScope::kCached)
      add_tree(spec, selection, entry, first_key, sequence);
    if (selection.needs_positions) add_positions(forward, selection, entry, sequence);
    if (selection.rope >= 0) {
      sequence.k_rotation_index = forward.uses_long(selection.rope, entry) ? 1 : 0;
      sequence.own_k_rotation =
          cos_sin.own_keys(forward, selection.rope, entry, &sequence.own_rotation_begin);
      sequence.own_rotation_begin -= first_key;
    }
  }
  if (!is_cross && selection.has_leads && entry.sequence->lead.ahead != 0)
    sequence.sink_q_end = std::max<int64_t>(0, entry.sequence->lead.begin - first_key);
  has_two_q_rotations_ = has_two_q_rotations_ || sequence.sink_q_end > 0;
  sequences_.push_back(sequence);
}

// Windows, chunks, sinks. Leaves the sequence plain where they hide nothing and no query turns
// differently for its sinks: those are an item of their own from the first row on, so that a row's
// bits do not depend on the rows beside it.
void SequenceSet::narrow(const Spec& spec, const KeySelection& selection, const BatchEntry& entry,
                         int64_t first_key, AttnSequence& sequence) {
  const GroupSpec& group = spec.groups[selection.group];
  const kernels::Windows<int64_t> windows = windows_of(group, *entry.sequence, selection.window);
  if (!windows.narrow()) return;
  bool hides = false;
  for (int64_t row = 0; row < entry.append_length; ++row) {
    const KeyRange keys = kernels::visible_range(windows, row_index(entry, row));
    const int64_t begin =
        kernels::key_begin_of_row(keys, entry.is_tree, entry.old_length, first_key);
    sequence.sink_end = kernels::sink_end_of_sequence(keys, first_key);
    hides = hides || begin > 0;
    key_begins_[entry.row_begin + row] = static_cast<int32_t>(begin);
  }
  const bool splits_sinks = selection.rope >= 0 && sequence.sink_end > 0;
  if (!hides && !splits_sinks) {
    sequence.sink_end = 0;
    return;
  }
  sequence.key_begins = key_begins_.data() + entry.row_begin;
  if (splits_sinks) sequence.sink_q_end = sequence.sink_end;
}

void SequenceSet::add_tree(const Spec& spec, const KeySelection& selection, const BatchEntry& entry,
                           int64_t first_key, AttnSequence& sequence) {
  const GroupSpec& group = spec.groups[selection.group];
  const TokenTree& tree = entry.sequence->tree;
  sequence.tree_begin = entry.old_length - first_key;
  sequence.tree_words = (tree.size() + 63) / 64;
  mask_begin_[sequences_.size()] = static_cast<int64_t>(masks_.size());
  masks_.resize(masks_.size() + static_cast<size_t>(entry.append_length * sequence.tree_words), 0);
  uint64_t* bits = masks_.data() + mask_begin_[sequences_.size()];
  for (int64_t row = 0; row < entry.append_length; ++row, bits += sequence.tree_words) {
    const KeyRange keys =
        keys_of_query(group, *entry.sequence, row_index(entry, row), selection.window);
    for (int64_t node = entry.old_nodes + row; node >= 0; node = tree.parents[node]) {
      const int64_t index = entry.old_length + tree.depths[node];
      if (keys.contains(index)) bits[node / 64] |= uint64_t{1} << (node % 64);
    }
  }
}

// Where a key's position is not its place: tokens that were shifted, nodes of a tree.
void SequenceSet::add_positions(Forward& forward, const KeySelection& selection,
                                const BatchEntry& entry, AttnSequence& sequence) {
  const Sequence& source = *entry.sequence;
  if (source.segments.empty() && !entry.is_tree) return;
  const int32_t* rows = forward.token_positions() + entry.row_begin;
  sequence.row_positions = rows;
  position_begin_[sequences_.size()] = static_cast<int64_t>(positions_.size());
  if (selection.scope == KeyScope::kNew) {
    positions_.insert(positions_.end(), rows, rows + entry.append_length);
    return;
  }
  forward.append_key_positions(entry, 0, selection.scope == KeyScope::kCached, &positions_);
}

void SequenceSet::add_spans(const KeySelection& selection, const std::vector<BatchEntry>& entries,
                            const std::vector<Span>& spans) {
  if (selection.scope != KeyScope::kAll && selection.scope != KeyScope::kNew) return;
  int64_t num_rows = 0;
  for (const BatchEntry& entry : entries) num_rows += entry.append_length;
  key_ends_.resize(num_rows);
  for (size_t i = 0; i < entries.size(); ++i) {
    const BatchEntry& entry = entries[i];
    const int64_t first_key = selection.scope == KeyScope::kNew ? entry.old_length : 0;
    int32_t* ends = key_ends_.data() + entry.row_begin;
    for (int64_t row = 0; row < entry.append_length; ++row)
      ends[row] = static_cast<int32_t>(entry.old_length + row + 1 - first_key);
    for (const Span& span : spans) {
      if (span.entry != static_cast<int32_t>(i)) continue;
      const int64_t end = std::min<int64_t>(span.end, entry.old_length + entry.append_length);
      for (int64_t token = std::max<int64_t>(span.begin, entry.old_length); token < end; ++token)
        ends[token - entry.old_length] = static_cast<int32_t>(end - first_key);
    }
    sequences_[i].key_ends = ends;
  }
}

}  // namespace kvc
