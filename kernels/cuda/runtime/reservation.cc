// Address space that is backed by memory granule by granule. A granule is one allocation of the
// driver, because the driver frees whole allocations only.
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <vector>

#include "kernels/cuda/runtime/deferred_frees.h"
#include "kernels/cuda/runtime/device_scope.h"
#include "kernels/cuda/runtime/driver.h"
#include "kernels/cuda/runtime/functions.h"

namespace kvc::cuda::runtime {
namespace {

struct Reservation {
  int32_t device;
  int64_t granule;
  int64_t bytes;                // The size that was requested.
  std::vector<bool> is_mapped;  // One entry per granule.
  std::mutex lock;

  int64_t size() const { return granule * static_cast<int64_t>(is_mapped.size()); }
};

// The reservations of all devices, by address. Never destroyed: caches may outlive this library's
// static objects.
struct Registry {
  std::mutex lock;
  std::map<void*, std::unique_ptr<Reservation>> entries;
};
Registry& registry() {
  static auto* const all = new Registry;
  return *all;
}

Reservation* find_reservation(void* address) {
  const std::lock_guard lock(registry().lock);
  const auto entry = registry().entries.find(address);
  return entry == registry().entries.end() ? nullptr : entry->second.get();
}

CUdeviceptr at(void* address, int64_t offset) {
  return static_cast<CUdeviceptr>(reinterpret_cast<uintptr_t>(address)) +
         static_cast<CUdeviceptr>(offset);
}

Result no_host_memory(Failure* failure) {
  return refuse(Result::kNoMemory, cudaErrorMemoryAllocation, failure,
                "no host memory for a reservation");
}

// Makes the device current and finds what every function below needs.
struct Call {
  DeviceScope scope;
  RelaxedCapture relaxed;
  const Driver* driver = nullptr;
  Result result;

  Call(int32_t device, Failure* failure) : scope(device) {
    result = report(scope.error(), "cudaSetDevice", failure);
    if (result == Result::kOk) {
      result = report(find_driver(&driver), "cudaGetDriverEntryPointByVersion", failure);
    }
  }
};

Result check_range(const Reservation* reservation, int32_t device, int64_t begin, int64_t end,
                   Failure* failure) {
  if (reservation != nullptr && reservation->device == device && 0 <= begin && begin <= end &&
      end <= reservation->size()) {
    return Result::kOk;
  }
  return refuse(Result::kDevice, cudaErrorInvalidValue, failure,
                "bytes %lld to %lld are not in a reservation", static_cast<long long>(begin),
                static_cast<long long>(end));
}

// Maps one granule of memory at its address, without access yet. From then on the mapping alone
// keeps the memory.
Result map_granule(const Driver& driver, const Reservation& reservation, void* address,
                   int64_t granule, Failure* failure) {
  const CUmemAllocationProp properties = memory_properties(reservation.device);
  const auto bytes = static_cast<size_t>(reservation.granule);
  CUmemGenericAllocationHandle memory{};
  Result result =
      report(driver.create_memory(&memory, bytes, &properties, 0), "cuMemCreate", failure);
  if (result != Result::kOk) return result;
  const CUdeviceptr place = at(address, granule * reservation.granule);
  result = report(driver.map(place, bytes, 0, memory, 0), "cuMemMap", failure);
  (void)driver.release_memory(memory);
  return result;
}

Result allow_access(const Driver& driver, const Reservation& reservation, void* address,
                    int64_t first, int64_t last, Failure* failure) {
  CUmemAccessDesc access{};
  access.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  access.location.id = reservation.device;
  access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
  return report(
      driver.set_access(at(address, first * reservation.granule),
                        static_cast<size_t>((last - first) * reservation.granule), &access, 1),
      "cuMemSetAccess", failure);
}

void unmap_granule(const Driver& driver, const Reservation& reservation, void* address,
                   int64_t granule) {
  (void)driver.unmap(at(address, granule * reservation.granule),
                     static_cast<size_t>(reservation.granule));
}

// The device is current. Waits for it, then releases everything.
cudaError_t release_reservation(void* address) {
  Reservation* const reservation = find_reservation(address);
  const Driver* driver = nullptr;
  if (reservation == nullptr || find_driver(&driver) != cudaSuccess) return cudaSuccess;
  const cudaError_t error = cudaDeviceSynchronize();
  if (result_of(error) == Result::kCapture) return error;
  for (size_t granule = 0; granule < reservation->is_mapped.size(); ++granule) {
    if (reservation->is_mapped[granule]) {
      unmap_granule(*driver, *reservation, address, static_cast<int64_t>(granule));
    }
  }
  const auto bytes = static_cast<size_t>(reservation->size());
  {
    // The entry goes before the addresses are free: another thread may reserve the same ones at
    // once.
    const std::lock_guard lock(registry().lock);
    registry().entries.erase(address);
  }
  (void)driver->free_addresses(at(address, 0), bytes);
  return error;
}

}  // namespace

Result reserve(int32_t device, int64_t bytes, void** address, Failure* failure) {
  const Call call(device, failure);
  if (call.result != Result::kOk) return call.result;
  const DeviceFacts* facts = nullptr;
  Result result = find_facts(device, &facts, failure);
  if (result != Result::kOk) return result;
  if (bytes <= 0 || bytes > INT64_MAX - facts->granularity) {
    return refuse(Result::kDevice, cudaErrorInvalidValue, failure, "cannot reserve %lld bytes",
                  static_cast<long long>(bytes));
  }
  CUdeviceptr place = 0;
  try {
    auto reservation = std::make_unique<Reservation>();
    reservation->device = device;
    reservation->granule = facts->granularity;
    reservation->bytes = bytes;
    reservation->is_mapped.resize(
        static_cast<size_t>((bytes + facts->granularity - 1) / facts->granularity));
    const int64_t size = reservation->size();
    const std::lock_guard lock(registry().lock);
    result = report(call.driver->reserve_addresses(&place, static_cast<size_t>(size), 0, 0, 0),
                    "cuMemAddressReserve", failure);
    if (result != Result::kOk) return result;
    auto* const start = reinterpret_cast<void*>(static_cast<uintptr_t>(place));
    try {
      registry().entries.emplace(start, std::move(reservation));
    } catch (const std::bad_alloc&) {
      (void)call.driver->free_addresses(place, static_cast<size_t>(size));
      throw;
    }
    *address = start;
  } catch (const std::bad_alloc&) {
    return no_host_memory(failure);
  }
  return Result::kOk;
}

Result commit(int32_t device, void* address, int64_t begin, int64_t end, Failure* failure) {
  Reservation* const reservation = find_reservation(address);
  Result result = check_range(reservation, device, begin, end, failure);
  if (result != Result::kOk || begin == end) return result;
  const std::lock_guard lock(reservation->lock);
  const int64_t first = begin / reservation->granule;
  const int64_t last = (end - 1) / reservation->granule + 1;
  std::vector<int64_t> added;  // Either all of these are mapped, or none.
  try {
    for (int64_t granule = first; granule < last; ++granule) {
      if (!reservation->is_mapped[static_cast<size_t>(granule)]) added.push_back(granule);
    }
  } catch (const std::bad_alloc&) {
    return no_host_memory(failure);
  }
  if (added.empty()) return Result::kOk;
  const Call call(device, failure);
  if (call.result != Result::kOk) return call.result;
  size_t num_mapped = 0;
  bool has_trimmed = false;
  while (num_mapped < added.size() && result == Result::kOk) {
    result = map_granule(*call.driver, *reservation, address, added[num_mapped], failure);
    if (result == Result::kOk) ++num_mapped;
    if (result == Result::kNoMemory && !has_trimmed) {
      has_trimmed = true;
      if (trim_pool(device)) result = Result::kOk;
    }
  }
  for (size_t i = 0; i < added.size() && result == Result::kOk;) {  // Runs of granules.
    size_t past = i + 1;
    while (past < added.size() && added[past] == added[past - 1] + 1) ++past;
    result =
        allow_access(*call.driver, *reservation, address, added[i], added[past - 1] + 1, failure);
    i = past;
  }
  if (result != Result::kOk) {
    for (size_t i = 0; i < num_mapped; ++i)
      unmap_granule(*call.driver, *reservation, address, added[i]);
    return result;
  }
  for (const int64_t granule : added) reservation->is_mapped[static_cast<size_t>(granule)] = true;
  return Result::kOk;
}

Result discard(int32_t device, void* address, int64_t begin, int64_t end, Failure* failure) {
  Reservation* const reservation = find_reservation(address);
  Result result = check_range(reservation, device, begin, end, failure);
  if (result != Result::kOk) return result;
  const std::lock_guard lock(reservation->lock);
  if (end >= reservation->bytes) end = reservation->size();  // Nothing lies behind the last byte.
  const int64_t first = (begin + reservation->granule - 1) / reservation->granule;
  const int64_t last = end / reservation->granule;
  bool has_any = false;
  for (int64_t granule = first; granule < last; ++granule) {
    has_any = has_any || reservation->is_mapped[static_cast<size_t>(granule)];
  }
  if (!has_any) return Result::kOk;
  const Call call(device, failure);
  if (call.result != Result::kOk) return call.result;
  result = report(cudaDeviceSynchronize(), "cudaDeviceSynchronize", failure);
  if (result != Result::kOk) return result;
  for (int64_t granule = first; granule < last; ++granule) {
    if (!reservation->is_mapped[static_cast<size_t>(granule)]) continue;
    unmap_granule(*call.driver, *reservation, address, granule);
    reservation->is_mapped[static_cast<size_t>(granule)] = false;
  }
  return Result::kOk;
}

void release(int32_t device, void* address) {
  release_or_defer(device, address, release_reservation);
}

}  // namespace kvc::cuda::runtime
