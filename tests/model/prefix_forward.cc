// Forwards and trees: new tokens are written into the contents of pages, and into the pool where
// there is one.
#include <algorithm>

#include "tests/model/prefix_run.h"

namespace kvc::test {

void PrefixRun::draw_tokens(Entry* entry, int64_t count) {
  Sequence& sequence = sequences_.at(entry->seq);
  for (int64_t i = 0; i < count; ++i) {
    int32_t token = random_.pick(alphabet_);
    const bool first_try = entry->parents.empty() || i == 0 || entry->parents.back() >= 0;
    if (!sequence.pending.empty() && first_try) {
      token = sequence.pending.front();
      sequence.pending.pop_front();
    }
    int parent = sequence.length() == 0 ? root_of(sequence) : sequence.history.back();
    int64_t position = sequence.length() + i;
    if (entry->is_tree) {
      // Mostly chains: they are accepted as a whole.
      const auto before = static_cast<int64_t>(sequence.nodes.size()) + i;
      const auto own =
          static_cast<int32_t>(random_.chance(0.7) ? before - 1 : random_.range(-1, before - 1));
      entry->parents.push_back(own);
      int64_t depth = 0;
      for (int32_t node = own; node >= 0; ++depth) {
        const auto earlier = static_cast<int64_t>(sequence.nodes.size());
        node = node < earlier ? sequence.nodes[static_cast<size_t>(node)].parent
                              : entry->parents[static_cast<size_t>(node - earlier)];
      }
      position = sequence.length() + depth;
      const auto earlier = static_cast<int32_t>(sequence.nodes.size());
      if (own >= 0)
        parent = own < earlier ? sequence.nodes[static_cast<size_t>(own)].history
                               : entry->history[static_cast<size_t>(own - earlier)];
    } else if (i > 0) {
      parent = entry->history.back();
    }
    entry->tokens.push_back(token);
    entry->history.push_back(next_history(sequence, parent, position, token));
  }
}

void PrefixRun::draw_batch() {
  entries_.clear();
  const bool give = random_.chance(0.88);
  std::vector<kvc_seq> able;
  for (const auto& [seq, sequence] : sequences_) {
    if (!sequence.is_swapped && (!give || sequence.is_told)) able.push_back(seq);
  }
  random_.shuffle(able);
  const int64_t most = random_.range(1, random_.chance(0.7) ? 3 : kMostIds);
  for (const kvc_seq seq : able) {
    if (static_cast<int64_t>(entries_.size()) >= most) break;
    Sequence& sequence = sequences_.at(seq);
    const bool is_tree = !sequence.nodes.empty() || (!setup_.has_states() && random_.chance(0.06));
    const int64_t waiting = static_cast<int64_t>(sequence.pending.size());
    const int64_t block = setup_.block();
    int64_t count = waiting > 0 && random_.chance(0.6) ? waiting
                    : random_.chance(0.6)              ? 1
                                                       : random_.range(1, 2 * block);
    if (is_tree) count = random_.range(1, block + 1);
    entries_.push_back({seq, is_tree, give, sequence.slots(), {}, {}, {}, sequence.tables});
    draw_tokens(&entries_.back(), count);
  }
}

// The new tokens get histories of their own: whoever finds them under their keys finds something
// else than what belongs there.
void PrefixRun::leave_rows_out() {
  std::vector<size_t> layers;
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    const kvc_layer_kind kind = setup_.layers()[layer].kind;
    if (kind == KVC_LAYER_ATTENTION || kind == KVC_LAYER_MLA) layers.push_back(layer);
  }
  left_out_ = SIZE_MAX;
  if (layers.empty() || !random_.chance(0.1)) return;
  left_out_ = random_.pick(layers);
  for (Entry& entry : entries_) {
    for (int& history : entry.history) unwritten_.insert(history = histories_.fresh());
  }
}

void PrefixRun::op_begin() {
  std::map<kvc_seq, std::deque<int32_t>> pending;
  for (const auto& [seq, sequence] : sequences_) pending[seq] = sequence.pending;
  draw_batch();
  if (entries_.empty()) return;
  leave_rows_out();
  std::vector<kvc_seq> seqs;
  std::vector<int64_t> lengths;
  std::vector<int32_t> tokens, parents;
  bool any_tree = false;
  for (const Entry& entry : entries_) {
    seqs.push_back(entry.seq);
    lengths.push_back(static_cast<int64_t>(entry.tokens.size()));
    tokens.insert(tokens.end(), entry.tokens.begin(), entry.tokens.end());
    for (size_t i = 0; i < entry.tokens.size(); ++i)
      parents.push_back(entry.is_tree ? entry.parents[i] : KVC_TREE_NONE);
    any_tree = any_tree || entry.is_tree;
  }
  trace("begin %zu sequences from %lld, %zu tokens%s%s%s", seqs.size(), ll(seqs[0]), tokens.size(),
        any_tree ? ", trees" : "", entries_[0].is_known ? "" : ", no ids",
        left_out_ == SIZE_MAX ? "" : ", partial");
  int64_t missing = -1;
  const kvc_status can = kvc_seq_can_append(setup_.cache(), seqs.size(), seqs.data(),
                                            lengths.data(), &missing, nullptr);
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = seqs.size();
  desc.seqs = seqs.data();
  desc.append_lengths = lengths.data();
  if (any_tree) desc.tree_parents = parents.data();
  if (entries_[0].is_known) desc.tokens = tokens.data();
  if (left_out_ != SIZE_MAX) desc.flags = KVC_FORWARD_PARTIAL;
  const kvc_status status = call("kvc_forward_begin", [&](kvc_error* err) {
    return kvc_forward_begin(setup_.cache(), &desc, &forward_, err);
  });
  // A tree may be refused where a plain append is not, and its nodes may need other pages.
  const bool agrees = any_tree        ? true
                      : can != KVC_OK ? status != KVC_OK && status != KVC_E_NO_PAGES
                      : missing == 0  ? status == KVC_OK
                                      : status == KVC_E_NO_PAGES;
  if (!agrees || (status == KVC_E_NO_PAGES && missing == 0 && !any_tree))
    mismatch("kvc_seq_can_append answered %s and %lld missing, kvc_forward_begin %s (%s)",
             kvc_status_name(can), ll(missing), kvc_status_name(status), last_error_.message);
  // With states both kinds are missing, and begin names one.
  if (status == KVC_E_NO_PAGES && !any_tree && !setup_.has_states() &&
      last_error_.status == status && last_error_.detail != missing)
    mismatch("%lld pages are missing, kvc_forward_begin says %lld", ll(missing),
             ll(last_error_.detail));
  if (status != KVC_OK) {
    entries_.clear();
    for (auto& [seq, rest] : pending) sequences_.at(seq).pending = rest;
    return;
  }
  std::fill(tokens.begin(), tokens.end(), -7);  // copied
  take_tables();
  write_content();
  if (setup_.has_data()) write_rows();
}

// Page tables with the new tokens; what was copied on write goes along.
void PrefixRun::take_tables() {
  std::vector<std::pair<int32_t, Content>> changed;
  for (size_t g = 0; g < setup_.groups().size(); ++g) {
    DLManagedTensorVersioned* exported = nullptr;
    if (kvc_export_page_table(forward_, static_cast<int32_t>(g), KVC_TABLE_BLOCK_TABLE, &exported,
                              nullptr) != KVC_OK)
      mismatch("no block table");
    const auto* ids = static_cast<const int32_t*>(exported->dl_tensor.data);
    const int64_t width = exported->dl_tensor.shape[1], page_size = setup_.groups()[g].page_size;
    for (size_t b = 0; b < entries_.size(); ++b) {
      const Entry& entry = entries_[b];
      const int64_t slots = entry.old_slots + static_cast<int64_t>(entry.tokens.size());
      const int64_t entries = setup_.groups()[g].entries(slots);
      const int32_t* row = ids + static_cast<int64_t>(b) * width;
      Table table(row, row + entries);
      const Table& old = entry.old_tables[g];
      for (size_t e = 0; e < table.size(); ++e) {
        if (table[e] < 0 || (e < old.size() && old[e] == table[e])) continue;
        Content content{static_cast<int>(g), std::vector<int>(static_cast<size_t>(page_size), -1)};
        if (e < old.size() && old[e] >= 0) content = content_of(old[e], g);
        changed.emplace_back(table[e], std::move(content));
      }
      sequences_.at(entry.seq).tables[g] = std::move(table);
    }
    exported->deleter(exported);
  }
  for (auto& [page, content] : changed) content_.at(static_cast<size_t>(page)) = std::move(content);
}

void PrefixRun::write_content() {
  for (const Entry& entry : entries_) {
    for (size_t g = 0; g < setup_.groups().size(); ++g) {
      const int64_t page_size = setup_.groups()[g].page_size;
      for (size_t i = 0; i < entry.tokens.size(); ++i) {
        const int64_t slot = entry.old_slots + static_cast<int64_t>(i);
        if (setup_.groups()[g].tokens_of(slot + 1) <= slot) continue;
        const int32_t page =
            sequences_.at(entry.seq).tables[g].at(static_cast<size_t>(slot / page_size));
        if (page < 0) mismatch("a new token of sequence %lld has no page", ll(entry.seq));
        Content& content = content_of(page, g);
        // A hit of which nothing is visible had its page fresh.
        if (content.group != static_cast<int>(g))
          content = {static_cast<int>(g), std::vector<int>(static_cast<size_t>(page_size), -1)};
        content.history.at(static_cast<size_t>(slot % page_size)) = entry.history[i];
      }
    }
  }
}

void PrefixRun::write_rows() {
  int64_t rows = 0;
  for (const Entry& entry : entries_) rows += static_cast<int64_t>(entry.tokens.size());
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    if (layer == left_out_) continue;
    const kvc_layer& spec = setup_.layers()[layer];
    const auto id = static_cast<int32_t>(layer);
    kvc_error error{};
    kvc_status status = KVC_OK;
    if (spec.kind == KVC_LAYER_STATE) {
      HostTensor value(Elem::kF32, {static_cast<int64_t>(entries_.size()), 3});
      value.for_each([&](int64_t b, int64_t i, int64_t, int64_t) {
        value.set(entries_[static_cast<size_t>(b)].history.back(), b, i);
      });
      status = kvc_state_set(forward_, id, 0, value.dl(), &error);
    } else if (spec.kind == KVC_LAYER_ATTENTION || spec.kind == KVC_LAYER_MLA) {
      const bool is_mla = spec.kind == KVC_LAYER_MLA;
      const int64_t heads = is_mla ? 1 : spec.num_kv_heads, dim = is_mla ? 6 : spec.k_dim;
      HostTensor k(Elem::kF32, {rows, heads, dim}), v(Elem::kF32, {rows, heads, dim});
      int64_t row = 0;
      for (const Entry& entry : entries_) {
        for (const int history : entry.history) {
          for (int64_t h = 0; h < heads; ++h) {
            for (int64_t d = 0; d < dim; ++d) {
              k.set(history, row, h, d);
              v.set(history + 0.5, row, h, d);
            }
          }
          ++row;
        }
      }
      status = is_mla ? kvc_mla_append(forward_, id, k.dl(), &error)
                      : kvc_kv_append(forward_, id, k.dl(), v.dl(), &error);
    }
    if (status != KVC_OK) mismatch("layer %d refuses its rows: %s", id, error.message);
  }
}

void PrefixRun::op_end() {
  trace("end");
  const uint64_t copied = stats().pages_copied;
  require_ok("kvc_forward_end", call("kvc_forward_end", [&](kvc_error* err) {
               return kvc_forward_end(forward_, err);
             }));
  forward_ = nullptr;
  const std::vector<Entry> ended = std::move(entries_);
  entries_.clear();
  for (const Entry& entry : ended) {
    Sequence& sequence = sequences_.at(entry.seq);
    const bool was_known = sequence.known == sequence.length() && sequence.is_told;
    for (size_t i = 0; i < entry.tokens.size(); ++i) {
      if (entry.is_tree) {
        sequence.nodes.push_back(
            {entry.parents[i], entry.tokens[i], entry.history[i], entry.is_known});
      } else {
        sequence.tokens.push_back(entry.tokens[i]);
        sequence.history.push_back(entry.history[i]);
      }
    }
    if (!entry.is_tree) {
      if (entry.is_known && was_known) sequence.known = sequence.length();
    }
    sequence.had_gap = sequence.had_gap || !entry.is_known;
  }
  std::vector<kvc_seq> seqs;
  for (const Entry& entry : ended) {
    seqs.push_back(entry.seq);
    if (sequences_.at(entry.seq).is_clean()) note_published(entry.seq);
  }
  compare_published(seqs, copied);
  for (const kvc_seq seq : seqs) {
    if (random_.chance(0.5)) compare_use(seq, true);
  }
}

void PrefixRun::op_abort() {
  trace("abort");
  require_ok("kvc_forward_abort", call("kvc_forward_abort", [&](kvc_error* err) {
               return kvc_forward_abort(forward_, err);
             }));
  forward_ = nullptr;
  const std::vector<Entry> aborted = std::move(entries_);
  entries_.clear();
  for (const Entry& entry : aborted) {
    Sequence& sequence = sequences_.at(entry.seq);
    sequence.tables = entry.old_tables;
    for (size_t g = 0; g < setup_.groups().size(); ++g) {
      Table kept;
      std::copy_if(entry.old_tables[g].begin(), entry.old_tables[g].end(), std::back_inserter(kept),
                   [](int32_t page) { return page >= 0; });
      if (kept != exported_pages(entry.seq, g))
        mismatch("an abort left sequence %lld with other pages", ll(entry.seq));
    }
    compare_sequence(entry.seq);
    if (!entry.is_tree && random_.chance(0.5)) sequence.pending.clear();
  }
}

void PrefixRun::op_commit() {
  std::vector<kvc_seq> seqs;
  std::vector<int32_t> leaves;
  for (const auto& [seq, sequence] : sequences_) {
    if (sequence.nodes.empty() || random_.chance(0.2)) continue;
    const auto last = static_cast<int32_t>(sequence.nodes.size()) - 1;
    seqs.push_back(seq);
    leaves.push_back(random_.chance(0.6) ? last : static_cast<int32_t>(random_.range(-1, last)));
  }
  if (seqs.empty()) return;
  trace("commit %zu trees from %lld, leaf %d", seqs.size(), ll(seqs[0]), leaves[0]);
  const uint64_t copied = stats().pages_copied;
  require_ok("kvc_tree_commit", call("kvc_tree_commit", [&](kvc_error* err) {
               return kvc_tree_commit(setup_.cache(), seqs.size(), seqs.data(), leaves.data(),
                                      nullptr, err);
             }));
  for (size_t i = 0; i < seqs.size(); ++i) commit_path(seqs[i], leaves[i]);
  for (const kvc_seq seq : seqs) {
    if (sequences_.at(seq).is_clean()) note_published(seq);
  }
  compare_published(seqs, copied);
  for (size_t i = 0; i < seqs.size(); ++i) compare_use(seqs[i], leaves[i] >= 0);
}

// The accepted nodes move together, in the pages that held the tree.
void PrefixRun::commit_path(kvc_seq seq, int32_t leaf) {
  Sequence& sequence = sequences_.at(seq);
  std::vector<int32_t> path;
  for (int32_t node = leaf; node >= 0; node = sequence.nodes[static_cast<size_t>(node)].parent)
    path.insert(path.begin(), node);
  const std::vector<Node> nodes = std::move(sequence.nodes);
  sequence.nodes.clear();
  const int64_t before = sequence.length();
  for (const int32_t index : path) {
    const Node& node = nodes[static_cast<size_t>(index)];
    const bool was_known = sequence.known == sequence.length() && sequence.is_told;
    sequence.tokens.push_back(node.token);
    sequence.history.push_back(node.history);
    if (node.is_known && was_known) sequence.known = sequence.length();
    sequence.had_gap = sequence.had_gap || !node.is_known;
  }
  for (size_t g = 0; g < setup_.groups().size(); ++g) {
    const int64_t page_size = setup_.groups()[g].page_size;
    for (int64_t t = before; t < setup_.groups()[g].tokens_of(sequence.length()); ++t) {
      const int32_t page = sequence.tables[g].at(static_cast<size_t>(t / page_size));
      if (page < 0) mismatch("sequence %lld has dropped nodes of its tree", ll(seq));
      content_of(page, g).history.at(static_cast<size_t>(t % page_size)) =
          sequence.history[static_cast<size_t>(t)];
    }
    // What the tree took behind the path is gone.
    sequence.tables[g].resize(static_cast<size_t>(setup_.groups()[g].entries(sequence.length())));
  }
  sequence.forget_empty();
}

}  // namespace kvc::test
