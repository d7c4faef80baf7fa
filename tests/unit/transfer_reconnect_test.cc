// A connection that the other side has dropped in silence: the next transfer greets over a new one.
#include <gtest/gtest.h>

#include <memory>
#include <vector>

#include "src/transfer/loopback.h"
#include "src/transfer/transport.h"

namespace kvc {
namespace {

class OneChunk final : public Transfer, public SendSource {
 public:
  explicit OneChunk(const TransferId& id) : Transfer(id) {}

 private:
  SendSource* source() override { return this; }
  void on_news() noexcept override {}
  uint32_t num_chunks() const override { return 1; }
  uint64_t chunk_bytes(uint32_t) const override { return rows_.size(); }
  std::vector<IoRange> chunk_ranges(uint32_t) override { return {{rows_.data(), rows_.size()}}; }
  std::vector<std::byte> hello() override { return std::vector<std::byte>(8); }
  std::vector<std::byte> description() override { return {}; }

  std::vector<std::byte> rows_ = std::vector<std::byte>(16);
};

// Notes which transfers have greeted it.
class Listener final : public TransferEvents {
 public:
  explicit Listener(const std::shared_ptr<LoopbackNetwork>& network) : engine_(network, "decode") {}
  void progress() { (void)engine_.progress(*this); }

  std::vector<TransferId> greetings;

 private:
  bool on_message(PeerId, std::span<const std::byte> header, uint64_t, std::vector<IoRange>*,
                  uint64_t*) override {
    const Message message = decode_message(header);
    if (message.kind == MessageKind::kHello) greetings.push_back(message.id);
    return false;
  }
  void on_received(uint64_t, bool, IoDigest) override {}
  void on_sent(uint64_t, IoDigest) override {}
  void on_closed(PeerId) override {}

  LoopbackEngine engine_;
};

class TransferReconnects : public testing::Test {
 protected:
  std::shared_ptr<OneChunk> send() {
    Ticket ticket;
    ticket.id = random_transfer_id();
    ticket.address = "decode";
    ticket.epoch = 7;
    auto transfer = std::make_shared<OneChunk>(ticket.id);
    transport_->send(transfer, ticket, 0, 0);
    return transfer;
  }
  void progress() {
    transport_->progress(0);
    listener_.progress();
  }
  // Each message breaks its connection, or none does.
  void break_all(bool all) {
    LoopbackFaults faults;
    faults.reset = all ? 1000 : 0;
    network_->set_faults(faults);
  }

  const std::shared_ptr<LoopbackNetwork> network_ =
      std::make_shared<LoopbackNetwork>(1, LoopbackFaults{});
  Listener listener_{network_};
  const std::shared_ptr<Transport> transport_ = Transport::open(
      std::make_unique<LoopbackEngine>(network_, "prefill"), {.limits = {}, .has_thread = false});
};

TEST_F(TransferReconnects, AGreetingGoesOverANewConnectionWhereAnOldOneBreaks) {
  const auto first = send();
  progress();
  break_all(true);
  const auto second = send();
  break_all(false);
  progress();
  // The first had a connection of its own, and has greeted already.
  EXPECT_EQ(transport_->report(*first).state, TransferState::kFailed);
  EXPECT_EQ(transport_->report(*first).end.status, KVC_E_PEER);
  EXPECT_EQ(transport_->report(*second).state, TransferState::kWaiting);
  EXPECT_EQ(listener_.greetings, (std::vector{first->id(), second->id()}));
}

TEST_F(TransferReconnects, ItDoesSoOnce) {
  (void)send();
  progress();
  break_all(true);
  const auto second = send();
  progress();
  progress();
  EXPECT_EQ(transport_->report(*second).end.status, KVC_E_PEER);
  EXPECT_EQ(listener_.greetings.size(), 1u);
  EXPECT_EQ(transport_->num_open(), 0);
}

TEST_F(TransferReconnects, ANewConnectionThatBreaksEndsTheTransfer) {
  break_all(true);
  const auto first = send();
  break_all(false);
  progress();
  EXPECT_EQ(transport_->report(*first).end.status, KVC_E_PEER);
  EXPECT_TRUE(listener_.greetings.empty());
}

}  // namespace
}  // namespace kvc
