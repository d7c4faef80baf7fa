// Rows of one sequence out of the pool. Keys of dropped pages (a page id below 0) become zeros.
#pragma once

#include "kernels/cuda/elements.cuh"
#include "kernels/cuda/gather/config.h"
#include "kernels/cuda/quantise.cuh"

namespace kvc::cuda::gathering {

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
    const PagePlace at = page_place(key, params.page_size);
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
    const PagePlace at = page_place(key, params.page_size);
    const int32_t page = params.pages[at.page];
    std::byte* to = params.out.base + (key - launch.key_begin) * params.out.token_stride +
                    head * params.out.head_stride;
    const bool stored = page >= 0;
    RowPlace from{nullptr, nullptr};
    if (stored) from = place_of(params.rows, launch.storage, page, head, at.offset);
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
