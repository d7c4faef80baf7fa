#include <algorithm>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/launch.cuh"
#include "kernels/cuda/step/op_metadata.cuh"

namespace kvc::cuda {
namespace {

LaunchShape shape_of(int64_t tasks, int64_t tasks_of_cta) {
  LaunchShape shape;
  shape.grid[0] = static_cast<uint32_t>((tasks + tasks_of_cta - 1) / tasks_of_cta);
  shape.threads = op_metadata_config::kThreads;
  return shape;
}

}  // namespace

cudaError_t op_sequences(const OpSequencesParams& params, cudaStream_t stream) {
  if (params.num_sequences <= 0) return cudaSuccess;
  return launch(op_metadata::sequences_kernel,
                shape_of(params.num_sequences, op_metadata_config::kWarps), stream, params);
}

cudaError_t op_states(const OpStatesParams& params, cudaStream_t stream) {
  if (params.num_sequences <= 0) return cudaSuccess;
  return launch(op_metadata::states_kernel,
                shape_of(params.num_sequences, op_metadata_config::kWarps), stream, params);
}

cudaError_t op_pairs(const OpPairsParams& params, cudaStream_t stream) {
  if (params.num_pairs <= 0) return cudaSuccess;
  return launch(op_metadata::pairs_kernel,
                shape_of(std::max(params.num_pairs, op_metadata::num_runs(params)),
                         op_metadata_config::kThreads),
                stream, params);
}

cudaError_t op_slots(const OpSlotsParams& params, cudaStream_t stream) {
  if (params.num_slots <= 0) return cudaSuccess;
  return launch(op_metadata::slots_kernel, shape_of(params.num_slots, op_metadata_config::kThreads),
                stream, params);
}

cudaError_t op_constants(const OpConstantsParams& params, cudaStream_t stream) {
  if (params.count <= 0) return cudaSuccess;
  return launch(op_metadata::constants_kernel, shape_of(params.count, op_metadata_config::kThreads),
                stream, params);
}

}  // namespace kvc::cuda
