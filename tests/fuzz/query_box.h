// A kvc_prefix_query and everything it points at, as an input of the fuzzer describes it: mutated
// numbers, honest memory.
#pragma once

#include <algorithm>
#include <vector>

#include "kvcache.h"
#include "tests/fuzz/sized_struct.h"

namespace kvc::fuzz {

constexpr int64_t kMaxPromptTokens = 40;
constexpr size_t kMaxKeys = 3;

class QueryBox {
 public:
  // Tokens of a small alphabet, so that prompts begin alike.
  QueryBox(Input& input, int32_t block) : ext_{9, nullptr} {
    kvc_prefix_query query{};
    query.num_tokens = static_cast<int64_t>(input.choose(kMaxPromptTokens + 1));
    query.flags = input.choose(4);
    query.priority = input.one_in(4) ? static_cast<int32_t>(input.choose(101)) : 0;
    if (input.one_in(16)) query.ext = &ext_;
    query.salt_size = input.choose(4) == 3 ? 1 : 0;
    query.num_keys = input.one_in(3) ? 1 + input.choose(kMaxKeys) : 0;
    if (input.one_in(3)) query.num_hashes = static_cast<size_t>(query.num_tokens / block);
    const bool without_tokens = query.num_hashes != 0 && input.one_in(3);
    if (input.one_in(3)) {
      mutate(input, &query, sizeof query,
             {offsetof(kvc_prefix_query, ext), offsetof(kvc_prefix_query, tokens),
              offsetof(kvc_prefix_query, hashes), offsetof(kvc_prefix_query, salt),
              offsetof(kvc_prefix_query, keys)});
    }
    // Arrays are as long as the numbers say, wherever the library may believe them.
    if (query.num_tokens > kMaxPromptTokens && query.num_tokens < int64_t{1} << 40)
      query.num_tokens = kMaxPromptTokens;
    const int64_t tokens = std::clamp<int64_t>(query.num_tokens, 0, kMaxPromptTokens);
    tokens_.resize(static_cast<size_t>(tokens));
    const uint64_t pattern = input.take(2);  // few bytes, so that an input holds many operations
    for (size_t i = 0; i < tokens_.size(); ++i)
      tokens_[i] = static_cast<int32_t>(pattern >> (i % 16) & 1);
    hashes_.resize(static_cast<size_t>(tokens / block) * KVC_HASH_BYTES);
    size_t len = hashes_.size() / KVC_HASH_BYTES;
    KVC_FUZZ_CHECK(kvc_prefix_hash(tokens_.data(), tokens_.size(), block, nullptr, 0, nullptr, 0,
                                   hashes_.data(), &len, nullptr) == KVC_OK);
    if (query.salt_size > 1 && query.salt_size <= 4096) query.salt_size = 1;
    if (query.num_keys > kMaxKeys && query.num_keys <= 1024) query.num_keys = kMaxKeys;
    make_keys(input, std::min(query.num_keys, kMaxKeys));
    if (!input.one_in(32)) {
      query.tokens = without_tokens ? nullptr : tokens_.data();
      query.hashes = query.num_hashes != 0 ? hashes_.data() : nullptr;
      query.salt = query.salt_size != 0 ? &salt_ : nullptr;
      query.keys =
          query.num_keys != 0 ? reinterpret_cast<const kvc_prefix_key*>(keys_->data()) : nullptr;
    }
    query.struct_size = choose_struct_size(input, sizeof query);
    memory_ = std::make_unique<ExactMemory>(owned_bytes(query.struct_size));
    memory_->put(0, &query, sizeof query);
  }

  const kvc_prefix_query* get() const {
    return reinterpret_cast<const kvc_prefix_query*>(memory_->data());
  }
  const std::vector<int32_t>& tokens() const { return tokens_; }

 private:
  void make_keys(Input& input, size_t count) {
    size_t stride = sizeof(kvc_prefix_key);
    if (input.one_in(8)) stride = choose_struct_size(input, sizeof(kvc_prefix_key));
    keys_ = std::make_unique<ExactMemory>(std::max<size_t>(owned_bytes(stride), stride * count));
    for (size_t i = 0; i < count; ++i) {
      // Elements narrower than their size field would overwrite the first one's with another
      // plausible size.
      if (i > 0 && stride < sizeof(size_t)) break;
      kvc_prefix_key key{};
      key.type = static_cast<kvc_prefix_key_type>(1 + input.choose(3));
      key.offset = static_cast<int64_t>(input.choose(20));
      key.size = input.choose(3) == 2 ? 1 : 0;
      if (input.one_in(4)) mutate(input, &key, sizeof key, {offsetof(kvc_prefix_key, data)});
      if (key.size > 1 && key.size <= 4096) key.size = 1;
      if (key.size != 0 && !input.one_in(16)) key.data = &salt_;
      key.struct_size = stride;
      // An element has its stride's room; the first size field is always there.
      keys_->put(i * stride, &key,
                 i == 0 ? std::min(sizeof key, owned_bytes(stride)) : std::min(sizeof key, stride));
    }
    if (count > 0 && stride > sizeof(kvc_prefix_key) && input.one_in(2))
      keys_->data()[stride - 1] = 1;
  }

  kvc_ext ext_;
  char salt_ = 'a';
  std::vector<int32_t> tokens_;
  std::vector<uint8_t> hashes_;
  std::unique_ptr<ExactMemory> keys_, memory_;
};

}  // namespace kvc::fuzz
