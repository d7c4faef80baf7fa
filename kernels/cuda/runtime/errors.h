// Converts errors of CUDA into the table's Result and Failure.
#pragma once

#include <cuda.h>
#include <cuda_runtime_api.h>

#include "kernels/cuda/table.h"

namespace kvc::cuda {

Result result_of(cudaError_t error);

// The result of a runtime call. On an error it fills `failure` with "<what>: <name>
// (<description>)" and clears the thread's last error, where the host's next check of its own
// launch would find it. Errors that CUDA keeps (a lost context) stay there.
Result report(cudaError_t error, const char* what, Failure* failure);
// The same for the driver, whose numbers equal the runtime's where both have the error.
Result report(CUresult error, const char* what, Failure* failure);
// Reports an error of this library.
[[gnu::format(printf, 4, 5)]] Result refuse(Result result, cudaError_t error, Failure* failure,
                                            const char* format, ...);

}  // namespace kvc::cuda
