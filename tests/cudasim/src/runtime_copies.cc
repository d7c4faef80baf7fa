// Copies and fills. Pageable memory is read before the call returns, and written before it returns,
// as CUDA documents ("API synchronization behavior"): only pinned and device memory is touched
// later.
#include <algorithm>
#include <cstring>
#include <numeric>

#include "runtime.h"

namespace cudasim {
namespace {

struct Piece {
  void* to;
  const void* from;
  size_t bytes;
  std::shared_ptr<std::vector<std::byte>> staged;  // what pageable memory held at the call
};

struct Ends {
  bool from_device, to_device;  // else the host
  bool from_pageable, to_pageable;
};

// Memory that the runtime does not know is a vector of a test: the host's, unless `kind` says
// otherwise.
cudaError_t find_ends(Runtime& state, const void* to, const void* from, size_t bytes,
                      cudaMemcpyKind kind, Ends& ends) {
  if (!range_is_valid(state, to, bytes) || !range_is_valid(state, from, bytes))
    return cudaErrorInvalidValue;
  const Place source = place_of(state, from), target = place_of(state, to);
  const bool says_from_device = kind == cudaMemcpyDeviceToHost || kind == cudaMemcpyDeviceToDevice;
  const bool says_to_device = kind == cudaMemcpyHostToDevice || kind == cudaMemcpyDeviceToDevice;
  ends.from_device = source == Place::kDevice || (source == Place::kPageable && says_from_device);
  ends.to_device = target == Place::kDevice || (target == Place::kPageable && says_to_device);
  ends.from_pageable = source == Place::kPageable && !ends.from_device;
  ends.to_pageable = target == Place::kPageable && !ends.to_device;
  if (kind == cudaMemcpyDefault) return cudaSuccess;
  if (kind < cudaMemcpyHostToHost || kind > cudaMemcpyDefault)
    return cudaErrorInvalidMemcpyDirection;
  if ((ends.from_device && !says_from_device) || (ends.to_device && !says_to_device))
    return cudaErrorInvalidValue;
  return cudaSuccess;
}

void count(Runtime& state, const Ends& ends, size_t bytes) {
  Counters& counters = state.counters;
  (ends.from_device
       ? (ends.to_device ? counters.device_to_device_bytes : counters.device_to_host_bytes)
       : (ends.to_device ? counters.host_to_device_bytes : counters.host_to_host_bytes)) += bytes;
}

void stage(Piece& piece) {
  const auto* bytes = static_cast<const std::byte*>(piece.from);
  piece.staged = std::make_shared<std::vector<std::byte>>(bytes, bytes + piece.bytes);
}

void perform(const Piece& piece) {
  if (piece.bytes != 0)
    std::memmove(piece.to, piece.staged != nullptr ? piece.staged->data() : piece.from,
                 piece.bytes);
}

cudaError_t copy(Runtime& state, CUstream_st* on, void* to, const void* from, size_t bytes,
                 cudaMemcpyKind kind) {
  if (on == nullptr) return cudaErrorInvalidResourceHandle;
  Ends ends{};
  if (const cudaError_t error = find_ends(state, to, from, bytes, kind, ends); error != cudaSuccess)
    return error;
  if (bytes == 0) return cudaSuccess;
  const bool captures = on->capture != nullptr;
  Piece piece{to, from, bytes, nullptr};
  if (ends.from_pageable && !captures) stage(piece);
  const cudaError_t error = enqueue(state, on, [&state, piece, ends] {
    ++state.counters.copy_calls;
    count(state, ends, piece.bytes);
    perform(piece);
  });
  if (error == cudaSuccess && !captures &&
      (ends.to_pageable || (ends.from_pageable && !ends.to_device))) {
    ++state.counters.synchronizations;
    run_until(state, on->tail);
  }
  return error;
}

cudaError_t fill(Runtime& state, CUstream_st* on, void* to, int value, size_t bytes) {
  if (on == nullptr) return cudaErrorInvalidResourceHandle;
  if (!range_is_valid(state, to, bytes)) return cudaErrorInvalidValue;
  if (bytes == 0) return cudaSuccess;
  return enqueue(state, on, [&state, to, value, bytes] {
    ++state.counters.memset_calls;
    std::memset(to, value, bytes);
  });
}

// The calls without "Async": on the legacy stream, the caller waits.
template <typename Body>
cudaError_t blocking_call(const char* name, Body body) {
  return call(name, [&](Runtime& state) {
    CUstream_st* legacy = use_context(state).legacy;
    if (const cudaError_t error = unsafe_call(state); error != cudaSuccess) return error;
    const cudaError_t error = body(state, legacy);
    if (error != cudaSuccess) return error;
    ++state.counters.synchronizations;
    run_until(state, legacy->tail);
    return state.devices[current_device()].sticky;
  });
}

}  // namespace
}  // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaMemcpy(void* to, const void* from, size_t bytes, cudaMemcpyKind kind) {
  return blocking_call("cudaMemcpy", [&](Runtime& state, CUstream_st* legacy) {
    return copy(state, legacy, to, from, bytes, kind);
  });
}
cudaError_t cudaMemset(void* to, int value, size_t bytes) {
  return blocking_call("cudaMemset", [&](Runtime& state, CUstream_st* legacy) {
    return fill(state, legacy, to, value, bytes);
  });
}
cudaError_t cudaMemcpyAsync(void* to, const void* from, size_t bytes, cudaMemcpyKind kind,
                            cudaStream_t stream) {
  return call("cudaMemcpyAsync", [&](Runtime& state) {
    return copy(state, find_stream(state, stream), to, from, bytes, kind);
  });
}
cudaError_t cudaMemsetAsync(void* to, int value, size_t bytes, cudaStream_t stream) {
  return call("cudaMemsetAsync", [&](Runtime& state) {
    return fill(state, find_stream(state, stream), to, value, bytes);
  });
}

// In any order: CUDA promises none inside a batch.
cudaError_t cudaMemcpyBatchAsync(void* const* to, const void* const* from, const size_t* bytes,
                                 size_t num_stripes, cudaMemcpyAttributes* attributes,
                                 size_t* attribute_indices, size_t num_attributes,
                                 cudaStream_t stream) {
  return call("cudaMemcpyBatchAsync", [&](Runtime& state) {
    if (!state.has_batch_copies) return cudaErrorNotSupported;
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (on == state.devices[on->device].legacy || num_stripes == 0 || num_attributes == 0 ||
        num_attributes > num_stripes || attribute_indices[0] != 0)
      return cudaErrorInvalidValue;
    if (on->capture != nullptr) {
      invalidate(*on->capture);
      return cudaErrorStreamCaptureUnsupported;
    }
    for (size_t a = 1; a < num_attributes; ++a)
      if (attribute_indices[a] <= attribute_indices[a - 1] || attribute_indices[a] >= num_stripes)
        return cudaErrorInvalidValue;
    std::vector<Piece> pieces;
    std::vector<Ends> all_ends;
    bool blocks = false;
    size_t attribute = 0;
    for (size_t i = 0; i < num_stripes; ++i) {
      if (attribute + 1 < num_attributes && i == attribute_indices[attribute + 1]) ++attribute;
      const cudaMemcpySrcAccessOrder order = attributes[attribute].srcAccessOrder;
      if (order <= cudaMemcpySrcAccessOrderInvalid || order > cudaMemcpySrcAccessOrderAny)
        return cudaErrorInvalidValue;
      if (bytes[i] == 0 || to[i] == nullptr || from[i] == nullptr) return cudaErrorInvalidValue;
      Ends ends{};
      if (const cudaError_t error =
              find_ends(state, to[i], from[i], bytes[i], cudaMemcpyDefault, ends);
          error != cudaSuccess)
        return error;
      Piece piece{to[i], from[i], bytes[i], nullptr};
      const bool early = order == cudaMemcpySrcAccessOrderAny && (state.random.next() & 1u) != 0;
      if (order == cudaMemcpySrcAccessOrderDuringApiCall || early) stage(piece);
      blocks |= ends.to_pageable || (ends.from_pageable && order == cudaMemcpySrcAccessOrderStream);
      pieces.push_back(std::move(piece));
      all_ends.push_back(ends);
    }
    std::vector<size_t> order(num_stripes);
    std::iota(order.begin(), order.end(), size_t{0});
    for (size_t i = num_stripes; i > 1; --i)
      std::swap(order[i - 1], order[state.random.next() % i]);
    const cudaError_t error = enqueue(state, on, [&state, pieces, all_ends, order] {
      ++state.counters.copy_calls;
      state.counters.copied_pieces += pieces.size();
      for (const size_t i : order) {
        count(state, all_ends[i], pieces[i].bytes);
        perform(pieces[i]);
      }
    });
    if (error == cudaSuccess && blocks) {
      ++state.counters.synchronizations;
      run_until(state, on->tail);
    }
    return error;
  });
}

}  // extern "C"
