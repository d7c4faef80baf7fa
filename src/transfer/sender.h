// The sending side of a transfer as a state machine.
//
//   kGreeting ──ACCEPT──▶ kSending ──all chunks are out──▶ kFinishing ──ACK──▶ kDone
//       │                    ▲  │                              │
//       │                    └──┼──────────── NACK ────────────┘
//       └── deadline, idle, cancel, the peer is gone ──▶ kEnding ──▶ kFailed
//
// A send that has ended says only that the memory is the sender's again. What has arrived, ACK
// says. In kEnding, and in kClosing behind an ACK, sends may still read pages; kDone and kFailed
// mean that none does.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <utility>
#include <vector>

#include "src/transfer/machine.h"

namespace kvc {

// The memory behind a sending transfer.
class SendSource {
 public:
  virtual ~SendSource() = default;
  virtual uint32_t num_chunks() const = 0;
  virtual uint64_t chunk_bytes(uint32_t chunk) const = 0;
  // The memory of a chunk that is ready, until release().
  virtual std::vector<IoRange> chunk_ranges(uint32_t chunk) = 0;
  virtual void release(uint32_t /*chunk*/) noexcept {}
  virtual std::vector<std::byte> hello() = 0;
  // When everything is ready.
  virtual std::vector<std::byte> description() = 0;
};

class Sender {
 public:
  enum class State : uint8_t { kGreeting, kSending, kFinishing, kClosing, kDone, kEnding, kFailed };

  // Borrows `source`, of which no chunk is ready yet. Throws std::bad_alloc.
  Sender(SendSource* source, const TransferId& id, uint64_t epoch, uint64_t peer_epoch, PeerId peer,
         const TransferLimits& limits, int64_t now, int64_t deadline);

  State state() const { return state_; }
  bool is_over() const { return state_ == State::kDone || state_ == State::kFailed; }
  PeerId peer() const { return peer_; }
  const TransferEnd& end() const { return end_; }
  TransferProgress progress() const;

  // ---- Events

  // More chunks are ready, and with `is_all` what FIN says. They leave with the next on_time().
  void on_ready(const std::vector<uint32_t>& chunks, bool is_all);
  void on_message(PeerId from, const Message& message, int64_t now);
  // `digest`: digest of its payload.
  void on_sent(const Message& message, uint64_t digest, int64_t now);
  void on_closed(PeerId peer, int64_t now);
  // Before the receiver has answered: its connection is gone, and there is another.
  void on_reconnected(PeerId peer, int64_t now) noexcept;
  void on_time(int64_t now);
  void cancel(kvc_status status, std::string text, int64_t now);
  int64_t next_time() const;

  std::vector<Outgoing> take_outgoing() { return std::exchange(outgoing_, {}); }
  bool wants_close() const { return wants_close_; }

 private:
  Message message_of(MessageKind kind) const;
  void say(Message message, std::vector<IoRange> ranges, int64_t now);
  void say_hello(int64_t now);
  void say_fin(int64_t now);
  void go_on(int64_t now);
  void end(kvc_status status, std::string text, std::string peer_text, MessageKind last,
           int64_t now);
  void settle();

  struct Chunk {
    uint64_t digest = 0;
    bool is_ready = false;
    bool is_queued = false;
    bool is_out = false;  // A send reads it.
    bool was_sent = false;
  };

  SendSource* source_;
  TransferId id_;
  uint64_t epoch_, peer_epoch_;
  PeerId peer_;
  TransferLimits limits_;
  int64_t deadline_;
  State state_ = State::kGreeting;
  std::vector<Chunk> chunks_;
  std::deque<uint32_t> queue_;
  std::vector<std::byte> hello_, fin_;
  int64_t num_out_ = 0;  // Sends with a payload.
  int64_t num_bodies_out_ = 0;
  uint64_t bytes_out_ = 0, bytes_done_ = 0, bytes_total_ = 0;
  uint32_t num_sent_ = 0, num_resent_ = 0;
  int32_t num_rounds_ = 0;
  int64_t last_heard_, last_said_, drain_until_ = kNever;
  bool is_all_ready_ = false;
  bool is_due_ = false;  // More may leave at once.
  bool wants_close_ = false;
  TransferEnd end_;
  std::vector<Outgoing> outgoing_;
};

}  // namespace kvc
