// Deprecated because it bypasses the providers of libcrypto; src/prefix/keys.cc says why that is
// wanted here.
#define OPENSSL_SUPPRESS_DEPRECATED
#include "src/base/sha256.h"

#include <openssl/sha.h>

namespace kvc {

std::array<uint8_t, 32> sha256(const void* data, size_t size) noexcept {
  std::array<uint8_t, 32> digest;
  static_assert(SHA256_DIGEST_LENGTH == sizeof digest);
  SHA256(static_cast<const unsigned char*>(data), size, digest.data());
  return digest;
}

}  // namespace kvc
