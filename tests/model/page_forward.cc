// Forwards, trees and recurrent states in the page model.
#include <algorithm>

#include "tests/model/page_model.h"

namespace kvc::test {

std::set<kvc_seq> PageModel::copiers(const std::vector<kvc_seq>& seqs, size_t group) const {
  std::set<kvc_seq> result;
  if (limits_.groups[group].is_cross) return result;  // written once, by the only holder
  // Sequences of the batch by the shared partial page they append to.
  std::map<int, std::vector<kvc_seq>> sharers;
  for (const kvc_seq seq : seqs) {
    const ModelSequence& sequence = at(seq);
    const int64_t slots = tokens_of(group, sequence.slots());
    if (slots % page_size(group) == 0 || slots == tokens_of(group, sequence.slots() + 1)) continue;
    const auto last = sequence.tables[group].pages.find(slots / page_size(group));
    if (last != sequence.tables[group].pages.end() && holders(last->second) > 1)
      sharers[last->second].push_back(seq);
  }
  for (auto& [page, batch] : sharers) {
    // Nobody outside the batch holds the page: one of the batch may keep it, and it must be one
    // with the most tokens, because the others' tokens in that page have to survive an abort.
    const bool one_keeps = holders(page) == static_cast<int>(batch.size());
    std::stable_sort(batch.begin(), batch.end(),
                     [&](kvc_seq a, kvc_seq b) { return at(a).length < at(b).length; });
    if (one_keeps) batch.pop_back();
    result.insert(batch.begin(), batch.end());
  }
  return result;
}

int64_t PageModel::new_pages(size_t group, const ModelTable& table, int64_t slots,
                             int64_t append) const {
  int64_t count = 0;
  const int64_t end = tokens_of(group, slots + append);
  for (int64_t i = tokens_of(group, slots) / page_size(group); i < pages_for(group, end); ++i)
    count += table.pages.count(i) == 0 ? 1 : 0;
  return count;
}

Expected PageModel::check_batch(const ModelBatch& batch, bool any_kind) const {
  Expected expected;
  const auto& [seqs, lengths, parents, cross, has_positions] = batch;
  expected.also(seqs.empty(), KVC_E_INVALID_ARGUMENT);
  expected.also(limits_.max_seqs != 0 && static_cast<int64_t>(seqs.size()) > limits_.max_seqs,
                KVC_E_OUT_OF_RANGE);
  expected.also(has_positions && limits_.has_on_read, KVC_E_UNSUPPORTED);
  int64_t tokens = 0;
  for (size_t i = 0; i < seqs.size(); ++i) {
    expected.also(!exists(seqs[i]), KVC_E_NOT_FOUND);
    expected.also(std::count(seqs.begin(), seqs.end(), seqs[i]) != 1, KVC_E_INVALID_ARGUMENT);
    expected.also(lengths[i] < 1, KVC_E_INVALID_ARGUMENT);
    const int64_t rows = std::clamp<int64_t>(lengths[i], 0, INT32_MAX);
    bool is_tree = false, is_plain = parents.empty();
    const int64_t nodes = exists(seqs[i]) ? static_cast<int64_t>(at(seqs[i]).parents.size()) : 0;
    for (int64_t r = 0; r < rows && tokens + r < static_cast<int64_t>(parents.size()); ++r) {
      const int32_t parent = parents[static_cast<size_t>(tokens + r)];
      (parent == KVC_TREE_NONE ? is_plain : is_tree) = true;
      if (parent != KVC_TREE_NONE)
        expected.also(parent < -1 || parent >= nodes + r, KVC_E_INVALID_ARGUMENT);
    }
    expected.also(is_tree && is_plain, KVC_E_INVALID_ARGUMENT);
    expected.also(is_tree && limits_.has_states, KVC_E_UNSUPPORTED);
    // A node among the sinks would turn by a distance of its own.
    if (exists(seqs[i]))
      expected.also(is_tree && limits_.has_on_read && at(seqs[i]).length < at(seqs[i]).sink,
                    KVC_E_UNSUPPORTED);
    // A node from behind the kept tokens would become one of them.
    if (exists(seqs[i]))
      expected.also(
          is_tree && straddles_kept(at(seqs[i]).length, at(seqs[i]).length + nodes + rows),
          KVC_E_UNSUPPORTED);
    expected.also(is_tree && nodes + rows > KVC_MAX_TREE_NODES, KVC_E_OUT_OF_RANGE);
    expected.also(is_plain && nodes > 0 && !any_kind, KVC_E_INVALID_STATE);
    if (exists(seqs[i]) && limits_.max_seq_len != 0) {
      // Of a tree the deepest path counts; a question about one that is there takes new nodes for
      // roots.
      int64_t deepest = is_tree || nodes > 0 ? 1 : lengths[i];
      if (is_tree || nodes > 0) {
        std::vector<int64_t> depths;
        const auto add = [&](int64_t parent) {
          const bool is_root = parent < 0 || parent >= static_cast<int64_t>(depths.size());
          depths.push_back(is_root ? 1 : depths[static_cast<size_t>(parent)] + 1);
          deepest = std::max(deepest, depths.back());
        };
        for (const int32_t parent : at(seqs[i]).parents) add(parent);
        for (int64_t r = 0; is_tree && r < rows && tokens + r < std::ssize(parents); ++r)
          add(parents[static_cast<size_t>(tokens + r)]);
      }
      expected.also(deepest > limits_.max_seq_len - at(seqs[i]).length, KVC_E_NEVER_FITS);
    }
    tokens += rows;
    if (cross.empty()) continue;
    expected.also(cross[i] < 0, KVC_E_OUT_OF_RANGE);
    expected.also(cross[i] > 0 && !limits_.has_cross, KVC_E_UNSUPPORTED);
    expected.also(limits_.max_cross_len != 0 && cross[i] > limits_.max_cross_len,
                  KVC_E_OUT_OF_RANGE);
    if (exists(seqs[i]))
      expected.also(cross[i] > 0 && at(seqs[i]).cross_length > 0 && at(seqs[i]).slots() > 0,
                    KVC_E_INVALID_STATE);
  }
  expected.also(limits_.max_tokens != 0 && tokens > limits_.max_tokens, KVC_E_OUT_OF_RANGE);
  int64_t needed = 0;
  for (size_t i = 0; i < seqs.size(); ++i) {
    if (!exists(seqs[i])) continue;
    const ModelSequence& sequence = at(seqs[i]);
    const bool is_endless = lengths[i] > INT32_MAX - sequence.slots();
    expected.also(is_endless, KVC_E_NEVER_FITS);
    if (is_endless) continue;
    int64_t alone = 0;
    for (size_t g = 0; g < limits_.groups.size(); ++g) {
      const bool is_cross = limits_.groups[g].is_cross;
      int64_t more = is_cross ? (cross.empty() ? 0 : cross[i]) : lengths[i];
      if (limits_.groups[g].keep > 0) more = std::min(more, limits_.groups[g].keep);
      if (more < 0) continue;
      const bool countless = more > limits_.num_pages * page_size(g) + 1;
      if (countless) alone += limits_.num_pages + 1;  // not worth counting
      if (countless) continue;
      const bool replaces = is_cross && more > 0 && sequence.cross_length > 0;
      const ModelTable none;
      const int64_t fresh = more == 0 ? 0
                                      : new_pages(g, replaces ? none : sequence.tables[g],
                                                  is_cross ? 0 : sequence.slots(), more);
      needed += fresh;
      for (const auto& [index, page] : sequence.tables[g].pages) {
        if (!replaces) break;
        --alone;
        if (holders(page) == 1) --needed;
      }
      alone += fresh + static_cast<int64_t>(sequence.tables[g].pages.size()) -
               static_cast<int64_t>(spare(sequence, g, sequence.slots() + lengths[i]).size());
    }
    expected.also(alone > limits_.num_pages, KVC_E_NEVER_FITS);
  }
  if (!expected.ok()) return expected;
  for (size_t g = 0; g < limits_.groups.size(); ++g)
    needed += static_cast<int64_t>(copiers(seqs, g).size());
  // Pages are asked for first; a question sums both up.
  int64_t pages = std::max<int64_t>(0, needed - available_pages());
  for (size_t i = 0; i < seqs.size() && pages > 0; ++i) {
    const ModelSequence& sequence = at(seqs[i]);
    for (size_t g = 0; g < limits_.groups.size(); ++g) {
      for (const int64_t page : spare(sequence, g, sequence.slots() + lengths[i])) {
        if (holders(sequence.tables[g].pages.at(page)) == 1) --pages;
      }
    }
    expected.takes_spare = true;
  }
  pages = std::max<int64_t>(0, pages);
  int64_t states = limits_.has_states ? missing_states(static_cast<int64_t>(seqs.size())) : 0;
  for (size_t i = 0; i < seqs.size() && states > 0; ++i) {
    std::set<int> own{at(seqs[i]).state};
    for (const auto& [position, slot] : at(seqs[i]).checkpoints) {
      if (at(seqs[i]).automatic.count(position) == 0) own.insert(slot);
    }
    own.erase(-1);
    expected.also(static_cast<int64_t>(own.size()) + 1 > limits_.num_state_slots, KVC_E_NEVER_FITS);
  }
  if (!expected.ok()) return expected;
  if (states > 0) states = std::max<int64_t>(0, states - reclaimable_states());
  expected.missing_pages = any_kind ? pages + states : pages > 0 ? pages : states;
  return expected;
}

int64_t PageModel::missing_states(int64_t count) const {
  return limits_.num_state_slots == 0
             ? 0
             : std::max<int64_t>(0, used_states() + count - limits_.num_state_slots);
}

int64_t PageModel::reclaimable_states() const {
  std::map<int, int> automatic;
  for (const auto& [seq, sequence] : sequences_) {
    for (const auto& [position, slot] : sequence.checkpoints) {
      if (slot >= 0 && sequence.automatic.count(position) != 0) ++automatic[slot];
    }
  }
  int64_t count = 0;
  for (const auto& [slot, holders] : automatic) count += state_holders_.at(slot) == holders ? 1 : 0;
  return count;
}

void PageModel::reclaim_states(int64_t count) {
  std::set<std::pair<int64_t, kvc_seq>> found;
  for (const auto& [seq, sequence] : sequences_) {
    for (const auto& [position, slot] : sequence.checkpoints) {
      if (sequence.automatic.count(position) != 0) found.insert({position, seq});
    }
  }
  const int64_t wanted = used_states() - count;
  for (const auto& [position, seq] : found) {
    if (used_states() <= wanted) return;
    const auto at = sequences_[seq].checkpoints.find(position);
    drop_state(at->second);
    sequences_[seq].checkpoints.erase(at);
  }
}

Expected PageModel::can_append(const std::vector<kvc_seq>& seqs,
                               const std::vector<int64_t>& lengths) const {
  Expected expected = check_batch({seqs, lengths, {}, {}, false}, true);
  for (const kvc_seq seq : seqs) {
    expected.also(in_forward(seq), KVC_E_BUSY);
    expected.also(in_forward(seq) && entry_of(seq)->is_tree,
                  KVC_E_NEVER_FITS);  // with the nodes of the open forward
  }
  return expected;
}

Expected PageModel::begin(const ModelBatch& batch) {
  Expected expected = open_ ? Expected{} : check_batch(batch, false);
  expected.also(open_, KVC_E_BUSY);
  expected.also(open_ && batch.has_positions && limits_.has_on_read, KVC_E_UNSUPPORTED);
  if (expected.ok() && expected.missing_pages > 0) {
    expected.errors.insert(KVC_E_NO_PAGES);
    expected.detail = expected.missing_pages;
    ++no_pages_;
  }
  if (!expected.ok()) return expected;
  for (size_t i = 0; i < batch.seqs.size() && expected.takes_spare; ++i) {
    ModelSequence& sequence = sequences_[batch.seqs[i]];
    release_spare(&sequence, sequence.slots() + batch.lengths[i]);
  }
  if (limits_.has_states) {
    const int64_t missing = missing_states(static_cast<int64_t>(batch.seqs.size()));
    if (missing > 0) reclaim_states(missing);
  }
  std::vector<std::set<kvc_seq>> copying;
  for (size_t g = 0; g < limits_.groups.size(); ++g) copying.push_back(copiers(batch.seqs, g));
  entries_.clear();
  int64_t row = 0;
  for (size_t i = 0; i < batch.seqs.size(); ++i) {
    ModelSequence& sequence = sequences_[batch.seqs[i]];
    ModelEntry entry;
    entry.seq = batch.seqs[i];
    entry.old_length = sequence.length;
    entry.old_slots = sequence.slots();
    entry.append = batch.lengths[i];
    entry.row_begin = row;
    entry.is_tree =
        !batch.parents.empty() && batch.parents[static_cast<size_t>(row)] != KVC_TREE_NONE;
    entry.parents = sequence.parents;
    for (int64_t r = 0; r < entry.append && entry.is_tree; ++r)
      entry.parents.push_back(batch.parents[static_cast<size_t>(row + r)]);
    entry.cross = batch.cross.empty() ? 0 : batch.cross[i];
    entry.old_tables = sequence.tables;
    for (size_t g = 0; g < limits_.groups.size(); ++g) {
      std::map<int64_t, int>& pages = sequence.tables[g].pages;
      if (copying[g].count(entry.seq) != 0) {
        int& last = pages.at(tokens_of(g, entry.old_slots) / page_size(g));
        entry.replaced_pages.push_back(last);
        last = take_page();
        ++copied_;
      }
      const bool is_cross = limits_.groups[g].is_cross;
      if (is_cross && entry.cross > 0) {
        for (const auto& [index, page] : pages) drop(page);
        pages.clear();
        entry.old_tables[g].pages.clear();
        sequence.cross_length = 0;
      }
      const int64_t first = is_cross ? 0 : tokens_of(g, entry.old_slots) / page_size(g);
      const int64_t last =
          pages_for(g, is_cross ? entry.cross : tokens_of(g, entry.old_slots + entry.append));
      for (int64_t index = first; index < last; ++index) {
        if (pages.count(index) == 0) pages[index] = take_page();
      }
    }
    if (limits_.has_states) entry.new_slot = take_state();
    row += entry.append;
    entries_.push_back(std::move(entry));
  }
  open_ = true;
  touch_peak();
  return expected;
}

void PageModel::end(bool states_written) {
  for (const ModelEntry& entry : entries_) {
    ModelSequence& sequence = sequences_[entry.seq];
    for (const int page : entry.replaced_pages) drop(page);
    if (entry.cross > 0) sequence.cross_length = entry.cross;
    tokens_ += static_cast<uint64_t>(entry.append);
    if (entry.is_tree) {
      sequence.parents = entry.parents;
      continue;
    }
    const int64_t next = sequence.next_position();
    for (int64_t i = 0; i < entry.append && sequence.has_gaps(); ++i)
      sequence.positions.push_back(next + i);
    sequence.length += entry.append;
    release(&sequence);
    if (!limits_.has_states) continue;
    drop_state(states_written ? sequence.state
                              // Nothing set: the old state is carried on as it is
                              : entry.new_slot);
    if (states_written) sequence.state = entry.new_slot;
    if (limits_.state_stride > 0 && sequence.length % limits_.state_stride == 0) {
      sequence.checkpoints[sequence.length] = sequence.state;
      sequence.automatic.insert(sequence.length);
      hold_state(sequence.state);
    }
  }
  ++forwards_;
  open_ = false;
  entries_.clear();
}

void PageModel::abort() {
  for (const ModelEntry& entry : entries_) {
    ModelSequence& sequence = sequences_[entry.seq];
    for (size_t g = 0; g < sequence.tables.size(); ++g) {
      for (const auto& [index, page] : sequence.tables[g].pages) {
        const auto old = entry.old_tables[g].pages.find(index);
        if (old == entry.old_tables[g].pages.end() || old->second != page) drop(page);
      }
    }
    sequence.tables = entry.old_tables;
    drop_state(entry.new_slot);
  }
  ++aborted_;
  open_ = false;
  entries_.clear();
}

Expected PageModel::tree_commit(const std::vector<kvc_seq>& seqs,
                                const std::vector<int32_t>& leaves) {
  Expected expected;
  expected.also(seqs.empty(), KVC_E_INVALID_ARGUMENT);
  for (size_t i = 0; i < seqs.size(); ++i) {
    expected.also(std::count(seqs.begin(), seqs.end(), seqs[i]) != 1, KVC_E_INVALID_ARGUMENT);
    expected.also(!exists(seqs[i]), KVC_E_NOT_FOUND);
    expected.also(in_forward(seqs[i]), KVC_E_BUSY);
    expected.also(leaves[i] < -1, KVC_E_OUT_OF_RANGE);
    if (!exists(seqs[i])) continue;
    const auto nodes = static_cast<int64_t>(at(seqs[i]).parents.size());
    expected.also(nodes == 0, KVC_E_INVALID_STATE);
    expected.also(leaves[i] >= nodes, KVC_E_OUT_OF_RANGE);
  }
  if (!expected.ok()) return expected;
  for (size_t i = 0; i < seqs.size(); ++i) {
    ModelSequence& sequence = sequences_[seqs[i]];
    const int64_t accepted = depth_of(sequence.parents, leaves[i]) + 1;
    const int64_t next = sequence.next_position();
    for (int64_t t = 0; t < accepted && sequence.has_gaps(); ++t)
      sequence.positions.push_back(next + t);
    sequence.parents.clear();
    truncate(&sequence, sequence.length + accepted);
    release(&sequence);
  }
  return expected;
}

Expected PageModel::checkpoint(kvc_seq seq) {
  Expected expected;
  expected.also(!exists(seq), KVC_E_NOT_FOUND);
  expected.also(in_forward(seq), KVC_E_BUSY);
  expected.also(!limits_.has_states, KVC_E_UNSUPPORTED);
  if (!expected.ok()) return expected;
  ModelSequence& sequence = sequences_[seq];
  sequence.automatic.erase(sequence.length);
  if (sequence.checkpoints.emplace(sequence.length, sequence.state).second)
    hold_state(sequence.state);
  return expected;
}

Expected PageModel::overwrite_state(kvc_seq seq) {
  Expected expected;
  expected.also(!exists(seq), KVC_E_NOT_FOUND);
  expected.also(in_forward(seq), KVC_E_BUSY);
  if (!expected.ok()) return expected;
  ModelSequence& sequence = sequences_[seq];
  const auto own = sequence.checkpoints.find(sequence.length);
  const int own_holders = own == sequence.checkpoints.end() ? 1 : 2;
  const bool is_private = sequence.state >= 0 && state_holders_.at(sequence.state) == own_holders;
  if (!is_private && missing_states(1) > 0) {
    expected.errors.insert(KVC_E_NO_PAGES);
    expected.detail = missing_states(1);
    return expected;
  }
  drop_state(sequence.state);
  sequence.state = take_state();
  if (own != sequence.checkpoints.end()) {
    drop_state(own->second);
    own->second = sequence.state;
    hold_state(sequence.state);
  }
  return expected;
}

int PageModel::take_state() {
  state_holders_[next_state_] = 1;
  return next_state_++;
}

void PageModel::hold_state(int slot) {
  if (slot >= 0) ++state_holders_[slot];
}

void PageModel::drop_state(int slot) {
  if (slot >= 0 && --state_holders_[slot] == 0) state_holders_.erase(slot);
}

}  // namespace kvc::test
