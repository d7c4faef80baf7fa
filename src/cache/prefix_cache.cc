#include "src/cache/prefix_cache.h"

#include <algorithm>
#include <cstring>
#include <new>
#include <optional>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/cache/cache_core.h"
#include "src/cache/tier_blocks.h"

namespace kvc {
namespace {

int64_t most_tokens(const PrefixQuery& query) {
  const bool all = (query.flags & KVC_PREFIX_ALL_TOKENS) != 0;
  return all ? query.num_tokens : std::max<int64_t>(0, query.num_tokens - 1);
}

// Without ids nothing is known of the tokens inside a block.
bool wants_whole_blocks(const PrefixQuery& query) {
  return (query.flags & KVC_PREFIX_WHOLE_BLOCKS) != 0 || query.tokens == nullptr;
}

// The history of a sequence whose first `num_tokens` tokens are the query's. `history` is an old
// one, whose memory is used again.
TokenHistory history_of(const PrefixQuery& query, KeyChain& chain, int64_t num_tokens,
                        TokenHistory history) {
  history = {
      .root = {}, .extra = {}, .keys = std::move(history.keys), .ids = std::move(history.ids)};
  history.root = query.root;
  if (!query.extra.empty())
    history.extra = std::make_shared<const std::vector<ExtraKey>>(query.extra);
  history.priority = query.priority;
  const int64_t num_blocks = num_tokens / chain.block_tokens();
  const int64_t num_given = history.num_given = std::min(num_blocks, query.num_keys);
  history.keys.clear();
  history.keys.reserve(chain.num_blocks());
  history.keys.assign(query.keys, query.keys + num_given);
  for (int64_t block = num_given; block < num_blocks; ++block)
    history.keys.push_back(chain.key(block));
  history.ids.clear();
  if (query.tokens != nullptr) {
    history.ids.reserve(query.num_tokens);
    history.ids.assign(query.tokens, query.tokens + num_tokens);
    history.num_known = num_tokens;
  } else {
    history.ids_begin = history.num_known = num_blocks * chain.block_tokens();
  }
  return history;
}

}  // namespace

int32_t PrefixCache::block_tokens() const { return core_.index.block_tokens(); }

// The longest hit that can be had now, and what has to come back from the host for it.
struct PrefixCache::AttachPlan {
  PrefixMatch match;
  std::vector<BlockPage> on_host;
};

// Throws std::bad_alloc.
PrefixCache::AttachPlan PrefixCache::plan_attach(KeyChain& chain, bool whole_blocks) const {
  const int64_t most = most_tokens(chain.query());
  AttachPlan plan;
  std::vector<BlockPage> fetchable;
  for (HostPages counted{.all = true, .some = nullptr};;
       counted = {.all = false, .some = &fetchable}) {
    plan.match = core_.index.match(chain, most, whole_blocks, counted);
    core_.publisher.list_host_places(plan.match, &plan.on_host);
    if (plan.on_host.empty()) return plan;
    // From the first block on, so that what fits is of use.
    std::sort(plan.on_host.begin(), plan.on_host.end(),
              [&nodes = core_.index.blocks().nodes](const BlockPage& a, const BlockPage& b) {
                const int32_t depth_a = nodes[a.node].depth, depth_b = nodes[b.node].depth;
                return depth_a != depth_b ? depth_a < depth_b : a.index < b.index;
              });
    const int64_t room = core_.index.eviction().num_fetchable(plan.match.deepest());
    if (static_cast<int64_t>(plan.on_host.size()) <= room) return plan;
    // A shorter hit locks other blocks, so that room is asked for again: with fewer pages each
    // time.
    fetchable.assign(plan.on_host.begin(), plan.on_host.begin() + room);
    std::sort(fetchable.begin(), fetchable.end());
  }
}

int64_t PrefixCache::match(const PrefixQuery& query) const {
  core_.require_prefix_index("a prefix query");
  KeyChain chain(query, core_.index.block_tokens());
  AttachPlan plan = plan_attach(chain, wants_whole_blocks(query));
  if (core_.tiers.empty()) return plan.match.num_tokens;
  const TierRun run = find_run(chain, &plan);
  return run.empty() ? plan.match.num_tokens : run.end * core_.index.block_tokens();
}

// What the tiers, of which there is at least one, add to the hit; empty: nothing. The plan then
// ends where the run begins.
TierRun PrefixCache::find_run(KeyChain& chain, AttachPlan* plan) const {
  const int64_t most = most_tokens(chain.query()) / core_.index.block_tokens();
  if (plan->match.num_blocks >= most) return {};
  AttachPlan whole;
  if (plan->match.tail != kNoNode) whole = plan_attach(chain, true);
  const AttachPlan& local = plan->match.tail != kNoNode ? whole : *plan;
  // A state that the sequence refers to from now on makes no room for another one.
  const NodeId last = local.match.last;
  const StateSlot held = last == kNoNode ? kInitialState : core_.index.blocks().nodes[last].state;
  const bool is_cached = held != kInitialState && core_.states.refs(held) == 0;
  if (core_.states.is_used() && core_.states.missing(is_cached ? 2 : 1) != 0) return {};
  const int64_t room = core_.index.eviction().num_fetchable(local.match.deepest()) -
                       static_cast<int64_t>(local.on_host.size());
  TierRun run = core_.tiers.find(chain, local.match.num_blocks, most, room);
  if (run.end * core_.index.block_tokens() <= plan->match.num_tokens) return {};
  if (plan->match.tail != kNoNode) *plan = std::move(whole);
  return run;
}

// Brings the plan's pages back to the device and returns what then hits there: what the plan says.
PrefixMatch PrefixCache::fetch_match(KeyChain& chain, const AttachPlan& plan) noexcept {
  const NodeId deepest = plan.match.deepest();
  core_.index.lock(deepest);
  core_.index.eviction().evict_for(static_cast<int64_t>(plan.on_host.size()), kOwnStream);
  bool is_fetched = true;
  for (const BlockPage& place : plan.on_host) {
    is_fetched = core_.allocator.num_free() > 0;
    if (!is_fetched) break;
    const PageId page = core_.allocator.take(kNoPage, 0);
    core_.host_tier.promote(core_.index.blocks().nodes.place(place.node, place.index).host, page,
                            kOwnStream);
    core_.index.promoted(place.node, place.index, page, kOwnStream);
    core_.allocator.drop_ref(page);  // Cached until the sequence refers to it.
    // A quota may have left no room for it.
    is_fetched = core_.index.blocks().nodes.place(place.node, place.index).device == page;
    if (!is_fetched) break;
  }
  core_.index.unlock(deepest);
  if (is_fetched) return plan.match;
  try {
    const PrefixQuery& query = chain.query();
    return core_.index.match(chain, most_tokens(query), wants_whole_blocks(query), {});
  } catch (const std::bad_alloc&) {
    return {};  // No hit is a correct answer, if not the best one.
  }
}

int64_t PrefixCache::attach(kvc_seq id, const PrefixQuery& query) {
  core_.require_prefix_index("kvc_prefix_attach");
  core_.sequences.check_new_id(id, "seq");
  core_.require_closed("attach");
  KeyChain chain(query, core_.index.block_tokens());
  AttachPlan plan = plan_attach(chain, wants_whole_blocks(query));
  std::optional<TierRun> run;
  if (!core_.tiers.empty()) run = find_run(chain, &plan);
  if (run.has_value() && run->empty()) run.reset();
  PrefixMatch match = plan.match;
  std::unique_ptr<Sequence> made = core_.sequences.make(id);
  made->history = history_of(query, chain, match.num_tokens, core_.spare_histories.take());
  const int64_t most = run.has_value() ? run->end * core_.index.block_tokens() : match.num_tokens;
  core_.publisher.reserve(most, made.get());
  // A pool that has grown has pages that the index never saw.
  if (!plan.on_host.empty()) core_.index.reserve(0);
  std::optional<TierFetch> fetch;
  if (run.has_value()) fetch.emplace(core_, std::move(*run), history_of(query, chain, most, {}));
  // Nothing throws from here on.
  core_.index.read_clock();
  if (!plan.on_host.empty()) match = fetch_match(chain, plan);
  made->history.cut(match.num_tokens, core_.index.block_tokens());
  made->history.num_published = match.num_blocks;
  core_.publisher.fill(match, made.get());
  Sequence& sequence = core_.sequences.adopt(std::move(made));
  // A block that hits in part ages on: under windows, renewing it keeps pages that whole blocks
  // would use better.
  if (match.last != kNoNode) core_.index.touch(match.last, true, query.priority);
  if (fetch.has_value() && match.num_tokens == plan.match.num_tokens) fetch->append_to(sequence);
  core_.index.metrics().count_lookup(query.num_tokens, sequence.length);
  core_.note_pages_used();
  return sequence.length;
}

int64_t PrefixCache::insert(kvc_seq id, const PrefixQuery& query) {
  core_.require_prefix_index("kvc_prefix_insert");
  Sequence& sequence = core_.sequences.get_settled(id, "publish");
  core_.require_closed("publish");
  if (query.num_tokens > sequence.length) {
    fail_with(KVC_E_OUT_OF_RANGE, query.num_tokens,
              "query->num_tokens = %lld: sequence %lld has %lld tokens", ll(query.num_tokens),
              ll(id), ll(sequence.length));
  }
  if (sequence.history.has_diverged || sequence.window != 0 || !sequence.segments.empty()) {
    fail_with(KVC_E_INVALID_STATE, id,
              "cannot publish sequence %lld of %lld tokens: its rows were moved, overwritten, "
              "computed under a window of its own, or are older than the last reset",
              ll(id), ll(sequence.length));
  }
  KeyChain chain(query, core_.index.block_tokens());
  TokenHistory history = history_of(query, chain, query.num_tokens, core_.spare_histories.take());
  // What the sequence has published under the same keys need not be looked at again, unless its
  // checkpoints may complete blocks.
  const TokenHistory& before = sequence.history;
  const bool skips = !before.is_closed && !core_.states.is_used() && before.root == history.root;
  const int64_t most =
      skips ? std::min<int64_t>(before.num_published, static_cast<int64_t>(history.keys.size()))
            : 0;
  while (history.num_published < most &&
         history.keys[history.num_published] == before.keys[history.num_published])
    ++history.num_published;
  const auto num_blocks = static_cast<int64_t>(history.keys.size());
  core_.index.reserve(num_blocks - history.num_published, query.tokens != nullptr);
  std::swap(sequence.history, history);
  core_.sequences.count_bytes(sequence);
  core_.spare_histories.keep(history);
  core_.publisher.publish(sequence, kOwnStream);
  const int64_t published = sequence.history.num_published;
  const bool is_there =
      published > 0 && core_.index.blocks().find(sequence.history.root,
                                                 sequence.history.keys[published - 1]) != kNoNode;
  return is_there ? published * core_.index.block_tokens() : 0;
}

int64_t PrefixCache::pin(const PrefixQuery& query) {
  core_.require_prefix_index("kvc_prefix_pin");
  KeyChain chain(query, core_.index.block_tokens());
  const NodeId node = core_.index.blocks().find_deepest(chain);
  return node == kNoNode ? 0 : core_.index.pin(node) * core_.index.block_tokens();
}

int64_t PrefixCache::unpin(const PrefixQuery& query) {
  core_.require_prefix_index("kvc_prefix_unpin");
  KeyChain chain(query, core_.index.block_tokens());
  const NodeId node = core_.index.blocks().find_deepest(chain);
  return node == kNoNode ? 0 : core_.index.unpin(node) * core_.index.block_tokens();
}

int64_t PrefixCache::evict(int64_t pages) {
  if (pages < 0)
    fail_with(KVC_E_OUT_OF_RANGE, pages, "pages = %lld out of range: at least 0", ll(pages));
  return core_.index.eviction().evict(pages, kOwnStream);
}

void PrefixCache::reset() {
  core_.require_closed("reset the prefix index");
  core_.tiers.detach_all();  // They hold blocks of the old weights.
  core_.index.reset();
  core_.sequences.for_each([](Sequence& sequence) {
    if (sequence.length != 0 || !sequence.tree.empty()) sequence.history.diverge();
  });
}

void PrefixCache::set_quota(const BlockKey& root, uint64_t max_bytes) {
  core_.index.set_quota(root, max_bytes, kOwnStream);
}

void PrefixEvents::require_used() const {
  if (!core_.index.events().log().is_used())
    fail(KVC_E_UNSUPPORTED,
         "config.event_capacity = 0: this cache makes no events, expected at least 1");
}

uint64_t PrefixEvents::num_made() const { return core_.index.events().log().num_made(); }

bool PrefixEvents::poll(kvc_event* out) {
  Event event;
  uint64_t number = 0;
  if (!core_.index.events().log().poll(&event, &number)) return false;
  *out = describe(event, number);
  return true;
}

std::vector<Event> PrefixEvents::snapshot() const { return core_.index.events().snapshot(); }

kvc_event PrefixEvents::describe(const Event& event, uint64_t number) const {
  kvc_event out{};
  out.struct_size = sizeof out;
  out.number = number;
  out.type = event.type;
  out.tier = event.tier;
  out.from_tier = event.from_tier;
  out.group = event.group;
  out.num_tokens = event.type == KVC_EVENT_CLEARED ? 0 : core_.index.block_tokens();
  if (event.type == KVC_EVENT_STORED)
    out.tokens = core_.index.blocks().tokens(event.node, event.node_birth);
  std::memcpy(out.hash, event.key.bytes.data(), sizeof out.hash);
  std::memcpy(out.parent, event.parent.bytes.data(), sizeof out.parent);
  return out;
}

}  // namespace kvc
