#include "tests/model/allocation_failures.h"

#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace kvc::test {
namespace {

std::atomic<bool> armed{false};
std::atomic<int64_t> countdown{0};
std::atomic<int64_t> counted{0};
std::atomic<bool> happened{false};
std::atomic<std::size_t> largest{0};

}  // namespace

void arm_allocation_failure(int64_t n) {
  happened = false;
  counted = 0;
  largest = 0;
  countdown = n;
  armed = true;
}

bool disarm_allocation_failure() {
  armed = false;
  return happened;
}

bool should_fail() {
  if (!armed.load(std::memory_order_relaxed)) return false;
  ++counted;
  if (--countdown != 0) return false;
  happened = true;
  return true;
}

int64_t counted_allocations() { return counted; }

std::size_t largest_allocation() { return largest; }

static void* allocate(std::size_t bytes, std::size_t alignment) {
  if (armed.load(std::memory_order_relaxed) && bytes > largest) largest = bytes;
  if (should_fail()) throw std::bad_alloc();
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = alignment <= alignof(std::max_align_t)
                     ? std::malloc(bytes == 0 ? 1 : bytes)
                     : std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

// A caller of the nothrow forms has another way (std::stable_sort sorts in place): not a failure to
// prove anything about.
static void* allocate_or_null(std::size_t bytes) { return std::malloc(bytes == 0 ? 1 : bytes); }

}  // namespace kvc::test

// All replaceable forms of [new.delete]: a sanitizer's run time brings its own of those that are
// left out.
using kvc::test::allocate;
using kvc::test::allocate_or_null;

void* operator new(std::size_t bytes) { return allocate(bytes, 1); }
void* operator new[](std::size_t bytes) { return allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes);
}

void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete[](void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { std::free(memory); }
