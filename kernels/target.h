// Marks code that host and device share: the scheduler, masks and address arithmetic. It uses no
// CUDA types, so any C++ compiler accepts it and tests run it without a GPU.
#pragma once

#if defined(__CUDACC__)
#define KVC_HD __host__ __device__ __forceinline__
#else
// Always inlined: the CPU kernels are compiled once per instruction set, and a copy that is not
// inlined is one for all of them.
#define KVC_HD [[gnu::always_inline]] inline
#endif
