// kernels/cuda/ptx/ptx.cuh for the host: the same names with the same meaning, on lanes that are
// fibers (cudasim/engine.h). ptx.cuh includes it when KVC_CUDA_EMULATION is defined. Kernels are
// compiled with -fno-strict-aliasing, as nvcc compiles them.
#pragma once

#include <cuda_runtime_api.h>

#include "cudasim/engine.h"
#include "cudasim/intrinsics.h"
#include "cudasim/lanes.h"
#include "cudasim/launch.h"
#include "cudasim/matrix.h"
#include "cudasim/memory.h"

#define KVC_DEVICE inline

#define __global__
#define __device__
#define __host__
#define __constant__
#define __forceinline__ inline
#define __grid_constant__
#define __launch_bounds__(...)
#define __align__(bytes) __attribute__((aligned(bytes)))

#define threadIdx (::cudasim::here->thread)
#define blockIdx (::cudasim::here->cta->block)
#define blockDim (::cudasim::here->cta->block_dim)
#define gridDim (::cudasim::here->cta->grid_dim)
