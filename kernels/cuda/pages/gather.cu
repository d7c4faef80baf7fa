#include <algorithm>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/pages/gather.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {

cudaError_t gather(const kernels::GatherParams& params, const RowStorage& storage,
                   int64_t key_begin, int64_t key_end, cudaStream_t stream) {
  if (key_end <= key_begin) return cudaSuccess;
  const bool by_chunks = gathering::fits_chunks(params, storage);
  const int64_t row_chunks = params.dim * kernels::dtype_bytes(params.rows.dtype) / 16;
  const int64_t key_tasks = params.num_heads * (by_chunks ? row_chunks : 1);
  const int64_t cta_tasks = by_chunks ? gathering::kTasks : gathering::kThreads / 32;
  gathering::Launch work{params, storage, key_begin, key_end, 1};
  work.keys_per_cta = static_cast<int32_t>(std::max<int64_t>(1, cta_tasks / key_tasks));
  LaunchShape shape;
  shape.grid[0] =
      static_cast<uint32_t>((key_end - key_begin + work.keys_per_cta - 1) / work.keys_per_cta);
  shape.threads = gathering::kThreads;
  return launch(by_chunks ? gathering::gather_chunks_kernel : gathering::gather_rows_kernel, shape,
                stream, work);
}

}  // namespace kvc::cuda
