// Digests of bytes: XXH3, 64 bits, without secret. They find accidents; they do not authenticate.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/digest.h"

namespace kvc {

using kernels::cpu::digest_table;
using kernels::cpu::DigestTable;

inline uint64_t digest_of(const void* data, size_t size, uint64_t seed = 0) noexcept {
  return digest_table()->whole(data, size, seed);
}

// The same of bytes in ranges, however they are cut.
class StreamDigest {
 public:
  explicit StreamDigest(const DigestTable& table = *digest_table()) noexcept : table_(table) {
    table_.begin(state_);
  }
  StreamDigest(const StreamDigest&) = delete;
  StreamDigest& operator=(const StreamDigest&) = delete;

  void add(const void* data, size_t size) noexcept { table_.add(state_, data, size); }
  uint64_t value() const noexcept { return table_.value(state_); }

 private:
  const DigestTable& table_;
  alignas(kernels::cpu::kDigestStateAlign) std::byte state_[kernels::cpu::kDigestStateBytes];
};

}  // namespace kvc
