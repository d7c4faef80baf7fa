// Shape of the convert kernel.
#pragma once

#include <cstdint>

#include "kernels/cuda/table.h"

namespace kvc::cuda::converting {

constexpr int32_t kThreads = 256;
constexpr int32_t kColumns = 4096;  // elements of a row that one CTA does
// Groups of four elements of a CTA, in as many rows as that takes
constexpr int32_t kQuads = 1024;

struct Launch {
  ConvertParams params;
  int32_t rows_per_cta;
  int32_t by_four;  // rows are aligned for four elements at a time
};

}  // namespace kvc::cuda::converting
