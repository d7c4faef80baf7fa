// Shape of the page copy kernel.
#pragma once

#include <cstdint>

namespace kvc::cuda::copying {

constexpr int32_t kThreads = 256;  // a CTA has a piece, its warps take turns
constexpr int32_t kInFlight =
    4;  // steps of 512 bytes that a warp has under way: 64 KiB on a multiprocessor with four CTAs
constexpr int64_t kMaxCtas = 2048;

}  // namespace kvc::cuda::copying
