// Streams as queues, events as places in them.
#include <algorithm>

#include "runtime.h"

namespace cudasim {
namespace {

bool is_done(const MarkerPointer& marker) { return marker == nullptr || marker->done; }

bool head_is_ready(const CUstream_st& stream) {
  return !stream.queue.empty() &&
         std::all_of(stream.queue.front().after.begin(), stream.queue.front().after.end(), is_done);
}

// Puts work behind what `stream` was given before; the legacy stream and blocking streams of a
// device order each other.
void push(Runtime& state, CUstream_st& stream, Operation operation, MarkerPointer also_after) {
  operation.marker = std::make_shared<Marker>();
  if (also_after != nullptr) operation.after.push_back(std::move(also_after));
  CUstream_st* legacy = state.devices[stream.device].legacy;
  if (&stream == legacy) {
    for (CUstream_st* other : state.streams)
      if (other != legacy && other->device == stream.device && other->blocking)
        operation.after.push_back(other->tail);
  } else if (stream.blocking && legacy != nullptr) {
    operation.after.push_back(legacy->tail);
  }
  stream.tail = operation.marker;
  stream.queue.push_back(std::move(operation));
  if (state.order == StreamOrder::kEager) run_until(state, stream.tail);
}

cudaError_t capture_error(const CUstream_st& stream) {
  return stream.capture != nullptr && stream.capture->invalidated
             ? cudaErrorStreamCaptureInvalidated
             : cudaSuccess;
}

// Waits that block the caller.
cudaError_t wait_for(Runtime& state, const MarkerPointer& marker) {
  ++state.counters.synchronizations;
  run_until(state, marker);
  return state.devices[current_device()].sticky;
}

// One look at a marker; in lazy mode time passes with it.
cudaError_t look_at(Runtime& state, const MarkerPointer& marker) {
  if (!is_done(marker) && (state.random.next() & 1u) == 0) run_one(state);
  return is_done(marker) ? cudaSuccess : cudaErrorNotReady;
}

cudaError_t make_stream(cudaStream_t* stream, bool blocking, const char* name) {
  return call(name, [&](Runtime& state) {
    use_context(state);
    *stream =
        new CUstream_st{state.next_stream++, current_device(), blocking, {}, nullptr, nullptr};
    state.streams.insert(*stream);
    return cudaSuccess;
  });
}

cudaError_t make_event(cudaEvent_t* event, const char* name) {
  return call(name, [&](Runtime& state) {
    use_context(state);
    *event = new CUevent_st{current_device(), nullptr, nullptr, nullptr, 0};
    state.events.insert(*event);
    return cudaSuccess;
  });
}

cudaError_t enqueue_operation(Runtime& state, CUstream_st* stream, Operation operation) {
  if (stream->capture != nullptr) {
    if (const cudaError_t error = capture_error(*stream); error != cudaSuccess) return error;
    stream->capture->nodes.push_back(std::move(operation.work));
    stream->capture->last[stream] = stream->capture->nodes.size();
    return cudaSuccess;
  }
  if (const cudaError_t error = legacy_use(state, stream); error != cudaSuccess) return error;
  push(state, *stream, std::move(operation), nullptr);
  return cudaSuccess;
}

}  // namespace

CUstream_st* find_stream(Runtime& state, cudaStream_t stream) {
  if (stream == nullptr || stream == cudaStreamLegacy) return use_context(state).legacy;
  return state.streams.contains(stream) ? stream : nullptr;
}

cudaError_t enqueue(Runtime& state, CUstream_st* stream, Work work) {
  return enqueue_operation(state, stream, {.work = std::move(work)});
}
cudaError_t enqueue_kernel(Runtime& state, CUstream_st* stream, bool overlaps, KernelWork kernel) {
  const Work alone = [kernel] { kernel(nullptr); };
  return enqueue_operation(state, stream,
                           {.work = alone, .kernel = std::move(kernel), .overlaps = overlaps});
}

bool run_one(Runtime& state) {
  std::vector<CUstream_st*> ready;
  for (CUstream_st* stream : state.streams)
    if (head_is_ready(*stream)) ready.push_back(stream);
  if (ready.empty()) return false;
  // By age, so that the choice depends on the seed and not on addresses.
  std::sort(ready.begin(), ready.end(),
            [](const auto* x, const auto* y) { return x->number < y->number; });
  CUstream_st& chosen = *ready[state.random.next() % ready.size()];
  Operation operation = std::move(chosen.queue.front());
  chosen.queue.pop_front();
  Work work = std::move(operation.work);
  std::vector<MarkerPointer> markers{std::move(operation.marker)};
  // Kernels that may begin early do now and then, and what was to run before them runs when they
  // wait for it.
  while (operation.kernel && head_is_ready(chosen) && chosen.queue.front().overlaps &&
         (state.random.next() & 1u) == 0) {
    Operation early = std::move(chosen.queue.front());
    chosen.queue.pop_front();
    work = [kernel = std::move(early.kernel), before = std::move(work)] { kernel(before); };
    markers.push_back(std::move(early.marker));
  }
  if (work) work();
  for (const MarkerPointer& marker : markers) marker->done = true;
  return true;
}

void run_until(Runtime& state, const MarkerPointer& marker) {
  const MarkerPointer keep = marker;
  while (!is_done(keep)) {
    if (!run_one(state)) fail("streams wait for each other");
  }
}

void run_all(Runtime& state) {
  while (run_one(state)) {
  }
}

}  // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaStreamCreate(cudaStream_t* stream) {
  return make_stream(stream, true, "cudaStreamCreate");
}
cudaError_t cudaStreamCreateWithFlags(cudaStream_t* stream, unsigned flags) {
  return make_stream(stream, (flags & cudaStreamNonBlocking) == 0, "cudaStreamCreateWithFlags");
}
// Work that was given to the stream is still done.
cudaError_t cudaStreamDestroy(cudaStream_t stream) {
  return call("cudaStreamDestroy", [&](Runtime& state) {
    if (stream == nullptr || stream == cudaStreamLegacy || !state.streams.contains(stream))
      return cudaErrorInvalidResourceHandle;
    run_until(state, stream->tail);
    if (stream->capture != nullptr) invalidate(*stream->capture);
    state.streams.erase(stream);
    delete stream;
    return cudaSuccess;
  });
}
cudaError_t cudaStreamSynchronize(cudaStream_t stream) {
  return call("cudaStreamSynchronize", [&](Runtime& state) {
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = capture_error(*on); error != cudaSuccess) return error;
    if (on->capture != nullptr) {
      invalidate(*on->capture);
      return cudaErrorStreamCaptureUnsupported;
    }
    if (const cudaError_t error = legacy_use(state, on); error != cudaSuccess) return error;
    if (const cudaError_t error = unsafe_call(state); error != cudaSuccess) return error;
    return wait_for(state, on->tail);
  });
}
cudaError_t cudaStreamQuery(cudaStream_t stream) {
  return call("cudaStreamQuery", [&](Runtime& state) {
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (on->capture != nullptr) {
      invalidate(*on->capture);
      return cudaErrorStreamCaptureUnsupported;
    }
    if (const cudaError_t error = legacy_use(state, on); error != cudaSuccess) return error;
    if (const cudaError_t error = unsafe_call(state); error != cudaSuccess) return error;
    return look_at(state, on->tail);
  });
}
cudaError_t cudaStreamGetDevice(cudaStream_t stream, int* device) {
  return call("cudaStreamGetDevice", [&](Runtime& state) {
    const CUstream_st* on = find_stream(state, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    *device = on->device;
    return cudaSuccess;
  });
}
cudaError_t cudaDeviceSynchronize(void) {
  return call("cudaDeviceSynchronize", [&](Runtime& state) {
    use_context(state);
    for (const CapturePointer& capture : state.captures)
      if (capture->origin->device == current_device()) {
        invalidate(*capture);
        return cudaErrorStreamCaptureUnsupported;
      }
    ++state.counters.synchronizations;
    for (CUstream_st* stream : state.streams)
      if (stream->device == current_device()) run_until(state, stream->tail);
    return state.devices[current_device()].sticky;
  });
}
cudaError_t cudaLaunchHostFunc(cudaStream_t stream, cudaHostFn_t function, void* data) {
  return call("cudaLaunchHostFunc", [&](Runtime& state) {
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    return enqueue(state, on, [function, data] { function(data); });
  });
}

cudaError_t cudaEventCreate(cudaEvent_t* event) { return make_event(event, "cudaEventCreate"); }
cudaError_t cudaEventCreateWithFlags(cudaEvent_t* event, unsigned) {
  return make_event(event, "cudaEventCreateWithFlags");
}
cudaError_t cudaEventDestroy(cudaEvent_t event) {
  return call("cudaEventDestroy", [&](Runtime& state) {
    if (state.events.erase(event) == 0) return cudaErrorInvalidResourceHandle;
    delete event;
    return cudaSuccess;
  });
}
cudaError_t cudaEventRecord(cudaEvent_t event, cudaStream_t stream) {
  return call("cudaEventRecord", [&](Runtime& state) {
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr || !state.events.contains(event) || event->device != on->device)
      return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = capture_error(*on); error != cudaSuccess) return error;
    if (on->capture != nullptr) {
      event->capture = on->capture;
      event->captured_from = on;
      event->captured_at = on->capture->last[on];
      event->marker = nullptr;
      return cudaSuccess;
    }
    if (const cudaError_t error = legacy_use(state, on); error != cudaSuccess) return error;
    event->capture = nullptr;
    push(state, *on, {}, nullptr);
    event->marker = on->tail;
    return cudaSuccess;
  });
}
// External: a node of the graph; the event itself stays what it was until a launch.
cudaError_t cudaEventRecordWithFlags(cudaEvent_t event, cudaStream_t stream, unsigned flags) {
  if (flags == cudaEventRecordDefault) return cudaEventRecord(event, stream);
  return call("cudaEventRecordWithFlags", [&](Runtime& state) {
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr || !state.events.contains(event) || event->device != on->device)
      return cudaErrorInvalidResourceHandle;
    if (flags != cudaEventRecordExternal || on->capture == nullptr) return cudaErrorInvalidValue;
    if (const cudaError_t error = capture_error(*on); error != cudaSuccess) return error;
    on->capture->recorded.push_back(event);
    return cudaSuccess;
  });
}
cudaError_t cudaStreamWaitEvent(cudaStream_t stream, cudaEvent_t event, unsigned) {
  return call("cudaStreamWaitEvent", [&](Runtime& state) {
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr || !state.events.contains(event)) return cudaErrorInvalidResourceHandle;
    if (const cudaError_t error = capture_error(*on); error != cudaSuccess) return error;
    if (event->capture != nullptr) {
      Capture& capture = *event->capture;
      if (capture.invalidated) return cudaErrorStreamCaptureInvalidated;
      if (std::none_of(state.captures.begin(), state.captures.end(),
                       [&](const auto& c) { return c.get() == &capture; }))
        return cudaErrorCapturedEvent;
      if (on->capture != nullptr && on->capture != event->capture) {
        invalidate(capture);
        invalidate(*on->capture);
        return cudaErrorStreamCaptureMerge;
      }
      if (on == state.devices[on->device].legacy) return cudaErrorStreamCaptureImplicit;
      if (on->capture == nullptr) {
        on->capture = event->capture;
        capture.last[on] = 0;
      }
      uint64_t& joined = capture.joined[event->captured_from];
      joined = std::max(joined, event->captured_at + 1);
      return cudaSuccess;
    }
    if (on->capture != nullptr) {
      // Work from outside cannot be waited for inside a capture.
      if (event->marker == nullptr) return cudaSuccess;
      invalidate(*on->capture);
      return cudaErrorStreamCaptureIsolation;
    }
    if (const cudaError_t error = legacy_use(state, on); error != cudaSuccess) return error;
    if (event->marker != nullptr) push(state, *on, {}, event->marker);
    return cudaSuccess;
  });
}
cudaError_t cudaEventQuery(cudaEvent_t event) {
  return call("cudaEventQuery", [&](Runtime& state) {
    if (!state.events.contains(event)) return cudaErrorInvalidResourceHandle;
    if (event->capture != nullptr) return cudaErrorCapturedEvent;
    if (const cudaError_t error = unsafe_call(state); error != cudaSuccess) return error;
    return look_at(state, event->marker);
  });
}
cudaError_t cudaEventSynchronize(cudaEvent_t event) {
  return call("cudaEventSynchronize", [&](Runtime& state) {
    if (!state.events.contains(event)) return cudaErrorInvalidResourceHandle;
    if (event->capture != nullptr) return cudaErrorCapturedEvent;
    if (const cudaError_t error = unsafe_call(state); error != cudaSuccess) return error;
    return wait_for(state, event->marker);
  });
}
cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t start, cudaEvent_t end) {
  return call("cudaEventElapsedTime", [&](Runtime& state) {
    if (!state.events.contains(start) || !state.events.contains(end))
      return cudaErrorInvalidResourceHandle;
    *milliseconds = 0.001f;
    return is_done(start->marker) && is_done(end->marker) ? cudaSuccess : cudaErrorNotReady;
  });
}

}  // extern "C"
