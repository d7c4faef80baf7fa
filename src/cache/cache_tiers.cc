#include "src/cache/cache_tiers.h"

#include <chrono>
#include <string>
#include <utility>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/print.h"
#include "src/cache/cache_core.h"
#include "src/tiers/tier.h"

namespace kvc {
namespace {

constexpr uint64_t kQueueBytes = uint64_t{64} << 20;
constexpr int32_t kGetMs = 1000, kPutMs = 1000, kConnectMs = 1000;

const char* tier_name(kvc_tier tier) {
  return tier == KVC_TIER_REDIS ? "REDIS" : tier == KVC_TIER_FILE ? "FILE" : "HOST or DEVICE";
}

kvc_tier_desc with_defaults(kvc_tier_desc desc) {
  if (desc.queue_bytes == 0) desc.queue_bytes = kQueueBytes;
  if (desc.get_ms == 0) desc.get_ms = kGetMs;
  if (desc.put_ms == 0) desc.put_ms = kPutMs;
  if (desc.connect_ms == 0) desc.connect_ms = kConnectMs;
  return desc;
}

TierStore& require_store(const CacheCore& core, kvc_tier tier) {
  TierStore* store = core.tiers.store(tier);
  if (store == nullptr)
    fail_with(KVC_E_NOT_FOUND, tier, "tier = %s (%d) is not attached", tier_name(tier), tier);
  return *store;
}

}  // namespace

void CacheTiers::require_attachable(const kvc_tier_desc& desc) const {
  core_.require_prefix_index("kvc_tier_attach");
  core_.require_storage("kvc_tier_attach");
  if (core_.index.blocks().shape.pages_per_block == 0 && !core_.index.blocks().shape.has_states)
    fail(KVC_E_UNSUPPORTED, "kvc_tier_attach: no layer keeps tokens");
  if (core_.tiers.store(desc.tier) != nullptr)
    fail_with(KVC_E_ALREADY_EXISTS, desc.tier, "desc.tier = %s (%d) is attached already",
              tier_name(desc.tier), desc.tier);
}

void CacheTiers::attach(const kvc_tier_desc& desc) {
  require_attachable(desc);
  const TierModule& module = require_tier_module(desc.tier);
  core_.tiers.describe_values();
  const kvc_tier_desc full = with_defaults(desc);
  const TierConfig config{.address = full.address,
                          .username = full.username,
                          .password = full.password,
                          .byte_limit = full.byte_limit,
                          .ttl_s = full.ttl_s,
                          .connect_ms = full.connect_ms,
                          .put_ms = full.put_ms,
                          .head_bytes = core_.tiers.shape().head_bytes(),
                          .value_bytes = core_.tiers.shape().most_bytes(),
                          .log = log};
  TierFailure failure;
  std::unique_ptr<Tier> tier(module.open(config, &failure));
  if (tier == nullptr) {
    Error error(failure.status, 0);
    print(error.buffer(), Error::kCapacity, "desc.address = \"%.100s\": %s", desc.address,
          failure.text);
    error.set_sys_code(failure.sys_code);
    throw error;
  }
  core_.tiers.attach(full, std::move(tier));
}

void CacheTiers::attach(const kvc_tier_desc& desc, std::unique_ptr<Tier> tier) {
  require_attachable(desc);
  core_.tiers.describe_values();
  core_.tiers.attach(with_defaults(desc), std::move(tier));
}

void CacheTiers::detach(kvc_tier tier) {
  (void)require_store(core_, tier);
  core_.tiers.detach(tier);
}

void CacheTiers::flush(int64_t timeout_ms) const {
  using std::chrono::milliseconds;
  constexpr int64_t kLong = int64_t{1000} * 3600 * 24 * 365;
  const bool is_forever = timeout_ms < 0 || timeout_ms > kLong;
  const TierTime deadline =
      std::chrono::steady_clock::now() + milliseconds(is_forever ? kLong : timeout_ms);
  for (const kvc_tier tier : {KVC_TIER_FILE, KVC_TIER_REDIS}) {
    TierStore* store = core_.tiers.store(tier);
    if (store == nullptr || store->flush(deadline)) continue;
    fail_with(KVC_E_TIMEOUT, timeout_ms, "blocks wait for tier %s (%d) after %lld ms",
              tier_name(tier), tier, ll(timeout_ms));
  }
}

kvc_tier_stats CacheTiers::stats(kvc_tier tier) const {
  kvc_tier_stats stats{};
  require_store(core_, tier).fill(&stats);
  return stats;
}

}  // namespace kvc
