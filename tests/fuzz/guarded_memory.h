// Memory between pages that cannot be touched. Kernels of the CPU are built without sanitizers, so
// what catches their accesses outside a buffer is the hardware; the address sanitizer sees those of
// the rest.
#pragma once

#include <sys/mman.h>

#include <array>
#include <cstring>

#include "tests/fuzz/sized_struct.h"

#if defined(__SANITIZE_ADDRESS__)
#define KVC_FUZZ_ASAN 1
#elif defined(__has_feature)
#if __has_feature(address_sanitizer)
#define KVC_FUZZ_ASAN 1
#endif
#endif
#ifdef KVC_FUZZ_ASAN
#include <sanitizer/asan_interface.h>
#endif

namespace kvc::fuzz {

// One block of memory in the process's life, handed out anew for every input: flush with its end or
// with its beginning.
class GuardedBlock {
 public:
  static constexpr size_t kBytes = size_t{1} << 18;

  GuardedBlock() {
    void* all = mmap(nullptr, kBytes + 2 * kGuard, PROT_NONE,
                     MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    KVC_FUZZ_CHECK(all != MAP_FAILED);
    memory_ = static_cast<unsigned char*>(all) + kGuard;
    KVC_FUZZ_CHECK(mprotect(memory_, kBytes, PROT_READ | PROT_WRITE) == 0);
  }
  GuardedBlock(const GuardedBlock&) = delete;
  GuardedBlock& operator=(const GuardedBlock&) = delete;

  // `bytes` of memory, every byte `fill`; what is beside them is off limits.
  unsigned char* take(size_t bytes, bool at_end, unsigned char fill) {
    KVC_FUZZ_CHECK(bytes <= kBytes);
    unsigned char* begin = at_end ? memory_ + kBytes - bytes : memory_;
#ifdef KVC_FUZZ_ASAN
    ASAN_POISON_MEMORY_REGION(memory_, kBytes);
    ASAN_UNPOISON_MEMORY_REGION(begin, bytes);
#endif
    std::memset(begin, fill, bytes);
    return begin;
  }

 private:
  static constexpr size_t kGuard = size_t{1} << 24;
  unsigned char* memory_;
};

}  // namespace kvc::fuzz
