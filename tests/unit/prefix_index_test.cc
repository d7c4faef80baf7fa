// The prefix index, one promise at a time. Random use lies in prefix_random_test.cc, the exact
// order in prefix_order_test.cc.
#include <algorithm>

#include "src/base/error.h"
#include "tests/unit/prefix_support.h"

namespace kvc {
namespace {

using test::Prompt;
using test::ramp;

class PrefixIndexTest : public testing::Test {
 protected:
  explicit PrefixIndexTest(std::vector<test::GroupShape> groups = {{}}, bool has_states = false)
      : world(test::prefix_spec(groups, has_states), 64, 8, 256) {}
  ~PrefixIndexTest() override { EXPECT_NO_THROW(world.check()); }

  PrefixIndex& index() { return world.index; }

  // Publishes all full blocks of the prompt and lets go of the pages. Returns the last block.
  NodeId publish(Prompt& prompt, int32_t priority = 0, bool knows_tokens = true) {
    NodeId parent = kNoNode;
    for (int64_t b = 0; b < prompt.chain->num_blocks(); ++b) {
      index().reserve(1);
      std::vector<PageId> pages;
      for (int32_t i = 0; i < index().blocks().shape.pages_per_block; ++i) {
        pages.push_back(world.allocator.take(kNoPage, 0));
        world.device.device[static_cast<size_t>(pages.back())] =
            test::label_of(prompt.chain->key(b), i);
      }
      const NewBlock block{&prompt.chain->key(b),
                           parent,
                           &prompt.query.root,
                           knows_tokens ? prompt.chain->tokens(b) : nullptr,
                           pages.data(),
                           kInitialState,
                           priority};
      parent = index().insert(block, kOwnStream);
      for (const PageId page : pages) world.allocator.drop_ref(page);
      if (parent == kNoNode) break;
    }
    return parent;
  }
  int64_t hit(Prompt& prompt, int64_t max_tokens = INT64_MAX, bool whole = false) {
    return prompt.match(index(), max_tokens, whole).num_tokens;
  }
  kvc_stats stats() {
    kvc_stats all{};
    index().add_stats(&all);
    return all;
  }

  test::PrefixWorld world;
};

TEST_F(PrefixIndexTest, FindsTheLongestBeginningAndLeavesTheLastTokenWhenAsked) {
  Prompt prompt(ramp(12), 4);
  publish(prompt);
  Prompt longer(ramp(30), 4);
  EXPECT_EQ(hit(longer), 12);
  EXPECT_EQ(hit(prompt), 12);
  EXPECT_EQ(hit(prompt, 11), 11) << "three tokens of the last block";
  EXPECT_EQ(hit(prompt, 11, true), 8);
  EXPECT_EQ(hit(prompt, 0), 0);
  Prompt shorter(ramp(7), 4);
  EXPECT_EQ(hit(shorter), 7);
  Prompt elsewhere(ramp(12), 4, "tenant");
  EXPECT_EQ(hit(elsewhere), 0);
}

TEST_F(PrefixIndexTest, FindsTheFirstTokensOfABlockThatBeginsAlike) {
  Prompt prompt(ramp(12), 4);
  const NodeId last = publish(prompt);
  Prompt other({0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 99, 99}, 4);
  const PrefixMatch found = other.match(index());
  EXPECT_EQ(found.num_tokens, 10);
  EXPECT_EQ(found.tail, last);
  EXPECT_EQ(found.tail_tokens, 2);
  Prompt first({0, 1, 50, 50}, 4);
  EXPECT_EQ(hit(first), 2) << "also of the first block";
}

TEST_F(PrefixIndexTest, KnowsTheCutBlockByItsKeyWhereTokensAreUnknown) {
  Prompt prompt(ramp(12), 4);
  publish(prompt, 0, false);
  std::vector<BlockKey> keys;
  for (int64_t b = 0; b < 3; ++b) keys.push_back(prompt.chain->key(b));
  Prompt by_key(ramp(12), 4);
  by_key.query.keys = keys.data();
  by_key.query.num_keys = 3;
  by_key.query.tokens = nullptr;
  by_key.chain = std::make_unique<KeyChain>(by_key.query, 4);
  EXPECT_EQ(hit(by_key), 12);
  EXPECT_EQ(hit(by_key, 11), 11);
  Prompt other({0, 1, 2, 3, 4, 5, 99, 99}, 4);
  EXPECT_EQ(hit(other), 4) << "nothing is known of what the next block begins with";
}

TEST_F(PrefixIndexTest, DoesNotTakeAnImagesTokensForThoseOfAnother) {
  Prompt cat(ramp(8), 4), dog(ramp(8), 4), text(ramp(8), 4);
  cat.query.extra = {{KVC_PREFIX_KEY_MEDIA, 6, "cat"}};
  cat.renew();
  dog.query.extra = {{KVC_PREFIX_KEY_MEDIA, 6, "dog"}};
  dog.renew();
  publish(cat);
  EXPECT_EQ(hit(cat), 8);
  EXPECT_EQ(hit(cat, 7), 7);
  EXPECT_EQ(hit(dog), 4);
  EXPECT_EQ(hit(text), 4);
  publish(text);
  EXPECT_EQ(hit(dog), 6) << "the two tokens before the image are text";
}

TEST_F(PrefixIndexTest, RefusesKeysThatAreNotOfOneChain) {
  Prompt a(ramp(8), 4), b(ramp(8, 100), 4);
  publish(a);
  publish(b);
  const std::vector<BlockKey> mixed = {a.chain->key(0), b.chain->key(1)};
  Prompt both(ramp(8), 4);
  both.query.keys = mixed.data();
  both.query.num_keys = 2;
  both.query.tokens = nullptr;
  both.chain = std::make_unique<KeyChain>(both.query, 4);
  EXPECT_EQ(hit(both), 4);
  Prompt elsewhere(ramp(8), 4, "tenant");
  elsewhere.query.keys = mixed.data();
  elsewhere.query.num_keys = 2;
  elsewhere.chain = std::make_unique<KeyChain>(elsewhere.query, 4);
  EXPECT_EQ(hit(elsewhere), 0) << "keys of another namespace";
  EXPECT_EQ(index().blocks().find_deepest(*both.chain),
            index().blocks().find(a.query.root, mixed[0]));
  publish(both);
  EXPECT_EQ(stats().prefix_blocks, 4);
  EXPECT_EQ(stats().prefix_duplicates, 1u) << "the first block, and not that of the other chain";
}

TEST_F(PrefixIndexTest, EvictsTailsFirstThenWhatWasNotUsedAgain) {
  Prompt a(ramp(12), 4), b(ramp(12, 100), 4);
  publish(a);
  publish(b);
  index().touch(a.match(index()).last, true, 0);
  index().eviction().evict_for(world.allocator.num_free() + 2, kOwnStream);
  EXPECT_EQ(hit(b, INT64_MAX, true), 12) << "on the host";
  EXPECT_EQ(index().contents().num_host_pages(), 2);
  EXPECT_EQ(b.match(index(), INT64_MAX, true, false).num_tokens, 4);
  EXPECT_EQ(a.match(index(), INT64_MAX, true, false).num_tokens, 12);
  EXPECT_EQ(stats().prefix_demoted, 2u);
}

TEST_F(PrefixIndexTest, KeepsHigherPriorityLongerAndQuotasLongest) {
  Prompt low(ramp(8), 4), high(ramp(8, 100), 4), tenant(ramp(8, 200), 4, "tenant");
  index().set_quota(tenant.query.root, 4 * world.page_bytes(), kOwnStream);
  publish(tenant);
  publish(high, 5);
  publish(low);
  index().eviction().evict(2, kOwnStream);
  EXPECT_EQ(low.match(index(), 8, true, false).num_tokens, 0);
  EXPECT_EQ(high.match(index(), 8, true, false).num_tokens, 8);
  index().eviction().evict(2, kOwnStream);
  EXPECT_EQ(high.match(index(), 8, true, false).num_tokens, 0);
  EXPECT_EQ(tenant.match(index(), 8, true, false).num_tokens, 8);
  index().eviction().evict(2, kOwnStream);
  EXPECT_EQ(tenant.match(index(), 8, true, false).num_tokens, 0)
      << "when nothing else can be evicted";
}

TEST_F(PrefixIndexTest, ReplacesBlocksOfItsOwnWithinAQuota) {
  Prompt a(ramp(12), 4, "tenant"), b(ramp(8, 100), 4, "tenant"), other(ramp(8, 200), 4);
  publish(other);
  index().set_quota(a.query.root, 4 * world.page_bytes(), kOwnStream);
  publish(a);
  EXPECT_NE(publish(b), kNoNode);
  EXPECT_EQ(a.match(index(), 12, true, false).num_tokens, 8);
  EXPECT_EQ(b.match(index(), 8, true, false).num_tokens, 8);
  EXPECT_EQ(other.match(index(), 8, true, false).num_tokens, 8);
  Prompt large(ramp(24, 300), 4, "tenant");
  EXPECT_EQ(publish(large), kNoNode);
  EXPECT_EQ(large.match(index(), 24, true, false).num_tokens, 16);
  EXPECT_EQ(stats().prefix_rejected, 1u);
  index().set_quota(a.query.root, world.page_bytes(), kOwnStream);
  EXPECT_EQ(large.match(index(), 24, true, false).num_tokens, 4) << "shrinking evicts at once";
}

TEST_F(PrefixIndexTest, AllowsSoManyQuotasAndNamesTheLimit) {
  for (int64_t i = 0; i < kMaxQuotas; ++i)
    index().set_quota(namespace_root(&i, sizeof(i)), 1, kOwnStream);
  const BlockKey more = namespace_root("more", 4);
  try {
    index().set_quota(more, 1, kOwnStream);
    FAIL() << "one quota too many";
  } catch (const Error& error) {
    EXPECT_EQ(error.status(), KVC_E_OUT_OF_RANGE);
    EXPECT_NE(std::string(error.what()).find("4096"), std::string::npos);
  }
  const int64_t first = 0;
  index().set_quota(namespace_root(&first, sizeof(first)), 2,
                    kOwnStream);  // a change is not one more
  index().set_quota(namespace_root(&first, sizeof(first)), 0, kOwnStream);
  EXPECT_NO_THROW(index().set_quota(more, 1, kOwnStream));
}

TEST_F(PrefixIndexTest, KeepsPinnedBlocksUntilTheLastPinIsUndone) {
  Prompt prompt(ramp(12), 4), sibling({0, 1, 2, 3, 9, 9, 9, 9}, 4);
  const NodeId last = publish(prompt);
  publish(sibling);
  EXPECT_EQ(index().pin(last), 3);
  EXPECT_EQ(index().pin(index().blocks().nodes[last].parent), 2);
  EXPECT_EQ(world.allocator.num_used(), 3);
  EXPECT_EQ(index().eviction().evict(64, kOwnStream), 1);
  EXPECT_EQ(stats().prefix_pinned, 3);
  EXPECT_EQ(index().unpin(last), 3);
  EXPECT_EQ(index().eviction().evict(64, kOwnStream), 1);
  EXPECT_EQ(index().unpin(index().blocks().find(prompt.query.root, prompt.chain->key(1))), 2);
  EXPECT_EQ(index().eviction().evict(64, kOwnStream), 2);
}

TEST_F(PrefixIndexTest, ForgetsABlockWithAllThatFollowsIt) {
  Prompt prompt(ramp(16), 4);
  NodeId last = publish(prompt);
  last = index().blocks().nodes[index().blocks().nodes[last].parent].parent;
  const PageId page = index().blocks().nodes.place(last, 0).device;
  index().eviction().forget_page(page);
  EXPECT_EQ(hit(prompt, INT64_MAX, true), 4);
  EXPECT_EQ(world.allocator.counts().indexed, 1);
  EXPECT_EQ(stats().prefix_evicted, 0u) << "nobody else needed the room";
}

TEST_F(PrefixIndexTest, TellsRoutersWhatItHolds) {
  Prompt prompt(ramp(8), 4);
  const NodeId last = publish(prompt);
  Event event;
  uint64_t number = 0;
  ASSERT_TRUE(index().events().log().poll(&event, &number));
  EXPECT_EQ(event.type, KVC_EVENT_STORED);
  EXPECT_EQ(event.key, prompt.chain->key(0));
  EXPECT_EQ(event.parent, prompt.query.root);
  ASSERT_NE(index().blocks().tokens(event.node, event.node_birth), nullptr);
  EXPECT_EQ(index().blocks().tokens(event.node, event.node_birth)[3], 3);
  ASSERT_TRUE(index().events().log().poll(&event, &number));
  EXPECT_EQ(event.parent, prompt.chain->key(0));
  EXPECT_EQ(event.node, last);
  index().eviction().evict(1, kOwnStream);
  ASSERT_TRUE(index().events().log().poll(&event, &number));
  EXPECT_EQ(event.type, KVC_EVENT_MOVED);
  EXPECT_EQ(event.tier, KVC_TIER_HOST);
  EXPECT_EQ(event.from_tier, KVC_TIER_DEVICE);
  const uint64_t birth = event.node_birth;
  index().eviction().evict_host_for(8);
  ASSERT_TRUE(index().events().log().poll(&event, &number));
  EXPECT_EQ(event.type, KVC_EVENT_REMOVED);
  EXPECT_EQ(event.tier, KVC_TIER_HOST);
  EXPECT_EQ(index().blocks().tokens(last, birth), nullptr) << "the block is gone";
  EXPECT_EQ(index().events().snapshot().size(), 1u);
  index().reset();
  ASSERT_TRUE(index().events().log().poll(&event, &number));
  EXPECT_EQ(event.type, KVC_EVENT_CLEARED);
  EXPECT_EQ(number, 5u);
}

TEST_F(PrefixIndexTest, BringsPagesBackFromTheHost) {
  Prompt prompt(ramp(8), 4);
  const NodeId last = publish(prompt);
  index().eviction().evict(1, kOwnStream);
  const PagePlace place = index().blocks().nodes.place(last, 0);
  ASSERT_NE(place.host, kNoPage);
  EXPECT_EQ(index().pin(last), 1) << "up to the first block that is not on the device";
  EXPECT_EQ(index().unpin(last), 1) << "what was pinned of its path";
  EXPECT_EQ(index().unpin(last), 0);
  index().lock(last);
  index().eviction().evict_host_for(8);
  EXPECT_EQ(index().blocks().nodes.place(last, 0).host, place.host) << "locked";
  const PageId page = world.allocator.take(kNoPage, 0);
  world.tier.promote(place.host, page, kOwnStream);
  index().promoted(last, 0, page, kOwnStream);
  index().unlock(last);
  EXPECT_EQ(index().blocks().nodes.place(last, 0).device, page);
  EXPECT_EQ(world.num_host_pages(), 0);
  EXPECT_EQ(stats().prefix_promoted, 1u);
  world.allocator.drop_ref(page);
  EXPECT_EQ(hit(prompt), 8);
}

TEST_F(PrefixIndexTest, GivesUpBlocksInUseWhenNothingElseIsLeftToEvict) {
  Prompt prompt(ramp(12), 4);
  const NodeId last = publish(prompt);
  const PageId page = index().blocks().nodes.place(last, 0).device;
  world.allocator.add_ref(page);  // of the last block alone
  index().eviction().evict_for(63, kOwnStream);
  EXPECT_EQ(world.allocator.num_free(), 63);
  EXPECT_FALSE(world.allocator.is_indexed(page)) << "nobody finds it without those before it";
  world.allocator.drop_ref(page);
}

TEST_F(PrefixIndexTest, HandsUseAndPriorityOnWhenATailMovesToTheHost) {
  Prompt a(ramp(8), 4), b(ramp(8, 100), 4);
  const NodeId last = publish(a);
  index().touch(last, true, 7);
  index().eviction().evict(1, kOwnStream);
  publish(b, 3);
  index().eviction().evict(2, kOwnStream);
  EXPECT_EQ(b.match(index(), 8, true, false).num_tokens, 0);
  EXPECT_EQ(a.match(index(), 8, true, false).num_tokens, 4)
      << "the first block was used at priority 7 as well";
}

class PrefixWindowTest : public PrefixIndexTest {
 protected:
  PrefixWindowTest() : PrefixIndexTest({{}, {9, 0, 4}}) {}
};

TEST_F(PrefixWindowTest, HitsEndWhereTheWindowsPagesAreThere) {
  Prompt prompt(ramp(32), 4);
  const NodeId last = publish(prompt);
  EXPECT_EQ(hit(prompt), 32);
  // Refreshes the window's pages of the last 9 tokens, and the whole path
  index().touch(last, true, 0);
  index().eviction().evict(5, kOwnStream);  // pages of the window that lie further back
  EXPECT_EQ(hit(prompt), 32);
  EXPECT_EQ(prompt.match(index(), 24, true, false).num_tokens, 0)
      << "a hit there would see pages that are gone";
  EXPECT_EQ(prompt.match(index(), 32, true, false).num_tokens, 32);
}

TEST_F(PrefixWindowTest, AWindowsPagesOnTheHostGoWithTheirBlock) {
  Prompt prompt(ramp(32), 4);
  index().touch(publish(prompt), true, 0);
  index().eviction().evict(5, kOwnStream);  // pages of the window
  EXPECT_EQ(world.num_host_pages(), 5);
  world.host.start_use(HostUse::kByPage);  // No room there any more.
  index().eviction().evict(64, kOwnStream);
  EXPECT_EQ(world.num_host_pages(), 0) << "the pages that see all tokens had no room there";
  EXPECT_EQ(stats().prefix_blocks, 0);
}

}  // namespace
}  // namespace kvc
