#include "src/prefix/key_secret.h"

#include <sys/auxv.h>
#include <sys/random.h>
#include <time.h>

#include "src/base/process_mutex.h"

namespace kvc {
namespace {

// Vigna's splitmix64.
uint64_t mixed(uint64_t& state) noexcept {
  uint64_t word = state += 0x9E3779B97F4A7C15u;
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
  word = (word ^ word >> 27) * 0x94D049BB133111EBu;
  return word ^ word >> 31;
}

}  // namespace

KeySecret draw_secret() noexcept {
  KeySecret secret;
  constexpr auto kBytes = static_cast<ssize_t>(sizeof(secret.words));
  if (getrandom(secret.words.data(), sizeof(secret.words), GRND_NONBLOCK) == kBytes) return secret;
  // The call is missing, or it is too early after the start of the machine. Uses the 16 random
  // bytes that the kernel gave the process, and the clock.
  uint64_t state = 0, given = 0;
  if (const auto* bytes = reinterpret_cast<const void*>(getauxval(AT_RANDOM))) {
    std::memcpy(&state, bytes, sizeof(state));
    std::memcpy(&given, static_cast<const char*>(bytes) + sizeof(state), sizeof(given));
  }
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  state ^= static_cast<uint64_t>(now.tv_nsec);
  for (uint64_t& word : secret.words) word = mixed(state) ^ given;
  return secret;
}

const KeySecret& process_secret() noexcept {
  static constinit ProcessOnce<KeySecret> secret;
  return secret.get(draw_secret);
}

}  // namespace kvc
