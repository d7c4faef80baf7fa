// Transfers: what arrives, what stays as it was, what is refused, and how they end.
#include "tests/capi/transfers.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <thread>

#include "tests/support/waiting.h"

namespace kvc::test {
namespace {

std::vector<int32_t> ids_of(int64_t count, int32_t first = 0) {
  std::vector<int32_t> ids;
  for (int64_t i = 0; i < count; ++i) ids.push_back(first + static_cast<int32_t>(i) * 7);
  return ids;
}

TEST(Transfers, ASequenceArrivesInEveryKindOfLayerAndEitherPoolLayout) {
  for (const kvc_pool_layout layout : {KVC_POOL_LAYER_FIRST, KVC_POOL_PAGE_FIRST}) {
    SCOPED_TRACE(layout == KVC_POOL_PAGE_FIRST ? "to PAGE_FIRST" : "to LAYER_FIRST");
    AllKinds from, to(layout);
    Cache first(from.net.config), second(to.net.config);
    const TestTransport sender, receiver;
    append_pattern(first, 1, 13, 41, 7);
    append_pattern(first, 1, 6, 41);
    append_pattern(second, 3, 5, 42);
    overwrite_free_pages(second);
    kvc_recv_desc desc = recv_desc(1, 19);
    desc.cross_length = 7;
    transfer(first, 1, second, desc, sender.get(), receiver.get());
    expect_same_info(info_of(first, 1), info_of(second, 1));
    EXPECT_EQ(pattern_difference(second, 1, 41), "");
    EXPECT_EQ(pattern_difference(second, 3, 42), "");
    EXPECT_EQ(file_difference(first, second, 1), "") << "bit for bit";
    for (Cache* cache : {&first, &second}) {
      append_pattern(*cache, 1, 6, 41);
      EXPECT_EQ(pattern_difference(*cache, 1, 41), "") << "and goes on as ever";
      expect_sound(*cache);
    }
    ASSERT_EQ(kvc_seq_remove(second.get(), 1, nullptr), KVC_OK);
    ASSERT_EQ(kvc_seq_remove(second.get(), 3, nullptr), KVC_OK);
    EXPECT_EQ(kvc_cache_is_empty(second.get()), 1);
    expect_sound(second);
  }
}

TEST(Transfers, LengthsAroundPagesArrive) {
  for (const int32_t page_size : {1, 4, 16, 48}) {
    for (const int64_t length : {1, 3, 4, 5, 16, 47, 48, 49, 97}) {
      SCOPED_TRACE(std::to_string(length) + " tokens, pages of " + std::to_string(page_size));
      Net net({attention_layer(), attention_layer(0, 3), kept_layer(5)}, 512);
      net.config.page_size = page_size;
      Cache first(net.config), second(net.config);
      const TestTransport transport;
      append_pattern(first, 5, length, 7);
      transfer(first, 5, second, recv_desc(5, length), transport.get(), transport.get());
      EXPECT_EQ(file_difference(first, second, 5), "");
      expect_sound(first);
      expect_sound(second);
    }
  }
}

TEST(Transfers, RoomThatIsReservedCountsAsNoForward) {
  Net net({attention_layer(), attention_layer(0, 3)}, 1024);
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  for (const int64_t count : {1200, 1300}) append_pattern(first, 1, count, 7);
  append_pattern(second, 2, 5, 8);
  const kvc_stats before = stats_of(second);
  const auto expect_same_counts = [&](const char* after) {
    const kvc_stats now = stats_of(second);
    EXPECT_EQ(now.forwards, before.forwards) << after;
    EXPECT_EQ(now.forwards_aborted, before.forwards_aborted) << after;
    EXPECT_EQ(now.tokens_appended, before.tokens_appended) << after;
    EXPECT_EQ(now.no_pages, before.no_pages) << after;
    EXPECT_EQ(now.step_bytes, before.step_bytes) << after;
    EXPECT_EQ(now.step_copies, before.step_copies) << after;
  };
  transfer(first, 1, second, recv_desc(1, 2500), transport.get(), transport.get());
  expect_same_counts("after an arrival");
  kvc_transfer* out = nullptr;
  const kvc_recv_desc large = recv_desc(3, 3000);
  EXPECT_EQ(kvc_transfer_recv(second.get(), transport.get(), &large, &out, nullptr),
            KVC_E_NO_PAGES);
  expect_same_counts("after a refusal");
}

TEST(Transfers, TokensThatTheReceiverHasDoNotTravel) {
  Net net({attention_layer(), attention_layer()}, 64);
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  const std::vector<int32_t> ids = ids_of(40);
  append_pattern(first, 1, 40, 7, 0, ids);
  append_pattern(second, 9, 24, 7, 0, {ids.begin(), ids.begin() + 24});
  ASSERT_EQ(kvc_seq_remove(second.get(), 9, nullptr), KVC_OK);
  kvc_prefix_query query{};
  query.struct_size = sizeof query;
  query.num_tokens = 40;
  query.tokens = ids.data();
  int64_t hit = 0;
  ASSERT_EQ(kvc_prefix_attach(second.get(), 1, &query, &hit, nullptr), KVC_OK);
  ASSERT_EQ(hit, 24);
  const uint64_t before = transport.stats().bytes_sent;
  kvc_recv_desc desc = recv_desc(1, 16, 24);
  desc.flags = KVC_TRANSFER_PUBLISH;
  transfer(first, 1, second, desc, transport.get(), transport.get());
  const uint64_t sent = transport.stats().bytes_sent - before;
  EXPECT_EQ(file_difference(first, second, 1), "");
  EXPECT_EQ(info_of(second, 1).known_tokens, 40);
  Cache third(net.config);
  kvc_recv_desc all = recv_desc(1, 40);
  transfer(first, 1, third, all, transport.get(), transport.get());
  EXPECT_GT(transport.stats().bytes_sent - before - sent, sent);
  EXPECT_EQ(info_of(third, 1).known_tokens, 0) << "nothing was to be published";
  // What has arrived is found as a prefix.
  ASSERT_EQ(kvc_seq_remove(second.get(), 1, nullptr), KVC_OK);
  query.flags = KVC_PREFIX_ALL_TOKENS;
  ASSERT_EQ(kvc_prefix_attach(second.get(), 2, &query, &hit, nullptr), KVC_OK);
  EXPECT_EQ(hit, 40);
  EXPECT_EQ(pattern_difference(second, 2, 7), "");
  expect_sound(first);
  expect_sound(second);
}

// The pages of kept tokens end before the others: some of them, or none, travel.
TEST(Transfers, KeptTokensArriveWhereverTheTransferBegins) {
  for (const int64_t begin : {0, 2, 4, 5, 6, 21, 24}) {
    SCOPED_TRACE(begin);
    Net net({kept_layer(5), attention_layer(), kept_layer(21)}, 128);
    Cache first(net.config), second(net.config);
    const TestTransport transport;
    append_pattern(first, 1, 30, 7);
    if (begin > 0) append_pattern(second, 1, begin, 7);
    transfer(first, 1, second, recv_desc(1, 30 - begin, begin), transport.get(), transport.get());
    EXPECT_EQ(pattern_difference(second, 1, 7), "");
    append_pattern(second, 1, 6, 7);
    EXPECT_EQ(pattern_difference(second, 1, 7), "");
    expect_sound(first);
    expect_sound(second);
  }
}

TEST(Transfers, AnotherPrefixIsNoticed) {
  Net net({attention_layer()}, 64);
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  append_pattern(first, 1, 20, 7, 0, ids_of(20));
  append_pattern(second, 1, 8, 8, 0, ids_of(8, 1000));
  const Bytes before = saved(second, {1});
  TestTransfer receiving, sending;
  const kvc_recv_desc desc = recv_desc(1, 12, 8);
  ASSERT_EQ(kvc_transfer_recv(second.get(), transport.get(), &desc, receiving.out(), nullptr),
            KVC_OK);
  const Bytes ticket = receiving.ticket();
  const kvc_send_desc send = send_desc(1, ticket, 8);
  ASSERT_EQ(kvc_transfer_send(first.get(), transport.get(), &send, sending.out(), nullptr), KVC_OK);
  expect_error(KVC_E_INVALID_ARGUMENT, {"block 0", "8 tokens"},
               [&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
  expect_error(KVC_E_INVALID_ARGUMENT, {"the receiver has ended", "block 0"},
               [&](kvc_error* err) { return sending.wait(kPatienceNs, err); });
  EXPECT_EQ(saved(second, {1}), before);
  expect_sound(first);
  expect_sound(second);
}

TEST(Transfers, WindowsAndSinksArrive) {
  Net net({attention_layer(), attention_layer(8)}, 64);
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  ASSERT_EQ(kvc_seq_add(first.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_set_window(first.get(), 1, 20, 5, nullptr), KVC_OK);
  for (int i = 0; i < 9; ++i) append_pattern(first, 1, 7, 3);
  // One receiver that knows of the window, one that does not.
  ASSERT_EQ(kvc_seq_add(second.get(), 1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_set_window(second.get(), 1, 20, 5, nullptr), KVC_OK);
  transfer(first, 1, second, recv_desc(1, 63), transport.get(), transport.get());
  Cache third(net.config);
  transfer(first, 1, third, recv_desc(1, 63), transport.get(), transport.get());
  for (Cache* cache : {&second, &third}) {
    expect_same_info(info_of(first, 1), info_of(*cache, 1));
    EXPECT_EQ(file_difference(first, *cache, 1), "");
    expect_sound(*cache);
  }
  for (Cache* cache : {&first, &second, &third}) append_pattern(*cache, 1, 11, 3);
  EXPECT_EQ(file_difference(first, second, 1), "");
  EXPECT_EQ(file_difference(first, third, 1), "");
}

// What is left of two sinks is the shorter one: the longer one's side has nothing for the rest, or
// nowhere to put it.
TEST(Transfers, SinksOfDifferentLengthsAreCutToTheShorterOne) {
  for (const auto& [theirs, ours] : {std::pair(5, 14), {14, 5}}) {
    SCOPED_TRACE(std::to_string(theirs) + " sinks to " + std::to_string(ours));
    Net net({attention_layer(), attention_layer()}, 64);
    Cache first(net.config), second(net.config);
    const TestTransport transport;
    ASSERT_EQ(kvc_seq_add(first.get(), 1, nullptr), KVC_OK);
    ASSERT_EQ(kvc_seq_set_window(first.get(), 1, 20, theirs, nullptr), KVC_OK);
    for (int i = 0; i < 9; ++i) append_pattern(first, 1, 7, 3);
    // The receiver has the first tokens, and its window has dropped some of them.
    ASSERT_EQ(kvc_seq_add(second.get(), 1, nullptr), KVC_OK);
    ASSERT_EQ(kvc_seq_set_window(second.get(), 1, 20, ours, nullptr), KVC_OK);
    for (int i = 0; i < 7; ++i) append_pattern(second, 1, 7, 3);
    transfer(first, 1, second, recv_desc(1, 14, 49), transport.get(), transport.get());
    EXPECT_EQ(pattern_difference(second, 1, 3), "");
    expect_sound(second);
    append_pattern(second, 1, 11, 3);
    EXPECT_EQ(pattern_difference(second, 1, 3), "");
  }
}

// Bytes of a page behind the last token: none of an earlier sequence travel, and none stay.
TEST(Transfers, RowsOfEarlierSequencesStayBehind) {
  Net net({attention_layer()}, 8);
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  for (Cache* cache : {&first, &second}) overwrite_free_pages(*cache);
  append_pattern(first, 1, 5, 7);
  const auto last_rows = [](const Cache& cache) {
    DLManagedTensorVersioned* pool = nullptr;
    EXPECT_EQ(kvc_export_pool(const_cast<kvc_cache*>(cache.get()), 0, KVC_POOL_K, &pool, nullptr),
              KVC_OK);
    const DLTensor& k = pool->dl_tensor;  // [pages, 1 head, 4 tokens, kDim]
    const auto* page =
        static_cast<const float*>(k.data) + pages_of(cache, 1, 0).at(1) * k.strides[0];
    std::vector<float> rows;
    for (int64_t token = 1; token < 4; ++token)
      for (int64_t d = 0; d < kDim; ++d)
        rows.push_back(page[token * k.strides[2] + d * k.strides[3]]);
    pool->deleter(pool);
    return rows;
  };
  const auto count_zeros = [](const std::vector<float>& rows) {
    return std::count(rows.begin(), rows.end(), 0.0F);
  };
  ASSERT_EQ(count_zeros(last_rows(first)), 0) << "they are the earlier sequence's";
  transfer(first, 1, second, recv_desc(1, 5), transport.get(), transport.get());
  EXPECT_EQ(count_zeros(last_rows(second)), 3 * kDim);
}

// A page of the receiver may be full of tokens while the sender's, which is larger, is not: it may
// still be given up for another one.
TEST(Transfers, WhatIsComputedLeavesInWholePagesOfTheSender) {
  // Two pages of the receiver are a chunk.
  kvc_layer wide = attention_layer();
  wide.num_q_heads = wide.num_kv_heads = 32;
  wide.k_dim = 512;
  Net large({wide, wide}, 4), small({wide, wide}, 12);
  large.config.page_size = 16;
  Cache first(large.config), second(small.config);
  const TestTransport sender, receiver;
  append_pattern(first, 1, 3, 7);
  TestTransfer sending, receiving;
  ASSERT_NO_FATAL_FAILURE(begin_transfer(first, 1, second, recv_desc(1, 40), sender.get(),
                                         receiver.get(), &sending, &receiving,
                                         KVC_SEND_AS_COMPUTED));
  for (const int64_t more : {10, 7, 9, 4, 7}) append_pattern(first, 1, more, 7);
  expect_ok([&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
  expect_ok([&](kvc_error* err) { return sending.wait(kPatienceNs, err); });
  EXPECT_EQ(pattern_difference(second, 1, 7), "");
  expect_sound(first);
  expect_sound(second);
}

TEST(Transfers, QuantisedRowsArriveWithTheirScales) {
  for (const kvc_quant quant : {KVC_QUANT_PER_TOKEN_HEAD, KVC_QUANT_BLOCK16}) {
    std::vector<kvc_layer> layers{attention_layer()};
    layers[0].quant = quant;
    layers[0].k_dtype = layers[0].v_dtype =
        quant == KVC_QUANT_BLOCK16 ? DLDataType{kDLFloat4_e2m1fn, 4, 1} : DLDataType{kDLInt, 8, 1};
    Net net(layers);
    net.config.storage = KVC_STORAGE_OWNED;
    kvc_plan* plan = nullptr;
    if (kvc_plan_create(&net.config, &plan, nullptr) != KVC_OK) continue;
    kvc_cache* probe = nullptr;
    const kvc_status status = kvc_cache_create(plan, &probe, nullptr);
    kvc_cache_destroy(probe);
    kvc_plan_destroy(plan);
    if (status != KVC_OK) continue;  // The CPU attends to no 4-bit rows.
    Cache first(net.config), second(net.config);
    const TestTransport transport;
    ASSERT_EQ(kvc_seq_add(first.get(), 1, nullptr), KVC_OK);
    Tokens tokens(11);
    HostTensor out(Elem::kF32, {11, kHeads, kDim});
    attend_rows(first, 1, 0, tokens, 0, 10, out);
    transfer(first, 1, second, recv_desc(1, 10), transport.get(), transport.get());
    EXPECT_EQ(file_difference(first, second, 1), "");
    HostTensor again(Elem::kF32, {11, kHeads, kDim});
    attend_rows(first, 1, 0, tokens, 10, 1, out);
    attend_rows(second, 1, 0, tokens, 10, 1, again);
    for (int64_t h = 0; h < kHeads; ++h)
      for (int64_t d = 0; d < kDim; ++d) EXPECT_EQ(out.get(10, h, d), again.get(10, h, d));
  }
}

// Between recv and its end a sequence is nobody's.
TEST(Transfers, ASequenceOnItsWayIsBusy) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  append_pattern(first, 1, 10, 7);
  TestTransfer receiving, sending;
  const kvc_recv_desc desc = recv_desc(4, 10);
  expect_ok([&](kvc_error* err) {
    return kvc_transfer_recv(second.get(), transport.get(), &desc, receiving.out(), err);
  });
  EXPECT_EQ(receiving.info().state, KVC_TRANSFER_WAITING);
  EXPECT_EQ(receiving.info().is_receiving, 1);
  EXPECT_EQ(length_of(second, 4), 10);
  const kvc_seq seq = 4;
  const int64_t one = 1;
  kvc_cache* cache = second.get();
  kvc_transfer* other = nullptr;
  const kvc_recv_desc appended = recv_desc(4, 3, 10);
  HostTensor rows(Elem::kF32, {10, 1, kDim});
  kvc_save_desc to_memory = save_desc();
  Bytes room(100000);
  to_memory.data = room.data();
  to_memory.size = room.size();
  const std::vector<std::pair<const char*, Call>> calls = {
      {"add", [&](kvc_error* err) { return kvc_seq_remove(cache, seq, err); }},
      {"fork", [&](kvc_error* err) { return kvc_seq_fork(cache, seq, 5, -1, err); }},
      {"pop", [&](kvc_error* err) { return kvc_seq_pop(cache, seq, 1, err); }},
      {"shift", [&](kvc_error* err) { return kvc_seq_shift(cache, seq, 0, 4, -4, err); }},
      {"window", [&](kvc_error* err) { return kvc_seq_set_window(cache, seq, 8, 0, err); }},
      {"reserve", [&](kvc_error* err) { return kvc_seq_reserve(cache, seq, 1, err); }},
      {"append",
       [&](kvc_error* err) {
         return second.begin_with(Request{{seq}, {one}}, err);
       }},
      {"save",
       [&](kvc_error* err) {
         return kvc_seq_save(cache, 1, &seq, &to_memory, nullptr, nullptr, err);
       }},
      {"get layer",
       [&](kvc_error* err) {
         return kvc_debug_get_layer(cache, seq, 0, 0, 10, rows.dl(), rows.dl(), nullptr, err);
       }},
      {"set layer",
       [&](kvc_error* err) {
         return kvc_debug_set_layer(cache, seq, 0, 0, rows.dl(), rows.dl(), nullptr, err);
       }},
      {"receive",
       [&](kvc_error* err) {
         return kvc_transfer_recv(cache, transport.get(), &appended, &other, err);
       }},
      {"clear", [&](kvc_error* err) { return kvc_cache_clear(cache, err); }},
      {"resize", [&](kvc_error* err) { return kvc_cache_resize(cache, 16, err); }},
  };
  for (const auto& [name, call] : calls) {
    SCOPED_TRACE(name);
    EXPECT_EQ(expect_error(KVC_E_BUSY, {"transfer"}, call).status, KVC_E_BUSY);
  }
  expect_error(KVC_E_ALREADY_EXISTS, {"4"},
               [&](kvc_error* err) { return kvc_seq_add(cache, 4, err); });
  expect_sound(second);
  append_pattern(second, 6, 9, 11);  // Others go on.
  expect_error(KVC_E_TIMEOUT, {"not over", "0 of 0"},
               [&](kvc_error* err) { return receiving.wait(0, err); });
  const Bytes ticket = receiving.ticket();
  EXPECT_LT(ticket.size(), 1000u);
  const kvc_send_desc send = send_desc(1, ticket);
  ASSERT_EQ(kvc_transfer_send(first.get(), transport.get(), &send, sending.out(), nullptr), KVC_OK);
  kvc_fence* fence = nullptr;
  ASSERT_EQ(kvc_transfer_fence(receiving.get(), &fence, nullptr), KVC_OK);
  ASSERT_EQ(kvc_fence_wait(fence, kPatienceNs, nullptr), KVC_OK);
  kvc_fence_destroy(fence);
  EXPECT_EQ(receiving.info().state, KVC_TRANSFER_ARRIVED);
  // The next call on the cache makes it a sequence; one with an open forward waits for its end.
  ASSERT_EQ(kvc_seq_fork(cache, seq, 5, -1, nullptr), KVC_OK);
  EXPECT_EQ(receiving.info().state, KVC_TRANSFER_DONE);
  EXPECT_EQ(pattern_difference(second, 5, 7), "");
  ASSERT_EQ(receiving.wait(), KVC_OK);
  ASSERT_EQ(kvc_cache_resize(cache, 64, nullptr), KVC_OK);
  expect_sound(second);
}

TEST(Transfers, SwappedSequencesAndTreesDoNotTravel) {
  Net net({attention_layer()}, 64);
  set_host_pages(net.config, 32);
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  for (Cache* cache : {&first, &second}) {
    append_pattern(*cache, 1, 10, 7);
    ASSERT_EQ(swap_out(*cache, {1}), KVC_OK);
    append_pattern(*cache, 2, 9, 8);
    Request tree{{2}, {2}};
    tree.parents = {-1, 0};
    ASSERT_EQ(cache->begin_with(tree, nullptr), KVC_OK);
    HostTensor rows(Elem::kF32, {2, 1, kDim});
    ASSERT_EQ(kvc_kv_append(cache->forward, 0, rows.dl(), rows.dl(), nullptr), KVC_OK);
    cache->end();
  }
  TestTransfer receiving;
  const kvc_recv_desc other = recv_desc(5, 10);
  ASSERT_EQ(kvc_transfer_recv(second.get(), transport.get(), &other, receiving.out(), nullptr),
            KVC_OK);
  const Bytes ticket = receiving.ticket();
  kvc_transfer* out = nullptr;
  for (const auto& [seq, what] : {std::pair<kvc_seq, const char*>{1, "swapped out"}, {2, "tree"}}) {
    SCOPED_TRACE(what);
    const kvc_seq id = seq;
    const kvc_send_desc send = send_desc(id, ticket);
    expect_error(KVC_E_INVALID_STATE, {what}, [&](kvc_error* err) {
      return kvc_transfer_send(first.get(), transport.get(), &send, &out, err);
    });
    const kvc_recv_desc recv = recv_desc(id, 3, id == 1 ? 10 : 9);
    expect_error(KVC_E_INVALID_STATE, {what}, [&](kvc_error* err) {
      return kvc_transfer_recv(second.get(), transport.get(), &recv, &out, err);
    });
  }
  // One on its way is not swapped.
  const kvc_seq arriving = 5;
  for (auto* swap : {&kvc_swap_out, &kvc_swap_in}) {
    EXPECT_NE(swap(second.get(), 1, &arriving, nullptr, nullptr, nullptr), KVC_OK);
  }
  ASSERT_EQ(swap_in(first, {1}), KVC_OK);
  const kvc_send_desc send = send_desc(1, ticket);
  TestTransfer sending;
  ASSERT_EQ(kvc_transfer_send(first.get(), transport.get(), &send, sending.out(), nullptr), KVC_OK);
  // And one that travels may be: the transfer holds what it reads.
  ASSERT_EQ(swap_out(first, {1}), KVC_OK);
  ASSERT_EQ(receiving.wait(), KVC_OK);
  EXPECT_EQ(pattern_difference(second, 5, 7), "");
  expect_sound(first);
  expect_sound(second);
}

TEST(Transfers, AnOpenForwardIsNotDisturbed) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  append_pattern(first, 1, 10, 7);
  append_pattern(second, 6, 3, 8);
  TestTransfer receiving, sending;
  const kvc_recv_desc desc = recv_desc(4, 10);
  ASSERT_EQ(kvc_transfer_recv(second.get(), transport.get(), &desc, receiving.out(), nullptr),
            KVC_OK);
  const Bytes ticket = receiving.ticket();
  const kvc_send_desc send = send_desc(1, ticket);
  ASSERT_EQ(second.begin({6}, {1}), KVC_OK);
  ASSERT_EQ(kvc_transfer_send(first.get(), transport.get(), &send, sending.out(), nullptr), KVC_OK);
  ASSERT_EQ(sending.wait(), KVC_OK);
  expect_error(KVC_E_BUSY, {"forward is open"},
               [&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
  ASSERT_EQ(kvc_forward_abort(second.forward, nullptr), KVC_OK);
  second.forward = nullptr;
  ASSERT_EQ(receiving.wait(), KVC_OK);
  EXPECT_EQ(pattern_difference(second, 4, 7), "");
  expect_sound(second);
}

// The sender's sequence is used, changed and removed while it is sent.
TEST(Transfers, TheSenderGoesOnMeanwhile) {
  Net net({attention_layer(), attention_layer()});
  Cache first(net.config), second(net.config);
  const TestTransport sender(transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS)), receiver;
  append_pattern(first, 1, 10, 7);
  TestTransfer receiving, sending;
  const kvc_recv_desc desc = recv_desc(1, 10);
  ASSERT_NO_FATAL_FAILURE(
      begin_transfer(first, 1, second, desc, sender.get(), receiver.get(), &sending, &receiving));
  int64_t missing = -1;
  const kvc_seq seq = 1;
  const int64_t one = 1;
  ASSERT_EQ(kvc_seq_can_append(first.get(), 1, &seq, &one, &missing, nullptr), KVC_OK);
  EXPECT_EQ(missing, 0);
  append_pattern(first, 1, 5, 7);  // into the page that travels
  expect_sound(first);
  ASSERT_EQ(kvc_seq_pop(first.get(), 1, 6, nullptr), KVC_OK);
  append_pattern(first, 1, 3, 99);
  expect_sound(first);
  ASSERT_EQ(kvc_seq_remove(first.get(), 1, nullptr), KVC_OK);
  EXPECT_EQ(kvc_cache_is_empty(first.get()), 0) << "the transfer holds its pages";
  overwrite_free_pages(first);
  int32_t fd = -1;
  ASSERT_EQ(kvc_transport_fd(sender.get(), &fd, nullptr), KVC_OK);
  EXPECT_GE(fd, 0);
  for (int i = 0; i < 1000 && sending.info().state != KVC_TRANSFER_DONE; ++i)
    ASSERT_EQ(kvc_transport_progress(sender.get(), kSecond / 100, nullptr), KVC_OK);
  ASSERT_EQ(sending.wait(), KVC_OK);
  ASSERT_EQ(receiving.wait(), KVC_OK);
  EXPECT_EQ(pattern_difference(second, 1, 7), "");
  ASSERT_EQ(kvc_cache_trim(first.get(), nullptr, nullptr), KVC_OK);
  EXPECT_EQ(kvc_cache_is_empty(first.get()), 1);
  expect_sound(first);
  expect_sound(second);
}

TEST(Transfers, WhatIsCancelledLeavesNothing) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  append_pattern(first, 1, 10, 7);
  append_pattern(second, 2, 6, 9, 0, ids_of(6));
  const Bytes before = saved(second, {2});
  const kvc_stats stats = stats_of(second);
  for (const kvc_recv_desc& desc : {recv_desc(1, 10), recv_desc(2, 4, 6)}) {
    SCOPED_TRACE(desc.seq);
    TestTransfer receiving;
    ASSERT_EQ(kvc_transfer_recv(second.get(), transport.get(), &desc, receiving.out(), nullptr),
              KVC_OK);
    const Bytes ticket = receiving.ticket();
    ASSERT_EQ(kvc_transfer_cancel(receiving.get(), nullptr), KVC_OK);
    expect_error(KVC_E_CANCELLED, {"cancelled"},
                 [&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
    EXPECT_EQ(receiving.info().state, KVC_TRANSFER_FAILED);
    EXPECT_EQ(receiving.info().status, KVC_E_CANCELLED);
    EXPECT_EQ(stats_of(second).pages_used, stats.pages_used);
    EXPECT_EQ(saved(second, {2}), before);
    expect_sound(second);
    // Its ticket is of no use any more.
    if (desc.begin != 0) continue;
    TestTransfer late;
    const kvc_send_desc send = send_desc(1, ticket);
    ASSERT_EQ(kvc_transfer_send(first.get(), transport.get(), &send, late.out(), nullptr), KVC_OK);
    expect_error(KVC_E_CANCELLED, {"the receiver has ended", "cancelled"},
                 [&](kvc_error* err) { return late.wait(kPatienceNs, err); });
    expect_sound(first);
  }
  int64_t length = 0;
  EXPECT_EQ(kvc_seq_length(second.get(), 1, &length, nullptr), KVC_E_NOT_FOUND);
}

TEST(Transfers, DeadlinesEndThem) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  append_pattern(first, 1, 10, 7);
  kvc_recv_desc desc = recv_desc(1, 10);
  desc.deadline_ns = kSecond / 50;
  TestTransfer receiving;
  ASSERT_EQ(kvc_transfer_recv(second.get(), transport.get(), &desc, receiving.out(), nullptr),
            KVC_OK);
  expect_error(KVC_E_TIMEOUT, {"deadline"},
               [&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
  EXPECT_EQ(kvc_cache_is_empty(second.get()), 1);
  // A receiver that never makes progress: the sender gives up.
  kvc_transport_desc hung = transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS);
  const TestTransport silent(hung);
  desc.deadline_ns = -1;
  TestTransfer other, sending;
  ASSERT_EQ(kvc_transfer_recv(second.get(), silent.get(), &desc, other.out(), nullptr), KVC_OK);
  const Bytes ticket = other.ticket();
  kvc_send_desc send = send_desc(1, ticket);
  send.idle_ns = kSecond / 50;
  kvc_transport_desc quick = transport_desc();
  quick.drain_ns = kSecond / 50;
  const TestTransport impatient(quick);
  ASSERT_EQ(kvc_transfer_send(first.get(), impatient.get(), &send, sending.out(), nullptr), KVC_OK);
  expect_error(KVC_E_TIMEOUT, {"nothing for too long"},
               [&](kvc_error* err) { return sending.wait(kPatienceNs, err); });
  other.destroy();
  expect_sound(first);
  expect_sound(second);
}

TEST(Transfers, OtherLayoutsAndModelsAreRefusedByNameOnBothSides) {
  Net from({attention_layer(), attention_layer()}), to({attention_layer(), attention_layer()});
  to.layers[1].k_dtype = to.layers[1].v_dtype = {kDLBfloat, 16, 1};
  Cache first(from.config), second(to.config), same(from.config);
  const TestTransport transport;
  append_pattern(first, 1, 10, 7);
  const auto refused = [&](Cache& cache, const char* mine, const char* theirs, kvc_status status,
                           std::initializer_list<const char*> parts) {
    kvc_recv_desc desc = recv_desc(1, 10);
    desc.model_id = mine;
    TestTransfer receiving, sending;
    ASSERT_EQ(kvc_transfer_recv(cache.get(), transport.get(), &desc, receiving.out(), nullptr),
              KVC_OK);
    const Bytes ticket = receiving.ticket();
    kvc_send_desc send = send_desc(1, ticket);
    send.model_id = theirs;
    ASSERT_EQ(kvc_transfer_send(first.get(), transport.get(), &send, sending.out(), nullptr),
              KVC_OK);
    expect_error(status, parts, [&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
    expect_error(status, parts, [&](kvc_error* err) { return sending.wait(kPatienceNs, err); });
    EXPECT_EQ(kvc_cache_is_empty(cache.get()), 1);
    expect_sound(cache);
    expect_sound(first);
  };
  refused(second, nullptr, nullptr, KVC_E_UNSUPPORTED, {"layers[1].k_dtype"});
  refused(same, "llama", "gemma", KVC_E_INVALID_ARGUMENT, {"llama", "gemma"});
}

// A layer, or some, as a layout describes them.
struct Described {
  explicit Described(std::vector<kvc_layer> layers, bool is_rotated = false)
      : net(std::move(layers), 64) {
    rope.theta = 1000;
    rope.scaling = KVC_ROPE_SCALING_LONGROPE;
    rope.freq_factors = factors.data();
    rope.long_freq_factors = long_factors.data();
    rope.num_freq_factors = kDim / 2;
    rope.attention_factor = 1.5;
    rope.original_context = 100;
    if (is_rotated) net.layers[0].rope = &rope;
    for (kvc_layer& layer : net.layers) {
      if (layer.kind != KVC_LAYER_STATE) continue;
      layer.states = &spec;
      layer.num_states = 1;
    }
  }
  kvc_layer& last() { return net.layers.back(); }

  std::vector<int64_t> shape{2, 3};
  kvc_state_spec spec = state_spec(shape);
  std::vector<float> factors = std::vector<float>(kDim / 2, 1.0f);
  std::vector<float> long_factors = std::vector<float>(kDim / 2, 2.0f);
  kvc_rope rope = rope_of(KVC_ROPE_ON_READ);
  Net net;
};

TEST(Transfers, EveryFieldOfALayoutIsComparedByName) {
  const TestTransport transport;
  using Layers = std::vector<kvc_layer>;
  const auto expect_refused = [&](const char* name, const Layers& layers, auto change,
                                  bool is_rotated = false) {
    SCOPED_TRACE(name);
    Described from(layers, is_rotated), to(layers, is_rotated);
    change(to);
    Cache sender(from.net.config), receiver(to.net.config);
    append_pattern(sender, 1, 10, 7);
    TestTransfer receiving, sending;
    ASSERT_NO_FATAL_FAILURE(begin_transfer(sender, 1, receiver, recv_desc(1, 10), transport.get(),
                                           transport.get(), &sending, &receiving));
    for (const TestTransfer* side : {&receiving, &sending}) {
      expect_error(KVC_E_UNSUPPORTED, {name},
                   [&](kvc_error* err) { return side->wait(kPatienceNs, err); });
    }
    EXPECT_EQ(kvc_cache_is_empty(receiver.get()), 1);
    expect_sound(receiver);
    expect_sound(sender);
  };
  const Layers one{attention_layer()}, two(2, attention_layer()), kept{kept_layer(5)};
  const Layers states{attention_layer(), layer_of_kind(KVC_LAYER_STATE)};
  expect_refused("num_layers is 2 in the sender, 3 in the receiver", two, [](Described& to) {
    to.net.layers.push_back(attention_layer());
    to.net.config.layers = to.net.layers.data();
    to.net.config.num_layers = 3;
  });
  expect_refused("layer_begin", two, [](Described& to) {
    to.net.config.layer_begin = 1;
    to.net.config.layer_end = 2;
  });
  expect_refused("layer_end", two, [](Described& to) { to.net.config.layer_end = 1; });
  expect_refused("layers[1].kind", two,
                 [](Described& to) { to.last() = layer_of_kind(KVC_LAYER_NONE); });
  expect_refused("layers[2].source_layer", {one[0], one[0], shared_layer(0)},
                 [](Described& to) { to.last().source_layer = 1; });
  expect_refused("layers[0].num_kv_heads", one,
                 [](Described& to) { to.last().num_kv_heads = kHeads; });
  expect_refused("layers[0].k_dim", one, [](Described& to) { to.last().k_dim = 65; });
  expect_refused("layers[0].v_dim", one, [](Described& to) { to.last().v_dim = 80; });
  expect_refused("layers[0].k_dim", {mla_layer()},
                 [](Described& to) { to.last().latent_rope_dim += 2; });
  expect_refused("layers[0].v_dim", {mla_layer()}, [](Described& to) {
    to.last().latent_rank += 2;
    to.last().latent_rope_dim -= 2;
  });
  expect_refused("layers[0].v_in_k", {joint_layer()}, [](Described& to) { to.last().flags = 0; });
  expect_refused("layers[0].k_dtype", one, [](Described& to) {
    to.last().k_dtype = {kDLBfloat, 16, 1};
  });
  expect_refused("layers[0].v_dtype", one, [](Described& to) {
    to.last().v_dtype = {kDLFloat, 16, 1};
  });
  expect_refused("layers[0].quant", {kept_layer(0)},
                 [](Described& to) { to.last().quant = KVC_QUANT_PER_TOKEN_HEAD; });
  expect_refused("layers[0].v_dtype", {kept_layer(0)}, [](Described& to) {
    to.last().v_quant = KVC_QUANT_OFF;
    to.last().v_dtype = {kDLFloat, 32, 1};
  });
  expect_refused("layers[0].k_scale", kept, [](Described& to) { to.last().k_scale = 2; });
  expect_refused("layers[0].v_scale", kept, [](Described& to) { to.last().v_scale = 2; });
  expect_refused("layers[0].keep_tokens", kept, [](Described& to) { to.last().keep_tokens = 6; });
  expect_refused("layers[1].states[0].shape", states, [](Described& to) { to.shape = {3, 2}; });
  expect_refused("layers[1].states[0].dtype", states, [](Described& to) {
    to.spec.dtype = {kDLBfloat, 16, 1};
  });
  const auto expect_rope = [&](const char* name, auto change) {
    expect_refused(name, one, change, true);
  };
  expect_rope("layers[0].rope", [](Described& to) { to.last().rope = nullptr; });
  const kvc_rope on_append = rope_of(KVC_ROPE_ON_APPEND), on_read = rope_of(KVC_ROPE_ON_READ);
  kvc_layer rotated = attention_layer();
  rotated.rope = &on_append;
  expect_refused("ropes[0].mode", {rotated}, [&](Described& to) { to.last().rope = &on_read; });
  kvc_rope cut = on_append;
  cut.num_sections = 2;
  cut.sections[0] = 1;
  cut.sections[1] = kDim / 2 - 1;
  expect_refused("ropes[0].section_of_pair", {rotated},
                 [&](Described& to) { to.last().rope = &cut; });
  expect_rope("ropes[0].style", [](Described& to) { to.rope.style = KVC_ROPE_INTERLEAVED; });
  expect_rope("ropes[0].rotary_dim", [](Described& to) {
    to.rope.num_freq_factors = kDim / 2 - 1;
    to.rope.rotary_dim = kDim - 2;
  });
  expect_rope("ropes[0].inverse_frequencies", [](Described& to) { to.rope.theta = 999; });
  expect_rope("ropes[0].long_inverse_frequencies", [](Described& to) { to.long_factors[3] = 3; });
  expect_rope("ropes[0].original_context", [](Described& to) { ++to.rope.original_context; });
  expect_rope("ropes[0].magnitude", [](Described& to) { to.rope.attention_factor = 2; });
  expect_refused("groups[0].window is 8 in the sender, 9 in the receiver", {attention_layer(8)},
                 [](Described& to) { to.last().window = 9; });
  expect_refused("groups[0].chunk is 6 in the sender, 7 in the receiver", {attention_layer(0, 6)},
                 [](Described& to) { to.last().chunk = 7; });
  // Another number of layer groups shows in the ticket.
  Net from(two), to({attention_layer(), attention_layer(8)});
  Cache sender(from.config), receiver(to.config);
  append_pattern(sender, 1, 10, 7);
  TestTransfer receiving;
  const kvc_recv_desc desc = recv_desc(1, 10);
  ASSERT_EQ(kvc_transfer_recv(receiver.get(), transport.get(), &desc, receiving.out(), nullptr),
            KVC_OK);
  const Bytes ticket = receiving.ticket();
  const kvc_send_desc send = send_desc(1, ticket);
  kvc_transfer* out = nullptr;
  expect_error(KVC_E_UNSUPPORTED, {"2 layer groups, the sender 1"}, [&](kvc_error* err) {
    return kvc_transfer_send(sender.get(), transport.get(), &send, &out, err);
  });
}

TEST(Transfers, ATicketIsOfUseOnce) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  const TestTransport transport, another;
  append_pattern(first, 1, 10, 7);
  TestTransfer receiving, sending, again;
  const kvc_recv_desc desc = recv_desc(1, 10);
  ASSERT_NO_FATAL_FAILURE(
      begin_transfer(first, 1, second, desc, another.get(), transport.get(), &sending, &receiving));
  const Bytes ticket = receiving.ticket();
  const kvc_send_desc send = send_desc(1, ticket);
  ASSERT_EQ(sending.wait(), KVC_OK);
  // It has arrived: a second sender is told the same, and writes nothing.
  ASSERT_EQ(kvc_seq_pop(first.get(), 1, 10, nullptr), KVC_OK);
  append_pattern(first, 1, 10, 8);
  ASSERT_EQ(kvc_transfer_send(first.get(), transport.get(), &send, again.out(), nullptr), KVC_OK);
  EXPECT_NE(again.wait(), KVC_OK);
  ASSERT_EQ(receiving.wait(), KVC_OK);
  EXPECT_EQ(pattern_difference(second, 1, 7), "");
  expect_sound(first);
  expect_sound(second);
}

TEST(Transfers, ATicketThatComesLateIsOfNoUse) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  auto receiver = std::make_unique<TestTransport>();
  append_pattern(first, 1, 10, 7);
  const auto expect_refused = [&](const Bytes& ticket, kvc_status status,
                                  std::initializer_list<const char*> parts) {
    TestTransfer late;
    const kvc_send_desc send = send_desc(1, ticket);
    ASSERT_EQ(kvc_transfer_send(first.get(), transport.get(), &send, late.out(), nullptr), KVC_OK);
    expect_error(status, parts, [&](kvc_error* err) { return late.wait(kPatienceNs, err); });
    EXPECT_EQ(kvc_cache_is_empty(second.get()), 1);
    expect_sound(first);
    expect_sound(second);
  };
  // Behind the receiver's deadline.
  kvc_recv_desc desc = recv_desc(1, 10);
  desc.deadline_ns = kSecond / 100;
  TestTransfer waiting;
  ASSERT_EQ(kvc_transfer_recv(second.get(), receiver->get(), &desc, waiting.out(), nullptr),
            KVC_OK);
  const Bytes old = waiting.ticket();
  ASSERT_EQ(waiting.wait(), KVC_E_TIMEOUT);
  expect_refused(old, KVC_E_TIMEOUT, {"the receiver has ended", "deadline"});
  // Another process has the address of the one that wrote it. The system keeps ports for a while.
  if (!is_loopback()) return;
  TestTransfer lost;
  desc.deadline_ns = 0;
  ASSERT_EQ(kvc_transfer_recv(second.get(), receiver->get(), &desc, lost.out(), nullptr), KVC_OK);
  const Bytes ticket = lost.ticket();
  char address[64];
  size_t len = sizeof address;
  ASSERT_EQ(kvc_transport_address(receiver->get(), address, &len, nullptr), KVC_OK);
  receiver.reset();
  ASSERT_EQ(lost.wait(), KVC_E_CANCELLED);
  kvc_transport_desc again = transport_desc();
  again.address = address;
  receiver = std::make_unique<TestTransport>(again);
  expect_refused(ticket, KVC_E_NOT_FOUND, {"no such transfer"});
}

TEST(Transfers, ATicketInUseIsRefusedToOthers) {
  Net net({attention_layer()}, 64);
  Cache first(net.config), second(net.config), other(net.config);
  const TestTransport transport, others_transport;
  append_pattern(first, 1, 10, 7);
  append_pattern(other, 1, 30, 8);
  TestTransfer receiving, sending, stranger;
  ASSERT_NO_FATAL_FAILURE(begin_transfer(first, 1, second, recv_desc(1, 30), transport.get(),
                                         transport.get(), &sending, &receiving,
                                         KVC_SEND_AS_COMPUTED));
  ASSERT_TRUE(comes_true([&] { return receiving.info().state == KVC_TRANSFER_RUNNING; }));
  const Bytes ticket = receiving.ticket();
  const kvc_send_desc send = send_desc(1, ticket);
  kvc_transfer* out = nullptr;
  expect_error(KVC_E_BUSY, {"in use"}, [&](kvc_error* err) {
    return kvc_transfer_send(other.get(), transport.get(), &send, &out, err);
  });
  ASSERT_EQ(kvc_transfer_send(other.get(), others_transport.get(), &send, stranger.out(), nullptr),
            KVC_OK);
  expect_error(KVC_E_BUSY, {"in use by another sender"},
               [&](kvc_error* err) { return stranger.wait(kPatienceNs, err); });
  append_pattern(first, 1, 20, 7);
  ASSERT_EQ(receiving.wait(), KVC_OK) << "the first one goes on";
  ASSERT_EQ(sending.wait(), KVC_OK);
  EXPECT_EQ(pattern_difference(second, 1, 7), "");
  for (Cache* cache : {&first, &second, &other}) expect_sound(*cache);
}

TEST(Transfers, EveryBitAndEveryLengthOfATicketCounts) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  append_pattern(first, 1, 10, 7);
  TestTransfer receiving;
  const kvc_recv_desc desc = recv_desc(1, 10);
  ASSERT_EQ(kvc_transfer_recv(second.get(), transport.get(), &desc, receiving.out(), nullptr),
            KVC_OK);
  const Bytes ticket = receiving.ticket();
  const auto status_of = [&](const Bytes& bytes) {
    TestTransfer sending;
    const kvc_send_desc send = send_desc(1, bytes);
    kvc_error error{};
    const kvc_status status =
        kvc_transfer_send(first.get(), transport.get(), &send, sending.out(), &error);
    EXPECT_NE(status, KVC_OK);
    EXPECT_NE(error.message[0], '\0');
    return status;
  };
  for (size_t bit = 0; bit < 8 * ticket.size(); ++bit) {
    Bytes damaged = ticket;
    damaged[bit / 8] ^= static_cast<uint8_t>(1u << (bit % 8));
    const kvc_status status = status_of(damaged);
    EXPECT_TRUE(status == KVC_E_CORRUPT || status == KVC_E_INVALID_ARGUMENT) << bit;
  }
  for (size_t size = 1; size < ticket.size(); ++size)
    EXPECT_NE(status_of({ticket.begin(), ticket.begin() + static_cast<std::ptrdiff_t>(size)}),
              KVC_OK);
  EXPECT_EQ(transport.stats().transfers_failed, 0u);
  const kvc_send_desc send = send_desc(1, ticket);
  TestTransfer sending;
  ASSERT_EQ(kvc_transfer_send(first.get(), transport.get(), &send, sending.out(), nullptr), KVC_OK);
  ASSERT_EQ(receiving.wait(), KVC_OK) << "and the true one works";
  expect_sound(second);
}

TEST(Transfers, BadArgumentsAreRefusedAndChangeNothing) {
  Net net({attention_layer()}, 8);
  net.config.max_seq_len = 32;
  Cache cache(net.config);
  const TestTransport transport;
  append_pattern(cache, 1, 10, 7);
  const Bytes before = saved(cache, {1});
  const auto recv = [&](kvc_status status, std::initializer_list<const char*> parts, auto change) {
    kvc_recv_desc desc = recv_desc(5, 4);
    change(desc);
    kvc_transfer* out = nullptr;
    expect_error(status, parts, [&](kvc_error* err) {
      return kvc_transfer_recv(cache.get(), transport.get(), &desc, &out, err);
    });
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(stats_of(cache).num_seqs, 1);
    EXPECT_EQ(saved(cache, {1}), before);
    expect_sound(cache);
  };
  const std::string long_name(256, 'x');
  recv(KVC_E_INVALID_ARGUMENT, {"desc.num_tokens = 0"}, [](auto& d) { d.num_tokens = 0; });
  recv(KVC_E_INVALID_ARGUMENT, {"desc.begin = -1"}, [](auto& d) { d.begin = -1; });
  recv(KVC_E_INVALID_ARGUMENT, {"desc.cross_length = -1"}, [](auto& d) { d.cross_length = -1; });
  recv(KVC_E_INVALID_ARGUMENT, {"desc.seq = -3"}, [](auto& d) { d.seq = -3; });
  recv(KVC_E_INVALID_ARGUMENT, {"256", "255"}, [&](auto& d) { d.model_id = long_name.c_str(); });
  recv(KVC_E_NOT_FOUND, {"sequence 5"}, [](auto& d) { d.begin = 3; });
  recv(KVC_E_OUT_OF_RANGE, {"desc.begin = 3", "10 tokens"},
       [](auto& d) { d.seq = 1, d.begin = 3; });
  recv(KVC_E_OUT_OF_RANGE, {"desc.priority = 101"}, [](auto& d) { d.priority = 101; });
  recv(KVC_E_UNSUPPORTED, {"desc.flags = 2"}, [](auto& d) { d.flags = 2; });
  recv(KVC_E_UNSUPPORTED, {"desc.reserved = 1"}, [](auto& d) { d.reserved = 1; });
  recv(KVC_E_INVALID_ARGUMENT, {"struct_size"}, [](auto& d) { d.struct_size = 0; });
  recv(KVC_E_NEVER_FITS, {"33", "32"}, [](auto& d) { d.num_tokens = 33; });
  recv(KVC_E_NO_PAGES, {}, [](auto& d) { d.num_tokens = 30; });
  recv(KVC_E_NO_PAGES, {}, [](auto& d) { d.seq = 1, d.begin = 10, d.num_tokens = 22; });
  TestTransfer receiving;
  Cache other(net.config);
  const kvc_recv_desc desc = recv_desc(1, 10);
  ASSERT_EQ(kvc_transfer_recv(other.get(), transport.get(), &desc, receiving.out(), nullptr),
            KVC_OK);
  const Bytes ticket = receiving.ticket();
  const auto send = [&](kvc_status status, std::initializer_list<const char*> parts, auto change) {
    kvc_send_desc sent = send_desc(1, ticket);
    change(sent);
    kvc_transfer* out = nullptr;
    expect_error(status, parts, [&](kvc_error* err) {
      return kvc_transfer_send(cache.get(), transport.get(), &sent, &out, err);
    });
    EXPECT_EQ(out, nullptr);
    EXPECT_EQ(saved(cache, {1}), before);
    expect_sound(cache);
  };
  append_pattern(other, 7, 4, 8);
  append_pattern(cache, 7, 4, 8);
  send(KVC_E_NOT_FOUND, {"sequence 9"}, [](auto& d) { d.seq = 9; });
  send(KVC_E_OUT_OF_RANGE, {"4 tokens", "10"}, [](auto& d) { d.seq = 7; });
  send(KVC_E_INVALID_ARGUMENT, {"desc.begin = 2"}, [](auto& d) { d.begin = 2; });
  send(KVC_E_INVALID_ARGUMENT, {"ticket is NULL"}, [](auto& d) { d.ticket = nullptr; });
  send(KVC_E_INVALID_ARGUMENT, {"ticket of 0 bytes"}, [](auto& d) { d.ticket_len = 0; });
  send(KVC_E_INVALID_ARGUMENT, {"4097"}, [](auto& d) { d.ticket_len = 4097; });
  send(KVC_E_INVALID_ARGUMENT, {"desc.mode = 2"}, [](auto& d) { d.mode = 2; });
  send(KVC_E_UNSUPPORTED, {"desc.flags = 1"}, [](auto& d) { d.flags = 1; });
  const auto open = [&](kvc_status status, std::initializer_list<const char*> parts, auto change) {
    kvc_transport_desc opened = transport_desc();
    change(opened);
    kvc_transport* out = nullptr;
    expect_error(status, parts,
                 [&](kvc_error* err) { return kvc_transport_open(&opened, &out, err); });
    EXPECT_EQ(out, nullptr);
  };
  open(KVC_E_UNSUPPORTED, {"\"tcp\""}, [](auto& d) { d.engine = "tcp"; });
  open(KVC_E_UNSUPPORTED, {"desc.flags = 2"}, [](auto& d) { d.flags = 2; });
  open(KVC_E_INVALID_ARGUMENT, {"desc.address is empty"}, [](auto& d) { d.address = ""; });
  open(KVC_E_INVALID_ARGUMENT, {"desc.idle_ns = -1"}, [](auto& d) { d.idle_ns = -1; });
  open(KVC_E_INVALID_ARGUMENT, {"desc.resend_rounds = -1"}, [](auto& d) { d.resend_rounds = -1; });
  char address[64];
  size_t len = sizeof address;
  ASSERT_EQ(kvc_transport_address(transport.get(), address, &len, nullptr), KVC_OK);
  open(is_loopback() ? KVC_E_ALREADY_EXISTS : KVC_E_IO, {address},
       [&](auto& d) { d.address = address; });
  int32_t fd = -1;
  expect_error(KVC_E_INVALID_STATE, {"thread of its own"},
               [&](kvc_error* err) { return kvc_transport_fd(transport.get(), &fd, err); });
  expect_error(KVC_E_INVALID_STATE, {"thread of its own"},
               [&](kvc_error* err) { return kvc_transport_progress(transport.get(), 0, err); });
  kvc_send_desc sent = send_desc(1, ticket);
  TestTransfer sending;
  ASSERT_EQ(kvc_transfer_send(cache.get(), transport.get(), &sent, sending.out(), nullptr), KVC_OK);
  expect_error(KVC_E_INVALID_STATE, {"sends"}, [&](kvc_error* err) {
    return kvc_transfer_ticket(sending.get(), nullptr, &len, err);
  });
  ASSERT_EQ(receiving.wait(), KVC_OK);
}

// Whichever goes first, nothing hangs and nothing is touched afterwards.
TEST(Transfers, CachesTransportsAndHandlesGoInAnyOrder) {
  for (int order = 0; order < 6; ++order) {
    SCOPED_TRACE(order);
    Net net({attention_layer()});
    Cache first(net.config), second(net.config);
    TestTransport sender(transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS)), receiver;
    append_pattern(first, 1, 30, 7);
    TestTransfer receiving, sending;
    kvc_recv_desc desc = recv_desc(1, 30);
    desc.deadline_ns = kSecond / 10;  // for those whose sender has gone before a word
    ASSERT_EQ(kvc_transfer_recv(second.get(), receiver.get(), &desc, receiving.out(), nullptr),
              KVC_OK);
    const Bytes ticket = receiving.ticket();
    const kvc_send_desc send = send_desc(1, ticket);
    ASSERT_EQ(kvc_transfer_send(first.get(), sender.get(), &send, sending.out(), nullptr), KVC_OK);
    if (order == 0) first.destroy();
    if (order == 1) second.destroy();
    if (order == 2) sender.destroy();
    if (order == 3) receiver.destroy();
    if (order == 4) receiving.destroy();
    if (order == 5) sending.destroy();
    if (order == 1) {
      EXPECT_EQ(receiving.info().state, KVC_TRANSFER_FAILED);
      EXPECT_EQ(receiving.wait(0), KVC_E_CANCELLED);
    }
    if (order < 2) continue;
    if (sender.get() != nullptr && sending.get() != nullptr) {
      EXPECT_NE(sending.wait(), KVC_OK);
    }
    if (receiving.get() != nullptr && receiver.get() != nullptr) {
      EXPECT_NE(receiving.wait(), KVC_OK);
    }
    sender.destroy();
    receiver.destroy();
    ASSERT_EQ(kvc_cache_trim(first.get(), nullptr, nullptr), KVC_OK);
    ASSERT_EQ(kvc_cache_trim(second.get(), nullptr, nullptr), KVC_OK);
    EXPECT_EQ(kvc_cache_is_empty(second.get()), 1);
    expect_sound(first);
    expect_sound(second);
  }
}

TEST(Transfers, WhatHasArrivedMayBeLeftByItsTransportAndItsCache) {
  Net net({attention_layer()});
  Cache first(net.config), second(net.config);
  TestTransport transport;
  append_pattern(first, 1, 10, 7);
  TestTransfer receiving, sending;
  const kvc_recv_desc desc = recv_desc(1, 10);
  ASSERT_NO_FATAL_FAILURE(begin_transfer(first, 1, second, desc, transport.get(), transport.get(),
                                         &sending, &receiving));
  ASSERT_EQ(sending.wait(), KVC_OK);
  ASSERT_EQ(receiving.info().state, KVC_TRANSFER_ARRIVED);
  transport.destroy();
  second.destroy();
  expect_error(KVC_E_INVALID_STATE, {"its cache is gone"},
               [&](kvc_error* err) { return receiving.wait(0, err); });
}

// The end comes at any point of a round of the transport's thread.
TEST(Transfers, TransportsEndAtOnce) {
  std::vector<std::thread> threads;
  for (int i = 0; i < 4; ++i) {
    threads.emplace_back([] {
      Net net({attention_layer()});
      Cache cache(net.config);
      for (int round = 0; round < 300; ++round) {
        TestTransport transport;
        TestTransfer receiving;
        const kvc_recv_desc desc = recv_desc(1, 1);
        EXPECT_EQ(kvc_transfer_recv(cache.get(), transport.get(), &desc, receiving.out(), nullptr),
                  KVC_OK);
        std::this_thread::sleep_for(std::chrono::microseconds(round));
        EXPECT_EQ(kvc_transfer_cancel(receiving.get(), nullptr), KVC_OK);  // It wakes the thread.
        transport.destroy();
        EXPECT_EQ(receiving.wait(), KVC_E_CANCELLED);
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
}

TEST(Transfers, AWaitMayBeAsLongAsItsTypeHolds) {
  Net net({attention_layer()});
  Cache cache(net.config);
  for (const uint64_t flags : {uint64_t{0}, uint64_t{KVC_TRANSPORT_MANUAL_PROGRESS}}) {
    const TestTransport transport(transport_desc(flags));
    TestTransfer receiving;
    const kvc_recv_desc desc = recv_desc(1, 10);
    ASSERT_EQ(kvc_transfer_recv(cache.get(), transport.get(), &desc, receiving.out(), nullptr),
              KVC_OK);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::milliseconds(10));
      EXPECT_EQ(kvc_transfer_cancel(receiving.get(), nullptr), KVC_OK);
    });
    EXPECT_EQ(receiving.wait(INT64_MAX), KVC_E_CANCELLED);
    other.join();
  }
}

// Waiting for a transfer drives a transport that has no thread, and may outlast it.
TEST(Transfers, ATransportMayGoWhileItIsWaitedFor) {
  Net net({attention_layer()});
  Cache cache(net.config);
  for (int round = 0; round < 20; ++round) {
    TestTransport transport(transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS));
    TestTransfer receiving;
    const kvc_recv_desc desc = recv_desc(1, 10);
    ASSERT_EQ(kvc_transfer_recv(cache.get(), transport.get(), &desc, receiving.out(), nullptr),
              KVC_OK);
    std::thread other([&] {
      std::this_thread::sleep_for(std::chrono::microseconds(100 * round));
      transport.destroy();
    });
    expect_error(KVC_E_CANCELLED, {"transport is gone"},
                 [&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
    other.join();
  }
  EXPECT_EQ(kvc_cache_is_empty(cache.get()), 1);
}

TEST(Transfers, AClosedTransportTakesNoMore) {
  Net net({attention_layer()});
  Cache cache(net.config);
  const TestTransport transport;
  TestTransfer receiving;
  const kvc_recv_desc desc = recv_desc(1, 10);
  ASSERT_EQ(kvc_transfer_recv(cache.get(), transport.get(), &desc, receiving.out(), nullptr),
            KVC_OK);
  EXPECT_EQ(kvc_transport_close(transport.get(), 0, nullptr), KVC_E_TIMEOUT);
  EXPECT_EQ(kvc_transport_close(transport.get(), 0, nullptr), KVC_OK) << "nothing is open";
  EXPECT_EQ(receiving.wait(), KVC_E_CANCELLED);
  kvc_transfer* out = nullptr;
  expect_error(KVC_E_INVALID_STATE, {"closed"}, [&](kvc_error* err) {
    return kvc_transfer_recv(cache.get(), transport.get(), &desc, &out, err);
  });
  EXPECT_EQ(kvc_cache_is_empty(cache.get()), 1);
  expect_sound(cache);
}

// Eight at once, in both directions over one pair of transports.
TEST(Transfers, ManyRunAtOnce) {
  Net net({attention_layer(), attention_layer()}, 512);
  Cache first(net.config), second(net.config);
  const TestTransport left, right;
  std::vector<std::unique_ptr<TestTransfer>> open;
  for (kvc_seq seq = 0; seq < 8; ++seq) {
    Cache& from = seq % 2 == 0 ? first : second;
    Cache& to = seq % 2 == 0 ? second : first;
    append_pattern(from, seq, 50 + 13 * seq, static_cast<uint64_t>(seq));
    auto receiving = std::make_unique<TestTransfer>(), sending = std::make_unique<TestTransfer>();
    const kvc_recv_desc desc = recv_desc(seq, 50 + 13 * seq);
    ASSERT_EQ(kvc_transfer_recv(to.get(), seq % 2 == 0 ? right.get() : left.get(), &desc,
                                receiving->out(), nullptr),
              KVC_OK);
    const Bytes ticket = receiving->ticket();
    const kvc_send_desc send = send_desc(seq, ticket);
    ASSERT_EQ(kvc_transfer_send(from.get(), seq % 2 == 0 ? left.get() : right.get(), &send,
                                sending->out(), nullptr),
              KVC_OK);
    open.push_back(std::move(receiving));
    open.push_back(std::move(sending));
  }
  for (const auto& one : open) EXPECT_EQ(one->wait(), KVC_OK);
  for (kvc_seq seq = 0; seq < 8; ++seq) EXPECT_EQ(file_difference(first, second, seq), "") << seq;
  expect_sound(first);
  expect_sound(second);
}

}  // namespace
}  // namespace kvc::test
