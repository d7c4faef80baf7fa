#include "src/step/request_check.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/sequences/sequences.h"

namespace kvc {
namespace {

void check_arrays(const BatchRequest& request, const Spec& spec) {
  if (request.num_seqs == 0)
    fail(KVC_E_INVALID_ARGUMENT, "num_seqs = 0: a batch has at least 1 sequence");
  if (request.seqs == nullptr)
    fail(KVC_E_INVALID_ARGUMENT, "seqs is NULL with num_seqs = %zu", request.num_seqs);
  if (request.append_lengths == nullptr)
    fail(KVC_E_INVALID_ARGUMENT, "append_lengths is NULL with num_seqs = %zu", request.num_seqs);
  if (spec.max_seqs != 0 && request.num_seqs > static_cast<size_t>(spec.max_seqs)) {
    fail_with(KVC_E_OUT_OF_RANGE, static_cast<int64_t>(request.num_seqs),
              "num_seqs = %zu exceeds config.max_seqs = %d", request.num_seqs, spec.max_seqs);
  }
}

void check_distinct(const std::vector<BatchEntry>& entries) {
  std::vector<kvc_seq> ids;
  ids.reserve(entries.size());
  for (const BatchEntry& entry : entries) ids.push_back(entry.sequence->id);
  require_distinct(std::move(ids));
}

// Tokens that the sequence could have at the end of this forward if it had the whole pool.
int64_t longest_in_pool(const BatchEntry& entry, const Batch::Context& context) {
  const std::vector<GroupSpec>& groups = context.plan.spec().groups;
  const auto pages_of = [&](int64_t num_tokens) {
    int64_t pages = 0;
    for (size_t group = 0; group < groups.size(); ++group) {
      const int64_t stored =
          groups[group].is_cross ? entry.new_stored(true) : groups[group].tokens_of(num_tokens);
      pages += std::max<int64_t>(
          0, groups[group].pages_for(stored) - entry.sequence->tables[group].pages.num_dropped());
    }
    return pages;
  };
  // The pages never decrease with the length, so the limit is found by bisection. Without layers
  // that keep tokens, it is the encoder tokens that do not fit.
  int64_t fits = 0, too_many = kMaxSequenceLength + 1;
  while (too_many - fits > 1) {
    const int64_t middle = fits + (too_many - fits) / 2;
    (pages_of(middle) <= context.allocator.num_pages() ? fits : too_many) = middle;
  }
  return fits;
}

// Pages of the sequence's tokens at the end of the forward.
int64_t pages_of(const BatchEntry& entry, const std::vector<GroupSpec>& groups) {
  int64_t pages = 0;
  const PageTable* table = entry.sequence->tables.data();
  for (const GroupSpec& group : groups) {
    pages += entry.new_size(*table, group) - table->pages.num_dropped();
    ++table;
  }
  return pages;
}

// Of these, the pages that windows keep for pops alone.
int64_t spare_pages_of(const BatchEntry& entry, const Batch::Context& context) {
  int64_t pages = 0;
  for (size_t group = 0; group < entry.sequence->tables.size(); ++group) {
    const PageList& table = entry.sequence->tables[group].pages;
    const PageRange spare =
        context.sequences.trimmer().spare_pages(*entry.sequence, group, entry.new_stored(false));
    for (int64_t i = spare.begin; i < spare.end; ++i) pages += table[i] != kNoPage ? 1 : 0;
  }
  return pages;
}

// Few entries of a decode step come here: the others have all their pages.
[[gnu::noinline]] void check_pages(const BatchEntry& entry, const Batch::Context& context,
                                   int64_t longest) {
  int64_t pages = pages_of(entry, context.plan.spec().groups);
  if (pages <= context.allocator.num_pages()) return;
  pages -= spare_pages_of(entry, context);
  if (pages <= context.allocator.num_pages()) return;
  fail_with(KVC_E_NEVER_FITS, entry.sequence->id,
            "sequence %lld with %lld tokens can't take %lld more: that needs %lld pages, the "
            "pool has %lld, the longest possible is %lld",
            ll(entry.sequence->id), ll(entry.old_length + entry.old_nodes), ll(entry.append_length),
            ll(pages), ll(context.allocator.num_pages()),
            ll(std::min(longest, longest_in_pool(entry, context))));
}

// Tokens of the sequence with the deepest path of its tree. `parents` of the new nodes; null: taken
// for roots.
int64_t longest_path(const BatchEntry& entry, const int32_t* parents) {
  std::vector<int32_t> depths = entry.sequence->tree.depths;
  depths.resize(static_cast<size_t>(entry.old_nodes), 0);
  for (int64_t i = 0; i < entry.append_length; ++i)
    depths.push_back(parents == nullptr || parents[i] < 0 ? 0 : depths[parents[i]] + 1);
  return entry.old_length + 1 + *std::max_element(depths.begin(), depths.end());
}

void check_fits(const BatchEntry& entry, const Batch::Context& context, const int32_t* parents) {
  const Sequence& sequence = *entry.sequence;
  const Spec& spec = context.plan.spec();
  const int64_t longest = spec.max_seq_len == 0 ? kMaxSequenceLength : spec.max_seq_len;
  const int64_t last_position = sequence.next_position() + entry.old_nodes + entry.append_length;
  const bool is_tree = entry.is_tree || entry.old_nodes != 0;
  if (last_position > kMaxSequenceLength ||
      (entry.new_length() > longest && (!is_tree || longest_path(entry, parents) > longest))) {
    fail_with(KVC_E_NEVER_FITS, sequence.id,
              "sequence %lld with %lld tokens can't take %lld more%s: the longest possible is %lld",
              ll(sequence.id), ll(entry.old_length + entry.old_nodes), ll(entry.append_length),
              is_tree ? " in such a tree" : "", ll(longest));
  }
  if (!entry.changes_no_table()) check_pages(entry, context, longest);
}

// Checks the parents of one entry; `parents` is null when the request has no trees.
void check_tree(const Spec& spec, const int32_t* parents, bool may_extend, BatchEntry& entry) {
  const Sequence& sequence = *entry.sequence;
  entry.old_nodes = sequence.tree.size();
  const bool plain = parents == nullptr || parents[0] == KVC_TREE_NONE;
  if (plain && !may_extend && !sequence.tree.empty()) {
    fail_with(
        KVC_E_INVALID_STATE, sequence.tree.size(),
        "sequence %lld has a token tree of %lld nodes: commit it, or extend it by tree_parents",
        ll(sequence.id), ll(sequence.tree.size()));
  }
  if (parents == nullptr) return;
  for (int64_t i = 0; i < entry.append_length; ++i) {
    const int64_t node = entry.old_nodes + i;
    const int32_t parent = parents[i];
    if (plain ? parent != KVC_TREE_NONE : parent < -1 || parent >= node) {
      fail_with(KVC_E_INVALID_ARGUMENT, parent,
                "tree_parents[%lld] = %d, node %lld of sequence %lld: expected %s",
                ll(entry.row_begin + i), parent, ll(node), ll(sequence.id),
                plain ? "-2 for all tokens of a plain append" : "-1 (a root) or a smaller node");
    }
  }
  if (plain) return;
  entry.is_tree = true;
  if (spec.has_states()) {
    fail_with(KVC_E_UNSUPPORTED, sequence.id,
              "tree_parents for sequence %lld: token trees are not supported in a cache with "
              "layers of kind "
              "STATE (%d)",
              ll(sequence.id), KVC_LAYER_STATE);
  }
  if (sequence.sink > sequence.length && spec.has_rope_mode(KVC_ROPE_ON_READ)) {
    fail_with(KVC_E_UNSUPPORTED, sequence.sink,
              "tree_parents for sequence %lld: %lld committed tokens are fewer than its %lld "
              "sinks, and a layer "
              "rotates K on read: nodes cannot be sinks",
              ll(sequence.id), ll(sequence.length), ll(sequence.sink));
  }
  for (const GroupSpec& group : spec.groups) {
    const int64_t end = sequence.length + entry.old_nodes + entry.append_length;
    if (!group.has_kept_rows() || sequence.length >= group.keep_tokens || end <= group.keep_tokens)
      continue;
    fail_with(
        KVC_E_UNSUPPORTED, group.keep_tokens,
        "tree_parents for sequence %lld: %lld committed tokens and %lld nodes reach across "
        "the first keep_tokens = %lld tokens, which a layer stores unquantised: a node behind "
        "them could not become one of them",
        ll(sequence.id), ll(sequence.length), ll(end - sequence.length), ll(group.keep_tokens));
  }
  if (entry.old_nodes + entry.append_length > KVC_MAX_TREE_NODES) {
    fail_with(KVC_E_OUT_OF_RANGE, entry.old_nodes + entry.append_length,
              "the token tree of sequence %lld would have %lld nodes: at most %d", ll(sequence.id),
              ll(entry.old_nodes + entry.append_length), KVC_MAX_TREE_NODES);
  }
}

void check_cross(const Spec& spec, int64_t cross_length, BatchEntry& entry) {
  const Sequence& sequence = *entry.sequence;
  if (cross_length < 0 || (spec.max_cross_len != 0 && cross_length > spec.max_cross_len) ||
      cross_length > kMaxSequenceLength) {
    fail_with(KVC_E_OUT_OF_RANGE, cross_length,
              "cross_lengths for sequence %lld = %lld out of range: 0 to %lld", ll(sequence.id),
              ll(cross_length),
              ll(spec.max_cross_len != 0 ? spec.max_cross_len : kMaxSequenceLength));
  }
  entry.replaces_cross = cross_length != 0 && sequence.cross_length != 0;
  if (entry.replaces_cross && sequence.stored(false) != 0) {
    fail_with(KVC_E_INVALID_STATE, sequence.cross_length,
              "cross_lengths for sequence %lld = %lld, but its %lld encoder tokens are written "
              "already, and only a sequence of 0 tokens takes others: it has %lld",
              ll(sequence.id), ll(cross_length), ll(sequence.cross_length),
              ll(sequence.stored(false)));
  }
  if (cross_length != 0 && !spec.has_cross()) {
    fail_with(KVC_E_UNSUPPORTED, cross_length,
              "cross_lengths for sequence %lld = %lld, but no layer is of kind CROSS (%d)",
              ll(sequence.id), ll(cross_length), KVC_LAYER_CROSS);
  }
  entry.cross_length = cross_length;
}

}  // namespace

void check_states_fit(const std::vector<BatchEntry>& entries, const Batch::Context& context) {
  const int64_t most_slots = context.plan.spec().num_state_slots;
  const int64_t slot_pages = context.states.slot_pages();
  std::vector<StateSlot> own;
  for (const BatchEntry& entry : entries) {
    const Sequence& sequence = *entry.sequence;
    own.assign(1, sequence.state);
    for (const Checkpoint& checkpoint : sequence.checkpoints) {
      if (!checkpoint.is_automatic) own.push_back(checkpoint.slot);
    }
    std::sort(own.begin(), own.end());
    own.erase(std::unique(own.begin(), own.end()), own.end());
    const auto slots =
        static_cast<int64_t>(own.size()) - (own.front() == kInitialState ? 1 : 0) + 1;
    if (most_slots != 0 && slots > most_slots) {
      fail_with(KVC_E_NEVER_FITS, sequence.id,
                "sequence %lld keeps %lld states and can't take %lld tokens: that needs one more, "
                "config.num_state_slots = %lld",
                ll(sequence.id), ll(slots - 1), ll(entry.append_length), ll(most_slots));
    }
    const int64_t pages = pages_of(entry, context.plan.spec().groups) -
                          spare_pages_of(entry, context) + slots * slot_pages;
    if (pages > context.allocator.num_pages()) {
      fail_with(KVC_E_NEVER_FITS, sequence.id,
                "sequence %lld with %lld tokens and %lld states can't take %lld more: that needs "
                "%lld pages, the pool has %lld",
                ll(sequence.id), ll(entry.old_length), ll(slots - 1), ll(entry.append_length),
                ll(pages), ll(context.allocator.num_pages()));
    }
  }
}

void check_request(const BatchRequest& request, const Batch::Context& context, uint64_t stamp,
                   std::vector<BatchEntry>* entries) {
  const Spec& spec = context.plan.spec();
  check_arrays(request, spec);
  entries->clear();
  entries->reserve(
      // More entries cannot be distinct; the loop names the duplicate.
      std::min(request.num_seqs, context.sequences.size() + 1));
  const int64_t max_rows =
      spec.max_tokens_per_forward != 0 ? spec.max_tokens_per_forward : kMaxSequenceLength;
  int64_t rows = 0;
  int64_t cross_rows = 0;
  for (size_t i = 0; i < request.num_seqs; ++i) {
    Sequence& sequence = context.sequences.get(request.seqs[i]);
    check_on_device(sequence, "append to");
    const int64_t append_length = request.append_lengths[i];
    if (append_length < 1) {
      fail_with(KVC_E_INVALID_ARGUMENT, append_length,
                "append_lengths[%zu] = %lld for sequence %lld: at least 1 token", i,
                ll(append_length), ll(sequence.id));
    }
    if (stamp != 0) {
      if (sequence.begin_stamp == stamp) fail_duplicate(sequence.id);
      sequence.begin_stamp = stamp;
    }
    if (entries->size() == context.sequences.size()) fail_duplicate(sequence.id);
    // Checked before the parents are read, because the lengths give the size of their array.
    if (append_length > kMaxSequenceLength - sequence.stored(false)) {
      fail_with(KVC_E_NEVER_FITS, sequence.id,
                "sequence %lld with %lld tokens can't take %lld more: the longest possible is %lld",
                ll(sequence.id), ll(sequence.stored(false)), ll(append_length),
                ll(kMaxSequenceLength));
    }
    const int64_t row_begin = rows;
    rows += append_length;
    if (rows > max_rows) continue;  // Refused below, with the sum of all lengths.
    entries->push_back({.sequence = &sequence,
                        .old_length = sequence.length,
                        .old_nodes = 0,
                        .append_length = append_length,
                        .row_begin = row_begin,
                        .cross_length = 0,
                        .cross_row_begin = cross_rows,
                        .is_tree = false,
                        .new_state = kInitialState});
    BatchEntry& entry = entries->back();
    const int32_t* parents =
        request.tree_parents == nullptr ? nullptr : request.tree_parents + entry.row_begin;
    check_tree(spec, parents, request.may_extend_trees, entry);
    if (request.cross_lengths != nullptr) check_cross(spec, request.cross_lengths[i], entry);
    check_fits(entry, context, parents);
    cross_rows += entry.cross_length;
  }
  if (rows > max_rows) {
    fail_with(KVC_E_OUT_OF_RANGE, rows,
              "append_lengths sum to %lld tokens, more than max_tokens_per_forward = %lld",
              ll(rows), ll(max_rows));
  }
  if (stamp == 0) check_distinct(*entries);
}

}  // namespace kvc
