// Transfers of rows while they are computed, and into pages of another size.
#include <functional>
#include <thread>

#include "tests/capi/transfers.h"

namespace kvc::test {
namespace {

// Every kind of layer that is written in a forward of append_pattern.
struct MostKinds {
  explicit MostKinds(int32_t page_size, kvc_pool_layout layout = KVC_POOL_LAYER_FIRST)
      : net({attention_layer(), attention_layer(8), mla_layer(), joint_layer(), state_layer(specs),
             shared_layer(0), layer_of_kind(KVC_LAYER_NONE), attention_layer(0, 6), kept_layer(5)},
            128) {
    net.layers[3].k_dtype = {kDLBfloat, 16, 1};
    net.layers[1].k_dtype = {kDLFloat, 16, 1};
    net.config.page_size = page_size;
    net.config.pool_layout = layout;
  }
  std::vector<int64_t> shape{2, 3};
  std::vector<kvc_state_spec> specs{state_spec(shape)};
  Net net;
};

// Both sides of one transfer of sequence 1 that is computed meanwhile.
struct Following {
  Following(Cache& from, Cache& to, int64_t length,
            const kvc_transport_desc& desc = transport_desc())
      : transport(desc) {
    begin_transfer(from, 1, to, recv_desc(1, length), transport.get(), transport.get(), &sending,
                   &receiving, KVC_SEND_AS_COMPUTED);
  }
  void expect_done() {
    expect_ok([&](kvc_error* err) { return receiving.wait(60 * kSecond, err); });
    expect_ok([&](kvc_error* err) { return sending.wait(60 * kSecond, err); });
  }

  TestTransport transport;
  TestTransfer sending, receiving;
};

TEST(TransfersAsComputed, EveryKindOfLayerArrives) {
  for (const std::vector<int64_t>& steps :
       {std::vector<int64_t>{19}, {1, 18}, {7, 7, 5}, {15, 3, 1}, {18, 1}}) {
    MostKinds from(4), to(4, KVC_POOL_PAGE_FIRST);
    Cache first(from.net.config), second(to.net.config);
    overwrite_free_pages(second);
    ASSERT_EQ(kvc_seq_add(first.get(), 1, nullptr), KVC_OK);
    Following both(first, second, 19);
    for (const int64_t step : steps) {
      append_pattern(first, 1, step, 41);
      expect_sound(first);
    }
    both.expect_done();
    EXPECT_EQ(pattern_difference(second, 1, 41), "");
    EXPECT_EQ(file_difference(first, second, 1), "") << "bit for bit";
    for (Cache* cache : {&first, &second}) {
      append_pattern(*cache, 1, 6, 41);
      EXPECT_EQ(pattern_difference(*cache, 1, 41), "");
      expect_sound(*cache);
    }
  }
}

// Encoder tokens come with the first forward, while their sequence is followed.
TEST(TransfersAsComputed, EncoderTokensArrive) {
  Net net({attention_layer(), cross_layer()}, 64);
  net.config.max_cross_len = 20;
  Cache first(net.config), second(net.config);
  ASSERT_EQ(kvc_seq_add(first.get(), 1, nullptr), KVC_OK);
  const TestTransport transport;
  TestTransfer sending, receiving;
  kvc_recv_desc desc = recv_desc(1, 8);
  desc.cross_length = 7;
  begin_transfer(first, 1, second, desc, transport.get(), transport.get(), &sending, &receiving,
                 KVC_SEND_AS_COMPUTED);
  for (int step = 0; step < 2; ++step) {
    Request request{{1}, {4}};
    if (step == 0) request.cross_lengths = {7};
    kvc_error error{};
    ASSERT_EQ(first.begin_with(request, &error), KVC_OK) << error.message;
    Random random(static_cast<uint64_t>(step));
    HostTensor rows(Elem::kF32, {4, 1, kDim}), encoder(Elem::kF32, {7, 1, kDim});
    HostTensor q(Elem::kF32, {4, kHeads, kDim}), out(Elem::kF32, {4, kHeads, kDim});
    for (HostTensor* tensor : {&rows, &encoder, &q}) tensor->fill_random(random);
    expect_ok(
        [&](kvc_error* err) { return kvc_kv_append(first.forward, 0, rows.dl(), rows.dl(), err); });
    expect_ok([&](kvc_error* err) {
      return kvc_attn_cross(first.forward, 1, nullptr, q.dl(), step == 0 ? encoder.dl() : nullptr,
                            step == 0 ? encoder.dl() : nullptr, out.dl(), nullptr, err);
    });
    first.finish();
  }
  expect_ok([&](kvc_error* err) { return receiving.wait(60 * kSecond, err); });
  expect_ok([&](kvc_error* err) { return sending.wait(60 * kSecond, err); });
  EXPECT_EQ(file_difference(first, second, 1), "");
  expect_sound(second);
}

// What a layer has written is gone before the next one has computed anything.
TEST(TransfersAsComputed, RowsLeaveWhileTheForwardIsOpen) {
  Net net({attention_layer(), attention_layer()}, 64);
  Cache first(net.config), second(net.config);
  ASSERT_EQ(kvc_seq_add(first.get(), 1, nullptr), KVC_OK);
  Following both(first, second, 30, transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS));
  const auto progress = [&] {
    for (int i = 0; i < 20; ++i)
      EXPECT_EQ(kvc_transport_progress(both.transport.get(), 0, nullptr), KVC_OK);
  };
  progress();
  EXPECT_EQ(both.sending.info().state, KVC_TRANSFER_RUNNING);
  EXPECT_EQ(both.sending.info().chunks_done, 0u);
  kvc_error error{};
  ASSERT_EQ(first.begin_with({{1}, {30}}, &error), KVC_OK) << error.message;
  HostTensor rows(Elem::kF32, {30, 1, kDim});
  for (int32_t layer = 0; layer < 2; ++layer) {
    Random random(static_cast<uint64_t>(layer));
    rows.fill_random(random);
    expect_ok([&](kvc_error* err) {
      return kvc_kv_append(first.forward, layer, rows.dl(), rows.dl(), err);
    });
    const uint64_t before = both.receiving.info().bytes_done;
    progress();
    EXPECT_GT(both.receiving.info().bytes_done, before) << "layer " << layer;
    EXPECT_EQ(both.receiving.info().state, KVC_TRANSFER_RUNNING);
  }
  const uint64_t before_end = both.receiving.info().bytes_done;
  expect_ok([&](kvc_error* err) { return kvc_forward_end(first.forward, err); });
  progress();
  EXPECT_LT(both.receiving.info().bytes_total - before_end, both.receiving.info().bytes_total / 3)
      << "the last, partial pages alone";
  EXPECT_EQ(both.sending.info().chunks_resent, 0u);
  both.expect_done();
  EXPECT_EQ(file_difference(first, second, 1), "");
}

TEST(TransfersAsComputed, TheSequenceMayHaveAllOfItsTokens) {
  Net net({attention_layer(), attention_layer(8)}, 64);
  Cache first(net.config), second(net.config);
  append_pattern(first, 1, 21, 7);
  Following both(first, second, 21);
  both.expect_done();
  EXPECT_EQ(file_difference(first, second, 1), "");
}

// One sequence, two receivers, a window that leaves most of it behind, and others in the batch.
TEST(TransfersAsComputed, SeveralFollowOneSequence) {
  Net net({attention_layer(), attention_layer(8), kept_layer(5)}, 128);
  Cache first(net.config), second(net.config), third(net.config);
  append_pattern(first, 1, 9, 7);
  Following to_second(first, second, 60), to_third(first, third, 40);
  append_pattern(first, 2, 5, 8);
  for (const int64_t step : {20, 11, 20}) append_pattern(first, 1, step, 7);
  to_second.expect_done();
  to_third.expect_done();
  EXPECT_EQ(file_difference(first, second, 1), "");
  EXPECT_EQ(pattern_difference(third, 1, 7), "");
  for (Cache* cache : {&first, &second, &third}) expect_sound(*cache);
}

// A sequence that is not what it was when its rows left ends the transfer, on both sides.
TEST(TransfersAsComputed, AChangedSequenceEndsIt) {
  const auto aborts = [](Cache& cache) {
    ASSERT_EQ(cache.begin_with({{1}, {5}}, nullptr), KVC_OK);
    ASSERT_EQ(kvc_forward_abort(cache.forward, nullptr), KVC_OK);
  };
  const std::vector<std::pair<const char*, std::function<void(Cache&)>>> changes = {
      {"aborted", aborts},
      {"removed", [](Cache& cache) { ASSERT_EQ(kvc_seq_remove(cache.get(), 1, nullptr), KVC_OK); }},
      {"removed",
       [](Cache& cache) {
         ASSERT_EQ(kvc_seq_remove(cache.get(), 1, nullptr), KVC_OK);
         append_pattern(cache, 1, 10, 9);
         append_pattern(cache, 1, 20, 9);
       }},
      {"cut",
       [](Cache& cache) {
         ASSERT_EQ(kvc_seq_pop(cache.get(), 1, 3, nullptr), KVC_OK);
         append_pattern(cache, 1, 23, 9);
       }},
      {"moved",
       [](Cache& cache) {
         ASSERT_EQ(kvc_seq_shift(cache.get(), 1, 2, 4, -2, nullptr), KVC_OK);
         append_pattern(cache, 1, 22, 9);
       }},
      {"grew beyond", [](Cache& cache) { append_pattern(cache, 1, 21, 7); }},
  };
  for (size_t i = 0; i < changes.size(); ++i) {
    SCOPED_TRACE(std::to_string(i) + ": " + changes[i].first);
    Net net({attention_layer(), attention_layer()}, 64);
    Cache first(net.config), second(net.config);
    append_pattern(first, 1, 10, 7);
    Following both(first, second, 30);
    changes[i].second(first);
    (void)kvc_cache_trim(first.get(), nullptr, nullptr);
    expect_error(KVC_E_CANCELLED, {changes[i].first},
                 [&](kvc_error* err) { return both.sending.wait(60 * kSecond, err); });
    expect_error(KVC_E_CANCELLED, {changes[i].first},
                 [&](kvc_error* err) { return both.receiving.wait(60 * kSecond, err); });
    EXPECT_EQ(kvc_cache_is_empty(second.get()), 1);
    expect_sound(first);
    expect_sound(second);
  }
}

TEST(TransfersAsComputed, MoreTokensThanTheTicketAreRefused) {
  Net net({attention_layer()}, 64);
  Cache first(net.config), second(net.config);
  const TestTransport transport;
  append_pattern(first, 1, 10, 7);
  TestTransfer receiving;
  const kvc_recv_desc desc = recv_desc(1, 9);
  ASSERT_EQ(kvc_transfer_recv(second.get(), transport.get(), &desc, receiving.out(), nullptr),
            KVC_OK);
  const Bytes ticket = receiving.ticket();
  kvc_send_desc send = send_desc(1, ticket);
  send.mode = KVC_SEND_AS_COMPUTED;
  TestTransfer sending;
  expect_error(KVC_E_OUT_OF_RANGE, {"10 tokens", "waits for 9"}, [&](kvc_error* err) {
    return kvc_transfer_send(first.get(), transport.get(), &send, sending.out(), err);
  });
  expect_sound(first);
}

// The cache may go while a transfer follows one of its sequences.
TEST(TransfersAsComputed, TheCacheMayGo) {
  Net net({attention_layer()}, 64);
  Cache second(net.config);
  const TestTransport transport;
  TestTransfer sending, receiving;
  {
    Cache first(net.config);
    append_pattern(first, 1, 10, 7);
    begin_transfer(first, 1, second, recv_desc(1, 30), transport.get(), transport.get(), &sending,
                   &receiving, KVC_SEND_AS_COMPUTED);
    while (sending.info().state == KVC_TRANSFER_WAITING) std::this_thread::yield();
    append_pattern(first, 1, 10, 7);
  }
  EXPECT_EQ(sending.wait(), KVC_E_CANCELLED);
  EXPECT_EQ(receiving.wait(), KVC_E_CANCELLED);
  expect_sound(second);
}

TEST(TransfersCutAnew, PagesOfAnotherSizeGetTheSameRows) {
  for (const int32_t from_size : {1, 4, 16, 48}) {
    for (const int32_t to_size : {1, 3, 16, 48}) {
      for (const int64_t length : {1, 15, 16, 17, 49, 97}) {
        SCOPED_TRACE(std::to_string(length) + " tokens, pages of " + std::to_string(from_size) +
                     " to pages of " + std::to_string(to_size));
        const std::vector<kvc_layer> layers{attention_layer(), attention_layer(0, 3),
                                            kept_layer(5)};
        Net from(layers, 256), to(layers, 256);
        from.config.page_size = from_size;
        to.config.page_size = to_size;
        to.config.pool_layout = KVC_POOL_PAGE_FIRST;
        Cache first(from.config), second(to.config);
        const TestTransport transport;
        append_pattern(first, 5, length, 7);
        overwrite_free_pages(second);
        transfer(first, 5, second, recv_desc(5, length), transport.get(), transport.get());
        EXPECT_EQ(pattern_difference(second, 5, 7), "");
        append_pattern(second, 5, 20, 7);
        EXPECT_EQ(pattern_difference(second, 5, 7), "");
        expect_sound(first);
        expect_sound(second);
      }
    }
  }
}

TEST(TransfersCutAnew, EveryKindOfLayerArrives) {
  for (const bool as_computed : {false, true}) {
    MostKinds from(4), to(12, KVC_POOL_PAGE_FIRST);
    Cache first(from.net.config), second(to.net.config);
    overwrite_free_pages(second);
    append_pattern(first, 1, 13, 41);
    if (!as_computed) append_pattern(first, 1, 30, 41);
    const TestTransport transport;
    TestTransfer sending, receiving;
    begin_transfer(first, 1, second, recv_desc(1, 43), transport.get(), transport.get(), &sending,
                   &receiving, as_computed ? KVC_SEND_AS_COMPUTED : KVC_SEND_NOW);
    if (as_computed) append_pattern(first, 1, 30, 41);
    expect_ok([&](kvc_error* err) { return receiving.wait(60 * kSecond, err); });
    expect_ok([&](kvc_error* err) { return sending.wait(60 * kSecond, err); });
    EXPECT_EQ(pattern_difference(second, 1, 41), "");
    append_pattern(second, 1, 6, 41);
    EXPECT_EQ(pattern_difference(second, 1, 41), "");
    expect_sound(first);
    expect_sound(second);
  }
}

// Encoder tokens and the state, from pages of 4 tokens to pages of 12.
TEST(TransfersCutAnew, EncoderTokensArrive) {
  AllKinds from, to(KVC_POOL_PAGE_FIRST);
  to.net.config.page_size = 12;
  Cache first(from.net.config), second(to.net.config);
  overwrite_free_pages(second);
  const TestTransport transport;
  append_pattern(first, 1, 13, 41, 7);
  append_pattern(first, 1, 30, 41);
  kvc_recv_desc desc = recv_desc(1, 43);
  desc.cross_length = 7;
  transfer(first, 1, second, desc, transport.get(), transport.get());
  EXPECT_EQ(pattern_difference(second, 1, 41), "");
  expect_sound(second);
}

// Keys are those of the receiver's blocks: it finds what has arrived as a prefix.
TEST(TransfersCutAnew, BlocksOfTheReceiverArePublished) {
  for (const int32_t to_size : {2, 12}) {
    Net from({attention_layer(), attention_layer()}, 64);
    Net to({attention_layer(), attention_layer()}, 64);
    to.config.page_size = to_size;
    Cache first(from.config), second(to.config);
    const TestTransport transport;
    std::vector<int32_t> ids;
    for (int32_t i = 0; i < 40; ++i) ids.push_back(i * 7);
    append_pattern(first, 1, 40, 7, 0, ids);
    kvc_recv_desc desc = recv_desc(1, 40);
    desc.flags = KVC_TRANSFER_PUBLISH;
    transfer(first, 1, second, desc, transport.get(), transport.get());
    EXPECT_EQ(info_of(second, 1).known_tokens, 40);
    ASSERT_EQ(kvc_seq_remove(second.get(), 1, nullptr), KVC_OK);
    kvc_prefix_query query{};
    query.struct_size = sizeof query;
    query.flags = KVC_PREFIX_ALL_TOKENS;
    query.num_tokens = 40;
    query.tokens = ids.data();
    int64_t hit = 0;
    ASSERT_EQ(kvc_prefix_attach(second.get(), 2, &query, &hit, nullptr), KVC_OK);
    EXPECT_EQ(hit, 40 / to_size * to_size);
    EXPECT_EQ(pattern_difference(second, 2, 7), "");
    // The same for a receiver that has the first tokens.
    desc = recv_desc(2, 40 - hit, hit);
    if (hit < 40) {
      transfer(first, 1, second, desc, transport.get(), transport.get());
      EXPECT_EQ(pattern_difference(second, 2, 7), "");
    }
    expect_sound(second);
  }
}

}  // namespace
}  // namespace kvc::test
