// What may run at the same time does: const functions beside an open forward, different caches,
// plans, handles that move between threads.
#include <atomic>
#include <thread>

#include "tests/stress/decoder.h"

namespace kvc::test {
namespace {

TEST(Threads, ConstFunctionsRunBesideTheAttentionOfAnOpenForward) {
  DecoderShape shape;
  shape.num_threads = 3;
  shape.num_layers = 6;
  Decoder decoder(shape);
  decoder.step({{1, 100}, {2, 30}, {3, 5}}, 0);
  kvc_cache* cache = decoder.cache();

  // begin and end need exclusion, so the readers pause around them.
  std::atomic<bool> reading{false}, done{false};
  std::atomic<int> inside{0};
  std::atomic<int64_t> rounds{0};
  const auto read = [&](int which) {
    while (!done) {
      if (!reading) {
        std::this_thread::yield();
        continue;
      }
      ++inside;
      if (reading) {
        kvc_stats stats{};
        stats.struct_size = sizeof stats;
        kvc_seq_info info{};
        info.struct_size = sizeof info;
        int64_t number = 0;
        kvc_seq ids[8];
        size_t count = 8;
        const kvc_seq seq = 9;
        const int64_t append = 4;
        DLManagedTensorVersioned* pages = nullptr;
        EXPECT_EQ(kvc_cache_stats_get(cache, &stats, nullptr), KVC_OK);
        EXPECT_EQ(kvc_seq_info_get(cache, 1 + which % 3, &info, nullptr), KVC_OK);
        EXPECT_EQ(kvc_seq_length(cache, 2, &number, nullptr), KVC_OK);
        EXPECT_EQ(kvc_seq_list(cache, ids, &count, nullptr), KVC_OK);
        EXPECT_EQ(kvc_seq_can_append(cache, 1, &seq, &append, &number, nullptr), KVC_OK);
        EXPECT_EQ(kvc_seq_can(cache, 9, KVC_SEQ_FORK, 0, &number, nullptr), KVC_OK);
        EXPECT_EQ(kvc_cache_check(cache, nullptr), KVC_OK);
        EXPECT_GE(kvc_cache_available_pages(cache), 0);
        EXPECT_GE(kvc_cache_total_length(cache), 135);
        EXPECT_EQ(kvc_cache_is_empty(cache), 0);
        EXPECT_EQ(kvc_export_seq_pages(cache, 1, 0, &pages, nullptr), KVC_OK);
        if (pages != nullptr) pages->deleter(pages);
        HostTensor k(Elem::kF32, {6, 8, 2, 80});
        EXPECT_EQ(kvc_debug_get_kv(cache, 1, 40, 48, k.dl(), nullptr, nullptr, nullptr), KVC_OK);
        EXPECT_TRUE(std::isfinite(k.get(5, 7, 1, 79)));
        ++rounds;
      }
      --inside;
    }
  };
  EXPECT_EQ(kvc_seq_add(cache, 9, nullptr), KVC_OK);
  std::vector<std::thread> readers;
  for (int i = 0; i < 3; ++i) readers.emplace_back(read, i);

  for (int step = 0; step < 30; ++step) {
    kvc_forward_desc desc{};
    const kvc_seq seqs[] = {1, 2};
    const int64_t lengths[] = {step % 3 == 0 ? 9 : 1, 1};
    desc.struct_size = sizeof desc;
    desc.num_seqs = 2;
    desc.seqs = seqs;
    desc.append_lengths = lengths;
    kvc_forward* forward = nullptr;
    ASSERT_EQ(kvc_forward_begin(cache, &desc, &forward, nullptr), KVC_OK);
    reading = true;
    const int64_t rows = lengths[0] + 1;
    HostTensor q(Elem::kF32, {rows, 6, 80}), k(Elem::kF32, {rows, 2, 80}),
        v(Elem::kF32, {rows, 2, 80}), out(Elem::kF32, {rows, 6, 80});
    HostTensor positions(Elem::kI32, {rows});
    Random random(static_cast<uint64_t>(step));
    q.fill_random(random);
    k.fill_random(random);
    v.fill_random(random);
    for (int32_t layer = 0; layer < 6; ++layer) {
      EXPECT_EQ(
          kvc_attn(forward, layer, nullptr, q.dl(), k.dl(), v.dl(), out.dl(), nullptr, nullptr),
          KVC_OK);
      EXPECT_EQ(kvc_forward_num_tokens(forward), rows);
    }
    const int64_t target = rounds + 3;
    while (rounds < target) std::this_thread::yield();
    reading = false;
    while (inside != 0) std::this_thread::yield();
    ASSERT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
  }
  done = true;
  for (std::thread& reader : readers) reader.join();
  EXPECT_GE(rounds, 90);
}

TEST(Threads, CachesAreIndependent) {
  DecoderShape shape;
  shape.num_threads = 2;
  shape.num_layers = 2;
  shape.num_pages = 64;
  const auto run = [&] {
    Decoder decoder(shape);
    std::vector<std::vector<TokenOutput>> outputs;
    outputs.push_back(decoder.step({{1, 70}, {2, 3}}, 0));
    for (int i = 0; i < 8; ++i) outputs.push_back(decoder.step({{2, 1}, {1, 1}}, 0));
    EXPECT_EQ(kvc_seq_fork(decoder.cache(), 1, 4, -1, nullptr), KVC_OK);
    outputs.push_back(decoder.step({{4, 2}, {1, 2}}, 0));
    EXPECT_EQ(kvc_cache_check(decoder.cache(), nullptr), KVC_OK);
    return outputs;
  };
  const auto expected = run();
  std::vector<std::thread> threads;
  std::atomic<int> equal{0};
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 3; ++round) equal += run() == expected ? 1 : 0;
    });
  }
  for (std::thread& thread : threads) thread.join();
  EXPECT_EQ(equal, 12);
}

TEST(Threads, OnePlanMakesCachesInManyThreads) {
  kvc_layer layer{};
  layer.struct_size = sizeof layer;
  layer.num_kv_heads = 2;
  layer.k_dim = 16;
  kvc_config config{};
  config.struct_size = sizeof config;
  config.num_layers = 1;
  config.layers = &layer;
  config.num_pages = 16;
  config.num_threads = 1;
  kvc_plan* plan = nullptr;
  ASSERT_EQ(kvc_plan_create(&config, &plan, nullptr), KVC_OK);
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([&] {
      for (int round = 0; round < 10; ++round) {
        kvc_cache* cache = nullptr;
        int64_t pages = 0;
        EXPECT_EQ(kvc_plan_request_pages(plan, 100, &pages, nullptr), KVC_OK);
        EXPECT_EQ(kvc_cache_create(plan, &cache, nullptr), KVC_OK);
        EXPECT_EQ(kvc_seq_add(cache, round, nullptr), KVC_OK);
        kvc_cache_destroy(cache);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  kvc_plan_destroy(plan);
}

TEST(Threads, AHandleMovesBetweenThreads) {
  DecoderShape shape;
  shape.num_threads = 2;
  Decoder stays(shape), moves(shape);
  for (int i = 0; i < 6; ++i) {
    const std::vector<TokenOutput> expected = stays.step({{1, 20}}, 0);
    std::vector<TokenOutput> got;
    std::thread([&] { got = moves.step({{1, 20}}, 0); }).join();
    EXPECT_EQ(got, expected);
  }
}

void count_messages(void* user, kvc_log_level, const char*) {
  ++*static_cast<std::atomic<int>*>(user);
}

TEST(Threads, TheLoggerMayBeReplacedWhileCachesAreMade) {
  static std::atomic<int> messages{0};  // outlives a call in flight
  std::atomic<bool> done{false};
  std::thread switching([&] {
    while (!done) {
      EXPECT_EQ(kvc_set_logger(count_messages, &messages, KVC_LOG_DEBUG, nullptr), KVC_OK);
      EXPECT_EQ(kvc_set_logger(nullptr, nullptr, KVC_LOG_DEBUG, nullptr), KVC_OK);
    }
  });
  DecoderShape shape;
  shape.num_pages = 4;
  for (int i = 0; i < 50; ++i) Decoder decoder(shape);
  done = true;
  switching.join();
}

}  // namespace
}  // namespace kvc::test
