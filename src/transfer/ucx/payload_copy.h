// A payload on its way between its ranges and the buffers of a network, part by part: the bytes are
// digested while they are in the first cache.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

#include "src/base/digest.h"
#include "src/transfer/engine.h"

namespace kvc {

class PayloadCopy {
 public:
  // Throws std::bad_alloc.
  PayloadCopy(const DigestTable& digests, std::span<const IoRange> ranges);
  PayloadCopy(const PayloadCopy&) = delete;
  PayloadCopy& operator=(const PayloadCopy&) = delete;

  // Copies the payload's bytes from `offset` on, at most so many. Returns how many.
  size_t read(size_t offset, void* to, size_t most) noexcept;
  // Writes bytes of the payload. Returns how many fit.
  size_t write(size_t offset, const void* from, size_t bytes) noexcept;
  // The digest of `bytes` bytes, if so many were copied in order. A network with several ways may
  // take them in another.
  IoDigest digest_of_all(uint64_t bytes) const noexcept;

 private:
  template <typename Copy>
  size_t run(size_t offset, size_t most, const Copy& copy) noexcept;

  std::vector<IoRange> ranges_;  // None is empty.
  StreamDigest digest_;
  size_t range_ = 0, at_ = 0;  // The next byte: a range, and an offset in it.
  uint64_t next_ = 0;          // The same, in the payload.
  bool is_in_order_ = true;
};

}  // namespace kvc
