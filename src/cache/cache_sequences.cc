#include "src/cache/cache_sequences.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/cache/cache_core.h"
#include "src/cache/context_shift.h"
#include "src/cache/tree_commit.h"

namespace kvc {

void CacheSequences::add(kvc_seq id) { core_.sequences.add(id); }

void CacheSequences::remove(kvc_seq id) {
  Sequence& sequence = core_.sequences.get_idle(id, "remove");
  if (!sequence.is_swapped) core_.publisher.release(sequence);
  if (sequence.is_swapped) --core_.num_swapped;
  core_.spare_histories.keep(sequence.history);
  core_.sequences.remove(id);
}

void CacheSequences::fork(kvc_seq parent, kvc_seq child, int64_t position) {
  core_.sequences.fork(parent, child, position);
}

void CacheSequences::pop(kvc_seq id, int64_t num_tokens) { core_.sequences.pop(id, num_tokens); }

void CacheSequences::shift(kvc_seq id, int64_t begin, int64_t end, int64_t delta) {
  shift_tokens(core_, id, begin, end, delta);
}

void CacheSequences::set_window(kvc_seq id, int64_t window, int64_t sink) {
  Sequence& sequence = core_.sequences.get_settled(id, "set the window of");
  core_.sequences.trimmer().set_window(sequence, window, sink);
}

void CacheSequences::checkpoint(kvc_seq id) {
  Sequence& sequence = core_.sequences.get_idle(id, "take a checkpoint of");
  check_on_device(sequence, "take a checkpoint of");
  const int64_t num_blocks =
      sequence.is_swapped || core_.spec().has_cross() ? 0 : core_.publisher.num_to_reach(sequence);
  if (num_blocks != 0)
    core_.index.reserve(num_blocks + core_.forward.batch().num_new_blocks(),
                        !sequence.history.ids.empty());
  core_.sequences.checkpoints().take(sequence);
  core_.sequences.count_bytes(sequence);
  // Nothing throws from here on.
  if (num_blocks != 0) core_.publisher.publish_state(sequence, kOwnStream);
}

void CacheSequences::release_checkpoint(kvc_seq id, int64_t position) {
  Sequence& sequence = core_.sequences.get_idle(id, "give up a checkpoint of");
  check_on_device(sequence, "give up a checkpoint of");
  if (!core_.states.is_used())
    fail_with(KVC_E_UNSUPPORTED, id,
              "a checkpoint of sequence %lld: no layer is of kind STATE (%d)", ll(id),
              KVC_LAYER_STATE);
  core_.sequences.checkpoints().release(sequence, position);
}

void CacheSequences::commit_trees(size_t num_seqs, const kvc_seq* seqs, const int32_t* leaves,
                                  CallStream stream) {
  kvc::commit_trees(core_, num_seqs, seqs, leaves, stream);
}

int64_t CacheSequences::length(kvc_seq id) const { return core_.sequences.get(id).length; }

int64_t CacheSequences::total_length() const { return core_.sequences.totals().length; }

std::vector<kvc_seq> CacheSequences::sorted_ids() const { return kvc::sorted_ids(core_.sequences); }

kvc_seq_info CacheSequences::info(kvc_seq id) const {
  const Sequence& sequence = core_.sequences.get(id);
  kvc_seq_info info{};
  info.length = sequence.length;
  info.window = sequence.window;
  info.sink = sequence.sink;
  info.cross_length = sequence.cross_length;
  info.is_swapped = sequence.is_swapped ? 1 : 0;
  info.known_tokens = sequence.history.has_diverged
                          ? 0
                          : std::min(sequence.history.num_known, sequence.first_unwritten);
  info.in_forward = sequence.in_forward() ? 1 : 0;
  // Inside a forward the tables already hold the new tokens' pages; the answer is about what was
  // there before.
  info.tree_nodes = core_.num_tree_nodes(sequence);
  const PageAllocator& pages = sequence.is_swapped ? core_.host.allocator() : core_.allocator;
  int64_t first_kept = 0;
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    const bool is_cross = core_.spec().groups[group].is_cross;
    const PageTable& table = sequence.tables[group];
    if (!is_cross) first_kept = std::max(first_kept, table.kept_begin);
    const GroupSpec& spec = core_.spec().groups[group];
    const int64_t stored =
        is_cross ? sequence.cross_length : spec.tokens_of(sequence.length + info.tree_nodes);
    for (int64_t i = 0; i < spec.pages_for(stored); ++i) {
      const PageId page = table.pages[i];
      if (page == kNoPage) continue;
      ++info.num_pages;
      info.num_shared_pages += pages.refs(page) > 1 ? 1 : 0;
    }
  }
  const bool keeps_any = first_kept < sequence.length;
  info.first_position = keeps_any ? sequence.position_of(first_kept) : -1;
  info.last_position = sequence.length == 0 ? -1 : sequence.position_of(sequence.length - 1);
  for (const Checkpoint& checkpoint : sequence.checkpoints) {
    info.num_checkpoints += checkpoint.position < sequence.length ? 1 : 0;
  }
  return info;
}

int64_t CacheSequences::missing_pages(const BatchRequest& request) const {
  std::vector<BatchEntry> entries;
  std::vector<TableChange> changes;
  const Batch::Context context{*core_.plan, core_.sequences, core_.allocator, core_.states};
  const Batch::Measure needed = Batch::measure(request, context, 0, &entries, &changes);
  for (const BatchEntry& entry : entries) {
    if (entry.sequence->in_forward()) {
      fail_with(KVC_E_BUSY, entry.sequence->id, "sequence %lld is entry %d of the open forward",
                ll(entry.sequence->id), entry.sequence->batch_index);
    }
  }
  return Batch::missing(needed, context).total();
}

Neighbours CacheSequences::positions(kvc_seq id, kvc_seq_op op, int64_t position) const {
  const Sequence& sequence = core_.sequences.get(id);
  if (op < KVC_SEQ_FORK || op > KVC_SEQ_SHIFT) {
    fail_with(KVC_E_UNSUPPORTED, op,
              "op = %d is not supported: FORK (0), POP (1) and SHIFT (2) are", op);
  }
  if (position < -1)
    fail_with(KVC_E_OUT_OF_RANGE, position, "pos = %lld out of range: at least -1 (the end)",
              ll(position));
  core_.sequences.get_settled(id, "fork, pop or shift");
  if (op != KVC_SEQ_SHIFT)
    return core_.sequences.resume_points().around(
        sequence, position == -1 ? sequence.length : std::min(position, sequence.length));
  return shifts_around(core_, sequence, position);
}

}  // namespace kvc
