#include "src/base/digest.h"

#include <new>

#define XXH_INLINE_ALL
#include <xxhash.h>

namespace kvc {

uint64_t digest_of(const void* data, size_t size, uint64_t seed) noexcept {
  return XXH3_64bits_withSeed(data, size, seed);
}

static_assert(sizeof(XXH3_state_t) <= 576 && alignof(XXH3_state_t) <= 64);

StreamDigest::StreamDigest() noexcept { (void)XXH3_64bits_reset(new (state_) XXH3_state_t); }
void StreamDigest::add(const void* data, size_t size) noexcept {
  (void)XXH3_64bits_update(std::launder(reinterpret_cast<XXH3_state_t*>(state_)), data, size);
}
uint64_t StreamDigest::value() const noexcept {
  return XXH3_64bits_digest(std::launder(reinterpret_cast<const XXH3_state_t*>(state_)));
}

}  // namespace kvc
