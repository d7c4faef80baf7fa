// The device that a test program runs on: KVC_TEST_DEVICE=cuda:N, else the CPU. Tensors of tests
// lie in memory that both sides reach at the same address (pinned, on a GPU), so that tests fill
// and read them as they always do; finish() says when.
#pragma once

#include <dlfcn.h>

#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>

#include "kernels/cuda/table.h"
#include "kvcache.h"

namespace kvc::test {

inline DLDevice device() {
  static const DLDevice chosen = [] {
    const char* name = std::getenv("KVC_TEST_DEVICE");
    if (name == nullptr || *name == '\0' || std::strcmp(name, "cpu") == 0)
      return DLDevice{kDLCPU, 0};
    if (std::strncmp(name, "cuda:", 5) != 0)
      throw std::runtime_error(std::string("KVC_TEST_DEVICE=") + name + ": expected cpu or cuda:N");
    // Where the emulated back end lies; on a real GPU the library finds its own.
    if (const char* modules = std::getenv("KVC_TEST_MODULES")) {
      kvc_error error{};
      if (kvc_module_path_set(modules, &error) != KVC_OK) throw std::runtime_error(error.message);
    }
    return DLDevice{kDLCUDA, std::atoi(name + 5)};
  }();
  return chosen;
}
inline bool is_on_gpu() { return device().device_type == kDLCUDA; }

// The back end that the library found; the same library gives the same table.
inline const cuda::BackendTable& backend() {
  static const cuda::BackendTable* table = [] {
    if (kvc_has_feature("cuda") == 0)
      throw std::runtime_error("KVC_TEST_DEVICE is a GPU, but there is no CUDA back end");
    void* library = dlopen("libkvcache_cuda.so", RTLD_NOW | RTLD_NOLOAD);
    if (library == nullptr) throw std::runtime_error(dlerror());
    using Entry = const cuda::BackendTable* (*)();
    return reinterpret_cast<Entry>(dlsym(library, "kvc_cuda_backend"))();
  }();
  return *table;
}

inline void require(cuda::Result result, const cuda::Failure& failure) {
  if (result != cuda::Result::kOk) throw std::runtime_error(failure.text);
}

// Everything on the legacy default stream, which tests use, is done.
inline void finish() {
  if (!is_on_gpu()) return;
  cuda::Failure failure{};
  require(backend().synchronize(device().device_id, nullptr, &failure), failure);
}

// Memory of a tensor, freed by free_tensor.
inline void* allocate_tensor(size_t bytes) {
  if (!is_on_gpu()) return ::operator new(bytes);
  void* address = nullptr;
  cuda::Failure failure{};
  require(
      backend().allocate_pinned(static_cast<int64_t>(bytes == 0 ? 1 : bytes), &address, &failure),
      failure);
  return address;
}
inline void free_tensor(void* address) noexcept {
  if (!is_on_gpu()) return ::operator delete(address);
  try {
    finish();
  } catch (...) {
  }
  backend().free_pinned(address);
}

template <typename T>
struct TensorAllocator {
  using value_type = T;
  TensorAllocator() = default;
  template <typename U>
  TensorAllocator(const TensorAllocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(allocate_tensor(count * sizeof(T))); }
  void deallocate(T* data, size_t) noexcept { free_tensor(data); }
  friend bool operator==(const TensorAllocator&, const TensorAllocator&) { return true; }
};

// kvc_allocator: pool memory that begins as NaN, so that a slot that nobody wrote spoils every
// result it enters.
inline void* poisoned_alloc(void*, DLDevice where, uint64_t bytes, uint64_t alignment) {
  const uint64_t rounded = (bytes + alignment - 1) / alignment * alignment;
  if (where.device_type != kDLCUDA) {
    void* block = std::aligned_alloc(alignment, rounded);
    if (block != nullptr) std::memset(block, 0xFF, rounded);
    return block;
  }
  void* block = nullptr;
  cuda::Failure failure{};
  if (backend().allocate(where.device_id, static_cast<int64_t>(rounded), &block, &failure) !=
      cuda::Result::kOk)
    return nullptr;
  require(backend().fill(where.device_id, block, 0xFF, static_cast<int64_t>(rounded), nullptr,
                         &failure),
          failure);
  return block;
}
inline void poisoned_free(void*, DLDevice where, void* block, uint64_t) {
  if (where.device_type == kDLCUDA) return backend().free(where.device_id, block);
  std::free(block);
}

}  // namespace kvc::test
