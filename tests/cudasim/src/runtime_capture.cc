// Stream capture and graphs: a graph is the list of what was captured, in order, with the
// parameters of then.
#include <algorithm>
#include <set>

#include "runtime.h"

namespace cudasim {
namespace {

thread_local cudaStreamCaptureMode mode_of_thread = cudaStreamCaptureModeGlobal;

// Where the origin has not waited for the last node of another stream.
bool has_unjoined(const Capture& capture) {
  return std::any_of(capture.last.begin(), capture.last.end(), [&](const auto& entry) {
    if (entry.first == capture.origin) return false;
    const auto joined = capture.joined.find(entry.first);
    return joined == capture.joined.end() || joined->second < entry.second + 1;
  });
}

void leave(Runtime& state, const CapturePointer& capture) {
  for (CUstream_st* stream : state.streams)
    if (stream->capture == capture) stream->capture = nullptr;
  std::erase(state.captures, capture);
}

}  // namespace

void invalidate(Capture& capture) { capture.invalidated = true; }

cudaError_t unsafe_call(Runtime& state) {
  if (mode_of_thread == cudaStreamCaptureModeRelaxed) return cudaSuccess;
  bool forbidden = false;
  for (const CapturePointer& capture : state.captures) {
    if (capture->mode == cudaStreamCaptureModeRelaxed) continue;
    const bool own = capture->thread == std::this_thread::get_id();
    const bool everywhere = mode_of_thread == cudaStreamCaptureModeGlobal &&
                            capture->mode == cudaStreamCaptureModeGlobal;
    if (!own && !everywhere) continue;
    invalidate(*capture);
    forbidden = true;
  }
  return forbidden ? cudaErrorStreamCaptureUnsupported : cudaSuccess;
}

cudaError_t legacy_use(Runtime& state, const CUstream_st* stream) {
  if (stream != state.devices[stream->device].legacy) return cudaSuccess;
  for (CUstream_st* other : state.streams) {
    if (other->capture == nullptr || other->device != stream->device || !other->blocking) continue;
    invalidate(*other->capture);
    return cudaErrorStreamCaptureImplicit;
  }
  return cudaSuccess;
}

}  // namespace cudasim

using namespace cudasim;

extern "C" {

cudaError_t cudaStreamBeginCapture(cudaStream_t stream, cudaStreamCaptureMode mode) {
  return call("cudaStreamBeginCapture", [&](Runtime& state) {
    if (stream == nullptr || stream == cudaStreamLegacy) return cudaErrorStreamCaptureUnsupported;
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (on->capture != nullptr) return cudaErrorInvalidValue;
    auto capture = std::make_shared<Capture>();
    capture->id = state.next_capture++;
    capture->mode = mode;
    capture->thread = std::this_thread::get_id();
    capture->origin = on;
    on->capture = capture;
    state.captures.push_back(std::move(capture));
    return cudaSuccess;
  });
}

cudaError_t cudaStreamEndCapture(cudaStream_t stream, cudaGraph_t* graph) {
  *graph = nullptr;
  return call("cudaStreamEndCapture", [&](Runtime& state) {
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (on->capture == nullptr) return cudaErrorInvalidValue;
    const CapturePointer capture = on->capture;
    if (capture->origin != on) return cudaErrorStreamCaptureUnmatched;
    if (capture->mode != cudaStreamCaptureModeRelaxed &&
        capture->thread != std::this_thread::get_id())
      return cudaErrorStreamCaptureWrongThread;
    const bool unjoined = has_unjoined(*capture);
    leave(state, capture);
    if (capture->invalidated) return cudaErrorStreamCaptureInvalidated;
    if (unjoined) return cudaErrorStreamCaptureUnjoined;
    *graph =
        new CUgraph_st{std::move(capture->nodes), std::move(capture->recorded), capture->memory};
    state.graphs.insert(*graph);
    return cudaSuccess;
  });
}

cudaError_t cudaStreamIsCapturing(cudaStream_t stream, cudaStreamCaptureStatus* status) {
  return cudaStreamGetCaptureInfo(stream, status, nullptr);
}

cudaError_t cudaStreamGetCaptureInfo(cudaStream_t stream, cudaStreamCaptureStatus* status,
                                     unsigned long long* id, cudaGraph_t* graph,
                                     const cudaGraphNode_t** dependencies,
                                     const cudaGraphEdgeData** edges, size_t* num_dependencies) {
  return call("cudaStreamIsCapturing", [&](Runtime& state) {
    const CUstream_st* on = find_stream(state, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (graph != nullptr || dependencies != nullptr || edges != nullptr ||
        num_dependencies != nullptr)
      return cudaErrorNotSupported;
    if (on->capture == nullptr && on == state.devices[on->device].legacy)
      for (const CUstream_st* other : state.streams)
        if (other->capture != nullptr && other->device == on->device && other->blocking)
          return cudaErrorStreamCaptureImplicit;
    if (on->capture == nullptr) {
      *status = cudaStreamCaptureStatusNone;
      return cudaSuccess;
    }
    *status = on->capture->invalidated ? cudaStreamCaptureStatusInvalidated
                                       : cudaStreamCaptureStatusActive;
    if (id != nullptr) *id = on->capture->id;
    return cudaSuccess;
  });
}

cudaError_t cudaThreadExchangeStreamCaptureMode(cudaStreamCaptureMode* mode) {
  return call("cudaThreadExchangeStreamCaptureMode", [&](Runtime&) {
    std::swap(*mode, mode_of_thread);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphGetNodes(cudaGraph_t graph, cudaGraphNode_t* nodes, size_t* num_nodes) {
  return call("cudaGraphGetNodes", [&](Runtime& state) {
    if (!state.graphs.contains(graph) || nodes != nullptr) return cudaErrorInvalidValue;
    *num_nodes = graph->nodes.size();
    return cudaSuccess;
  });
}

cudaError_t cudaGraphInstantiate(cudaGraphExec_t* executable, cudaGraph_t graph,
                                 unsigned long long) {
  return call("cudaGraphInstantiate", [&](Runtime& state) {
    if (!state.graphs.contains(graph)) return cudaErrorInvalidValue;
    *executable = new CUgraphExec_st{graph->nodes, graph->recorded, graph->memory};
    state.executables.insert(*executable);
    return cudaSuccess;
  });
}

cudaError_t cudaGraphUpload(cudaGraphExec_t executable, cudaStream_t) {
  return call("cudaGraphUpload", [&](Runtime& state) {
    return state.executables.contains(executable) ? cudaSuccess : cudaErrorInvalidValue;
  });
}

cudaError_t cudaGraphLaunch(cudaGraphExec_t executable, cudaStream_t stream) {
  return call("cudaGraphLaunch", [&](Runtime& state) {
    CUstream_st* on = find_stream(state, stream);
    if (on == nullptr) return cudaErrorInvalidResourceHandle;
    if (!state.executables.contains(executable)) return cudaErrorInvalidValue;
    for (const cudaEvent_t event : executable->recorded)
      if (!state.events.contains(event)) return cudaErrorInvalidResourceHandle;
    const auto nodes = std::make_shared<const std::vector<Work>>(executable->nodes);
    const cudaError_t error = enqueue(state, on, [&state, nodes] {
      ++state.counters.graph_launches;
      for (const Work& node : *nodes) node();
    });
    if (error != cudaSuccess) return error;
    for (const cudaEvent_t event : executable->recorded) {
      if (on->capture != nullptr) {
        on->capture->recorded.push_back(event);
        continue;
      }
      event->capture = nullptr;
      event->marker = on->tail;
    }
    return cudaSuccess;
  });
}

cudaError_t cudaGraphExecDestroy(cudaGraphExec_t executable) {
  return call("cudaGraphExecDestroy", [&](Runtime& state) {
    if (state.executables.erase(executable) == 0) return cudaErrorInvalidValue;
    delete executable;
    return cudaSuccess;
  });
}

cudaError_t cudaGraphDestroy(cudaGraph_t graph) {
  return call("cudaGraphDestroy", [&](Runtime& state) {
    if (state.graphs.erase(graph) == 0) return cudaErrorInvalidValue;
    delete graph;
    return cudaSuccess;
  });
}

}  // extern "C"
