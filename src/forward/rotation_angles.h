// cos and sin of every new token's rotation, computed once per forward and rotation spec, in double, stored as float32.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "src/base/executor.h"
#include "src/base/memory.h"
#include "src/forward/batch.h"

namespace kvc {

class RotationAngles {
 public:
  // Throws std::bad_alloc. After invalidate(), the first call computes.
  kernels::Rotation get(const RopeSpec& rope, const Batch& batch, Executor& executor);
  void invalidate() { valid_ = false; }

 private:
  AlignedBuffer cos_;
  AlignedBuffer sin_;
  bool valid_ = false;
};

}  // namespace kvc
