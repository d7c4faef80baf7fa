// CudaEngine: how a forward begins and ends, alone or in a graph, and what became of the device.
#include <algorithm>
#include <exception>
#include <string>
#include <thread>

#include "src/base/error.h"
#include "src/exec/cuda/engine.h"

namespace kvc {

CudaEngine::~CudaEngine() {
  try {
    drain();
  } catch (...) {
    // A device that is lost does nothing any more.
  }
}

void CudaEngine::require_alive() const {
  if (is_lost_) fail(KVC_E_DEVICE, "an earlier call failed on the device: %s", lost_why_.c_str());
}

void CudaEngine::lost(const char* what) const noexcept {
  const std::lock_guard<std::mutex> lock(telling_);
  if (is_lost_) return;
  try {
    throw;
  } catch (const std::exception& error) {
    try {
      lost_why_ = std::string(what) + ": " + error.what();
    } catch (...) {
      // Without memory for the reason: that it is lost is known.
    }
  } catch (...) {
    // The library throws nothing else.
  }
  is_lost_ = true;  // last: whoever sees it reads why
}

void CudaEngine::set_stream(const kvc_stream* stream) {
  stream_ = stream == nullptr ? own_stream_.get() : *stream;
}

void CudaEngine::drain() {
  const std::lock_guard<std::mutex> lock(outside_);
  if (in_forward_) order_.used(forward_stream_);  // it may be dropped open
  order_.use(own_stream_.get());
  own_stream_.synchronize();
}

// Where calls that are no part of a capture belong.
cuda::Stream CudaEngine::stream_beside_captures(cuda::Stream stream) const {
  return device_->is_beside_capture(stream) ? own_stream_.get() : stream;
}

DeviceEvent CudaEngine::make_event() const {
  require_alive();
  return DeviceEvent(*device_);
}

// What it stands for is enqueued: where it cannot be recorded the host waits instead.
void CudaEngine::record(const DeviceEvent& event) noexcept {
  const std::lock_guard<std::mutex> lock(outside_);
  try {
    // What was called there is done, and the graph has no use for the event.
    if (device_->is_beside_capture(stream_)) return;
    if (event.try_record(stream_)) return;
    order_.use(own_stream_.get());
    own_stream_.synchronize();
  } catch (...) {
    lost("recording a fence");
  }
}

void CudaEngine::check_begin(const Batch& batch, bool has_positions, bool is_replay,
                             bool needs_rows) const {
  require_alive();
  bool is_captured = false;
  {
    const std::lock_guard<std::mutex> lock(outside_);
    is_captured = device_->is_capturing(stream_);
  }
  if (is_replay) {
    require_replayable(batch, has_positions, is_captured, needs_rows);
  } else if (is_captured) {
    require_capturable(batch, has_positions);
  }
}

// A full ring is rare: the device is as many steps behind, and the host waits for one. Unless it
// never comes: the device has failed, or all that it was given is done.
void CudaEngine::await_begin() {
  constexpr int kYieldsPerLook = 1000;
  require_alive();
  if (!device_->is_usable(stream_)) {
    fail(KVC_E_INVALID_STATE,
         "desc->stream = %p is the legacy default stream, which cannot be used while a blocking "
         "stream is "
         "captured",
         stream_);
  }
  for (int yields = 1; step_.is_full(); ++yields) {
    std::this_thread::yield();
    if (yields % kYieldsPerLook != 0) continue;
    const std::lock_guard<std::mutex> lock(outside_);
    if (order_.is_idle() && step_.is_full()) {
      fail_with(KVC_E_INVALID_STATE, cuda::kStepEntries,
                "%d steps were captured and ended, and their graphs not launched: launch them, in "
                "the order of "
                "their capture, before the next step",
                cuda::kStepEntries);
    }
  }
}

void CudaEngine::begin(Forward& forward, bool is_replay) {
  require_alive();
  bool is_sent = false;
  try {
    {
      const std::lock_guard<std::mutex> lock(outside_);
      is_captured_ = device_->is_capturing(stream_);
      // A graph waits for nothing that was enqueued elsewhere: that has to be done before it can be
      // launched.
      order_.use(is_captured_ ? own_stream_.get() : stream_);
      // Not a part of the graph, which would clear these pages again.
      clear_taken(forward, is_captured_ ? own_stream_.get() : stream_);
      if (is_captured_) own_stream_.synchronize();
    }
    is_replay_ = is_replay;
    if (is_replay) {
      begin_replay(forward);
    } else {
      step_.send(forward.batch(), stream_);
      is_sent = true;
      angles_.begin(forward, uploads_, stream_);
    }
    if (is_captured_) note_captured(forward);
  } catch (...) {
    if (is_sent && is_captured_) step_.unsend();
    forward.batch().forget_sent();
    uploads_.finish(stream_);
    const std::lock_guard<std::mutex> lock(outside_);
    order_.used(stream_);  // also of scratch that has grown in its order
    throw;
  }
  {
    const std::lock_guard<std::mutex> lock(outside_);
    forward_stream_ = stream_;
    in_forward_ = true;
  }
}

// What would be frozen into the graph, though the next step has another of it.
void CudaEngine::require_capturable(const Batch& batch, bool has_positions) const {
  const auto refuse = [](const char* what) {
    fail(KVC_E_UNSUPPORTED, "desc->stream is captured, and the forward has %s: a graph has none",
         what);
  };
  if (batch.has_trees()) refuse("token trees");
  if (batch.num_cross_rows() != 0) refuse("encoder tokens");
  if (has_positions) refuse("positions");
  // What is published at the end may be copied then, and the step has not run.
  if (batch.has_tokens()) refuse("tokens, which replayed ones may have");
  step_.require_capturable(batch);
}

void CudaEngine::require_replayable(const Batch& batch, bool has_positions, bool is_captured,
                                    bool needs_rows) const {
  if (is_captured)
    fail(KVC_E_INVALID_STATE, "desc->flags has KVC_FORWARD_REPLAY, but desc->stream is captured");
  if (batch.has_trees() || batch.num_cross_rows() != 0 || has_positions) {
    fail(KVC_E_UNSUPPORTED, "desc->flags has KVC_FORWARD_REPLAY with %s: a graph has none",
         batch.has_trees()             ? "token trees"
         : batch.num_cross_rows() != 0 ? "encoder tokens"
                                       : "positions");
  }
  const CapturedShape* known = find_captured(batch);
  if (known == nullptr) {
    fail(KVC_E_INVALID_STATE,
         "desc->flags has KVC_FORWARD_REPLAY, but no forward of %zu sequences with these lengths "
         "was captured",
         batch.entries().size());
  }
  if (known->needs_positions) require_unmoved(batch);
  // An end that refuses would come too late: the graph has run by then.
  if (needs_rows) Forward::require_rows(*spec_, known->appended, batch);
  const char* reason = nullptr;
  if (known->generation != step_.generation() || !step_.keeps_addresses(batch))
    reason = "the pool or the page tables have moved; set config.max_seq_len";
  if (batch.longest(false) > known->max_length) reason = "set config.max_seq_len";
  if (batch.longest(true) > known->max_cross_length) reason = "set config.max_cross_len";
  if (batch.num_delta_words() > known->max_words) reason = "set config.max_tokens_per_forward";
  for (const BatchEntry& entry : batch.entries()) {
    const Sequence& sequence = *entry.sequence;
    if (sequence.sink != 0 && known->call_window > sequence.window - sequence.sink)
      reason = "a call's window reaches beyond the sinks of a sequence";
  }
  if (reason == nullptr) return;
  fail(KVC_E_INVALID_STATE,
       "desc->flags has KVC_FORWARD_REPLAY, but the graph of %zu sequences does not serve this "
       "step: %s",
       batch.entries().size(), reason);
}

// A graph has no room for positions of keys.
void CudaEngine::require_unmoved(const Batch& batch) const {
  for (const BatchEntry& entry : batch.entries()) {
    if (entry.sequence->segments.empty()) continue;
    fail_with(KVC_E_UNSUPPORTED, entry.sequence->id,
              "desc->seqs has sequence %lld, whose positions were moved (kvc_seq_shift): a graph "
              "with ALiBi or "
              "keys rotated on read has none",
              static_cast<long long>(entry.sequence->id));
  }
}

const CudaEngine::CapturedShape* CudaEngine::find_captured(const Batch& batch) const {
  const auto is_same = [&](const CapturedShape& shape) {
    return std::equal(
        shape.lengths.begin(), shape.lengths.end(), batch.entries().begin(), batch.entries().end(),
        [](int64_t length, const BatchEntry& entry) { return length == entry.append_length; });
  };
  const auto known = std::find_if(captured_.begin(), captured_.end(), is_same);
  return known == captured_.end() ? nullptr : &*known;
}

// Of a batch that can be (require_replayable).
void CudaEngine::begin_replay(Forward& forward) {
  step_.write_for_replay(forward.batch(), stream_);
  const CapturedShape& shape = *find_captured(forward.batch());
  if (shape.sets_states) mark_states_set(forward);
  forward.restore_appended(shape.appended);
}

// What the graph does with states, it does with all: those that its forward did not set are carried
// on.
void CudaEngine::mark_states_set(Forward& forward) const {
  for (size_t layer = 0; layer < spec_->layers.size(); ++layer) {
    const auto count = static_cast<int32_t>(spec_->layers[layer].states.size());
    for (int32_t state = 0; state < count; ++state)
      forward.mark_state_set(static_cast<int32_t>(layer), state);
  }
}

void CudaEngine::note_captured(const Forward& forward) {
  CapturedShape shape{
      .lengths = {},
      .generation = step_.generation(),
      .max_words = step_.max_words(),
      .max_length = std::max(spec_->max_seq_len, forward.batch().longest(false)),
      .max_cross_length = std::max(spec_->max_cross_len, forward.batch().longest(true)),
      .call_window = 0,
      .needs_positions = false,
      .sets_states = false,
      .appended = forward.appended()};
  for (const BatchEntry& entry : forward.batch().entries())
    shape.lengths.push_back(entry.append_length);
  std::erase_if(captured_,
                [&](const CapturedShape& known) { return known.lengths == shape.lengths; });
  captured_.push_back(std::move(shape));
}

// Calls on layers of an open forward.
void CudaEngine::require_stream() const {
  require_alive();
  if (is_replay_) {
    fail(KVC_E_INVALID_STATE,
         "the forward was begun with KVC_FORWARD_REPLAY (%d): its kernels lie in the graph",
         static_cast<int>(KVC_FORWARD_REPLAY));
  }
  // The graph would keep what the host has decided for this step.
  if (!is_captured_ && device_->is_capturing(forward_stream_))
    fail(KVC_E_INVALID_STATE,
         "the forward was begun before the capture of its stream: begin it inside");
}

// What the forward has enqueued has to be ordered with what follows, which nothing can be inside a
// capture that began after it.
void CudaEngine::check_abort() const {
  if (!device_->is_usable(forward_stream_)) {
    fail(KVC_E_INVALID_STATE,
         "fwd runs on the legacy default stream, which cannot be used while a blocking stream is "
         "captured: "
         "close it after the capture");
  }
  if (!is_captured_ && device_->is_capturing(forward_stream_)) {
    fail(KVC_E_INVALID_STATE,
         "fwd was begun before the capture of its stream, which it is no part of: close it after "
         "the capture");
  }
}

void CudaEngine::check_end() const {
  check_abort();
  if (is_captured_ && !device_->is_capturing(forward_stream_)) {
    fail(KVC_E_INVALID_STATE,
         "fwd was begun while its stream was captured, and the capture is over: end it before, or "
         "abort it");
  }
}

void CudaEngine::closed(Forward& forward, bool aborted) noexcept {
  if (is_captured_) {
    captured_.back().sets_states = forward.any_state_set();
    std::copy(forward.appended().begin(), forward.appended().end(),
              captured_.back().appended.begin());
  }
  if (is_captured_ && aborted) {
    // Replays may follow: the graph has to do with states what an end would have made it do.
    bool is_over = true;
    try {
      is_over = !device_->is_capturing(forward_stream_);
    } catch (...) {
      // Then nothing more gets into the graph either.
    }
    if (forward.any_state_set() && !is_over) carry_states_on(forward);
    if (is_over && spec_->has_states()) captured_.pop_back();
  }
  if ((is_captured_ || is_replay_) && aborted) {
    // The graph has not run for this step, and will not.
    step_.unsend();
    forward.batch().forget_sent();
  }
  uploads_.finish(forward_stream_);
  const std::lock_guard<std::mutex> lock(outside_);
  in_forward_ = false;
  if (is_captured_ && !aborted) order_.used_by_launches(forward_stream_);
  order_.used(forward_stream_);
}

}  // namespace kvc
