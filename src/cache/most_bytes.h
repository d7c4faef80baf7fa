// Host memory of a cache that is full, from its plan.
#pragma once

#include <cstdint>

#include "src/plan/plan.h"

namespace kvc {

// kvc_plan_info.host_bytes: upper bound of CacheCore::host_bytes() for what kvcache.h says.
uint64_t most_host_bytes(const Plan& plan);

}  // namespace kvc
