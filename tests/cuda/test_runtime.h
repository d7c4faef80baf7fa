// What tests of caches ask of the runtime that they run on. It is implemented twice: for the
// emulator in test_runtime_emulated.cc and for a GPU in test_runtime_device.cc. A test that asks
// nothing else becomes part of the program that tests/gpu/run.sh runs on a device.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>

namespace kvc::test {

// As when the program started; what was enqueued is done.
void reset_runtime();
// All that was enqueued on any stream is done.
void finish_runtime();
// All that was enqueued on a stream is done; other streams may be captured meanwhile.
void finish_stream(void* stream);
// From now on the emulator runs work as late as streams and events allow, in an order of `seed`.
// A device decides for itself.
void run_streams_late(uint64_t seed);

// Pinned memory, which both sides reach at the same address, during captures as well.
void* take_pinned(size_t bytes);
void give_pinned(void* address) noexcept;

template <typename T>
struct PinnedAllocator {
  using value_type = T;
  PinnedAllocator() = default;
  template <typename U>
  PinnedAllocator(const PinnedAllocator<U>&) {}
  T* allocate(size_t count) { return static_cast<T*>(take_pinned(count * sizeof(T))); }
  void deallocate(T* values, size_t) noexcept { give_pinned(values); }
  friend bool operator==(const PinnedAllocator&, const PinnedAllocator&) { return true; }
};

}  // namespace kvc::test
