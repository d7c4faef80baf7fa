// How the rows of a layer are stored, in the words of the device's kernels.
#pragma once

#include "kernels/cuda/work.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"

namespace kvc {

// Quant::kNone for layers that are not quantised.
cuda::RowStorage k_storage(const Plan& plan, const PagePool& pool, int32_t local_layer);
cuda::RowStorage v_storage(const Plan& plan, const PagePool& pool, int32_t local_layer);

}  // namespace kvc
