// Digests of bytes: XXH3, 64 bits, without secret. They find accidents; they do not authenticate.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvc {

uint64_t digest_of(const void* data, size_t size, uint64_t seed = 0) noexcept;

// The same of bytes in ranges, however they are cut.
class StreamDigest {
 public:
  StreamDigest() noexcept;
  void add(const void* data, size_t size) noexcept;
  uint64_t value() const noexcept;

 private:
  alignas(64) std::byte state_[576];
};

}  // namespace kvc
