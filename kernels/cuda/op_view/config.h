// Sizes of the kernels that read what operators are given.
#pragma once

#include <cstdint>

namespace kvc::cuda::op_view_config {

constexpr uint32_t kThreads = 128;
constexpr uint32_t kWarps = kThreads / 32;

}  // namespace kvc::cuda::op_view_config
