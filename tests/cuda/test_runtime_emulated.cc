#include "cudasim/cudasim.h"
#include "tests/cuda/test_runtime.h"

namespace kvc::test {

void reset_runtime() { cudasim::reset(); }
void finish_runtime() { cudasim::finish_all(); }
void finish_stream(void*) { cudasim::finish_all(); }
void run_streams_late(uint64_t seed) {
  cudasim::seed(seed);
  cudasim::set_stream_order(cudasim::StreamOrder::kLazy);
}

void* take_pinned(size_t bytes) {
  void* memory = cudasim::take_tensor(bytes);
  if (memory == nullptr) throw std::bad_alloc();
  return memory;
}
void give_pinned(void* address) noexcept { cudasim::give_tensor(address); }

}  // namespace kvc::test
