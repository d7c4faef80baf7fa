// Sizes of the state view kernel.
#pragma once

#include <cstdint>

namespace kvc::cuda::state_view_config {

constexpr uint32_t kThreads = 128;

}  // namespace kvc::cuda::state_view_config
