#include "kernels/cuda/runtime/driver.h"

#include <atomic>
#include <mutex>

namespace kvc::cuda {
namespace {

constexpr unsigned kDriverVersion =
    // The version of the function signatures. Every driver that the runtime supports has it.
    12000;

template <typename Function>
cudaError_t find(const char* name, Function* out) {
  void* address = nullptr;
  cudaDriverEntryPointQueryResult found{};
  const cudaError_t error =
      cudaGetDriverEntryPointByVersion(name, &address, kDriverVersion, cudaEnableDefault, &found);
  if (error != cudaSuccess) return error;
  if (found != cudaDriverEntryPointSuccess || address == nullptr)
    return cudaErrorCallRequiresNewerDriver;
  *out = reinterpret_cast<Function>(address);
  return cudaSuccess;
}

cudaError_t find_all(Driver* out) {
  cudaError_t error = find("cuGetErrorName", &out->error_name);
  if (error == cudaSuccess) error = find("cuGetErrorString", &out->error_string);
  if (error == cudaSuccess) error = find("cuCtxGetCurrent", &out->current_context);
  if (error == cudaSuccess) error = find("cuCtxSetCurrent", &out->set_current_context);
  if (error == cudaSuccess) error = find("cuCtxGetId", &out->context_id);
  if (error == cudaSuccess) error = find("cuMemGetAllocationGranularity", &out->granularity);
  if (error == cudaSuccess) error = find("cuMemAddressReserve", &out->reserve_addresses);
  if (error == cudaSuccess) error = find("cuMemAddressFree", &out->free_addresses);
  if (error == cudaSuccess) error = find("cuMemCreate", &out->create_memory);
  if (error == cudaSuccess) error = find("cuMemRelease", &out->release_memory);
  if (error == cudaSuccess) error = find("cuMemMap", &out->map);
  if (error == cudaSuccess) error = find("cuMemUnmap", &out->unmap);
  if (error == cudaSuccess) error = find("cuMemSetAccess", &out->set_access);
  return error;
}

}  // namespace

cudaError_t find_driver(const Driver** out) {
  static std::atomic<const Driver*> found{nullptr};
  static std::mutex searching;
  static Driver driver{};
  *out = found.load(std::memory_order_acquire);
  if (*out != nullptr) return cudaSuccess;
  const std::lock_guard lock(searching);
  *out = found.load(std::memory_order_relaxed);
  if (*out != nullptr) return cudaSuccess;
  const cudaError_t error = find_all(&driver);
  if (error != cudaSuccess) return error;
  *out = &driver;
  found.store(*out, std::memory_order_release);
  return cudaSuccess;
}

}  // namespace kvc::cuda
