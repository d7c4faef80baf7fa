#include "kernels/cuda/runtime/errors.h"

#include <cstdarg>
#include <cstdio>

#include "kernels/cuda/runtime/driver.h"

namespace kvc::cuda {

Result result_of(cudaError_t error) {
  switch (error) {
    case cudaSuccess: return Result::kOk;
    case cudaErrorInsufficientDriver:
    case cudaErrorStubLibrary:
    case cudaErrorInitializationError:
    case cudaErrorSystemDriverMismatch:
    case cudaErrorCompatNotSupportedOnDevice: return Result::kNoDriver;
    case cudaErrorNoDevice:
    case cudaErrorInvalidDevice:
    case cudaErrorDevicesUnavailable:
    case cudaErrorInvalidDeviceFunction:
    case cudaErrorInvalidKernelImage:
    case cudaErrorUnsupportedPtxVersion:
    case cudaErrorNoKernelImageForDevice: return Result::kNoDevice;
    case cudaErrorMemoryAllocation: return Result::kNoMemory;
    case cudaErrorNotSupported:
    case cudaErrorCallRequiresNewerDriver: return Result::kUnsupported;
    case cudaErrorStreamCaptureUnsupported:
    case cudaErrorStreamCaptureInvalidated:
    case cudaErrorStreamCaptureMerge:
    case cudaErrorStreamCaptureUnmatched:
    case cudaErrorStreamCaptureUnjoined:
    case cudaErrorStreamCaptureIsolation:
    case cudaErrorStreamCaptureImplicit:
    case cudaErrorStreamCaptureWrongThread:
    case cudaErrorCapturedEvent: return Result::kCapture;
    default: return Result::kDevice;
  }
}

Result report(cudaError_t error, const char* what, Failure* failure) {
  if (error == cudaSuccess) return Result::kOk;
  (void)cudaGetLastError();
  failure->error = static_cast<int32_t>(error);
  std::snprintf(failure->text, sizeof(failure->text), "%s: %s (%s)", what, cudaGetErrorName(error),
                cudaGetErrorString(error));
  return result_of(error);
}

Result report(CUresult error, const char* what, Failure* failure) {
  if (error == CUDA_SUCCESS) return Result::kOk;
  const char* name = nullptr;
  const char* description = nullptr;
  const Driver* driver = nullptr;
  if (find_driver(&driver) == cudaSuccess) {
    (void)driver->error_name(error, &name);
    (void)driver->error_string(error, &description);
  }
  failure->error = static_cast<int32_t>(error);
  std::snprintf(failure->text, sizeof(failure->text), "%s: %s (%s)", what,
                name != nullptr ? name : "CUresult",
                description != nullptr ? description : "no description");
  // cudaError_t uses the driver's numbers except for the first few: 1 and 2 are equal; 3 and 4 mean
  // that the driver is not there, or no longer.
  const auto number = static_cast<int32_t>(error);
  return number == 3 || number == 4 ? Result::kNoDriver
                                    : result_of(static_cast<cudaError_t>(number));
}

Result refuse(Result result, cudaError_t error, Failure* failure, const char* format, ...) {
  failure->error = static_cast<int32_t>(error);
  va_list args;
  va_start(args, format);
  std::vsnprintf(failure->text, sizeof(failure->text), format, args);
  va_end(args);
  return result;
}

}  // namespace kvc::cuda
