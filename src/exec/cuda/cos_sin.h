// Rotations on a device: cos and sin of the new tokens, once per step, and of absolute positions
// for keys that are rotated on read.
#pragma once

#include <cstdint>
#include <vector>

#include "src/device/device.h"
#include "src/device/uploads.h"
#include "src/plan/spec.h"
#include "src/step/device_step.h"
#include "src/step/forward.h"

namespace kvc {

class DeviceCosSin {
 public:
  // Throws NO_MEMORY, DEVICE.
  DeviceCosSin(const Spec* spec, const DeviceStep* step, const Device* device);

  // A new step: given positions are sent.
  void begin(const Forward& forward, DeviceUploads& uploads, cuda::Stream stream);

  // By packed token; none when rope < 0. Enqueued where this step has not made them yet.
  kernels::Rotation tokens(const Forward& forward, int32_t rope, cuda::Stream stream);
  // The same with the positions that sinks see.
  kernels::Rotation sinks(const Forward& forward, int32_t rope, cuda::Stream stream);
  // By absolute position, both variants of LONGROPE.
  void keys(Forward& forward, int32_t rope, cuda::Stream stream, kernels::Rotation out[2]);

  // [position rows][positions_stride] of this step; what rotations go by.
  const int32_t* rotary_positions() const { return positions_; }
  int64_t positions_stride() const { return positions_stride_; }

 private:
  struct Table {  // cos, then sin
    DeviceBuffer memory;
    uint64_t step = 0;
    int64_t num_rows = 0;
  };
  struct Rope {
    DeviceMemory frequencies[2];
    DeviceMemory sections;
    Table tokens, sinks, keys[2];
  };

  cuda::CosSinParams params_of(int32_t rope) const;
  kernels::Rotation rotation_of(int32_t rope, const Table& table, int64_t rows) const;
  void make(Table& table, cuda::CosSinParams params, int64_t rows, cuda::Stream stream);

  const Spec* spec_;
  const DeviceStep* step_;
  const Device* device_;
  std::vector<Rope> ropes_;
  DeviceBuffer given_;
  const int32_t* positions_ = nullptr;
  int64_t positions_stride_ = 0;
  bool has_sections_ = false;  // a row of positions per section
};

}  // namespace kvc
