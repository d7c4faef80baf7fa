#include <cuda_runtime_api.h>

#include <bit>
#include <map>
#include <stdexcept>
#include <string>
#include <vector>

#include "tests/cuda/test_runtime.h"

namespace kvc::test {
namespace {

void check(cudaError_t error, const char* call) {
  if (error != cudaSuccess)
    throw std::runtime_error(std::string(call) + ": " + cudaGetErrorString(error));
}

// What a capture of another stream forbids is allowed.
class RelaxedCapture {
 public:
  RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  ~RelaxedCapture() { (void)cudaThreadExchangeStreamCaptureMode(&mode_); }
  RelaxedCapture(const RelaxedCapture&) = delete;
  RelaxedCapture& operator=(const RelaxedCapture&) = delete;

 private:
  cudaStreamCaptureMode mode_ = cudaStreamCaptureModeRelaxed;
};

// Unused blocks by size, and the sizes of all. None goes back to the driver: cudaFreeHost waits,
// which a capture does not survive.
struct Blocks {
  std::map<size_t, std::vector<void*>> unused;
  std::map<void*, size_t> sizes;
};
Blocks& blocks() {
  static Blocks& all = *new Blocks;
  return all;
}

}  // namespace

void reset_runtime() {
  finish_runtime();
  (void)cudaGetLastError();
}
void finish_runtime() { check(cudaDeviceSynchronize(), "cudaDeviceSynchronize"); }
void finish_stream(void* stream) {
  const RelaxedCapture relaxed;
  check(cudaStreamSynchronize(static_cast<cudaStream_t>(stream)), "cudaStreamSynchronize");
}
void run_streams_late(uint64_t) {}

void* take_pinned(size_t bytes) {
  const size_t size = std::bit_ceil(bytes < 256 ? size_t{256} : bytes);
  std::vector<void*>& unused = blocks().unused[size];
  if (!unused.empty()) {
    void* block = unused.back();
    unused.pop_back();
    return block;
  }
  void* block = nullptr;
  {
    const RelaxedCapture relaxed;
    check(cudaHostAlloc(&block, size, cudaHostAllocPortable | cudaHostAllocMapped),
          "cudaHostAlloc");
  }
  blocks().sizes[block] = size;
  return block;
}
void give_pinned(void* address) noexcept {
  Blocks& all = blocks();
  all.unused[all.sizes.at(address)].push_back(address);
}

}  // namespace kvc::test
