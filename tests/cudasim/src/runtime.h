// State of the fake runtime. One lock for all of it; queued work runs under the lock.
#pragma once

#include <cuda_runtime_api.h>

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <vector>

#include "cudasim/cudasim.h"
#include "cudasim/engine.h"
#include "device_memory.h"

namespace cudasim {

using Work = std::function<void()>;
struct Marker {
  bool done = false;
};
using MarkerPointer = std::shared_ptr<Marker>;

// A kernel; `before`: the one before, where that is its own to run (execute() in cudasim/launch.h).
using KernelWork = std::function<void(Work before)>;

struct Operation {
  Work work{};            // may be empty: an event
  KernelWork kernel{};    // the same work, of a kernel
  bool overlaps = false;  // which may begin before the one before
  std::vector<MarkerPointer> after{};
  MarkerPointer marker{};
};

// What a graph allocated for itself when it was captured; goes with the last of the graph and what
// was made of it.
struct GraphMemory {
  GraphMemory() = default;
  GraphMemory(const GraphMemory&) = delete;
  GraphMemory& operator=(const GraphMemory&) = delete;
  ~GraphMemory();
  std::vector<uintptr_t> blocks;
};

// A capture under way. Streams join it by waiting for one of its events.
struct Capture {
  unsigned long long id;
  cudaStreamCaptureMode mode;
  std::thread::id thread;
  CUstream_st* origin;
  std::vector<Work> nodes;
  std::vector<cudaEvent_t> recorded;  // by every launch (cudaEventRecordExternal)
  bool invalidated = false;
  std::shared_ptr<GraphMemory> memory = std::make_shared<GraphMemory>();
  std::map<CUstream_st*, uint64_t> last;    // position behind the last node of each stream
  std::map<CUstream_st*, uint64_t> joined;  // how much of each stream the origin has waited for
};
using CapturePointer = std::shared_ptr<Capture>;

enum class MemoryKind { kDevice, kPinned, kRegistered, kTensor };
struct Allocation {
  size_t bytes;
  MemoryKind kind;
  int device;
  CUmemPoolHandle_st* pool = nullptr;  // it came from; null: none
  uint64_t number = 0;
};
// Memory of a pool that was given back: kept for a while, so that whoever still writes there is
// found.
struct FreedBlock {
  uintptr_t address;
  size_t bytes;
};
struct MemoryHandle {
  size_t bytes;
  int device;
  uint32_t mappings;
  bool released;
};
struct Mapping {
  size_t bytes;
  unsigned long long handle;
  bool accessible;
};
struct Failure {
  std::string name;  // empty: any
  bool allocations;
  uint64_t countdown;
  int error;
};

int ptx_version(const DeviceFacts& facts);

struct Device {
  DeviceFacts facts;
  uint64_t context = 0;  // its number; 0: given when asked for
  size_t used_bytes = 0;
  bool has_context = false;
  cudaError_t sticky = cudaSuccess;
  CUstream_st* legacy = nullptr;
};

constexpr int kMaxDevices = 8;

struct Runtime {
  Runtime();

  std::recursive_mutex mutex;
  Random random;
  uint64_t seed;
  StreamOrder order;
  uint32_t cta_threads;
  int num_devices;
  Device devices[kMaxDevices];
  bool has_driver, has_batch_copies, has_virtual_memory, has_memory_pools;
  std::vector<Failure> failures;
  Counters counters;

  std::map<uintptr_t, Allocation> allocations;
  uint64_t next_allocation = 1;
  std::set<CUmemPoolHandle_st*> pools;
  std::deque<FreedBlock> freed;
  size_t freed_bytes = 0;
  std::map<uintptr_t, size_t> reservations;
  std::map<uintptr_t, Mapping> mappings;
  std::map<unsigned long long, MemoryHandle> handles;
  unsigned long long next_handle = 1;
  uint64_t next_stream = 1;
  uint64_t next_context = 1;
  std::set<CUstream_st*> streams;  // the legacy ones too
  std::set<CUevent_st*> events;
  std::set<CUgraph_st*> graphs;
  std::set<CUgraphExec_st*> executables;
  std::vector<CapturePointer> captures;
  unsigned long long next_capture = 1;
  std::map<std::pair<const void*, int>, uint32_t> allowed_shared;  // per kernel and device
};
Runtime& runtime();
void apply_defaults(Runtime& runtime);

// ---- calls

// Why this call must not do anything: no driver, an injected failure, a sticky error.
cudaError_t refusal(Runtime& runtime, const char* name);
cudaError_t remember(cudaError_t error);
// Does what every call of the runtime does around its own work.
template <typename Body>
cudaError_t call(const char* name, Body body) {
  Runtime& state = runtime();
  const std::lock_guard lock(state.mutex);
  const OpenDevices open(state);
  const cudaError_t refused = refusal(state, name);
  return remember(refused != cudaSuccess ? refused : body(state));
}
int current_device();
Device& use_context(Runtime& runtime);  // of the current device, made where there is none

// ---- streams

// Null: no such stream.
CUstream_st* find_stream(Runtime& runtime, cudaStream_t stream);
// Queues, runs (eager) or records (capture).
cudaError_t enqueue(Runtime& runtime, CUstream_st* stream, Work work);
cudaError_t enqueue_kernel(Runtime& runtime, CUstream_st* stream, bool overlaps, KernelWork kernel);
bool run_one(Runtime& runtime);
void run_until(Runtime& runtime, const MarkerPointer& marker);
void run_all(Runtime& runtime);

// ---- capture

// cudaErrorStreamCaptureUnsupported where a capture forbids a call that might synchronise; the
// captures are then invalid.
cudaError_t unsafe_call(Runtime& runtime);
// cudaErrorStreamCaptureImplicit for the legacy stream while a blocking stream captures.
cudaError_t legacy_use(Runtime& runtime, const CUstream_st* stream);
void invalidate(Capture& capture);

// ---- memory

enum class Place { kPageable, kPinned, kDevice };
Place place_of(Runtime& runtime, const void* address);
// Whether [address, address + bytes) is inside what it begins in.
bool range_is_valid(Runtime& runtime, const void* address, size_t bytes);
void* driver_function(const char* symbol);
// Ends the program where memory of a pool was written after it was given back.
void check_freed(const Runtime& runtime);
// At most so many bytes and blocks of it are kept, after the same check.
void forget_freed(Runtime& runtime, size_t bytes_to_keep, size_t blocks_to_keep);

}  // namespace cudasim

struct CUstream_st {
  uint64_t number;  // in order of creation
  int device;
  bool blocking;
  std::deque<cudasim::Operation> queue;
  cudasim::MarkerPointer tail;
  cudasim::CapturePointer capture;
};
struct CUevent_st {
  int device;
  cudasim::MarkerPointer marker;
  cudasim::CapturePointer capture;  // recorded in this capture
  CUstream_st* captured_from;
  uint64_t captured_at;
};
struct CUmemPoolHandle_st {
  int device;
  size_t used_bytes, reserved_bytes;
  uint64_t threshold;
};
struct CUgraph_st {
  std::vector<cudasim::Work> nodes;
  std::vector<cudaEvent_t> recorded;
  std::shared_ptr<cudasim::GraphMemory> memory;
};
struct CUgraphExec_st {
  std::vector<cudasim::Work> nodes;
  std::vector<cudaEvent_t> recorded;
  std::shared_ptr<cudasim::GraphMemory> memory;
};
