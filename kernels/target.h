// Code that host and device share: planners, masks, address arithmetic. No CUDA types, so that any
// C++ compiler takes it and tests run it without a GPU.
#pragma once

#if defined(__CUDACC__)
#define KVC_HD __host__ __device__ __forceinline__
#else
#define KVC_HD inline
#endif
