#include "fibers.h"

#include <pthread.h>
#include <sys/mman.h>

#include <boost/context/detail/fcontext.hpp>
#include <cstdio>
#include <cstdlib>

#include "sanitizers.h"

namespace cudasim {

constinit thread_local Lane* here = nullptr;

namespace {

namespace context = boost::context::detail;

// Kernels keep register arrays in frames, which sanitizers pad; pages are touched only where used.
#if defined(CUDASIM_ASAN)
constexpr size_t kStackBytes = size_t{1} << 20;
#else
constexpr size_t kStackBytes = size_t{256} << 10;
#endif
constexpr size_t kGuardBytes = 4096;

thread_local void (*first_call)() = nullptr;

void arrived(Lane& self, const context::transfer_t& from) {
#if defined(CUDASIM_ASAN)
  __sanitizer_finish_switch_fiber(self.fake_stack, nullptr, nullptr);
#endif
  static_cast<Lane*>(from.data)->context = from.fctx;
  (void)self;
}

void fiber_main(context::transfer_t from) {
  arrived(*here, from);
  first_call();
}

}  // namespace

void adopt_thread_stack(Lane& main) {
  pthread_attr_t attributes;
  void* bottom = nullptr;
  size_t bytes = 0;
  if (pthread_getattr_np(pthread_self(), &attributes) == 0) {
    pthread_attr_getstack(&attributes, &bottom, &bytes);
    pthread_attr_destroy(&attributes);
  }
  main.stack_bottom = bottom;
  main.stack_bytes = bytes;
}

void make_fiber(Lane& lane, void (*entry)()) {
  first_call = entry;
  void* memory = mmap(nullptr, kStackBytes, PROT_READ | PROT_WRITE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_STACK, -1, 0);
  if (memory == MAP_FAILED || mprotect(memory, kGuardBytes, PROT_NONE) != 0) {
    std::perror("cudasim: stack of a lane");
    std::abort();
  }
  lane.stack_bottom = memory;
  lane.stack_bytes = kStackBytes;
  lane.fake_stack = nullptr;
  lane.context = context::make_fcontext(static_cast<std::byte*>(memory) + kStackBytes,
                                        kStackBytes - kGuardBytes, fiber_main);
}

void free_fiber(Lane& lane) {
  void* stack = const_cast<void*>(lane.stack_bottom);
#if defined(CUDASIM_ASAN)
  // Whoever is given these addresses next starts without the red zones of frames that never
  // returned.
  __asan_unpoison_memory_region(stack, lane.stack_bytes);
#endif
  munmap(stack, lane.stack_bytes);
}

void switch_to(Lane& to) {
  Lane& from = *here;
  here = &to;
#if defined(CUDASIM_ASAN)
  __sanitizer_start_switch_fiber(&from.fake_stack, to.stack_bottom, to.stack_bytes);
#endif
  const context::transfer_t back = context::jump_fcontext(to.context, &from);
  arrived(from, back);
}

}  // namespace cudasim
