// One open step: its batch and what is computed lazily from it, at most once per step whatever the number of layers.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "src/forward/batch.h"
#include "src/forward/rotation_angles.h"

namespace kvc {

// Reused from step to step so that a steady decode allocates nothing.
class Forward {
 public:
  explicit Forward(const Spec& spec);

  Batch& batch() { return batch_; }
  const Batch& batch() const { return batch_; }
  bool is_open() const { return open_; }
  // Identifies the step; work lists made for another step are stale.
  uint64_t step() const { return step_; }

  void opened();
  void closed() { open_ = false; }

  // Slots of the new tokens, [num_rows].
  const int64_t* slots(int32_t page_size);
  // No rotation when rope < 0.
  kernels::Rotation rotation(const Spec& spec, int32_t rope, Executor& executor);
  // Which layers were appended to in this step.
  void mark_appended(int32_t local_layer) { appended_[static_cast<size_t>(local_layer)] = 1; }
  bool is_appended(int32_t local_layer) const { return appended_[static_cast<size_t>(local_layer)] != 0; }

 private:
  Batch batch_;
  bool open_ = false;
  uint64_t step_ = 0;
  std::vector<int64_t> slots_;
  bool slots_valid_ = false;
  std::vector<RotationAngles> angles_;  // per Spec::ropes
  std::vector<uint8_t> appended_;       // per local layer
};

}  // namespace kvc
