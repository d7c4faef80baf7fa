#include "src/tiers/tier.h"

#include "src/base/error.h"

namespace kvc {
namespace {

constexpr Module kFile{"libkvcache_tier_rocksdb.so", "kvc_tier_module", sizeof(TierModule)};
constexpr Module kRedis{"libkvcache_tier_redis.so", "kvc_tier_module", sizeof(TierModule)};

}  // namespace

const TierModule* find_tier_module(kvc_tier tier, std::string* why) {
  return reinterpret_cast<const TierModule*>(
      find_module(tier == KVC_TIER_REDIS ? kRedis : kFile, why));
}

const TierModule& require_tier_module(kvc_tier tier) {
  std::string why;
  const TierModule* module = find_tier_module(tier, &why);
  if (module == nullptr) {
    fail_with(KVC_E_UNSUPPORTED, tier, "tier %s (%d): %s",
              tier == KVC_TIER_REDIS ? "REDIS" : "FILE", tier, why.c_str());
  }
  return *module;
}

}  // namespace kvc
