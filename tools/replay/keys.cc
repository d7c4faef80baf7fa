#include "tools/replay/keys.h"

namespace kvc::replay {
namespace {

// The finaliser of SplitMix64: one to one over 64 bits.
uint64_t mixed(uint64_t x) noexcept {
  x += 0x9E3779B97F4A7C15u;
  x = (x ^ x >> 30) * 0xBF58476D1CE4E5B9u;
  x = (x ^ x >> 27) * 0x94D049BB133111EBu;
  return x ^ x >> 31;
}

}  // namespace

void write_block_key(KeyDomain domain, uint64_t number, uint64_t part, uint8_t* key) noexcept {
  // Word 0 gives the number back, with it word 1 the part, with that word 2 the domain.
  uint64_t words[KVC_HASH_BYTES / 8];
  words[0] = mixed(number);
  words[1] = mixed(part ^ words[0]);
  words[2] = mixed(static_cast<uint64_t>(domain) ^ words[1]);
  words[3] = mixed(words[2]);
  for (const uint64_t word : words) {
    for (int byte = 0; byte < 8; ++byte) *key++ = static_cast<uint8_t>(word >> 8 * byte);
  }
}

}  // namespace kvc::replay
