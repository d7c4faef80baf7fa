#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/launch.cuh"
#include "kernels/cuda/step/step.cuh"

namespace kvc::cuda {

static_assert(step_config::kFirstWords <= 4 * step_config::kThreads);
static_assert(step_config::kFirstWords <= kStepEntryWords);

cudaError_t step(const StepState& state, const StepPages& pages, cudaStream_t stream) {
  // A cache without pages, which only keeps metadata, has nothing to copy.
  const uint32_t num_ctas = pages.num_layers > 0 ? 1 + step_config::kCopyCtas : 1;
  return launch(step_kernels::step_kernel,
                {.grid = {num_ctas, 1, 1},
                 .threads = step_config::kThreads,
                 .shared_bytes = step_kernels::kSharedBytes},
                stream, state, pages);
}

}  // namespace kvc::cuda
