// Shape of the row move kernels.
#pragma once

#include <cstdint>

namespace kvc::cuda::moving {

constexpr int32_t kThreads = 128;  // a warp has the rows of one list and head
constexpr int32_t kWarps = kThreads / 32;
constexpr int32_t kMaxDim = 1024;  // of rows that turn: they pass through shared memory as float32

}  // namespace kvc::cuda::moving
