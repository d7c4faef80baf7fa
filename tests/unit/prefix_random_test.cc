// Random sequences over models of every kind: what a hit is, against its definition; what every
// page holds; what events say. KVC_TEST_SCALE multiplies the operations, KVC_TEST_SEED runs that
// seed alone.
#include <algorithm>
#include <array>
#include <map>
#include <set>

#include "tests/support/environment.h"
#include "tests/unit/prefix_support.h"

namespace kvc {
namespace {

using test::environment;
using test::GroupShape;
using test::Label;
using test::label_of;
using test::Prompt;

struct Model {
  const char* name;
  std::vector<GroupShape> groups;
  bool has_states;
  int64_t num_pages;
  int64_t host_pages;
  int64_t state_slots;
};

const std::vector<Model>& models() {
  static const std::vector<Model> all = {
      {"full", {{}}, false, 40, 0, 0},
      {"full with a host", {{}}, false, 30, 40, 0},
      {"two page sizes", {{0, 0, 4}, {0, 0, 8}}, false, 70, 20, 0},
      {"full and window", {{0, 0, 4}, {9, 0, 4}}, false, 60, 0, 0},
      {"full and window with a host", {{0, 0, 8}, {7, 0, 4}}, false, 60, 30, 0},
      {"window alone", {{10, 0, 4}}, false, 30, 8, 0},
      {"full, window and chunk", {{0, 0, 4}, {6, 0, 2}, {0, 12, 4}}, false, 110, 30, 0},
      {"full and states", {{}}, true, 40, 0, 9},
      {"full, window and states", {{0, 0, 4}, {9, 0, 2}}, true, 80, 25, 7},
      {"states alone", {}, true, 4, 0, 8},
  };
  return all;
}

// A block that somebody computed once, with what the index cannot tell about it.
struct Known {
  std::vector<int32_t> tokens;
  std::vector<std::pair<int64_t, std::string>> extra;  // offset in the block, data
};

struct ModelSequence {
  std::unique_ptr<Prompt> prompt;
  std::vector<std::vector<PageId>> pages;  // [block][page]; kNoPage: dropped
  std::vector<StateSlot> states;           // [block]
};

class RandomIndex {
 public:
  RandomIndex(uint64_t seed, const Model& model)
      : random_(seed),
        model_(model),
        world_(test::prefix_spec(model.groups, model.has_states, model.state_slots),
               model.num_pages, model.host_pages, 1 << 14) {
    shares_host_ = random_.chance(0.3);
  }

  void run(int64_t operations) {
    for (int64_t i = 0; i < operations && !testing::Test::HasFatalFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "operation " << i);
      if (shares_host_ && random_.chance(0.1))
        world_.occupy_host(random_.range(0, model_.host_pages));
      step();
      if (testing::Test::HasFatalFailure()) return;
      verify(i % 8 == 0);
    }
    while (!sequences_.empty()) release(0);
    for (const BlockKey& root : roots()) index().set_quota(root, 0, kOwnStream);
    index().eviction().evict_for(world_.allocator.num_pages(), kOwnStream);
    if (pinned_.empty()) {
      EXPECT_EQ(world_.allocator.num_free(), world_.allocator.num_pages()) << "all can be evicted";
    }
    index().reset();
    pinned_.clear();
    verify(true);
    EXPECT_EQ(world_.num_host_pages(), 0);
    EXPECT_EQ(world_.allocator.num_used(), 0);
    EXPECT_EQ(world_.states.num_used() + world_.states.num_cached(), 0);
  }

 private:
  static constexpr std::array<const char*, 3> kSalts = {"", "a", "b"};

  PrefixIndex& index() { return world_.index; }
  int32_t block() const { return world_.block(); }
  const std::vector<GroupSpec>& groups() const { return world_.plan->spec().groups; }
  static std::vector<BlockKey> roots() {
    std::vector<BlockKey> all;
    for (const char* salt : kSalts) all.push_back(namespace_root(salt, std::strlen(salt)));
    return all;
  }

  // In whichever namespace it is: here no two have the same keys.
  NodeId find_anywhere(const BlockKey& key) {
    NodeId found = kNoNode;
    for (const BlockKey& root : roots()) {
      const NodeId node = index().blocks().find(root, key);
      if (node != kNoNode) found = node;
    }
    return found;
  }

  // Prompts that share beginnings of blocks: variants of a block differ from some token on.
  std::unique_ptr<Prompt> any_prompt() {
    std::vector<int32_t> tokens;
    for (int64_t b = random_.range(1, 6); b > 0; --b) {
      const auto variant = static_cast<int32_t>(random_.range(0, 2));
      for (int32_t i = 0; i < block(); ++i)
        tokens.push_back(i < 3 * variant ? i : 100 * variant + i);
    }
    tokens.resize(tokens.size() - static_cast<size_t>(random_.range(0, block() - 1)));
    auto prompt = std::make_unique<Prompt>(
        std::move(tokens), block(), random_.pick_of({kSalts[0], kSalts[0], kSalts[1], kSalts[2]}));
    if (random_.chance(0.4)) {
      prompt->query.extra.push_back({KVC_PREFIX_KEY_MEDIA,
                                     random_.range(0, prompt->query.num_tokens - 1),
                                     random_.chance(0.7) ? "m" : "n"});
      prompt->renew();
    }
    return prompt;
  }

  // ------------------------------------------------------------------------------------------- the
  // definition of a hit

  bool is_present(NodeId node, int32_t page, bool host) {
    const PagePlace place = index().blocks().nodes.place(node, page);
    return place.device != kNoPage || (host && place.host != kNoPage);
  }
  // Every page of group g that holds one of the tokens [begin, end) is there; `path` has the nodes
  // of the blocks.
  bool has_tokens(const std::vector<NodeId>& path, size_t g, int64_t begin, int64_t end,
                  bool host) {
    const int32_t size = groups()[g].page_size;
    for (int64_t page = begin / size; page * size < end; ++page) {
      const int64_t b = page * size / block();
      const auto inside = static_cast<int32_t>(page - b * block() / size);
      if (!is_present(path[static_cast<size_t>(b)],
                      index().blocks().shape.groups[g].first_page + inside, host))
        return false;
    }
    return true;
  }
  bool serves(const std::vector<NodeId>& path, int64_t position, bool host) {
    for (size_t g = 0; g < groups().size(); ++g) {
      int64_t begin = 0;
      if (groups()[g].window != 0) begin = std::max<int64_t>(0, position - groups()[g].window + 1);
      if (groups()[g].chunk != 0) begin = position / groups()[g].chunk * groups()[g].chunk;
      if (begin < position && !has_tokens(path, g, begin, position, host)) return false;
    }
    return true;
  }

  int64_t naive_match(Prompt& prompt, int64_t max_tokens, bool whole, bool host) {
    const int64_t limit = std::min(max_tokens, prompt.query.num_tokens);
    std::vector<NodeId> path, best;
    for (int64_t b = 0; b < limit / block(); ++b) {
      const NodeId node = index().blocks().find(prompt.query.root, prompt.chain->key(b));
      if (node == kNoNode) break;
      path.push_back(node);
      const bool has_state =
          !model_.has_states || index().blocks().nodes[node].state != kInitialState;
      if (has_state && serves(path, (b + 1) * block(), host)) best = path;
    }
    const auto blocks = static_cast<int64_t>(best.size());
    int64_t hit = blocks * block();
    if (whole || model_.has_states) return hit;
    const BlockKey parent = blocks == 0 ? prompt.query.root : prompt.chain->key(blocks - 1);
    for (const auto& [key, known] : children_[parent.bytes]) {
      const NodeId node = index().blocks().find(prompt.query.root, BlockKey{key});
      if (node == kNoNode) continue;
      int64_t common = common_tokens(prompt, blocks, known,
                                     std::min<int64_t>(block() - 1, limit - blocks * block()));
      best.push_back(node);
      while (common > 0 && !serves(best, blocks * block() + common, host)) --common;
      best.pop_back();
      hit = std::max(hit, blocks * block() + common);
    }
    return hit;
  }

  int64_t common_tokens(const Prompt& prompt, int64_t b, const Known& known, int64_t limit) {
    std::vector<std::pair<int64_t, std::string>> extra;
    for (const ExtraKey& key : prompt.query.extra) {
      const int64_t offset = key.offset - b * block();
      if (offset >= 0 && offset < block()) extra.emplace_back(offset, key.data);
    }
    if (known.extra != extra) {
      if (!known.extra.empty()) limit = std::min(limit, known.extra[0].first);
      if (!extra.empty()) limit = std::min(limit, extra[0].first);
    }
    int64_t common = 0;
    while (common < limit && known.tokens[static_cast<size_t>(common)] ==
                                 prompt.tokens[static_cast<size_t>(b * block() + common)]) {
      ++common;
    }
    return common;
  }

  PrefixMatch match(Prompt& prompt, int64_t max_tokens, bool whole, bool host) {
    const PrefixMatch found = prompt.match(index(), max_tokens, whole, host);
    EXPECT_EQ(found.num_tokens, naive_match(prompt, max_tokens, whole, host));
    EXPECT_EQ(found.num_tokens, found.num_blocks * block() + found.tail_tokens);
    EXPECT_EQ(found.tail == kNoNode, found.tail_tokens == 0);
    NodeId node = found.last;
    for (int64_t b = found.num_blocks; b-- > 0; node = index().blocks().nodes[node].parent) {
      EXPECT_EQ(index().blocks().nodes[node].key, prompt.chain->key(b));
      EXPECT_EQ(index().blocks().nodes[node].depth, b + 1);
    }
    return found;
  }

  // ----------------------------------------------------------------------------------------------
  // what sequences do

  void hold(PageId page) { world_.allocator.add_ref(page); }

  // Starts a sequence on the longest hit and computes the rest.
  void start() {
    ModelSequence sequence;
    sequence.prompt = any_prompt();
    Prompt& prompt = *sequence.prompt;
    const PrefixMatch hit = match(prompt, prompt.query.num_tokens, true, model_.host_pages != 0);
    if (testing::Test::HasNonfatalFailure()) return;
    if (hit.last != kNoNode) {
      index().touch(hit.last, true, static_cast<int32_t>(random_.range(0, 2)));
      index().lock(hit.last);
      std::vector<NodeId> path;
      for (NodeId node = hit.last; node != kNoNode; node = index().blocks().nodes[node].parent)
        path.push_back(node);
      std::reverse(path.begin(), path.end());
      bool is_complete = true;
      for (const NodeId node : path)
        is_complete = attach(node, &sequence, hit.num_tokens, is_complete) && is_complete;
      index().unlock(hit.last);
      if (!is_complete) {
        sequences_.push_back(std::move(sequence));
        return release(sequences_.size() - 1);
      }
    }
    sequences_.push_back(std::move(sequence));
    grow(sequences_.size() - 1);
  }

  // Takes what the sequence will see of the block; brings back what is on the host. False: no room.
  bool attach(NodeId node, ModelSequence* sequence, int64_t hit_tokens, bool takes) {
    std::vector<PageId> pages(static_cast<size_t>(index().blocks().shape.pages_per_block), kNoPage);
    const int64_t begin = (int64_t{index().blocks().nodes[node].depth} - 1) * block();
    bool has_all = true;
    for (size_t g = 0; g < groups().size() && takes; ++g) {
      const GroupSpec& group = groups()[g];
      for (int32_t i = 0; i < index().blocks().shape.groups[g].num_pages; ++i) {
        const int32_t at = index().blocks().shape.groups[g].first_page + i;
        if (begin + int64_t{i + 1} * group.page_size <= first_visible_key(group, hit_tokens))
          continue;
        const PagePlace place = index().blocks().nodes.place(node, at);
        EXPECT_TRUE(place.is_present());
        if (place.device != kNoPage) {
          pages[static_cast<size_t>(at)] = place.device;
          hold(place.device);
          continue;
        }
        const PageId page = take_page();
        if (page == kNoPage) {
          has_all = false;
          continue;
        }
        EXPECT_EQ(index().blocks().nodes.place(node, at).host, place.host) << "locked";
        world_.tier.promote(place.host, page, kOwnStream);
        index().promoted(node, at, page, kOwnStream);
        pages[static_cast<size_t>(at)] = page;
      }
    }
    world_.states.add_ref(takes ? index().blocks().nodes[node].state : kInitialState);
    sequence->states.push_back(takes ? index().blocks().nodes[node].state : kInitialState);
    sequence->pages.push_back(std::move(pages));
    return has_all;
  }

  PageId take_page() {
    index().eviction().evict_for(1, kOwnStream);
    return world_.allocator.num_free() > 0 ? world_.allocator.take(kNoPage, 0) : kNoPage;
  }

  StateSlot take_state() {
    if (!model_.has_states || random_.chance(0.4)) return kInitialState;
    index().eviction().evict_states_for(1);
    if (world_.states.to_evict(1) > 0 || world_.states.missing(1) > 0) return kInitialState;
    world_.states.prepare(1);
    return world_.states.take();
  }

  // Computes the blocks that are left, in order, and publishes them.
  void grow(size_t which) {
    ModelSequence& sequence = sequences_[which];
    Prompt& prompt = *sequence.prompt;
    NodeId parent = sequence.pages.empty()
                        ? kNoNode
                        : index().blocks().find(
                              prompt.query.root,
                              prompt.chain->key(static_cast<int64_t>(sequence.pages.size()) - 1));
    if (!sequence.pages.empty() && parent == kNoNode) return;
    for (auto b = static_cast<int64_t>(sequence.pages.size()); b < prompt.chain->num_blocks();
         ++b) {
      const BlockKey key = prompt.chain->key(b);
      std::vector<PageId> pages;
      for (int32_t i = 0; i < index().blocks().shape.pages_per_block; ++i) {
        const PageId page = take_page();
        if (page == kNoPage) break;
        world_.device.device[static_cast<size_t>(page)] = label_of(key, i);
        pages.push_back(page);
      }
      const bool has_all =
          static_cast<int32_t>(pages.size()) == index().blocks().shape.pages_per_block;
      const StateSlot state = has_all ? take_state() : kInitialState;
      sequence.pages.push_back(pages);
      sequence.states.push_back(state);
      if (!has_all) return;
      // Making room may have taken away what nobody holds.
      if (parent != kNoNode &&
          index().blocks().find(prompt.query.root, prompt.chain->key(b - 1)) != parent)
        return;
      index().reserve(1);
      parent = publish(&sequence, b, parent);
      if (parent == kNoNode) return;
      drop_unseen(&sequence);
      if (random_.chance(0.2)) return;
    }
  }

  NodeId publish(ModelSequence* sequence, int64_t b, NodeId parent) {
    Prompt& prompt = *sequence->prompt;
    const BlockKey key = prompt.chain->key(b);
    std::vector<PageId>& pages = sequence->pages[static_cast<size_t>(b)];
    const auto priority = static_cast<int32_t>(random_.chance(0.8) ? 0 : random_.range(1, 3));
    const NewBlock made{&key,
                        parent,
                        &prompt.query.root,
                        prompt.chain->tokens(b),
                        pages.data(),
                        sequence->states[static_cast<size_t>(b)],
                        priority,
                        false,
                        tokens_before_extra_keys(prompt.query.extra, b * block(), block())};
    const NodeId node = index().insert(made, kOwnStream);
    if (node == kNoNode) {
      EXPECT_FALSE(quotas_.empty()) << "nothing else keeps a block out";
      return kNoNode;
    }
    const BlockKey before = b == 0 ? prompt.query.root : prompt.chain->key(b - 1);
    Known& known = children_[before.bytes][key.bytes];
    known.tokens.assign(prompt.chain->tokens(b), prompt.chain->tokens(b) + block());
    known.extra.clear();
    for (const ExtraKey& extra : prompt.query.extra) {
      if (extra.offset >= b * block() && extra.offset < (b + 1) * block())
        known.extra.emplace_back(extra.offset - b * block(), extra.data);
    }
    for (int32_t i = 0; i < index().blocks().shape.pages_per_block; ++i) {
      const PageId theirs = index().blocks().nodes.place(node, i).device;
      PageId& own = pages[static_cast<size_t>(i)];
      if (theirs == kNoPage || own == kNoPage) {
        EXPECT_TRUE(own == kNoPage || !quotas_.empty());
        continue;
      }
      if (theirs == own) continue;
      hold(theirs);
      world_.allocator.drop_ref(own);
      own = theirs;
    }
    return node;
  }

  // What a window does while a sequence grows.
  void drop_unseen(ModelSequence* sequence) {
    const auto length = static_cast<int64_t>(sequence->pages.size()) * block();
    for (size_t g = 0; g < groups().size(); ++g) {
      const int64_t first = first_visible_key(groups()[g], length);
      for (size_t b = 0; b < sequence->pages.size(); ++b) {
        for (int32_t i = 0; i < index().blocks().shape.groups[g].num_pages; ++i) {
          const int64_t end =
              static_cast<int64_t>(b) * block() + int64_t{i + 1} * groups()[g].page_size;
          PageId& page =
              sequence
                  ->pages[b][static_cast<size_t>(index().blocks().shape.groups[g].first_page + i)];
          if (end > first || page == kNoPage) continue;
          world_.allocator.drop_ref(page);
          page = kNoPage;
        }
      }
    }
  }

  void release(size_t which) {
    for (const auto& pages : sequences_[which].pages) {
      for (const PageId page : pages) {
        if (page != kNoPage) world_.allocator.drop_ref(page);
      }
    }
    for (const StateSlot state : sequences_[which].states) world_.states.drop_ref(state);
    std::swap(sequences_[which], sequences_.back());
    sequences_.pop_back();
  }

  // ----------------------------------------------------------------------------------------------
  // operations

  NodeId any_node() {
    auto prompt = any_prompt();
    return prompt->match(index(), INT64_MAX, true, true).last;
  }

  void step() {
    const int64_t choice = random_.range(0, 99);
    if (choice < 40) {
      if (sequences_.size() >= 4) release(static_cast<size_t>(random_.range(0, 3)));
      start();
    } else if (choice < 55) {
      auto prompt = any_prompt();
      match(*prompt,
            random_.chance(0.5) ? prompt->query.num_tokens - 1
                                : random_.range(0, prompt->query.num_tokens),
            random_.chance(0.3), random_.chance(0.7));
    } else if (choice < 63) {
      if (!sequences_.empty())
        grow(static_cast<size_t>(random_.range(0, static_cast<int64_t>(sequences_.size()) - 1)));
    } else if (choice < 70) {
      if (!sequences_.empty())
        release(static_cast<size_t>(random_.range(0, static_cast<int64_t>(sequences_.size()) - 1)));
    } else if (choice < 74) {
      const NodeId node = any_node();
      if (node != kNoNode) index().touch(node, false, static_cast<int32_t>(random_.range(0, 2)));
    } else if (choice < 80) {
      evict();
    } else if (choice < 83) {
      pin();
    } else if (choice < 86) {
      unpin();
    } else if (choice < 90) {
      forget();
    } else if (choice < 94) {
      const BlockKey root = random_.pick(roots());
      const uint64_t bytes = random_.chance(0.5) ? 0
                                                 : static_cast<uint64_t>(random_.range(1, 20)) *
                                                       (world_.page_bytes() + 8);
      index().set_quota(root, bytes, kOwnStream);
      quotas_.erase(root.bytes);
      if (bytes != 0) quotas_[root.bytes] = bytes;
    } else if (choice < 96) {
      index().eviction().evict_host_for(random_.range(0, model_.host_pages));
    } else if (choice < 99) {
      if (model_.has_states)
        index().eviction().evict_states_for(random_.range(1, model_.state_slots));
    } else if (random_.chance(0.2)) {
      index().reset();
      pinned_.clear();
    }
  }

  void evict() {
    const int64_t wanted = random_.range(0, model_.num_pages);
    const int64_t cached = world_.allocator.num_cached(), free = world_.allocator.num_free();
    if (random_.chance(0.5)) {
      index().eviction().evict_for(wanted, kOwnStream);
      ASSERT_GE(world_.allocator.num_free(), std::min(wanted, free + cached));
    } else {
      const int64_t freed = index().eviction().evict(wanted, kOwnStream);
      ASSERT_TRUE(freed >= wanted || world_.allocator.num_cached() == 0);
      ASSERT_GE(freed, std::min(wanted, cached));
    }
  }

  void pin() {
    auto prompt = any_prompt();
    NodeId node = kNoNode;
    int64_t blocks = 0;
    for (; blocks < prompt->chain->num_blocks(); ++blocks) {
      const NodeId next = index().blocks().find(prompt->query.root, prompt->chain->key(blocks));
      if (next == kNoNode) break;
      node = next;
    }
    if (node == kNoNode) return;
    const int64_t pinned = index().pin(node);
    ASSERT_LE(pinned, blocks);
    if (pinned == 0) return;
    pinned_.push_back(prompt->chain->key(pinned - 1));
  }

  void unpin() {
    if (pinned_.empty()) return;
    const auto which =
        static_cast<size_t>(random_.range(0, static_cast<int64_t>(pinned_.size()) - 1));
    const NodeId node = find_anywhere(pinned_[which]);
    ASSERT_NE(node, kNoNode) << "a pinned block stays";
    ASSERT_EQ(index().unpin(node), index().blocks().nodes[node].depth);
    pinned_.erase(pinned_.begin() + static_cast<std::ptrdiff_t>(which));
  }

  void forget() {
    if (!pinned_.empty()) return;  // pins would be forgotten with the block
    const PageId page = world_.allocator.first_indexed(random_.range(0, model_.num_pages - 1));
    if (page == kNoPage) return;
    const int64_t cached = world_.allocator.counts().indexed;
    index().eviction().forget_page(page);
    ASSERT_FALSE(world_.allocator.is_indexed(page));
    ASSERT_LT(world_.allocator.counts().indexed, cached);
  }

  // ----------------------------------------------------------------------------------------------
  // what always holds

  void verify(bool is_thorough) {
    std::vector<int32_t> pages(static_cast<size_t>(world_.allocator.num_pages()), 0);
    std::vector<int32_t> states(static_cast<size_t>(world_.states.num_slots()), 0);
    ASSERT_NO_THROW(index().check(&pages, &states));
    for (const ModelSequence& sequence : sequences_) {
      for (const auto& held : sequence.pages) {
        for (const PageId page : held) {
          if (page != kNoPage) ++pages[static_cast<size_t>(page)];
        }
      }
      for (const StateSlot state : sequence.states) {
        if (state != kInitialState) ++states[static_cast<size_t>(state)];
      }
    }
    for (size_t page = 0; page < pages.size(); ++page)
      ASSERT_EQ(world_.allocator.refs(static_cast<PageId>(page)), pages[page]) << "page " << page;
    for (size_t slot = 0; slot < states.size(); ++slot)
      ASSERT_EQ(world_.states.refs(static_cast<StateSlot>(slot)), states[slot]) << "state " << slot;
    ASSERT_EQ(world_.num_host_pages(), index().contents().num_host_pages());
    apply_events();
    if (is_thorough) verify_contents();
  }

  // A consumer of events.
  void apply_events() {
    Event event;
    uint64_t number;
    while (index().events().log().poll(&event, &number)) {
      const auto place = std::make_pair(event.key.bytes, event.group);
      const auto found = consumer_.find(place);
      switch (event.type) {
        case KVC_EVENT_STORED:
          ASSERT_TRUE(found == consumer_.end()) << "stored twice";
          consumer_[place] = event.tier;
          break;
        case KVC_EVENT_REMOVED:
          ASSERT_TRUE(found != consumer_.end() && found->second == event.tier)
              << "removed from elsewhere";
          consumer_.erase(found);
          break;
        case KVC_EVENT_MOVED:
          ASSERT_TRUE(found != consumer_.end() && found->second == event.from_tier)
              << "moved from elsewhere";
          ASSERT_NE(event.tier, event.from_tier);
          found->second = event.tier;
          break;
        default: consumer_.clear();
      }
    }
    ASSERT_EQ(index().events().log().num_lost(), 0u);
  }

  void verify_contents() {
    std::map<std::pair<std::array<uint8_t, 32>, int32_t>, kvc_tier> held;
    std::set<std::array<uint8_t, 32>> seen;
    for (const BlockKey& root : roots()) seen.insert(root.bytes);
    std::map<std::array<uint8_t, 32>, uint64_t> used;
    for (const Event& event : index().events().snapshot()) {
      held[{event.key.bytes, event.group}] = event.tier;
      const NodeId node = find_anywhere(event.key);
      ASSERT_EQ(node, event.node);
      for (int32_t i = 0; i < index().blocks().shape.pages_per_block; ++i) {
        const PagePlace place = index().blocks().nodes.place(node, i);
        if (!place.is_present()) continue;
        const Label label = place.host != kNoPage
                                ? world_.device.host[static_cast<size_t>(place.host)]
                                : world_.device.device[static_cast<size_t>(place.device)];
        ASSERT_EQ(label, label_of(event.key, i)) << "page " << i << " holds another block";
      }
    }
    ASSERT_TRUE(held == consumer_) << "the consumer of events believes otherwise";
    kvc_stats stats{};
    index().add_stats(&stats);
    ASSERT_EQ(stats.prefix_pinned == 0, pinned_.empty());
  }

  test::Random random_;
  bool shares_host_ = false;  // Somebody else uses pages of the host pool.
  const Model& model_;
  test::PrefixWorld world_;
  std::vector<ModelSequence> sequences_;
  std::map<std::array<uint8_t, 32>, std::map<std::array<uint8_t, 32>, Known>> children_;
  std::map<std::array<uint8_t, 32>, uint64_t> quotas_;
  std::vector<BlockKey> pinned_;
  std::map<std::pair<std::array<uint8_t, 32>, int32_t>, kvc_tier> consumer_;
};

class PrefixRandom : public testing::TestWithParam<size_t> {};

TEST_P(PrefixRandom, HitsPagesAndEventsAreThoseOfTheDefinition) {
  const Model& model = models()[GetParam()];
  const auto only = static_cast<int64_t>(environment("KVC_TEST_SEED", -1));
  const auto operations =
      std::max<int64_t>(10, static_cast<int64_t>(6000 * environment("KVC_TEST_SCALE", 1)));
  for (int64_t seed = only < 0 ? 1 : only; seed <= (only < 0 ? 5 : only); ++seed) {
    SCOPED_TRACE(testing::Message() << "KVC_TEST_SEED=" << seed << ", " << model.name);
    RandomIndex(static_cast<uint64_t>(seed), model).run(operations);
    if (HasFailure()) return;
  }
}

INSTANTIATE_TEST_SUITE_P(Models, PrefixRandom, testing::Range<size_t>(0, 10));

}  // namespace
}  // namespace kvc
