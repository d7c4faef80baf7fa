// The digest functions over the vectors that the flags of the including file allow. What xxhash.h
// defines is of that file alone.
#pragma once

#define XXH_INLINE_ALL
#include <xxhash.h>

#include "kernels/cpu/digest.h"

namespace kvc::kernels::cpu {
namespace {

static_assert(sizeof(XXH3_state_t) <= kDigestStateBytes &&
              alignof(XXH3_state_t) <= kDigestStateAlign);

constexpr DigestTable kDigestFunctions{
    [](const void* data, size_t size, uint64_t seed) -> uint64_t {
      return XXH3_64bits_withSeed(data, size, seed);
    },
    [](void* state) { (void)XXH3_64bits_reset(static_cast<XXH3_state_t*>(state)); },
    [](void* state, const void* data, size_t size) {
      (void)XXH3_64bits_update(static_cast<XXH3_state_t*>(state), data, size);
    },
    [](const void* state) -> uint64_t {
      return XXH3_64bits_digest(static_cast<const XXH3_state_t*>(state));
    }};

}  // namespace
}  // namespace kvc::kernels::cpu
