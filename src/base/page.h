// What pages are called everywhere: an id into a pool.
#pragma once

#include <cstdint>

namespace kvc {

using PageId = int32_t;  // Page tables are handed to kernels and exports as plain int32 arrays.
constexpr PageId kNoPage = -1;

}  // namespace kvc
