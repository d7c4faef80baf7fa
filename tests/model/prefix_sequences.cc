// Operations on sequences between forwards: what they do to histories, tables and contents.
#include <algorithm>

#include "tests/model/prefix_run.h"

namespace kvc::test {

void PrefixRun::op_add() {
  const kvc_seq seq = random_.range(0, kMostIds - 1);
  trace("add %lld", ll(seq));
  const kvc_status status =
      call("kvc_seq_add", [&](kvc_error* err) { return kvc_seq_add(setup_.cache(), seq, err); });
  if (status != (sequences_.count(seq) != 0 ? KVC_E_ALREADY_EXISTS : KVC_OK))
    mismatch("kvc_seq_add answered %s", kvc_status_name(status));
  if (status != KVC_OK) return;
  Sequence& sequence = sequences_[seq];
  // Without a query the cache takes it to be of the namespace without a salt; another one is told
  // by an insert.
  if (random_.chance(0.3)) sequence.space = random_.pick(spaces_);
  sequence.is_told = sequence.space.salt.empty() && sequence.space.keys.empty();
  if (!book_.empty()) {
    const std::vector<int32_t>& prompt = random_.pick(book_).second;
    sequence.pending.assign(prompt.begin(), prompt.end());
  }
  read_tables(seq);
}

void PrefixRun::op_remove() {
  const kvc_seq seq = any_seq();
  trace("remove %lld", ll(seq));
  const kvc_status status = call(
      "kvc_seq_remove", [&](kvc_error* err) { return kvc_seq_remove(setup_.cache(), seq, err); });
  const kvc_status wanted = sequences_.count(seq) == 0 ? KVC_E_NOT_FOUND
                            : is_open(seq)             ? KVC_E_BUSY
                                                       : KVC_OK;
  if (status != wanted) mismatch("kvc_seq_remove answered %s", kvc_status_name(status));
  if (status != KVC_OK) return;
  // The next turn of a conversation begins with all of this one.
  if (random_.chance(0.3)) remember(sequences_.at(seq).space, sequences_.at(seq).tokens);
  sequences_.erase(seq);
}

void PrefixRun::op_fork() {
  kvc_seq parent = 0;
  if (!pick_idle(&parent)) return;
  const kvc_seq child = random_.range(0, kMostIds - 1);
  const Sequence& from = sequences_.at(parent);
  const int64_t pos = random_.chance(0.3) ? -1 : random_.range(0, from.length() + 1);
  trace("fork %lld to %lld at %lld", ll(parent), ll(child), ll(pos));
  const kvc_status status = call("kvc_seq_fork", [&](kvc_error* err) {
    return kvc_seq_fork(setup_.cache(), parent, child, pos, err);
  });
  if (sequences_.count(child) != 0 || !from.nodes.empty() || pos > from.length()) {
    if (status == KVC_OK) mismatch("kvc_seq_fork accepted");
    return;
  }
  if (status != KVC_OK) {
    if (status != KVC_E_OUT_OF_RANGE || (setup_.sees_all() && from.window == 0))
      mismatch("kvc_seq_fork answered %s (%s)", kvc_status_name(status), last_error_.message);
    return;
  }
  Sequence to = from;
  const auto length = static_cast<size_t>(pos < 0 ? from.length() : pos);
  to.tokens.resize(length);
  to.history.resize(length);
  to.known = std::min(to.known, to.length());
  to.pending.clear();
  to.forget_empty();
  to.is_whole = sequences_.at(parent).is_whole = from.is_whole && to.length() % setup_.block() == 0;
  sequences_[child] = std::move(to);
  read_tables(child);
  compare_sequence(child);
}

void PrefixRun::op_pop() {
  kvc_seq seq = 0;
  if (!pick_idle(&seq)) return;
  Sequence& sequence = sequences_.at(seq);
  const int64_t n = random_.range(
      0, random_.chance(0.5) ? std::min<int64_t>(3, sequence.length()) : sequence.length());
  trace("pop %lld of %lld", ll(n), ll(seq));
  const kvc_status status =
      call("kvc_seq_pop", [&](kvc_error* err) { return kvc_seq_pop(setup_.cache(), seq, n, err); });
  if (!sequence.nodes.empty()) {
    if (status != KVC_E_INVALID_STATE) mismatch("kvc_seq_pop answered %s", kvc_status_name(status));
    return;
  }
  if (status != KVC_OK) {
    if (status != KVC_E_OUT_OF_RANGE || (setup_.sees_all() && sequence.window == 0))
      mismatch("kvc_seq_pop answered %s (%s)", kvc_status_name(status), last_error_.message);
    return;
  }
  const auto length = static_cast<size_t>(sequence.length() - n);
  sequence.tokens.resize(length);
  sequence.history.resize(length);
  sequence.known = std::min(sequence.known, sequence.length());
  sequence.is_whole = sequence.is_whole && sequence.length() % setup_.block() == 0;
  sequence.forget_empty();
  read_tables(seq);
  compare_sequence(seq);
}

void PrefixRun::op_set_window() {
  kvc_seq seq = 0;
  if (!pick_idle(&seq)) return;
  const int64_t window = random_.range(1, 4 * setup_.block()), sink = random_.range(0, window / 2);
  trace("window of %lld: %lld, sink %lld", ll(seq), ll(window), ll(sink));
  const kvc_status status = call("kvc_seq_set_window", [&](kvc_error* err) {
    return kvc_seq_set_window(setup_.cache(), seq, window, sink, err);
  });
  if (status != KVC_OK) return;
  Sequence& sequence = sequences_.at(seq);
  sequence.window = window;
  sequence.sink = sink;
  // Which entries are left cannot be told from their number alone: page ids of before say it.
  for (size_t g = 0; g < setup_.groups().size(); ++g) {
    const std::vector<int32_t> kept = exported_pages(seq, g);
    size_t next = 0;
    for (int32_t& page : sequence.tables[g]) {
      const bool is_kept = page >= 0 && next < kept.size() && page == kept[next];
      page = is_kept ? page : -1;
      next += is_kept ? 1 : 0;
    }
    if (next != kept.size()) mismatch("a window gave sequence %lld a page", ll(seq));
  }
  compare_sequence(seq);
}

void PrefixRun::op_shift() {
  kvc_seq seq = 0;
  if (kind_ != PrefixRunKind::kBookkeeping && setup_.has_data()) return;
  if (!pick_idle(&seq)) return;
  Sequence& sequence = sequences_.at(seq);
  const int64_t begin = random_.range(0, sequence.length()),
                end = random_.range(begin, sequence.length());
  const int64_t delta = begin == end ? random_.range(1, 5) : begin - end;
  trace("shift %lld: [%lld, %lld) by %lld", ll(seq), ll(begin), ll(end), ll(delta));
  const kvc_status status = call("kvc_seq_shift", [&](kvc_error* err) {
    return kvc_seq_shift(setup_.cache(), seq, begin, end, delta, err);
  });
  if (status != KVC_OK) return;
  const bool moves = end < sequence.length();
  sequence.tokens.erase(sequence.tokens.begin() + begin, sequence.tokens.begin() + end);
  sequence.history.erase(sequence.history.begin() + begin, sequence.history.begin() + end);
  sequence.is_doubtful = true;
  sequence.is_moved = sequence.is_moved || moves;
  sequence.had_gap = true;
  sequence.known = std::min(sequence.known, begin);
  // Nothing is rotated here: rows stay what they are, but where tokens are dropped they, or their
  // pages, move.
  const bool rewrites = moves && begin < end;
  const std::vector<Table> old = sequence.tables;
  read_tables(seq);
  const std::set<int32_t> held = held_pages(seq);
  for (size_t g = 0; g < setup_.groups().size() && rewrites; ++g) {
    const int64_t page_size = setup_.groups()[g].page_size;
    const int64_t length = setup_.groups()[g].tokens_of(sequence.length());
    for (int64_t t = begin / page_size * page_size; t < length; ++t) {
      const int32_t page = sequence.tables[g][static_cast<size_t>(t / page_size)];
      if (page < 0) continue;
      Content& content = content_of(page, g);
      const Table& before = old[g];
      if (t % page_size == 0 && std::find(before.begin(), before.end(), page) == before.end()) {
        Content copy{static_cast<int>(g), std::vector<int>(static_cast<size_t>(page_size), -1)};
        const int32_t from = before[static_cast<size_t>(t / page_size)];
        if (t < begin && from >= 0) copy = content_of(from, g);
        content = copy;
      }
      if (t < begin) continue;
      // Behind sinks a page may stay as it is, and shared, for tokens in front of these.
      int& now = content.history[static_cast<size_t>(t % page_size)];
      if (sees(sequence, setup_.groups()[g], t)) {
        now = sequence.history[static_cast<size_t>(t)];
      } else if (held.count(page) == 0) {
        now = kFromHost;
      }
    }
  }
  sequence.forget_empty();
  compare_sequence(seq);
}

void PrefixRun::op_resize() {
  const int64_t pages = std::max<int64_t>(1, num_pages_ + random_.range(-8, 8));
  trace("resize to %lld pages", ll(pages));
  const kvc_status status = call("kvc_cache_resize", [&](kvc_error* err) {
    return kvc_cache_resize(setup_.cache(), pages, err);
  });
  if (status != KVC_OK) {
    if (status != KVC_E_BUSY && status != KVC_E_NEVER_FITS && status != KVC_E_OUT_OF_RANGE)
      mismatch("kvc_cache_resize answered %s (%s)", kvc_status_name(status), last_error_.message);
    return;
  }
  num_pages_ = pages;
  const std::vector<Content> before = content_;
  content_.resize(static_cast<size_t>(pages));
  bool have_moved = false;
  for (auto& [seq, sequence] : sequences_) {
    if (sequence.is_swapped) continue;
    const std::vector<Table> old = sequence.tables;
    read_tables(seq);
    for (size_t g = 0; g < old.size(); ++g) {
      for (size_t e = 0; e < old[g].size(); ++e) {
        const int32_t from = old[g][e], to = sequence.tables[g][e];
        if (from == to) continue;
        if (from < pages || to < 0 || to >= pages)
          mismatch("page %d of sequence %lld became page %d", from, ll(seq), to);
        content_[static_cast<size_t>(to)] = before[static_cast<size_t>(from)];
        have_moved = true;
      }
    }
  }
  // What a pin alone holds may have moved to any of them.
  if (stats().prefix_pinned != 0 && pages < static_cast<int64_t>(before.size()))
    forget_unheld_pages();
  for (const auto& [seq, sequence] : sequences_) {
    if (have_moved) compare_sequence(seq);
  }
}

void PrefixRun::op_clear() {
  trace("clear");
  require_ok("kvc_cache_clear", call("kvc_cache_clear", [&](kvc_error* err) {
               return kvc_cache_clear(setup_.cache(), err);
             }));
  sequences_.clear();
  published_.clear();
  pins_.clear();
  pin_counts_.clear();
  quotas_.clear();
  const kvc_stats after = stats();
  if (kvc_cache_is_empty(setup_.cache()) != 1 || after.pages_available != num_pages_ ||
      after.prefix_blocks != 0 || after.host_pages_used != 0)
    mismatch("a cleared cache has %lld free pages, %lld blocks", ll(after.pages_available),
             ll(after.prefix_blocks));
}

void PrefixRun::op_checkpoint() {
  kvc_seq seq = 0;
  if (!pick_idle(&seq)) return;
  trace("checkpoint %lld", ll(seq));
  const kvc_status status = call("kvc_state_checkpoint", [&](kvc_error* err) {
    return kvc_state_checkpoint(setup_.cache(), seq, err);
  });
  if (status != (setup_.has_states() ? KVC_OK : KVC_E_UNSUPPORTED))
    mismatch("kvc_state_checkpoint answered %s", kvc_status_name(status));
}

void PrefixRun::op_swap_out() {
  kvc_seq seq = 0;
  if (!pick_idle(&seq)) return;
  trace("swap out %lld", ll(seq));
  const kvc_status status = call("kvc_swap_out", [&](kvc_error* err) {
    return kvc_swap_out(setup_.cache(), 1, &seq, nullptr, nullptr, err);
  });
  Sequence& sequence = sequences_.at(seq);
  const bool has_tree = !sequence.nodes.empty();
  const bool right =
      status == KVC_E_UNSUPPORTED ? !setup_.has_host()
      : status == KVC_E_INVALID_STATE
          ? has_tree
          : setup_.has_host() && !has_tree && (status == KVC_OK || status == KVC_E_NO_PAGES);
  if (!right)
    mismatch("kvc_swap_out answered %s (%s)", kvc_status_name(status), last_error_.message);
  if (status != KVC_OK) return;
  sequence.is_swapped = true;
  sequence.swapped.assign(setup_.groups().size(), {});
  for (size_t g = 0; g < setup_.groups().size(); ++g) {
    for (const int32_t page : sequence.tables[g])
      sequence.swapped[g].push_back(page < 0 ? Content{} : content_[static_cast<size_t>(page)]);
  }
}

void PrefixRun::op_swap_in() {
  std::vector<kvc_seq> away;
  for (const auto& [seq, sequence] : sequences_) {
    if (sequence.is_swapped) away.push_back(seq);
  }
  if (away.empty()) return;
  const kvc_seq seq = random_.pick(away);
  trace("swap in %lld", ll(seq));
  const kvc_status status = call("kvc_swap_in", [&](kvc_error* err) {
    return kvc_swap_in(setup_.cache(), 1, &seq, nullptr, nullptr, err);
  });
  if (status != KVC_OK && status != KVC_E_NO_PAGES)
    mismatch("kvc_swap_in answered %s (%s)", kvc_status_name(status), last_error_.message);
  if (status != KVC_OK) return;
  Sequence& sequence = sequences_.at(seq);
  sequence.is_swapped = false;
  for (size_t g = 0; g < setup_.groups().size(); ++g) {
    const std::vector<int32_t> kept = exported_pages(seq, g);
    size_t next = 0;
    for (size_t e = 0; e < sequence.tables[g].size(); ++e) {
      int32_t& page = sequence.tables[g][e];
      if (page < 0) continue;
      if (next == kept.size()) mismatch("sequence %lld came back with too few pages", ll(seq));
      page = kept[next++];
      content_[static_cast<size_t>(page)] = sequence.swapped[g][e];
    }
    if (next != kept.size()) mismatch("sequence %lld came back with too many pages", ll(seq));
  }
  sequence.swapped.clear();
  compare_sequence(seq);
}

}  // namespace kvc::test
