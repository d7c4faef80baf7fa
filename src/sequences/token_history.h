// The known tokens of a sequence: their ids and the keys of their blocks, so that full blocks can
// be published to the prefix index.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <vector>

#include "src/prefix/keys.h"

namespace kvc {

inline const std::vector<ExtraKey> no_extra_keys;

// The leading `num_known` tokens are known by the keys of their full blocks, and from `ids_begin`
// (a multiple of the block) on by their ids too. Without a prefix index no token is known.
struct TokenHistory {
  BlockKey root;
  std::shared_ptr<const std::vector<ExtraKey>> extra;  // Null: none.
  std::vector<BlockKey> keys;                          // [num_known / block_tokens]
  std::vector<int32_t> ids;                            // Ids of [ids_begin, num_known).
  int64_t ids_begin = 0;
  int64_t num_known = 0;
  int64_t num_published = 0;  // Leading blocks that publishing can skip.
  int64_t num_given = 0;      // Leading keys that the caller gave.
  int32_t priority = 0;
  bool is_closed = false;  // A quota kept a block out, so later blocks have no parent.

  // The rows are not those that the tokens give: they were moved, overwritten, or come from older
  // weights. No token is known then, so none is published.
  bool has_diverged = false;

  void cut(int64_t num_tokens, int32_t block_tokens) noexcept {
    if (num_tokens >= num_known) return;
    // Among tokens known by keys alone, only whole blocks stay known.
    num_known = num_tokens >= ids_begin ? num_tokens : num_tokens / block_tokens * block_tokens;
    ids_begin = std::min(ids_begin, num_known);
    ids.resize(num_known - ids_begin);
    keys.resize(num_known / block_tokens);
    num_published = std::min(num_published, num_known / block_tokens);
    num_given = std::min(num_given, num_known / block_tokens);
  }
  void diverge() noexcept {
    cut(0, 1);
    has_diverged = true;
  }
  // Makes room for `count` more tokens. Throws std::bad_alloc.
  void reserve(int64_t count, int32_t block_tokens) {
    const auto grow = [](auto& values, size_t more) {
      if (values.size() + more > values.capacity())
        values.reserve(std::max(values.size() + more, values.capacity() * 2));
    };
    grow(ids, static_cast<size_t>(count));
    grow(keys, static_cast<size_t>((num_known + count) / block_tokens) - keys.size());
  }
  // Call it after reserve(), with all earlier tokens known.
  void add(const int32_t* tokens, int64_t count, int32_t block_tokens) noexcept {
    ids.insert(ids.end(), tokens, tokens + count);
    num_known += count;
    for (auto block = static_cast<int64_t>(keys.size()); (block + 1) * block_tokens <= num_known;
         ++block) {
      const int64_t begin = block * block_tokens;
      keys.push_back(block_key(block == 0 ? root : keys.back(),
                               extra == nullptr ? no_extra_keys : *extra, begin,
                               ids.data() + (begin - ids_begin), block_tokens));
    }
  }
  // See NewBlock::num_plain.
  int32_t num_plain(int64_t block, int32_t block_tokens) const noexcept {
    if (block < num_given) return kUnknownPlain;
    if (extra == nullptr) return block_tokens;
    return tokens_before_extra_keys(*extra, block * block_tokens, block_tokens);
  }
  // Ids of the block; null: known by its key alone.
  const int32_t* block_ids(int64_t block, int32_t block_tokens) const noexcept {
    const int64_t begin = block * block_tokens;
    return begin >= ids_begin ? ids.data() + (begin - ids_begin) : nullptr;
  }
};

}  // namespace kvc
