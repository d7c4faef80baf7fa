// What CUDA says, as the table's Result and Failure.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/table.h"

namespace kvc::cuda {

Result result_of(cudaError_t error);

// Result of a call of the runtime. On an error: fills `failure` with "<what>: <name>
// (<description>)" and takes the error out of the thread's "last error", where the host's next
// check of its own launch would find it. Errors that CUDA keeps (a lost context) stay there.
Result report(cudaError_t error, const char* what, Failure* failure);
// The same for the driver, whose numbers are the runtime's where both have the error.
Result report(CUresult error, const char* what, Failure* failure);
// An error of our own.
[[gnu::format(printf, 4, 5)]] Result refuse(Result result, cudaError_t error, Failure* failure,
                                            const char* format, ...);

}  // namespace kvc::cuda
