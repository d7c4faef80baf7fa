// The back end of this program.
#pragma once

#include "kernels/cuda/table.h"

namespace kvc::cuda {

inline const BackendTable& table() { return *kvc_cuda_backend(); }

}  // namespace kvc::cuda
