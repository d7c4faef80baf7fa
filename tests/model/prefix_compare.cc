// What is compared after operations: contents of pages, counts, hits that have to be there.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "tests/model/prefix_run.h"

namespace kvc::test {

int PrefixRun::next_history(const Sequence& sequence, int parent, int64_t position, int32_t token) {
  // A query that sees less, or at other distances, gives other hidden states, hence other keys in
  // the layers above.
  if (sequence.window != 0 || sequence.is_moved) return histories_.fresh();
  return histories_.next(parent, token, sequence.space.keys_at(position));
}

int64_t PrefixRun::first_seen(const PrefixSetup::Group& group, int64_t position) const {
  if (group.window != 0) return std::max<int64_t>(0, position - group.window + 1);
  return group.chunk != 0 ? position / group.chunk * group.chunk : 0;
}

// By the query that comes next.
bool PrefixRun::sees(const Sequence& sequence, const PrefixSetup::Group& group,
                     int64_t token) const {
  const int64_t position = sequence.length();
  if (group.keep != 0) return token < group.keep;  // No window drops them.
  if (token < first_seen(group, position)) return false;
  return sequence.window == 0 || token < sequence.sink ||
         token > position - (sequence.window - sequence.sink);
}

PrefixRun::Content& PrefixRun::content_of(int32_t page, size_t group) {
  Content& content = content_.at(static_cast<size_t>(page));
  if (content.group == kFromHost) {
    const auto page_size = static_cast<size_t>(setup_.groups()[group].page_size);
    content = {static_cast<int>(group), std::vector<int>(page_size, kFromHost)};
  }
  return content;
}

std::set<int32_t> PrefixRun::held_pages(kvc_seq but) const {
  std::set<int32_t> held;
  for (const auto& [seq, sequence] : sequences_) {
    if (seq == but || sequence.is_swapped) continue;
    for (const Table& table : sequence.tables) held.insert(table.begin(), table.end());
  }
  return held;
}

bool PrefixRun::contradicts(const Content& content, const Sequence& sequence, size_t group,
                            size_t entry) const {
  if (content.group != static_cast<int>(group)) return true;
  const size_t begin = entry * content.history.size();
  const auto end = static_cast<size_t>(setup_.groups()[group].tokens_of(sequence.slots()));
  for (size_t i = 0; i < content.history.size() && begin + i < sequence.history.size(); ++i) {
    if (begin + i >= end) break;
    if (content.history[i] != kFromHost && content.history[i] != sequence.history[begin + i])
      return true;
  }
  return false;
}

// So many pages came back from the host when the sequence was attached, into pages that no other
// one holds: those of it whose content is another. Others came to what nobody holds, or to its
// pages that had, by chance, the same beginning already: what follows in these is not known. What
// they hold is compared where there is storage.
void PrefixRun::note_promoted(kvc_seq seq, int64_t pages) {
  const Sequence& sequence = sequences_.at(seq);
  const std::set<int32_t> held = held_pages(seq);
  std::vector<int*> rest;
  for (size_t g = 0; g < setup_.groups().size() && pages > 0; ++g) {
    for (size_t e = 0; e < sequence.tables[g].size(); ++e) {
      const int32_t page = sequence.tables[g][e];
      if (page < 0 || held.count(page) != 0) continue;
      Content& content = content_of(page, g);
      if (contradicts(content, sequence, g, e)) {
        if (--pages >= 0) content.group = kFromHost;
        continue;
      }
      const size_t begin = e * content.history.size();
      for (size_t i = 0; i < content.history.size(); ++i) {
        if (begin + i >= sequence.history.size()) rest.push_back(&content.history[i]);
      }
    }
  }
  if (pages <= 0) return;
  for (int* history : rest) *history = kFromHost;
  forget_unheld_pages();
}

void PrefixRun::forget_unheld_pages() {
  const std::set<int32_t> held = held_pages(-1);
  for (int32_t page = 0; page < static_cast<int32_t>(num_pages_); ++page) {
    if (held.count(page) == 0) content_[static_cast<size_t>(page)].group = kFromHost;
  }
}

std::vector<int32_t> PrefixRun::exported_pages(kvc_seq seq, size_t group) const {
  DLManagedTensorVersioned* pages = nullptr;
  if (kvc_export_seq_pages(setup_.cache(), seq, static_cast<int32_t>(group), &pages, nullptr) !=
      KVC_OK)
    mismatch("no pages of sequence %lld", ll(seq));
  const auto* ids = static_cast<const int32_t*>(pages->dl_tensor.data);
  std::vector<int32_t> result(ids, ids + pages->dl_tensor.shape[0]);
  pages->deleter(pages);
  return result;
}

// The kept pages in their entries: dropped ones lie before the kept ones, but for those of sinks.
void PrefixRun::read_tables(kvc_seq seq) {
  Sequence& sequence = sequences_.at(seq);
  sequence.tables.resize(setup_.groups().size());
  for (size_t g = 0; g < setup_.groups().size(); ++g) {
    const std::vector<int32_t> kept = exported_pages(seq, g);
    const PrefixSetup::Group& group = setup_.groups()[g];
    const auto pages = [&](int64_t tokens) { return static_cast<size_t>(group.entries(tokens)); };
    const size_t entries = pages(sequence.slots());
    const size_t sinks = group.sees_all() ? pages(std::min(sequence.sink, sequence.slots())) : 0;
    if (kept.size() > entries || kept.size() < sinks)
      mismatch("sequence %lld keeps %zu pages of group %zu: at most %zu, at least %zu", ll(seq),
               kept.size(), g, entries, sinks);
    Table table(entries, -1);
    const auto behind = kept.begin() + static_cast<ptrdiff_t>(sinks);
    std::copy(kept.begin(), behind, table.begin());
    std::copy(behind, kept.end(), table.end() - (kept.end() - behind));
    sequence.tables[g] = std::move(table);
  }
}

void PrefixRun::compare_published(const std::vector<kvc_seq>& seqs, uint64_t copied_before) {
  auto copies = static_cast<int64_t>(stats().pages_copied - copied_before);
  bool has_dropped = false;
  for (const kvc_seq seq : seqs) {
    const std::vector<Table> old = sequences_.at(seq).tables;
    read_tables(seq);
    const Sequence& sequence = sequences_.at(seq);
    for (size_t g = 0; g < old.size(); ++g) {
      // Nobody else's block begins with it
      const PrefixSetup::Group& group = setup_.groups()[g];
      if (setup_.block() == group.page_size && group.keep == 0) continue;
      for (size_t e = 0; e < sequence.tables[g].size() && e < old[g].size(); ++e) {
        const int32_t from = old[g][e], to = sequence.tables[g][e];
        has_dropped = has_dropped || (from >= 0 && to < 0);
        if (from < 0 || to < 0 || from == to) continue;
        const Content& own = content_of(from, g);
        Content& now = content_of(to, g);
        if (contradicts(now, sequence, g, e) && --copies >= 0) now = own;
      }
    }
  }
  // A window has dropped a copy since: the index alone knows where it is.
  if (has_dropped && copies > 0) forget_unheld_pages();
  for (const kvc_seq seq : seqs) compare_sequence(seq);
}

void PrefixRun::compare_sequence(kvc_seq seq) {
  const Sequence& sequence = sequences_.at(seq);
  if (sequence.is_swapped) return;
  for (size_t g = 0; g < setup_.groups().size(); ++g) {
    const PrefixSetup::Group& group = setup_.groups()[g];
    for (int64_t t = 0; t < sequence.length(); ++t) {
      if (!sees(sequence, group, t)) continue;
      const int32_t page = sequence.tables[g].at(static_cast<size_t>(t / group.page_size));
      if (page < 0 || page >= num_pages_)
        mismatch("sequence %lld of %lld tokens sees token %lld of group %zu, whose page is %d",
                 ll(seq), ll(sequence.length()), ll(t), g, page);
      Content& content = content_of(page, g);
      const int found = content.group == static_cast<int>(g)
                            ? content.history.at(static_cast<size_t>(t % group.page_size))
                            : -1;
      if (found == kFromHost) {
        content.history[static_cast<size_t>(t % group.page_size)] =
            sequence.history[static_cast<size_t>(t)];
        continue;
      }
      if (found != sequence.history[static_cast<size_t>(t)])
        mismatch(
            "sequence %lld: page %d of group %zu holds token %lld of history %d (%s), not %d (%s)",
            ll(seq), page, g, ll(t), found, histories_.describe(found).c_str(),
            sequence.history[static_cast<size_t>(t)],
            histories_.describe(sequence.history[static_cast<size_t>(t)]).c_str());
    }
  }
  if (setup_.has_data()) compare_rows(seq);
}

// The same in the pool: rows are numbers of histories.
void PrefixRun::compare_rows(kvc_seq seq) {
  const Sequence& sequence = sequences_.at(seq);
  const int64_t length = sequence.length();
  for (size_t layer = 0; layer < setup_.layers().size(); ++layer) {
    const kvc_layer& spec = setup_.layers()[layer];
    const auto id = static_cast<int32_t>(layer);
    if (spec.kind == KVC_LAYER_STATE) {
      HostTensor state(Elem::kF32, {3});
      const kvc_status status =
          kvc_debug_get_state(setup_.cache(), seq, id, 0, state.dl(), nullptr, nullptr);
      if (status != KVC_OK) mismatch("kvc_debug_get_state answered %s", kvc_status_name(status));
      const double want = length == 0 ? 0 : sequence.history.back();
      if (state.get(0) != want || state.get(2) != want)
        mismatch("sequence %lld has the state of history %g, not %g", ll(seq), state.get(0), want);
      continue;
    }
    if ((spec.kind != KVC_LAYER_ATTENTION && spec.kind != KVC_LAYER_MLA) || length == 0) continue;
    const PrefixSetup::Group& group = setup_.groups()[static_cast<size_t>(setup_.group_of(layer))];
    int64_t begin = length;
    while (begin > 0 && sees(sequence, group, begin - 1)) --begin;
    if (begin == length) continue;
    const bool is_mla = spec.kind == KVC_LAYER_MLA;
    const int64_t heads = is_mla ? 1 : spec.num_kv_heads, dim = is_mla ? 6 : spec.k_dim;
    HostTensor k(Elem::kF32, {length - begin, heads, dim}),
        v(Elem::kF32, {length - begin, heads, dim});
    kvc_error error{};
    if (kvc_debug_get_layer(setup_.cache(), seq, id, begin, length, k.dl(),
                            is_mla ? nullptr : v.dl(), nullptr, &error) != KVC_OK)
      mismatch("kvc_debug_get_layer: %s", error.message);
    for (int64_t t = begin; t < length; ++t) {
      const double want = sequence.history[static_cast<size_t>(t)];
      // In one of the layers
      if (unwritten_.count(sequence.history[static_cast<size_t>(t)]) != 0) continue;
      for (int64_t d = 0; d < dim; ++d) {
        const double k_got = k.get(t - begin, heads - 1, d);
        const double v_got = is_mla ? want + 0.5 : v.get(t - begin, heads - 1, d);
        if (k_got != want || v_got != want + 0.5)
          mismatch("sequence %lld, layer %d: token %lld has K %g and V %g, not %g", ll(seq), id,
                   ll(t), k_got, v_got, want);
      }
    }
  }
}

void PrefixRun::compare_all() {
  for (const auto& [seq, sequence] : sequences_) {
    const kvc_seq_info info = info_of(seq);
    if (info.length != sequence.length() || info.is_swapped != (sequence.is_swapped ? 1 : 0) ||
        info.tree_nodes != static_cast<int64_t>(sequence.nodes.size()))
      mismatch("sequence %lld: length %lld, swapped %d, %lld nodes", ll(seq), ll(info.length),
               info.is_swapped, ll(info.tree_nodes));
    if (info.known_tokens < 0 || info.known_tokens > info.length)
      mismatch("sequence %lld knows %lld of %lld tokens", ll(seq), ll(info.known_tokens),
               ll(info.length));
    const int64_t known = std::min(sequence.known, written(sequence));
    if (sequence.is_clean() && !sequence.had_gap && !sequence.is_doubtful &&
        info.known_tokens != known)
      mismatch("sequence %lld knows %lld tokens, not %lld", ll(seq), ll(info.known_tokens),
               ll(known));
    if (is_open(seq)) continue;
    compare_sequence(seq);
    compare_use(seq, false);
  }
  compare_prediction();
}

void PrefixRun::compare_counts() {
  const kvc_stats now = stats();
  if (now.pages_total != num_pages_ || now.pages_used + now.pages_available != num_pages_ ||
      now.pages_available != kvc_cache_available_pages(setup_.cache()) ||
      now.pages_cached > now.pages_indexed || now.pages_cached > now.pages_available)
    mismatch("pages: %lld total, %lld used, %lld free, %lld cached, %lld evictable",
             ll(now.pages_total), ll(now.pages_used), ll(now.pages_available),
             ll(now.pages_indexed), ll(now.pages_cached));
  if (now.prefix_lookups != lookups_ || now.prefix_query_tokens != query_tokens_ ||
      now.prefix_hit_tokens != hit_tokens_)
    mismatch("lookups %llu of %llu tokens, %llu hit, not %llu, %llu, %llu",
             now.prefix_lookups + 0ULL, now.prefix_query_tokens + 0ULL,
             now.prefix_hit_tokens + 0ULL, lookups_ + 0ULL, query_tokens_ + 0ULL,
             hit_tokens_ + 0ULL);
  if (setup_.sees_all() && now.prefix_pinned != static_cast<int64_t>(pin_counts_.size()))
    mismatch("%lld blocks are pinned, not %zu", ll(now.prefix_pinned), pin_counts_.size());
  if (forward_ != nullptr || now.prefix_pinned != 0) return;
  std::set<int32_t> used;
  for (const auto& [seq, sequence] : sequences_) {
    if (sequence.is_swapped) continue;
    for (size_t g = 0; g < setup_.groups().size(); ++g) {
      for (const int32_t page : exported_pages(seq, g)) used.insert(page);
    }
  }
  if (now.pages_used != static_cast<int64_t>(used.size()))
    mismatch("sequences hold %zu pages, %lld count as used", used.size(), ll(now.pages_used));
}

// Everything that the sequence published and still holds hits.
void PrefixRun::compare_use(kvc_seq seq, bool just_ended) {
  const Sequence& sequence = sequences_.at(seq);
  if (!sequence.is_clean() || sequence.is_swapped || !sequence.is_told ||
      had_quota_.count(sequence.space.salt) != 0 || !sequence.nodes.empty())
    return;
  const int64_t known = std::min({sequence.known, info_of(seq).known_tokens, written(sequence)});
  const int64_t block = setup_.block();
  const int64_t stride =
      setup_.config().state_stride == 0 ? setup_.config().page_size : setup_.config().state_stride;
  const bool is_aligned = known == sequence.length() && known % block == 0 &&
                          (!setup_.has_states() || (stride > 0 && known % stride == 0));
  if (!setup_.sees_all() && !(just_ended && is_aligned && sequence.is_whole)) return;
  Query query = query_of(sequence, known);
  query.flags = KVC_PREFIX_ALL_TOKENS | KVC_PREFIX_WHOLE_BLOCKS;
  const int64_t hit = match(query);
  if (hit != known / block * block)
    mismatch("sequence %lld holds %lld published tokens, of which %lld hit", ll(seq), ll(known),
             ll(hit));
}

int64_t PrefixRun::written(const Sequence& sequence) const {
  const auto first = std::find_if(sequence.history.begin(), sequence.history.end(),
                                  [this](int history) { return unwritten_.count(history) != 0; });
  return first - sequence.history.begin();
}

// From now on the blocks of the sequence's known tokens may hit.
void PrefixRun::note_published(kvc_seq seq) {
  const Sequence& sequence = sequences_.at(seq);
  if (!sequence.is_told) return;
  const int64_t block = setup_.block();
  const auto full =
      static_cast<size_t>(std::min(sequence.known, written(sequence)) / block * block);
  for (size_t t = 0; t < full; ++t) published_.insert(sequence.history[t]);
  const Hashes hashes = hashes_of(sequence.space, sequence.tokens, full, setup_.block());
  for (size_t i = 0; i < full / static_cast<size_t>(block); ++i) {
    EventConsumer::Block& one = blocks_[hash_at(hashes, i)];
    one.salt = sequence.space.salt;
    one.parent = i == 0 ? "" : hash_at(hashes, i - 1);
    const auto begin = sequence.tokens.begin() + static_cast<ptrdiff_t>(i) * block;
    one.tokens.assign(begin, begin + block);
  }
}

int64_t PrefixRun::match(Query& query) {
  int64_t tokens = -1;
  const kvc_status status = kvc_prefix_match(setup_.cache(), query.get(), &tokens, nullptr);
  if (status != KVC_OK) mismatch("kvc_prefix_match answered %s", kvc_status_name(status));
  return tokens;
}

// Whole blocks that hit, by what events said is held. Windows: at least.
int64_t PrefixRun::predicted(Query& query) {
  const int64_t block = setup_.block();
  const Hashes hashes = hashes_of(query.space, query.tokens, query.tokens.size(), setup_.block());
  const int64_t most = static_cast<int64_t>(hashes.size()) / KVC_HASH_BYTES;
  const auto is_known = [&](int64_t one) {
    bool any = consumer_.holds(hash_at(hashes, static_cast<size_t>(one)), -1);
    for (size_t g = 0; g < setup_.groups().size(); ++g)
      any = any ||
            consumer_.holds(hash_at(hashes, static_cast<size_t>(one)), static_cast<int32_t>(g));
    return any;
  };
  const auto serves = [&](int64_t blocks) {
    if (!is_known(blocks - 1)) return false;
    for (size_t g = 0; g < setup_.groups().size(); ++g) {
      for (int64_t i = 0; i < blocks; ++i) {
        if ((i + 1) * block <= first_seen(setup_.groups()[g], blocks * block)) continue;
        if (setup_.groups()[g].tokens_of(i * block + 1) <= i * block) continue;  // It keeps none.
        if (!consumer_.holds(hash_at(hashes, static_cast<size_t>(i)), static_cast<int32_t>(g)))
          return false;
      }
    }
    return !setup_.has_states() ||
           consumer_.holds(hash_at(hashes, static_cast<size_t>(blocks - 1)), -1);
  };
  for (int64_t blocks = most; blocks > 0; --blocks) {
    if (serves(blocks)) return blocks * block;
  }
  return 0;
}

void PrefixRun::compare_prediction() {
  if (setup_.config().event_capacity == 0 || book_.empty()) return;
  consumer_.poll(setup_.cache(), random_, blocks_, true);
  consumer_.compare(setup_.cache(), blocks_);
  compare_quotas();
  for (int i = 0; i < 3; ++i) {
    Query query;
    std::tie(query.space, query.tokens) = random_.pick(book_);
    query.flags = KVC_PREFIX_ALL_TOKENS | KVC_PREFIX_WHOLE_BLOCKS;
    const int64_t hit = match(query), wanted = predicted(query);
    const bool right = setup_.has_host() ? true : setup_.sees_all() ? hit == wanted : hit >= wanted;
    if (!right)
      mismatch("of %lld tokens %lld hit; by the events %lld do", ll(query.size()), ll(hit),
               ll(wanted));
  }
}

void PrefixRun::compare_quotas() {
  for (auto& [salt, quota] : quotas_) {
    uint64_t bytes = 0;
    for (const auto& [key, tier] : consumer_.held()) {
      if (tier != KVC_TIER_DEVICE || blocks_.at(key.first).salt != salt) continue;
      if (key.second < 0) {
        bytes += setup_.info().state_slot_bytes;
      } else {
        const PrefixSetup::Group& group = setup_.groups()[static_cast<size_t>(key.second)];
        int64_t before = 0;  // Tokens of the blocks before it.
        for (std::string parent = blocks_.at(key.first).parent; !parent.empty();
             parent = blocks_.at(parent).parent)
          before += setup_.block();
        const int64_t pages = group.entries(before + setup_.block()) - group.entries(before);
        bytes += static_cast<uint64_t>(pages) * setup_.info().page_bytes;
      }
    }
    if (quota.bytes != 0 && bytes > quota.limit)
      mismatch("a namespace holds %llu bytes, its quota is %llu (%llu when it was set)",
               bytes + 0ULL, quota.bytes + 0ULL, quota.limit + 0ULL);
    quota.limit = std::max(quota.bytes, bytes);
  }
}

}  // namespace kvc::test
