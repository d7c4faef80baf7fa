#include "src/ops/operators.h"

#include <atomic>

#include "src/base/tensor.h"
#include "src/device/gpu.h"
#include "src/ops/cpu_operators.h"
#include "src/ops/cuda_operators.h"

namespace kvc {
namespace {

// Asked once per device, as a question takes longer than a small operator.
constexpr int32_t kKnownDevices = 64;
std::atomic<const cuda::BackendTable*> known_devices[kKnownDevices];

Gpu usable_device(int32_t id) {
  const cuda::BackendTable& table = require_backend();
  const bool fits = id >= 0 && id < kKnownDevices;
  if (fits && known_devices[id].load(std::memory_order_relaxed) == &table) return {&table, id};
  const Gpu device = require_device(id);
  if (fits) known_devices[id].store(&table, std::memory_order_relaxed);
  return device;
}

}  // namespace

DLDevice device_of_op(const DLTensor* tensor) {
  if (tensor == nullptr || tensor->device.device_type != kDLCUDA) return kHost;
  (void)usable_device(tensor->device.device_id);
  return tensor->device;
}

std::unique_ptr<Operators> make_operators(DLDevice device, const OpRunner& runner) {
  if (is_host(device)) return std::make_unique<CpuOperators>(runner);
  return std::make_unique<CudaOperators>(usable_device(device.device_id), runner.stream);
}

}  // namespace kvc
