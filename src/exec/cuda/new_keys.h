// Rows for the new keys of kvc_attn_self, which are no part of the pool.
#pragma once

#include <cstdint>

#include "src/exec/cuda/forward.h"
#include "src/exec/engine.h"

namespace kvc {

class NewKeys {
 public:
  explicit NewKeys(const Gpu& device) : k_(device), v_(device), slots_(device) {}

  // Room for the largest step; fills K, V and the page size of `params`. Throws NO_MEMORY,
  // INVALID_STATE: a captured forward needs more than was there before the capture.
  void secure(CudaForward& open, const AttnCall& call, const AttnTensors& tensors,
              kernels::AttnParams* params);
  // 0, 1, 2, ...
  const int64_t* slots() const { return reinterpret_cast<const int64_t*>(slots_.data()); }

 private:
  DeviceBuffer k_, v_, slots_;
  int64_t num_slots_ = 0;
};

}  // namespace kvc
