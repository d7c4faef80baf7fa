// The sequences of a batch for the recurrent layers. See StateMetadataParams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <type_traits>

#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/table.h"

namespace kvc::cuda::state_metadata_config {

constexpr uint32_t kThreads = 128;

}  // namespace kvc::cuda::state_metadata_config

namespace kvc::cuda {

// LinearSequence and ConvSequence have the same fields, so one array serves both.
static_assert(sizeof(kernels::LinearSequence) == sizeof(kernels::ConvSequence));
static_assert(offsetof(kernels::LinearSequence, row_begin) ==
              offsetof(kernels::ConvSequence, row_begin));
static_assert(offsetof(kernels::LinearSequence, num_rows) ==
              offsetof(kernels::ConvSequence, num_rows));
static_assert(offsetof(kernels::LinearSequence, state_in) ==
              offsetof(kernels::ConvSequence, state_in));
static_assert(offsetof(kernels::LinearSequence, state_out) ==
              offsetof(kernels::ConvSequence, state_out));

__global__ void __launch_bounds__(state_metadata_config::kThreads)
    state_metadata_kernel(const __grid_constant__ StateMetadataParams params) {
  const auto s = static_cast<int32_t>(blockIdx.x * state_metadata_config::kThreads + threadIdx.x);
  if (s >= params.step.counts[0]) return;
  const int32_t in = params.step.state_in[s], out = params.step.state_out[s];
  kernels::LinearSequence sequence{};
  sequence.row_begin = params.step.row_begin[s];
  sequence.num_rows = params.step.append[s];
  sequence.state_in = in < 0 ? params.initial : params.states + in * params.slot_stride;
  sequence.state_out = out < 0 ? nullptr : params.states + out * params.slot_stride;
  static_cast<kernels::LinearSequence*>(params.sequences)[s] = sequence;
}

}  // namespace kvc::cuda
