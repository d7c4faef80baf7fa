// Keys of blocks whose tokens are not known.
#pragma once

#include <kvcache.h>

#include <cstdint>

namespace kvc::replay {

enum class KeyDomain : uint64_t {
  kBlockId,  // number: an id of the trace
  kUnique    // number: a request, whose blocks are like no others
};

// Writes KVC_HASH_BYTES. Different (domain, number, part) give different keys, and every byte of
// them looks random, whatever part of a key a table hashes by.
void write_block_key(KeyDomain domain, uint64_t number, uint64_t part, uint8_t* key) noexcept;

}  // namespace kvc::replay
