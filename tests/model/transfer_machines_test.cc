// The two machines of a transfer, event by event; what strangers say to them costs no memory.
#include <gtest/gtest.h>

#include <cstdint>
#include <cstring>
#include <limits>
#include <span>
#include <utility>
#include <vector>

#include "src/base/digest.h"
#include "src/base/error.h"
#include "src/transfer/message.h"
#include "src/transfer/receiver.h"
#include "src/transfer/sender.h"
#include "tests/model/allocation_failures.h"
#include "tests/support/transfer_messages.h"

namespace kvc::test {
namespace {

using Frame = std::vector<std::byte>;

constexpr size_t kDigest = sizeof(uint64_t), kMagic = 8;
// Far less than any count that lies, far more than a sentence.
constexpr size_t kMostAllocated = 64 << 10;

// Eight bytes at each place in turn become a huge number; where `is_framed`, the digest is made
// right again, so that what lies is read. Refused or not: little memory is asked for.
template <typename Read>
void expect_cheap(const Read& read, const Frame& good, bool is_framed) {
  const size_t begin = is_framed ? kMagic : 0, end = good.size() - (is_framed ? kDigest : 0);
  int64_t num_refused = 0;
  for (const uint64_t lie :
       {uint64_t{1} << 21, uint64_t{1} << 33, uint64_t{1} << 62,
        uint64_t{std::numeric_limits<int64_t>::max()}, std::numeric_limits<uint64_t>::max()}) {
    for (size_t at = begin; at + sizeof lie <= end; ++at) {
      Frame bytes = good;
      std::memcpy(bytes.data() + at, &lie, sizeof lie);
      if (is_framed) {
        const uint64_t digest = kvc::digest_of(bytes.data(), end);
        std::memcpy(bytes.data() + end, &digest, sizeof digest);
      }
      arm_allocation_failure(0);
      bool is_refused = false;
      try {
        (void)read(bytes);
      } catch (const Error&) {
        is_refused = true;
      }
      (void)disarm_allocation_failure();
      num_refused += is_refused;
      ASSERT_LE(largest_allocation(), kMostAllocated) << lie << " at byte " << at;
    }
  }
  EXPECT_GT(num_refused, 0);
}

TEST(TransferStrangers, CountsThatLieCostNoMemory) {
  expect_cheap([](const Frame& bytes) { return decode_ticket(bytes); }, encode(ticket_of()), true);
  for (int kind = 1; kind <= static_cast<int>(MessageKind::kCancelled); ++kind) {
    SCOPED_TRACE(message_name(static_cast<MessageKind>(kind)));
    expect_cheap([](const Frame& bytes) { return decode_message(bytes); },
                 encode(message_of(static_cast<MessageKind>(kind))), true);
  }
  Hello hello;
  hello.shape = ticket_of().shape;
  hello.layout = "two layers";
  expect_cheap([](const Frame& bytes) { return decode_hello(bytes); }, encode(hello), false);
  Fin fin;
  fin.digests = {1, 2, 3};
  fin.description = Frame(40);
  expect_cheap([](const Frame& bytes) { return decode_fin(bytes); }, encode(fin), false);
}

// Three chunks of 16 bytes.
class Rows final : public ReceiveTarget {
 public:
  void begin(const Hello&) override { ++num_begun; }
  uint32_t num_chunks() const override { return 3; }
  uint64_t chunk_bytes(uint32_t) const override { return kBytes; }
  std::vector<IoRange> chunk_ranges(uint32_t chunk) override {
    return {{rows_.data() + chunk * kBytes, kBytes}};
  }
  void finish(std::span<const std::byte>) override { ++num_finished; }
  uint64_t most_fin_bytes() const override { return 1000; }

  int num_begun = 0, num_finished = 0;

 private:
  static constexpr uint64_t kBytes = 16;
  Frame rows_ = Frame(3 * kBytes);
};

class TransferReceiver : public testing::Test {
 protected:
  static constexpr uint64_t kEpoch = 77, kSender = 11, kOther = 12;
  static constexpr PeerId kPeer = 4, kOtherPeer = 5;

  // True: its payload is wanted.
  bool say(Message message, uint64_t from = kSender, uint64_t to = kEpoch) {
    message.from_epoch = from;
    message.to_epoch = to;
    into_.clear();
    last_ = message;
    return receiver_.on_message(from == kSender ? kPeer : kOtherPeer, message, 1, &into_);
  }
  bool say(MessageKind kind, uint64_t payload_bytes = 0, uint64_t from = kSender,
           uint64_t to = kEpoch) {
    Message message = message_of(kind);
    message.payload_bytes = payload_bytes;
    return say(std::move(message), from, to);
  }
  // One of the three.
  bool say_chunk(uint32_t chunk) {
    Message message = message_of(MessageKind::kData);
    message.payload_bytes = rows_.chunk_bytes(chunk);
    message.chunk = chunk;
    return say(std::move(message));
  }
  void land(MessageKind kind, const Frame& body) {
    ASSERT_TRUE(say(kind, body.size()));
    std::memcpy(into_.at(0).data, body.data(), body.size());
    receiver_.on_landed(last_, true, last_.digest, 2);
  }
  void greet() { land(MessageKind::kHello, encode(Hello{})); }
  void finish(const std::vector<uint64_t>& digests) {
    land(MessageKind::kFin, encode(Fin{digests, {}}));
  }
  // What it has answered since the last time.
  std::vector<MessageKind> answers() {
    std::vector<MessageKind> kinds;
    for (const Outgoing& one : receiver_.take_outgoing()) kinds.push_back(one.message.kind);
    return kinds;
  }

  Rows rows_;
  Receiver receiver_{&rows_, random_transfer_id(), kEpoch, {}, 0, kNever};
  std::vector<IoRange> into_;
  Message last_;
};

using Kinds = std::vector<MessageKind>;

TEST_F(TransferReceiver, PayloadsOfAnySizeCostNoMemory) {
  for (const bool has_greeted : {false, true}) {
    if (has_greeted) greet();
    for (const MessageKind kind : {MessageKind::kHello, MessageKind::kData, MessageKind::kFin}) {
      for (const uint64_t bytes : {kMostHelloBytes + 1, uint64_t{1} << 40, uint64_t{1} << 63}) {
        arm_allocation_failure(0);
        EXPECT_FALSE(say(kind, bytes)) << message_name(kind) << " of " << bytes;
        (void)disarm_allocation_failure();
        EXPECT_LE(largest_allocation(), kMostAllocated);
      }
    }
  }
}

TEST_F(TransferReceiver, ChunksOfAnotherSizeThanTheirRowsAreNotLetIn) {
  greet();
  for (const uint64_t bytes : {rows_.chunk_bytes(0) - 1, rows_.chunk_bytes(0) + 1, uint64_t{0}}) {
    Message message = message_of(MessageKind::kData);
    message.chunk = 0;
    message.payload_bytes = bytes;
    EXPECT_FALSE(say(message)) << bytes;
  }
  EXPECT_TRUE(say_chunk(0));
}

TEST_F(TransferReceiver, ASenderThatCancelsBeforeItsGreetingIsHeard) {
  EXPECT_FALSE(say(MessageKind::kCancel));
  EXPECT_EQ(receiver_.state(), Receiver::State::kFailed);
  EXPECT_EQ(receiver_.end().status, KVC_E_TIMEOUT);
  EXPECT_EQ(receiver_.end().peer_text, "the deadline of the transfer is over");
  EXPECT_EQ(answers(), Kinds{MessageKind::kCancelled});
  EXPECT_FALSE(say(MessageKind::kHello, 100)) << "it comes too late";
  EXPECT_EQ(answers(), Kinds{MessageKind::kCancel});
}

// The payload of the greeting may still be written meanwhile.
TEST_F(TransferReceiver, ASenderThatCancelsInItsGreetingIsHeard) {
  ASSERT_TRUE(say(MessageKind::kHello, 100));
  const Message hello = last_;
  EXPECT_FALSE(say(MessageKind::kCancel));
  EXPECT_EQ(receiver_.state(), Receiver::State::kEnding);
  receiver_.on_landed(hello, true, hello.digest, 2);
  EXPECT_EQ(receiver_.state(), Receiver::State::kFailed);
  EXPECT_EQ(receiver_.end().status, KVC_E_TIMEOUT);
  EXPECT_EQ(rows_.num_begun, 0);
}

TEST_F(TransferReceiver, WhatIsMeantForAnEarlierProcessIsNotHeard) {
  EXPECT_FALSE(say(MessageKind::kHello, 100, kSender, kEpoch + 1));
  EXPECT_EQ(receiver_.peer(), 0u);
  EXPECT_EQ(answers(), Kinds{});
}

TEST_F(TransferReceiver, AChunkThatComesInPartThreeTimesEndsIt) {
  greet();
  EXPECT_EQ(answers(), Kinds{MessageKind::kAccept});
  for (int time = 1; time <= 3; ++time) {
    ASSERT_TRUE(say_chunk(0)) << time;
    receiver_.on_landed(last_, false, 0, 3);
    EXPECT_EQ(answers(), Kinds{time < 3 ? MessageKind::kNack : MessageKind::kCancel});
  }
  EXPECT_EQ(receiver_.state(), Receiver::State::kFailed);
  EXPECT_EQ(receiver_.end().status, KVC_E_CORRUPT);
  EXPECT_EQ(receiver_.num_damaged(), 3u);
}

TEST_F(TransferReceiver, AChunkThatComesDamagedThreeTimesEndsIt) {
  greet();
  for (const uint32_t chunk : {1u, 2u}) {
    ASSERT_TRUE(say_chunk(chunk));
    receiver_.on_landed(last_, true, chunk + 1, 3);
  }
  (void)answers();
  for (int time = 1; time <= 3; ++time) {
    ASSERT_TRUE(say_chunk(0)) << time;
    receiver_.on_landed(last_, true, 100, 3);
    EXPECT_EQ(receiver_.progress().chunks_done, 3u);
    finish({1, 2, 3});
    EXPECT_EQ(answers(), Kinds{time < 3 ? MessageKind::kNack : MessageKind::kCancel});
    EXPECT_EQ(receiver_.progress().chunks_done, 2u);
    EXPECT_EQ(receiver_.progress().bytes_done, 2 * rows_.chunk_bytes(0));
  }
  EXPECT_EQ(receiver_.state(), Receiver::State::kFailed);
  EXPECT_EQ(receiver_.end().status, KVC_E_CORRUPT);
  EXPECT_EQ(receiver_.num_damaged(), 3u);
}

TEST_F(TransferReceiver, AGreetingOfAnotherDigestIsNotRead) {
  const Frame body = encode(Hello{});
  ASSERT_TRUE(say(MessageKind::kHello, body.size()));
  std::memcpy(into_.at(0).data, body.data(), body.size());
  receiver_.on_landed(last_, true, last_.digest + 1, 2);
  EXPECT_EQ(rows_.num_begun, 0);
  EXPECT_EQ(receiver_.num_damaged(), 1u);
  greet();
  EXPECT_EQ(rows_.num_begun, 1);
}

TEST_F(TransferReceiver, ChunksOfOtherDigestsThanTheSendersAreAskedForAgain) {
  greet();
  for (const uint32_t chunk : {0u, 1u, 2u}) {
    ASSERT_TRUE(say_chunk(chunk));
    receiver_.on_landed(last_, true, chunk + 1, 3);
  }
  EXPECT_FALSE(say_chunk(0)) << "it is here";
  (void)answers();
  finish({1, 9, 3});
  const std::vector<Outgoing> asked = receiver_.take_outgoing();
  ASSERT_EQ(asked.size(), 1u);
  EXPECT_EQ(asked[0].message.kind, MessageKind::kNack);
  EXPECT_EQ(asked[0].message.chunks, std::vector<uint32_t>{1});
  EXPECT_FALSE(say_chunk(0)) << "it is here still";
  ASSERT_TRUE(say_chunk(1));
  receiver_.on_landed(last_, true, 9, 5);
  finish({1, 9, 3});
  EXPECT_EQ(answers(), Kinds{MessageKind::kAck});
  EXPECT_EQ(receiver_.state(), Receiver::State::kArrived);
  EXPECT_EQ(rows_.num_finished, 1);
  EXPECT_FALSE(say(MessageKind::kFin, 100)) << "its acknowledgement was lost";
  EXPECT_EQ(answers(), Kinds{MessageKind::kAck});
}

TEST_F(TransferReceiver, OnlyItsSenderCancels) {
  EXPECT_FALSE(say(MessageKind::kCancel, 0, kSender, 0)) << "of no process's ticket";
  EXPECT_FALSE(say(MessageKind::kCancel, 0, kSender, kEpoch + 1)) << "of an earlier process's";
  EXPECT_EQ(receiver_.state(), Receiver::State::kWaiting);
  greet();
  EXPECT_EQ(answers(), Kinds{MessageKind::kAccept});
  EXPECT_FALSE(say(MessageKind::kCancel, 0, kOther));
  EXPECT_EQ(receiver_.state(), Receiver::State::kReceiving);
  EXPECT_FALSE(say(MessageKind::kCancel));
  EXPECT_EQ(receiver_.state(), Receiver::State::kFailed);
}

// Two chunks of 16 bytes.
class Source final : public SendSource {
 public:
  uint32_t num_chunks() const override { return 2; }
  uint64_t chunk_bytes(uint32_t) const override { return kBytes; }
  std::vector<IoRange> chunk_ranges(uint32_t chunk) override {
    return {{rows_.data() + chunk * kBytes, kBytes}};
  }
  std::vector<std::byte> hello() override { return encode(Hello{}); }
  std::vector<std::byte> description() override { return {}; }

 private:
  static constexpr uint64_t kBytes = 16;
  Frame rows_ = Frame(2 * kBytes);
};

class TransferSender : public testing::Test {
 protected:
  static constexpr uint64_t kEpoch = 11, kReceiver = 77;
  static constexpr PeerId kPeer = 4;

  static Message heard(MessageKind kind, uint64_t to = kEpoch) {
    Message message;
    message.kind = kind;
    message.from_epoch = kReceiver;
    message.to_epoch = to;
    return message;
  }
  void say(MessageKind kind, int64_t now, uint64_t to = kEpoch, std::vector<uint32_t> chunks = {}) {
    Message message = heard(kind, to);
    message.chunks = std::move(chunks);
    sender_.on_message(kPeer, message, now);
  }
  // What it has said since the last time. All of it leaves at once.
  Kinds said(int64_t now) {
    Kinds kinds;
    for (std::vector<Outgoing> some; !(some = sender_.take_outgoing()).empty();) {
      for (const Outgoing& one : some) {
        kinds.push_back(one.message.kind);
        if (one.message.payload_bytes != 0) sender_.on_sent(one.message, 0, now);
      }
    }
    return kinds;
  }

  const TransferLimits limits_;
  Source source_;
  Sender sender_{&source_, random_transfer_id(), kEpoch, kReceiver, kPeer, {}, 0, kNever};
};

TEST_F(TransferSender, WhatIsNotAnsweredIsSaidAgain) {
  EXPECT_EQ(said(0), Kinds{MessageKind::kHello});
  sender_.on_time(limits_.beat);
  EXPECT_EQ(said(limits_.beat), Kinds{MessageKind::kHello});
  sender_.on_ready({0, 1}, true);
  say(MessageKind::kAccept, limits_.beat);
  EXPECT_EQ(said(limits_.beat), (Kinds{MessageKind::kData, MessageKind::kData, MessageKind::kFin}));
  sender_.on_time(2 * limits_.beat);
  EXPECT_EQ(said(2 * limits_.beat), Kinds{MessageKind::kFin});
  say(MessageKind::kAck, 2 * limits_.beat);
  EXPECT_EQ(sender_.state(), Sender::State::kDone);
}

TEST_F(TransferSender, WhatIsNotComputedDoesNotLeave) {
  (void)said(0);
  sender_.on_ready({0}, false);
  say(MessageKind::kAccept, 1);
  EXPECT_EQ(said(1), Kinds{MessageKind::kData});
  say(MessageKind::kNack, 2, kEpoch, {0, 1, 7});
  EXPECT_EQ(said(2), Kinds{MessageKind::kData}) << "the first again";
}

// Its pages are given back when it is over.
TEST_F(TransferSender, ItIsOverWhenNothingIsReadAnyMore) {
  for (const MessageKind last : {MessageKind::kAck, MessageKind::kCancel}) {
    Sender sender(&source_, random_transfer_id(), kEpoch, kReceiver, kPeer, {}, 0, kNever);
    const Message hello = sender.take_outgoing().at(0).message;
    sender.on_ready({0, 1}, true);
    sender.on_message(kPeer, heard(MessageKind::kAccept), 1);
    const std::vector<Outgoing> rows = sender.take_outgoing();
    ASSERT_EQ(rows.size(), 2u);
    sender.on_message(kPeer, heard(last), 1);
    sender.on_sent(hello, 0, 2);
    sender.on_sent(rows[0].message, 0, 2);
    EXPECT_FALSE(sender.is_over()) << message_name(last);
    sender.on_sent(rows[1].message, 0, 3);
    EXPECT_TRUE(sender.is_over()) << message_name(last);
  }
}

TEST_F(TransferSender, SoManyBytesAreOnTheirWayAtOnce) {
  TransferLimits narrow;
  narrow.bytes_in_flight = 31;
  Sender sender(&source_, random_transfer_id(), kEpoch, kReceiver, kPeer, narrow, 0, kNever);
  sender.on_sent(sender.take_outgoing().at(0).message, 0, 0);
  sender.on_ready({0, 1}, true);
  sender.on_message(kPeer, heard(MessageKind::kAccept), 1);
  const std::vector<Outgoing> first = sender.take_outgoing();
  ASSERT_EQ(first.size(), 1u);
  sender.on_sent(first[0].message, 0, 2);
  EXPECT_EQ(sender.take_outgoing().at(0).message.chunk, 1u);
}

TEST_F(TransferSender, WhatIsMeantForAnEarlierProcessIsNotHeard) {
  (void)said(0);
  say(MessageKind::kAccept, 1, kEpoch + 1);
  EXPECT_EQ(sender_.state(), Sender::State::kGreeting);
  say(MessageKind::kCancel, 1, kEpoch + 1);
  EXPECT_EQ(sender_.state(), Sender::State::kGreeting);
}

TEST_F(TransferSender, ItRepeatsMissingChunksSoManyTimes) {
  (void)said(0);
  sender_.on_ready({0, 1}, true);
  say(MessageKind::kAccept, 1);
  for (int32_t round = 0; round < limits_.resend_rounds; ++round) {
    (void)said(1);
    say(MessageKind::kNack, 1, kEpoch, {1});
    EXPECT_EQ(sender_.state(), Sender::State::kSending);
  }
  EXPECT_EQ(said(1), (Kinds{MessageKind::kData, MessageKind::kFin}));
  say(MessageKind::kNack, 1, kEpoch, {1});
  EXPECT_EQ(said(1), Kinds{MessageKind::kCancel});
  EXPECT_EQ(sender_.end().status, KVC_E_CORRUPT);
}

}  // namespace
}  // namespace kvc::test
