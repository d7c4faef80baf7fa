// Marks code that host and device share: the scheduler, masks and address arithmetic. It uses no
// CUDA types, so any C++ compiler accepts it and tests run it without a GPU.
#pragma once

#if defined(__CUDACC__)
#define KVC_HD __host__ __device__ __forceinline__
#else
#define KVC_HD inline
#endif
