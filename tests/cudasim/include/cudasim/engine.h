// A CTA on the host: every CUDA thread is a fiber ("lane"), all lanes of a CTA run on one OS
// thread, one at a time. A lane runs until it must wait for others; which lane goes on is random
// (cudasim::seed), so that races show.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

namespace cudasim {

struct Index3 {
  uint32_t x, y, z;
};

// One 16-byte cp.async on its way; `group` counts the lane's commits.
struct AsyncCopy {
  std::byte* shared;
  const std::byte* global;
  int32_t bytes;
  uint32_t group;
};

struct Cta;

struct Lane {
  Index3 thread;
  uint32_t lane;
  uint32_t warp;
  Cta* cta;
  const char* waits_for;  // a function's name while the lane waits, for reports
  const void* waits_at;   // its mbarrier, if any
  bool may_access;        // global memory: it has waited for the kernel before, or need not
  std::vector<AsyncCopy> copies;
  size_t first_copy;
  uint32_t open_group;
  // The fiber.
  void* context;
  void* fake_stack;
  const void* stack_bottom;
  size_t stack_bytes;
};

// What all 32 lanes (or the 128 of a warpgroup) of a function do when the last has arrived;
// arguments in the order of the lanes.
struct Meeting {
  const char* name;
  void (*happens)(Cta& cta, void* const* arguments);
};

constexpr uint32_t kAllLanes = 0xffffffffu;
constexpr uint32_t kMaxWarps = 32;

struct Warp {
  uint32_t runnable;
  uint32_t alive;
  uint32_t arrived;  // lanes in `meeting`
  const Meeting* meeting;
  void* arguments[32];
  uint32_t rotation;  // where the search for a runnable lane begins, and which way it goes
  bool descending;
  bool wide_arrived;  // in a meeting of its warpgroup
};

// 128 threads that execute wgmma together.
struct Warpgroup {
  const Meeting* meeting;
  uint32_t arrived;
  void* arguments[128];
};

struct Barrier {
  uint32_t threads;  // expected; 0: unused
  uint32_t arrived;
  uint32_t arrived_lanes[kMaxWarps];
  uint32_t waiting_lanes[kMaxWarps];
};

// xorshift64*: quick, and the same on every machine.
struct Random {
  uint64_t state;
  uint32_t next() {
    state ^= state >> 12;
    state ^= state << 25;
    state ^= state >> 27;
    return static_cast<uint32_t>((state * 0x2545f4914f6cdd1dull) >> 32);
  }
};

struct HopperState;

struct Cta {
  Index3 block, block_dim, grid_dim;
  std::byte* shared;
  size_t shared_bytes;
  uint32_t num_warps;
  uint32_t num_alive;
  uint32_t active_warps;  // with runnable lanes
  uint32_t arrival_rate;  // of TMA boxes: one arrives at so many of 65536 switches
  uint32_t countdown;     // memory accesses until another lane gets its turn
  Random random;
  const struct Launch* launch;
  std::function<void()>* before;  // the kernel before, where it has not run yet
  Lane* const* lanes;             // by threadIdx.x
  HopperState* hopper;
  Warp warps[kMaxWarps];
  Warpgroup groups[kMaxWarps / 4];
  Barrier barriers[16];
};

// The lane that runs; null outside kernels.
extern constinit thread_local Lane* here __attribute__((tls_model("initial-exec")));

// ---- For the functions that kernels call

void meet_warp(const Meeting& meeting, void* argument);
void meet_warpgroup(const Meeting& meeting, void* argument);
void barrier_sync(int barrier, uint32_t threads, const char* name);
void barrier_arrive(int barrier, uint32_t threads);
void wait_for_previous_kernel();
// Another lane goes on; this one later.
void pause();
// The lane sleeps until woken.
void sleep(const char* waits_for, const void* waits_at);
void wake(Lane& lane);
// Copies that a lane has not waited for when it ends.
void finish_copies(Lane& lane);
// Ends the program with the place in the kernel and the message.
[[noreturn]] void fail(const char* format, ...) __attribute__((format(printf, 1, 2)));
// The same, where no lane is running.
[[noreturn]] void fail_in(const Cta& cta, const char* message);

// Now and then another lane's turn, so that memory accesses of warps interleave.
inline void memory_access() {
  if (--here->cta->countdown == 0) pause();
}
inline bool in_shared(const void* address, size_t bytes) {
  const auto* at = static_cast<const std::byte*>(address);
  const Cta& cta = *here->cta;
  return at >= cta.shared && at + bytes <= cta.shared + cta.shared_bytes;
}
// Checks that belong to an instruction's operands.
void require_aligned(const void* address, size_t alignment, const char* function);
void require_shared(const void* address, size_t bytes, size_t alignment, const char* function);
void require_global(const void* address, size_t alignment, const char* function);

}  // namespace cudasim
