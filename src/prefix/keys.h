// Names of blocks: SHA-256 over parent, extra keys and tokens, as kvcache.h ("Prefix cache")
// defines it.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
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
  int64_t offset = 0;  // token
  std::string data;
};

constexpr size_t kMaxSaltBytes = 4096;
constexpr size_t kMaxExtraKeys = 1024;
constexpr int32_t kMaxPriority = 100;

// The parent of a namespace's first blocks.
BlockKey namespace_root(const void* salt, size_t size) noexcept;
const BlockKey& default_root() noexcept;  // Root of the namespace without salt.

// `extra`: those of the whole query, ordered by (offset, type, data); the ones inside [begin, begin
// + num_tokens) count.
BlockKey block_key(const BlockKey& parent, const std::vector<ExtraKey>& extra, int64_t begin,
                   const int32_t* tokens, int32_t num_tokens) noexcept;

// A kvc_prefix_query, checked. Pointers borrowed.
struct PrefixQuery {
  uint64_t flags = 0;
  int64_t num_tokens = 0;
  const int32_t* tokens = nullptr;  // null: only the keys are known
  const BlockKey* keys = nullptr;   // of the leading blocks
  int64_t num_keys = 0;
  BlockKey root;
  std::vector<ExtraKey> extra;  // ordered by (offset, type, data)
  int32_t priority = 0;
};

// The keys of a query's full blocks, computed as they are asked for, each once.
class KeyChain {
 public:
  // `query` is borrowed.
  KeyChain(const PrefixQuery& query, int32_t block_tokens)
      : query_(query), block_tokens_(block_tokens) {}

  const PrefixQuery& query() const { return query_; }
  int32_t block_tokens() const { return block_tokens_; }
  int64_t num_blocks() const { return query_.num_tokens / block_tokens_; }  // full ones
  // In [0, num_blocks()). Throws std::bad_alloc.
  const BlockKey& key(int64_t block) {
    if (block < query_.num_keys) return query_.keys[block];
    return computed(block);
  }
  // null when unknown; [block_tokens], of the last partial block fewer.
  const int32_t* tokens(int64_t block) const {
    return query_.tokens == nullptr ? nullptr : query_.tokens + block * block_tokens_;
  }

 private:
  const BlockKey& computed(int64_t block);

  const PrefixQuery& query_;
  int32_t block_tokens_;
  std::vector<BlockKey> own_;  // of the blocks from query.num_keys on
};

}  // namespace kvc
