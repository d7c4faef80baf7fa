// Tiers in files: what another cache finds, what it must not find, and what damage may do.
#include "tests/capi/tiers.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <random>

namespace kvc::test {
namespace {

namespace fs = std::filesystem;

class FileTier : public testing::Test {
 protected:
  void SetUp() override {
    if (kvc_has_feature("tier.file") == 0)
      GTEST_SKIP() << "this build has no libkvcache_tier_rocksdb.so";
  }
  std::vector<fs::path> tables() const {
    std::vector<fs::path> found;
    for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
      if (entry.path().extension() == ".sst") found.push_back(entry.path());
    }
    std::sort(found.begin(), found.end());
    return found;
  }

  Folder folder_;
};

struct Shape {
  const char* name;
  std::vector<kvc_layer> layers;
};

std::vector<int64_t> state_shape{2, 3};
std::vector<kvc_state_spec> states{state_spec(state_shape)};

std::vector<Shape> shapes() {
  return {{"full attention", {attention_layer(), attention_layer()}},
          {"a window beside full attention", {attention_layer(), attention_layer(8)}},
          {"windows alone", {attention_layer(8)}},
          {"chunks", {attention_layer(), attention_layer(0, 6)}},
          {"MLA", {mla_layer(), mla_layer()}},
          {"a recurrent hybrid", {attention_layer(), state_layer(states)}},
          {"a window and states", {attention_layer(8), state_layer(states)}},
          {"shared layers", {attention_layer(), joint_layer(), shared_layer(0)}}};
}

TEST_F(FileTier, AFreshCacheFindsThePrefixesOfTheLastOne) {
  for (const Shape& shape : shapes()) {
    for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
      SCOPED_TRACE(shape.name);
      const Folder folder;
      Net net(shape.layers, 64);
      net.config.pool_layout = layout;
      int64_t published = 0;
      {
        Cache first(net.config);
        attach_tier(first, file_tier(folder.path()));
        publish(first, 1, 24, 7);
        publish(first, 2, 12, 8, "tenant");
        published = match(first, Query(token_ids(24, 7)));
        ASSERT_EQ(published, 24);
      }
      Cache second(net.config);
      overwrite_free_pages(second);
      const uint64_t appended = stats_of(second).tokens_appended;
      attach_tier(second, file_tier(folder.path()));
      EXPECT_EQ(hit(second, 1, 24, 7), 24);
      EXPECT_EQ(hit(second, 2, 12, 8, "tenant"), 12);
      EXPECT_EQ(hit(second, 3, 12, 8, "another"), 0);
      EXPECT_EQ(hit(second, 4, 12, 9), 0);
      EXPECT_EQ(stats_of(second).tokens_appended, appended) << "nothing is computed";
      EXPECT_GT(tier_stats(second).blocks_got, 0u);
      EXPECT_EQ(tier_stats(second).blocks_put, 0u) << "what was found there is there";
      // The sequence goes on, and what it shares is in the index now.
      append_pattern(second, 1, 5, 7);
      EXPECT_EQ(pattern_difference(second, 1, 7), "");
      const uint64_t got = tier_stats(second).blocks_got;
      EXPECT_EQ(hit(second, 5, 24, 7), 24);
      EXPECT_EQ(tier_stats(second).blocks_got, got);
      for (const kvc_seq seq : {1, 2, 3, 4, 5}) remove_seq(second, seq);
      expect_sound(second);
    }
  }
}

TEST_F(FileTier, WhatTheDeviceHasIsNotReadAgain) {
  Net net({attention_layer()}, 64);
  {
    Cache first(net.config);
    attach_tier(first, file_tier(folder_.path()));
    publish(first, 1, 32, 7);
  }
  Cache second(net.config);
  attach_tier(second, file_tier(folder_.path()));
  publish(second, 1, 12, 7);
  flush_tiers(second);
  EXPECT_EQ(hit(second, 2, 32, 7), 32);
  EXPECT_EQ(tier_stats(second).blocks_got, 5u);
  EXPECT_EQ(tier_stats(second).blocks_corrupt, 0u);
}

TEST_F(FileTier, OnlyWholeBlocksHitAndTheLastTokenIsLeft) {
  Net net({attention_layer()}, 64);
  {
    Cache first(net.config);
    attach_tier(first, file_tier(folder_.path()));
    publish(first, 1, 16, 7);
  }
  for (const auto& [flags, count, expected] : {std::tuple{uint64_t{0}, 16, 12},
                                               {uint64_t{0}, 17, 16},
                                               {uint64_t{0}, 1, 0},
                                               {uint64_t{KVC_PREFIX_ALL_TOKENS}, 16, 16},
                                               {uint64_t{KVC_PREFIX_ALL_TOKENS}, 15, 12}}) {
    Cache second(net.config);
    attach_tier(second, file_tier(folder_.path()));
    const Query query(token_ids(count, 7), flags);
    EXPECT_EQ(match(second, query), expected);
    EXPECT_EQ(attach(second, 1, query), expected);
  }
}

TEST_F(FileTier, MatchCountsNoBlocksThatHaveNoRoom) {
  for (const Shape& shape : shapes()) {
    SCOPED_TRACE(shape.name);
    const Folder folder;
    Net net(shape.layers, 64);
    {
      Cache first(net.config);
      attach_tier(first, file_tier(folder.path()));
      for (int32_t end = 4; end <= 24; end += 4) {  // Each block with a state.
        std::vector<int32_t> ids = token_ids(end, 7);
        ids.erase(ids.begin(), ids.begin() + end - 4);
        append_pattern(first, 1, 4, 7, 0, ids);
      }
    }
    for (int64_t pages = 2; pages <= 20; ++pages) {
      Net small(shape.layers, pages);
      Cache second(small.config);
      attach_tier(second, file_tier(folder.path()));
      const int64_t tokens = hit(second, 1, 24, 7);
      EXPECT_EQ(tokens % 4, 0);
      EXPECT_TRUE(pages < 20 || tokens == 24) << tokens;
    }
  }
}

TEST_F(FileTier, AValueIsOnlyFoundWhereItMeansTheSame) {
  Net net({attention_layer()}, 64);
  kvc_tier_desc desc = file_tier(folder_.path());
  desc.model_id = "model A";
  desc.shard = 1;
  {
    Cache first(net.config);
    attach_tier(first, desc);
    publish(first, 1, 16, 7);
  }
  const auto found = [&](const kvc_config& config, const kvc_tier_desc& tier) {
    Cache cache(config);
    attach_tier(cache, tier);
    return match(cache, Query(token_ids(16, 7)));
  };
  EXPECT_EQ(found(net.config, desc), 16);
  kvc_tier_desc other = desc;
  other.model_id = "model B";
  EXPECT_EQ(found(net.config, other), 0);
  other.model_id = nullptr;
  EXPECT_EQ(found(net.config, other), 0);
  other = desc;
  other.shard = 0;
  EXPECT_EQ(found(net.config, other), 0);
  Net bf16({attention_layer()}, 64), two({attention_layer(), attention_layer()}, 64),
      larger({attention_layer()}, 64);
  bf16.layers[0].k_dtype = {kDLBfloat, 16, 1};
  larger.config.page_size = 8;
  for (const Net* different : {&bf16, &two, &larger}) EXPECT_EQ(found(different->config, desc), 0);
  EXPECT_EQ(found(net.config, desc), 16);
}

TEST_F(FileTier, AResetDetachesIt) {
  Net net({attention_layer()}, 64);
  Cache cache(net.config);
  attach_tier(cache, file_tier(folder_.path()));
  publish(cache, 1, 16, 7);
  ASSERT_EQ(kvc_prefix_reset(cache.get(), nullptr), KVC_OK);
  EXPECT_EQ(match(cache, Query(token_ids(16, 7))), 0);
  kvc_tier_stats stats{};
  stats.struct_size = sizeof stats;
  expect_error(KVC_E_NOT_FOUND, {"tier = FILE (2) is not attached"}, [&](kvc_error* err) {
    return kvc_tier_stats_get(cache.get(), KVC_TIER_FILE, &stats, err);
  });
  attach_tier(cache, file_tier(folder_.path()));
  EXPECT_EQ(match(cache, Query(token_ids(16, 7))), 16) << "whoever says that it means the same";
}

TEST_F(FileTier, AClearedCacheAndEvictedBlocksComeBack) {
  Net net({attention_layer(), attention_layer(8)}, 64);
  set_host_pages(net.config, 3);
  Cache cache(net.config);
  attach_tier(cache, file_tier(folder_.path()));
  publish(cache, 1, 24, 7);
  flush_tiers(cache);
  remove_seq(cache, 1);
  evict(cache, 1 << 20);
  EXPECT_EQ(hit(cache, 2, 24, 7), 24);
  ASSERT_EQ(kvc_cache_clear(cache.get(), nullptr), KVC_OK);
  EXPECT_EQ(hit(cache, 3, 24, 7), 24);
}

TEST_F(FileTier, AQuotaMayKeepBlocksPrivate) {
  Net net({attention_layer()}, 64);
  {
    Cache first(net.config);
    attach_tier(first, file_tier(folder_.path()));
    publish(first, 1, 24, 7, "A");
  }
  Cache second(net.config);
  attach_tier(second, file_tier(folder_.path()));
  const uint64_t bytes = 2 * plan_of(second.plan()).page_bytes;
  ASSERT_EQ(kvc_prefix_quota_set(second.get(), "A", 1, bytes, nullptr), KVC_OK);
  EXPECT_EQ(hit(second, 1, 24, 7, "A"), 24);
  remove_seq(second, 1);
  EXPECT_LE(stats_of(second).pages_indexed, 2);
}

TEST_F(FileTier, HashesOfTheCallerWorkInTheirNamespaceAlone) {
  Net net({attention_layer()}, 64);
  {
    Cache first(net.config);
    attach_tier(first, file_tier(folder_.path()));
    publish(first, 1, 16, 7, "A");
  }
  Cache second(net.config);
  attach_tier(second, file_tier(folder_.path()));
  const std::vector<int32_t> ids = token_ids(16, 7);
  std::vector<uint8_t> hashes(4 * KVC_HASH_BYTES);
  size_t len = 4;
  ASSERT_EQ(
      kvc_prefix_hash(ids.data(), ids.size(), 4, "A", 1, nullptr, 0, hashes.data(), &len, nullptr),
      KVC_OK);
  for (const char* salt : {"A", "B"}) {
    Query query(ids, KVC_PREFIX_ALL_TOKENS, salt);
    query.c.tokens = nullptr;
    query.c.hashes = hashes.data();
    query.c.num_hashes = 4;
    const int64_t expected = salt[0] == 'A' ? 16 : 0;
    EXPECT_EQ(match(second, query), expected);
    EXPECT_EQ(attach(second, salt[0], query), expected);
  }
  EXPECT_EQ(pattern_difference(second, 'A', 7), "");
}

TEST_F(FileTier, ABurstBecomesATableOfItsOwn) {
  Net net({attention_layer(), attention_layer()}, 300);
  net.config.page_size = 64;
  kvc_tier_desc desc = file_tier(folder_.path());
  desc.byte_limit = 16 * kMebibyte;  // A burst is a quarter of a MiB.
  desc.queue_bytes = 32 * kMebibyte;
  Cache first(net.config);
  attach_tier(first, desc);
  for (int32_t family = 1; family <= 3; ++family) {
    publish(first, family, 64 * 80, family);
    if (family == 2) flush_tiers(first);
  }
  flush_tiers(first);
  const kvc_tier_stats stats = tier_stats(first);
  EXPECT_EQ(stats.blocks_put, 240u);
  EXPECT_EQ(stats.blocks_put_failed, 0u);
  const size_t before_closing = tables().size();
  EXPECT_GT(before_closing, 0u) << "what was in the write buffer alone has no table yet";
  first.destroy();
  Cache second(net.config);
  attach_tier(second, desc);
  for (int32_t family = 1; family <= 3; ++family) {
    EXPECT_EQ(hit(second, 1, 64 * 80, family), 64 * 80);
    remove_seq(second, 1);
  }
}

TEST_F(FileTier, TheLimitHoldsAndTheOldestGoFirst) {
  Net net({attention_layer()}, 64);
  net.config.page_size = 256;
  kvc_tier_desc desc = file_tier(folder_.path());
  desc.byte_limit = 16 * kMebibyte;
  Cache cache(net.config);
  attach_tier(cache, desc);
  const uint64_t block = plan_of(cache.plan()).page_bytes;
  const auto count = static_cast<int32_t>(3 * desc.byte_limit / block);
  for (int32_t family = 1; family <= count; ++family) {
    publish(cache, 1, 256, family);
    remove_seq(cache, 1);
    flush_tiers(cache);
  }
  EXPECT_EQ(tier_stats(cache).blocks_put, static_cast<uint64_t>(count));
  evict(cache, 1 << 20);
  EXPECT_EQ(match(cache, Query(token_ids(256, 1))), 0);
  EXPECT_EQ(hit(cache, 2, 256, count), 256);
  uint64_t on_disk = 0;
  ASSERT_EQ(kvc_tier_detach(cache.get(), KVC_TIER_FILE, nullptr), KVC_OK);
  for (const auto& entry : fs::recursive_directory_iterator(folder_.path())) {
    if (entry.is_regular_file()) on_disk += entry.file_size();
  }
  EXPECT_LE(on_disk, desc.byte_limit);
}

// ---- Damage

TEST_F(FileTier, ADamagedBlockIsAMiss) {
  Net net({attention_layer()}, 64);
  std::mt19937_64 random(20261124);
  const auto fill = [&] {
    Cache first(net.config);
    attach_tier(first, file_tier(folder_.path()));
    publish(first, 1, 32, 7);
  };
  fill();
  int64_t shorter = 0;
  for (int round = 0; round < 64; ++round) {
    const std::vector<fs::path> files = tables();
    ASSERT_FALSE(files.empty());
    const fs::path& file = files[random() % files.size()];
    const auto size = static_cast<uint64_t>(fs::file_size(file));
    const uint64_t offset = random() % size;
    std::fstream stream(file, std::ios::in | std::ios::out | std::ios::binary);
    stream.seekg(static_cast<std::streamoff>(offset));
    const int before = stream.get();
    const int flipped = before ^ (1 << random() % 8);
    stream.seekp(static_cast<std::streamoff>(offset));
    stream.put(static_cast<char>(flipped));
    stream.close();
    {
      Cache second(net.config);
      attach_tier(second, file_tier(folder_.path()));
      const Query query(token_ids(32, 7));
      const int64_t found = attach(second, 1, query);
      EXPECT_EQ(pattern_difference(second, 1, 7), "") << "bit of byte " << offset;
      shorter += found < 32 ? 1 : 0;
      expect_sound(second);
    }
    fs::remove_all(folder_.path() + "/kvcache-tier-1");
    fill();
  }
  EXPECT_GT(shorter, 0) << "no flip hit anything";
}

TEST_F(FileTier, ADamagedFolderOpensWithWhatIsLeft) {
  Net net({attention_layer()}, 64);
  const std::string store = folder_.path() + "/kvcache-tier-1";
  const auto damage = [&](int kind) {
    for (const auto& entry : fs::directory_iterator(store)) {
      const std::string name = entry.path().filename().string();
      const bool is_table = entry.path().extension() == ".sst";
      const bool is_manifest = name.rfind("MANIFEST", 0) == 0;
      if (kind == 0 && is_table) fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
      if (kind == 1 && is_table) fs::remove(entry.path());
      if (kind == 2 && is_table) fs::resize_file(entry.path(), 0);
      if (kind == 3 && is_manifest) fs::resize_file(entry.path(), fs::file_size(entry.path()) / 2);
      if (kind == 4 && is_manifest) fs::remove(entry.path());
      if (kind == 5 && name == "CURRENT") std::ofstream(entry.path()) << "nonsense";
    }
  };
  for (int kind = 0; kind < 6; ++kind) {
    SCOPED_TRACE(kind);
    fs::remove_all(store);
    {
      Cache first(net.config);
      attach_tier(first, file_tier(folder_.path()));
      publish(first, 1, 32, 7);
    }
    damage(kind);
    {
      Cache second(net.config);
      attach_tier(second, file_tier(folder_.path()));
      (void)hit(second, 1, 32, 7);
      publish(second, 2, 16, 8);
    }
    Cache third(net.config);
    attach_tier(third, file_tier(folder_.path()));
    EXPECT_EQ(hit(third, 1, 16, 8), 16) << "it works again";
  }
}

// ---- Bad input

TEST_F(FileTier, AFolderIsUsedByOneCacheAtATime) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  attach_tier(first, file_tier(folder_.path()));
  kvc_tier_desc desc = file_tier(folder_.path());
  expect_error(KVC_E_BUSY, {folder_.path().c_str(), "lock"},
               [&](kvc_error* err) { return kvc_tier_attach(second.get(), &desc, err); });
  ASSERT_EQ(kvc_tier_detach(first.get(), KVC_TIER_FILE, nullptr), KVC_OK);
  attach_tier(second, desc);
}

TEST_F(FileTier, PlacesThatCannotBeUsedAreNamed) {
  Net net({attention_layer()});
  Cache cache(net.config);
  const std::string file = folder_.file("a_file");
  std::ofstream(file) << "x";
  kvc_tier_desc desc = file_tier(file);
  expect_error(KVC_E_IO, {"a_file", "Not a directory"},
               [&](kvc_error* err) { return kvc_tier_attach(cache.get(), &desc, err); });
  desc.address = "/proc/none";
  expect_error(KVC_E_IO, {"/proc/none"},
               [&](kvc_error* err) { return kvc_tier_attach(cache.get(), &desc, err); });
  desc = file_tier(folder_.path());
  desc.byte_limit = kMebibyte;
  expect_error(KVC_E_INVALID_ARGUMENT, {"byte_limit = 1048576", "4 MiB"},
               [&](kvc_error* err) { return kvc_tier_attach(cache.get(), &desc, err); });
  expect_sound(cache);
}

TEST_F(FileTier, IsAttachedOnce) {
  Net net({attention_layer()});
  Cache cache(net.config);
  attach_tier(cache, file_tier(folder_.path()));
  const std::string other = folder_.file("other");
  kvc_tier_desc desc = file_tier(other);
  expect_error(KVC_E_ALREADY_EXISTS, {"desc.tier = FILE (2)"},
               [&](kvc_error* err) { return kvc_tier_attach(cache.get(), &desc, err); });
  ASSERT_EQ(kvc_tier_detach(cache.get(), KVC_TIER_FILE, nullptr), KVC_OK);
  expect_error(KVC_E_NOT_FOUND, {"tier = FILE (2)"},
               [&](kvc_error* err) { return kvc_tier_detach(cache.get(), KVC_TIER_FILE, err); });
  expect_ok([&](kvc_error* err) {
    return kvc_tier_attach_file(cache.get(), folder_.path().c_str(), 64 * kMebibyte, err);
  });
}

TEST(TierArguments, AreCheckedAndNamed) {
  Net net({attention_layer()});
  Cache cache(net.config);
  const std::string folder = "/nowhere", long_name(256, 'x');
  struct Case {
    std::function<void(kvc_tier_desc&)> change;
    kvc_status status;
    std::vector<const char*> parts;
  };
  const std::vector<Case> cases{
      {[](auto& d) { d.tier = KVC_TIER_HOST; },
       KVC_E_INVALID_ARGUMENT,
       {"desc.tier = 1", "FILE (2)"}},
      {[](auto& d) { d.tier = 9; }, KVC_E_INVALID_ARGUMENT, {"desc.tier = 9"}},
      {[](auto& d) { d.flags = 4; }, KVC_E_UNSUPPORTED, {"desc.flags = 4"}},
      {[](auto& d) { d.reserved = 4; }, KVC_E_UNSUPPORTED, {"desc.reserved = 4"}},
      {[](auto& d) { d.address = nullptr; }, KVC_E_INVALID_ARGUMENT, {"desc.address is NULL"}},
      {[](auto& d) { d.address = ""; }, KVC_E_INVALID_ARGUMENT, {"desc.address is empty"}},
      {[](auto& d) { d.byte_limit = 0; }, KVC_E_INVALID_ARGUMENT, {"desc.byte_limit = 0"}},
      {[](auto& d) { d.shard = -1; }, KVC_E_OUT_OF_RANGE, {"desc.shard = -1"}},
      {[](auto& d) { d.get_ms = -5; }, KVC_E_OUT_OF_RANGE, {"desc.get_ms = -5"}},
      {[](auto& d) { d.ttl_s = 5; }, KVC_E_INVALID_ARGUMENT, {"desc.ttl_s is set", "FILE"}},
      {[](auto& d) { d.username = "me"; }, KVC_E_INVALID_ARGUMENT, {"desc.username is set"}},
      {[](auto& d) { d.password = "me"; }, KVC_E_INVALID_ARGUMENT, {"desc.password is set"}},
      {[](auto& d) { d.put_ms = 1; }, KVC_E_INVALID_ARGUMENT, {"desc.put_ms is set"}},
      {[](auto& d) { d.connect_ms = 1; }, KVC_E_INVALID_ARGUMENT, {"desc.connect_ms is set"}},
      {[&](auto& d) { d.model_id = long_name.c_str(); },
       KVC_E_INVALID_ARGUMENT,
       {"desc.model_id has 256 bytes"}},
      {[](auto& d) { d.queue_bytes = UINT64_MAX; }, KVC_E_OUT_OF_RANGE, {"desc.queue_bytes"}},
      {[](auto& d) { d.tier = KVC_TIER_REDIS; },
       KVC_E_INVALID_ARGUMENT,
       {"desc.byte_limit is set", "REDIS"}},
      {[](auto& d) { d.struct_size = 4; }, KVC_E_INVALID_ARGUMENT, {"desc"}},
  };
  for (const Case& one : cases) {
    kvc_tier_desc desc = file_tier(folder);
    one.change(desc);
    kvc_error error{};
    EXPECT_EQ(kvc_tier_attach(cache.get(), &desc, &error), one.status) << error.message;
    for (const char* part : one.parts)
      EXPECT_NE(std::string(error.message).find(part), std::string::npos) << error.message;
    EXPECT_EQ(kvc_tier_attach(cache.get(), &desc, nullptr), one.status);
  }
  expect_error(KVC_E_INVALID_ARGUMENT, {"tier = 0"},
               [&](kvc_error* err) { return kvc_tier_detach(cache.get(), KVC_TIER_DEVICE, err); });
  expect_ok([&](kvc_error* err) { return kvc_tier_flush(cache.get(), 0, err); });
}

TEST(TierArguments, CachesThatPublishNothingAreRefused) {
  Net none({attention_layer()}), cross({attention_layer(), cross_layer()});
  none.config.storage = KVC_STORAGE_NONE;
  cross.config.max_cross_len = 8;
  for (const auto& [net, part] : {std::pair{&none, "NONE"}, {&cross, "CROSS"}}) {
    Cache cache(net->config);
    const std::string folder = "/nowhere";
    const kvc_tier_desc desc = file_tier(folder);
    expect_error(KVC_E_UNSUPPORTED, {part},
                 [&](kvc_error* err) { return kvc_tier_attach(cache.get(), &desc, err); });
  }
}

}  // namespace
}  // namespace kvc::test
