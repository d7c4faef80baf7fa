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

void* allocate(std::size_t bytes, std::size_t alignment) {
  if (should_fail()) throw std::bad_alloc();
  const std::size_t rounded = (bytes + alignment - 1) / alignment * alignment;
  void* memory = alignment <= alignof(std::max_align_t) ? std::malloc(bytes == 0 ? 1 : bytes)
                                                        : std::aligned_alloc(alignment, rounded == 0 ? alignment : rounded);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

}  // namespace

void arm_allocation_failure(int64_t n) {
  happened = false;
  counted = 0;
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

}  // namespace kvc::test

// The replacements of [new.delete]; array and sized forms forward to these by default.
void* operator new(std::size_t bytes) { return kvc::test::allocate(bytes, 1); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return kvc::test::allocate(bytes, static_cast<std::size_t>(alignment));
}
void operator delete(void* memory) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { std::free(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { std::free(memory); }
