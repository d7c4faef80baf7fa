#include "src/transfer/loopback.h"

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "src/base/error.h"

namespace kvc {

const std::shared_ptr<LoopbackNetwork>& LoopbackNetwork::of_process() {
  static const auto network = std::make_shared<LoopbackNetwork>();
  return network;
}

int64_t LoopbackNetwork::now() const {
  if (is_simulated_) return now_;
  return std::chrono::duration_cast<std::chrono::nanoseconds>(
             std::chrono::steady_clock::now().time_since_epoch())
      .count();
}

int64_t LoopbackNetwork::next_due() const {
  const std::lock_guard lock(mutex_);
  int64_t due = INT64_MAX;
  for (const auto& [name, engine] : engines_) {
    for (const Packet& packet : engine->inbox_) due = std::min(due, packet.due);
  }
  return due;
}

bool LoopbackNetwork::rolls(int32_t chance) {
  return chance > 0 && static_cast<int32_t>(random_() % 1000) < chance;
}

// The caller holds the lock.
void LoopbackNetwork::put(LoopbackEngine* to, std::list<Packet>& from) noexcept {
  if (from.empty()) return;
  from.front().order = ++num_packets_;
  to->inbox_.splice(to->inbox_.end(), from, from.begin());
  to->pipe_.wake();
}

// The caller holds the lock. What is on its way is lost: its memory goes back to both sides before
// they are told.
void LoopbackNetwork::break_off(PeerId peer) noexcept {
  const auto found = connections_.find(peer);
  if (found == connections_.end() || !found->second.is_open) return;
  found->second.is_open = false;
  for (LoopbackEngine* end : found->second.ends) {
    if (end == nullptr) continue;
    for (Packet& packet : end->inbox_) {
      if (packet.peer != peer) continue;
      packet.is_lost = true;
      packet.due = std::min(packet.due, now());
      tell_sender(packet);
    }
  }
  for (int i = 0; i < 2; ++i) {
    if (found->second.ends[i] == nullptr) continue;
    found->second.closed[i].front().due = now();
    put(found->second.ends[i], found->second.closed[i]);
  }
}

// The caller holds the lock. The sender, unless it is gone, has the memory of a packet back.
void LoopbackNetwork::tell_sender(Packet& packet) noexcept {
  LoopbackEngine* sender = std::exchange(packet.sender, nullptr);
  if (sender == nullptr) return;
  const bool lives = std::any_of(engines_.begin(), engines_.end(),
                                 [&](const auto& entry) { return entry.second == sender; });
  if (lives) put(sender, packet.sent);
}

LoopbackEngine::LoopbackEngine(std::shared_ptr<LoopbackNetwork> network, const std::string& address)
    : network_(std::move(network)), address_(address) {
  constexpr size_t kMostLetters = 255;
  if (address_.size() > kMostLetters)
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(address_.size()),
              "an address of %zu bytes, at most %zu", address_.size(), kMostLetters);
  const std::lock_guard lock(network_->mutex_);
  while (address_.empty() || (address.empty() && network_->engines_.count(address_) != 0))
    address_ = "loopback-" + std::to_string(++network_->num_named_);
  if (!network_->engines_.emplace(address_, this).second)
    fail(KVC_E_ALREADY_EXISTS, "address \"%.100s\" is taken by another transport of this process",
         address_.c_str());
}

LoopbackEngine::~LoopbackEngine() {
  const std::lock_guard lock(network_->mutex_);
  for (auto& [peer, connection] : network_->connections_) {
    for (LoopbackEngine*& end : connection.ends) {
      if (end != this) continue;
      network_->break_off(peer);
      end = nullptr;
    }
  }
  network_->engines_.erase(address_);
  std::erase_if(network_->connections_, [](const auto& entry) {
    return entry.second.ends[0] == nullptr && entry.second.ends[1] == nullptr;
  });
}

PeerId LoopbackEngine::connect(const std::string& address) {
  const std::lock_guard lock(network_->mutex_);
  const auto found = network_->engines_.find(address);
  if (found == network_->engines_.end())
    fail(KVC_E_PEER, "nobody listens at \"%.100s\" in this process", address.c_str());
  LoopbackNetwork::Connection made{{this, found->second}, true, {}};
  const PeerId peer = network_->last_peer_ + 1;
  for (std::list<LoopbackNetwork::Packet>& closed : made.closed) {
    closed.emplace_back();
    closed.back().kind = LoopbackNetwork::Packet::Kind::kClosed;
    closed.back().peer = peer;
  }
  network_->connections_.emplace(peer, std::move(made));
  network_->last_peer_ = peer;
  return peer;
}

void LoopbackEngine::send(PeerId peer, std::span<const std::byte> header,
                          const std::vector<IoRange>& ranges, uint64_t token) {
  using Packet = LoopbackNetwork::Packet;
  const std::lock_guard lock(network_->mutex_);
  LoopbackNetwork& net = *network_;
  const LoopbackFaults& faults = net.faults_;
  const auto some_delay = [&] {
    return static_cast<int64_t>(net.random_() %
                                static_cast<uint64_t>(std::max<int64_t>(1, faults.most_delay)));
  };
  std::list<Packet> first(1), second;
  Packet& packet = first.front();
  packet.peer = peer;
  packet.header.assign(header.begin(), header.end());
  packet.ranges = ranges;
  packet.payload_bytes = total_bytes(ranges);
  packet.sender = this;
  packet.due = net.now() + faults.latency;
  packet.sent.emplace_back();
  packet.sent.front().kind = Packet::Kind::kSent;
  packet.sent.front().sent_token = token;
  const auto found = net.connections_.find(peer);
  LoopbackEngine* to = nullptr;
  if (found != net.connections_.end() && found->second.is_open)
    to = found->second.ends[found->second.ends[0] == this ? 1 : 0];
  if (to == nullptr || net.rolls(faults.drop)) return net.tell_sender(packet);
  if (net.rolls(faults.reset)) {
    net.tell_sender(packet);
    net.break_off(peer);
    return;
  }
  if (net.rolls(faults.delay)) packet.due += some_delay();
  packet.is_corrupt = net.rolls(faults.corrupt);
  packet.is_truncated = net.rolls(faults.truncate);
  if (net.rolls(faults.duplicate)) {
    Packet& again = second.emplace_back();
    again.peer = peer;
    again.header = packet.header;
    again.payload_bytes = packet.payload_bytes;
    again.is_copy = true;
    for (const IoRange& range : ranges)
      again.copy.insert(again.copy.end(), range.data, range.data + range.size);
    again.due = packet.due + some_delay();
  }
  if (packet.is_corrupt && (packet.payload_bytes == 0 || net.random_() % 4 == 0)) {
    packet.header[net.random_() % packet.header.size()] ^=
        static_cast<std::byte>(1u << (net.random_() % 8));
    packet.is_corrupt = false;
  }
  if (packet.is_truncated && packet.payload_bytes == 0) {
    packet.header.resize(net.random_() % packet.header.size());
    packet.is_truncated = false;
  }
  net.put(to, second);
  net.put(to, first);
}

void LoopbackEngine::close(PeerId peer) noexcept {
  const std::lock_guard lock(network_->mutex_);
  network_->break_off(peer);
}

bool LoopbackEngine::progress(TransferEvents& events) {
  pipe_.clear();
  bool worked = false;
  while (step(events)) worked = true;
  return worked;
}

// One packet that is due, in the order of the due times. It stays in the inbox until it is done
// with, so that a connection that breaks meanwhile finds it; nobody else takes it out.
bool LoopbackEngine::step(TransferEvents& events) {
  using Packet = LoopbackNetwork::Packet;
  LoopbackNetwork& net = *network_;
  std::unique_lock lock(net.mutex_);
  const int64_t now = net.now();
  auto next = inbox_.end();
  for (auto it = inbox_.begin(); it != inbox_.end(); ++it) {
    if (it->due > now) continue;
    if (next == inbox_.end() || std::pair(it->due, it->order) < std::pair(next->due, next->order))
      next = it;
    if (!net.is_simulated_) break;  // They are in order.
  }
  if (next == inbox_.end()) return false;
  Packet& packet = *next;
  std::list<Packet> done;  // Ends behind the lock's scope, so that nothing is freed under it.
  const auto finish = [&] { done.splice(done.end(), inbox_, next); };
  switch (packet.kind) {
    case Packet::Kind::kSent:
      finish();
      lock.unlock();
      events.on_sent(packet.sent_token, {});
      return true;
    case Packet::Kind::kClosed: {
      const auto found = net.connections_.find(packet.peer);
      if (found != net.connections_.end()) {
        for (LoopbackEngine*& end : found->second.ends) {
          if (end == this) end = nullptr;
        }
        if (found->second.ends[0] == nullptr && found->second.ends[1] == nullptr)
          net.connections_.erase(found);
      }
      finish();
      lock.unlock();
      events.on_closed(packet.peer);
      return true;
    }
    case Packet::Kind::kMessage: {
      bool wants = false;
      if (!packet.is_lost) {
        lock.unlock();
        wants = events.on_message(packet.peer, packet.header, packet.payload_bytes, &packet.into,
                                  &packet.landing_token) &&
                packet.payload_bytes != 0;
        lock.lock();
      }
      if (!wants) {
        net.tell_sender(packet);
        finish();
        return true;
      }
      packet.kind = Packet::Kind::kLanding;
      packet.due = std::max(packet.due, net.now() + net.faults_.latency);
      packet.order = ++net.num_packets_;
      if (net.is_simulated_) return true;
      break;
    }
    case Packet::Kind::kLanding: break;
  }
  const bool is_whole = land(packet);
  net.tell_sender(packet);
  finish();
  lock.unlock();
  events.on_received(packet.landing_token, is_whole, {});
  return true;
}

// Copies a payload to where it goes. Returns whether all of it has come. The caller holds the lock.
bool LoopbackEngine::land(LoopbackNetwork::Packet& packet) {
  LoopbackNetwork& net = *network_;
  if (packet.is_lost || (!packet.is_copy && packet.sender == nullptr)) return false;
  uint64_t left = packet.payload_bytes;
  if (packet.is_truncated) left = net.random_() % left;
  const IoRange copied{packet.copy.data(), packet.copy.size()};
  const IoRange* from = packet.is_copy ? &copied : packet.ranges.data();
  size_t offset = 0;
  for (const IoRange& range : packet.into) {
    for (size_t at = 0; at < range.size && left > 0;) {
      const size_t bytes =
          static_cast<size_t>(std::min<uint64_t>({range.size - at, from->size - offset, left}));
      std::memcpy(range.data + at, from->data + offset, bytes);
      at += bytes;
      offset += bytes;
      left -= bytes;
      if (offset == from->size) ++from, offset = 0;
    }
  }
  if (packet.is_corrupt) {
    const IoRange& range = packet.into[net.random_() % packet.into.size()];
    range.data[net.random_() % range.size] ^= static_cast<std::byte>(1u << (net.random_() % 8));
  }
  return !packet.is_truncated;
}

}  // namespace kvc
