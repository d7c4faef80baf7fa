#include <algorithm>

#include "kernels/cuda/runtime/device_scope.h"
#include "kernels/cuda/runtime/functions.h"

namespace kvc::cuda::runtime {
namespace {

constexpr const char* kCopy = "cudaMemcpyAsync";
constexpr const char* kCopyBatch = "cudaMemcpyBatchAsync";

// Whether cudaMemcpyBatchAsync accepts the copies: no legacy default stream, no empty copy, no
// capture.
bool is_batch(const size_t* bytes, int64_t count, cudaStream_t stream) {
  if (count < 2 || stream == nullptr || stream == cudaStreamLegacy) return false;
  cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
  if (cudaStreamIsCapturing(stream, &status) != cudaSuccess) {
    (void)cudaGetLastError();
    return false;
  }
  return status == cudaStreamCaptureStatusNone && std::count(bytes, bytes + count, size_t{0}) == 0;
}

cudaError_t copy_batch(void* const* to, const void* const* from, const size_t* bytes, int64_t count,
                       cudaStream_t stream) {
  cudaMemcpyAttributes attributes{};
  attributes.srcAccessOrder = cudaMemcpySrcAccessOrderStream;
  size_t first_of_attributes = 0;
  return cudaMemcpyBatchAsync(to, from, bytes, static_cast<size_t>(count), &attributes,
                              &first_of_attributes, 1, stream);
}

}  // namespace

Result copy(int32_t device, void* to, const void* from, int64_t bytes, Stream stream,
            Failure* failure) {
  if (bytes <= 0) return Result::kOk;
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return report(scope.error(), "cudaSetDevice", failure);
  return report(cudaMemcpyAsync(to, from, static_cast<size_t>(bytes), cudaMemcpyDefault,
                                static_cast<cudaStream_t>(stream)),
                kCopy, failure);
}

Result copy_many(int32_t device, void* const* to, const void* const* from, const size_t* bytes,
                 int64_t count, Stream stream, Failure* failure) {
  if (count <= 0) return Result::kOk;
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return report(scope.error(), "cudaSetDevice", failure);
  auto* const native = static_cast<cudaStream_t>(stream);
  if (is_batch(bytes, count, native)) {
    const cudaError_t error = copy_batch(to, from, bytes, count, native);
    if (result_of(error) != Result::kUnsupported) return report(error, kCopyBatch, failure);
    (void)cudaGetLastError();  // The driver does not know batches.
  }
  for (int64_t i = 0; i < count; ++i) {
    if (bytes[i] == 0) continue;
    const cudaError_t error = cudaMemcpyAsync(to[i], from[i], bytes[i], cudaMemcpyDefault, native);
    if (error != cudaSuccess) return report(error, kCopy, failure);
  }
  return Result::kOk;
}

Result fill(int32_t device, void* to, int32_t byte, int64_t bytes, Stream stream,
            Failure* failure) {
  if (bytes <= 0) return Result::kOk;
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return report(scope.error(), "cudaSetDevice", failure);
  return report(
      cudaMemsetAsync(to, byte, static_cast<size_t>(bytes), static_cast<cudaStream_t>(stream)),
      "cudaMemsetAsync", failure);
}

}  // namespace kvc::cuda::runtime
