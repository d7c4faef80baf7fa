#include "src/transfer/ucx/payload_copy.h"

#include <algorithm>
#include <cstring>
#include <iterator>

namespace kvc {

PayloadCopy::PayloadCopy(const DigestTable& digests, std::span<const IoRange> ranges)
    : digest_(digests) {
  ranges_.reserve(ranges.size());
  std::copy_if(ranges.begin(), ranges.end(), std::back_inserter(ranges_),
               [](const IoRange& range) { return range.size != 0; });
}

// Calls copy(memory of the payload, its bytes), for as much at once as stays in the first cache.
template <typename Copy>
size_t PayloadCopy::run(size_t offset, size_t most, const Copy& copy) noexcept {
  constexpr size_t kMostAtOnce = 4096;
  if (offset != next_) {
    is_in_order_ = false;
    next_ = offset;
    for (range_ = 0; range_ < ranges_.size() && offset >= ranges_[range_].size;)
      offset -= ranges_[range_++].size;
    at_ = offset;
  }
  size_t copied = 0;
  while (copied < most && range_ < ranges_.size()) {
    const IoRange& range = ranges_[range_];
    const size_t bytes = std::min({range.size - at_, most - copied, kMostAtOnce});
    copy(range.data + at_, bytes);
    copied += bytes;
    at_ += bytes;
    if (at_ == range.size) ++range_, at_ = 0;
  }
  next_ += copied;
  return copied;
}

size_t PayloadCopy::read(size_t offset, void* to, size_t most) noexcept {
  auto* next = static_cast<std::byte*>(to);
  return run(offset, most, [&](const std::byte* from, size_t bytes) {
    digest_.add(from, bytes);
    std::memcpy(next, from, bytes);
    next += bytes;
  });
}

size_t PayloadCopy::write(size_t offset, const void* from, size_t bytes) noexcept {
  const auto* next = static_cast<const std::byte*>(from);
  return run(offset, bytes, [&](std::byte* to, size_t some) {
    std::memcpy(to, next, some);
    digest_.add(to, some);
    next += some;
  });
}

IoDigest PayloadCopy::digest_of_all(uint64_t bytes) const noexcept {
  if (!is_in_order_ || next_ != bytes) return {};
  return digest_.value();
}

}  // namespace kvc
