// Launches of the kernels that read what operators are given.
#pragma once

#include <cuda_runtime_api.h>

#include "kernels/cuda/table.h"

namespace kvc::cuda {

cudaError_t op_sequences(const OpSequencesParams& params, cudaStream_t stream);
cudaError_t op_states(const OpStatesParams& params, cudaStream_t stream);
cudaError_t op_pairs(const OpPairsParams& params, cudaStream_t stream);
cudaError_t op_slots(const OpSlotsParams& params, cudaStream_t stream);
cudaError_t op_constants(const OpConstantsParams& params, cudaStream_t stream);

}  // namespace kvc::cuda
