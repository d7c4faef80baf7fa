// The servers of a tier: one, or a cluster whose slots lie on several. Connections are kept.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <vector>

#include "src/tiers/redis/connection.h"

namespace kvc {

constexpr size_t kNumSlots = 16384;

// Redis Cluster's slot of a key: CRC-16 (XMODEM) modulo 16384, as its specification says. Keys here
// have no hash tags.
constexpr uint16_t slot_of_key(std::string_view key) {
  uint16_t crc = 0;
  for (const char c : key) {
    crc = static_cast<uint16_t>(crc ^ static_cast<uint16_t>(static_cast<uint8_t>(c)) << 8);
    for (int bit = 0; bit < 8; ++bit)
      crc = static_cast<uint16_t>((crc & 0x8000) != 0 ? crc << 1 ^ 0x1021 : crc << 1);
  }
  return static_cast<uint16_t>(crc % kNumSlots);
}
static_assert(slot_of_key("123456789") == 0x31c3 % kNumSlots, "the specification's own example");

// Any thread.
class Servers {
 public:
  // Connects to the first of `seeds` that answers. Throws ConnectionError.
  Servers(std::vector<Endpoint> seeds, const TierConfig& config);

  Endpoint at(uint16_t slot) const;
  // What a server has said: the slot has moved there.
  void moved(uint16_t slot, const Endpoint& to);
  // A server does not answer: asks the others who has its slots now, at most once a second.
  void lost(const Endpoint& endpoint) noexcept;

  // A connection for one user, kept or new. Throws ConnectionError, at once where the server of a
  // cluster was lost less than a second ago: the others' slots go on.
  std::unique_ptr<Connection> take(const Endpoint& endpoint, TierTime deadline);
  // All kept connections to it are closed.
  void forget(const Endpoint& endpoint) noexcept;
  // It is in order.
  void release(const Endpoint& endpoint, std::unique_ptr<Connection> connection) noexcept;

 private:
  using Map = std::vector<Endpoint>;  // [slot]; empty: one server has all.

  Map ask(Connection& connection, const Endpoint& asked, TierTime deadline) const;
  TierTime connect_deadline() const;
  void warn_of_limits(Connection& connection) noexcept;

  const std::vector<Endpoint> seeds_;
  // Copies of what TierConfig borrows.
  std::string username_, password_;
  TierConfig config_;

  mutable std::mutex mutex_;
  Endpoint first_;  // The one that answered last.
  Map map_;
  TierTime asked_{};
  std::map<std::string, TierTime> lost_at_;  // Servers of a cluster.
  std::map<std::string, std::vector<std::unique_ptr<Connection>>> kept_;
};

// "host:port" or "[address]:port". False: it is neither.
bool parse_endpoint(std::string_view text, Endpoint* out);

}  // namespace kvc
