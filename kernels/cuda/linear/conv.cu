#include "kernels/cuda/launches.h"
#include "kernels/cuda/linear/conv.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {
namespace {

template <int kWidth>
cudaError_t start(const kernels::ConvParams& params, int32_t max_sequences,
                  const int32_t* num_sequences_at, int64_t num_rows, cudaStream_t stream) {
  const int64_t tiles = (params.channels + conv_config::kThreads - 1) / conv_config::kThreads;
  const int64_t ctas = tiles * (num_rows / conv_config::kRows + max_sequences);
  if (ctas > INT32_MAX) return cudaErrorInvalidValue;
  return launch(conv_kernels::conv_kernel<kWidth>,
                {.grid = {static_cast<uint32_t>(ctas), 1, 1}, .threads = conv_config::kThreads},
                stream, params, max_sequences, num_sequences_at, static_cast<int32_t>(tiles));
}

}  // namespace

cudaError_t conv(const kernels::ConvParams& params, int32_t max_sequences,
                 const int32_t* num_sequences_at, int64_t num_rows, cudaStream_t stream) {
  if (max_sequences <= 0) return cudaSuccess;
  switch (params.width) {
    case 2: return start<2>(params, max_sequences, num_sequences_at, num_rows, stream);
    case 3: return start<3>(params, max_sequences, num_sequences_at, num_rows, stream);
    case 4: return start<4>(params, max_sequences, num_sequences_at, num_rows, stream);
    default: return start<0>(params, max_sequences, num_sequences_at, num_rows, stream);
  }
}

}  // namespace kvc::cuda
