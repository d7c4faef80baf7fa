// Operations on sequences in random runs.
#include <algorithm>
#include <cmath>

#include "tests/model/random_run.h"

namespace kvc::test {

void RandomRun::op_add() {
  const kvc_seq seq = std::min(any_seq(), kMostIds - 1);
  trace("add %lld", ll(seq));
  const auto fn = [&](kvc_error* err) { return kvc_seq_add(setup_.cache(), seq, err); };
  if (agree("kvc_seq_add", model_.add(seq), fn)) naive_.add(seq);
}

void RandomRun::op_remove() {
  const kvc_seq seq = any_seq();
  trace("remove %lld", ll(seq));
  const auto fn = [&](kvc_error* err) { return kvc_seq_remove(setup_.cache(), seq, err); };
  if (agree("kvc_seq_remove", model_.remove(seq), fn)) naive_.remove(seq);
}

void RandomRun::op_fork() {
  kvc_seq parent = any_seq();
  if (random_.chance(0.7)) pick_idle(&parent);
  const kvc_seq child = std::min(any_seq(), kMostIds - 1);
  const int64_t length = model_.exists(parent) ? model_.at(parent).length : 3;
  int64_t pos = random_.range(-1, length + (random_.chance(0.1) ? 2 : 0));
  if (random_.chance(0.3)) pos = -1 - static_cast<int64_t>(random_.chance(0.1));
  if (random_.chance(0.2))
    pos = std::max<int64_t>(0, length / model_.limits().page_size * model_.limits().page_size);
  if (random_.chance(0.2)) pos = std::max<int64_t>(0, length - random_.range(0, 3));
  trace("fork %lld -> %lld at %lld", ll(parent), ll(child), ll(pos));
  const auto fn = [&](kvc_error* err) {
    return kvc_seq_fork(setup_.cache(), parent, child, pos, err);
  };
  if (agree("kvc_seq_fork", model_.fork(parent, child, pos), fn))
    naive_.fork(parent, child, model_.at(child).length);
}

void RandomRun::op_pop() {
  kvc_seq seq = any_seq();
  if (random_.chance(0.7)) pick_idle(&seq);
  const int64_t length = model_.exists(seq) ? model_.at(seq).length : 3;
  int64_t n = random_.range(0, std::min<int64_t>(length, 2 * model_.limits().page_size));
  if (random_.chance(0.2)) n = length;
  if (random_.chance(0.3)) n = std::min<int64_t>(length, random_.range(0, 3));
  if (random_.chance(0.2)) n = length % model_.limits().page_size;
  if (random_.chance(0.05))
    n = random_.chance(0.5) ? -random_.range(1, 5) : length + random_.range(1, 5);
  trace("pop %lld by %lld", ll(seq), ll(n));
  const auto fn = [&](kvc_error* err) { return kvc_seq_pop(setup_.cache(), seq, n, err); };
  if (agree("kvc_seq_pop", model_.pop(seq, n), fn)) naive_.truncate(seq, model_.at(seq).length);
}

void RandomRun::op_clear() {
  trace("clear");
  const auto fn = [&](kvc_error* err) { return kvc_cache_clear(setup_.cache(), err); };
  if (agree("kvc_cache_clear", model_.clear(), fn)) naive_.clear();
}

// Changes nothing but what free pages hold.
void RandomRun::trim() {
  uint64_t released = 0;
  const kvc_status status = kvc_cache_trim(setup_.cache(), &released, nullptr);
  if (status != (model_.is_open() ? KVC_E_BUSY : KVC_OK))
    mismatch("kvc_cache_trim answered %s", kvc_status_name(status));
  // States are always the library's.
  const bool is_own = !setup_.is_borrowed() && setup_.config().allocator == nullptr;
  if (released != 0 && !is_own && !model_.limits().has_states)
    mismatch("kvc_cache_trim released memory that is not the library's");
}

void RandomRun::op_resize() {
  int64_t highest = -1;
  for (const auto& [seq, sequence] : model_.sequences()) {
    for (size_t group = 0; group < num_groups(); ++group) {
      for (const int32_t page : sequence_pages(seq, group))
        highest = std::max<int64_t>(highest, page);
    }
  }
  const int64_t now = model_.limits().num_pages;
  // Where the library alone knows the pages they move, so that any that fit may stay.
  if (keeps_pool()) highest = now - model_.available_pages() - 1;
  int64_t pages = random_.range(0, now + 6);
  if (random_.chance(0.05)) pages = random_.pick_of<int64_t>({-1, INT32_MAX, INT64_MAX});
  if (random_.chance(0.05))
    pages = std::min<int64_t>(now * 9, 400);  // past what was reserved: the pool moves
  trace("resize %lld -> %lld, last page needed %lld%s", ll(now), ll(pages), ll(highest),
        held_export_ != nullptr ? ", exported" : "");
  PageModel after = model_;
  Expected expected = after.resize(pages, highest, setup_.is_borrowed(), setup_.longest_pages());
  // The pool may have to move, and must not.
  if (held_export_ != nullptr && pages != now) expected.tolerated.insert(KVC_E_BUSY);
  const auto fn = [&](kvc_error* err) { return kvc_cache_resize(setup_.cache(), pages, err); };
  if (agree("kvc_cache_resize", expected, fn)) model_ = after;
  trim();
}

void RandomRun::op_can() {
  kvc_seq seq = any_seq();
  if (random_.chance(0.7)) pick_idle(&seq);
  const int64_t length = model_.exists(seq) ? model_.at(seq).length : 3;
  const int64_t pos = random_.chance(0.5) ? random_.range(-2, 60) : random_.range(-1, length + 2);
  const auto op = static_cast<kvc_seq_op>(random_.range(0, random_.chance(0.05) ? 3 : 2));
  int64_t nearest = -7, below = -7, above = -7, want_below = -7, want_above = -7;
  trace("can %d %lld at %lld", op, ll(seq), ll(pos));
  const Expected expected = model_.can(seq, op, pos, &want_below, &want_above);
  agree("kvc_seq_can", expected,
        [&](kvc_error* err) { return kvc_seq_can(setup_.cache(), seq, op, pos, &nearest, err); });
  agree("kvc_seq_positions", expected, [&](kvc_error* err) {
    return kvc_seq_positions(setup_.cache(), seq, op, pos, &below, &above, err);
  });
  if (nearest != want_below || below != want_below || above != want_above)
    mismatch("kvc_seq_can: %lld, kvc_seq_positions: %lld and %lld, expected %lld and %lld",
             ll(nearest), ll(below), ll(above), ll(want_below), ll(want_above));
}

void RandomRun::op_set_window() {
  if (setup_.refrains_from_windows()) return;
  kvc_seq seq = any_seq();
  if (random_.chance(0.7)) pick_idle(&seq);
  const int64_t page = model_.limits().page_size;
  int64_t window = random_.range(1, random_.chance(0.5) ? 12 : 3 * page);
  int64_t sink =
      random_.chance(0.4)
          ? 0
          : random_.range(0, random_.chance(0.8) ? std::min<int64_t>(window - 1, 5) : window - 1);
  if (random_.chance(0.05)) window = random_.range(-2, sink);
  if (random_.chance(0.03)) sink = random_.pick_of<int64_t>({-1, window, INT64_MAX});
  trace("set_window %lld to %lld, sink %lld", ll(seq), ll(window), ll(sink));
  const auto fn = [&](kvc_error* err) {
    return kvc_seq_set_window(setup_.cache(), seq, window, sink, err);
  };
  agree("kvc_seq_set_window", model_.set_window(seq, window, sink), fn);
}

void RandomRun::op_shift() {
  kvc_seq seq = any_seq();
  if (random_.chance(0.7)) pick_idle(&seq);
  const int64_t length = model_.exists(seq) ? model_.at(seq).length : 3;
  int64_t begin = random_.range(0, length);
  int64_t end = random_.range(begin, random_.chance(0.5) ? length : std::min(length, begin + 3));
  int64_t delta = begin - end;
  if (random_.chance(0.25)) {
    if (random_.chance(0.6)) end = begin;
    delta = random_.chance(0.2) ? random_.range(-100000, 5000000) : random_.range(-4, 9);
    if (random_.chance(0.05)) delta = random_.pick_of<int64_t>({INT64_MIN, INT32_MAX, -length - 1});
    // Nothing lies behind the gap: whether there is one is not said.
    if (end == length || delta == 0) return;
  }
  if (random_.chance(0.03)) end = begin - 1;
  if (random_.chance(0.03)) end = length + random_.range(1, 3);
  if (random_.chance(0.02)) begin = -1;
  trace("shift %lld: drop [%lld, %lld), move by %lld", ll(seq), ll(begin), ll(end), ll(delta));
  compare_tables();
  const std::map<int32_t, int> names = page_names_;
  const auto fn = [&](kvc_error* err) {
    return kvc_seq_shift(setup_.cache(), seq, begin, end, delta, err);
  };
  Expected expected = model_.check_shift(seq, begin, end, delta);
  // Rows in front of the range that an earlier shift has left are rewritten, in pages of their own.
  if (keeps_pool() && model_.exists(seq) && model_.at(seq).is_moved)
    expected.tolerated.insert(KVC_E_NO_PAGES);
  if (!agree("kvc_seq_shift", expected, fn)) return;

  const std::vector<size_t> wanted = model_.shift(seq, begin, end, delta);
  std::vector<std::vector<int>> handles;
  for (size_t group = 0; group < num_groups(); ++group) {
    const std::vector<int32_t> pages = sequence_pages(seq, group);
    if (pages.size() != wanted[group])
      mismatch("after the shift group %zu has %zu pages, expected %zu", group, pages.size(),
               wanted[group]);
    handles.emplace_back();
    for (const int32_t page : pages) {
      const auto known = names.find(page);
      handles.back().push_back(known == names.end() ? -1 : known->second);
    }
  }
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  (void)kvc_cache_stats_get(setup_.cache(), &stats, nullptr);
  model_.adopt_tables(seq, handles, stats);
  compare_tables();
  naive_.erase(seq, begin, end);
  if (!setup_.has_data() || delta == 0) return;
  // Rows in front that an earlier shift has left are rotated now.
  if (keeps_pool()) shift_rows(seq, 0, begin, 0);
  shift_rows(seq, begin, model_.at(seq).length, delta);
}

// K that is stored rotated has turned by delta positions; everything else has stayed as it was.
void RandomRun::shift_rows(kvc_seq seq, int64_t begin, int64_t end, int64_t delta) {
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    const NaiveLayer& spec = setup_.layers()[layer];
    if (!spec.has_tokens() || spec.rope.mode != KVC_ROPE_ON_APPEND) continue;
    NaiveSequence& sequence = naive_.at(seq);
    for (int64_t token = begin; token < end; ++token) {
      if (!model_.keeps(model_.at(seq), static_cast<size_t>(spec.group), {token, token + 1}))
        continue;  // A window has dropped it.
      const Row& row = sequence.layers[layer].k[static_cast<size_t>(token)];
      const Row want = rotated(spec.rope, spec.k_dim, row,
                               RopePosition::all(static_cast<double>(delta), false), true);
      double largest = 0;
      for (const double value : row) largest = std::max(largest, std::fabs(value));
      adopt_moved_key("a shift", layer, seq, token, want, 4e-7 * (1 + largest));
    }
  }
}

void RandomRun::adopt_moved_key(const char* what, size_t layer, kvc_seq seq, int64_t token,
                                const Row& want, double rounding) {
  const NaiveLayer& spec = setup_.layers()[layer];
  HostTensor got(Elem::kF32, {1, spec.kv_heads, spec.k_dim});
  const kvc_status status =
      kvc_debug_get_layer(setup_.cache(), seq, setup_.global_layer(layer), token, token + 1,
                          got.dl(), nullptr, nullptr, nullptr);
  if (status != KVC_OK)
    mismatch("kvc_debug_get_layer after %s answered %s", what, kvc_status_name(status));
  Row& row = naive_.at(seq).layers[layer].k[static_cast<size_t>(token)];
  row.resize(want.size());
  const NaiveStorage storage = spec.k_storage(token);
  const Row stored_want = stored_row(storage, want, spec.kv_heads);
  for (size_t e = 0; e < want.size(); ++e) {
    const auto element = static_cast<int64_t>(e);
    const double stored = got.get(0, element / spec.k_dim, element % spec.k_dim);
    const double step = keeps_pool() ? moved_step(spec, token, want, e)
                                     : 1.01 * storing_step(storage, stored_want, e, spec.kv_heads);
    if (!(std::fabs(stored - stored_want[e]) <= rounding + step)) {
      mismatch("after %s K of layer %zu, token %lld, element %zu is %.9g, expected %.9g", what,
               layer, ll(token), e, stored, stored_want[e]);
    }
    row[e] = stored;
  }
}

void RandomRun::op_tree_commit() {
  std::vector<kvc_seq> seqs;
  for (const auto& [seq, sequence] : model_.sequences()) {
    if (!sequence.parents.empty() && !model_.in_forward(seq)) seqs.push_back(seq);
  }
  random_.shuffle(seqs);
  if (!seqs.empty())
    seqs.resize(static_cast<size_t>(random_.range(1, static_cast<int64_t>(seqs.size()))));
  if (seqs.empty() && random_.chance(0.9)) return op_pop();
  if (random_.chance(0.05)) seqs.push_back(any_seq());
  std::vector<int32_t> leaves;
  for (const kvc_seq seq : seqs) {
    const int64_t nodes =
        model_.exists(seq) ? static_cast<int64_t>(model_.at(seq).parents.size()) : 1;
    int64_t leaf = random_.range(-1, nodes - 1);
    if (random_.chance(0.4)) leaf = nodes - 1;
    if (random_.chance(0.02)) leaf = random_.pick_of<int64_t>({-2, nodes, INT32_MAX});
    leaves.push_back(static_cast<int32_t>(leaf));
  }
  trace("tree_commit of %zu, first %lld leaf %d", seqs.size(), ll(seqs.empty() ? -1 : seqs[0]),
        leaves.empty() ? -9 : leaves[0]);
  const PageModel before = model_;
  const auto fn = [&](kvc_error* err) {
    return kvc_tree_commit(setup_.cache(), seqs.size(), seqs.data(), leaves.data(), nullptr, err);
  };
  if (!agree("kvc_tree_commit", model_.tree_commit(seqs, leaves), fn)) return;
  for (size_t i = 0; i < seqs.size(); ++i) {
    const ModelSequence& old = before.at(seqs[i]);
    naive_.keep_path(seqs[i], old.length, old.parents, leaves[i]);
  }
}

void RandomRun::op_checkpoint() {
  kvc_seq seq = any_seq();
  if (random_.chance(0.7)) pick_idle(&seq);
  trace("checkpoint %lld", ll(seq));
  const auto fn = [&](kvc_error* err) { return kvc_state_checkpoint(setup_.cache(), seq, err); };
  agree("kvc_state_checkpoint", model_.checkpoint(seq), fn);
}

void RandomRun::hand_out_pool() {
  const bool drops_tokens = model_.limits().has_window || model_.limits().has_chunk;
  if (!keeps_pool() || (seed_ % 2 == 1 && !drops_tokens)) return;
  op_hold_export();
  if (held_export_ != nullptr) op_hold_export();
}

void RandomRun::op_hold_export() {
  if (held_export_ != nullptr) {
    trace("release export");
    held_export_->deleter(held_export_);
    held_export_ = nullptr;
    return;
  }
  size_t layer = 0;
  while (layer < setup_.layers().size() &&
         (!setup_.layers()[layer].has_pages() || setup_.layers()[layer].keep > 0))
    ++layer;
  if (layer == setup_.layers().size()) return;
  trace("export pool");
  pool_exported_ = true;
  expect_ok("kvc_export_pool", [&](kvc_error* err) {
    return kvc_export_pool(setup_.cache(), setup_.global_layer(layer), KVC_POOL_BYTES,
                           &held_export_, err);
  });
  if (held_export_->dl_tensor.shape[0] != model_.limits().num_pages)
    mismatch("the exported pool has the wrong number of pages");
}

}  // namespace kvc::test
