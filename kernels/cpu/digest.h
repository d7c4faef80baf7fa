// Digests of bytes: XXH3, 64 bits, without secret. Every instruction set gives the same.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/table.h"

namespace kvc::kernels::cpu {

constexpr size_t kDigestStateBytes = 576, kDigestStateAlign = 64;

// `state`: so many bytes at such an address, begun before anything is added. Nothing throws: a
// noexcept here would only make a weak symbol.
struct DigestTable {
  uint64_t (*whole)(const void* data, size_t size, uint64_t seed);
  void (*begin)(void* state);
  void (*add)(void* state, const void* data, size_t size);
  uint64_t (*value)(const void* state);
};

// kAuto: the fastest of this machine. Null: the machine or this build has no such set.
const DigestTable* digest_table(Isa isa = Isa::kAuto) noexcept;

}  // namespace kvc::kernels::cpu
