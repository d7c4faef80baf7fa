// Gathers rows of one sequence from the pool. Keys of dropped pages (page id below 0) become zeros.
#pragma once

#include <cstdint>

#include "kernels/cuda/pages/quantise.cuh"
#include "kernels/cuda/ptx/elements.cuh"
#include "kernels/cuda/ptx/elements.h"

namespace kvc::cuda::gathering {

constexpr int32_t kThreads = 256;
// Min chunks of a CTA, so that small rows do not make a CTA each.
constexpr int32_t kTasks = 512;

struct Launch {
  kernels::GatherParams params;
  RowStorage storage;
  int64_t key_begin, key_end;
  int32_t keys_per_cta;
};

// Whether rows are copies of 16 bytes each: the types are equal, and everything is aligned.
KVC_HD bool fits_chunks(const kernels::GatherParams& params, const RowStorage& storage) {
  const uint64_t any = reinterpret_cast<uint64_t>(params.rows.base) |
                       reinterpret_cast<uint64_t>(params.out.base) |
                       static_cast<uint64_t>(params.rows.page_stride | params.rows.head_stride |
                                             params.rows.token_stride | params.out.token_stride |
                                             params.out.head_stride);
  return storage.quant == Quant::kNone && params.rows.dtype == params.out.dtype && any % 16 == 0 &&
         params.dim * bytes_of(params.rows.dtype) % 16 == 0;
}

// A thread copies 16 bytes at a time.
__global__ void __launch_bounds__(kThreads)
    gather_chunks_kernel(const __grid_constant__ Launch launch) {
  wait_for_previous_kernel();
  const kernels::GatherParams& params = launch.params;
  const int64_t first_key = launch.key_begin + int64_t{launch.keys_per_cta} * blockIdx.x;
  const int64_t left = launch.key_end - first_key;
  const int32_t keys =
      left < launch.keys_per_cta ? static_cast<int32_t>(left) : launch.keys_per_cta;
  const int32_t row_bytes = params.dim * bytes_of(params.rows.dtype);
  const int32_t chunks = row_bytes / 16, key_chunks = chunks * params.num_heads;
#pragma unroll 1
  for (int32_t t = static_cast<int32_t>(threadIdx.x); t < keys * key_chunks; t += kThreads) {
    const int64_t key = first_key + t / key_chunks;
    const int32_t head = t % key_chunks / chunks, byte = 16 * (t % chunks);
    const PageOffset at = page_offset(key, params.page_size);
    const int32_t page = params.pages[at.page];
    Words4 words{};
    if (page >= 0)
      words = load_16_stream(element_address(params.rows, page, head, at.offset) + byte);
    store_16(params.out.base + (key - launch.key_begin) * params.out.token_stride +
                 head * params.out.head_stride + byte,
             words);
  }
}

// A warp converts a row at a time.
__global__ void __launch_bounds__(kThreads)
    gather_rows_kernel(const __grid_constant__ Launch launch) {
  wait_for_previous_kernel();
  const kernels::GatherParams& params = launch.params;
  const Element element = element_of(launch.storage, params.rows.dtype);
  const int64_t first_key = launch.key_begin + int64_t{launch.keys_per_cta} * blockIdx.x;
  const int64_t left = launch.key_end - first_key;
  const int32_t keys =
      left < launch.keys_per_cta ? static_cast<int32_t>(left) : launch.keys_per_cta;
#pragma unroll 1
  for (int32_t t = warp_id(); t < keys * params.num_heads; t += kThreads / 32) {
    const int64_t key = first_key + t / params.num_heads;
    const int32_t head = t % params.num_heads;
    const PageOffset at = page_offset(key, params.page_size);
    const int32_t page = params.pages[at.page];
    std::byte* to = params.out.base + (key - launch.key_begin) * params.out.token_stride +
                    head * params.out.head_stride;
    const bool stored = page >= 0;
    RowAddress from{nullptr, nullptr};
    if (stored) from = address_of(params.rows, launch.storage, page, head, at.offset);
    const float factor = stored ? factor_of_row(launch.storage, page, head, at.offset) : 0.0f;
    const bool by_block = launch.storage.quant == Quant::kBlock16;
#pragma unroll 1
    for (int32_t d = lane_id(); d < params.dim; d += 32) {
      float value = 0.0f;
      if (stored)
        value =
            load_element(from.row, element, d) * (by_block ? block_scale(from.scales, d) : factor);
      store_element(to, params.out.dtype, d, value);
    }
  }
}

}  // namespace kvc::cuda::gathering
