#include "kernels/cuda/launches.h"
#include "kernels/cuda/linear/chunk_kernel.cuh"
#include "kernels/cuda/linear/kernel.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {
namespace {

using kernels::DType;

template <DType State, int kLanes, int kRows>
cudaError_t start(const kernels::LinearParams& params, int32_t max_sequences,
                  const int32_t* num_sequences_at, int64_t max_rows, cudaStream_t stream) {
  constexpr int32_t kRowsPerWarp = 32 / kLanes * kRows;
  const int32_t warps = (params.k_dim + kRowsPerWarp - 1) / kRowsPerWarp;
  const linear_kernels::LinearShared shared{
      .rows = warps * kRowsPerWarp, .warps = warps, .tile = 4 * kLanes, .memory = nullptr};
  const int64_t tiles = (params.v_dim + shared.tile - 1) / shared.tile;
  const int64_t ctas = tiles * params.num_heads * max_sequences;
  if (ctas > INT32_MAX) return cudaErrorInvalidValue;
  return launch(linear_kernels::linear_kernel<State, kLanes, kRows>,
                {.grid = {static_cast<uint32_t>(ctas), 1, 1},
                 .threads = static_cast<uint32_t>(32 * warps),
                 .shared_bytes = static_cast<uint32_t>(shared.floats()) * 4},
                stream, params, num_sequences_at, max_rows);
}

// All instantiations. States that are too tall for tiles of whole cache lines get narrower tiles.
template <DType State>
cudaError_t start(const kernels::LinearParams& params, int32_t max_sequences,
                  const int32_t* num_sequences_at, int64_t max_rows, cudaStream_t stream) {
  constexpr int32_t kLanes = linear_config::lanes_of(State);
  if (params.k_dim <= linear_config::kFewRowsMost)
    return start<State, kLanes, linear_config::kFewRows>(params, max_sequences, num_sequences_at,
                                                         max_rows, stream);
  if (params.k_dim <= linear_config::max_rows(kLanes))
    return start<State, kLanes, linear_config::kManyRows>(params, max_sequences, num_sequences_at,
                                                          max_rows, stream);
  return start<State, 8, linear_config::kManyRows>(params, max_sequences, num_sequences_at,
                                                   max_rows, stream);
}

// Number of parts in which q and k go to the tensor cores.
int32_t key_parts(const kernels::LinearParams& params) {
  return params.q.dtype == DType::kBF16 && params.k.dtype == DType::kBF16 ? 1 : 2;
}

uint32_t chunk_shared_bytes(const kernels::LinearParams& params) {
  const linear_kernels::ChunkShared shared{
      .k_rows = (params.k_dim + 15) / 16 * 16, .key_parts = key_parts(params), .memory = nullptr};
  return static_cast<uint32_t>(shared.bytes());
}

// Whether long sequences can use chunks: decays are per head, q and k are exact in two parts of
// bfloat16, and a chunk fits.
bool fits_chunks(const kernels::LinearParams& params) {
  return params.q.dtype != DType::kF32 && params.k.dtype != DType::kF32 &&
         params.k_dim <= linear_config::kChunkMaxRows &&
         (params.decay == nullptr || params.decay_per_channel == 0) &&
         can_have_shared(chunk_shared_bytes(params));
}

cudaError_t start_chunks(const kernels::LinearParams& params, int32_t max_sequences,
                         const int32_t* num_sequences_at, int32_t num_long, cudaStream_t stream) {
  const uint32_t bytes = chunk_shared_bytes(params);
  const int64_t tiles =
      (params.v_dim + linear_config::kChunkColumns - 1) / linear_config::kChunkColumns;
  const int64_t ctas = tiles * params.num_heads * num_long;
  if (ctas > INT32_MAX) return cudaErrorInvalidValue;
  const auto kernel = key_parts(params) == 1 ? linear_kernels::linear_chunk_kernel<1>
                                             : linear_kernels::linear_chunk_kernel<2>;
  const cudaError_t error = allow_shared(kernel, bytes);
  if (error != cudaSuccess) return error;
  return launch(kernel,
                {.grid = {static_cast<uint32_t>(ctas), 1, 1},
                 .threads = linear_config::kChunkThreads,
                 .shared_bytes = bytes},
                stream, params, max_sequences, num_sequences_at, num_long);
}

}  // namespace

int32_t linear_max_k_dim() { return linear_config::max_rows(8); }

cudaError_t linear(const kernels::LinearParams& params, int32_t max_sequences,
                   const int32_t* num_sequences_at, int32_t num_long, cudaStream_t stream) {
  if (max_sequences <= 0) return cudaSuccess;
  if (params.k_dim > linear_max_k_dim()) return cudaErrorInvalidValue;
  // There are two launches where some sequences may be long: each processes its own.
  int64_t max_rows = INT64_MAX;
  if (num_long > 0 && fits_chunks(params)) {
    max_rows = linear_config::kChunkFrom - 1;
    const cudaError_t error =
        start_chunks(params, max_sequences, num_sequences_at, num_long, stream);
    if (error != cudaSuccess) return error;
  }
  switch (params.state_dtype) {
    case DType::kF32:
      return start<DType::kF32>(params, max_sequences, num_sequences_at, max_rows, stream);
    case DType::kF16:
      return start<DType::kF16>(params, max_sequences, num_sequences_at, max_rows, stream);
    case DType::kBF16:
      return start<DType::kBF16>(params, max_sequences, num_sequences_at, max_rows, stream);
    default: return cudaErrorInvalidValue;  // Types of pages alone.
  }
}

}  // namespace kvc::cuda
