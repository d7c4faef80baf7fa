// Keys of blocks: SHA-256 over parent key, extra keys and tokens, as kvcache.h ("Prefix cache")
// defines them.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "kvcache.h"

namespace kvc {

struct BlockKey {
  std::array<uint8_t, KVC_HASH_BYTES> bytes{};

  friend bool operator==(const BlockKey& a, const BlockKey& b) = default;
};

struct ExtraKey {
  kvc_prefix_key_type type = 0;
  int64_t offset = 0;  // Token that the key belongs to.
  std::string data;
};

// A number of tokens before a block's first extra key: only the block's key tells its extra keys.
constexpr int32_t kUnknownPlain = -1;
constexpr size_t kMaxSaltBytes = 4096;
constexpr size_t kMaxExtraKeys = 1024;
constexpr int32_t kMaxPriority = 100;

// The parent key of the first blocks of a namespace.
BlockKey namespace_root(const void* salt, size_t size) noexcept;
const BlockKey& default_root() noexcept;  // Root of the namespace without salt.

// `extra`: extra keys of the whole query, ordered by (offset, type, data). Those inside [begin,
// begin + num_tokens) count.
BlockKey block_key(const BlockKey& parent, const std::vector<ExtraKey>& extra, int64_t begin,
                   const int32_t* tokens, int32_t num_tokens) noexcept;

// Tokens of the block before its first extra key; all when it has none.
int32_t tokens_before_extra_keys(const std::vector<ExtraKey>& extra, int64_t begin,
                                 int32_t num_tokens) noexcept;

// A kvc_prefix_query, checked. Pointers borrowed.
struct PrefixQuery {
  uint64_t flags = 0;
  int64_t num_tokens = 0;
  const int32_t* tokens = nullptr;  // Null: only the keys are known.
  const BlockKey* keys = nullptr;   // Keys of the leading blocks, [num_keys].
  int64_t num_keys = 0;
  BlockKey root;
  std::vector<ExtraKey> extra;  // Ordered by (offset, type, data).
  int32_t priority = 0;
};

// The keys of the full blocks of a query. Each is computed once, when it is first needed.
class KeyChain {
 public:
  // `query` is borrowed.
  KeyChain(const PrefixQuery& query, int32_t block_tokens)
      : query_(query), block_tokens_(block_tokens) {}

  const PrefixQuery& query() const { return query_; }
  int32_t block_tokens() const { return block_tokens_; }
  int64_t num_blocks() const { return query_.num_tokens / block_tokens_; }  // Full blocks.
  // `block` in [0, num_blocks()). Throws std::bad_alloc.
  const BlockKey& key(int64_t block) {
    if (block < query_.num_keys) return query_.keys[block];
    return computed(block);
  }
  // Token ids, [block_tokens], or fewer of the last partial block; null when unknown.
  const int32_t* tokens(int64_t block) const {
    return query_.tokens == nullptr ? nullptr : query_.tokens + block * block_tokens_;
  }

 private:
  const BlockKey& computed(int64_t block);

  const PrefixQuery& query_;
  int32_t block_tokens_;
  std::vector<BlockKey> own_;  // Keys of the blocks from query.num_keys on.
};

// A hash of keys that depends on a secret of the process, so that nobody can choose keys that
// collide (hash flooding). It decides places in tables only: keys and results are the same in all
// processes.
struct KeySecret {
  std::array<uint64_t, 9> words{};
};

// Drawn from the kernel at the first call, then the same for the life of the process.
const KeySecret& process_secret() noexcept;
// Draws another secret with every call.
KeySecret draw_secret() noexcept;

// Multilinear hashing with half the multiplications, strongly universal over all 256 bits: two keys
// collide with probability 2^-32, whatever they are (Lemire and Kaser, "Strongly universal string
// hashing is fast", 2014).
inline uint32_t keyed_hash(const KeySecret& secret, const BlockKey& key) noexcept {
  std::array<uint32_t, 8> words;
  static_assert(sizeof(words) == sizeof(key.bytes));
  std::memcpy(words.data(), key.bytes.data(), sizeof(words));
  const std::array<uint64_t, 9>& s = secret.words;
  const uint64_t sum =
      s[8] + (s[0] + words[0]) * (s[1] + words[1]) + (s[2] + words[2]) * (s[3] + words[3]) +
      (s[4] + words[4]) * (s[5] + words[5]) + (s[6] + words[6]) * (s[7] + words[7]);
  return static_cast<uint32_t>(sum >> 32);
}

}  // namespace kvc
