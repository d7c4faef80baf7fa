// Attaches tiers to a cache: kvc_tier_*.
#pragma once

#include <cstdint>
#include <memory>

#include "kvcache.h"
#include "src/tiers/tier.h"

namespace kvc {

struct CacheCore;

// Every function throws Error or std::bad_alloc; nothing has changed then.
class CacheTiers {
 public:
  explicit CacheTiers(CacheCore& core) : core_(core) {}

  // `desc`: a checked struct. Loads the module and opens the tier.
  void attach(const kvc_tier_desc& desc);
  // The same with a tier that is open; for tests too.
  void attach(const kvc_tier_desc& desc, std::unique_ptr<Tier> tier);
  // Writes what waits.
  void detach(kvc_tier tier);
  // Throws TIMEOUT when blocks still wait then; forever where it is negative.
  void flush(int64_t timeout_ms) const;
  kvc_tier_stats stats(kvc_tier tier) const;

 private:
  void require_attachable(const kvc_tier_desc& desc) const;

  CacheCore& core_;
};

}  // namespace kvc
