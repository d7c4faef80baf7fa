#include "src/exec/cuda/forward.h"

#include <algorithm>
#include <thread>
#include <utility>

#include "src/base/error.h"
#include "src/base/memory.h"

namespace kvc {

void CapturedGraphs::require_capturable(const Batch& batch, bool has_positions) const {
  const auto refuse = [](const char* what) {
    fail(KVC_E_UNSUPPORTED, "desc->stream is captured, and the forward has %s: a graph has none",
         what);
  };
  if (batch.has_trees()) refuse("token trees");
  if (batch.num_cross_rows() != 0) refuse("encoder tokens");
  if (has_positions) refuse("positions");
  // What the end publishes may be copied at once, before the graph has run.
  if (batch.has_tokens()) refuse("tokens, which replayed ones may have");
  step_->require_capturable(batch);
}

void CapturedGraphs::require_replayable(const Batch& batch, bool has_positions,
                                        bool needs_rows) const {
  if (batch.has_trees() || batch.num_cross_rows() != 0 || has_positions) {
    fail(KVC_E_UNSUPPORTED, "desc->flags has KVC_FORWARD_REPLAY with %s: a graph has none",
         batch.has_trees()             ? "token trees"
         : batch.num_cross_rows() != 0 ? "encoder tokens"
                                       : "positions");
  }
  const CapturedGraph* graph = find(batch);
  if (graph == nullptr) {
    fail(KVC_E_INVALID_STATE,
         "desc->flags has KVC_FORWARD_REPLAY, but no forward of %zu sequences with these lengths "
         "was captured",
         batch.entries().size());
  }
  if (graph->needs_positions) require_unmoved(batch);
  // The end would be too late to refuse: the graph has run by then.
  if (needs_rows) WrittenLayers::require_rows(*spec_, graph->appended, batch);
  const char* reason = reason_against(*graph, batch);
  if (reason == nullptr) return;
  fail(KVC_E_INVALID_STATE,
       "desc->flags has KVC_FORWARD_REPLAY, but the graph of %zu sequences does not serve this "
       "step: %s",
       batch.entries().size(), reason);
}

const char* CapturedGraphs::reason_against(const CapturedGraph& graph, const Batch& batch) const {
  for (const BatchEntry& entry : batch.entries()) {
    const Sequence& sequence = *entry.sequence;
    if (sequence.sink != 0 && graph.call_window > sequence.window - sequence.sink)
      return "a call's window reaches beyond the sinks of a sequence";
  }
  if (batch.num_delta_words() > graph.max_words) return "set config.max_tokens_per_forward";
  if (batch.longest(true) > graph.max_cross_length) return "set config.max_cross_len";
  if (batch.longest(false) > graph.max_length) return "set config.max_seq_len";
  if (graph.generation != step_->generation() || !step_->keeps_addresses(batch))
    return "the pool or the page tables have moved; set config.max_seq_len";
  return nullptr;
}

void CapturedGraphs::require_unmoved(const Batch& batch) {
  for (const BatchEntry& entry : batch.entries()) {
    if (entry.sequence->segments.empty()) continue;
    fail_with(KVC_E_UNSUPPORTED, entry.sequence->id,
              "desc->seqs has sequence %lld, whose positions were moved (kvc_seq_shift): a graph "
              "with ALiBi or keys rotated on read has none",
              static_cast<long long>(entry.sequence->id));
  }
}

CapturedGraph& CapturedGraphs::add(const Forward& forward) {
  const Batch& batch = forward.batch();
  CapturedGraph graph{.lengths = {},
                      .generation = step_->generation(),
                      .max_words = step_->max_words(),
                      .max_length = std::max(spec_->max_seq_len, batch.longest(false)),
                      .max_cross_length = std::max(spec_->max_cross_len, batch.longest(true)),
                      .appended = forward.written().appended()};
  for (const BatchEntry& entry : batch.entries()) graph.lengths.push_back(entry.append_length);
  std::erase_if(graphs_,
                [&](const CapturedGraph& known) { return known.lengths == graph.lengths; });
  graphs_.push_back(std::move(graph));
  return graphs_.back();
}

const CapturedGraph* CapturedGraphs::find(const Batch& batch) const {
  const auto serves = [&](const CapturedGraph& graph) {
    return std::equal(
        graph.lengths.begin(), graph.lengths.end(), batch.entries().begin(), batch.entries().end(),
        [](int64_t length, const BatchEntry& entry) { return length == entry.append_length; });
  };
  const auto known = std::find_if(graphs_.begin(), graphs_.end(), serves);
  return known == graphs_.end() ? nullptr : &*known;
}

// The states of a forward, and the function of each transition:
//
//                 enter, stream not captured          close
//             ┌───────────────────────────► EAGER ────────────┐
//             │   enter, stream captured              close   │
//   CLOSED ───┼───────────────────────────► CAPTURED ─────────┼───► CLOSED
//             │   enter with KVC_FORWARD_REPLAY       close   │
//             └───────────────────────────► REPLAYED ─────────┘
//
//   state     calls of the forward   end                      abort
//   EAGER     are enqueued           orders its stream        orders its stream
//   CAPTURED  go into the graph      every launch of the      the step is taken back (unsend); the
//                                    graph is a use of the    graph stays for replays, unless its
//                                    cache                    capture is over
//   REPLAYED  are refused: they lie  orders its stream        the step is taken back (unsend)
//             in the graph
//
// Refused: EAGER calls while the stream is captured (require_enqueues), the end of CAPTURED after
// its capture is over, and the end or abort of EAGER and REPLAYED inside a capture of their stream
// (check_close). begin throws in `enter`: the state is CLOSED again (abandon).
//
// A device that fails is LOST from every state (StreamOrder::lost): all calls but destruction throw
// DEVICE from then on (StreamOrder::require_alive), and there is no way back.

int64_t CapturedGraphs::host_bytes() const {
  int64_t bytes = kvc::host_bytes(graphs_);
  for (const CapturedGraph& graph : graphs_)
    bytes += kvc::host_bytes(graph.lengths) + kvc::host_bytes(graph.appended);
  return bytes;
}

CudaForward::CudaForward(const Plan& plan, DevicePages* pages, StreamOrder* order)
    : spec_(&plan.spec()),
      order_(order),
      uploads_(order->device()),
      step_(plan, pages, &order->device()),
      cos_sin_(spec_, &step_, &order->device()),
      graphs_(spec_, &step_) {}

// A full ring is rare: the device is as many steps behind, and the host waits for one. It never
// comes where the device has failed, or has done all that it was given.
void CudaForward::await_ring(cuda::Stream stream) const {
  constexpr int kYieldsPerLook = 1000;
  if (!order_->device().is_usable(stream)) {
    fail(KVC_E_INVALID_STATE,
         "desc->stream = %p is the legacy default stream, which cannot be used while a blocking "
         "stream is captured",
         stream);
  }
  for (int yields = 1; step_.is_full(); ++yields) {
    std::this_thread::yield();
    if (yields % kYieldsPerLook != 0) continue;
    if (order_->is_idle() && step_.is_full()) {
      fail_with(KVC_E_INVALID_STATE, cuda::kStepEntries,
                "%d steps were captured and ended, and their graphs not launched: launch them, in "
                "the order of their capture, before the next step",
                cuda::kStepEntries);
    }
  }
}

void CudaForward::check_begin(const Batch& batch, const ForwardMode& mode,
                              cuda::Stream stream) const {
  order_->require_alive();
  await_ring(stream);
  const bool is_captured = order_->is_capturing(stream);
  if (mode.is_replay && is_captured)
    fail(KVC_E_INVALID_STATE, "desc->flags has KVC_FORWARD_REPLAY, but desc->stream is captured");
  if (mode.is_replay) {
    graphs_.require_replayable(batch, mode.has_positions, mode.needs_rows);
  } else if (is_captured) {
    graphs_.require_capturable(batch, mode.has_positions);
  }
}

void CudaForward::enter(Forward& forward, cuda::Stream stream, bool is_captured, bool is_replay) {
  bool is_sent = false;
  try {
    if (is_replay) {
      replay(forward, stream);
    } else {
      step_.send(forward.batch(), stream);
      is_sent = true;
      cos_sin_.begin(forward, uploads_, stream);
    }
    if (is_captured) graphs_.add(forward);
  } catch (...) {
    if (is_sent && is_captured) step_.unsend();
    abandon(forward, stream);
    throw;
  }
  state_ = is_replay ? State::kReplayed : is_captured ? State::kCaptured : State::kEager;
  stream_ = stream;
  order_->open_forward(stream);
}

// Writes the step where the graph reads it; nothing is enqueued.
void CudaForward::replay(Forward& forward, cuda::Stream stream) {
  step_.write_for_replay(forward.batch(), stream);
  const CapturedGraph& graph = *graphs_.find(forward.batch());
  forward.written().restore_appended(graph.appended);
  if (!graph.sets_states) return;
  // The graph carries on the states that its forward did not set: all states are set.
  for (size_t layer = 0; layer < spec_->layers.size(); ++layer) {
    const auto count = static_cast<int32_t>(spec_->layers[layer].states.size());
    for (int32_t state = 0; state < count; ++state)
      forward.written().mark_state_set(static_cast<int32_t>(layer), state);
  }
}

void CudaForward::abandon(Forward& forward, cuda::Stream stream) noexcept {
  forward.batch().forget_sent();
  uploads_.finish(stream);
  order_->close_forward(stream, false);
}

void CudaForward::require_enqueues() const {
  order_->require_alive();
  if (state_ == State::kReplayed) {
    fail(KVC_E_INVALID_STATE,
         "the forward was begun with KVC_FORWARD_REPLAY (%d): its kernels lie in the graph",
         static_cast<int>(KVC_FORWARD_REPLAY));
  }
  // The graph would keep what the host has decided for this step.
  if (state_ == State::kEager && order_->device().is_capturing(stream_))
    fail(KVC_E_INVALID_STATE,
         "the forward was begun before the capture of its stream: begin it inside");
}

void CudaForward::note_attention(const Forward& forward, const KeySelection& key, bool has_spans) {
  if (state_ != State::kCaptured) return;
  if (key.needs_positions) {
    CapturedGraphs::require_unmoved(forward.batch());
    graphs_.last().needs_positions = true;
  }
  graphs_.last().call_window = std::max(graphs_.last().call_window, key.window);
  if (has_spans)
    fail(KVC_E_UNSUPPORTED, "opt.spans is set in a forward that is captured: a graph has none");
}

// What the forward has enqueued has to be ordered with what follows. Nothing can be inside a
// capture that began after it.
void CudaForward::check_close(bool aborted) const {
  if (!order_->device().is_usable(stream_)) {
    fail(KVC_E_INVALID_STATE,
         "fwd runs on the legacy default stream, which cannot be used while a blocking stream is "
         "captured: close it after the capture");
  }
  if (state_ != State::kCaptured && order_->device().is_capturing(stream_)) {
    fail(KVC_E_INVALID_STATE,
         "fwd was begun before the capture of its stream, which it is no part of: close it after "
         "the capture");
  }
  if (!aborted && state_ == State::kCaptured && !order_->device().is_capturing(stream_)) {
    fail(KVC_E_INVALID_STATE,
         "fwd was begun while its stream was captured, and the capture is over: end it before, or "
         "abort it");
  }
}

bool CudaForward::is_capture_over() const noexcept {
  try {
    return !order_->device().is_capturing(stream_);
  } catch (...) {
    return true;  // Nothing more gets into the graph either.
  }
}

void CudaForward::close(Forward& forward, bool aborted) noexcept {
  const bool is_captured = state_ == State::kCaptured;
  if (is_captured) {
    CapturedGraph& graph = graphs_.last();
    graph.sets_states = forward.written().any_state_set();
    std::copy(forward.written().appended().begin(), forward.written().appended().end(),
              graph.appended.begin());
    // States that an aborted forward did not set keep their old values. The kernels for that are
    // not in the graph, so no replay may use it.
    if (aborted && spec_->has_states() && is_capture_over()) graphs_.drop_last();
  }
  if (aborted && state_ != State::kEager) {
    step_.unsend();
    forward.batch().forget_sent();
  }
  uploads_.finish(stream_);
  state_ = State::kClosed;
  order_->close_forward(stream_, is_captured && !aborted);
}

}  // namespace kvc
