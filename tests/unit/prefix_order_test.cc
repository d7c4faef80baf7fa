// The order of eviction of a model with one page table, exactly: against a naive index that stamps
// every block of a path.
#include <algorithm>
#include <map>

#include "tests/support/environment.h"
#include "tests/unit/prefix_support.h"

namespace kvc {
namespace {

using test::environment;
using test::Prompt;

constexpr int32_t kBlock = 4;

struct NaiveBlock {
  NodeId parent = kNoNode;
  int num_children = 0;
  uint64_t last_use = 0;
  int32_t priority = 0;
  int tenant = 0;
  PageId page = kNoPage;
};

class OrderModel {
 public:
  OrderModel(uint64_t seed, int64_t num_pages)
      : random_(seed), world_(test::prefix_spec({{}}, false), num_pages, 0, 4096) {}

  void run(int64_t operations) {
    for (int64_t i = 0; i < operations && !testing::Test::HasFatalFailure(); ++i) {
      SCOPED_TRACE(testing::Message() << "operation " << i);
      step();
    }
  }

 private:
  static constexpr int kTenants = 3;
  static constexpr const char* kSalts[kTenants] = {"", "a", "b"};

  PrefixIndex& index() { return world_.index; }

  uint64_t rank(const NaiveBlock& block) const {
    return make_rank(quotas_[block.tenant] != 0, static_cast<uint8_t>(block.priority),
                     block.last_use);
  }
  bool is_held(const NaiveBlock& block) const { return world_.allocator.refs(block.page) != 0; }

  void use(NodeId node, int32_t priority) {
    ++time_;
    for (; node != kNoNode; node = blocks_.at(node).parent) {
      blocks_.at(node).last_use = time_;
      blocks_.at(node).priority = std::max(blocks_.at(node).priority, priority);
    }
  }

  // Evicts leaves of `tenant` (-1: all) until `done`; what is in use or `kept` counts as used
  // afterwards.
  template <typename Done>
  void evict(int tenant, NodeId kept, std::vector<NodeId>* victims, const Done& done) {
    std::vector<NodeId> busy;
    while (!done()) {
      NodeId first = kNoNode;
      for (const auto& [node, block] : blocks_) {
        if (block.num_children != 0 || (tenant != -1 && block.tenant != tenant)) continue;
        if (std::find(busy.begin(), busy.end(), node) != busy.end()) continue;
        if (first == kNoNode || rank(block) < rank(blocks_.at(first))) first = node;
      }
      if (first == kNoNode) break;
      if (first == kept || is_held(blocks_.at(first))) {
        busy.push_back(first);
        continue;
      }
      victims->push_back(first);
      erase(first);
    }
    std::sort(busy.begin(), busy.end(),
              [this](NodeId a, NodeId b) { return rank(blocks_.at(a)) < rank(blocks_.at(b)); });
    for (const NodeId node : busy) use(node, 0);
  }

  void erase(NodeId node) {
    const NaiveBlock block = blocks_.at(node);
    if (block.parent != kNoNode) --blocks_.at(block.parent).num_children;
    used_[block.tenant] -= world_.page_bytes();
    freed_ += is_held(block) ? 0 : 1;
    blocks_.erase(node);
    keys_.erase(node);
  }

  // The blocks that left since the last call were these, in this order.
  void expect_left(const std::vector<BlockKey>& expected) {
    std::vector<BlockKey> left;
    Event event;
    uint64_t number;
    while (index().events().log().poll(&event, &number)) {
      if (event.type == KVC_EVENT_REMOVED) left.push_back(event.key);
    }
    ASSERT_EQ(index().events().log().num_lost(), 0u);
    ASSERT_TRUE(left == expected) << left.size() << " left, " << expected.size() << " expected";
  }
  std::vector<BlockKey> keys_of(const std::vector<NodeId>& nodes,
                                const std::map<NodeId, BlockKey>& keys) {
    std::vector<BlockKey> found;
    for (const NodeId node : nodes) found.push_back(keys.at(node));
    return found;
  }

  NodeId any_block() {
    if (blocks_.empty()) return kNoNode;
    auto found =
        blocks_.lower_bound(static_cast<NodeId>(random_.range(0, blocks_.rbegin()->first)));
    return found->first;
  }

  // A sequence that computes some blocks after a known one and lets go of them, or keeps them for a
  // while.
  void publish() {
    const int tenant = static_cast<int>(random_.range(0, kTenants - 1));
    const auto priority = static_cast<int32_t>(random_.chance(0.7) ? 0 : random_.range(1, 3));
    Prompt prompt({}, kBlock, kSalts[tenant]);
    for (int64_t b = random_.range(1, 6); b > 0; --b) {
      const auto variant = static_cast<int32_t>(random_.range(0, 2));
      for (int i = 0; i < kBlock; ++i) prompt.tokens.push_back(variant);
    }
    prompt.renew();
    std::vector<PageId> held;
    NodeId parent = kNoNode;
    for (int64_t b = 0; b < prompt.chain->num_blocks(); ++b) {
      const BlockKey key = prompt.chain->key(b);
      if (!evict_for(1)) break;
      const NodeId known = index().blocks().find(prompt.query.root, key);
      if (known != kNoNode && random_.chance(0.8)) {  // as a hit finds it
        world_.allocator.add_ref(index().blocks().nodes.place(known, 0).device);
        held.push_back(index().blocks().nodes.place(known, 0).device);
        parent = known;
        continue;
      }
      index().reserve(1);
      PageId page = world_.allocator.take(kNoPage, 0);
      held.push_back(page);
      if (known != kNoNode) {
        insert(prompt, b, parent, page, priority, tenant, known);
        held.back() = index().blocks().nodes.place(known, 0).device;
        ASSERT_NE(held.back(), page)
            << "the index keeps its own page, and the sequence takes it over";
        world_.allocator.add_ref(held.back());
        world_.allocator.drop_ref(page);
        parent = known;
        continue;
      }
      parent = insert(prompt, b, parent, page, priority, tenant, kNoNode);
      if (testing::Test::HasFatalFailure()) return;
      if (parent == kNoNode) break;
    }
    if (random_.chance(0.2) && holds_.size() < 4) {
      holds_.push_back(held);
    } else {
      for (const PageId page : held) world_.allocator.drop_ref(page);
    }
  }

  NodeId insert(Prompt& prompt, int64_t b, NodeId parent, PageId page, int32_t priority, int tenant,
                NodeId known) {
    const BlockKey key = prompt.chain->key(b);
    const NewBlock block{&key,          parent,  &prompt.query.root, prompt.chain->tokens(b), &page,
                         kInitialState, priority};
    std::vector<NodeId> victims;
    const std::map<NodeId, BlockKey> keys = keys_;
    bool fits = true;
    if (known == kNoNode && quotas_[tenant] != 0) {
      const uint64_t bytes = world_.page_bytes();
      fits = bytes <= quotas_[tenant];
      const auto done = [&] { return used_[tenant] + bytes <= quotas_[tenant]; };
      if (fits) {
        // The new block hangs there already
        if (parent != kNoNode) ++blocks_.at(parent).num_children;
        evict(tenant, parent, &victims, done);
        if (parent != kNoNode) --blocks_.at(parent).num_children;
        fits = done();
      }
    }
    const NodeId node = index().insert(block, kOwnStream);
    if (!fits) {
      EXPECT_EQ(node, kNoNode);
      if (parent != kNoNode) use(parent, 0);
    } else {
      EXPECT_NE(node, kNoNode);
      if (known == kNoNode) {
        blocks_[node] = {parent, 0, 0, priority, tenant, page};
        keys_[node] = key;
        if (parent != kNoNode) ++blocks_.at(parent).num_children;
        used_[tenant] += world_.page_bytes();
      }
      use(node, priority);
    }
    expect_left(keys_of(victims, keys));
    return node;
  }

  bool evict_for(int64_t pages) {
    std::vector<NodeId> victims;
    const std::map<NodeId, BlockKey> keys = keys_;
    freed_ = 0;
    const int64_t free = world_.allocator.num_free(), cached = world_.allocator.num_cached();
    evict(-1, kNoNode, &victims, [&] { return free + freed_ >= pages || freed_ >= cached; });
    index().eviction().evict_for(pages, kOwnStream);
    expect_left(keys_of(victims, keys));
    return world_.allocator.num_free() >= pages;
  }

  void step() {
    const int64_t choice = random_.range(0, 99);
    if (choice < 50) {
      publish();
    } else if (choice < 70) {
      const NodeId node = any_block();
      if (node == kNoNode) return;
      const auto priority = static_cast<int32_t>(random_.chance(0.8) ? 0 : random_.range(0, 4));
      index().touch(node, random_.chance(0.5), priority);
      use(node, priority);
    } else if (choice < 85) {
      evict_for(random_.range(1, world_.allocator.num_pages() / 2));
    } else if (choice < 95) {
      if (holds_.empty()) return;
      std::swap(
          holds_.back(),
          holds_[static_cast<size_t>(random_.range(0, static_cast<int64_t>(holds_.size()) - 1))]);
      for (const PageId page : holds_.back()) world_.allocator.drop_ref(page);
      holds_.pop_back();
    } else if (choice < 98) {
      set_quota();
    } else {
      forget();
    }
    world_.check();
    ASSERT_EQ(world_.allocator.counts().indexed, static_cast<int64_t>(blocks_.size()));
  }

  void set_quota() {
    const int tenant = static_cast<int>(random_.range(1, kTenants - 1));
    const uint64_t bytes = static_cast<uint64_t>(random_.range(0, 12)) * world_.page_bytes();
    quotas_[tenant] = bytes;
    std::vector<NodeId> victims;
    const std::map<NodeId, BlockKey> keys = keys_;
    if (bytes != 0) evict(tenant, kNoNode, &victims, [&] { return used_[tenant] <= bytes; });
    index().set_quota(namespace_root(kSalts[tenant], std::strlen(kSalts[tenant])), bytes,
                      kOwnStream);
    expect_left(keys_of(victims, keys));
  }

  void forget() {
    const NodeId top = any_block();
    if (top == kNoNode) return;
    index().eviction().forget_page(blocks_.at(top).page);
    std::vector<NodeId> gone{top};
    for (size_t i = 0; i < gone.size(); ++i) {
      for (const auto& [node, block] : blocks_) {
        if (block.parent == gone[i]) gone.push_back(node);
      }
    }
    for (size_t i = gone.size(); i-- > 0;) erase(gone[i]);
    Event event;
    uint64_t number;
    size_t num_removed = 0;
    while (index().events().log().poll(&event, &number))
      num_removed += event.type == KVC_EVENT_REMOVED;
    ASSERT_EQ(num_removed, gone.size());
    for (const NodeId node : gone) ASSERT_EQ(blocks_.count(node), 0u);
  }

  test::Random random_;
  test::PrefixWorld world_;
  std::map<NodeId, NaiveBlock> blocks_;
  std::map<NodeId, BlockKey> keys_;
  uint64_t quotas_[kTenants] = {}, used_[kTenants] = {};
  std::vector<std::vector<PageId>> holds_;
  uint64_t time_ = 0;
  int64_t freed_ = 0;
};

TEST(PrefixOrder, IsThatOfPathsByLastUseAsIfEveryBlockWereStamped) {
  const auto only = static_cast<int64_t>(environment("KVC_TEST_SEED", -1));
  const auto operations = static_cast<int64_t>(10000 * environment("KVC_TEST_SCALE", 1));
  for (int64_t seed = only < 0 ? 1 : only; seed <= (only < 0 ? 10 : only); ++seed) {
    SCOPED_TRACE(testing::Message() << "KVC_TEST_SEED=" << seed);
    OrderModel(static_cast<uint64_t>(seed), seed % 2 == 0 ? 60 : 25).run(operations);
    if (HasFatalFailure()) return;
  }
}

}  // namespace
}  // namespace kvc
