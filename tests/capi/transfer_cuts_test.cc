// Transfers of rows while they are computed, and into pages of another size.
#include <algorithm>
#include <functional>
#include <memory>
#include <thread>

#include "tests/capi/transfers.h"
#include "tests/support/waiting.h"

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
    expect_ok([&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
    expect_ok([&](kvc_error* err) { return sending.wait(kPatienceNs, err); });
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
  expect_ok([&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
  expect_ok([&](kvc_error* err) { return sending.wait(kPatienceNs, err); });
  EXPECT_EQ(file_difference(first, second, 1), "");
  expect_sound(second);
}

// What a layer has written is gone before the next one has computed anything.
TEST(TransfersAsComputed, RowsLeaveWhileTheForwardIsOpen) {
  Net net({attention_layer(), attention_layer()}, 64);
  Cache first(net.config), second(net.config);
  ASSERT_EQ(kvc_seq_add(first.get(), 1, nullptr), KVC_OK);
  Following both(first, second, 30, transport_desc(KVC_TRANSPORT_MANUAL_PROGRESS));
  // Drives both sides until it is so.
  const auto becomes = [&](const std::function<bool()>& is_so) {
    return comes_true([&] {
      EXPECT_EQ(kvc_transport_progress(both.transport.get(), 0, nullptr), KVC_OK);
      return is_so();
    });
  };
  EXPECT_TRUE(becomes([&] { return both.sending.info().state == KVC_TRANSFER_RUNNING; }));
  EXPECT_EQ(both.sending.info().chunks_done, 0u);
  kvc_error error{};
  ASSERT_EQ(first.begin_with({{1}, {30}}, &error), KVC_OK) << error.message;
  HostTensor rows(Elem::kF32, {30, 1, kDim});
  for (int32_t layer = 0; layer < 2; ++layer) {
    Random random(static_cast<uint64_t>(layer));
    rows.fill_random(random);
    const uint64_t before = both.receiving.info().bytes_done;
    expect_ok([&](kvc_error* err) {
      return kvc_kv_append(first.forward, layer, rows.dl(), rows.dl(), err);
    });
    EXPECT_TRUE(becomes([&] { return both.receiving.info().bytes_done > before; }))
        << "layer " << layer;
  }
  EXPECT_TRUE(becomes([&] {
    const kvc_transfer_info info = both.receiving.info();
    return info.bytes_total - info.bytes_done < info.bytes_total / 3;
  })) << "the last, partial pages alone wait for the end of the forward";
  EXPECT_EQ(both.receiving.info().state, KVC_TRANSFER_RUNNING);
  expect_ok([&](kvc_error* err) { return kvc_forward_end(first.forward, err); });
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
                 [&](kvc_error* err) { return both.sending.wait(kPatienceNs, err); });
    expect_error(KVC_E_CANCELLED, {changes[i].first},
                 [&](kvc_error* err) { return both.receiving.wait(kPatienceNs, err); });
    EXPECT_EQ(kvc_cache_is_empty(second.get()), 1);
    expect_sound(first);
    expect_sound(second);
  }
}

TEST(TransfersAsComputed, ASequenceMayBeSwappedMeanwhile) {
  Net net({attention_layer(), attention_layer()}, 64);
  set_host_pages(net.config, 32);
  Cache first(net.config), second(net.config);
  append_pattern(first, 1, 10, 7);
  Following both(first, second, 30);
  append_pattern(first, 1, 5, 7);
  ASSERT_EQ(swap_out(first, {1}), KVC_OK);
  append_pattern(first, 2, 20, 8);  // Takes the pages, where the transfer does not hold them.
  expect_sound(first);
  ASSERT_EQ(swap_in(first, {1}), KVC_OK);
  append_pattern(first, 1, 15, 7);
  both.expect_done();
  EXPECT_EQ(pattern_difference(second, 1, 7), "");
  EXPECT_EQ(pattern_difference(first, 1, 7), "");
  expect_sound(first);
  expect_sound(second);
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
    expect_ok([&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
    expect_ok([&](kvc_error* err) { return sending.wait(kPatienceNs, err); });
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

// ---- Tensor parallelism

constexpr int32_t kAllHeads = 4;

// Rank `rank` of `size`, with its part of the heads of each layer.
struct Rank {
  Rank(int32_t rank, int32_t size, int32_t page_size)
      : rank(rank), size(size), net({attention_layer(), attention_layer(8), kept_layer(5)}, 256) {
    for (kvc_layer& layer : net.layers) layer.num_q_heads = layer.num_kv_heads = kAllHeads / size;
    net.config.page_size = page_size;
    cache = std::make_unique<Cache>(net.config);
  }
  // As append_pattern, with the numbers of this rank's heads.
  void append(int64_t count, const std::vector<int32_t>& ids = {}) {
    (void)kvc_seq_add(cache->get(), 1, nullptr);
    const int64_t length = length_of(*cache, 1);
    Request request{{1}, {count}};
    request.tokens = ids;
    kvc_error error{};
    ASSERT_EQ(cache->begin_with(request, &error), KVC_OK) << error.message;
    for (int32_t layer = 0; layer < 3; ++layer) {
      const kvc_layer_info info = layer_of(*cache, layer);
      LayerRows rows(info, count);
      const int64_t first = int64_t{rank} * info.num_kv_heads;
      int64_t half = 0;
      for (HostTensor* tensor : {&rows.k, &rows.v}) {
        tensor->for_each([&](int64_t token, int64_t head, int64_t d, int64_t) {
          tensor->set(pattern(7, layer, half, length + token, first + head, d), token, head, d);
        });
        ++half;
      }
      const kvc_status status =
          kvc_kv_append(cache->forward, layer, rows.k.dl(), rows.v.dl(), &error);
      ASSERT_EQ(status, KVC_OK) << error.message;
    }
    cache->finish();
  }

  int32_t rank, size;
  Net net;
  std::unique_ptr<Cache> cache;
};

kvc_recv_desc rank_recv_desc(int32_t rank, int32_t size, int32_t sender_size, int64_t length) {
  kvc_recv_desc desc = recv_desc(1, length);
  desc.tp_rank = rank;
  desc.tp_size = size;
  desc.sender_tp_size = sender_size;
  return desc;
}

void send_from(Rank& rank, const Bytes& ticket, const TestTransport& transport, kvc_send_mode mode,
               TestTransfer* out) {
  kvc_send_desc send = send_desc(1, ticket);
  send.mode = mode;
  send.tp_rank = rank.rank;
  send.tp_size = rank.size;
  expect_ok([&](kvc_error* err) {
    return kvc_transfer_send(rank.cache->get(), transport.get(), &send, out->out(), err);
  });
}

TEST(TransfersOfRanks, EachRankGetsItsHeads) {
  constexpr int64_t kLength = 43;
  for (const auto& [from_size, to_size] :
       {std::pair{2, 1}, {4, 1}, {4, 2}, {2, 2}, {1, 2}, {1, 4}, {2, 4}}) {
    for (const int32_t page_size : {4, 12}) {
      for (const kvc_send_mode mode : {KVC_SEND_NOW, KVC_SEND_AS_COMPUTED}) {
        SCOPED_TRACE(std::to_string(from_size) + " ranks to " + std::to_string(to_size) +
                     ", pages of 4 to " + std::to_string(page_size) + ", mode " +
                     std::to_string(mode));
        std::vector<std::unique_ptr<Rank>> from, to;
        for (int32_t rank = 0; rank < from_size; ++rank)
          from.push_back(std::make_unique<Rank>(rank, from_size, 4));
        for (int32_t rank = 0; rank < to_size; ++rank)
          to.push_back(std::make_unique<Rank>(rank, to_size, page_size));
        for (auto& rank : from) rank->append(mode == KVC_SEND_NOW ? kLength : 6);
        const TestTransport transport;
        std::vector<std::unique_ptr<TestTransfer>> receiving, sending;
        for (auto& rank : to) {
          overwrite_free_pages(*rank->cache);
          const kvc_recv_desc desc = rank_recv_desc(rank->rank, to_size, from_size, kLength);
          receiving.push_back(std::make_unique<TestTransfer>());
          expect_ok([&](kvc_error* err) {
            return kvc_transfer_recv(rank->cache->get(), transport.get(), &desc,
                                     receiving.back()->out(), err);
          });
          const Bytes ticket = receiving.back()->ticket();
          for (auto& sender : from) {
            const int32_t least = std::max(from_size, to_size);
            if (sender->rank * (least / from_size) / (least / to_size) != rank->rank &&
                rank->rank * (least / to_size) / (least / from_size) != sender->rank)
              continue;
            sending.push_back(std::make_unique<TestTransfer>());
            send_from(*sender, ticket, transport, mode, sending.back().get());
          }
        }
        EXPECT_EQ(sending.size(), static_cast<size_t>(std::max(from_size, to_size)));
        for (auto& rank : from) {
          if (mode == KVC_SEND_AS_COMPUTED) rank->append(30);
          if (mode == KVC_SEND_AS_COMPUTED) rank->append(7);
        }
        for (const auto& one : sending)
          expect_ok([&](kvc_error* err) { return one->wait(kPatienceNs, err); });
        for (const auto& one : receiving)
          expect_ok([&](kvc_error* err) { return one->wait(kPatienceNs, err); });
        for (auto& rank : to) {
          Rank oracle(rank->rank, to_size, page_size);
          oracle.append(kLength);
          for (int32_t layer = 0; layer < 3; ++layer) {
            const int64_t begin = layer == 1 ? kLength - 7 : 0;
            const kvc_layer_info info = layer_of(*rank->cache, layer);
            LayerRows mine(info, kLength - begin), expected(info, kLength - begin);
            const auto read = [&](Cache& cache, LayerRows& found) {
              expect_ok([&](kvc_error* err) {
                return kvc_debug_get_layer(cache.get(), 1, layer, begin, kLength, found.k.dl(),
                                           found.v_or_null(), nullptr, err);
              });
            };
            read(*rank->cache, mine);
            read(*oracle.cache, expected);
            EXPECT_TRUE(mine.k.same_bytes(expected.k)) << "K of layer " << layer;
            EXPECT_TRUE(mine.v.same_bytes(expected.v)) << "V of layer " << layer;
          }
          rank->append(9);
          expect_sound(*rank->cache);
        }
        for (auto& rank : from) expect_sound(*rank->cache);
      }
    }
  }
}

// Each rank keeps all of a latent, and of a state.
TEST(TransfersOfRanks, LatentsAndStatesComeFromTheFirst) {
  std::vector<int64_t> shape{2, 3};
  std::vector<kvc_state_spec> specs{state_spec(shape)};
  Net net({mla_layer(), state_layer(specs)}, 64);
  for (const auto& [from_size, to_size] : {std::pair{2, 1}, {1, 2}, {2, 2}}) {
    Cache first(net.config), second(net.config), to(net.config);
    append_pattern(first, 1, 21, 7);
    append_pattern(second, 1, 21, 7);
    const TestTransport transport;
    TestTransfer receiving, one, other;
    const kvc_recv_desc desc = rank_recv_desc(to_size - 1, to_size, from_size, 21);
    expect_ok([&](kvc_error* err) {
      return kvc_transfer_recv(to.get(), transport.get(), &desc, receiving.out(), err);
    });
    const Bytes ticket = receiving.ticket();
    kvc_send_desc send = send_desc(1, ticket);
    send.tp_size = from_size;
    send.tp_rank = from_size - 1;
    expect_ok([&](kvc_error* err) {
      return kvc_transfer_send(second.get(), transport.get(), &send, other.out(), err);
    });
    if (from_size > to_size) {
      send.tp_rank = 0;
      expect_ok([&](kvc_error* err) {
        return kvc_transfer_send(first.get(), transport.get(), &send, one.out(), err);
      });
      expect_ok([&](kvc_error* err) { return one.wait(kPatienceNs, err); });
      EXPECT_EQ(other.info().bytes_total, 0u);
    }
    expect_ok([&](kvc_error* err) { return other.wait(kPatienceNs, err); });
    expect_ok([&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
    EXPECT_EQ(file_difference(first, to, 1), "");
    expect_sound(to);
  }
}

// One of two senders gives up: nothing has arrived, whatever the other one was told.
TEST(TransfersOfRanks, WhatOneSenderFailsToSendIsNotThere) {
  for (const bool first_is_whole : {true, false}) {
    Rank first(0, 2, 4), second(1, 2, 4), to(0, 1, 4);
    first.append(20);
    second.append(20);
    const TestTransport transport;
    TestTransfer receiving, one, other;
    const kvc_recv_desc desc = rank_recv_desc(0, 1, 2, 20);
    expect_ok([&](kvc_error* err) {
      return kvc_transfer_recv(to.cache->get(), transport.get(), &desc, receiving.out(), err);
    });
    const Bytes ticket = receiving.ticket();
    send_from(first_is_whole ? first : second, ticket, transport, KVC_SEND_NOW, &one);
    expect_ok([&](kvc_error* err) { return one.wait(kPatienceNs, err); });
    EXPECT_EQ(receiving.info().state, KVC_TRANSFER_RUNNING);
    EXPECT_EQ(kvc_seq_pop(to.cache->get(), 1, 0, nullptr), KVC_E_BUSY);
    // The same rank again, and one that is none.
    kvc_send_desc send = send_desc(1, ticket);
    send.tp_size = 2;
    send.tp_rank = 2;
    expect_error(KVC_E_INVALID_ARGUMENT, {"desc.tp_rank = 2", "ranks 0 to 1"}, [&](kvc_error* err) {
      return kvc_transfer_send(first.cache->get(), transport.get(), &send, other.out(), err);
    });
    send.tp_size = 0;
    expect_error(KVC_E_INVALID_ARGUMENT, {"desc.tp_size = 1", "2 ranks"}, [&](kvc_error* err) {
      return kvc_transfer_send(first.cache->get(), transport.get(), &send, other.out(), err);
    });
    // A sender of other tokens.
    Rank& late = first_is_whole ? second : first;
    ASSERT_EQ(kvc_seq_set_window(late.cache->get(), 1, 30, 2, nullptr), KVC_OK);
    send_from(late, ticket, transport, KVC_SEND_NOW, &other);
    EXPECT_EQ(other.wait(), KVC_OK);
    expect_error(KVC_E_INVALID_ARGUMENT, {"other tokens or windows"},
                 [&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
    EXPECT_EQ(kvc_cache_is_empty(to.cache->get()), 1);
    expect_sound(*to.cache);

    TestTransfer again, left, never;
    expect_ok([&](kvc_error* err) {
      return kvc_transfer_recv(to.cache->get(), transport.get(), &desc, again.out(), err);
    });
    const Bytes next = again.ticket();
    send_from(first, next, transport, KVC_SEND_NOW, &left);
    expect_ok([&](kvc_error* err) { return left.wait(kPatienceNs, err); });
    ASSERT_EQ(kvc_seq_pop(second.cache->get(), 1, 20, nullptr), KVC_OK);
    send_from(second, next, transport, KVC_SEND_AS_COMPUTED, &never);
    ASSERT_EQ(kvc_seq_remove(second.cache->get(), 1, nullptr), KVC_OK);
    (void)kvc_cache_trim(second.cache->get(), nullptr, nullptr);
    EXPECT_EQ(never.wait(), KVC_E_CANCELLED);
    EXPECT_EQ(again.wait(), KVC_E_CANCELLED);
    EXPECT_EQ(kvc_cache_is_empty(to.cache->get()), 1);
    for (Rank* rank : {&first, &second, &to}) expect_sound(*rank->cache);
  }
}

TEST(TransfersOfRanks, HeadsAndRanksThatDoNotFitAreRefused) {
  Rank to(0, 1, 4), half(0, 2, 4);
  half.append(5);
  const TestTransport transport;
  TestTransfer receiving, sending;
  const auto refused = [&](kvc_status status, const kvc_recv_desc& desc,
                           std::initializer_list<const char*> parts) {
    expect_error(status, parts, [&](kvc_error* err) {
      return kvc_transfer_recv(to.cache->get(), transport.get(), &desc, receiving.out(), err);
    });
    EXPECT_EQ(kvc_cache_is_empty(to.cache->get()), 1);
    expect_sound(*to.cache);
  };
  refused(KVC_E_INVALID_ARGUMENT, rank_recv_desc(1, 1, 1, 5), {"desc.tp_rank = 1"});
  refused(KVC_E_INVALID_ARGUMENT, rank_recv_desc(-1, 1, 1, 5), {"desc.tp_rank = -1"});
  refused(KVC_E_INVALID_ARGUMENT, rank_recv_desc(0, -1, 1, 5), {"desc.tp_size = -1"});
  refused(KVC_E_INVALID_ARGUMENT, rank_recv_desc(0, 2, 3, 5), {"desc.sender_tp_size = 3"});
  refused(KVC_E_INVALID_ARGUMENT, rank_recv_desc(0, 1, 2048, 5), {"desc.sender_tp_size = 2048"});
  refused(KVC_E_UNSUPPORTED, rank_recv_desc(0, 1, 3, 5), {"4 KV heads", "3 ranks"});
  // Half of the heads, from a sender that says it has all of them.
  const kvc_recv_desc desc = recv_desc(1, 5);
  begin_transfer(*half.cache, 1, *to.cache, desc, transport.get(), transport.get(), &sending,
                 &receiving);
  expect_error(KVC_E_UNSUPPORTED, {"layers[0].num_kv_heads is 2 in the sender, 4 in the receiver"},
               [&](kvc_error* err) { return receiving.wait(kPatienceNs, err); });
}

}  // namespace
}  // namespace kvc::test
