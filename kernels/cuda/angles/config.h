// Sizes of the angle kernel.
#pragma once

#include <cstdint>

namespace kvc::cuda::angle_config {

constexpr uint32_t kThreads = 128;
// CTAs at most; rows beyond are taken in turn.
constexpr uint32_t kMostCtas = 1024;

}  // namespace kvc::cuda::angle_config
