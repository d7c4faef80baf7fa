// Appends rows of K and V to the pool. In append_chunks a thread has 8 elements (and the 8 that
// RoPE pairs with them). In append_rows a warp has a row, of any type and alignment.
#pragma once

#include <cstdint>

#include "kernels/cuda/pages/quantise.cuh"
#include "kernels/cuda/ptx/elements.cuh"
#include "kernels/cuda/ptx/elements.h"

namespace kvc::cuda::appending {

// No shared memory and up to 64 registers: four CTAs per SM.
constexpr int32_t kThreads = 256;
constexpr int32_t kTasks = 512;  // Min tasks of a CTA, so that small rows do not make a CTA each.

// The rows of K, or of V.
struct Half {
  kernels::TokenRows from;  // Null base: there is nothing to do.
  kernels::PagedRows to;
  RowStorage storage;
  kernels::Rotation rotation;
  int32_t dim;
  int32_t pairs;  // Chunks of 8 elements that RoPE pairs with the chunk half a rotary dim away.
  int32_t tasks;  // Tasks of a row and head: pairs of chunks, then the other chunks one by one.
};

struct Launch {
  Half halves[2];
  const int64_t* slots;
  int64_t num_slots;
  int32_t page_size;
  int32_t num_heads;
  int64_t num_rows;
  const int32_t* num_rows_at;
  int32_t rows_per_cta;
};

// Whether rows can be read and written 8 elements at a time: 16-bit elements, stored as they are or
// as 8 bits with one scale, all aligned.
KVC_HD bool fits_chunks(const Half& half) {
  const auto aligned = [](uint64_t bits, uint64_t bytes) { return (bits & (bytes - 1)) == 0; };
  const Element stored = element_of(half.storage, half.to.dtype);
  const bool plain = half.storage.quant == Quant::kNone && element_bits(stored) == 16;
  const bool scaled = half.storage.quant == Quant::kPerTensor && element_bits(stored) == 8;
  if (half.from.dtype == kernels::DType::kF32 || (!plain && !scaled) || half.dim % 8 != 0)
    return false;
  if (!aligned(reinterpret_cast<uint64_t>(half.from.base) |
                   static_cast<uint64_t>(half.from.token_stride) |
                   static_cast<uint64_t>(half.from.head_stride),
               16))
    return false;
  if (!aligned(reinterpret_cast<uint64_t>(half.to.base) |
                   static_cast<uint64_t>(half.to.page_stride) |
                   static_cast<uint64_t>(half.to.head_stride) |
                   static_cast<uint64_t>(half.to.token_stride),
               plain ? 16 : 8))
    return false;
  const kernels::Rotation& rotation = half.rotation;
  if (rotation.rotary_dim == 0) return true;
  const uint64_t cos_sin_bits =
      reinterpret_cast<uint64_t>(rotation.cos) | reinterpret_cast<uint64_t>(rotation.sin);
  const int32_t chunk = rotation.interleaved != 0 ? 8 : 16;  // Whole chunks of pairs.
  return rotation.begin % 8 == 0 && rotation.rotary_dim % chunk == 0 && aligned(cos_sin_bits, 16);
}

KVC_DEVICE int64_t rows_of(const Launch& launch) {
  return launch.num_rows_at != nullptr ? *launch.num_rows_at : launch.num_rows;
}

// False for skipped rows and, with an operator, for slots beyond the pool.
KVC_DEVICE bool is_in_pool(const Launch& launch, int64_t slot) {
  return static_cast<uint64_t>(slot) < static_cast<uint64_t>(launch.num_slots);
}

KVC_DEVICE void unpack_eight(kernels::DType dtype, const Words4& words, float (&out)[8]) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    if (dtype == kernels::DType::kF16)
      unpack<kernels::DType::kF16>(words.x[i], out[2 * i], out[2 * i + 1]);
    else
      unpack<kernels::DType::kBF16>(words.x[i], out[2 * i], out[2 * i + 1]);
  }
}

KVC_DEVICE void store_eight(const Half& half, std::byte* row, int32_t index,
                            const float (&value)[8]) {
  if (half.storage.quant == Quant::kNone) {
    Words4 words;
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      words.x[i] = half.to.dtype == kernels::DType::kF16
                       ? pack<kernels::DType::kF16>(value[2 * i], value[2 * i + 1])
                       : pack<kernels::DType::kBF16>(value[2 * i], value[2 * i + 1]);
    }
    store_16(row + 2 * static_cast<int64_t>(index), words);
    return;
  }
  const Element element = element_of(half.storage, half.to.dtype);
  uint64_t codes = 0;
#pragma unroll
  for (int i = 0; i < 8; ++i)
    codes |= static_cast<uint64_t>(encode(element, value[i] / half.storage.scale)) << (8 * i);
  store_word<uint64_t>(row + index, codes);
}

KVC_DEVICE void load_eight_floats(const float* from, float (&out)[8]) {
  const Words4 low = load_16(from), high = load_16(from + 4);
#pragma unroll
  for (int i = 0; i < 4; ++i) out[i] = as_float(low.x[i]), out[4 + i] = as_float(high.x[i]);
}

// Chunks x and y are half a rotary dim apart.
KVC_DEVICE void append_pair(const Half& half, const std::byte* from, std::byte* to, int64_t row,
                            int32_t task) {
  const kernels::Rotation& rotation = half.rotation;
  const int32_t distance = rotation.rotary_dim / 2, x_index = rotation.begin + 8 * task;
  const Words4 x_words = load_16_stream(from + 2 * x_index);
  const Words4 y_words = load_16_stream(from + 2 * (x_index + distance));
  float cos[8], sin[8], x[8], y[8];
  load_eight_floats(rotation.cos + row * distance + 8 * task, cos);
  load_eight_floats(rotation.sin + row * distance + 8 * task, sin);
  unpack_eight(half.from.dtype, x_words, x);
  unpack_eight(half.from.dtype, y_words, y);
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    const float a = x[i], b = y[i];
    x[i] = rotated_element(a, b, cos[i], sin[i], false);
    y[i] = rotated_element(b, a, cos[i], sin[i], true);
  }
  store_eight(half, to, x_index, x);
  store_eight(half, to, x_index + distance, y);
}

// A chunk that is not rotated, or one of interleaved pairs.
KVC_DEVICE void append_chunk(const Half& half, const std::byte* from, std::byte* to, int64_t row,
                             int32_t index) {
  const Words4 words = load_16_stream(from + 2 * index);
  const kernels::Rotation& rotation = half.rotation;
  const int32_t inside = index - rotation.begin;
  const bool is_rotated = inside >= 0 && inside < rotation.rotary_dim;
  if (!is_rotated && half.storage.quant == Quant::kNone && half.from.dtype == half.to.dtype) {
    store_16(to + 2 * static_cast<int64_t>(index), words);
    return;
  }
  float value[8];
  unpack_eight(half.from.dtype, words, value);
  if (is_rotated) {
    const int64_t cos_sin_bits = row * (rotation.rotary_dim / 2) + inside / 2;
    const Words4 cos = load_16(rotation.cos + cos_sin_bits),
                 sin = load_16(rotation.sin + cos_sin_bits);
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      const float a = value[2 * i], b = value[2 * i + 1];
      value[2 * i] = rotated_element(a, b, as_float(cos.x[i]), as_float(sin.x[i]), false);
      value[2 * i + 1] = rotated_element(b, a, as_float(cos.x[i]), as_float(sin.x[i]), true);
    }
  }
  store_eight(half, to, index, value);
}

__global__ void __launch_bounds__(kThreads, 4)
    append_chunks_kernel(const __grid_constant__ Launch launch) {
  wait_for_previous_kernel();
  const int64_t first_row = int64_t{launch.rows_per_cta} * blockIdx.x;
  const int64_t left = rows_of(launch) - first_row;
  const int32_t rows =
      left < launch.rows_per_cta ? static_cast<int32_t>(left) : launch.rows_per_cta;
  const int32_t k_tasks = launch.num_heads * launch.halves[0].tasks;
  const int32_t row_tasks = k_tasks + launch.num_heads * launch.halves[1].tasks;
#pragma unroll 1
  for (int32_t t = static_cast<int32_t>(threadIdx.x); t < rows * row_tasks; t += kThreads) {
    const int64_t row = first_row + t / row_tasks;
    const int32_t in_row = t % row_tasks;
    const int64_t slot = launch.slots[row];
    if (!is_in_pool(launch, slot)) continue;
    const Half& half = in_row < k_tasks ? launch.halves[0] : launch.halves[1];
    const int32_t in_half = in_row < k_tasks ? in_row : in_row - k_tasks;
    const int32_t head = in_half / half.tasks, task = in_half % half.tasks;
    const PageOffset place = page_offset(slot, launch.page_size);
    const std::byte* from =
        half.from.base + row * half.from.token_stride + head * half.from.head_stride;
    std::byte* to = element_address(half.to, place.page, head, place.offset);
    if (task < half.pairs) {
      append_pair(half, from, to, row, task);
    } else {
      const int32_t chunk = 8 * (task - half.pairs);  // Index among the chunks that are in no pair.
      const bool behind = half.pairs > 0 && chunk >= half.rotation.begin;
      append_chunk(half, from, to, row, behind ? chunk + half.rotation.rotary_dim : chunk);
    }
  }
  launch_dependents();
}

__global__ void __launch_bounds__(kThreads, 4)
    append_rows_kernel(const __grid_constant__ Launch launch) {
  wait_for_previous_kernel();
  const int64_t first_row = int64_t{launch.rows_per_cta} * blockIdx.x;
  const int64_t left = rows_of(launch) - first_row;
  const int32_t rows =
      left < launch.rows_per_cta ? static_cast<int32_t>(left) : launch.rows_per_cta;
#pragma unroll 1
  for (int32_t t = warp_id(); t < rows * 2 * launch.num_heads; t += kThreads / 32) {
    const int64_t row = first_row + t / (2 * launch.num_heads);
    const int32_t in_row = t % (2 * launch.num_heads), head = in_row >> 1;
    const Half& half = launch.halves[in_row & 1];
    const int64_t slot = launch.slots[row];
    if (!is_in_pool(launch, slot) || half.from.base == nullptr) continue;
    const PageOffset place = page_offset(slot, launch.page_size);
    const std::byte* from =
        half.from.base + row * half.from.token_stride + head * half.from.head_stride;
    const RowAddress to = address_of(half.to, half.storage, place.page, head, place.offset);
    store_row(to, half.storage, half.to.dtype, half.dim, [&](int32_t d) {
      return rotated(half.rotation, row, d,
                     [&](int32_t j) { return load_element(from, half.from.dtype, j); });
    });
  }
  launch_dependents();
}

}  // namespace kvc::cuda::appending
