// Operations on the index: attach, match, insert, pins, eviction, reset, quotas, events.
#include <algorithm>
#include <tuple>

#include "tests/model/prefix_run.h"

namespace kvc::test {

void PrefixRun::remember(const Namespace& space, const std::vector<int32_t>& prompt) {
  if (book_.size() < 12) book_.emplace_back();
  book_[static_cast<size_t>(random_.range(0, static_cast<int64_t>(book_.size()) - 1))] = {space,
                                                                                          prompt};
}

// Mostly begins like an earlier prompt.
Query PrefixRun::draw_query() {
  Query query;
  query.space = random_.pick(spaces_);
  const int64_t block = setup_.block();
  if (!book_.empty() && random_.chance(0.7)) {
    const auto& [space, prompt] = random_.pick(book_);
    query.tokens = prompt;
    if (random_.chance(0.8)) query.space = space;
    if (random_.chance(0.6))
      query.tokens.resize(static_cast<size_t>(random_.range(0, query.size())));
    for (int64_t more = random_.chance(0.5) ? 0 : random_.range(0, block + 2); more > 0; --more)
      query.tokens.push_back(random_.pick(alphabet_));
  } else {
    for (int64_t more = random_.range(0, 4 * block + 1); more > 0; --more)
      query.tokens.push_back(random_.pick(alphabet_));
  }
  query.tokens.resize(static_cast<size_t>(std::min<int64_t>(query.size(), 7 * block + 2)));
  random_.shuffle(query.space.keys);
  query.flags = static_cast<uint64_t>(random_.range(0, 3));
  query.priority = random_.chance(0.7) ? 0 : static_cast<int32_t>(random_.range(0, 100));
  if (random_.chance(0.2)) {
    query.hashes = hashes_of(query.space, query.tokens, query.tokens.size(), setup_.block());
    query.give_tokens = random_.chance(0.5);
    if (query.hashes.empty()) query.give_tokens = true;
    if (query.give_tokens && random_.chance(0.5))
      query.hashes.resize(KVC_HASH_BYTES *
                          static_cast<size_t>(random_.range(
                              0, static_cast<int64_t>(query.hashes.size()) / KVC_HASH_BYTES)));
  }
  return query;
}

Query PrefixRun::query_of(const Sequence& sequence, int64_t num_tokens) {
  Query query;
  query.space = sequence.space;
  query.tokens.assign(sequence.tokens.begin(), sequence.tokens.begin() + num_tokens);
  return query;
}

// What is found is no more than was asked for, and was published since the last reset.
void PrefixRun::check_hit(Query& query, int64_t hit, int64_t matched) {
  const bool all = (query.flags & KVC_PREFIX_ALL_TOKENS) != 0;
  const int64_t most = std::max<int64_t>(0, all ? query.size() : query.size() - 1);
  if (hit < 0 || hit > most) mismatch("%lld of %lld tokens hit", ll(hit), ll(query.size()));
  const bool whole =
      (query.flags & KVC_PREFIX_WHOLE_BLOCKS) != 0 || (!query.give_tokens && hit != most);
  if (whole && hit % setup_.block() != 0)
    mismatch("%lld tokens hit, which are no whole blocks", ll(hit));
  if (hit != matched)
    mismatch("kvc_prefix_match found %lld tokens, kvc_prefix_attach %lld", ll(matched), ll(hit));
}

void PrefixRun::op_attach() {
  Query query = draw_query();
  kvc_seq seq = random_.range(0, kMostIds - 1);
  if (random_.chance(0.03)) seq = -1;
  for (int tries = 0; tries < 8 && sequences_.count(seq) != 0; ++tries)
    seq = random_.range(0, kMostIds - 1);
  trace("attach %lld: %lld tokens, flags %llu, salt of %zu, %zu keys%s, %zu hashes", ll(seq),
        ll(query.size()), query.flags + 0ULL, query.space.salt.size(), query.space.keys.size(),
        query.give_tokens ? "" : ", no ids", query.hashes.size() / KVC_HASH_BYTES);
  const int64_t matched = match(query);
  const uint64_t promoted = stats().prefix_promoted;
  int64_t hit = -1;
  const kvc_prefix_query* asked = query.get();
  const kvc_status status = call("kvc_prefix_attach", [&](kvc_error* err) {
    return kvc_prefix_attach(setup_.cache(), seq, asked, &hit, err);
  });
  const kvc_status wanted = seq < 0                      ? KVC_E_INVALID_ARGUMENT
                            : sequences_.count(seq) != 0 ? KVC_E_ALREADY_EXISTS
                                                         : KVC_OK;
  if (status != wanted)
    mismatch("kvc_prefix_attach answered %s (%s)", kvc_status_name(status), last_error_.message);
  if (status != KVC_OK) {
    if (hit != -1) mismatch("a refused attach wrote its result");
    return;
  }
  check_hit(query, hit, matched);
  ++lookups_;
  query_tokens_ += static_cast<uint64_t>(query.size());
  hit_tokens_ += static_cast<uint64_t>(hit);
  coverage_["tokens hit"][KVC_OK] += hit;
  Sequence& sequence = sequences_[seq];
  sequence.space = query.space;
  sequence.is_told = true;
  sequence.known = hit;
  sequence.had_gap = !query.give_tokens;
  sequence.is_whole = hit % setup_.block() == 0;
  for (int64_t t = 0; t < query.size(); ++t) {
    const int32_t token = query.tokens[static_cast<size_t>(t)];
    if (t >= hit) {
      sequence.pending.push_back(token);
      continue;
    }
    const int parent = t == 0 ? root_of(sequence) : sequence.history.back();
    sequence.history.push_back(next_history(sequence, parent, t, token));
    sequence.tokens.push_back(token);
    if (published_.count(sequence.history.back()) == 0)
      mismatch("token %lld of %lld that hit was never published", ll(t), ll(hit));
  }
  read_tables(seq);
  note_promoted(seq, static_cast<int64_t>(stats().prefix_promoted - promoted));
  compare_sequence(seq);
  remember(query.space, query.tokens);
}

void PrefixRun::op_match() {
  Query query = draw_query();
  trace("match %lld tokens", ll(query.size()));
  int64_t hit = -1;
  const kvc_prefix_query* asked = query.get();
  require_ok("kvc_prefix_match", call("kvc_prefix_match", [&](kvc_error* err) {
               return kvc_prefix_match(setup_.cache(), asked, &hit, err);
             }));
  check_hit(query, hit, hit);
}

void PrefixRun::op_foreign_keys() {
  if (book_.empty()) return;
  Query query;
  std::tie(query.space, query.tokens) = random_.pick(book_);
  query.hashes = hashes_of(query.space, query.tokens, query.tokens.size(), setup_.block());
  if (query.hashes.empty()) return;
  const Namespace& other = random_.pick(spaces_);
  if (other.salt == query.space.salt) return;
  query.space.salt = other.salt;
  query.give_tokens = false;
  query.flags = KVC_PREFIX_ALL_TOKENS;
  trace("foreign keys of %lld tokens", ll(query.size()));
  const kvc_prefix_query* asked = query.get();
  kvc_seq seq = 0;
  while (sequences_.count(seq) != 0) ++seq;
  int64_t found[4] = {-1, -1, -1, -1};
  kvc_cache* cache = setup_.cache();
  require_ok("kvc_prefix_match", kvc_prefix_match(cache, asked, &found[0], nullptr));
  require_ok("kvc_prefix_pin", kvc_prefix_pin(cache, asked, &found[1], nullptr));
  require_ok("kvc_prefix_unpin", kvc_prefix_unpin(cache, asked, &found[2], nullptr));
  if (found[0] != 0 || found[1] != 0 || found[2] != 0)
    mismatch("keys of another namespace: %lld tokens match, %lld are pinned, %lld unpinned",
             ll(found[0]), ll(found[1]), ll(found[2]));
  if (forward_ != nullptr) return;
  require_ok("kvc_prefix_attach", kvc_prefix_attach(cache, seq, asked, &found[3], nullptr));
  ++lookups_;
  query_tokens_ += static_cast<uint64_t>(query.size());
  if (found[3] != 0) mismatch("%lld tokens of another namespace were attached", ll(found[3]));
  require_ok("kvc_seq_remove", kvc_seq_remove(cache, seq, nullptr));
}

void PrefixRun::op_insert() {
  const kvc_seq seq = any_seq();
  const bool exists = sequences_.count(seq) != 0;
  Query query;
  if (exists) {
    const Sequence& sequence = sequences_.at(seq);
    query = query_of(sequence,
                     random_.chance(0.6) ? sequence.length() : random_.range(0, sequence.length()));
    random_.shuffle(query.space.keys);
  } else {
    query = draw_query();
  }
  const bool too_long =
      exists && query.size() == sequences_.at(seq).length() && random_.chance(0.1);
  if (too_long) query.tokens.push_back(0);
  query.priority = static_cast<int32_t>(random_.chance(0.8) ? 0 : random_.range(1, 100));
  trace("insert %lld: %lld tokens", ll(seq), ll(query.size()));
  const uint64_t copied = stats().pages_copied;
  int64_t in_index = -1;
  const kvc_prefix_query* asked = query.get();
  const kvc_status status = call("kvc_prefix_insert", [&](kvc_error* err) {
    return kvc_prefix_insert(setup_.cache(), seq, asked, &in_index, err);
  });
  if (!exists) {
    if (status != KVC_E_NOT_FOUND)
      mismatch("insert of an unknown sequence: %s", kvc_status_name(status));
    return;
  }
  Sequence& sequence = sequences_.at(seq);
  const bool refused = sequence.is_swapped || !sequence.nodes.empty() || sequence.window != 0;
  const bool doubtful = sequence.is_doubtful || sequence.is_old;
  // Moved tokens and those of old weights must not get in; a sequence that has popped them again
  // may be refused or not.
  bool is_true = true;
  int parent = root_of(sequence);
  for (int64_t t = 0; t < std::min(query.size(), written(sequence)); ++t) {
    parent =
        histories_.next(parent, sequence.tokens[static_cast<size_t>(t)], sequence.space.keys_at(t));
    is_true = is_true && parent == sequence.history[static_cast<size_t>(t)];
  }
  const bool right =
      too_long
          ? status == KVC_E_OUT_OF_RANGE || (status == KVC_E_INVALID_STATE && (refused || doubtful))
      : refused || (doubtful && !is_true)
          ? status == KVC_E_INVALID_STATE || (query.size() == 0 && status == KVC_OK && !refused)
      : doubtful ? status == KVC_OK || status == KVC_E_INVALID_STATE
                 : status == KVC_OK;
  if (!right)
    mismatch("kvc_prefix_insert answered %s (%s)", kvc_status_name(status), last_error_.message);
  if (status != KVC_OK) return;
  sequence.is_told = true;
  sequence.known = query.size();
  sequence.had_gap = doubtful;
  note_published(seq);
  compare_published({seq}, copied);
  const bool no_quota = had_quota_.count(sequence.space.salt) == 0;
  const int64_t full = std::min(query.size(), written(sequence)) / setup_.block() * setup_.block();
  if (in_index < 0 || in_index > full || in_index % setup_.block() != 0 ||
      (setup_.sees_all() && no_quota && in_index != full))
    mismatch("of %lld tokens %lld are in the index", ll(query.size()), ll(in_index));
  compare_use(seq, false);
}

std::vector<int> PrefixRun::block_ends(const Query& query) {
  std::vector<int> ends;
  int history = histories_.root(epoch_, query.space.salt);
  for (int64_t t = 0; t < query.size() / setup_.block() * setup_.block(); ++t) {
    history =
        histories_.next(history, query.tokens[static_cast<size_t>(t)], query.space.keys_at(t));
    if ((t + 1) % setup_.block() == 0) ends.push_back(history);
  }
  return ends;
}

void PrefixRun::op_pin() {
  Query query = draw_query();
  query.flags = KVC_PREFIX_ALL_TOKENS | KVC_PREFIX_WHOLE_BLOCKS;
  const int64_t matched = match(query);
  int64_t pinned = -1;
  trace("pin %lld tokens", ll(query.size()));
  const kvc_prefix_query* asked = query.get();
  const kvc_status status = call("kvc_prefix_pin", [&](kvc_error* err) {
    return kvc_prefix_pin(setup_.cache(), asked, &pinned, err);
  });
  require_ok("kvc_prefix_pin", status);
  if (pinned < 0 || pinned > query.size() || pinned % setup_.block() != 0)
    mismatch("%lld of %lld tokens are pinned", ll(pinned), ll(query.size()));
  if (setup_.sees_all() && (setup_.has_host() ? pinned > matched : pinned != matched))
    mismatch("%lld tokens matched, %lld are pinned", ll(matched), ll(pinned));
  if (setup_.sees_all()) {
    const std::vector<int> ends = block_ends(query);
    for (size_t i = 0; i < static_cast<size_t>(pinned / setup_.block()); ++i) {
      ++pin_counts_[ends[i]];
      pin_parents_[ends[i]] = i == 0 ? -1 : ends[i - 1];
    }
  }
  if (pinned > 0) pins_.push_back(std::move(query));
}

void PrefixRun::op_unpin() {
  Query query = pins_.empty() || random_.chance(0.2) ? draw_query() : pins_.front();
  query.flags = 0;
  if (!pins_.empty()) pins_.pop_front();
  trace("unpin %lld tokens", ll(query.size()));
  int64_t unpinned = -1;
  const kvc_prefix_query* asked = query.get();
  const kvc_status status = call("kvc_prefix_unpin", [&](kvc_error* err) {
    return kvc_prefix_unpin(setup_.cache(), asked, &unpinned, err);
  });
  require_ok("kvc_prefix_unpin", status);
  if (!setup_.sees_all()) return;
  // A pin that ended at a block is undone there; those that end further on are not touched.
  const std::vector<int> ends = block_ends(query);
  size_t blocks = ends.size();
  const auto is_needed = [&](int end) {
    const auto own = pin_counts_.find(end);
    if (own == pin_counts_.end()) return true;
    int64_t beyond = 0;
    for (const auto& [other, count] : pin_counts_)
      beyond += pin_parents_.at(other) == end ? count : 0;
    return beyond >= own->second;
  };
  while (blocks > 0 && is_needed(ends[blocks - 1])) --blocks;
  for (size_t i = 0; i < blocks; ++i) {
    if (--pin_counts_.at(ends[i]) == 0) pin_counts_.erase(ends[i]);
  }
  const int64_t wanted = static_cast<int64_t>(blocks) * setup_.block();
  if (unpinned != wanted)
    mismatch("%lld tokens were pinned, %lld are unpinned", ll(wanted), ll(unpinned));
}

void PrefixRun::op_evict() {
  const kvc_stats before = stats();
  const int64_t pages = random_.chance(0.3) ? num_pages_ : random_.range(-1, 6);
  trace("evict %lld pages", ll(pages));
  int64_t freed = -1;
  const kvc_status status = call("kvc_prefix_evict", [&](kvc_error* err) {
    return kvc_prefix_evict(setup_.cache(), pages, &freed, err);
  });
  if (pages < 0) {
    if (status != KVC_E_OUT_OF_RANGE)
      mismatch("evicting %lld pages: %s", ll(pages), kvc_status_name(status));
    return;
  }
  require_ok("kvc_prefix_evict", status);
  const kvc_stats after = stats();
  if (freed < std::min(pages, before.pages_cached) || freed > before.pages_indexed ||
      after.pages_indexed != before.pages_indexed - freed || after.pages_used != before.pages_used)
    mismatch("evicting %lld of %lld evictable pages freed %lld and leaves %lld", ll(pages),
             ll(before.pages_cached), ll(freed), ll(after.pages_cached));
  for (Query& query : pins_) {
    int64_t pinned = 0;
    for (const int end : block_ends(query)) {
      if (pin_counts_.count(end) == 0) break;
      pinned += setup_.block();
    }
    if (match(query) < pinned) mismatch("a pinned block was evicted");
  }
}

void PrefixRun::op_reset() {
  trace("reset");
  require_ok("kvc_prefix_reset", call("kvc_prefix_reset", [&](kvc_error* err) {
               return kvc_prefix_reset(setup_.cache(), err);
             }));
  ++epoch_;
  published_.clear();
  pins_.clear();
  pin_counts_.clear();
  for (auto& [seq, sequence] : sequences_) {
    sequence.is_old = sequence.is_old || sequence.slots() > 0;
    sequence.is_doubtful = sequence.is_doubtful || sequence.is_old;
  }
  const kvc_stats after = stats();
  if (after.pages_indexed != 0 || after.prefix_blocks != 0 || after.pages_cached != 0)
    mismatch("after a reset %lld pages are cached, %lld blocks there", ll(after.pages_indexed),
             ll(after.prefix_blocks));
}

void PrefixRun::op_quota() {
  const std::string salt = random_.pick(spaces_).salt;
  const uint64_t block_bytes = setup_.info().page_bytes * 2 + setup_.info().state_slot_bytes;
  const uint64_t bytes =
      random_.chance(0.3) ? 0 : block_bytes * static_cast<uint64_t>(random_.range(1, 8));
  trace("quota of %llu bytes for a salt of %zu", bytes + 0ULL, salt.size());
  require_ok("kvc_prefix_quota_set", call("kvc_prefix_quota_set", [&](kvc_error* err) {
               return kvc_prefix_quota_set(setup_.cache(), salt.data(), salt.size(), bytes, err);
             }));
  had_quota_.insert(salt);
  // What is in use may exceed it; nothing may be added then.
  quotas_[salt] = {bytes, setup_.info().page_bytes * static_cast<uint64_t>(num_pages_) +
                              setup_.info().state_slot_bytes * 10000};
}

void PrefixRun::op_events() {
  if (setup_.config().event_capacity == 0) {
    kvc_event event{};
    event.struct_size = sizeof event;
    size_t count = 1;
    uint64_t number = 0;
    const kvc_status polled = kvc_events_poll(setup_.cache(), &event, &count, nullptr);
    const kvc_status listed =
        kvc_events_snapshot(setup_.cache(), nullptr, &count, &number, nullptr);
    if (polled != KVC_E_UNSUPPORTED || (listed != KVC_E_UNSUPPORTED && listed != KVC_OK))
      mismatch("without events: %s, %s", kvc_status_name(polled), kvc_status_name(listed));
    return;
  }
  trace("poll events");
  consumer_.poll(setup_.cache(), random_, blocks_, random_.chance(0.5));
}

// Calls that are wrong in one way.
void PrefixRun::op_refused() {
  trace("refused calls");
  int64_t number = -1;
  const auto refuse = [&](const char* function, kvc_status wanted, const Call& fn) {
    const kvc_status status = call(function, fn);
    if (status != wanted)
      mismatch("%s answered %s, not %s", function, kvc_status_name(status),
               kvc_status_name(wanted));
    if (number != -1) mismatch("a refused %s wrote its result", function);
  };
  Query query = draw_query();
  kvc_prefix_query bad = *query.get();
  bad.num_tokens = -1;
  refuse("kvc_prefix_match", KVC_E_OUT_OF_RANGE,
         [&](kvc_error* err) { return kvc_prefix_match(setup_.cache(), &bad, &number, err); });
  const kvc_prefix_query* asked = query.get();
  bad = *asked;
  bad.priority = 101;
  refuse("kvc_prefix_pin", KVC_E_OUT_OF_RANGE,
         [&](kvc_error* err) { return kvc_prefix_pin(setup_.cache(), &bad, &number, err); });
  if (forward_ == nullptr) return;
  kvc_seq free = 0;
  while (sequences_.count(free) != 0) ++free;
  refuse("kvc_prefix_attach", KVC_E_BUSY, [&](kvc_error* err) {
    return kvc_prefix_attach(setup_.cache(), free, asked, &number, err);
  });
  const kvc_seq seq = entries_.front().seq;
  Query own = query_of(sequences_.at(seq), sequences_.at(seq).length());
  const kvc_prefix_query* owned = own.get();
  refuse("kvc_prefix_insert", KVC_E_BUSY, [&](kvc_error* err) {
    return kvc_prefix_insert(setup_.cache(), seq, owned, &number, err);
  });
  refuse("kvc_prefix_reset", KVC_E_BUSY,
         [&](kvc_error* err) { return kvc_prefix_reset(setup_.cache(), err); });
}

}  // namespace kvc::test
