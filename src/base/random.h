// Random bytes of the system.
#pragma once

#include <cstddef>

namespace kvc {

// At most 256 bytes. Throws IO.
void fill_random(void* data, size_t size);

}  // namespace kvc
