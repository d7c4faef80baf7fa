// What a transport answers to messages for transfers that are over, and what it does with the other
// parts of one that has failed.
#include <gtest/gtest.h>

#include <functional>
#include <list>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "src/transfer/loopback.h"
#include "src/transfer/transport.h"

namespace kvc {
namespace {

// A transfer without rows.
class NoRows final : public Transfer, public ReceiveTarget {
 public:
  explicit NoRows(const TransferId& id) : Transfer(id) {}

 private:
  ReceiveTarget* target() override { return this; }
  const ReceiveTarget* target() const override { return this; }
  void on_news() noexcept override {}
  void begin(const Hello&) override {}
  uint32_t num_chunks() const override { return 0; }
  uint64_t chunk_bytes(uint32_t) const override { return 0; }
  std::vector<IoRange> chunk_ranges(uint32_t) override { return {}; }
  void finish(std::span<const std::byte>) override {}
  uint64_t most_fin_bytes() const override { return 1000; }
};

// A sender that says what it is told to, and notes the answers.
class Voice final : public TransferEvents {
 public:
  explicit Voice(const std::shared_ptr<LoopbackNetwork>& network)
      : engine_(network, "prefill"), peer_(engine_.connect("decode")) {}

  void say(const Transfer& transfer, uint64_t to_epoch, MessageKind kind,
           std::vector<std::byte> payload = {}) {
    Message message;
    message.kind = kind;
    message.id = transfer.id();
    message.is_for_receiver = true;
    message.from_epoch = 77;
    message.to_epoch = to_epoch;
    bodies_.push_back(std::move(payload));
    std::vector<std::byte>& body = bodies_.back();
    message.payload_bytes = body.size();
    const std::vector<IoRange> ranges{{body.data(), body.size()}};
    message.digest = digest_of(ranges);
    engine_.send(peer_, encode(message), body.empty() ? std::vector<IoRange>{} : ranges, 0);
  }
  std::vector<Message> answers() {
    (void)engine_.progress(*this);
    return std::exchange(heard_, {});
  }

 private:
  bool on_message(PeerId, std::span<const std::byte> header, uint64_t, std::vector<IoRange>*,
                  uint64_t*) override {
    heard_.push_back(decode_message(header));
    return false;
  }
  void on_received(uint64_t, bool, IoDigest) override {}
  void on_sent(uint64_t, IoDigest) override {}
  void on_closed(PeerId) override {}

  LoopbackEngine engine_;
  const PeerId peer_;
  std::vector<Message> heard_;
  std::list<std::vector<std::byte>> bodies_;
};

class TransferAnswers : public testing::Test {
 protected:
  std::shared_ptr<NoRows> receive() {
    auto transfer = std::make_shared<NoRows>(random_transfer_id());
    transport_->receive(transfer, 0, 0);
    return transfer;
  }
  // The last answer to it; BEAT: there was none.
  Message say(const Transfer& transfer, MessageKind kind, std::vector<std::byte> payload = {}) {
    voice_.say(transfer, transport_->epoch(), kind, std::move(payload));
    transport_->progress(0);
    const std::vector<Message> heard = voice_.answers();
    return heard.empty() ? Message{} : heard.back();
  }
  void arrive(Transfer& transfer) {
    ASSERT_EQ(say(transfer, MessageKind::kHello, encode(Hello{})).kind, MessageKind::kAccept);
    ASSERT_EQ(say(transfer, MessageKind::kFin, encode(Fin{})).kind, MessageKind::kAck);
    transport_->mark_done(transfer);
    ASSERT_EQ(transport_->num_open(), 0);
  }

  const std::shared_ptr<LoopbackNetwork> network_ =
      std::make_shared<LoopbackNetwork>(1, LoopbackFaults{});
  const std::shared_ptr<Transport> transport_ =
      Transport::open(std::make_unique<LoopbackEngine>(network_, "decode"),
                      {.limits = {}, .tombstone = 1000, .has_thread = false});
  Voice voice_{network_};
};

TEST_F(TransferAnswers, WhatHasArrivedIsAcknowledgedOnceMore) {
  const auto transfer = receive();
  arrive(*transfer);
  const Message again = say(*transfer, MessageKind::kFin, encode(Fin{}));
  EXPECT_EQ(again.kind, MessageKind::kAck) << again.text;
  EXPECT_EQ(again.status, KVC_OK);
  EXPECT_EQ(again.to_epoch, 77u);
  EXPECT_FALSE(again.is_for_receiver);
}

TEST_F(TransferAnswers, WhatHasFailedIsToldOnceMore) {
  const auto transfer = receive();
  ASSERT_EQ(say(*transfer, MessageKind::kHello, encode(Hello{})).kind, MessageKind::kAccept);
  transport_->cancel(*transfer, KVC_E_NO_PAGES, "others need them");
  ASSERT_EQ(transport_->num_open(), 0);
  const Message again = say(*transfer, MessageKind::kFin, encode(Fin{}));
  EXPECT_EQ(again.kind, MessageKind::kCancel);
  EXPECT_EQ(again.status, KVC_E_NO_PAGES);
  EXPECT_EQ(again.text, "others need them");
  EXPECT_EQ(say(*transfer, MessageKind::kCancel).kind, MessageKind::kCancelled);
}

TEST_F(TransferAnswers, OthersAreUnknownAndSoIsWhatIsLongOver) {
  const auto arrived = receive();
  arrive(*arrived);
  network_->set_now(network_->now() + 1001);
  transport_->progress(0);
  const NoRows other(random_transfer_id());
  for (const NoRows* transfer : {&std::as_const(*arrived), &other}) {
    const Message answer = say(*transfer, MessageKind::kFin, encode(Fin{}));
    EXPECT_EQ(answer.kind, MessageKind::kCancel);
    EXPECT_EQ(answer.status, KVC_E_NOT_FOUND);
  }
}

TEST_F(TransferAnswers, APartThatFailsEndsTheOthers) {
  const auto first = std::make_shared<NoRows>(random_transfer_id());
  const auto second = std::make_shared<NoRows>(random_transfer_id());
  first->set_siblings({second});
  second->set_siblings({first});
  for (const auto& part : {first, second}) transport_->receive(part, 0, 0);
  for (const auto& part : {first, second})
    ASSERT_EQ(say(*part, MessageKind::kHello, encode(Hello{})).kind, MessageKind::kAccept);
  voice_.say(*first, transport_->epoch(), MessageKind::kCancel);
  transport_->progress(0);
  transport_->progress(0);
  EXPECT_EQ(transport_->report(*first).state, TransferState::kFailed);
  const TransferReport other = transport_->report(*second);
  EXPECT_EQ(other.state, TransferState::kFailed);
  EXPECT_EQ(other.end.status, KVC_E_CANCELLED);
  EXPECT_EQ(other.end.text, "another sender of the sequence has failed");
  const std::vector<Message> heard = voice_.answers();
  ASSERT_FALSE(heard.empty());
  EXPECT_EQ(heard.back().kind, MessageKind::kCancel);
  EXPECT_EQ(heard.back().id, second->id());
}

}  // namespace
}  // namespace kvc
