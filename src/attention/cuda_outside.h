// How CudaEngine enters what is not part of the open forward into the order of what uses the cache.
#pragma once

#include <mutex>

#include "src/attention/cuda_engine.h"

namespace kvc {

// A call that is not part of the forward: on the stream that was set, between what the forward has enqueued and what it will.
class CudaEngine::Outside {
 public:
  // What a capture is no part of must not get into its graph: it goes to the library's stream, and is done when the capture goes on.
  Outside(const CudaEngine& engine, cuda::Stream stream)
      : engine_(engine), lock_(engine.outside_), stream_(stream) {
    is_beside_capture_ = engine_.device_->is_capturing(stream);
    if (is_beside_capture_) stream_ = engine_.own_stream_.get();
    if (engine_.in_forward_ && engine_.forward_stream_ != stream_)
      engine_.order_.used(engine_.forward_stream_);
    engine_.order_.use(stream_);
  }
  ~Outside() {
    engine_.uploads_of(*this).finish(stream_);
    engine_.order_.used(stream_);
    try {
      if (is_beside_capture_) engine_.device_->synchronize(stream_);
      if (engine_.in_forward_ && engine_.forward_stream_ != stream_)
        engine_.order_.use(engine_.forward_stream_);
    } catch (...) {
      // The device is lost; the next call will see it.
    }
  }
  Outside(const Outside&) = delete;
  Outside& operator=(const Outside&) = delete;

  cuda::Stream stream() const { return stream_; }

 private:
  const CudaEngine& engine_;
  std::unique_lock<std::mutex> lock_;
  cuda::Stream stream_;
  bool is_beside_capture_ = false;
};

}  // namespace kvc
