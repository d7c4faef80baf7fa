#include "src/transfer/transport.h"

#include <algorithm>
#include <chrono>
#include <exception>
#include <new>
#include <utility>

#include "src/base/error.h"
#include "src/base/random.h"
#include "src/base/thread.h"

namespace kvc {
namespace {

constexpr int64_t kDefaultLifetime = 30'000'000'000;
constexpr int32_t kMostGarbage = 3;

uint64_t random_epoch() {
  uint64_t epoch = 0;
  while (epoch == 0) fill_random(&epoch, sizeof epoch);
  return epoch;
}

}  // namespace

Transport::Transport(std::unique_ptr<TransferEngine> engine, const TransportOptions& options)
    : options_(options),
      engine_(std::move(engine)),
      waker_(engine_),
      name_(engine_->name()),
      address_(engine_->address()),
      epoch_(random_epoch()) {}

std::shared_ptr<Transport> Transport::open(std::unique_ptr<TransferEngine> engine,
                                           const TransportOptions& options) {
  const std::shared_ptr<Transport> transport(new Transport(std::move(engine), options));
  if (options.has_thread)
    transport->thread_ = start_thread("kvc-transport", [t = transport.get()] { t->run_thread(); });
  return transport;
}

Transport::~Transport() { shut_down(); }

// ---- Transfers

int64_t Transport::deadline_of(int64_t lifetime) const {
  return lifetime < 0 ? kNever : later(engine_->now(), lifetime == 0 ? kDefaultLifetime : lifetime);
}

void Transport::require_open() const {
  if (is_closed_) fail(KVC_E_INVALID_STATE, "the transport is closed: it takes no new transfers");
}

void Transport::start(const std::shared_ptr<Transfer>& transfer) {
  const Key key{transfer->id(), transfer->target() != nullptr};
  if (!transfers_.emplace(key, transfer).second)
    fail(KVC_E_BUSY, "the ticket is in use by another transfer of this transport");
}

void Transport::receive(const std::shared_ptr<Transfer>& transfer, int64_t lifetime, int64_t idle) {
  {
    const std::lock_guard lock(mutex_);
    require_open();
    TransferLimits limits = options_.limits;
    if (idle != 0) limits.idle = idle < 0 ? kNever : idle;
    auto receiver = std::make_unique<Receiver>(transfer->target(), transfer->id(), epoch_, limits,
                                               engine_->now(), deadline_of(lifetime));
    start(transfer);
    transfer->receiver_ = std::move(receiver);
    engine_->wake();
  }
}

void Transport::send(const std::shared_ptr<Transfer>& transfer, const Ticket& ticket,
                     int64_t lifetime, int64_t idle) {
  {
    const std::lock_guard lock(mutex_);
    require_open();
    auto found = peers_.find(ticket.address);
    std::string old_connection_to;
    if (found == peers_.end()) {
      found = peers_.emplace(ticket.address, engine_->connect(ticket.address)).first;
    } else {
      old_connection_to = ticket.address;
    }
    TransferLimits limits = options_.limits;
    if (idle != 0) limits.idle = idle < 0 ? kNever : idle;
    auto sender =
        std::make_unique<Sender>(transfer->source(), transfer->id(), epoch_, ticket.epoch,
                                 found->second, limits, engine_->now(), deadline_of(lifetime));
    start(transfer);
    transfer->sender_ = std::move(sender);
    transfer->old_connection_to_ = std::move(old_connection_to);
    flush(transfer);
    engine_->wake();
  }
}

void Transport::advance(Transfer& transfer, const std::vector<uint32_t>& chunks, bool is_all) {
  {
    const std::lock_guard lock(transfer.ready_mutex_);
    transfer.ready_.insert(transfer.ready_.end(), chunks.begin(), chunks.end());
    transfer.is_all_ready_ = transfer.is_all_ready_ || is_all;
    transfer.has_ready_ = true;
  }
  const std::lock_guard lock(waker_mutex_);
  if (waker_ != nullptr) waker_->wake();
}

void Transport::take_ready() {
  for (const auto& [key, transfer] : transfers_) {
    if (!transfer->has_ready_) continue;
    const std::lock_guard lock(transfer->ready_mutex_);
    transfer->sender_->on_ready(transfer->ready_, transfer->is_all_ready_);
    transfer->ready_.clear();
    transfer->has_ready_ = false;
  }
}

bool Transport::is_over(const Transfer& transfer) {
  if (transfer.receiver_ != nullptr) return transfer.receiver_->is_over() || transfer.is_done_;
  return transfer.sender_ == nullptr || transfer.sender_->is_over();
}

TransferState Transport::state_of(const Transfer& transfer) {
  if (transfer.receiver_ != nullptr) {
    switch (transfer.receiver_->state()) {
      case Receiver::State::kWaiting: return TransferState::kWaiting;
      case Receiver::State::kReceiving: return TransferState::kRunning;
      case Receiver::State::kArrived:
        return transfer.is_done_ ? TransferState::kDone : TransferState::kArrived;
      case Receiver::State::kEnding: return TransferState::kEnding;
      case Receiver::State::kFailed: return TransferState::kFailed;
    }
  } else if (transfer.sender_ != nullptr) {
    switch (transfer.sender_->state()) {
      case Sender::State::kGreeting: return TransferState::kWaiting;
      case Sender::State::kSending:
      case Sender::State::kFinishing:
      case Sender::State::kClosing: return TransferState::kRunning;
      case Sender::State::kDone: return TransferState::kDone;
      case Sender::State::kEnding: return TransferState::kEnding;
      case Sender::State::kFailed: return TransferState::kFailed;
    }
  }
  return TransferState::kWaiting;
}

TransferState Transport::state_of(const std::vector<std::shared_ptr<Transfer>>& parts) {
  bool has_failed = false, is_over = true;
  TransferState least = TransferState::kDone, most = TransferState::kWaiting;
  for (const std::shared_ptr<Transfer>& part : parts) {
    const TransferState one = state_of(*part);
    has_failed |= one == TransferState::kEnding || one == TransferState::kFailed;
    is_over &= one >= TransferState::kArrived && one != TransferState::kEnding;
    least = std::min(least, one);
    most = std::max(most, one);
  }
  if (has_failed) return is_over ? TransferState::kFailed : TransferState::kEnding;
  return least == TransferState::kWaiting && most != least ? TransferState::kRunning : least;
}

bool Transport::has_ended(const std::vector<std::shared_ptr<Transfer>>& parts) {
  const TransferState state = state_of(parts);
  return state >= TransferState::kArrived && state != TransferState::kEnding;
}

// Of the first part that has failed.
kvc_status Transport::status_of(const std::vector<std::shared_ptr<Transfer>>& parts) {
  for (const std::shared_ptr<Transfer>& part : parts) {
    const TransferEnd& end =
        part->receiver_ != nullptr ? part->receiver_->end() : part->sender_->end();
    if (end.status != KVC_OK) return end.status;
  }
  return KVC_OK;
}

TransferState Transport::state(const std::vector<std::shared_ptr<Transfer>>& parts) const noexcept {
  const std::lock_guard lock(mutex_);
  return state_of(parts);
}

TransferReport Transport::report_locked(const Transfer& transfer) const {
  TransferReport report;
  report.state = state_of(transfer);
  if (transfer.receiver_ != nullptr) {
    report.end = transfer.receiver_->end();
    report.progress = transfer.receiver_->progress();
  } else if (transfer.sender_ != nullptr) {
    report.end = transfer.sender_->end();
    report.progress = transfer.sender_->progress();
  }
  return report;
}

TransferReport Transport::report(const Transfer& transfer) const {
  const std::lock_guard lock(mutex_);
  return report_locked(transfer);
}

TransferReport Transport::report(const std::vector<std::shared_ptr<Transfer>>& parts) const {
  const std::lock_guard lock(mutex_);
  return report_locked(parts);
}

TransferReport Transport::report_locked(const std::vector<std::shared_ptr<Transfer>>& parts) const {
  TransferReport all;
  all.state = state_of(parts);
  for (const std::shared_ptr<Transfer>& part : parts) {
    TransferReport one = report_locked(*part);
    all.progress.chunks_total += one.progress.chunks_total;
    all.progress.chunks_done += one.progress.chunks_done;
    all.progress.bytes_total += one.progress.bytes_total;
    all.progress.bytes_done += one.progress.bytes_done;
    all.progress.resent += one.progress.resent;
    if (one.end.status != KVC_OK && all.end.status == KVC_OK) all.end = std::move(one.end);
  }
  return all;
}

bool Transport::drives_itself() const {
  return !options_.has_thread || thread_id_ == std::this_thread::get_id();
}

bool Transport::wait(const std::vector<std::shared_ptr<Transfer>>& parts, int64_t timeout) {
  const bool all = wait_for_end(parts, timeout);
  call_ended();
  return all;
}

bool Transport::wait_for_end(const std::vector<std::shared_ptr<Transfer>>& parts, int64_t timeout) {
  const auto is_ready = [&] { return has_ended(parts); };
  std::unique_lock lock(mutex_);
  if (is_shut_) return is_ready();
  if (!drives_itself()) {
    constexpr int64_t kForEver = kNever / 2;  // The clock's time and more would not fit.
    if (timeout < 0 || timeout > kForEver) {
      changed_.wait(lock, is_ready);
      return true;
    }
    return changed_.wait_for(lock, std::chrono::nanoseconds(timeout), is_ready);
  }
  const int64_t until = timeout < 0 ? kNever : later(engine_->now(), timeout);
  while (!is_ready()) {
    if (is_shut_) return false;
    const int64_t now = engine_->now();
    lock.unlock();
    progress(until == kNever ? -1 : std::max<int64_t>(0, until - now));
    lock.lock();
    if (now >= until) return is_ready();
  }
  return true;
}

void Transport::cancel(Transfer& transfer, kvc_status status, const std::string& text) noexcept {
  try {
    const std::lock_guard lock(mutex_);
    const auto found = transfers_.find({transfer.id(), transfer.receiver_ != nullptr});
    // One that was not started may have the ticket of another one, which goes on.
    if (found == transfers_.end() || found->second.get() != &transfer) {
      // What has arrived over a transport that is gone.
      if (is_shut_ && transfer.receiver_ != nullptr && !transfer.is_done_)
        transfer.receiver_->cancel(status, text, 0);
      return;
    }
    const std::shared_ptr<Transfer> one = found->second;
    if (one->receiver_ != nullptr) one->receiver_->cancel(status, text, engine_->now());
    if (one->sender_ != nullptr) one->sender_->cancel(status, text, engine_->now());
    flush(one);
    engine_->wake();
  } catch (const std::exception&) {
    // Without memory for the message the connection is broken off instead.
    const std::lock_guard lock(mutex_);
    if (engine_ == nullptr) return;
    if (transfer.receiver_ != nullptr) engine_->close(transfer.receiver_->peer());
    if (transfer.sender_ != nullptr) engine_->close(transfer.sender_->peer());
  }
}

void Transport::mark_done(Transfer& transfer) noexcept {
  const std::lock_guard lock(mutex_);
  transfer.is_done_ = true;
  const auto found = transfers_.find({transfer.id(), true});
  if (found == transfers_.end()) return;
  const std::shared_ptr<Transfer> one = found->second;  // It lives until the end of this function.
  bury(*one);
  transfers_.erase(found);
  changed_.notify_all();
}

void Transport::quiesce(Transfer& transfer) noexcept {
  {
    const std::lock_guard lock(mutex_);
    if (is_shut_) return;
  }
  cancel(transfer, KVC_E_CANCELLED, "the cache of the transfer is gone");
  std::unique_lock lock(mutex_);
  if (is_over(transfer) || is_shut_) return;
  engine_->close(peer_of(transfer));
  while (!is_over(transfer)) {
    if (!drives_itself()) {
      lock.unlock();
      engine_->wake();
      lock.lock();
      changed_.wait_for(lock, std::chrono::milliseconds(1));
    } else {
      run_once();
    }
  }
}

// ---- Functions of the host program

void Transport::call_at_end(EndCallbacks&& callback,
                            const std::vector<std::shared_ptr<Transfer>>& parts) noexcept {
  const std::lock_guard lock(mutex_);
  callback.front()->parts_.assign(parts.begin(), parts.end());
  callbacks_.splice(callbacks_.end(), std::move(callback));
  if (engine_ != nullptr) engine_->wake();
}

bool Transport::take_over(EndCallback& callback) noexcept {
  std::unique_lock lock(mutex_);
  if (callback.state_ == EndCallback::State::kWaiting) {
    std::erase_if(callbacks_, [&](const auto& one) { return one.get() == &callback; });
    return true;
  }
  changed_.wait(lock, [&] {
    return callback.state_ == EndCallback::State::kTold ||
           callback.runner_ == std::this_thread::get_id();
  });
  return false;
}

void Transport::call_now(EndCallback& callback) noexcept {
  std::unique_lock lock(mutex_);
  call(callback, nullptr, lock);
}

void Transport::call_ended() noexcept {
  std::unique_lock lock(mutex_);
  while (drives_itself()) {
    const auto found = std::find_if(callbacks_.begin(), callbacks_.end(),
                                    [](const auto& one) { return has_ended(one->parts_); });
    if (found == callbacks_.end()) return;
    const std::shared_ptr<EndCallback> one = *found;
    callbacks_.erase(found);
    call(*one, one->handle_, lock);
  }
}

void Transport::call(EndCallback& callback, kvc_transfer* handle,
                     std::unique_lock<std::mutex>& lock) noexcept {
  kvc_status status = status_of(callback.parts_);
  // Behind an acknowledgement nothing can be cancelled any more: it is sent.
  const auto is_acknowledged = [](const auto& part) {
    return part->sender_ != nullptr && part->sender_->state() == Sender::State::kClosing;
  };
  if (status == KVC_OK && !has_ended(callback.parts_) &&
      !std::all_of(callback.parts_.begin(), callback.parts_.end(), is_acknowledged))
    status = KVC_E_CANCELLED;
  callback.state_ = EndCallback::State::kRunning;
  callback.runner_ = std::this_thread::get_id();
  lock.unlock();
  callback.fn_(callback.user_, handle, status);
  lock.lock();
  callback.state_ = EndCallback::State::kTold;
  callback.runner_ = {};
  changed_.notify_all();
}

TransportCounters Transport::counters() const {
  const std::lock_guard lock(mutex_);
  return counters_;
}

int64_t Transport::num_open() const {
  const std::lock_guard lock(mutex_);
  return static_cast<int64_t>(transfers_.size());
}

// ---- Messages

void Transport::transmit(PeerId peer, Message message, const std::vector<IoRange>& ranges,
                         const std::shared_ptr<Transfer>& transfer) {
  const bool has_payload = message.payload_bytes != 0;
  uint64_t token = 0;
  if (peer != 0) {
    try {
      const std::vector<std::byte> header = encode(message);
      if (has_payload) {
        token = ++last_token_;
        sent_.emplace(token, Sent{transfer, message, ranges});
      }
      engine_->send(peer, header, ranges, token);
      ++counters_.messages_sent;
      counters_.bytes_sent += header.size() + message.payload_bytes;
      return;
    } catch (const std::exception&) {
      sent_.erase(token);
      engine_->close(peer);
    }
  }
  // Without a connection the transfer has ended, or is about to.
  if (has_payload) transfer->sender_->on_sent(message, 0, engine_->now());
}

void Transport::flush(const std::shared_ptr<Transfer>& transfer) noexcept {
  for (bool more = true; more;) {
    std::vector<Outgoing> outgoing;
    PeerId peer = 0;
    bool wants_close = false;
    if (transfer->receiver_ != nullptr) {
      outgoing = transfer->receiver_->take_outgoing();
      peer = transfer->receiver_->peer();
      wants_close = transfer->receiver_->wants_close();
    } else if (transfer->sender_ != nullptr) {
      outgoing = transfer->sender_->take_outgoing();
      peer = transfer->sender_->peer();
      wants_close = transfer->sender_->wants_close();
    }
    more = !outgoing.empty();
    for (Outgoing& one : outgoing)
      transmit(one.to != 0 ? one.to : peer, std::move(one.message), one.ranges, transfer);
    if (wants_close && peer != 0) engine_->close(peer);
  }
  settle(transfer);
}

// Tells the cache once, and forgets what is over.
void Transport::settle(const std::shared_ptr<Transfer>& transfer) noexcept {
  const bool over = is_over(*transfer);
  const bool arrived =
      transfer->receiver_ != nullptr && transfer->receiver_->state() == Receiver::State::kArrived;
  if (over && !transfer->has_ended_ && !transfer->is_done_) {
    const bool is_sent =
        transfer->sender_ != nullptr && transfer->sender_->state() == Sender::State::kDone;
    ++(is_sent ? counters_.transfers_done : counters_.transfers_failed);
    transfer->has_ended_ = true;
    const bool has_failed =
        transfer->receiver_ != nullptr && transfer->receiver_->is_over() && !transfer->is_done_;
    for (const std::weak_ptr<Transfer>& weak : transfer->siblings_) {
      const std::shared_ptr<Transfer> sibling = weak.lock();
      if (has_failed && sibling != nullptr && !is_over(*sibling)) sibling->is_given_up_ = true;
    }
    bury(*transfer);
    transfers_.erase({transfer->id(), transfer->receiver_ != nullptr});
  } else if (arrived && !transfer->has_told_) {
    ++counters_.transfers_done;
  } else {
    return;
  }
  transfer->has_told_ = true;
  transfer->on_news();
  changed_.notify_all();
}

void Transport::bury(Transfer& transfer) noexcept {
  if (transfer.receiver_ == nullptr) return;
  const bool arrived = transfer.receiver_->state() == Receiver::State::kArrived;
  try {
    tombstones_[transfer.id()] = {later(engine_->now(), options_.tombstone), arrived,
                                  transfer.receiver_->end().status, transfer.receiver_->end().text};
  } catch (const std::bad_alloc&) {
    // A late message then meets an unknown transfer, which is as good an answer but for an ACK.
  }
}

void Transport::answer_stranger(PeerId from, const Message& message) {
  Message answer;
  answer.id = message.id;
  answer.from_epoch = message.to_epoch;  // It speaks for whoever had the address.
  answer.to_epoch = message.from_epoch;
  answer.is_for_receiver = !message.is_for_receiver;
  if (message.kind == MessageKind::kCancel) {
    answer.kind = MessageKind::kCancelled;
  } else if (message.is_for_receiver && message.kind != MessageKind::kCancelled) {
    const auto found = tombstones_.find(message.id);
    answer.kind = MessageKind::kCancel;
    answer.status = KVC_E_NOT_FOUND;
    answer.text = "no such transfer: it has ended, or the process was started again";
    if (found != tombstones_.end() && found->second.has_arrived) {
      answer.kind = MessageKind::kAck;
      answer.status = KVC_OK;
      answer.text.clear();
    } else if (found != tombstones_.end()) {
      answer.status = found->second.status;
      answer.text = found->second.text;
    }
  } else {
    return;
  }
  transmit(from, std::move(answer), {}, nullptr);
}

bool Transport::on_message(PeerId from, std::span<const std::byte> header, uint64_t payload_bytes,
                           std::vector<IoRange>* into, uint64_t* token) {
  ++counters_.messages_received;
  counters_.bytes_received += header.size();
  Message message;
  try {
    message = decode_message(header);
    if (message.payload_bytes != payload_bytes)
      fail(KVC_E_CORRUPT, "a message says %llu bytes, it has %llu",
           static_cast<unsigned long long>(message.payload_bytes),
           static_cast<unsigned long long>(payload_bytes));
  } catch (const std::exception&) {
    ++counters_.messages_damaged;
    if (++garbage_[from] >= kMostGarbage) engine_->close(from);
    return false;
  }
  garbage_.erase(from);
  const auto found = transfers_.find({message.id, message.is_for_receiver});
  bool wants = false;
  try {
    if (found == transfers_.end()) {
      ++counters_.messages_refused;
      answer_stranger(from, message);
      return false;
    }
    const std::shared_ptr<Transfer> transfer = found->second;
    if (transfer->receiver_ != nullptr) {
      // Ready before the machine counts on it.
      auto landing = landings_.emplace(last_token_ + 1, Landing{transfer, from, message, {}}).first;
      wants = transfer->receiver_->on_message(from, message, engine_->now(), into);
      if (wants) {
        *token = ++last_token_;
        landing->second.ranges = *into;
      } else {
        landings_.erase(landing);
        if (payload_bytes != 0) ++counters_.messages_refused;
      }
    } else {
      transfer->sender_->on_message(from, message, engine_->now());
    }
    flush(transfer);
  } catch (const std::exception&) {
    landings_.erase(last_token_ + 1);
    engine_->close(from);  // Without memory to go on.
  }
  return wants;
}

void Transport::on_received(uint64_t token, bool is_whole, IoDigest digest) {
  const auto found = landings_.find(token);
  if (found == landings_.end()) return;
  Landing landing = std::move(found->second);
  landings_.erase(found);
  counters_.bytes_received += landing.message.payload_bytes;
  if (is_whole && !digest) digest = digest_of(landing.ranges);
  Receiver& receiver = *landing.transfer->receiver_;
  const uint64_t num_damaged = receiver.num_damaged();
  try {
    receiver.on_landed(landing.message, is_whole, digest.value_or(0), engine_->now());
    counters_.payloads_damaged += receiver.num_damaged() - num_damaged;
    flush(landing.transfer);
  } catch (const std::exception&) {
    engine_->close(landing.peer);
    settle(landing.transfer);
  }
}

void Transport::on_sent(uint64_t token, IoDigest digest) {
  const auto found = sent_.find(token);
  if (found == sent_.end()) return;
  const Sent sent = std::move(found->second);
  sent_.erase(found);
  if (!digest && sent.message.kind == MessageKind::kData) digest = digest_of(sent.ranges);
  try {
    sent.transfer->sender_->on_sent(sent.message, digest.value_or(0), engine_->now());
    flush(sent.transfer);
  } catch (const std::exception&) {
    engine_->close(sent.transfer->sender_->peer());
    settle(sent.transfer);
  }
}

void Transport::on_closed(PeerId peer) {
  garbage_.erase(peer);
  std::erase_if(peers_, [&](const auto& entry) { return entry.second == peer; });
  for (auto next = transfers_.begin(); next != transfers_.end();) {
    const std::shared_ptr<Transfer> transfer = (next++)->second;  // flush() may erase it.
    if (peer_of(*transfer) != peer) continue;
    if (transfer->receiver_ != nullptr) transfer->receiver_->on_closed(peer, engine_->now());
    if (transfer->sender_ != nullptr && !reconnect(*transfer))
      transfer->sender_->on_closed(peer, engine_->now());
    flush(transfer);
  }
}

// A connection that the other side has dropped in silence breaks when the next transfer greets over
// it. Nothing of that transfer has arrived: it greets once more over a new connection.
bool Transport::reconnect(Transfer& transfer) noexcept {
  const std::string address = std::exchange(transfer.old_connection_to_, {});
  if (address.empty() || transfer.sender_->state() != Sender::State::kGreeting) return false;
  try {
    auto found = peers_.find(address);
    if (found == peers_.end()) found = peers_.emplace(address, engine_->connect(address)).first;
    transfer.sender_->on_reconnected(found->second, engine_->now());
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// ---- Progress

void Transport::run_timers() {
  const int64_t now = engine_->now();
  for (auto next = transfers_.begin(); next != transfers_.end();) {
    const std::shared_ptr<Transfer> transfer = (next++)->second;  // flush() may erase it.
    if (next_time_of(*transfer) > now) continue;
    if (std::exchange(transfer->is_given_up_, false)) {
      transfer->receiver_->cancel(KVC_E_CANCELLED,
                                  text_of("another sender of the sequence has failed"), now);
    }
    if (transfer->receiver_ != nullptr) transfer->receiver_->on_time(now);
    if (transfer->sender_ != nullptr) transfer->sender_->on_time(now);
    flush(transfer);
  }
  std::erase_if(tombstones_, [&](const auto& entry) { return entry.second.until <= now; });
}

bool Transport::run_once() {
  bool worked = false;
  try {
    worked = engine_->progress(*this);
    take_ready();
    run_timers();
  } catch (const std::exception&) {
    // Out of memory: what was not done is done by a later round.
  }
  return worked;
}

int64_t Transport::next_time_of(const Transfer& transfer) {
  if (transfer.is_given_up_) return 0;
  if (transfer.receiver_ != nullptr) return transfer.receiver_->next_time();
  return transfer.sender_ != nullptr ? transfer.sender_->next_time() : kNever;
}

PeerId Transport::peer_of(const Transfer& transfer) {
  if (transfer.receiver_ != nullptr) return transfer.receiver_->peer();
  return transfer.sender_ != nullptr ? transfer.sender_->peer() : 0;
}

int64_t Transport::next_time() const {
  int64_t next = kNever;
  for (const auto& [key, transfer] : transfers_) next = std::min(next, next_time_of(*transfer));
  return next;
}

void Transport::progress(int64_t timeout) {
  drive(timeout);
  call_ended();
}

void Transport::drive(int64_t timeout) {
  int64_t wait = 0;
  std::shared_ptr<TransferEngine> engine;  // It outlives a shut_down() during the wait.
  {
    const std::lock_guard lock(mutex_);
    if (is_shut_ || run_once() || timeout == 0) return;
    const int64_t next = next_time(), now = engine_->now();
    wait = timeout;
    if (next != kNever) {
      const int64_t until = std::max<int64_t>(0, next - now);
      wait = timeout < 0 ? until : std::min(timeout, until);
    }
    engine = engine_;
  }
  engine->wait(wait);
  const std::lock_guard lock(mutex_);
  if (!is_shut_) run_once();
}

void Transport::run_thread() {
  {
    const std::lock_guard lock(mutex_);
    thread_id_ = std::this_thread::get_id();
  }
  for (;;) {
    int64_t wait = -1;
    bool has_callbacks = false;
    {
      const std::lock_guard lock(mutex_);
      run_once();
      has_callbacks = !callbacks_.empty();
      const int64_t next = next_time();
      if (next != kNever) wait = std::max<int64_t>(0, next - engine_->now());
    }
    // A round forgets the wakes before it, that of shut_down() too: stops_ is read after it.
    if (stops_) return;
    if (has_callbacks) {
      const std::weak_ptr<Transport> self = weak_from_this();
      {
        const std::shared_ptr<Transport> kept = self.lock();
        call_ended();
        // A function may have destroyed the transport. Nobody joins this thread then: what it
        // reads, it reads while the transport is held.
        if (stops_) return;
      }
      if (self.expired()) return;
    }
    engine_->wait(wait);
  }
}

bool Transport::close(int64_t timeout) {
  const bool all = end_all(timeout);
  call_ended();
  return all;
}

bool Transport::end_all(int64_t timeout) {
  std::vector<std::shared_ptr<Transfer>> open;
  {
    const std::lock_guard lock(mutex_);
    is_closed_ = true;
    for (const auto& [key, transfer] : transfers_) open.push_back(transfer);
  }
  if (open.empty()) return true;
  const int64_t until = timeout < 0 ? kNever : later(engine_->now(), timeout);
  bool all = true;
  for (const std::shared_ptr<Transfer>& transfer : open) {
    const int64_t left = until == kNever ? -1 : std::max<int64_t>(0, until - engine_->now());
    if (wait({transfer}, left)) continue;
    all = false;
    quiesce(*transfer);
  }
  return all;
}

void Transport::shut_down() noexcept {
  stops_ = true;
  if (thread_.joinable()) {
    if (thread_.get_id() == std::this_thread::get_id()) {
      thread_.detach();  // It returns from the callback that has called, and ends.
    } else {
      engine_->wake();
      thread_.join();
    }
  }
  end_engine();
  call_ended();
}

void Transport::end_engine() noexcept {
  const std::lock_guard lock(mutex_);
  thread_id_ = std::this_thread::get_id();  // This one drives the engine from here on.
  if (is_shut_) return;
  is_closed_ = true;
  std::map<Key, std::shared_ptr<Transfer>> open;
  open.swap(transfers_);
  const auto is_quiet = [](const Transfer& transfer) {
    return is_over(transfer) || (transfer.receiver_ != nullptr &&
                                 transfer.receiver_->state() == Receiver::State::kArrived);
  };
  for (const auto& [key, transfer] : open) {
    if (is_quiet(*transfer)) continue;
    std::string text = text_of("the transport is gone");
    if (transfer->receiver_ != nullptr)
      transfer->receiver_->cancel(KVC_E_CANCELLED, std::move(text), engine_->now());
    if (transfer->sender_ != nullptr)
      transfer->sender_->cancel(KVC_E_CANCELLED, std::move(text), engine_->now());
    flush(transfer);
  }
  // Each says so to its peer before the connections go.
  run_once();
  for (const auto& [key, transfer] : open) {
    const PeerId peer = peer_of(*transfer);
    if (!is_quiet(*transfer) && peer != 0) engine_->close(peer);
  }
  for (const auto& [key, transfer] : open) {
    while (!is_quiet(*transfer)) run_once();
    settle(transfer);
  }
  is_shut_ = true;
  engine_->wake();  // For progress() on another thread.
  engine_.reset();
  {
    const std::lock_guard waker_lock(waker_mutex_);
    waker_.reset();
  }
  changed_.notify_all();
}

}  // namespace kvc
