#include "tests/capi/host_memory/counted_allocations.h"

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdlib>
#include <new>

namespace kvc::test {
namespace {

std::atomic<int64_t> allocated{0};

// Lies right before a block: its size, and how far before the block its memory begins.
struct Head {
  std::size_t bytes;
  std::size_t offset;
};

}  // namespace

int64_t allocated_bytes() { return allocated; }

static void* allocate_or_null(std::size_t bytes, std::size_t alignment) {
  const std::size_t offset = std::max(alignment, sizeof(Head));
  const std::size_t rounded = (bytes + offset + offset - 1) / offset * offset;
  auto* memory = static_cast<std::byte*>(std::aligned_alloc(offset, rounded));
  if (memory == nullptr) return nullptr;
  *reinterpret_cast<Head*>(memory + offset - sizeof(Head)) = {bytes, offset};
  allocated += static_cast<int64_t>(bytes);
  return memory + offset;
}

static void* allocate(std::size_t bytes, std::size_t alignment) {
  void* memory = allocate_or_null(bytes, alignment);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}

static void release(void* memory) {
  if (memory == nullptr) return;
  auto* block = static_cast<std::byte*>(memory);
  const Head head = *reinterpret_cast<const Head*>(block - sizeof(Head));
  allocated -= static_cast<int64_t>(head.bytes);
  std::free(block - head.offset);
}

}  // namespace kvc::test

// All replaceable forms of [new.delete]: a sanitizer's run time brings its own of those that are
// left out.
using kvc::test::allocate;
using kvc::test::allocate_or_null;
using kvc::test::release;

constexpr std::size_t kPlain = alignof(std::max_align_t);

void* operator new(std::size_t bytes) { return allocate(bytes, kPlain); }
void* operator new[](std::size_t bytes) { return allocate(bytes, kPlain); }
void* operator new(std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new[](std::size_t bytes, std::align_val_t alignment) {
  return allocate(bytes, static_cast<std::size_t>(alignment));
}
void* operator new(std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes, kPlain);
}
void* operator new[](std::size_t bytes, const std::nothrow_t&) noexcept {
  return allocate_or_null(bytes, kPlain);
}

void operator delete(void* memory) noexcept { release(memory); }
void operator delete[](void* memory) noexcept { release(memory); }
void operator delete(void* memory, std::size_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t) noexcept { release(memory); }
void operator delete(void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete[](void* memory, std::size_t, std::align_val_t) noexcept { release(memory); }
void operator delete(void* memory, const std::nothrow_t&) noexcept { release(memory); }
void operator delete[](void* memory, const std::nothrow_t&) noexcept { release(memory); }
