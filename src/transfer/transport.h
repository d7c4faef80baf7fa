// A transport: an engine, the transfers that run over it, the thread that drives them.
//
// Locks: mutex_ protects the engine and all machines. A transfer's memory (pages, states) belongs
// to its machine from start() until the machine is over; then the cache takes it back in a call of
// its own. Nothing here knows what a cache is. Functions of the host program run without the lock.
#pragma once

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "src/transfer/engine.h"
#include "src/transfer/machine.h"
#include "src/transfer/message.h"
#include "src/transfer/receiver.h"
#include "src/transfer/sender.h"

namespace kvc {

class Transport;

enum class TransferState : uint8_t { kWaiting, kRunning, kArrived, kEnding, kDone, kFailed };

// One transfer, as the cache and its handle know it. Made by the cache, run by a transport.
class Transfer {
 public:
  virtual ~Transfer() = default;

  bool is_receiving() const { return target() != nullptr; }
  const TransferId& id() const { return id_; }
  // Transfers that are of no use without this one: when it fails, they end too. Before start().
  void set_siblings(std::vector<std::weak_ptr<Transfer>> siblings) {
    siblings_ = std::move(siblings);
  }

 protected:
  explicit Transfer(const TransferId& id) : id_(id) {}
  virtual ReceiveTarget* target() { return nullptr; }
  virtual const ReceiveTarget* target() const { return nullptr; }
  virtual SendSource* source() { return nullptr; }
  // The machine is over, or everything has arrived; under the transport's lock, on any thread.
  virtual void on_news() noexcept = 0;

 private:
  friend class Transport;

  TransferId id_;
  std::vector<std::weak_ptr<Transfer>> siblings_;
  // Set by the transport.
  std::unique_ptr<Receiver> receiver_;
  std::unique_ptr<Sender> sender_;
  // Where it sends to, over a connection of earlier transfers; empty: over one of its own.
  std::string old_connection_to_;
  // Chunks that are ready and that the machine does not know of.
  std::mutex ready_mutex_;
  std::vector<uint32_t> ready_;
  bool is_all_ready_ = false;
  std::atomic<bool> has_ready_{false};
  bool is_given_up_ = false;  // A sibling has failed.
  bool has_told_ = false;     // The cache knows that it has arrived.
  bool has_ended_ = false;    // The cache knows that it is over.
  bool is_done_ = false;      // The cache has made it an ordinary sequence.
};

// A function of the host program that runs once, when all parts of a transfer have ended.
class EndCallback {
 public:
  // For so many parts. Throws std::bad_alloc.
  EndCallback(kvc_transfer_fn fn, void* user, kvc_transfer* handle, size_t num_parts)
      : fn_(fn), user_(user), handle_(handle) {
    parts_.reserve(num_parts);
  }

 private:
  friend class Transport;
  enum class State : uint8_t { kWaiting, kRunning, kTold };

  const kvc_transfer_fn fn_;
  void* const user_;
  kvc_transfer* const handle_;
  std::vector<std::shared_ptr<Transfer>> parts_;
  State state_ = State::kWaiting;
  std::thread::id runner_;  // While it runs.
};
using EndCallbacks = std::list<std::shared_ptr<EndCallback>>;

struct TransferReport {
  TransferState state = TransferState::kWaiting;
  TransferEnd end;
  TransferProgress progress;
};

struct TransportCounters {
  uint64_t messages_sent = 0, messages_received = 0;
  uint64_t bytes_sent = 0, bytes_received = 0;
  uint64_t messages_refused = 0;  // For no transfer, too long, out of place.
  uint64_t messages_damaged = 0;  // Headers that are none.
  uint64_t payloads_damaged = 0;
  uint64_t transfers_done = 0, transfers_failed = 0;
};

struct TransportOptions {
  TransferLimits limits;
  int64_t tombstone = 60'000'000'000;  // An id is remembered so long after its end.
  bool has_thread = true;
};

class Transport final : private TransferEvents, public std::enable_shared_from_this<Transport> {
 public:
  // Throws Error, std::system_error.
  static std::shared_ptr<Transport> open(std::unique_ptr<TransferEngine> engine,
                                         const TransportOptions& options);
  ~Transport() override;

  const char* engine_name() const { return name_; }
  const std::string& address() const { return address_; }
  uint64_t epoch() const { return epoch_; }
  int descriptor() const { return engine_->descriptor(); }  // Before shut_down().
  bool has_thread() const { return options_.has_thread; }
  const TransferLimits& limits() const { return options_.limits; }

  // ---- Transfers; any thread. `lifetime`, `idle`: nanoseconds; negative: for ever, 0: the default

  // Throws INVALID_STATE after close().
  void receive(const std::shared_ptr<Transfer>& transfer, int64_t lifetime, int64_t idle);
  // Also throws what connect() does.
  void send(const std::shared_ptr<Transfer>& transfer, const Ticket& ticket, int64_t lifetime,
            int64_t idle);
  // More chunks of what a transfer sends are ready, see Sender::on_ready(). Waits for nothing that
  // is sent meanwhile. Throws std::bad_alloc.
  void advance(Transfer& transfer, const std::vector<uint32_t>& chunks, bool is_all);
  TransferReport report(const Transfer& transfer) const;
  // Several that are one for the caller: as far as the last of them; failed when one is.
  TransferReport report(const std::vector<std::shared_ptr<Transfer>>& parts) const;
  TransferState state(const std::vector<std::shared_ptr<Transfer>>& parts) const noexcept;
  // Until it is over or has arrived. Drives the engine itself where there is no thread. False: the
  // time is over.
  bool wait(const std::vector<std::shared_ptr<Transfer>>& parts, int64_t timeout);
  void cancel(Transfer& transfer, kvc_status status, const std::string& text) noexcept;
  // What has arrived is a sequence now.
  void mark_done(Transfer& transfer) noexcept;
  // Returns when nothing of it is on its way any more. Its connection may be broken off for that.
  void quiesce(Transfer& transfer) noexcept;

  // ---- Functions of the host program

  // `callback`, one in a list of its own, runs when `parts` have ended, which they may have by now.
  void call_at_end(EndCallbacks&& callback,
                   const std::vector<std::shared_ptr<Transfer>>& parts) noexcept;
  // For a handle that goes. True: it has not run, and runs in call_now() alone. False: it has run,
  // or is what calls.
  bool take_over(EndCallback& callback) noexcept;
  // Parts that have not ended were cancelled.
  void call_now(EndCallback& callback) noexcept;

  TransportCounters counters() const;
  int64_t num_open() const;
  // One round without a thread: what is due, else waits at most so long for it.
  void progress(int64_t timeout);
  // No new transfers; waits for the open ones, and cancels them when the time is over. Returns
  // whether all ended by themselves.
  bool close(int64_t timeout);
  // Breaks everything off. Nothing is on its way afterwards, and the address is free.
  void shut_down() noexcept;

 private:
  struct Key {
    TransferId id;
    bool is_receiving;  // Both sides of a transfer may lie in one process.
    auto operator<=>(const Key&) const = default;
  };
  struct Landing {
    std::shared_ptr<Transfer> transfer;
    PeerId peer;
    Message message;
    std::vector<IoRange> ranges;
  };
  struct Sent {
    std::shared_ptr<Transfer> transfer;
    Message message;
    std::vector<IoRange> ranges;
  };
  struct Tombstone {
    int64_t until;
    bool has_arrived;
    kvc_status status;
    std::string text;
  };

  Transport(std::unique_ptr<TransferEngine> engine, const TransportOptions& options);
  bool on_message(PeerId from, std::span<const std::byte> header, uint64_t payload_bytes,
                  std::vector<IoRange>* into, uint64_t* token) override;
  void on_received(uint64_t token, bool is_whole, IoDigest digest) override;
  void on_sent(uint64_t token, IoDigest digest) override;
  void on_closed(PeerId peer) override;

  // All of these under the lock.
  void start(const std::shared_ptr<Transfer>& transfer);
  bool run_once();
  void run_timers();
  bool reconnect(Transfer& transfer) noexcept;
  void take_ready();
  void flush(const std::shared_ptr<Transfer>& transfer) noexcept;
  void answer_stranger(PeerId from, const Message& message);
  void settle(const std::shared_ptr<Transfer>& transfer) noexcept;
  void bury(Transfer& transfer) noexcept;
  void transmit(PeerId peer, Message message, const std::vector<IoRange>& ranges,
                const std::shared_ptr<Transfer>& transfer);
  int64_t next_time() const;
  static int64_t next_time_of(const Transfer& transfer);
  static PeerId peer_of(const Transfer& transfer);
  TransferReport report_locked(const Transfer& transfer) const;
  TransferReport report_locked(const std::vector<std::shared_ptr<Transfer>>& parts) const;
  static TransferState state_of(const Transfer& transfer);
  static TransferState state_of(const std::vector<std::shared_ptr<Transfer>>& parts);
  static kvc_status status_of(const std::vector<std::shared_ptr<Transfer>>& parts);
  static bool has_ended(const std::vector<std::shared_ptr<Transfer>>& parts);
  static bool is_over(const Transfer& transfer);
  // The calling thread drives the engine: there is no other thread for it, or it is that one.
  bool drives_itself() const;

  // These take the lock.
  bool wait_for_end(const std::vector<std::shared_ptr<Transfer>>& parts, int64_t timeout);
  bool end_all(int64_t timeout);
  void end_engine() noexcept;
  void drive(int64_t timeout);
  // Runs the callbacks of what has ended, unless another thread drives the engine.
  void call_ended() noexcept;
  void call(EndCallback& callback, kvc_transfer* handle,
            std::unique_lock<std::mutex>& lock) noexcept;
  void run_thread();
  int64_t deadline_of(int64_t lifetime) const;
  void require_open() const;

  const TransportOptions options_;
  std::shared_ptr<TransferEngine> engine_;  // Null after shut_down().
  std::mutex waker_mutex_;
  std::shared_ptr<TransferEngine> waker_;  // The same, for wake() without the lock of the engine.
  const char* const name_;
  const std::string address_;
  const uint64_t epoch_;
  mutable std::mutex mutex_;
  std::condition_variable changed_;
  std::map<Key, std::shared_ptr<Transfer>> transfers_;  // Those that are not over.
  std::map<TransferId, Tombstone> tombstones_;          // For receiving ones.
  std::map<std::string, PeerId> peers_;
  std::map<PeerId, int32_t> garbage_;  // Headers in a row that are none.
  std::map<uint64_t, Landing> landings_;
  std::map<uint64_t, Sent> sent_;
  EndCallbacks callbacks_;  // Those that have not run.
  uint64_t last_token_ = 0;
  TransportCounters counters_;
  bool is_closed_ = false;
  bool is_shut_ = false;
  std::atomic<bool> stops_{false};
  std::thread thread_;
  std::thread::id thread_id_;  // The thread that drives the engine.
};

}  // namespace kvc
