// How CudaEngine enters what is not part of the open forward into the order of what uses the cache.
#pragma once

#include <mutex>

#include "src/exec/cuda/engine.h"

namespace kvc {

// A call that is not part of the forward: on the stream that was set, between what the forward has
// enqueued and what it will.
class CudaEngine::Outside {
 public:
  // What a capture is no part of must not get into its graph: it goes to the library's stream, and
  // is done when the capture goes on.
  Outside(const CudaEngine& engine, cuda::Stream stream)
      : engine_(engine), lock_(engine.outside_), stream_(engine.stream_beside_captures(stream)) {
    is_waited_for_ = stream_ != stream;
    if (engine_.in_forward_ && engine_.forward_stream_ != stream_) {
      engine_.order_.used(engine_.forward_stream_);
      // A forward whose stream cannot wait.
      is_waited_for_ =
          is_waited_for_ || engine_.device_->is_beside_capture(engine_.forward_stream_);
    }
    engine_.order_.use(stream_);
  }
  ~Outside() {
    engine_.uploads_of(*this).finish(stream_);
    engine_.order_.used(stream_);
    try {
      if (is_waited_for_) {
        engine_.device_->synchronize(stream_);
      } else if (engine_.in_forward_ && engine_.forward_stream_ != stream_) {
        engine_.order_.use(engine_.forward_stream_);
      }
    } catch (...) {
      wait_instead();
    }
  }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

  cuda::Stream stream() const { return stream_; }

 private:
  // The forward must not go on beside this call: where its stream cannot be made to wait, the host
  // does.
  void wait_instead() const noexcept {
    try {
      engine_.device_->synchronize(stream_);
    } catch (...) {
      engine_.lost("ordering the forward behind another call");
    }
  }

  const CudaEngine& engine_;
  std::unique_lock<std::mutex> lock_;
  cuda::Stream stream_;
  bool is_waited_for_ = false;
};

}  // namespace kvc
