// How much memory the engine of the CPU takes at most, before there is one.
#pragma once

#include "src/plan/plan.h"

namespace kvc {

// The largest forward of a cache in which no page is shared.
struct ForwardBounds {
  double sequences;  // Sequences that it may have, which are all there are.
  double rows;       // New tokens.
  double keys;       // Tokens of all sequences, new ones included.
};

// Upper bound of CpuEngine::host_bytes(), without what kvc_plan_info_get says that it leaves out.
double most_engine_bytes(const Plan& plan, const ForwardBounds& bounds);

}  // namespace kvc
