// Tiers on Redis servers: several caches share prefixes, and what servers do wrong is a miss.
#include <chrono>
#include <memory>
#include <thread>

#include "tests/capi/tiers.h"
#include "tests/support/redis_server.h"

namespace kvc::test {
namespace {

kvc_tier_desc redis_tier(const std::string& address) {
  kvc_tier_desc desc{};
  desc.struct_size = sizeof desc;
  desc.tier = KVC_TIER_REDIS;
  desc.address = address.c_str();
  desc.queue_bytes = 4 * kMebibyte;
  desc.get_ms = desc.put_ms = desc.connect_ms = 10000;  // A machine that runs other tests.
  return desc;
}

class RedisTier : public testing::Test {
 protected:
  void SetUp() override {
    if (kvc_has_feature("tier.redis") == 0)
      GTEST_SKIP() << "this build has no libkvcache_tier_redis.so";
    if (!RedisServer::is_installed()) GTEST_SKIP() << "there is no redis-server here";
  }
};

TEST_F(RedisTier, CachesShareWhatTheyPublish) {
  const RedisServer server;
  const std::string address = server.address();
  std::vector<int64_t> shape{2, 3};
  std::vector<kvc_state_spec> specs{state_spec(shape)};
  Net net({attention_layer(), attention_layer(8), state_layer(specs)}, 64);
  Cache first(net.config), second(net.config);
  for (Cache* cache : {&first, &second}) attach_tier(*cache, redis_tier(address));
  publish(first, 1, 24, 7);
  flush_tiers(first);
  EXPECT_EQ(tier_stats(first, KVC_TIER_REDIS).blocks_put, 6u);
  EXPECT_EQ(hit(second, 1, 24, 7), 24);
  EXPECT_EQ(hit(second, 2, 24, 8), 0);
  publish(second, 3, 24, 9);
  flush_tiers(second);
  EXPECT_EQ(hit(first, 4, 24, 9), 24);
  EXPECT_EQ(server.ask("dbsize"), "12\n");
  EXPECT_EQ(tier_stats(first, KVC_TIER_REDIS).blocks_corrupt, 0u);
}

TEST_F(RedisTier, FileAndServerComplementEachOther) {
  if (kvc_has_feature("tier.file") == 0)
    GTEST_SKIP() << "this build has no libkvcache_tier_rocksdb.so";
  const RedisServer server;
  const std::string address = server.address();
  const Folder folder;
  Net net({attention_layer()}, 64);
  {
    Cache first(net.config);
    attach_tier(first, redis_tier(address));
    publish(first, 1, 16, 7);
  }
  {
    Cache second(net.config);
    attach_tier(second, file_tier(folder.path()));
    EXPECT_EQ(hit(second, 1, 16, 7), 0);
    append_pattern(second, 1, 8, 7, 0, token_ids(8, 7));
  }
  Cache third(net.config);
  attach_tier(third, file_tier(folder.path()));
  attach_tier(third, redis_tier(address));
  EXPECT_EQ(hit(third, 1, 16, 7), 16);
  EXPECT_EQ(tier_stats(third, KVC_TIER_FILE).blocks_got, 2u);
  EXPECT_EQ(tier_stats(third, KVC_TIER_REDIS).blocks_got, 2u);
  flush_tiers(third);
  EXPECT_EQ(tier_stats(third, KVC_TIER_FILE).blocks_put, 2u) << "what it did not have";
}

TEST_F(RedisTier, PasswordsAreAskedForAndNeverShown) {
  const RedisServer server({"--requirepass", "a secret"});
  const std::string address = server.address();
  Net net({attention_layer()}, 64);
  Cache cache(net.config);
  kvc_tier_desc desc = redis_tier(address);
  const auto attach = [&](kvc_error* err) { return kvc_tier_attach(cache.get(), &desc, err); };
  expect_error(KVC_E_IO, {address.c_str(), "NOAUTH"}, attach);
  desc.password = "another secret";
  const kvc_error error = expect_error(KVC_E_IO, {address.c_str(), "WRONGPASS"}, attach);
  EXPECT_EQ(std::string(error.message).find("another secret"), std::string::npos);
  desc.password = "a secret";
  attach_tier(cache, desc);
  ASSERT_EQ(kvc_tier_detach(cache.get(), KVC_TIER_REDIS, nullptr), KVC_OK);
  desc.username = "default";
  attach_tier(cache, desc);
  publish(cache, 1, 8, 7);
  flush_tiers(cache);
  EXPECT_EQ(tier_stats(cache, KVC_TIER_REDIS).blocks_put, 2u);
}

TEST_F(RedisTier, ValuesAreKeptAsLongAsWasAsked) {
  const RedisServer server;
  const std::string address = server.address();
  Net net({attention_layer()}, 64);
  kvc_tier_desc desc = redis_tier(address);
  desc.ttl_s = 1;
  Cache cache(net.config);
  attach_tier(cache, desc);
  publish(cache, 1, 8, 7);
  flush_tiers(cache);
  EXPECT_EQ(tier_stats(cache, KVC_TIER_REDIS).blocks_put, 2u);
  remove_seq(cache, 1);
  EXPECT_TRUE(comes_true([&] { return server.ask("dbsize") == "0\n"; }));
  evict(cache, 1 << 20);
  EXPECT_EQ(hit(cache, 2, 8, 7), 0);
}

TEST_F(RedisTier, PlacesThatCannotBeUsedAreNamed) {
  Net net({attention_layer()}, 64);
  Cache cache(net.config);
  const RefusingPort taken;
  const std::string nobody = taken.address();
  kvc_tier_desc desc = redis_tier(nobody);
  const auto attach = [&](kvc_error* err) { return kvc_tier_attach(cache.get(), &desc, err); };
  expect_error(KVC_E_IO, {nobody.c_str(), "refused"}, attach);
  for (const char* bad :
       {"localhost", "host:", ":6379", "host:0", "host:70000", "host:12x", "a:1,,b:2"}) {
    desc.address = bad;
    expect_error(KVC_E_INVALID_ARGUMENT, {bad, "host:port"}, attach);
  }
  const RedisServer server;
  const std::string both = nobody + "," + server.address();
  desc.address = both.c_str();
  attach_tier(cache, desc);
  publish(cache, 1, 8, 7);
  flush_tiers(cache);
  EXPECT_EQ(tier_stats(cache, KVC_TIER_REDIS).blocks_put, 2u) << "the second is there";
}

TEST_F(RedisTier, AServerThatSpeaksAnotherLanguageIsRefused) {
  // It answers every request with the same line.
  const int listener = ::socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in place{};
  place.sin_family = AF_INET;
  place.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t size = sizeof place;
  ASSERT_EQ(::bind(listener, reinterpret_cast<sockaddr*>(&place), size), 0);
  ASSERT_EQ(::listen(listener, 8), 0);
  ASSERT_EQ(::getsockname(listener, reinterpret_cast<sockaddr*>(&place), &size), 0);
  std::thread server([&] {
    for (;;) {
      const int client = ::accept(listener, nullptr, nullptr);
      if (client < 0) return;
      char buffer[256];
      (void)!::recv(client, buffer, sizeof buffer, 0);
      (void)!::send(client, "HTTP/1.1 400 Bad Request\r\n\r\n", 28, MSG_NOSIGNAL);
      ::close(client);
    }
  });
  Net net({attention_layer()}, 64);
  Cache cache(net.config);
  const std::string address = "127.0.0.1:" + std::to_string(ntohs(place.sin_port));
  const kvc_tier_desc desc = redis_tier(address);
  expect_error(KVC_E_IO, {address.c_str(), "not the Redis protocol"},
               [&](kvc_error* err) { return kvc_tier_attach(cache.get(), &desc, err); });
  ::shutdown(listener, SHUT_RDWR);
  server.join();
  ::close(listener);
}

TEST_F(RedisTier, AServerThatDiesOrHangsCostsADeadlineAndComesBack) {
  RedisServer server;
  const std::string address = server.address();
  Net net({attention_layer()}, 64);
  Cache cache(net.config);
  kvc_tier_desc desc = redis_tier(address);
  desc.put_ms = desc.connect_ms = 120000;
  desc.get_ms = 400;  // As long as one lookup of a server that hangs may take.
  attach_tier(cache, desc);
  publish(cache, 1, 16, 7);
  flush_tiers(cache);
  remove_seq(cache, 1);
  evict(cache, 1 << 20);
  const auto stats = [&] { return tier_stats(cache, KVC_TIER_REDIS); };
  ASSERT_EQ(stats().blocks_put, 4u);
  // Lookups that fail on a slow machine lengthen the pause, but a working server ends it.
  const auto is_found = [&](kvc_seq seq, int32_t family) {
    return comes_true([&] {
      if (attach(cache, seq, Query(token_ids(16, family))) == 16) {
        EXPECT_EQ(pattern_difference(cache, seq, static_cast<uint64_t>(family)), "");
        remove_seq(cache, seq);
        evict(cache, 1 << 20);
        return true;
      }
      remove_seq(cache, seq);
      return false;
    });
  };

  server.send(SIGSTOP);
  const auto start = std::chrono::steady_clock::now();
  EXPECT_EQ(hit(cache, 2, 16, 7), 0);
  EXPECT_LT(std::chrono::steady_clock::now() - start, std::chrono::seconds(60))
      << "a lookup has waited as long as a write or a connection may";
  EXPECT_EQ(stats().blocks_timed_out, 2u);
  // The third failure closes the breaker for a second, each later one for twice as long: however
  // slow the machine is, there comes a lookup that does not reach the server.
  EXPECT_TRUE(comes_true([&] {
    const uint64_t before = stats().lookups;
    EXPECT_EQ(match(cache, Query(token_ids(16, 7))), 0);
    return stats().lookups == before;
  })) << "it is never left alone";
  EXPECT_GE(stats().blocks_timed_out, 3u);
  server.send(SIGCONT);
  EXPECT_TRUE(is_found(5, 7)) << "the server goes on";

  server.stop();
  EXPECT_EQ(hit(cache, 6, 16, 7), 0);
  const uint64_t put = stats().blocks_put;
  publish(cache, 7, 8, 9);
  flush_tiers(cache);
  EXPECT_EQ(stats().blocks_put, put);
  server.start();
  EXPECT_EQ(hit(cache, 8, 16, 7), 0) << "it is empty";
  int32_t family = 100;
  EXPECT_TRUE(comes_true([&] {
    const uint64_t before = stats().blocks_put;
    publish(cache, 9, 16, ++family);
    flush_tiers(cache);
    remove_seq(cache, 9);
    return stats().blocks_put == before + 4;
  })) << "the server that came back is not written to";
  evict(cache, 1 << 20);
  EXPECT_TRUE(is_found(10, family)) << "the server that came back is not read from";
}

TEST_F(RedisTier, AFullServerIsCounted) {
  const RedisServer server({"--maxmemory", "3mb", "--maxmemory-policy", "noeviction"});
  const std::string address = server.address();
  Net net({attention_layer()}, 64);
  net.config.page_size = 256;
  Cache cache(net.config);
  attach_tier(cache, redis_tier(address));
  for (int32_t family = 1; family <= 200; ++family) {
    publish(cache, 1, 512, family);
    remove_seq(cache, 1);
  }
  flush_tiers(cache);
  const kvc_tier_stats stats = tier_stats(cache, KVC_TIER_REDIS);
  EXPECT_GT(stats.blocks_put, 0u);
  EXPECT_GT(stats.blocks_put_failed, 0u);
  evict(cache, 1 << 20);
  EXPECT_EQ(hit(cache, 2, 512, 1), 512) << "what it has is served";
}

TEST_F(RedisTier, DamagedAndForeignValuesAreMisses) {
  const RedisServer server;
  const std::string address = server.address();
  Net net({attention_layer()}, 64);
  Cache cache(net.config);
  attach_tier(cache, redis_tier(address));
  publish(cache, 1, 16, 7);
  flush_tiers(cache);
  remove_seq(cache, 1);
  const std::string names = server.ask("--raw keys 'kvcache:1:*'");
  std::vector<std::string> keys;
  for (size_t begin = 0, end; (end = names.find('\n', begin)) != std::string::npos; begin = end + 1)
    keys.push_back(names.substr(begin, end - begin));
  ASSERT_EQ(keys.size(), 4u);
  for (const char* damage : {"setrange KEY 200 XX", "setrange KEY 0 XX", "setrange KEY 40 XX",
                             "append KEY X", "set KEY short", "set KEY ''"}) {
    for (const std::string& key : keys) {
      std::string command = damage;
      ASSERT_FALSE(server.ask(command.replace(command.find("KEY"), 3, key)).empty());
    }
    evict(cache, 1 << 20);
    EXPECT_EQ(attach(cache, 2, Query(token_ids(16, 7))), 0) << damage;
    expect_sound(cache);
    remove_seq(cache, 2);
  }
}

// ---- Clusters

class Cluster {
 public:
  explicit Cluster(int count) {
    for (int i = 0; i < count; ++i) {
      nodes_.push_back(std::make_unique<RedisServer>(
          std::vector<std::string>{"--cluster-enabled", "yes", "--cluster-node-timeout", "60000",
                                   "--cluster-require-full-coverage", "no"}));
    }
    std::string create = "--cluster create";
    for (const auto& node : nodes_) create += " " + node->address();
    nodes_[0]->ask(create + " --cluster-yes");
    (void)comes_true([&] { return is_ready(); });
  }
  bool is_ready() const {
    for (const auto& node : nodes_) {
      const std::string info = node->ask("cluster info");
      if (info.find("cluster_slots_ok:16384") == std::string::npos ||
          info.find("cluster_state:ok") == std::string::npos)
        return false;
    }
    return true;
  }
  RedisServer& node(size_t i) { return *nodes_[i]; }

 private:
  std::vector<std::unique_ptr<RedisServer>> nodes_;
};

TEST_F(RedisTier, AClusterIsFollowedWhereItsSlotsGo) {
  Cluster cluster(3);
  ASSERT_TRUE(cluster.is_ready());
  const std::string address = cluster.node(1).address();
  Net net({attention_layer()}, 400);
  Cache cache(net.config);
  kvc_tier_desc desc = redis_tier(address);
  attach_tier(cache, desc);
  for (int32_t family = 1; family <= 12; ++family) {
    publish(cache, family, 16, family);
  }
  flush_tiers(cache);
  EXPECT_EQ(tier_stats(cache, KVC_TIER_REDIS).blocks_put, 48u);
  for (size_t i = 0; i < 3; ++i) EXPECT_NE(cluster.node(i).ask("dbsize"), "0\n") << "node " << i;
  const auto forget = [&] { ASSERT_EQ(kvc_cache_clear(cache.get(), nullptr), KVC_OK); };
  forget();
  for (int32_t family = 1; family <= 12; ++family) EXPECT_EQ(hit(cache, family, 16, family), 16);

  // A slot that holds a key of node 0 moves to node 2, and halfway its keys are asked for there.
  const std::string names = cluster.node(0).ask("--raw keys '*'");
  const std::string key = names.substr(0, names.find('\n'));
  std::string slot = cluster.node(0).ask("--raw cluster keyslot " + key);
  slot.pop_back();
  const auto id = [&](size_t i) {
    std::string text = cluster.node(i).ask("--raw cluster myid");
    text.pop_back();
    return text;
  };
  const std::string from = id(0), to = id(2);
  ASSERT_EQ(cluster.node(2).ask("cluster setslot " + slot + " importing " + from), "OK\n");
  ASSERT_EQ(cluster.node(0).ask("cluster setslot " + slot + " migrating " + to), "OK\n");
  for (;;) {
    const std::string held = cluster.node(0).ask("--raw cluster getkeysinslot " + slot + " 100");
    const size_t end = held.find('\n');
    if (held.size() <= 1 || end == std::string::npos) break;
    ASSERT_EQ(cluster.node(0).ask("migrate 127.0.0.1 " + std::to_string(cluster.node(2).port()) +
                                  " " + held.substr(0, end) + " 0 60000"),
              "OK\n");
  }
  forget();
  for (int32_t family = 1; family <= 12; ++family)
    EXPECT_EQ(hit(cache, family, 16, family), 16) << "while the slot moves: ASK";
  for (const size_t i : {2, 0, 1})
    EXPECT_EQ(cluster.node(i).ask("cluster setslot " + slot + " node " + to), "OK\n");
  forget();
  for (int32_t family = 1; family <= 12; ++family)
    EXPECT_EQ(hit(cache, family, 16, family), 16) << "once it has moved: MOVED";

  // A node dies: its blocks are misses, the others' hits.
  cluster.node(0).stop();
  forget();
  int64_t found = 0;
  for (int round = 0; round < 2; ++round) {
    for (int32_t family = 1; family <= 12; ++family) {
      const kvc_seq seq = 100 * (round + 1) + family;
      found += attach(cache, seq, Query(token_ids(16, family)));
      EXPECT_EQ(pattern_difference(cache, seq, static_cast<uint64_t>(family)), "");
    }
    // The second round comes after the second in which a lost node is not asked again.
    if (round == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1100));
  }
  EXPECT_EQ(tier_stats(cache, KVC_TIER_REDIS).blocks_corrupt, 0u);
  EXPECT_GT(found, 0);
}

}  // namespace
}  // namespace kvc::test
