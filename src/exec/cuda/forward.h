// The open forward of a cache on a CUDA device: its stream, and whether its kernels are enqueued,
// captured into a graph or lie in one that is replayed. The states are drawn in forward.cc.
#pragma once

#include <cstdint>
#include <vector>

#include "src/device/uploads.h"
#include "src/exec/cuda/cos_sin.h"
#include "src/exec/cuda/device_step.h"
#include "src/exec/cuda/stream_order.h"
#include "src/exec/engine.h"
#include "src/exec/sequence_set.h"
#include "src/plan/spec.h"
#include "src/step/forward.h"

namespace kvc {

// What the graphs of a cache were captured for, and which steps they serve.

// The forward that a graph was captured for.
struct CapturedGraph {
  std::vector<int64_t> lengths;  // New tokens per sequence.
  uint64_t generation;           // DeviceStep::generation of the addresses in it.
  int64_t max_words;             // Words of a step.
  int64_t max_length;            // Tokens of a sequence.
  int64_t max_cross_length;      // Encoder tokens of a sequence.
  int64_t call_window = 0;       // Widest window of its attention calls; 0: none.
  bool needs_positions = false;  // A call reads positions of keys, which must not have moved.
  bool sets_states = false;
  std::vector<uint8_t> appended;  // Per local layer: it gets its rows.
};

class CapturedGraphs {
 public:
  CapturedGraphs(const Spec* spec, const DeviceStep* step) : spec_(spec), step_(step) {}

  // Throws UNSUPPORTED, INVALID_STATE: a prepared batch has what a graph would freeze though the
  // next step has another of it.
  void require_capturable(const Batch& batch, bool has_positions) const;
  // Throws UNSUPPORTED, INVALID_STATE: no graph serves a prepared batch. `needs_rows`: the graph
  // has to append to every layer.
  void require_replayable(const Batch& batch, bool has_positions, bool needs_rows) const;
  // Throws UNSUPPORTED where positions of a sequence were moved (kvc_seq_shift): a graph has no
  // room for them.
  static void require_unmoved(const Batch& batch);

  // Replaces the graph of equal lengths. Throws std::bad_alloc.
  CapturedGraph& add(const Forward& forward);
  void drop_last() { graphs_.pop_back(); }
  // The graph added last.
  CapturedGraph& last() { return graphs_.back(); }
  // The graph that serves a batch of these lengths; null: none.
  const CapturedGraph* find(const Batch& batch) const;
  int64_t host_bytes() const;

 private:
  const char* reason_against(const CapturedGraph& graph, const Batch& batch) const;

  const Spec* spec_;
  const DeviceStep* step_;
  std::vector<CapturedGraph> graphs_;
};

class CudaForward {
 public:
  // All are borrowed.
  CudaForward(const Plan& plan, DevicePages* pages, StreamOrder* order);

  // ---- State transitions

  // Waits for room in the ring of steps, and throws what begin would refuse for the state that it
  // would enter. INVALID_STATE: `stream` is the legacy default stream while another one is
  // captured, or all steps in the ring wait for graphs to be launched.
  void check_begin(const Batch& batch, const ForwardMode& mode, cuda::Stream stream) const;
  // Sends the step. `before(stream, uploads)` enqueues what must not be part of a graph.
  template <typename Before>
  void begin(Forward& forward, cuda::Stream stream, bool is_replay, Before&& before) {
    order_->require_alive();
    bool is_captured = false;
    try {
      is_captured = order_->enter_forward(stream, before);
    } catch (...) {
      abandon(forward, stream);
      throw;
    }
    enter(forward, stream, is_captured, is_replay);
  }
  // Throws INVALID_STATE: the stream is captured now and the forward is no part of that; or, unless
  // it is aborted, it was captured and the capture is over.
  void check_close(bool aborted) const;
  // Its graph stays for replays, even if it is aborted.
  bool leaves_graph() const noexcept { return state_ == State::kCaptured && !is_capture_over(); }
  void close(Forward& forward, bool aborted) noexcept;

  // ---- Calls of the open forward

  // Throws DEVICE, INVALID_STATE: nothing can be enqueued for the forward.
  void require_enqueues() const;
  bool is_captured() const { return state_ == State::kCaptured; }
  // Notes what replays of the graph need. Throws UNSUPPORTED.
  void note_attention(const Forward& forward, const KeySelection& key, bool has_spans);
  cuda::Stream stream() const { return stream_; }
  // Arrays that the calls of the forward send.
  DeviceUploads& uploads() { return uploads_; }
  int64_t host_bytes() const {
    return uploads_.host_bytes() + step_.host_bytes() + graphs_.host_bytes();
  }
  DeviceStep& step() { return step_; }
  const DeviceStep& step() const { return step_; }
  DeviceCosSin& cos_sin() { return cos_sin_; }
  const DeviceCosSin& cos_sin() const { return cos_sin_; }

 private:
  enum class State { kClosed, kEager, kCaptured, kReplayed };

  void await_ring(cuda::Stream stream) const;
  void enter(Forward& forward, cuda::Stream stream, bool is_captured, bool is_replay);
  void replay(Forward& forward, cuda::Stream stream);
  void abandon(Forward& forward, cuda::Stream stream) noexcept;
  bool is_capture_over() const noexcept;

  const Spec* spec_;
  StreamOrder* order_;
  DeviceUploads uploads_;
  DeviceStep step_;
  DeviceCosSin cos_sin_;
  CapturedGraphs graphs_;
  State state_ = State::kClosed;
  cuda::Stream stream_ = nullptr;
};

}  // namespace kvc
