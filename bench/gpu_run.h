// One shape on a GPU.
#pragma once

#include "bench/gpu.h"
#include "bench/gpu_shapes.h"
#include "bench/measure.h"
#include "bench/report.h"

namespace kvc::bench {

struct GpuLimits {
  double bytes_per_second;  // Rate of a copy, reads plus writes.
  double flops_per_second;
};

// What a shape needs at least: the longer of moving its bytes and of computing its flops, in
// seconds.
double floor_of(const GpuWork& work, const GpuLimits& limits);

// `once`: nothing is repeated. Where the library refuses the shape, the report has the reason as
// "refused".
Report run_shape(const Gpu& gpu, const GpuShape& shape, const GpuLimits& limits,
                 const Budget& budget, bool once);

}  // namespace kvc::bench
