// What tests have set and the engine needs.
#pragma once

#include <cstdint>

namespace cudasim {

uint32_t cta_threads();
// Another for every launch; of the seed and the number of launches since.
uint64_t next_seed();
uint64_t initial_seed();

}  // namespace cudasim
