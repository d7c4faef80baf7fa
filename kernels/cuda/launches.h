// Every kernel launch of the CUDA back end. The function table (runtime/backend.cc) calls these
// functions with the device already current. Each returns cudaSuccess, or why nothing was enqueued.
#pragma once

#include <cuda_runtime_api.h>

#include <cstdint>

#include "kernels/cuda/table.h"

namespace kvc::cuda {

// ---- Metadata of a forward (step/, rope/)

cudaError_t step(const StepState& state, const StepPages& pages, cudaStream_t stream);
// max_sequences: the most sequences a step can have. The kernel reads the actual number.
cudaError_t batch_metadata(const BatchMetadataParams& params, int32_t max_sequences,
                           cudaStream_t stream);
cudaError_t state_metadata(const StateMetadataParams& params, int32_t max_sequences,
                           cudaStream_t stream);
cudaError_t cos_sin(const CosSinParams& params, cudaStream_t stream);
cudaError_t op_sequences(const OpSequencesParams& params, cudaStream_t stream);
cudaError_t op_states(const OpStatesParams& params, cudaStream_t stream);
cudaError_t op_pairs(const OpPairsParams& params, cudaStream_t stream);
cudaError_t op_slots(const OpSlotsParams& params, cudaStream_t stream);
cudaError_t op_constants(const OpConstantsParams& params, cudaStream_t stream);

// ---- Attention (schedule/, attn/, reduce/)

// The bytes of a schedule are kvc::cuda::schedule_bytes of schedule/bounds.h.
cudaError_t schedule(const ScheduleLaunch& launch, cudaStream_t stream);

// What an attention kernel asks of a device.
struct DeviceLimits {
  int32_t arch = 0;  // 10 * compute capability.
  int32_t num_sms = 0;
  int32_t shared_bytes = 0;  // Max dynamic shared memory per CTA.
};

// One kernel behind BackendTable::attention:
// - X_fits: whether the kernel supports a launch on a device. `why` (nullable) gets the reason, a
//   literal. Host only.
// - X_geometry: the tile shape and the grid that the kernel is scheduled for. Host only.
// - X: runs the work items of launch.schedule, one CTA per entry of schedule.cta_begin.
bool attn_simt_fits(const AttnLaunch& launch, const DeviceLimits& device, const char** why);
AttnGeometry attn_simt_geometry(const DeviceLimits& device, int32_t k_dim, int32_t v_dim);
cudaError_t attn_simt(const AttnLaunch& launch, cudaStream_t stream);

bool attn_mma16_fits(const AttnLaunch& launch, const DeviceLimits& device, const char** why);
AttnGeometry attn_mma16_geometry(const DeviceLimits& device, int32_t k_dim, int32_t v_dim);
cudaError_t attn_mma16(const AttnLaunch& launch, cudaStream_t stream);

bool attn_mma64_fits(const AttnLaunch& launch, const DeviceLimits& device, const char** why);
AttnGeometry attn_mma64_geometry(const DeviceLimits& device, int32_t k_dim, int32_t v_dim);
cudaError_t attn_mma64(const AttnLaunch& launch, cudaStream_t stream);

bool attn_wgmma_fits(const AttnLaunch& launch, const DeviceLimits& device, const char** why);
AttnGeometry attn_wgmma_geometry(const DeviceLimits& device, int32_t k_dim, int32_t v_dim);
cudaError_t attn_wgmma(const AttnLaunch& launch, cudaStream_t stream);

bool attn_latent_fits(const AttnLaunch& launch, const DeviceLimits& device, const char** why);
AttnGeometry attn_latent_geometry(const DeviceLimits& device, int32_t k_dim, int32_t v_dim);
cudaError_t attn_latent(const AttnLaunch& launch, cudaStream_t stream);

// Reduces the splits of launch.schedule. Runs behind the attention launch with the same parameters.
cudaError_t reduce_splits(const AttnLaunch& launch, cudaStream_t stream);
// num_rows_at (nullable): the count lies on the device, and num_rows is its upper bound.
cudaError_t merge_states(const kernels::MergeParams& params, int64_t num_rows,
                         const int32_t* num_rows_at, cudaStream_t stream);

// ---- Rows and pages of the pool (pages/)

cudaError_t append(const AppendLaunch& launch, cudaStream_t stream);
cudaError_t gather(const kernels::GatherParams& params, const RowStorage& storage,
                   int64_t key_begin, int64_t key_end, cudaStream_t stream);
// Destinations are distinct, and no source is another pair's destination.
cudaError_t copy_pages(const PageCopyParams& params, cudaStream_t stream);
cudaError_t move_rows(const MoveParams& params, cudaStream_t stream);
cudaError_t convert(const ConvertParams& params, cudaStream_t stream);

// ---- Recurrent layers (linear/)

// num_sequences_at (nullable): the number lies on the device, and max_sequences is its upper bound.
// num_long: the number of sequences with kLongSequence rows or more, for which CTAs are launched. A
// wrong number only costs time; with 0 every sequence is processed token by token. States have up
// to linear_most_k_dim() rows; with more, cudaErrorInvalidValue is returned.
cudaError_t linear(const kernels::LinearParams& params, int32_t max_sequences,
                   const int32_t* num_sequences_at, int32_t num_long, cudaStream_t stream);
int32_t linear_max_k_dim();
// Sequences lie in the order of their rows, all of which are below num_rows.
cudaError_t conv(const kernels::ConvParams& params, int32_t max_sequences,
                 const int32_t* num_sequences_at, int64_t num_rows, cudaStream_t stream);

}  // namespace kvc::cuda
