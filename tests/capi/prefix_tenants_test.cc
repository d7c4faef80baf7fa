// Keys that a caller gives name blocks of the query's own namespace, whoever's they are.
#include "tests/capi/prefix_fixture.h"

namespace kvc::test {
namespace {

// Namespace A has published 12 tokens; `stolen` asks in namespace B with A's keys, and without the
// tokens or with others.
class Tenants : public Prefix {
 protected:
  Tenants() { publish(cache_, prompt_, "A"); }

  // A's keys under another namespace.
  static Ask& steal(Ask& ask, const std::string& from, bool without_tokens) {
    const std::string own = ask.salt;
    ask.salt = from;
    ask.call.salt = ask.salt.data();
    ask.call.salt_size = ask.salt.size();
    ask.hashed(static_cast<size_t>(ask.call.num_tokens) / kBlock, kBlock, without_tokens);
    ask.salt = own;
    ask.call.salt = ask.salt.data();
    ask.call.salt_size = ask.salt.size();
    return ask;
  }
  int64_t pinned(const Ask& ask) {
    int64_t tokens = -1;
    EXPECT_EQ(kvc_prefix_pin(get(), &ask.call, &tokens, nullptr), KVC_OK);
    return tokens;
  }
  int64_t unpinned(const Ask& ask) {
    int64_t tokens = -1;
    EXPECT_EQ(kvc_prefix_unpin(get(), &ask.call, &tokens, nullptr), KVC_OK);
    return tokens;
  }

  const Prompt prompt_ = prompt_of(12);
};

TEST_F(Tenants, DoNotReadByEachOthersKeys) {
  for (const bool without_tokens : {true, false}) {
    Ask ask(prompt_, "B");
    steal(ask, "A", without_tokens).all();
    EXPECT_EQ(matched(cache_, ask), 0);
    EXPECT_EQ(attached(cache_, 1, ask), 0);
    EXPECT_EQ(length_of(cache_, 1), 0);
    drop(cache_, 1);
  }
  EXPECT_EQ(held(cache_, prompt_, "A"), 12);
}

TEST_F(Tenants, DoNotPinOrUnpinByEachOthersKeys) {
  Ask own(prompt_, "A");
  for (const bool without_tokens : {true, false}) {
    Ask ask(prompt_, "B");
    steal(ask, "A", without_tokens);
    EXPECT_EQ(pinned(ask), 0);
    EXPECT_EQ(stats_of(cache_).prefix_pinned, 0);
    EXPECT_EQ(pinned(own), 12);
    EXPECT_EQ(unpinned(ask), 0);
    EXPECT_EQ(stats_of(cache_).prefix_pinned, 3);
    EXPECT_EQ(unpinned(own), 12);
    EXPECT_EQ(stats_of(cache_).prefix_pinned, 0);
  }
}

TEST_F(Tenants, DoNotPublishUnderEachOthersBlocks) {
  const std::vector<int64_t> pages = [&] {
    Ask own(prompt_, "A");
    EXPECT_EQ(attached(cache_, 1, own.all()), 12);
    return pages_of(cache_, 1, 0);
  }();
  // B's own 12 tokens under A's keys, then 4 more that are computed from the tokens.
  add_tokens(cache_, 2, 16);
  Ask ask(joined(prompt_, {1, 2, 3, 4}), "B");
  steal(ask, "A", false);
  ask.call.num_hashes = 3;
  EXPECT_EQ(inserted(cache_, 2, ask), 16) << "in its own namespace, where nobody else looks";
  for (const int64_t page : pages_of(cache_, 2, 0))
    EXPECT_EQ(std::count(pages.begin(), pages.end(), page), 0) << "A's pages are not taken over";
  EXPECT_EQ(held(cache_, joined(prompt_, {1, 2, 3, 4}), "A"), 12) << "nothing follows A's blocks";
  Ask again(prompt_, "A");
  EXPECT_EQ(attached(cache_, 3, again.all()), 12);
  EXPECT_EQ(pages_of(cache_, 3, 0), pages) << "A finds its own";
}

TEST_F(Tenants, DoNotKeepEachOthersKeysFromBeingPublished) {
  const Prompt later = prompt_of(8, 7000);
  add_tokens(cache_, 1, 8);
  Ask ask(later, "B");
  steal(ask, "A", true);
  ask.call.num_tokens = 8;
  EXPECT_EQ(inserted(cache_, 1, ask), 8);
  EXPECT_EQ(held(cache_, later, "A"), 0);
  publish(cache_, later, "A");
  EXPECT_EQ(held(cache_, later, "A"), 8);
  drop(cache_, 1);
  int64_t freed = 0;
  ASSERT_EQ(kvc_prefix_evict(get(), kPages, &freed, nullptr), KVC_OK);
  EXPECT_EQ(stats_of(cache_).prefix_blocks, 0);
}

TEST_F(Tenants, KeepTheirOwnKeysWhenTheSameSequenceChangesItsNamespace) {
  add_tokens(cache_, 1, 8);
  const Prompt prompt = prompt_of(8, 7000);
  Ask first(prompt, "A");
  EXPECT_EQ(inserted(cache_, 1, first), 8);
  Ask second(prompt, "B");
  steal(second, "A", true);
  EXPECT_EQ(inserted(cache_, 1, second), 0) << "its pages are known as A's";
  EXPECT_EQ(held(cache_, prompt, "A"), 8);
}

TEST(TenantsOnTheHost, DoNotReadByEachOthersKeys) {
  Net net({attention_layer()}, 4);
  kvc_plan* plan = nullptr;
  ASSERT_EQ(kvc_plan_create(&net.config, &plan, nullptr), KVC_OK);
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  ASSERT_EQ(kvc_plan_info_get(plan, &info, nullptr), KVC_OK);
  kvc_plan_destroy(plan);
  net.config.host_byte_budget = 8 * info.page_bytes;
  Cache cache(net.config);
  const Prompt prompt = prompt_of(12);
  publish(cache, prompt, "A");
  int64_t freed = 0;
  ASSERT_EQ(kvc_prefix_evict(cache.get(), 4, &freed, nullptr), KVC_OK);
  ASSERT_EQ(stats_of(cache).prefix_blocks_host, 3);
  Ask ask(prompt, "A");
  ask.hashed(3, 4, true);
  ask.salt = "B";
  ask.call.salt = ask.salt.data();
  EXPECT_EQ(matched(cache, ask.all()), 0);
  EXPECT_EQ(attached(cache, 1, ask), 0);
  // Pages of B's own under A's keys stay apart from A's on the host.
  add_tokens(cache, 1, 12);
  EXPECT_EQ(inserted(cache, 1, ask), 12);
  EXPECT_EQ(stats_of(cache).prefix_blocks_host, 3);
  drop(cache, 1);
  EXPECT_EQ(held(cache, prompt, "A"), 12);
  expect_consistent(cache);
}

}  // namespace
}  // namespace kvc::test
