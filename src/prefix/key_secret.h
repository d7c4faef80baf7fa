// A hash of keys that depends on a secret of the process, so that nobody can choose keys that
// collide (hash flooding). It decides places in tables only: keys and results are the same in all
// processes.
#pragma once

#include <array>
#include <cstdint>
#include <cstring>

#include "src/prefix/keys.h"

namespace kvc {

struct KeySecret {
  std::array<uint64_t, 9> words{};
};

// Drawn from the kernel at the first call, then the same for the life of the process.
const KeySecret& process_secret() noexcept;
// Draws another secret with every call.
KeySecret draw_secret() noexcept;

// Multilinear hashing with half the multiplications, strongly universal over all 256 bits: two keys
// collide with probability 2^-32, whatever they are (Lemire and Kaser, "Strongly universal string
// hashing is fast", 2014).
inline uint32_t keyed_hash(const KeySecret& secret, const BlockKey& key) noexcept {
  std::array<uint32_t, 8> words;
  static_assert(sizeof(words) == sizeof(key.bytes));
  std::memcpy(words.data(), key.bytes.data(), sizeof(words));
  const std::array<uint64_t, 9>& s = secret.words;
  const uint64_t sum =
      s[8] + (s[0] + words[0]) * (s[1] + words[1]) + (s[2] + words[2]) * (s[3] + words[3]) +
      (s[4] + words[4]) * (s[5] + words[5]) + (s[6] + words[6]) * (s[7] + words[7]);
  return static_cast<uint32_t>(sum >> 32);
}

}  // namespace kvc
