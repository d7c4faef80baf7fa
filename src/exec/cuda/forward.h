// The open forward of a cache on a CUDA device: its stream, and whether its kernels are enqueued,
// captured into a graph or lie in one that is replayed. The states are drawn in forward.cc.
#pragma once

#include <cstdint>

#include "src/device/uploads.h"
#include "src/exec/cuda/captured_graphs.h"
#include "src/exec/cuda/cos_sin.h"
#include "src/exec/cuda/stream_order.h"
#include "src/exec/sequence_set.h"
#include "src/step/device_step.h"
#include "src/step/forward.h"

namespace kvc {

class CudaForward {
 public:
  // Both are borrowed, as the plan and the pool.
  CudaForward(const Plan& plan, const PagePool* pool, StreamOrder* order);

  // ---- State transitions

  // Waits for room in the ring of steps. Throws INVALID_STATE: `stream` is the legacy default
  // stream while another one is captured, or all steps in the ring wait for graphs to be launched.
  void await_begin(cuda::Stream stream) const;
  // Throws what begin would refuse for the state that it would enter.
  void check_begin(const Batch& batch, cuda::Stream stream, bool has_positions, bool is_replay,
                   bool needs_rows) const;
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
  // Throws INVALID_STATE: the forward was captured and the capture is over, or its stream is
  // captured now and the forward is no part of that.
  void check_end() const;
  // Throws INVALID_STATE in the second of these cases.
  void check_abort() const;
  // `carry_states()` does in a graph what its replays have to do with states at their end.
  template <typename CarryStates>
  void close(Forward& forward, bool aborted, CarryStates&& carry_states) noexcept {
    if (state_ == State::kCaptured && aborted && forward.written().any_state_set() &&
        !is_capture_over())
      carry_states();
    leave(forward, aborted);
  }

  // ---- Calls of the open forward

  // Throws DEVICE, INVALID_STATE: nothing can be enqueued for the forward.
  void require_enqueues() const;
  bool is_captured() const { return state_ == State::kCaptured; }
  // Notes what replays of the graph need. Throws UNSUPPORTED.
  void note_attention(const Forward& forward, const KeyView& key, bool has_spans);
  cuda::Stream stream() const { return stream_; }
  // Arrays that the calls of the forward send.
  DeviceUploads& uploads() { return uploads_; }
  DeviceStep& step() { return step_; }
  const DeviceStep& step() const { return step_; }
  DeviceCosSin& cos_sin() { return cos_sin_; }
  const DeviceCosSin& cos_sin() const { return cos_sin_; }

 private:
  enum class State { kClosed, kEager, kCaptured, kReplayed };

  void enter(Forward& forward, cuda::Stream stream, bool is_captured, bool is_replay);
  void replay(Forward& forward, cuda::Stream stream);
  void abandon(Forward& forward, cuda::Stream stream) noexcept;
  void leave(Forward& forward, bool aborted) noexcept;
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
