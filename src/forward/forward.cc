#include "src/forward/forward.h"

#include <algorithm>

#include "src/forward/page_tables.h"

namespace kvc {

Forward::Forward(const Spec& spec) : angles_(spec.ropes.size()), appended_(spec.layers.size(), 0) {}

void Forward::opened() {
  open_ = true;
  ++step_;
  slots_valid_ = false;
  for (RotationAngles& angles : angles_) angles.invalidate();
  std::fill(appended_.begin(), appended_.end(), uint8_t{0});
}

const int64_t* Forward::slots(int32_t page_size) {
  if (!slots_valid_) {
    fill_slots(batch_, page_size, &slots_);
    slots_valid_ = true;
  }
  return slots_.data();
}

kernels::Rotation Forward::rotation(const Spec& spec, int32_t rope, Executor& executor) {
  if (rope < 0) return {};
  const auto index = static_cast<size_t>(rope);
  return angles_[index].get(spec.ropes[index], batch_, executor);
}

}  // namespace kvc
