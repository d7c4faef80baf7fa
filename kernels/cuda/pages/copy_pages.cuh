// Copies whole pages, or regions of pages, inside the pool or to pinned host memory. See
// PageCopyParams.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/elements.cuh"
#include "kernels/cuda/table.h"

namespace kvc::cuda::copying {

constexpr int32_t kThreads = 256;  // A CTA has a region; its warps take turns.
// Steps of 512 bytes that a warp has in flight: 64 KiB on an SM with four CTAs.
constexpr int32_t kInFlight = 4;
constexpr int64_t kMaxCtas = 2048;

// `bytes` is a multiple of the word. The CTA's warps take turns.
template <typename Word, typename Load, typename Store>
KVC_DEVICE void copy_words(std::byte* to, const std::byte* from, int64_t bytes, const Load& load,
                           const Store& store) {
  constexpr int64_t kStep = 32 * sizeof(Word), kTurn = kStep * kInFlight;
  const int64_t lane = static_cast<int64_t>(sizeof(Word)) * lane_id();
#pragma unroll 1
  for (int64_t at = kTurn * (threadIdx.x >> 5); at < bytes; at += kTurn * (kThreads / 32)) {
    Word words[kInFlight];
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t byte = at + kStep * i + lane;
      if (byte < bytes) words[i] = load(from + byte);
    }
#pragma unroll
    for (int i = 0; i < kInFlight; ++i) {
      const int64_t byte = at + kStep * i + lane;
      if (byte < bytes) store(to + byte, words[i]);
    }
  }
}

KVC_DEVICE void copy_region(std::byte* to, const std::byte* from, int64_t bytes) {
  const uint64_t any = reinterpret_cast<uint64_t>(to) | reinterpret_cast<uint64_t>(from) |
                       static_cast<uint64_t>(bytes);
  if (any % 16 == 0) {
    copy_words<Words4>(
        to, from, bytes, [](const std::byte* p) { return load_16_stream(p); },
        [](std::byte* p, const Words4& w) { store_16(p, w); });
  } else if (any % 4 == 0) {
    copy_words<uint32_t>(
        to, from, bytes, [](const std::byte* p) { return load_word<uint32_t>(p); },
        [](std::byte* p, uint32_t w) { store_word<uint32_t>(p, w); });
  } else {
    copy_words<uint8_t>(
        to, from, bytes, [](const std::byte* p) { return load_word<uint8_t>(p); },
        [](std::byte* p, uint8_t w) { store_word<uint8_t>(p, w); });
  }
}

__global__ void __launch_bounds__(kThreads, 4)
    copy_pages_kernel(const __grid_constant__ PageCopyParams params) {
  wait_for_previous_kernel();
  const int64_t num_tasks = params.num_pairs * params.num_layers;
#pragma unroll 1
  for (int64_t task = blockIdx.x; task < num_tasks; task += gridDim.x) {
    const int64_t pair = task / params.num_layers;
    const int64_t layer = task - pair * params.num_layers;
    if (params.from[pair] < 0) continue;
    const PageRegion& from = params.from_layers[layer];
    const PageRegion& to = params.to_layers[layer];
    if (params.group >= 0 && from.group != params.group) continue;
    copy_region(to.base + params.to[pair] * to.page_stride,
                from.base + params.from[pair] * from.page_stride, from.bytes);
  }
}

}  // namespace kvc::cuda::copying
