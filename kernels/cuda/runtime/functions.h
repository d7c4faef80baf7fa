// The functions of BackendTable that launch no kernel. table.h describes them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/table.h"

namespace kvc::cuda::runtime {

// Devices.cc
Result count_devices(int32_t* out, Failure* failure);
Result query_device(int32_t device, DeviceInfo* out, Failure* failure);
Result locate(const void* address, int32_t* device, Failure* failure);

// Reservation.cc
Result reserve(int32_t device, int64_t bytes, void** address, Failure* failure);
Result commit(int32_t device, void* address, int64_t begin, int64_t end, Failure* failure);
Result discard(int32_t device, void* address, int64_t begin, int64_t end, Failure* failure);
void release(int32_t device, void* address);

// Memory.cc
Result allocate(int32_t device, int64_t bytes, void** address, Failure* failure);
void free(int32_t device, void* address);
Result allocate_on(int32_t device, int64_t bytes, Stream stream, void** address, Failure* failure);
void free_on(int32_t device, void* address, Stream stream);
void free_idle(int32_t device, void* address);
void trim(int32_t device);
// Like trim. Returns whether memory was released.
bool trim_pool(int32_t device);
Result allocate_pinned(int64_t bytes, void** address, Failure* failure);
void free_pinned(void* address);

// Streams.cc
Result create_stream(int32_t device, Stream* out, Failure* failure);
void destroy_stream(int32_t device, Stream stream);
Result synchronize(int32_t device, Stream stream, Failure* failure);
Result is_capturing(int32_t device, Stream stream, int32_t* out, Failure* failure);
Result create_event(int32_t device, Event* out, Failure* failure);
void destroy_event(int32_t device, Event event);
Result record_event(int32_t device, Event event, Stream stream, Failure* failure);
Result record_launches(int32_t device, Event event, Stream stream, Failure* failure);
Result wait_event(int32_t device, Event event, Stream stream, Failure* failure);
Result query_event(int32_t device, Event event, int32_t* done, Failure* failure);

// Copies.cc
Result copy(int32_t device, void* to, const void* from, int64_t bytes, Stream stream,
            Failure* failure);
Result copy_many(int32_t device, void* const* to, const void* const* from, const size_t* bytes,
                 int64_t count, Stream stream, Failure* failure);
Result fill(int32_t device, void* to, int32_t byte, int64_t bytes, Stream stream, Failure* failure);

}  // namespace kvc::cuda::runtime
