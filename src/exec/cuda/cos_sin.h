// RoPE on a device: cos and sin of the new tokens, once per step, and of absolute positions for
// keys that are rotated on read.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "src/device/gpu.h"
#include "src/device/uploads.h"
#include "src/exec/cuda/device_step.h"
#include "src/plan/spec.h"
#include "src/step/forward.h"

namespace kvc {

class DeviceCosSin {
 public:
  // Throws NO_MEMORY, DEVICE.
  DeviceCosSin(const Spec* spec, const DeviceStep* step, const Gpu* device);

  // Begins a step, and sends the positions that the caller gave.
  void begin(const Forward& forward, DeviceUploads& uploads, cuda::Stream stream);

  // By packed token; empty when rope < 0. Enqueues the kernel where this step has not made them
  // yet.
  kernels::Rotation tokens(const Forward& forward, int32_t rope, cuda::Stream stream);
  // The same at the positions that attend to sink tokens.
  kernels::Rotation sinks(const Forward& forward, int32_t rope, cuda::Stream stream);
  // By absolute position (kernels/cuda/step.h), both variants of LONGROPE.
  void keys(Forward& forward, int32_t rope, cuda::Stream stream, kernels::Rotation out[2]);

  // The positions that RoPE goes by, [position rows][positions_stride], of this step.
  const int32_t* rotary_positions() const { return positions_; }
  int64_t positions_stride() const { return positions_stride_; }

  // Of the tables by absolute position. From any thread.
  int64_t key_bytes() const { return key_bytes_.load(std::memory_order_relaxed); }

 private:
  struct Table {  // First cos, then sin.
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
  int64_t bytes_of_keys() const;
  void make(Table& table, cuda::CosSinParams params, int64_t rows, cuda::Stream stream);

  const Spec* spec_;
  const DeviceStep* step_;
  const Gpu* device_;
  std::vector<Rope> ropes_;
  DeviceBuffer given_;
  const int32_t* positions_ = nullptr;
  int64_t positions_stride_ = 0;
  std::atomic<int64_t> key_bytes_{0};
  bool has_sections_ = false;  // Positions have a row per section.
};

}  // namespace kvc
