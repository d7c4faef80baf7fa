// A GPU for the device benches: the back end that the library found, for memory, copies and
// waiting. What is measured goes through the C interface.
#pragma once

#include <kvcache.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "kernels/cuda/table.h"

namespace kvc::bench {

class Gpu {
 public:
  // "cuda" or "cuda:N". Throws std::runtime_error with the library's reason why it cannot have a
  // cache there.
  explicit Gpu(const std::string& name);
  Gpu(const Gpu&) = delete;
  Gpu& operator=(const Gpu&) = delete;
  ~Gpu();

  DLDevice device() const { return {kDLCUDA, id_}; }
  const kvc_device_caps& caps() const { return caps_; }
  const cuda::DeviceInfo& info() const { return info_; }
  // What runs is the CPU behind an emulated device: a time says nothing of any GPU.
  bool is_emulated() const;

  // Of the benches: all work goes there.
  kvc_stream stream() const { return stream_; }
  void synchronize() const;
  void copy(void* to, const void* from, int64_t bytes) const;  // Any direction, enqueued.
  void fill(void* to, int32_t byte, int64_t bytes) const;      // Enqueued

 private:
  friend class GpuMemory;
  friend class PinnedMemory;
  void require(cuda::Result result, const cuda::Failure& failure) const;

  int32_t id_ = 0;
  const cuda::BackendTable* table_ = nullptr;
  cuda::Stream stream_ = nullptr;
  kvc_device_caps caps_{};
  cuda::DeviceInfo info_{};
};

// A block on the device. The Gpu must outlive it; work that uses it is over when it goes.
class GpuMemory {
 public:
  GpuMemory(const Gpu& gpu, int64_t bytes);
  GpuMemory(const GpuMemory&) = delete;
  GpuMemory& operator=(const GpuMemory&) = delete;
  ~GpuMemory();
  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }

 private:
  const Gpu& gpu_;
  std::byte* data_ = nullptr;
  int64_t bytes_;
};

// Host memory that the device reaches.
class PinnedMemory {
 public:
  PinnedMemory(const Gpu& gpu, int64_t bytes);
  PinnedMemory(const PinnedMemory&) = delete;
  PinnedMemory& operator=(const PinnedMemory&) = delete;
  ~PinnedMemory();
  std::byte* data() const { return data_; }

 private:
  const Gpu& gpu_;
  std::byte* data_ = nullptr;
};

// Numbers spread evenly between two values; of float8 both signs of 0.25 to 1, whatever they are.
struct Values {
  float least = -1, most = 1;
};
// Fills the block with random numbers of a type. They repeat after some megabytes, more than any
// cache line's neighbourhood gets.
void fill_random(const Gpu& gpu, const GpuMemory& memory, DLDataType type, Values values,
                 uint64_t seed);

// A compact tensor on the device, full of random numbers.
class GpuTensor {
 public:
  GpuTensor(const Gpu& gpu, DLDataType type, std::vector<int64_t> shape, Values values,
            uint64_t seed);
  DLTensor* get() { return &tensor_; }
  // Not a number in every element, and whether elements at the beginning and at the end have become
  // finite since (waits). bfloat16 only.
  void poison();
  bool is_finite() const;

 private:
  const Gpu& gpu_;
  std::vector<int64_t> shape_;
  GpuMemory memory_;
  DLTensor tensor_{};
};

constexpr DLDataType kBf16{kDLBfloat, 16, 1};
constexpr DLDataType kF32{kDLFloat, 32, 1};
constexpr DLDataType kE4M3{kDLFloat8_e4m3fn, 8, 1};

}  // namespace kvc::bench
