// Redis Cluster's slot of a key: CRC-16 (XMODEM) modulo 16384, as its specification says. Keys here
// have no hash tags.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string_view>

namespace kvc {

constexpr size_t kNumSlots = 16384;

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

}  // namespace kvc
