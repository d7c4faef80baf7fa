// The receiving side of a transfer as a state machine.
//
//   kWaiting ──HELLO──▶ kReceiving ──FIN, all compared──▶ kArrived
//       │                   │
//       └── deadline, idle, cancel, damage, the peer is gone ──▶ kEnding ──▶ kFailed
//
// In kEnding payloads may still be on their way into pages. kFailed means that none is.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "src/transfer/machine.h"

namespace kvc {

// The memory behind a receiving transfer. Functions throw Error to refuse the sender.
class ReceiveTarget {
 public:
  virtual ~ReceiveTarget() = default;
  // The sender's sequence, before a byte of it moves: from here on the chunks are known.
  virtual void begin(const Hello& hello) = 0;
  virtual uint32_t num_chunks() const = 0;
  virtual uint64_t chunk_bytes(uint32_t chunk) const = 0;
  virtual std::vector<IoRange> chunk_ranges(uint32_t chunk) = 0;
  // Everything has come and was compared.
  virtual void finish(std::span<const std::byte> description) = 0;
  // The most that a FIN can have.
  virtual uint64_t most_fin_bytes() const = 0;
};

class Receiver {
 public:
  enum class State : uint8_t { kWaiting, kReceiving, kArrived, kEnding, kFailed };

  // Borrows `target`. `deadline`: a time; `epoch`: of this process.
  Receiver(ReceiveTarget* target, const TransferId& id, uint64_t epoch,
           const TransferLimits& limits, int64_t now, int64_t deadline);

  State state() const { return state_; }
  bool is_over() const { return state_ == State::kFailed; }
  // The connection that its sender has come by; 0: none yet.
  PeerId peer() const { return peer_; }
  const TransferEnd& end() const { return end_; }
  TransferProgress progress() const;
  // Payloads that were incomplete, or had another digest.
  uint64_t num_damaged() const { return num_damaged_; }

  // ---- Events

  // A message of this transfer. True: its payload goes to `into`; on_landed() follows.
  bool on_message(PeerId from, const Message& message, int64_t now, std::vector<IoRange>* into);
  // `is_whole`: all of the payload is here, and this is its digest.
  void on_landed(const Message& message, bool is_whole, uint64_t digest, int64_t now);
  void on_closed(PeerId peer, int64_t now);
  void on_time(int64_t now);
  void cancel(kvc_status status, std::string text, int64_t now);
  // When on_time() is due.
  int64_t next_time() const;

  // ---- Answers, to the peer

  std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }
  // The connection has to be broken off: payloads did not come back by themselves.
  bool wants_close() const { return wants_close_; }

 private:
  bool accept_body(const Message& message, uint64_t most, std::vector<IoRange>* into);
  bool accept_chunk(const Message& message, std::vector<IoRange>* into);
  void on_hello(int64_t now);
  void on_fin(int64_t now);
  bool count_damage(uint32_t chunk, int64_t now);
  void ask_again(std::vector<uint32_t> chunks, int64_t now);
  void say(MessageKind kind, kvc_status status = KVC_OK, std::string text = {},
           std::vector<uint32_t> chunks = {});
  void fail_with_error(kvc_status status, const std::string& text, int64_t now);
  void end_by_sender(const Message& cancel, int64_t now);
  void end(kvc_status status, std::string text, std::string peer_text, bool tells, int64_t now);
  void settle();

  struct Chunk {
    uint64_t digest = 0;
    bool is_done = false;
    bool is_landing = false;
    uint8_t num_damaged = 0;
  };

  ReceiveTarget* target_;
  TransferId id_;
  uint64_t epoch_;
  TransferLimits limits_;
  int64_t deadline_;
  State state_ = State::kWaiting;
  PeerId peer_ = 0;
  uint64_t peer_epoch_ = 0;
  std::vector<Chunk> chunks_;
  uint32_t num_done_ = 0, num_resent_ = 0;
  uint64_t bytes_done_ = 0, bytes_total_ = 0, num_damaged_ = 0;
  std::vector<std::byte> body_;  // HELLO or FIN, until it has been read.
  bool is_body_landing_ = false;
  bool has_fin_ = false;
  int64_t num_landing_ = 0;  // Chunks and bodies.
  int64_t last_heard_ = 0, last_said_ = 0, drain_until_ = kNever;
  bool wants_close_ = false;
  TransferEnd end_;
  std::vector<Outgoing> outgoing_;
};

}  // namespace kvc
