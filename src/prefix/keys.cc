#include "src/prefix/keys.h"

#include <sys/auxv.h>
#include <sys/random.h>
#include <time.h>

#include "src/base/process_mutex.h"

#define OPENSSL_SUPPRESS_DEPRECATED
#include <openssl/sha.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "src/base/process_mutex.h"
#include "src/prefix/keys.h"
namespace kvc {
namespace {

// Vigna's splitmix64.
uint64_t mixed(uint64_t& state) noexcept {
  uint64_t word = state += 0x9E3779B97F4A7C15u;
  word = (word ^ word >> 30) * 0xBF58476D1CE4E5B9u;
  word = (word ^ word >> 27) * 0x94D049BB133111EBu;
  return word ^ word >> 31;
}

}  // namespace

KeySecret draw_secret() noexcept {
  KeySecret secret;
  constexpr auto kBytes = static_cast<ssize_t>(sizeof(secret.words));
  if (getrandom(secret.words.data(), sizeof(secret.words), GRND_NONBLOCK) == kBytes) return secret;
  // The call is missing, or it is too early after the start of the machine. Uses the 16 random
  // bytes that the kernel gave the process, and the clock.
  uint64_t state = 0, given = 0;
  if (const auto* bytes = reinterpret_cast<const void*>(getauxval(AT_RANDOM))) {
    std::memcpy(&state, bytes, sizeof(state));
    std::memcpy(&given, static_cast<const char*>(bytes) + sizeof(state), sizeof(given));
  }
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  state ^= static_cast<uint64_t>(now.tv_nsec);
  for (uint64_t& word : secret.words) word = mixed(state) ^ given;
  return secret;
}

const KeySecret& process_secret() noexcept {
  static constinit ProcessOnce<KeySecret> secret;
  return secret.get(draw_secret);
}

// libcrypto's SHA256_* functions are deprecated for general use because they bypass its providers.
// A block needs two compressions, less than the lookup of a provider alone, and the static archive
// then brings a few kilobytes instead of megabytes.

namespace {

static_assert(SHA256_DIGEST_LENGTH == KVC_HASH_BYTES);
constexpr char kRootLabel[] = "kvcache-prefix-1";

// Collects short runs of bytes, so that most keys take one call of SHA256_Update.
class Digest {
 public:
  Digest() noexcept { SHA256_Init(&context_); }

  void add(const void* data, size_t size) noexcept {
    if (size > sizeof(buffer_) - used_) {
      flush();
      if (size > sizeof(buffer_)) {
        SHA256_Update(&context_, data, size);
        return;
      }
    }
    if (size != 0) std::memcpy(buffer_ + used_, data, size);
    used_ += size;
  }
  void add_u32(uint32_t value) noexcept {
    if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap32(value);
    add(&value, sizeof(value));
  }
  void add_u64(uint64_t value) noexcept {
    if constexpr (std::endian::native == std::endian::big) value = __builtin_bswap64(value);
    add(&value, sizeof(value));
  }
  void add_tokens(const int32_t* tokens, int32_t count) noexcept {
    if constexpr (std::endian::native == std::endian::little) {
      add(tokens, static_cast<size_t>(count) * sizeof(int32_t));
    } else {
      for (int32_t i = 0; i < count; ++i) add_u32(static_cast<uint32_t>(tokens[i]));
    }
  }
  BlockKey finish() noexcept {
    flush();
    BlockKey key;
    SHA256_Final(key.bytes.data(), &context_);
    return key;
  }

 private:
  void flush() noexcept {
    if (used_ != 0) SHA256_Update(&context_, buffer_, used_);
    used_ = 0;
  }

  SHA256_CTX context_;
  size_t used_ = 0;
  unsigned char buffer_[512];
};

}  // namespace

BlockKey namespace_root(const void* salt, size_t size) noexcept {
  Digest digest;
  digest.add(kRootLabel, sizeof(kRootLabel) - 1);
  digest.add_u64(size);
  digest.add(salt, size);
  return digest.finish();
}

const BlockKey& default_root() noexcept {
  static constinit ProcessOnce<BlockKey> root;
  return root.get([] { return namespace_root(nullptr, 0); });
}

int32_t tokens_before_extra_keys(const std::vector<ExtraKey>& extra, int64_t begin,
                                 int32_t num_tokens) noexcept {
  const auto first =
      std::lower_bound(extra.begin(), extra.end(), begin,
                       [](const ExtraKey& key, int64_t offset) { return key.offset < offset; });
  return first == extra.end()
             ? num_tokens
             : static_cast<int32_t>(std::min<int64_t>(first->offset - begin, num_tokens));
}

BlockKey block_key(const BlockKey& parent, const std::vector<ExtraKey>& extra, int64_t begin,
                   const int32_t* tokens, int32_t num_tokens) noexcept {
  const auto starts_before = [](const ExtraKey& key, int64_t offset) {
    return key.offset < offset;
  };
  const auto first = std::lower_bound(extra.begin(), extra.end(), begin, starts_before);
  const auto last = std::lower_bound(first, extra.end(), begin + num_tokens, starts_before);
  Digest digest;
  digest.add(parent.bytes.data(), parent.bytes.size());
  digest.add_u32(static_cast<uint32_t>(last - first));
  for (auto key = first; key != last; ++key) {
    digest.add_u32(key->type);
    digest.add_u32(static_cast<uint32_t>(key->offset - begin));
    digest.add_u64(key->data.size());
    digest.add(key->data.data(), key->data.size());
  }
  digest.add_tokens(tokens, num_tokens);
  return digest.finish();
}

const BlockKey& KeyChain::computed(int64_t block) {
  const auto index = static_cast<size_t>(block - query_.num_keys);
  if (index < own_.size()) return own_[index];
  // References to keys stay valid.
  if (own_.empty()) own_.reserve(num_blocks() - query_.num_keys);
  while (own_.size() <= index) {
    const int64_t next = query_.num_keys + static_cast<int64_t>(own_.size());
    const BlockKey& parent = next == 0 ? query_.root : key(next - 1);
    own_.push_back(
        block_key(parent, query_.extra, next * block_tokens_, tokens(next), block_tokens_));
  }
  return own_[index];
}

}  // namespace kvc
