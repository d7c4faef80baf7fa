#include <algorithm>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/pages/append.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {
namespace {

using appending::Half;

// Launches a kernel on whole rows. `tasks` is the number of tasks that threads of append_chunks, or
// warps of append_rows, have per row.
cudaError_t launch_rows(void (*kernel)(appending::Launch), appending::Launch params,
                        int64_t tasks_of_row, int64_t tasks_of_cta, cudaStream_t stream) {
  params.rows_per_cta =
      static_cast<int32_t>(std::max<int64_t>(1, tasks_of_cta / std::max<int64_t>(1, tasks_of_row)));
  LaunchShape shape;
  shape.grid[0] =
      static_cast<uint32_t>((params.num_rows + params.rows_per_cta - 1) / params.rows_per_cta);
  shape.threads = appending::kThreads;
  shape.may_overlap = true;
  return launch(kernel, shape, stream, params);
}

void count_tasks(Half& half) {
  const bool pairs = half.rotation.rotary_dim != 0 && half.rotation.interleaved == 0;
  half.pairs = pairs ? half.rotation.rotary_dim / 16 : 0;
  half.tasks = half.dim / 8 - half.pairs;
}

}  // namespace

cudaError_t append(const AppendLaunch& launch, cudaStream_t stream) {
  const kernels::AppendParams& params = launch.params;
  if (launch.num_rows == 0) return cudaSuccess;
  appending::Launch chunks{};
  chunks.halves[0] = {
      params.k, params.k_pages, launch.k_storage, params.k_rotation, params.k_dim, 0, 0};
  chunks.halves[1] = {params.v, params.v_pages, launch.v_storage, {}, params.v_dim, 0, 0};
  chunks.slots = params.slots;
  chunks.num_slots = launch.num_slots;
  chunks.page_size = params.page_size;
  chunks.num_heads = params.num_kv_heads;
  chunks.num_rows = launch.num_rows;
  chunks.num_rows_at = launch.num_rows_at;
  appending::Launch rows = chunks;
  int64_t chunk_tasks = 0, row_tasks = 0;
  for (int i = 0; i < 2; ++i) {
    Half& half = chunks.halves[i];
    const bool present = half.from.base != nullptr,
               by_chunks = present && appending::fits_chunks(half);
    if (by_chunks) {
      count_tasks(half);
      rows.halves[i].from.base = nullptr;
      chunk_tasks += int64_t{half.tasks} * chunks.num_heads;
    } else {
      half.from.base = nullptr;
      row_tasks += present ? 2 * chunks.num_heads : 0;
    }
  }
  cudaError_t error = cudaSuccess;
  if (chunk_tasks > 0)
    error = launch_rows(appending::append_chunks_kernel, chunks, chunk_tasks, appending::kTasks,
                        stream);
  if (error == cudaSuccess && row_tasks > 0)
    error = launch_rows(appending::append_rows_kernel, rows, row_tasks, appending::kThreads / 32,
                        stream);
  return error;
}

}  // namespace kvc::cuda
