// kvcache.h, section "Prefix cache".
#include <algorithm>
#include <cstring>
#include <string>
#include <vector>

#include "src/capi/call.h"
#include "src/capi/guard.h"

using kvc::CacheCall;
using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::ll;
using kvc::PrefixCache;
using kvc::ReadCall;
using kvc::require;

namespace {

constexpr size_t kMaxKeyBytes = 4096;

void check_salt(const void* salt, size_t size, const char* name) {
  if (size > kvc::kMaxSaltBytes) {
    fail_with(KVC_E_OUT_OF_RANGE, ll(static_cast<int64_t>(size)),
              "%s_size = %zu out of range: at most %zu bytes", name, size, kvc::kMaxSaltBytes);
  }
  if (salt == nullptr && size != 0)
    fail(KVC_E_INVALID_ARGUMENT, "%s is NULL with %s_size = %zu", name, name, size);
}

std::vector<kvc::ExtraKey> read_keys(const kvc_prefix_key* keys, size_t num_keys,
                                     const std::string& name) {
  std::vector<kvc::ExtraKey> result;
  if (num_keys == 0) return result;
  if (num_keys > kvc::kMaxExtraKeys) {
    fail_with(KVC_E_OUT_OF_RANGE, static_cast<int64_t>(num_keys),
              "num_keys = %zu out of range: at most %zu", num_keys, kvc::kMaxExtraKeys);
  }
  if (keys == nullptr)
    fail(KVC_E_INVALID_ARGUMENT, "%s is NULL with num_keys = %zu", name.c_str(), num_keys);
  const size_t stride = keys->struct_size;
  const auto* element = reinterpret_cast<const std::byte*>(keys);
  for (size_t i = 0; i < num_keys; ++i, element += stride) {
    const std::string entry = name + "[" + std::to_string(i) + "]";
    const auto key = kvc::read_struct_at<kvc_prefix_key>(element, stride, entry.c_str());
    if (key.type == 0)
      fail(KVC_E_INVALID_ARGUMENT, "%s.type = 0: expected at least 1", entry.c_str());
    if (key.reserved != 0) {
      fail_with(KVC_E_UNSUPPORTED, key.reserved, "%s.reserved = %u is not supported: 0 is",
                entry.c_str(), key.reserved);
    }
    if (key.offset < 0) {
      fail_with(KVC_E_OUT_OF_RANGE, key.offset, "%s.offset = %lld out of range: at least 0",
                entry.c_str(), ll(key.offset));
    }
    if (key.size > kMaxKeyBytes) {
      fail_with(KVC_E_OUT_OF_RANGE, static_cast<int64_t>(key.size),
                "%s.size = %zu out of range: at most %zu bytes", entry.c_str(), key.size,
                kMaxKeyBytes);
    }
    if (key.data == nullptr && key.size != 0)
      fail(KVC_E_INVALID_ARGUMENT, "%s.data is NULL with size = %zu", entry.c_str(), key.size);
    result.push_back({key.type, key.offset, {}});
    if (key.size != 0) result.back().data.assign(static_cast<const char*>(key.data), key.size);
  }
  std::sort(result.begin(), result.end(), [](const kvc::ExtraKey& a, const kvc::ExtraKey& b) {
    if (a.offset != b.offset) return a.offset < b.offset;
    return a.type != b.type ? a.type < b.type : a.data < b.data;
  });
  return result;
}

kvc::PrefixQuery read_query(const kvc_prefix_query* caller, const kvc::PrefixCache& prefixes) {
  const int32_t block_tokens = prefixes.block_tokens();
  const kvc_prefix_query read = kvc::read_struct(caller, "query");
  kvc::refuse_extensions(read.ext, "query");
  constexpr uint64_t kKnown = KVC_PREFIX_ALL_TOKENS | KVC_PREFIX_WHOLE_BLOCKS;
  if ((read.flags & ~kKnown) != 0) {
    fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(read.flags),
              "query->flags = %llu is not supported: ALL_TOKENS (1) and WHOLE_BLOCKS (2) are",
              static_cast<unsigned long long>(read.flags));
  }
  if (read.reserved != 0)
    fail_with(KVC_E_UNSUPPORTED, read.reserved, "query->reserved = %d is not supported: 0 is",
              read.reserved);
  if (read.num_tokens < 0 || read.num_tokens > kvc::kMaxSequenceLength) {
    fail_with(KVC_E_OUT_OF_RANGE, read.num_tokens,
              "query->num_tokens = %lld out of range: 0 to %lld", ll(read.num_tokens),
              ll(kvc::kMaxSequenceLength));
  }
  if (read.priority < 0 || read.priority > kvc::kMaxPriority) {
    fail_with(KVC_E_OUT_OF_RANGE, read.priority, "query->priority = %d out of range: 0 to %d",
              read.priority, kvc::kMaxPriority);
  }
  const auto num_blocks = static_cast<size_t>(read.num_tokens / block_tokens);
  if (read.num_hashes > num_blocks) {
    fail_with(KVC_E_OUT_OF_RANGE, static_cast<int64_t>(read.num_hashes),
              "query->num_hashes = %zu: %lld tokens have %zu full blocks of %d", read.num_hashes,
              ll(read.num_tokens), num_blocks, block_tokens);
  }
  if (read.hashes == nullptr && read.num_hashes != 0)
    fail(KVC_E_INVALID_ARGUMENT, "query->hashes is NULL with query->num_hashes = %zu",
         read.num_hashes);
  if (read.tokens == nullptr && read.num_hashes != num_blocks) {
    fail(KVC_E_INVALID_ARGUMENT,
         "query->tokens is NULL with query->num_hashes = %zu: %lld tokens have %zu full blocks",
         read.num_hashes, ll(read.num_tokens), num_blocks);
  }
  check_salt(read.salt, read.salt_size, "query->salt");
  static_assert(sizeof(kvc::BlockKey) == KVC_HASH_BYTES && alignof(kvc::BlockKey) == 1);
  return {.flags = read.flags,
          .num_tokens = read.num_tokens,
          .tokens = read.tokens,
          .keys = reinterpret_cast<const kvc::BlockKey*>(read.hashes),
          .num_keys = static_cast<int64_t>(read.num_hashes),
          .root = read.salt_size == 0 ? kvc::default_root()
                                      : kvc::namespace_root(read.salt, read.salt_size),
          .extra = read_keys(read.keys, read.num_keys, "query->keys"),
          .priority = read.priority};
}

// Runs a call that takes a cache, a query and nullable `out_tokens`.
template <typename Run>
kvc_status with_query(kvc_cache* cache, const kvc_prefix_query* query, int64_t* out_tokens,
                      kvc_error* err, Run&& run) {
  return guard(err, [&] {
    const CacheCall call(cache);
    const int64_t tokens = run(call->prefixes, read_query(query, call->prefixes));
    if (out_tokens != nullptr) *out_tokens = tokens;
  });
}

}  // namespace

kvc_status kvc_prefix_hash(const int32_t* tokens, size_t num_tokens, int32_t block_tokens,
                           const void* salt, size_t salt_size, const kvc_prefix_key* keys,
                           size_t num_keys, uint8_t* out_hashes, size_t* len,
                           kvc_error* err) noexcept {
  return guard(err, [&] {
    require(len, "len");
    if (block_tokens < 1)
      fail_with(KVC_E_INVALID_ARGUMENT, block_tokens, "block_tokens = %d: at least 1",
                block_tokens);
    if (tokens == nullptr && num_tokens != 0)
      fail(KVC_E_INVALID_ARGUMENT, "tokens is NULL with num_tokens = %zu", num_tokens);
    if (num_tokens > static_cast<size_t>(kvc::kMaxSequenceLength)) {
      fail_with(KVC_E_OUT_OF_RANGE, static_cast<int64_t>(num_tokens),
                "num_tokens = %zu out of range: at most %lld", num_tokens,
                ll(kvc::kMaxSequenceLength));
    }
    check_salt(salt, salt_size, "salt");
    const std::vector<kvc::ExtraKey> extra = read_keys(keys, num_keys, "keys");
    const size_t capacity = *len, count = num_tokens / static_cast<size_t>(block_tokens);
    *len = count;
    if (out_hashes == nullptr) return;
    if (capacity < count) {
      fail_with(KVC_E_BUFFER_TOO_SMALL, static_cast<int64_t>(count),
                "out_hashes holds %zu keys, %zu are needed", capacity, count);
    }
    kvc::BlockKey parent = kvc::namespace_root(salt, salt_size);
    for (size_t block = 0; block < count; ++block) {
      const size_t begin = block * static_cast<size_t>(block_tokens);
      parent =
          kvc::block_key(parent, extra, static_cast<int64_t>(begin), tokens + begin, block_tokens);
      std::memcpy(out_hashes + block * KVC_HASH_BYTES, parent.bytes.data(), KVC_HASH_BYTES);
    }
  });
}

kvc_status kvc_prefix_match(const kvc_cache* cache, const kvc_prefix_query* query,
                            int64_t* out_tokens, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    require(out_tokens, "out_tokens");
    *out_tokens = call->prefixes.match(read_query(query, call->prefixes));
  });
}

kvc_status kvc_prefix_attach(kvc_cache* cache, kvc_seq seq, const kvc_prefix_query* query,
                             int64_t* out_tokens, kvc_error* err) noexcept {
  return with_query(cache, query, out_tokens, err, [&](PrefixCache& prefixes, const auto& read) {
    return prefixes.attach(seq, read);
  });
}

kvc_status kvc_prefix_insert(kvc_cache* cache, kvc_seq seq, const kvc_prefix_query* query,
                             int64_t* out_tokens, kvc_error* err) noexcept {
  return with_query(cache, query, out_tokens, err, [&](PrefixCache& prefixes, const auto& read) {
    return prefixes.insert(seq, read);
  });
}

kvc_status kvc_prefix_pin(kvc_cache* cache, const kvc_prefix_query* query, int64_t* out_tokens,
                          kvc_error* err) noexcept {
  return with_query(cache, query, out_tokens, err,
                    [](PrefixCache& prefixes, const auto& read) { return prefixes.pin(read); });
}

kvc_status kvc_prefix_unpin(kvc_cache* cache, const kvc_prefix_query* query, int64_t* out_tokens,
                            kvc_error* err) noexcept {
  return with_query(cache, query, out_tokens, err,
                    [](PrefixCache& prefixes, const auto& read) { return prefixes.unpin(read); });
}

kvc_status kvc_prefix_evict(kvc_cache* cache, int64_t pages, int64_t* out_freed,
                            kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    const int64_t freed = call->prefixes.evict(pages);
    if (out_freed != nullptr) *out_freed = freed;
  });
}

kvc_status kvc_prefix_reset(kvc_cache* cache, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    call->prefixes.reset();
  });
}

kvc_status kvc_prefix_quota_set(kvc_cache* cache, const void* salt, size_t salt_size,
                                uint64_t max_bytes, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    check_salt(salt, salt_size, "salt");
    call->prefixes.set_quota(kvc::namespace_root(salt, salt_size), max_bytes);
  });
}
