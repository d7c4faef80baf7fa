// What tokens were computed from, written out: namespaces, queries and a dictionary of whole token
// histories.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "kvcache.h"

namespace kvc::test {

// Every distinct history (epoch of the weights, namespace, extra keys, all tokens) has a number:
// equal numbers mean equal K and V.
class Histories {
 public:
  // Before the first token.
  int root(int32_t epoch, const std::string& salt) { return number({-1, epoch, salt}); }
  int next(int parent, int32_t token, const std::string& keys) {
    return number({parent, token, keys});
  }
  // Equal to no other: of tokens whose values no prompt gives.
  int fresh() { return next_++; }
  // For people.
  std::string describe(int history) const {
    std::string text;
    while (history >= 0) {
      const auto found = std::find_if(numbers_.begin(), numbers_.end(),
                                      [&](const auto& entry) { return entry.second == history; });
      if (found == numbers_.end()) return "values of its own" + text;
      const auto& [parent, token, keys] = found->first;
      text = (parent < 0 ? "epoch " : ", ") + std::to_string(token) + " '" + keys + "'" + text;
      history = parent;
    }
    return text;
  }

 private:
  using Step = std::tuple<int, int32_t, std::string>;
  int number(Step step) {
    const auto [found, is_new] = numbers_.try_emplace(std::move(step), next_);
    next_ += is_new ? 1 : 0;
    return found->second;
  }

  std::map<Step, int> numbers_;
  int next_ = 1;
};

struct NamespaceKey {
  kvc_prefix_key_type type = KVC_PREFIX_KEY_USER;
  int64_t offset = 0;
  std::string data;
};

// What K and V depend on besides tokens. No two keys are alike.
struct Namespace {
  std::string salt;
  std::vector<NamespaceKey> keys;

  // The keys that begin to matter at a token, in one order.
  std::string keys_at(int64_t position) const {
    std::vector<std::string> parts;
    for (const NamespaceKey& key : keys) {
      if (key.offset != position) continue;
      parts.push_back(std::to_string(key.type) + ":" + std::to_string(key.data.size()) + ":" +
                      key.data);
    }
    std::sort(parts.begin(), parts.end());
    std::string text;
    for (const std::string& part : parts) text += part + ";";
    return text;
  }
};

using Hashes = std::vector<uint8_t>;

inline Hashes hashes_of(const Namespace& space, const std::vector<int32_t>& tokens,
                        size_t num_tokens, int32_t block) {
  std::vector<kvc_prefix_key> keys;
  for (const NamespaceKey& key : space.keys)
    keys.push_back(
        {sizeof(kvc_prefix_key), key.type, 0, key.offset, key.data.data(), key.data.size()});
  size_t count = num_tokens / static_cast<size_t>(block);
  Hashes hashes(count * KVC_HASH_BYTES + 1);
  const kvc_status status =
      kvc_prefix_hash(tokens.data(), num_tokens, block, space.salt.data(), space.salt.size(),
                      keys.data(), keys.size(), hashes.data(), &count, nullptr);
  if (status != KVC_OK)
    throw std::runtime_error(std::string("kvc_prefix_hash answered ") + kvc_status_name(status));
  hashes.resize(count * KVC_HASH_BYTES);
  return hashes;
}

// Key of block i among hashes.
inline std::string hash_at(const Hashes& hashes, size_t i) {
  const auto begin = hashes.begin() + static_cast<ptrdiff_t>(i * KVC_HASH_BYTES);
  return std::string(begin, begin + KVC_HASH_BYTES);
}

// A query and all that it borrows.
struct Query {
  Namespace space;
  std::vector<int32_t> tokens;
  uint64_t flags = 0;
  int32_t priority = 0;
  bool give_tokens = true;
  Hashes hashes;  // that are given

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  // Valid until the query changes.
  const kvc_prefix_query* get() {
    keys_.clear();
    for (const NamespaceKey& key : space.keys)
      keys_.push_back(
          {sizeof(kvc_prefix_key), key.type, 0, key.offset, key.data.data(), key.data.size()});
    call_ = {};
    call_.struct_size = sizeof call_;
    call_.flags = flags;
    call_.num_tokens = size();
    static const int32_t kNothing = 0;
    if (give_tokens) call_.tokens = tokens.empty() ? &kNothing : tokens.data();
    call_.hashes = hashes.empty() ? nullptr : hashes.data();
    call_.num_hashes = hashes.size() / KVC_HASH_BYTES;
    call_.salt = space.salt.empty() ? nullptr : space.salt.data();
    call_.salt_size = space.salt.size();
    call_.keys = keys_.empty() ? nullptr : keys_.data();
    call_.num_keys = keys_.size();
    call_.priority = priority;
    return &call_;
  }

 private:
  std::vector<kvc_prefix_key> keys_;
  kvc_prefix_query call_{};
};

}  // namespace kvc::test
