// A process that fills a tier is killed at random: what the next one finds there has the bits that
// were written.
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <random>
#include <thread>

#include "tests/capi/tiers.h"
#include "tests/reliability/times.h"
#include "tests/support/waiting.h"

namespace kvc::test {
namespace {

constexpr int32_t kFamilies = 40;
constexpr int64_t kTokens = 32;

struct SmallNet : Net {
  SmallNet() : Net({attention_layer(), attention_layer(8)}, 64) {
    config.num_threads = 1;
    config.page_size = 16;
  }
};

kvc_tier_desc small_tier(const std::string& folder) {
  kvc_tier_desc desc = file_tier(folder);
  desc.byte_limit = 16 * kMebibyte;
  return desc;
}

[[noreturn]] void write_for_ever(const std::string& folder, int32_t first) {
  const SmallNet net;
  Cache cache(net.config);
  attach_tier(cache, small_tier(folder));
  for (int32_t i = 0;; ++i) {
    const int32_t family = 1 + (first + i) % kFamilies;
    publish(cache, 1, kTokens, family);
    remove_seq(cache, 1);
    if (testing::Test::HasFailure()) _exit(1);
    // Now and then the tier is closed, which writes its memory to files.
    if (i % 16 != 15) continue;
    if (kvc_tier_detach(cache.get(), KVC_TIER_FILE, nullptr) != KVC_OK) _exit(1);
    attach_tier(cache, small_tier(folder));
  }
}

// Whoever opens a store does it in a process of its own. The threads of RocksDB end with a process
// only, and a child that is forked from one that has them waits for threads that it has not got.
template <typename Work>
void run_apart(const Work& work) {
  std::fflush(stdout);
  const pid_t child = fork();
  ASSERT_GE(child, 0);
  if (child == 0) {
    work();
    std::fflush(stdout);
    _exit(testing::Test::HasFailure() ? 1 : 0);
  }
  int status = 0;
  ASSERT_EQ(waitpid(child, &status, 0), child);
  ASSERT_TRUE(WIFEXITED(status) && WEXITSTATUS(status) == 0) << "status " << status;
}

// What readers count, in memory that they share with the process that starts them.
struct Found {
  int64_t blocks = 0, misses = 0;
  double slowest = 0;
};

int64_t num_tables(const Folder& folder) {
  const std::filesystem::path store = folder.path() + "/kvcache-tier-1";
  int64_t tables = 0;
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(store, ignored))
    tables += entry.path().extension() == ".sst" ? 1 : 0;
  return tables;
}

TEST(KilledTierWrites, WhatIsFoundHasTheBitsThatWereWritten) {
  if (kvc_has_feature("tier.file") == 0)
    GTEST_SKIP() << "this build has no libkvcache_tier_rocksdb.so";
  const Folder folder;
  std::mt19937_64 random(20261124);
  int64_t kills = 0;
  void* shared =
      mmap(nullptr, sizeof(Found), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  ASSERT_NE(shared, MAP_FAILED);
  auto* found = new (shared) Found;
  for (const int64_t end = times(20, 1000); kills < end; ++kills) {
    const pid_t child = fork();
    ASSERT_GE(child, 0);
    if (child == 0) write_for_ever(folder.path(), static_cast<int32_t>(random() % kFamilies));
    std::this_thread::sleep_for(std::chrono::microseconds(2000 + random() % 60000));
    // A busy machine may need longer to write anything at all.
    if (kills % 4 == 0) {
      EXPECT_TRUE(comes_true([&] { return num_tables(folder) > 0; }));
    }
    ASSERT_EQ(kill(child, SIGKILL), 0);
    int status = 0;
    ASSERT_EQ(waitpid(child, &status, 0), child);
    ASSERT_TRUE(WIFSIGNALED(status)) << "the writing process failed by itself";
    run_apart([&] {
      const SmallNet net;
      Cache cache(net.config);
      const auto start = std::chrono::steady_clock::now();
      attach_tier(cache, small_tier(folder.path()));
      const std::chrono::duration<double> opened = std::chrono::steady_clock::now() - start;
      found->slowest = std::max(found->slowest, opened.count());
      for (int32_t family = 1; family <= kFamilies; ++family) {
        const int64_t tokens = hit(cache, 1, kTokens, family);
        found->blocks += tokens / 16;
        found->misses += tokens == 0 ? 1 : 0;
        remove_seq(cache, 1);
        ASSERT_FALSE(testing::Test::HasFailure()) << "kill " << kills << ", family " << family;
      }
      ASSERT_EQ(tier_stats(cache).blocks_corrupt, 0u);
      ASSERT_EQ(kvc_tier_detach(cache.get(), KVC_TIER_FILE, nullptr), KVC_OK);
    });
    ASSERT_FALSE(testing::Test::HasFailure());
    if (random() % 8 == 0) std::filesystem::remove_all(folder.path() + "/kvcache-tier-1");
  }
  std::printf(
      "%lld kills: %lld blocks found and right, %lld prompts missed; opened in %.3f s at most\n",
      static_cast<long long>(kills), static_cast<long long>(found->blocks),
      static_cast<long long>(found->misses), found->slowest);
  EXPECT_GT(found->blocks, 0);
  munmap(shared, sizeof(Found));
}

// A file system of 24 MiB: puts fail, gets go on, and space that comes back is used.
TEST(FullDisk, PutsAreCountedAndGetsAreServed) {
  if (kvc_has_feature("tier.file") == 0)
    GTEST_SKIP() << "this build has no libkvcache_tier_rocksdb.so";
  const Folder folder;
  const std::string mount = "mount -t tmpfs -o size=24m tmpfs " + folder.path() + " 2>/dev/null";
  if (geteuid() != 0 || std::system(mount.c_str()) != 0)
    GTEST_SKIP() << "a file system of its own needs root";
  run_apart([&] {
    const std::string ballast = folder.file("ballast");
    Net net({attention_layer()}, 64);
    net.config.page_size = 256;
    Cache cache(net.config);
    attach_tier(cache, file_tier(folder.file("tier")));
    const auto put = [&](int32_t from, int32_t to) {
      for (int32_t family = from; family < to; ++family) {
        publish(cache, 1, 512, family);
        remove_seq(cache, 1);
        flush_tiers(cache);
      }
      ASSERT_EQ(kvc_tier_flush(cache.get(), -1, nullptr), KVC_OK);
    };
    put(1, 4);
    ASSERT_EQ(kvc_tier_detach(cache.get(), KVC_TIER_FILE, nullptr), KVC_OK);
    attach_tier(cache, file_tier(folder.file("tier")));
    ASSERT_EQ(std::system(("head -c 100m /dev/zero > " + ballast + " 2>/dev/null; true").c_str()),
              0);
    const int64_t block = static_cast<int64_t>(plan_of(cache.plan()).page_bytes);
    const auto many = static_cast<int32_t>(10 * static_cast<int64_t>(kMebibyte) / block / 2 + 10);
    put(100, 100 + many);
    const kvc_tier_stats full = tier_stats(cache);
    EXPECT_GT(full.blocks_put_failed + full.blocks_dropped, 0u);
    evict(cache, 1 << 20);
    EXPECT_EQ(hit(cache, 2, 512, 1), 512) << "what was there is served";
    std::filesystem::remove(ballast);
    // The store takes a while to see it, and the tier is left alone for some seconds in between.
    const uint64_t before = tier_stats(cache).blocks_put;
    int32_t family = 1000;
    EXPECT_TRUE(comes_true([&] {
      put(family, family + 1);
      ++family;
      return tier_stats(cache).blocks_put > before;
    })) << "it never writes again";
  });
  ASSERT_EQ(std::system(("umount " + folder.path()).c_str()), 0);
}

}  // namespace
}  // namespace kvc::test
