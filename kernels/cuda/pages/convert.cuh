// Converts elements from one type to another, row by row; rows are gathered or scattered. See
// ConvertParams.
#pragma once

#include <cstdint>

#include "kernels/cuda/ptx/elements.cuh"
#include "kernels/cuda/table.h"

namespace kvc::cuda::converting {

constexpr int32_t kThreads = 256;
constexpr int32_t kColumns = 4096;  // Elements of a row per CTA.
// Groups of four elements per CTA. They may belong to several rows.
constexpr int32_t kQuads = 1024;

struct Launch {
  ConvertParams params;
  int32_t rows_per_cta;
  int32_t by_four;  // Rows are aligned for four elements at a time.
};

struct RowPair {
  const std::byte* from;  // Null: zeros.
  std::byte* to;          // Null: there is nothing to do.
};

// Without `fallback`, a row that is not gathered becomes zero. A row that is scattered to -1 is
// skipped.
KVC_DEVICE RowPair row_pair(const ConvertParams& params, int64_t row) {
  const int64_t other = params.rows != nullptr ? params.rows[row] : row;
  if (params.scatter != 0)
    return {params.in + row * params.in_stride,
            other < 0 ? nullptr : params.out + other * params.out_stride};
  return {other < 0 ? params.fallback : params.in + other * params.in_stride,
          params.out + row * params.out_stride};
}

// blockIdx.x counts rows, blockIdx.y counts columns.
__global__ void __launch_bounds__(kThreads) convert_kernel(const __grid_constant__ Launch launch) {
  wait_for_previous_kernel();
  const ConvertParams& params = launch.params;
  const int64_t num_rows = params.num_rows_at != nullptr ? *params.num_rows_at : params.num_rows;
  const int64_t first_row = int64_t{launch.rows_per_cta} * blockIdx.x;
  const int64_t rows_left = num_rows - first_row;
  const int32_t rows =
      rows_left < launch.rows_per_cta ? static_cast<int32_t>(rows_left) : launch.rows_per_cta;
  const int64_t first_column = int64_t{kColumns} * blockIdx.y;
  const int64_t left = params.num_elements - first_column;
  const int32_t columns = left < kColumns ? static_cast<int32_t>(left) : kColumns;
  const int32_t quads = (columns + 3) / 4;
  const auto in_type = element_of(params.in_type);
  const int64_t in_first = first_column * bytes_of(params.in_type);
  const int64_t out_first = first_column * bytes_of(params.out_type);
#pragma unroll 1
  for (int32_t t = static_cast<int32_t>(threadIdx.x); t < rows * quads; t += kThreads) {
    const RowPair pair = row_pair(params, first_row + t / quads);
    const int32_t column = 4 * (t % quads);
    if (pair.to == nullptr) continue;
    const std::byte* from = pair.from != nullptr ? pair.from + in_first : nullptr;
    std::byte* to = pair.to + out_first;
    if (launch.by_four != 0) {
      float value[4] = {};
      if (from != nullptr)
        decode_four(in_type, load_four_raw(from, element_bits(in_type), column), value);
      store_four(to, params.out_type, column, value);
      continue;
    }
    const int32_t end = column + 4 < columns ? column + 4 : columns;
    for (int32_t c = column; c < end; ++c)
      store_element(to, params.out_type, c,
                    from != nullptr ? load_element(from, in_type, c) : 0.0f);
  }
}

}  // namespace kvc::cuda::converting
