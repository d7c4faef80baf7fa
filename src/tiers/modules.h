// The modules of tiers, found at run time.
#pragma once

#include <string>

#include "src/tiers/tier.h"

namespace kvc {

// Null: there is no module of this tier, and `why` (nullable) names the file looked for.
const TierModule* find_tier_module(kvc_tier tier, std::string* why);
// Throws UNSUPPORTED with the reason.
const TierModule& require_tier_module(kvc_tier tier);

}  // namespace kvc
