#include "src/transfer/receiver.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"

namespace kvc {
namespace {

constexpr uint8_t kMostDamaged = 3;  // Times that one chunk may come damaged.

}  // namespace

Receiver::Receiver(ReceiveTarget* target, const TransferId& id, uint64_t epoch,
                   const TransferLimits& limits, int64_t now, int64_t deadline)
    : target_(target),
      id_(id),
      epoch_(epoch),
      limits_(limits),
      deadline_(deadline),
      last_heard_(now),
      last_said_(now) {}

TransferProgress Receiver::progress() const {
  return {.chunks_total = static_cast<uint32_t>(chunks_.size()),
          .chunks_done = num_done_,
          .bytes_total = bytes_total_,
          .bytes_done = bytes_done_,
          .resent = num_resent_};
}

void Receiver::say(MessageKind kind, kvc_status status, std::string text,
                   std::vector<uint32_t> chunks) {
  Message message;
  message.kind = kind;
  message.id = id_;
  message.from_epoch = epoch_;
  message.to_epoch = peer_epoch_;
  message.status = status;
  message.text = std::move(text);
  message.chunks = std::move(chunks);
  outgoing_.push_back({std::move(message), {}, 0});
}

bool Receiver::accept_body(const Message& message, uint64_t most, std::vector<IoRange>* into) {
  if (is_body_landing_ || message.payload_bytes == 0 || message.payload_bytes > most) return false;
  body_.resize(message.payload_bytes);
  into->push_back({body_.data(), body_.size()});
  is_body_landing_ = true;
  ++num_landing_;
  return true;
}

bool Receiver::accept_chunk(const Message& message, std::vector<IoRange>* into) {
  if (message.chunk >= chunks_.size()) return false;
  Chunk& chunk = chunks_[message.chunk];
  // One that is here comes again only when it was asked for again.
  if (chunk.is_landing || chunk.is_done ||
      message.payload_bytes != target_->chunk_bytes(message.chunk))
    return false;
  *into = target_->chunk_ranges(message.chunk);
  chunk.is_landing = true;
  ++num_landing_;
  return true;
}

bool Receiver::on_message(PeerId from, const Message& message, int64_t now,
                          std::vector<IoRange>* into) {
  if (message.to_epoch != 0 && message.to_epoch != epoch_) return false;
  if (peer_epoch_ != 0 && message.from_epoch != peer_epoch_) {
    // Somebody else with the same ticket.
    if (message.kind == MessageKind::kHello) {
      const uint64_t mine = std::exchange(peer_epoch_, message.from_epoch);
      say(MessageKind::kNack, KVC_E_BUSY, "the ticket is in use by another sender");
      outgoing_.back().to = from;
      peer_epoch_ = mine;
    }
    return false;
  }
  last_heard_ = now;
  // Whoever knows this epoch has the ticket. Its greeting may be on its way still.
  const bool is_cancelled = message.kind == MessageKind::kCancel && message.to_epoch == epoch_;
  switch (state_) {
    case State::kWaiting:
      if (message.kind != MessageKind::kHello && !is_cancelled) return false;
      peer_ = from;
      peer_epoch_ = message.from_epoch;
      if (!is_cancelled) return accept_body(message, kMostHelloBytes, into);
      end_by_sender(message, now);
      return false;
    case State::kReceiving:
      peer_ = from;
      if (message.kind == MessageKind::kHello) say(MessageKind::kAccept);
      if (message.kind == MessageKind::kData) return accept_chunk(message, into);
      if (message.kind == MessageKind::kFin) {
        has_fin_ = false;
        return accept_body(message, target_->most_fin_bytes(), into);
      }
      if (is_cancelled) end_by_sender(message, now);
      return false;
    case State::kArrived:
      if (message.kind != MessageKind::kBeat && message.kind != MessageKind::kCancelled)
        say(MessageKind::kAck);
      return false;
    case State::kEnding:
    case State::kFailed:
      if (message.kind == MessageKind::kCancel) {
        say(MessageKind::kCancelled);
      } else if (message.kind != MessageKind::kCancelled && message.kind != MessageKind::kBeat) {
        say(MessageKind::kCancel, end_.status, end_.text);
      }
      return false;
  }
  return false;
}

void Receiver::on_landed(const Message& message, bool is_whole, uint64_t digest, int64_t now) {
  --num_landing_;
  // The digest of a chunk is known when FIN comes.
  const bool is_good = is_whole && (message.kind == MessageKind::kData || digest == message.digest);
  num_damaged_ += !is_good;
  if (message.kind == MessageKind::kData) {
    Chunk& chunk = chunks_[message.chunk];
    chunk.is_landing = false;
    if (state_ == State::kReceiving) {
      if (is_good) {
        chunk.is_done = true;
        chunk.digest = digest;
        ++num_done_;
        bytes_done_ += message.payload_bytes;
      } else if (count_damage(message.chunk, now)) {
        ask_again({message.chunk}, now);
      }
    }
  } else {
    is_body_landing_ = false;
    if (is_good && message.kind == MessageKind::kHello && state_ == State::kWaiting) on_hello(now);
    if (is_good && message.kind == MessageKind::kFin && state_ == State::kReceiving)
      has_fin_ = true;
  }
  if (state_ == State::kReceiving && has_fin_ && num_landing_ == 0) on_fin(now);
  settle();
}

void Receiver::on_hello(int64_t now) {
  try {
    target_->begin(decode_hello(body_));
    chunks_.assign(target_->num_chunks(), Chunk{});
  } catch (const Error& error) {
    fail_with_error(error.status(), error.what(), now);
    return;
  }
  for (uint32_t chunk = 0; chunk < chunks_.size(); ++chunk)
    bytes_total_ += target_->chunk_bytes(chunk);
  state_ = State::kReceiving;
  last_said_ = now;
  say(MessageKind::kAccept);
}

// False: it was so too often, and the transfer has ended.
bool Receiver::count_damage(uint32_t chunk, int64_t now) {
  if (++chunks_[chunk].num_damaged < kMostDamaged) return true;
  fail_with_error(KVC_E_CORRUPT,
                  "chunk " + std::to_string(chunk) + " of " + std::to_string(chunks_.size()) +
                      " came damaged " + std::to_string(kMostDamaged) + " times",
                  now);
  return false;
}

void Receiver::ask_again(std::vector<uint32_t> chunks, int64_t now) {
  num_resent_ += static_cast<uint32_t>(chunks.size());
  last_said_ = now;
  say(MessageKind::kNack, KVC_OK, {}, std::move(chunks));
}

void Receiver::on_fin(int64_t now) {
  has_fin_ = false;
  try {
    const Fin fin = decode_fin(body_);
    if (fin.digests.size() != chunks_.size())
      fail(KVC_E_CORRUPT, "the sender has sent %zu chunks, expected %zu", fin.digests.size(),
           chunks_.size());
    std::vector<uint32_t> missing;
    for (uint32_t i = 0; i < chunks_.size() && missing.size() < kMostNamedChunks; ++i) {
      Chunk& chunk = chunks_[i];
      if (chunk.is_done && chunk.digest == fin.digests[i]) continue;
      if (chunk.is_done) {
        chunk.is_done = false;
        --num_done_;
        bytes_done_ -= target_->chunk_bytes(i);
        ++num_damaged_;
        if (!count_damage(i, now)) return;
      }
      missing.push_back(i);
    }
    if (!missing.empty()) {
      ask_again(std::move(missing), now);
      return;
    }
    target_->finish(fin.description);
  } catch (const Error& error) {
    fail_with_error(error.status(), error.what(), now);
    return;
  }
  state_ = State::kArrived;
  body_ = {};
  say(MessageKind::kAck);
}

void Receiver::fail_with_error(kvc_status status, const std::string& text, int64_t now) {
  end(status, text, {}, true, now);
}

void Receiver::end_by_sender(const Message& cancel, int64_t now) {
  end(cancel.status == KVC_OK ? KVC_E_CANCELLED : cancel.status,
      "the sender has ended the transfer", cancel.text, false, now);
}

void Receiver::end(kvc_status status, std::string text, std::string peer_text, bool tells,
                   int64_t now) {
  if (state_ == State::kEnding || state_ == State::kFailed) return;
  end_ = {status, std::move(text), std::move(peer_text)};
  state_ = State::kEnding;
  drain_until_ = later(now, limits_.drain);
  try {
    if (peer_ != 0 && tells) say(MessageKind::kCancel, end_.status, end_.text);
    if (peer_ != 0 && !tells) say(MessageKind::kCancelled);
  } catch (const std::bad_alloc&) {
    // The other side's own limits end it.
  }
  settle();
}

void Receiver::settle() {
  if (state_ == State::kEnding && num_landing_ == 0) {
    state_ = State::kFailed;
    wants_close_ = false;
    drain_until_ = kNever;
    body_ = {};
  }
}

void Receiver::on_closed(PeerId peer, int64_t now) {
  if (peer != peer_) return;
  peer_ = 0;
  if (state_ == State::kWaiting || state_ == State::kReceiving)
    end(KVC_E_PEER, text_of("the connection to the sender is gone"), {}, false, now);
  settle();
}

void Receiver::on_time(int64_t now) {
  if (state_ == State::kEnding) {
    settle();
    if (state_ == State::kEnding && now >= drain_until_) {
      wants_close_ = true;
      drain_until_ = kNever;
    }
    return;
  }
  if (state_ != State::kWaiting && state_ != State::kReceiving) return;
  if (now >= deadline_) {
    end(KVC_E_TIMEOUT, text_of("the deadline of the transfer is over"), {}, true, now);
  } else if (peer_epoch_ != 0 && now >= later(last_heard_, limits_.idle)) {
    end(KVC_E_TIMEOUT, text_of("the sender has said nothing for too long"), {}, true, now);
  } else if (state_ == State::kReceiving && now >= later(last_said_, limits_.beat)) {
    last_said_ = now;
    say(MessageKind::kBeat);
  }
}

int64_t Receiver::next_time() const {
  switch (state_) {
    case State::kWaiting:
      return peer_epoch_ == 0 ? deadline_ : std::min(deadline_, later(last_heard_, limits_.idle));
    case State::kReceiving:
      return std::min(
          {deadline_, later(last_heard_, limits_.idle), later(last_said_, limits_.beat)});
    case State::kEnding: return drain_until_;
    case State::kArrived:
    case State::kFailed: return kNever;
  }
  return kNever;
}

void Receiver::cancel(kvc_status status, std::string text, int64_t now) {
  if (state_ == State::kArrived) {
    // What has arrived is given up; the sender has its answer.
    end_ = {status, std::move(text), {}};
    state_ = State::kFailed;
    return;
  }
  end(status, std::move(text), {}, true, now);
}

}  // namespace kvc
