// Memory of the device for the tests of kernels. Through the CUDA runtime's own functions and
// nothing else, so that the same test runs on the emulator (whose runtime is part of the test
// suite) and on a GPU. A test that keeps to this header for everything that a kernel reads or
// writes also becomes part of the program that tests/gpu/run.sh runs on a device.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <stdexcept>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace kvc::cuda::testing {

// Throws with the name of the call, so that GoogleTest reports it as the failure of the test.
inline void check(cudaError_t error, const char* what) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(what) + ": " + cudaGetErrorString(error));
}
// After a launch: what it could not start, and what went wrong while it ran.
inline void finish(cudaStream_t stream = nullptr) {
  check(cudaGetLastError(), "launch");
  check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

// `count` elements on the device between two guards. Fresh memory is poison: every byte 0xff, NaN
// in each float type of the library and an absurd id in each integer type. A kernel that writes
// just outside fails the test when the array is read or goes.
template <typename T>
class DeviceArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  static constexpr int kPoison = 0xff;

  DeviceArray() : DeviceArray(size_t{0}) {}
  explicit DeviceArray(size_t count) : count_(count) {
    check(cudaMalloc(&memory_, bytes() + 2 * kGuard), "cudaMalloc");
    check(cudaMemset(memory_, kPoison, bytes() + 2 * kGuard), "cudaMemset");
    check(cudaMemset(memory_, kGuardByte, kGuard), "cudaMemset");
    check(cudaMemset(guard_behind(), kGuardByte, kGuard), "cudaMemset");
  }
  explicit DeviceArray(const std::vector<T>& values) : DeviceArray(values.size()) { write(values); }
  DeviceArray(const DeviceArray&) = delete;
  DeviceArray& operator=(const DeviceArray&) = delete;
  DeviceArray(DeviceArray&& other) noexcept
      : memory_(std::exchange(other.memory_, nullptr)), count_(std::exchange(other.count_, 0)) {}
  DeviceArray& operator=(DeviceArray&& other) noexcept {
    std::swap(memory_, other.memory_);
    std::swap(count_, other.count_);
    return *this;
  }
  ~DeviceArray() {
    if (!memory_) return;
    if (!intact())
      ADD_FAILURE() << "a kernel wrote just outside an array of " << bytes() << " bytes";
    cudaFree(memory_);
  }

  size_t size() const { return count_; }
  size_t bytes() const { return count_ * sizeof(T); }
  // What kernels get. 256-byte aligned, like all memory of the device.
  T* data() const { return reinterpret_cast<T*>(static_cast<std::byte*>(memory_) + kGuard); }

  void write(std::span<const T> values, size_t at = 0) {
    if (at + values.size() > count_) throw std::out_of_range("DeviceArray::write");
    if (values.empty()) return;
    check(cudaMemcpy(data() + at, values.data(), values.size_bytes(), cudaMemcpyDefault),
          "cudaMemcpy");
  }
  // All of it, as it is when everything enqueued before has been done.
  std::vector<T> read() const {
    check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
    if (!intact())
      ADD_FAILURE() << "a kernel wrote just outside an array of " << bytes() << " bytes";
    std::vector<T> values(count_);
    if (count_) check(cudaMemcpy(values.data(), data(), bytes(), cudaMemcpyDefault), "cudaMemcpy");
    return values;
  }
  void poison() {
    if (count_) check(cudaMemset(data(), kPoison, bytes()), "cudaMemset");
  }

 private:
  static constexpr size_t kGuard = 256;
  static constexpr int kGuardByte = 0xa5;

  std::byte* guard_behind() const { return static_cast<std::byte*>(memory_) + kGuard + bytes(); }
  bool intact() const {
    uint8_t found[2][kGuard] = {};
    if (cudaMemcpy(found[0], memory_, kGuard, cudaMemcpyDefault) != cudaSuccess)
      return true;  // reported elsewhere
    if (cudaMemcpy(found[1], guard_behind(), kGuard, cudaMemcpyDefault) != cudaSuccess) return true;
    for (const auto& guard : found)
      for (const uint8_t byte : guard)
        if (byte != kGuardByte) return false;
    return true;
  }

  void* memory_ = nullptr;
  size_t count_ = 0;
};

// Host memory that the device reads and writes at the same address, all bytes 0 at first.
template <typename T>
class PinnedArray {
  static_assert(std::is_trivially_copyable_v<T>);

 public:
  explicit PinnedArray(size_t count) : count_(count) {
    check(cudaHostAlloc(&memory_, count_ * sizeof(T) + 1,
                        cudaHostAllocPortable | cudaHostAllocMapped),
          "cudaHostAlloc");
    std::memset(memory_, 0, count_ * sizeof(T) + 1);
  }
  PinnedArray(const PinnedArray&) = delete;
  PinnedArray& operator=(const PinnedArray&) = delete;
  ~PinnedArray() { cudaFreeHost(memory_); }

  size_t size() const { return count_; }
  T* data() const { return static_cast<T*>(memory_); }
  T& operator[](size_t i) const { return data()[i]; }
  std::span<T> span() const { return {data(), count_}; }

 private:
  void* memory_ = nullptr;
  size_t count_ = 0;
};

// What launches ask of the device they are for. The emulator answers for the device that it
// imitates.
struct DeviceFacts {
  int arch = 0;  // 10 * compute capability
  int num_sms = 0;
};
inline DeviceFacts device_facts() {
  int device = 0, major = 0, minor = 0;
  DeviceFacts facts;
  check(cudaGetDevice(&device), "cudaGetDevice");
  check(cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device),
        "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device),
        "cudaDeviceGetAttribute");
  check(cudaDeviceGetAttribute(&facts.num_sms, cudaDevAttrMultiProcessorCount, device),
        "cudaDeviceGetAttribute");
  facts.arch = 10 * major + minor;
  return facts;
}

}  // namespace kvc::cuda::testing
