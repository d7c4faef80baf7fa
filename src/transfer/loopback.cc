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
    if (engine->is_hung_) continue;
    for (const Packet& packet : engine->inbox_) due = std::min(due, packet.due);
  }
  return due;
}

bool LoopbackNetwork::rolls(int32_t chance) {
  return chance > 0 && static_cast<int32_t>(random_() % 1000) < chance;
}

// The caller holds the lock.
void LoopbackNetwork::put(LoopbackEngine* to, Packet packet) {
  packet.order = ++num_packets_;
  to->inbox_.push_back(std::move(packet));
  to->pipe_.wake();
}

// The caller holds the lock. What is on its way is lost: its memory goes back to both sides before
// they are told.
void LoopbackNetwork::break_off(PeerId peer) {
  const auto found = connections_.find(peer);
  if (found == connections_.end() || !found->second.is_open) return;
  found->second.is_open = false;
  for (LoopbackEngine* end : found->second.ends) {
    if (end == nullptr) continue;
    for (size_t i = 0; i < end->inbox_.size(); ++i) {
      Packet& packet = end->inbox_[i];
      if (packet.peer != peer) continue;
      packet.is_lost = true;
      packet.due = std::min(packet.due, now());
      tell_sender(std::exchange(packet.sender, nullptr), packet);
    }
  }
  for (LoopbackEngine* end : found->second.ends) {
    if (end == nullptr) continue;
    Packet closed;
    closed.kind = Packet::Kind::kClosed;
    closed.peer = peer;
    closed.due = now();
    put(end, std::move(closed));
  }
}

// The caller holds the lock. The sender, unless it is gone, has the memory of a packet back.
void LoopbackNetwork::tell_sender(LoopbackEngine* sender, const Packet& packet) {
  if (sender == nullptr) return;
  const bool lives = std::any_of(engines_.begin(), engines_.end(),
                                 [&](const auto& entry) { return entry.second == sender; });
  if (!lives) return;
  Packet sent;
  sent.kind = Packet::Kind::kSent;
  sent.sent_token = packet.sent_token;
  put(sender, std::move(sent));
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
  const PeerId peer = ++network_->last_peer_;
  network_->connections_[peer] = {{this, found->second}, true};
  return peer;
}

void LoopbackEngine::send(PeerId peer, std::span<const std::byte> header,
                          const std::vector<IoRange>& ranges, uint64_t token) {
  const std::lock_guard lock(network_->mutex_);
  using Packet = LoopbackNetwork::Packet;
  LoopbackNetwork& net = *network_;
  Packet packet;
  packet.peer = peer;
  packet.header.assign(header.begin(), header.end());
  packet.ranges = ranges;
  packet.payload_bytes = total_bytes(ranges);
  packet.sender = this;
  packet.sent_token = token;
  packet.due = net.now() + net.faults_.latency;
  const auto found = net.connections_.find(peer);
  const bool is_open = found != net.connections_.end() && found->second.is_open;
  LoopbackEngine* to = nullptr;
  if (is_open) {
    const bool is_first = found->second.ends[0] == this;
    to = found->second.ends[is_first ? 1 : 0];
  }
  if (to == nullptr || is_hung_ || net.rolls(net.faults_.drop)) {
    if (is_hung_ && to != nullptr) return;
    net.tell_sender(this, packet);
    return;
  }
  if (net.rolls(net.faults_.reset)) {
    net.tell_sender(this, packet);
    net.break_off(peer);
    return;
  }
  if (net.rolls(net.faults_.delay))
    packet.due += static_cast<int64_t>(
        net.random_() % static_cast<uint64_t>(std::max<int64_t>(1, net.faults_.most_delay)));
  packet.is_corrupt = net.rolls(net.faults_.corrupt);
  packet.is_truncated = net.rolls(net.faults_.truncate);
  if (net.rolls(net.faults_.duplicate)) {
    Packet second = packet;
    second.is_copy = true;
    second.sender = nullptr;
    second.is_corrupt = second.is_truncated = false;
    for (const IoRange& range : ranges)
      second.copy.insert(second.copy.end(), range.data, range.data + range.size);
    second.ranges = {};
    second.due += static_cast<int64_t>(
        net.random_() % static_cast<uint64_t>(std::max<int64_t>(1, net.faults_.most_delay)));
    net.put(to, std::move(second));
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
  net.put(to, std::move(packet));
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

// One packet that is due, in the order of the due times.
bool LoopbackEngine::step(TransferEvents& events) {
  using Packet = LoopbackNetwork::Packet;
  LoopbackNetwork& net = *network_;
  std::unique_lock lock(net.mutex_);
  if (is_hung_) return false;
  auto next = inbox_.end();
  const int64_t now = net.now();
  for (auto it = inbox_.begin(); it != inbox_.end(); ++it) {
    if (it->due <= now && (next == inbox_.end() || it->due < next->due ||
                           (it->due == next->due && it->order < next->order)))
      next = it;
    if (!net.is_simulated_ && next != inbox_.end()) break;
  }
  if (next == inbox_.end()) return false;
  Packet packet = std::move(*next);
  inbox_.erase(next);
  switch (packet.kind) {
    case Packet::Kind::kSent:
      lock.unlock();
      events.on_sent(packet.sent_token);
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
        // The connection may have broken in between.
        const auto found = net.connections_.find(packet.peer);
        packet.is_lost = found == net.connections_.end() || !found->second.is_open;
        if (packet.is_lost) net.tell_sender(std::exchange(packet.sender, nullptr), packet);
      }
      if (!wants) {
        net.tell_sender(packet.sender, packet);
        return true;
      }
      packet.kind = Packet::Kind::kLanding;
      packet.due = net.now() + net.faults_.latency;
      if (net.is_simulated_) {
        net.put(this, std::move(packet));
        return true;
      }
      break;
    }
    case Packet::Kind::kLanding: break;
  }
  // A payload lands. Its sender is told when it has been read.
  bool is_whole = !packet.is_lost && (packet.is_copy || packet.sender != nullptr);
  if (is_whole) {
    uint64_t left = packet.payload_bytes;
    if (packet.is_truncated) {
      left = net.random_() % left;
      is_whole = false;
    }
    std::vector<IoRange> from = packet.ranges;
    if (packet.is_copy) from = {{packet.copy.data(), packet.copy.size()}};
    size_t source = 0, offset = 0;
    for (const IoRange& range : packet.into) {
      for (size_t at = 0; at < range.size && left > 0;) {
        const size_t bytes = std::min<uint64_t>(
            {range.size - at, from[source].size - offset, static_cast<size_t>(left)});
        std::memcpy(range.data + at, from[source].data + offset, bytes);
        at += bytes;
        offset += bytes;
        left -= bytes;
        if (offset == from[source].size) ++source, offset = 0;
      }
    }
    if (packet.is_corrupt) {
      const IoRange& range = packet.into[net.random_() % packet.into.size()];
      range.data[net.random_() % range.size] ^= static_cast<std::byte>(1u << (net.random_() % 8));
    }
  }
  net.tell_sender(packet.sender, packet);
  lock.unlock();
  events.on_received(packet.landing_token, is_whole);
  return true;
}

}  // namespace kvc
