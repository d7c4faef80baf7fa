// The prefix index as sequences use it: attach, publish, pins, resets.
#include <algorithm>
#include <new>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/cache/cache.h"

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

// What is known of a sequence whose first `num_tokens` tokens are the query's.
// `history`: an old one, whose memory is used again.
TokenHistory history_of(const PrefixQuery& query, KeyChain& chain, int64_t num_tokens,
                        TokenHistory history) {
  history = {
      .root = {}, .extra = {}, .keys = std::move(history.keys), .ids = std::move(history.ids)};
  history.root = query.root;
  if (!query.extra.empty())
    history.extra = std::make_shared<const std::vector<ExtraKey>>(query.extra);
  history.priority = query.priority;
  const int64_t num_blocks = num_tokens / chain.block_tokens();
  const int64_t num_given = std::min(num_blocks, query.num_keys);
  history.keys.clear();
  history.keys.reserve(static_cast<size_t>(chain.num_blocks()));
  history.keys.assign(query.keys, query.keys + num_given);
  for (int64_t block = num_given; block < num_blocks; ++block)
    history.keys.push_back(chain.key(block));
  history.ids.clear();
  if (query.tokens != nullptr) {
    history.ids.reserve(static_cast<size_t>(query.num_tokens));
    history.ids.assign(query.tokens, query.tokens + num_tokens);
    history.num_known = num_tokens;
  } else {
    history.ids_begin = history.num_known = num_blocks * chain.block_tokens();
  }
  return history;
}

}  // namespace

void Cache::require_prefix_index(const char* what) const {
  if (spec().has_cross()) {
    fail_with(KVC_E_UNSUPPORTED, KVC_LAYER_CROSS,
              "%s with a layer of kind CROSS (%d) is not supported: encoder tokens are not part of "
              "the key",
              what, KVC_LAYER_CROSS);
  }
}

void Cache::require_closed(const char* what) const {
  if (forward_.is_open())
    fail(KVC_E_BUSY, "cannot %s: a forward over %zu sequences is open", what,
         forward_.batch().entries().size());
}

// The longest hit that can be had now, and what has to come back from the host for it.
struct Cache::AttachPlan {
  PrefixMatch match;
  std::vector<BlockPage> on_host;

  NodeId deepest() const { return match.tail != kNoNode ? match.tail : match.last; }
};

// Throws std::bad_alloc.
Cache::AttachPlan Cache::plan_attach(KeyChain& chain) const {
  const int64_t most = most_tokens(chain.query());
  const bool whole_blocks = wants_whole_blocks(chain.query());
  AttachPlan plan;
  std::vector<BlockPage> fetchable;
  for (HostPages counted{.all = true, .some = nullptr};;
       counted = {.all = false, .some = &fetchable}) {
    plan.match = index_.match(chain, most, whole_blocks, counted);
    publisher_.list_host_places(plan.match, &plan.on_host);
    if (plan.on_host.empty()) return plan;
    // From the first block on, so that what fits is of use.
    std::sort(plan.on_host.begin(), plan.on_host.end(),
              [this](const BlockPage& a, const BlockPage& b) {
                const int32_t depth_a = index_.blocks().nodes[a.node].depth,
                              depth_b = index_.blocks().nodes[b.node].depth;
                return depth_a != depth_b ? depth_a < depth_b : a.index < b.index;
              });
    const int64_t room = index_.eviction().num_fetchable(plan.deepest());
    if (static_cast<int64_t>(plan.on_host.size()) <= room) return plan;
    // A shorter hit locks other blocks, so that room is asked for again: with fewer pages each
    // time.
    fetchable.assign(plan.on_host.begin(), plan.on_host.begin() + room);
    std::sort(fetchable.begin(), fetchable.end());
  }
}

int64_t Cache::prefix_match(const PrefixQuery& query) const {
  require_prefix_index("a prefix query");
  KeyChain chain(query, index_.block_tokens());
  return plan_attach(chain).match.num_tokens;
}

// Brings the plan's pages back to the device and returns what then hits there: what the plan says.
PrefixMatch Cache::fetch_match(KeyChain& chain, const AttachPlan& plan) noexcept {
  const NodeId deepest = plan.deepest();
  index_.lock(deepest);
  index_.eviction().evict_for(static_cast<int64_t>(plan.on_host.size()));
  bool is_fetched = true;
  for (const BlockPage& place : plan.on_host) {
    is_fetched = allocator_.num_free() > 0;
    if (!is_fetched) break;
    const PageId page = allocator_.take(kNoPage, 0);
    host_tier_.promote(index_.blocks().nodes.place(place.node, place.index).host, page);
    index_.promoted(place.node, place.index, page);
    allocator_.drop_ref(page);  // Cached until the sequence refers to it.
    is_fetched = index_.blocks().nodes.place(place.node, place.index).device ==
                 page;  // a quota may leave no room
    if (!is_fetched) break;
  }
  index_.unlock(deepest);
  if (is_fetched) return plan.match;
  try {
    const PrefixQuery& query = chain.query();
    return index_.match(chain, most_tokens(query), wants_whole_blocks(query), {});
  } catch (const std::bad_alloc&) {
    return {};  // nothing hits: right, if not the best
  }
}

int64_t Cache::prefix_attach(kvc_seq id, const PrefixQuery& query) {
  require_prefix_index("kvc_prefix_attach");
  sequences_.check_new_id(id, "seq");
  require_closed("attach");
  KeyChain chain(query, index_.block_tokens());
  const AttachPlan plan = plan_attach(chain);
  PrefixMatch match = plan.match;
  std::unique_ptr<Sequence> sequence = sequences_.make(id);
  sequence->history = history_of(query, chain, match.num_tokens, take_memory());
  publisher_.reserve(match, sequence.get());
  // A pool that has grown has pages that the index never saw
  if (!plan.on_host.empty()) index_.reserve(0);
  // Nothing throws from here on.
  index_.read_clock();
  if (!plan.on_host.empty()) match = fetch_match(chain, plan);
  sequence->history.cut(match.num_tokens, index_.block_tokens());
  sequence->history.num_published = match.num_blocks;
  publisher_.fill(match, sequence.get());
  sequences_.adopt(std::move(sequence));
  const NodeId deepest = match.tail != kNoNode ? match.tail : match.last;
  if (deepest != kNoNode) index_.touch(deepest, true, query.priority);
  index_.metrics().count_lookup(query.num_tokens, match.num_tokens);
  note_pages_used();
  return match.num_tokens;
}

int64_t Cache::prefix_insert(kvc_seq id, const PrefixQuery& query) {
  require_prefix_index("kvc_prefix_insert");
  Sequence& sequence = sequences_.get_settled(id, "publish");
  require_closed("publish");
  if (query.num_tokens > sequence.length) {
    fail_with(KVC_E_OUT_OF_RANGE, query.num_tokens,
              "query->num_tokens = %lld: sequence %lld has %lld tokens", ll(query.num_tokens),
              ll(id), ll(sequence.length));
  }
  if (sequence.history.has_diverged || sequence.window != 0 || !sequence.segments.empty()) {
    fail_with(KVC_E_INVALID_STATE, id,
              "cannot publish sequence %lld of %lld tokens: its rows were moved, overwritten, "
              "computed under a "
              "window of its own, or are older than the last reset",
              ll(id), ll(sequence.length));
  }
  KeyChain chain(query, index_.block_tokens());
  TokenHistory history = history_of(query, chain, query.num_tokens, take_memory());
  // What the sequence has published under the same keys need not be looked at again.
  const TokenHistory& before = sequence.history;
  // (Its checkpoints may complete blocks.)
  const bool skips = !before.is_closed && !states_.is_used() && before.root == history.root;
  const int64_t most =
      skips ? std::min<int64_t>(before.num_published, static_cast<int64_t>(history.keys.size()))
            : 0;
  while (history.num_published < most &&
         history.keys[static_cast<size_t>(history.num_published)] ==
             before.keys[static_cast<size_t>(history.num_published)])
    ++history.num_published;
  const auto num_blocks = static_cast<int64_t>(history.keys.size());
  index_.reserve(num_blocks - history.num_published, query.tokens != nullptr);
  std::swap(sequence.history, history);
  keep_memory(history);
  publisher_.publish(sequence);
  const int64_t published = sequence.history.num_published;
  const bool is_there =
      published > 0 &&
      index_.blocks().find(sequence.history.root,
                           sequence.history.keys[static_cast<size_t>(published - 1)]) != kNoNode;
  return is_there ? published * index_.block_tokens() : 0;
}

int64_t Cache::prefix_pin(const PrefixQuery& query) {
  require_prefix_index("kvc_prefix_pin");
  KeyChain chain(query, index_.block_tokens());
  const NodeId node = index_.blocks().find_deepest(chain);
  return node == kNoNode ? 0 : index_.pin(node) * index_.block_tokens();
}

int64_t Cache::prefix_unpin(const PrefixQuery& query) {
  require_prefix_index("kvc_prefix_unpin");
  KeyChain chain(query, index_.block_tokens());
  const NodeId node = index_.blocks().find_deepest(chain);
  return node == kNoNode ? 0 : index_.unpin(node) * index_.block_tokens();
}

int64_t Cache::prefix_evict(int64_t pages) {
  if (pages < 0)
    fail_with(KVC_E_OUT_OF_RANGE, pages, "pages = %lld out of range: at least 0", ll(pages));
  return index_.eviction().evict(pages);
}

void Cache::prefix_reset() {
  require_closed("reset the prefix index");
  index_.reset();
  sequences_.for_each([](Sequence& sequence) {
    if (sequence.length != 0 || !sequence.tree.empty()) sequence.history.diverge();
  });
}

// Tokens and keys of a long prompt are hundreds of kilobytes, which the system hands out page by
// page: the next prompt writes over them.
void Cache::keep_memory(TokenHistory& history) noexcept {
  for (TokenHistory& spare : spare_histories_) {
    if (history.keys.capacity() > spare.keys.capacity()) std::swap(history.keys, spare.keys);
    if (history.ids.capacity() > spare.ids.capacity()) std::swap(history.ids, spare.ids);
  }
}

// The larger one.
TokenHistory Cache::take_memory() noexcept {
  std::swap(spare_histories_[0], spare_histories_[1]);
  return std::move(spare_histories_[1]);
}

void Cache::checkpoint(kvc_seq id) {
  Sequence& sequence = sequences_.get_idle(id, "take a checkpoint of");
  check_on_device(sequence, "take a checkpoint of");
  const int64_t num_blocks =
      sequence.is_swapped || spec().has_cross() ? 0 : publisher_.num_to_reach(sequence);
  if (num_blocks != 0)
    index_.reserve(num_blocks + forward_.batch().num_new_blocks(), !sequence.history.ids.empty());
  sequences_.checkpoints().take(sequence);
  // Nothing throws from here on.
  if (num_blocks != 0) publisher_.publish_state(sequence);
}

void Cache::remove(kvc_seq id) {
  Sequence& sequence = sequences_.get_idle(id, "remove");
  if (!sequence.is_swapped) publisher_.release(sequence);
  if (sequence.is_swapped) --num_swapped_;
  keep_memory(sequence.history);
  sequences_.remove(id);
}

}  // namespace kvc
