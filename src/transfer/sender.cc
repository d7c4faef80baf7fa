#include "src/transfer/sender.h"

#include <algorithm>
#include <new>
#include <utility>

#include "src/base/error.h"

namespace kvc {
namespace {

// So much leaves in one go: others wait for the transport meanwhile.
constexpr uint64_t kMostAtOnce = uint64_t{4} << 20;

}  // namespace

Sender::Sender(SendSource* source, const TransferId& id, uint64_t epoch, uint64_t peer_epoch,
               PeerId peer, const TransferLimits& limits, int64_t now, int64_t deadline)
    : source_(source),
      id_(id),
      epoch_(epoch),
      peer_epoch_(peer_epoch),
      peer_(peer),
      limits_(limits),
      deadline_(deadline),
      chunks_(source->num_chunks()),
      hello_(source->hello()),
      last_heard_(now),
      last_said_(now) {
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk)
    bytes_total_ += source_->chunk_bytes(chunk);
  say_hello(now);
}

void Sender::on_ready(const std::vector<uint32_t>& chunks, bool is_all) {
  if (is_over() || state_ == State::kEnding || state_ == State::kClosing) return;
  for (const uint32_t chunk : chunks) {
    if (chunks_[chunk].is_ready) continue;
    queue_.push_back(chunk);
    chunks_[chunk].is_ready = chunks_[chunk].is_queued = true;
  }
  is_all_ready_ = is_all_ready_ || is_all;
  is_due_ = true;
}

TransferProgress Sender::progress() const {
  return {.chunks_total = static_cast<uint32_t>(chunks_.size()),
          .chunks_done = num_sent_,
          .bytes_total = bytes_total_,
          .bytes_done = bytes_done_,
          .resent = num_resent_};
}

Message Sender::message_of(MessageKind kind) const {
  Message message;
  message.kind = kind;
  message.is_for_receiver = true;
  message.id = id_;
  message.from_epoch = epoch_;
  message.to_epoch = peer_epoch_;
  return message;
}

void Sender::say(Message message, std::vector<IoRange> ranges, int64_t now) {
  outgoing_.reserve(outgoing_.size() + 1);
  // Nothing throws from here on.
  last_said_ = now;
  message.payload_bytes = total_bytes(ranges);
  if (message.payload_bytes != 0) {
    ++num_out_;
    if (message.kind == MessageKind::kData) {
      chunks_[message.chunk].is_out = true;
      bytes_out_ += message.payload_bytes;
    } else {
      message.digest = digest_of(ranges);
      ++num_bodies_out_;
    }
  }
  outgoing_.push_back({std::move(message), std::move(ranges), 0});
}

void Sender::say_hello(int64_t now) {
  say(message_of(MessageKind::kHello), {{hello_.data(), hello_.size()}}, now);
}

void Sender::say_fin(int64_t now) {
  say(message_of(MessageKind::kFin), {{fin_.data(), fin_.size()}}, now);
}

// Puts out what may be in flight. FIN follows when every chunk has left.
void Sender::go_on(int64_t now) {
  if (state_ != State::kSending) return;
  for (uint64_t bytes = 0; !queue_.empty();) {
    const uint32_t index = queue_.front();
    if (bytes >= kMostAtOnce) {
      is_due_ = true;
      break;
    }
    if (chunks_[index].is_out) break;  // The same one is on its way: it ends first.
    if (bytes_out_ != 0 && bytes_out_ + source_->chunk_bytes(index) > limits_.bytes_in_flight)
      break;
    bytes += source_->chunk_bytes(index);
    std::vector<IoRange> ranges = source_->chunk_ranges(index);
    Message message = message_of(MessageKind::kData);
    message.chunk = index;
    say(std::move(message), std::move(ranges), now);
    queue_.pop_front();
    chunks_[index].is_queued = false;
  }
  if (!is_all_ready_ || !queue_.empty() || num_out_ != 0) return;
  Fin fin;
  for (const Chunk& chunk : chunks_) fin.digests.push_back(chunk.digest);
  fin.description = source_->description();
  fin_ = encode(fin);
  state_ = State::kFinishing;
  say_fin(now);
}

void Sender::on_message(PeerId from, const Message& message, int64_t now) {
  if (message.from_epoch != peer_epoch_ || message.to_epoch != epoch_) return;
  last_heard_ = now;
  if (is_over() || state_ == State::kClosing) return;
  if (from != peer_ && peer_ != 0) return;
  switch (message.kind) {
    case MessageKind::kAccept:
      if (state_ == State::kGreeting) {
        state_ = State::kSending;
        go_on(now);
      }
      return;
    case MessageKind::kAck:
      // An answer to an earlier FIN is one to this: nothing of the sequence has changed.
      if (state_ == State::kFinishing || state_ == State::kSending) {
        end_ = {};
        state_ = State::kClosing;
        drain_until_ = later(now, limits_.drain);
        settle();
      }
      return;
    case MessageKind::kNack:
      if (message.status != KVC_OK) {
        end(message.status, "the receiver has refused the transfer", message.text,
            MessageKind::kCancelled, now);
        return;
      }
      if (state_ != State::kFinishing && state_ != State::kSending) return;
      if (state_ == State::kFinishing && ++num_rounds_ > limits_.resend_rounds) {
        end(KVC_E_CORRUPT, "chunks were missing after they had been sent again", message.text,
            MessageKind::kCancel, now);
        return;
      }
      for (const uint32_t chunk : message.chunks) {
        if (chunk >= chunks_.size() || chunks_[chunk].is_queued || !chunks_[chunk].is_ready)
          continue;
        queue_.push_back(chunk);
        chunks_[chunk].is_queued = true;
        ++num_resent_;
      }
      state_ = State::kSending;
      go_on(now);
      return;
    case MessageKind::kCancel:
      end(message.status == KVC_OK ? KVC_E_CANCELLED : message.status,
          "the receiver has ended the transfer", message.text, MessageKind::kCancelled, now);
      return;
    case MessageKind::kHello:
    case MessageKind::kData:
    case MessageKind::kFin:
    case MessageKind::kBeat:
    case MessageKind::kCancelled: return;
  }
}

void Sender::on_sent(const Message& message, uint64_t digest, int64_t now) {
  --num_out_;
  if (message.kind == MessageKind::kData) {
    Chunk& chunk = chunks_[message.chunk];
    chunk.is_out = false;
    chunk.digest = digest;
    source_->release(message.chunk);
    bytes_out_ -= message.payload_bytes;
    if (!chunk.was_sent) {
      chunk.was_sent = true;
      ++num_sent_;
      bytes_done_ += message.payload_bytes;
    }
  } else {
    --num_bodies_out_;
  }
  try {
    go_on(now);
  } catch (const std::bad_alloc&) {
    end(KVC_E_NO_MEMORY, {}, {}, MessageKind::kCancel, now);
  }
  settle();
}

void Sender::end(kvc_status status, std::string text, std::string peer_text, MessageKind last,
                 int64_t now) {
  if (is_over() || state_ == State::kEnding || state_ == State::kClosing) return;
  end_ = {status, std::move(text), std::move(peer_text)};
  state_ = State::kEnding;
  queue_.clear();
  drain_until_ = later(now, limits_.drain);
  try {
    if (peer_ != 0) {
      Message message = message_of(last);
      if (last == MessageKind::kCancel) {
        message.status = end_.status;
        message.text = end_.text;
      }
      say(std::move(message), {}, now);
    }
  } catch (const std::bad_alloc&) {
    // The other side's own limits end it.
  }
  settle();
}

void Sender::settle() {
  if (num_out_ != 0 || (state_ != State::kEnding && state_ != State::kClosing)) return;
  state_ = state_ == State::kEnding ? State::kFailed : State::kDone;
  wants_close_ = false;
  drain_until_ = kNever;
}

void Sender::on_closed(PeerId peer, int64_t now) {
  if (peer != peer_) return;
  peer_ = 0;
  end(KVC_E_PEER, text_of("the connection to the receiver is gone"), {}, MessageKind::kCancel, now);
  settle();
}

void Sender::on_reconnected(PeerId peer, int64_t now) noexcept {
  peer_ = peer;
  try {
    say_hello(now);
  } catch (const std::bad_alloc&) {
    // It is said with the next beat.
  }
}

void Sender::on_time(int64_t now) {
  if (is_over()) return;
  if (state_ == State::kEnding || state_ == State::kClosing) {
    settle();
    if (!is_over() && now >= drain_until_) {
      wants_close_ = true;
      drain_until_ = kNever;
    }
    return;
  }
  if (is_due_ && state_ == State::kSending) {
    is_due_ = false;
    try {
      go_on(now);
    } catch (const std::bad_alloc&) {
      end(KVC_E_NO_MEMORY, {}, {}, MessageKind::kCancel, now);
      return;
    }
  }
  if (now >= deadline_) {
    end(KVC_E_TIMEOUT, text_of("the deadline of the transfer is over"), {}, MessageKind::kCancel,
        now);
  } else if (now >= later(last_heard_, limits_.idle)) {
    end(KVC_E_TIMEOUT,
        text_of("the receiver has said nothing for too long: it may have everything"), {},
        MessageKind::kCancel, now);
  } else if (now >= later(last_said_, limits_.beat)) {
    // What has not been answered is said again, unless the last one is still on its way.
    if (state_ == State::kGreeting && num_bodies_out_ == 0) {
      say_hello(now);
    } else if (state_ == State::kFinishing && num_bodies_out_ == 0) {
      say_fin(now);
    } else {
      say(message_of(MessageKind::kBeat), {}, now);
    }
  }
}

int64_t Sender::next_time() const {
  if (is_over()) return kNever;
  if (state_ == State::kEnding || state_ == State::kClosing) return drain_until_;
  if (is_due_ && state_ == State::kSending) return 0;
  return std::min({deadline_, later(last_heard_, limits_.idle), later(last_said_, limits_.beat)});
}

void Sender::cancel(kvc_status status, std::string text, int64_t now) {
  end(status, std::move(text), {}, MessageKind::kCancel, now);
}

}  // namespace kvc
