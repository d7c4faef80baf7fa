#include "kernels/cuda/runtime/device_scope.h"
#include "kernels/cuda/runtime/functions.h"

namespace kvc::cuda::runtime {
namespace {

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream); }
cudaEvent_t native_event(Event event) { return static_cast<cudaEvent_t>(event); }

// Runs `call` with `device` current.
template <typename Call>
Result on_device(int32_t device, const char* what, Failure* failure, Call call) {
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return report(scope.error(), "cudaSetDevice", failure);
  return report(call(), what, failure);
}

}  // namespace

Result create_stream(int32_t device, Stream* out, Failure* failure) {
  return on_device(device, "cudaStreamCreateWithFlags", failure, [out] {
    const RelaxedCapture relaxed;
    cudaStream_t stream = nullptr;
    const cudaError_t error = cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking);
    if (error == cudaSuccess) *out = stream;
    return error;
  });
}

void destroy_stream(int32_t device, Stream stream) {
  Failure ignored;
  (void)on_device(device, "cudaStreamDestroy", &ignored,
                  [stream] { return cudaStreamDestroy(native(stream)); });
}

Result synchronize(int32_t device, Stream stream, Failure* failure) {
  return on_device(device, "cudaStreamSynchronize", failure, [stream] {
    const RelaxedCapture relaxed;
    return cudaStreamSynchronize(native(stream));
  });
}

Result is_capturing(int32_t device, Stream stream, int32_t* out, Failure* failure) {
  return on_device(device, "cudaStreamIsCapturing", failure, [stream, out] {
    cudaStreamCaptureStatus status = cudaStreamCaptureStatusNone;
    const cudaError_t error = cudaStreamIsCapturing(native(stream), &status);
    // A failed capture continues until its owner ends it.
    if (error == cudaSuccess) *out = status != cudaStreamCaptureStatusNone ? 1 : 0;
    return error;
  });
}

Result create_event(int32_t device, Event* out, Failure* failure) {
  return on_device(device, "cudaEventCreateWithFlags", failure, [out] {
    const RelaxedCapture relaxed;
    cudaEvent_t event = nullptr;
    const cudaError_t error = cudaEventCreateWithFlags(&event, cudaEventDisableTiming);
    if (error == cudaSuccess) *out = event;
    return error;
  });
}

void destroy_event(int32_t device, Event event) {
  Failure ignored;
  (void)on_device(device, "cudaEventDestroy", &ignored,
                  [event] { return cudaEventDestroy(native_event(event)); });
}

Result record_event(int32_t device, Event event, Stream stream, Failure* failure) {
  return on_device(device, "cudaEventRecord", failure, [event, stream] {
    return cudaEventRecord(native_event(event), native(stream));
  });
}

Result record_launches(int32_t device, Event event, Stream stream, Failure* failure) {
  return on_device(device, "cudaEventRecordWithFlags", failure, [event, stream] {
    return cudaEventRecordWithFlags(native_event(event), native(stream), cudaEventRecordExternal);
  });
}

Result wait_event(int32_t device, Event event, Stream stream, Failure* failure) {
  return on_device(device, "cudaStreamWaitEvent", failure, [event, stream] {
    return cudaStreamWaitEvent(native(stream), native_event(event), 0);
  });
}

Result query_event(int32_t device, Event event, int32_t* done, Failure* failure) {
  return on_device(device, "cudaEventQuery", failure, [event, done] {
    const RelaxedCapture relaxed;
    const cudaError_t error = cudaEventQuery(native_event(event));
    if (error != cudaSuccess && error != cudaErrorNotReady) return error;
    if (error == cudaErrorNotReady) (void)cudaGetLastError();
    *done = error == cudaSuccess ? 1 : 0;
    return cudaSuccess;
  });
}

}  // namespace kvc::cuda::runtime
