// Switching between lanes: Boost.Context's fcontext, told to AddressSanitizer where that is on.
#pragma once

#include <cstddef>

#include "cudasim/engine.h"

namespace cudasim {

// The thread's own stack as a lane, so that switches have one form.
void adopt_thread_stack(Lane& main);
// A lane on a stack of its own that calls `entry` when first switched to; `entry` must not return.
void make_fiber(Lane& lane, void (*entry)());
void free_fiber(Lane& lane);
// Goes on in `to`, which becomes `here`; returns when something switches back.
void switch_to(Lane& to);

}  // namespace cudasim
