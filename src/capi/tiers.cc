// kvcache.h, section "Tiers".
#include <cstring>

#include "src/capi/call.h"
#include "src/capi/guard.h"

using kvc::CacheCall;
using kvc::fail;
using kvc::fail_with;
using kvc::guard;
using kvc::ll;
using kvc::ReadCall;

namespace {

void check_tier(kvc_tier tier, const char* name) {
  if (tier == KVC_TIER_FILE || tier == KVC_TIER_REDIS) return;
  fail_with(KVC_E_INVALID_ARGUMENT, tier, "%s = %d, expected FILE (2) or REDIS (3)", name, tier);
}

void check_text(const char* text, size_t most, const char* name) {
  if (text == nullptr) return;
  const size_t size = std::strlen(text);
  if (size > most)
    fail_with(KVC_E_INVALID_ARGUMENT, static_cast<int64_t>(size), "%s has %zu bytes, at most %zu",
              name, size, most);
}

void check_not_negative(int64_t value, const char* name) {
  if (value < 0)
    fail_with(KVC_E_OUT_OF_RANGE, value, "%s = %lld out of range: at least 0", name, ll(value));
}

// What the other kind of tier has no use for is not ignored.
void refuse_setting(bool is_set, const char* name, const char* tier) {
  if (is_set) fail(KVC_E_INVALID_ARGUMENT, "%s is set, which tier %s has no use for", name, tier);
}

kvc_tier_desc read_desc(const kvc_tier_desc* caller) {
  const kvc_tier_desc desc = kvc::read_struct(caller, "desc");
  kvc::refuse_extensions(desc.ext, "desc");
  check_tier(desc.tier, "desc.tier");
  if (desc.flags != 0)
    fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(desc.flags),
              "desc.flags = %llu is not supported: 0 is",
              static_cast<unsigned long long>(desc.flags));
  if (desc.reserved != 0)
    fail_with(KVC_E_UNSUPPORTED, desc.reserved, "desc.reserved = %d is not supported: 0 is",
              desc.reserved);
  if (desc.address == nullptr || desc.address[0] == '\0')
    fail(KVC_E_INVALID_ARGUMENT, "desc.address is %s", desc.address == nullptr ? "NULL" : "empty");
  check_text(desc.address, 4095, "desc.address");
  check_text(desc.model_id, 255, "desc.model_id");
  check_text(desc.username, 255, "desc.username");
  check_text(desc.password, 4095, "desc.password");
  check_not_negative(desc.shard, "desc.shard");
  check_not_negative(desc.get_ms, "desc.get_ms");
  check_not_negative(desc.put_ms, "desc.put_ms");
  check_not_negative(desc.connect_ms, "desc.connect_ms");
  check_not_negative(desc.ttl_s, "desc.ttl_s");
  constexpr uint64_t kMostQueue = uint64_t{1} << 40;
  if (desc.queue_bytes > kMostQueue) {
    fail_with(KVC_E_OUT_OF_RANGE, static_cast<int64_t>(desc.queue_bytes >> 1),
              "desc.queue_bytes = %llu out of range: at most %llu",
              static_cast<unsigned long long>(desc.queue_bytes),
              static_cast<unsigned long long>(kMostQueue));
  }
  if (desc.tier == KVC_TIER_FILE) {
    if (desc.byte_limit == 0)
      fail(KVC_E_INVALID_ARGUMENT, "desc.byte_limit = 0, expected the bytes on disk");
    refuse_setting(desc.username != nullptr, "desc.username", "FILE");
    refuse_setting(desc.password != nullptr, "desc.password", "FILE");
    refuse_setting(desc.put_ms != 0, "desc.put_ms", "FILE");
    refuse_setting(desc.connect_ms != 0, "desc.connect_ms", "FILE");
    refuse_setting(desc.ttl_s != 0, "desc.ttl_s", "FILE");
  } else {
    refuse_setting(desc.byte_limit != 0, "desc.byte_limit", "REDIS");
  }
  return desc;
}

}  // namespace

kvc_status kvc_tier_attach(kvc_cache* cache, const kvc_tier_desc* desc, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    call->tiers.attach(read_desc(desc));
  });
}

kvc_status kvc_tier_attach_file(kvc_cache* cache, const char* path, uint64_t byte_limit,
                                kvc_error* err) noexcept {
  kvc_tier_desc desc{};
  desc.struct_size = sizeof desc;
  desc.tier = KVC_TIER_FILE;
  desc.address = path;
  desc.byte_limit = byte_limit;
  return kvc_tier_attach(cache, &desc, err);
}

kvc_status kvc_tier_detach(kvc_cache* cache, kvc_tier tier, kvc_error* err) noexcept {
  return guard(err, [&] {
    CacheCall call(cache);
    check_tier(tier, "tier");
    call->tiers.detach(tier);
  });
}

kvc_status kvc_tier_flush(const kvc_cache* cache, int64_t timeout_ms, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    call->tiers.flush(timeout_ms);
  });
}

kvc_status kvc_tier_stats_get(const kvc_cache* cache, kvc_tier tier, kvc_tier_stats* out,
                              kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    kvc::check_output(out, "out");
    check_tier(tier, "tier");
    kvc::write_struct(out, call->tiers.stats(tier));
  });
}
