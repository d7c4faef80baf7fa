// kvc_events_*: what routers hear. Blocks of 4 tokens, one page each, 8 pages, 4 events kept.
#include <gtest/gtest.h>

#include <array>
#include <cstring>
#include <set>

#include "tests/capi/prefix_fixture.h"

namespace kvc::test {
namespace {

class Events : public testing::Test {
 protected:
  static constexpr size_t kCapacity = 4;

  Events() : net_({attention_layer()}, 8), cache_(config()) {}
  kvc_cache* get() const { return cache_.get(); }

  std::vector<kvc_event> poll(size_t most = 16) {
    std::vector<kvc_event> events(most);
    for (kvc_event& event : events) event.struct_size = sizeof event;
    kvc_error error{};
    EXPECT_EQ(kvc_events_poll(get(), events.data(), &most, &error), KVC_OK) << error.message;
    events.resize(most);
    return events;
  }
  std::vector<kvc_event> snapshot(uint64_t* number) {
    size_t count = 0;
    EXPECT_EQ(kvc_events_snapshot(get(), nullptr, &count, number, nullptr), KVC_OK);
    std::vector<kvc_event> events(count);
    for (kvc_event& event : events) event.struct_size = sizeof event;
    if (count != 0) {
      EXPECT_EQ(kvc_events_snapshot(get(), events.data(), &count, number, nullptr), KVC_OK);
    }
    return events;
  }
  static std::string key_of(const kvc_event& event) {
    return {reinterpret_cast<const char*>(event.hash), KVC_HASH_BYTES};
  }

  Net net_;
  Cache cache_;

 private:
  const kvc_config& config() {
    net_.config.storage = KVC_STORAGE_NONE;
    net_.config.event_capacity = kCapacity;
    return net_.config;
  }
};

TEST_F(Events, ABlockIsToldWithItsKeyItsParentAndItsTokens) {
  const Prompt prompt = prompt_of(8);
  publish(cache_, prompt, "tenant");
  const std::vector<kvc_event> events = poll();
  ASSERT_EQ(events.size(), 2u);
  Ask ask(prompt, "tenant");
  ask.hashed(2, 4, false);
  for (size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(events[i].number, i + 1);
    EXPECT_EQ(events[i].type, KVC_EVENT_STORED);
    EXPECT_EQ(events[i].tier, KVC_TIER_DEVICE);
    EXPECT_EQ(events[i].group, 0);
    ASSERT_EQ(events[i].num_tokens, 4);
    ASSERT_NE(events[i].tokens, nullptr);
    EXPECT_EQ(std::memcmp(events[i].tokens, prompt.data() + 4 * i, 16), 0);
    EXPECT_EQ(std::memcmp(events[i].hash, ask.hashes.data() + KVC_HASH_BYTES * i, KVC_HASH_BYTES),
              0);
  }
  EXPECT_EQ(std::memcmp(events[1].parent, events[0].hash, KVC_HASH_BYTES), 0);
  EXPECT_TRUE(poll().empty()) << "each is told once";
}

TEST_F(Events, LossShowsInTheNumbersAndASnapshotMakesUpForIt) {
  publish(cache_, prompt_of(24));  // 6 blocks: the first 2 events are lost
  uint64_t number = 0;
  const std::vector<kvc_event> all = snapshot(&number);
  EXPECT_EQ(number, 6u);
  ASSERT_EQ(all.size(), 6u);
  std::set<std::string> known;
  for (const kvc_event& event : all) {
    const std::string parent(reinterpret_cast<const char*>(event.parent), KVC_HASH_BYTES);
    if (!known.empty()) {
      EXPECT_TRUE(known.count(parent) == 1) << "parents come before their children";
    }
    known.insert(key_of(event));
  }
  const std::vector<kvc_event> late = poll();
  ASSERT_EQ(late.size(), kCapacity);
  EXPECT_EQ(late.front().number, 3u);
}

TEST_F(Events, EvictionsAndResetsAreTold) {
  publish(cache_, prompt_of(8));
  const std::string last = key_of(poll().at(1));
  ASSERT_EQ(kvc_prefix_evict(get(), 1, nullptr, nullptr), KVC_OK);
  const std::vector<kvc_event> evicted = poll();
  ASSERT_EQ(evicted.size(), 1u);
  EXPECT_EQ(evicted[0].type, KVC_EVENT_REMOVED);
  EXPECT_EQ(key_of(evicted[0]), last) << "the leaf goes first";
  ASSERT_EQ(kvc_prefix_reset(get(), nullptr), KVC_OK);
  const std::vector<kvc_event> cleared = poll();
  ASSERT_EQ(cleared.size(), 1u);
  EXPECT_EQ(cleared[0].type, KVC_EVENT_CLEARED);
  uint64_t number = 0;
  EXPECT_TRUE(snapshot(&number).empty());
  EXPECT_EQ(number, 4u);
}

TEST_F(Events, RefuseBadArguments) {
  kvc_event event{};
  event.struct_size = sizeof event;
  size_t count = 1;
  uint64_t number = 0;
  const auto bad = [](const std::function<kvc_status(kvc_error*)>& call) {
    expect_error(KVC_E_INVALID_ARGUMENT, {}, call);
  };
  bad([&](kvc_error* err) { return kvc_events_poll(nullptr, &event, &count, err); });
  bad([&](kvc_error* err) { return kvc_events_poll(get(), nullptr, &count, err); });
  bad([&](kvc_error* err) { return kvc_events_poll(get(), &event, nullptr, err); });
  bad([&](kvc_error* err) { return kvc_events_snapshot(nullptr, &event, &count, &number, err); });
  bad([&](kvc_error* err) { return kvc_events_snapshot(get(), &event, nullptr, &number, err); });
  bad([&](kvc_error* err) { return kvc_events_snapshot(get(), &event, &count, nullptr, err); });
  publish(cache_, prompt_of(8));
  count = 1;
  expect_error(KVC_E_BUFFER_TOO_SMALL, {"1", "2"}, [&](kvc_error* err) {
    return kvc_events_snapshot(get(), &event, &(count = 1), &number, err);
  });
  EXPECT_EQ(count, 2u);
  Net silent({attention_layer()}, 8);
  Cache quiet(silent.config);
  expect_error(KVC_E_UNSUPPORTED, {"event_capacity", "0"},
               [&](kvc_error* err) { return kvc_events_poll(quiet.get(), &event, &count, err); });
}

}  // namespace
}  // namespace kvc::test
