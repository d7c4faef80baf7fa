// Shape of the merge kernel.
#pragma once

#include <cstdint>

#include "kernels/params.h"

namespace kvc::cuda::merging {

constexpr int32_t kThreads = 128;  // a warp has a row of one head

struct Launch {
  kernels::MergeParams params;
  int64_t num_rows;
  const int32_t* num_rows_at;
};

}  // namespace kvc::cuda::merging
