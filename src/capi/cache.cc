// kvcache.h, section "Cache".
#include "src/capi/call.h"
#include "src/capi/guard.h"

using kvc::CacheCall;
using kvc::guard;
using kvc::ReadCall;
using kvc::require;

kvc_status kvc_cache_create(const kvc_plan* plan, kvc_cache** out, kvc_error* err) noexcept {
  return guard(err, [&] {
    require(plan, "plan");
    require(out, "out");
    *out = std::make_unique<kvc_cache>(plan->plan).release();
  });
}

void kvc_cache_destroy(kvc_cache* cache) noexcept { delete cache; }

kvc_status kvc_cache_clear(kvc_cache* cache, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    call->clear();
  });
}

kvc_status kvc_cache_resize(kvc_cache* cache, int64_t num_pages, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    call->resize(num_pages);
  });
}

kvc_status kvc_cache_trim(kvc_cache* cache, uint64_t* out_released, kvc_error* err) noexcept {
  return guard(err, [&] {
    const CacheCall call(cache);
    const int64_t released = call->trim();
    if (out_released != nullptr) *out_released = static_cast<uint64_t>(released);
  });
}

kvc_status kvc_cache_stats_get(const kvc_cache* cache, kvc_stats* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    kvc::check_output(out, "out");
    kvc::write_struct(out, call->stats());
  });
}

int64_t kvc_cache_available_pages(const kvc_cache* cache) noexcept {
  return cache == nullptr ? -1 : cache->cache.num_available_pages();
}

int64_t kvc_cache_total_length(const kvc_cache* cache) noexcept {
  return cache == nullptr ? -1 : cache->cache.sequences.total_length();
}

int32_t kvc_cache_is_empty(const kvc_cache* cache) noexcept {
  return cache != nullptr && cache->cache.is_empty() ? 1 : 0;
}

kvc_status kvc_cache_check(const kvc_cache* cache, kvc_error* err) noexcept {
  return guard(err, [&] {
    const ReadCall call(cache);
    call->check();
  });
}
