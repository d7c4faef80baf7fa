// Transfers inside one process: engines that meet in a LoopbackNetwork.
//
// With faults and a clock of its own, a network is a deterministic simulation: for one seed, events
// take one course. Then every payload lands some time after it was accepted, as with a network
// card: memory that is given up too early shows.
#pragma once

#include <cstddef>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <string>
#include <vector>

#include "src/transfer/engine.h"
#include "src/transfer/wake_pipe.h"

namespace kvc {

// Chances of 1,000 per message, for tests.
struct LoopbackFaults {
  int32_t drop = 0;        // It never comes; the sender is not told.
  int32_t delay = 0;       // It comes up to most_delay later, so others overtake it.
  int32_t duplicate = 0;   // It comes twice.
  int32_t corrupt = 0;     // One bit is another.
  int32_t truncate = 0;    // Its end is missing.
  int32_t reset = 0;       // The connection breaks instead.
  int64_t latency = 0;     // Nanoseconds, for every message and every payload.
  int64_t most_delay = 0;  // Nanoseconds.
};

class LoopbackEngine;

// Any thread.
class LoopbackNetwork {
 public:
  // Of the process, with its clock and without faults.
  static const std::shared_ptr<LoopbackNetwork>& of_process();

  LoopbackNetwork() = default;
  // A simulated one.
  LoopbackNetwork(uint64_t seed, const LoopbackFaults& faults)
      : is_simulated_(true), faults_(faults), random_(seed) {}
  LoopbackNetwork(const LoopbackNetwork&) = delete;
  LoopbackNetwork& operator=(const LoopbackNetwork&) = delete;

  int64_t now() const;
  // Simulated networks only.
  void set_now(int64_t now) { now_ = now; }
  void set_faults(const LoopbackFaults& faults) { faults_ = faults; }
  // When the next message or payload is due; INT64_MAX: none is on its way.
  int64_t next_due() const;

 private:
  friend class LoopbackEngine;

  struct Packet {
    enum class Kind : uint8_t { kMessage, kLanding, kSent, kClosed };
    Kind kind = Kind::kMessage;
    PeerId peer = 0;
    int64_t due = 0;
    uint64_t order = 0;
    std::vector<std::byte> header;
    std::vector<IoRange> ranges;  // The sender's, until it was told.
    std::vector<std::byte> copy;  // The payload of what comes a second time.
    uint64_t payload_bytes = 0;
    LoopbackEngine* sender = nullptr;
    uint64_t sent_token = 0;
    bool is_copy = false;
    bool is_truncated = false;
    bool is_corrupt = false;
    bool is_lost = false;
    std::vector<IoRange> into;  // kLanding.
    uint64_t landing_token = 0;
    std::list<Packet> sent;  // Tells the sender; made beforehand, so that it needs no memory.
  };
  struct Connection {
    LoopbackEngine* ends[2];  // Null: that end is gone, or has been told that it is closed.
    bool is_open = true;
    std::list<Packet> closed[2];  // They tell the ends.
  };

  bool rolls(int32_t chance);
  // The first packet of `from`, if it has one.
  void put(LoopbackEngine* to, std::list<Packet>& from) noexcept;
  void break_off(PeerId peer) noexcept;
  void tell_sender(Packet& packet) noexcept;

  mutable std::mutex mutex_;
  bool is_simulated_ = false;
  LoopbackFaults faults_;
  std::mt19937_64 random_;
  int64_t now_ = 0;
  uint64_t num_packets_ = 0;
  PeerId last_peer_ = 0;
  uint64_t num_named_ = 0;
  std::map<std::string, LoopbackEngine*> engines_;
  std::map<PeerId, Connection> connections_;
};

class LoopbackEngine final : public TransferEngine {
 public:
  // `address`: a name; empty: one is made. Throws ALREADY_EXISTS, INVALID_ARGUMENT.
  LoopbackEngine(std::shared_ptr<LoopbackNetwork> network, const std::string& address);
  ~LoopbackEngine() override;

  const char* name() const override { return "loopback"; }
  std::string address() const override { return address_; }
  PeerId connect(const std::string& address) override;
  void send(PeerId peer, std::span<const std::byte> header, const std::vector<IoRange>& ranges,
            uint64_t token) override;
  void close(PeerId peer) noexcept override;
  bool progress(TransferEvents& events) override;
  int64_t now() const override { return network_->now(); }
  int descriptor() const override { return pipe_.descriptor(); }
  void wait(int64_t timeout_ns) override { pipe_.wait(timeout_ns); }
  void wake() noexcept override { pipe_.wake(); }

 private:
  friend class LoopbackNetwork;
  bool step(TransferEvents& events);
  bool land(LoopbackNetwork::Packet& packet);

  std::shared_ptr<LoopbackNetwork> network_;
  std::string address_;
  WakePipe pipe_;
  std::list<LoopbackNetwork::Packet> inbox_;  // Under the network's lock.
};

}  // namespace kvc
