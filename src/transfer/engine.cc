#include "src/transfer/engine.h"

#include "src/base/digest.h"

namespace kvc {

size_t total_bytes(const std::vector<IoRange>& ranges) {
  size_t bytes = 0;
  for (const IoRange& range : ranges) bytes += range.size;
  return bytes;
}

uint64_t digest_of(const std::vector<IoRange>& ranges) noexcept {
  StreamDigest digest;
  for (const IoRange& range : ranges) digest.add(range.data, range.size);
  return digest.value();
}

}  // namespace kvc
