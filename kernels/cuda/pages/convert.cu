#include <algorithm>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/pages/convert.cuh"
#include "kernels/cuda/runtime/launch.cuh"

namespace kvc::cuda {

cudaError_t convert(const ConvertParams& params, cudaStream_t stream) {
  if (params.num_rows == 0 || params.num_elements == 0) return cudaSuccess;
  converting::Launch work{params, 1, 0};
  const int64_t quads = (std::min<int64_t>(params.num_elements, converting::kColumns) + 3) / 4;
  work.rows_per_cta = static_cast<int32_t>(std::max<int64_t>(1, converting::kQuads / quads));
  // An address that is not read fits every type.
  const bool in_fits = aligned_for_four(
      element_of(params.in_type), reinterpret_cast<uint64_t>(params.in), params.in_stride,
      static_cast<int64_t>(reinterpret_cast<uint64_t>(params.fallback)), 0);
  const bool out_fits = aligned_for_four(
      element_of(params.out_type), reinterpret_cast<uint64_t>(params.out), params.out_stride, 0, 0);
  work.by_four = in_fits && out_fits && params.num_elements % 4 == 0 ? 1 : 0;
  LaunchShape shape;
  shape.grid[0] =
      static_cast<uint32_t>((params.num_rows + work.rows_per_cta - 1) / work.rows_per_cta);
  shape.grid[1] = static_cast<uint32_t>((params.num_elements + converting::kColumns - 1) /
                                        converting::kColumns);
  shape.threads = converting::kThreads;
  return launch(converting::convert_kernel, shape, stream, work);
}

}  // namespace kvc::cuda
