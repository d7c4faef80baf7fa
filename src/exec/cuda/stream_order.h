// In which order streams use the memory of one cache, and whether its device still works.
//
// The open forward has a stream of its own. Every other call is an OutOfBandCall: it goes to the
// stream that it names, between what the forward has enqueued and what it will, and one stream
// waits for the other on the device. While a stream is captured, calls that are no part of the
// capture go to the library's own stream and are waited for, so that nothing of them gets into the
// graph.
#pragma once

#include <atomic>
#include <mutex>
#include <string>

#include "kvcache.h"
#include "src/device/device.h"
#include "src/device/gpu.h"
#include "src/device/uploads.h"

namespace kvc {

// Threading: const functions, from any thread; the others one at a time.
class StreamOrder {
 public:
  // Borrowed. Throws NO_MEMORY, DEVICE.
  explicit StreamOrder(const Gpu* device);

  const Gpu& device() const { return *device_; }
  cuda::Stream stream_of(CallStream stream) const { return stream.get(own_stream_.get()); }
  // Where an out-of-band call runs that names `stream`.
  cuda::Stream out_of_band_stream(cuda::Stream stream) const;
  bool is_capturing(cuda::Stream stream) const;
  // Whether the device has done everything that it was given.
  bool is_idle() const;

  // Throws DEVICE once the device has failed.
  void require_alive() const;
  // For catch clauses: the device has failed, because of the present exception. The first failure
  // is the one that later calls report.
  void lost(const char* what) const noexcept;

  // Waits until everything is done.
  void drain();
  // Throws DEVICE, NO_MEMORY.
  DeviceEvent make_event() const;
  // `event` stands for everything so far. It is left unrecorded while a stream is under capture,
  // where calls are complete on return.
  void record(const DeviceEvent& event, CallStream stream) noexcept;

  // Beside no out-of-band call, whose lock it does not wait for.
  int64_t host_bytes() const { return uploads_.host_bytes(); }

  // ---- The open forward

  // A forward on `stream` may enqueue from here on. `before(stream, uploads)` enqueues what must
  // not be part of a graph. Returns whether the stream is captured. Throws.
  template <typename Before>
  bool enter_forward(cuda::Stream stream, Before&& before) {
    const std::lock_guard<std::mutex> lock(mutex_);
    const bool is_captured = device_->is_capturing(stream);
    // A graph waits for nothing that was enqueued elsewhere: that has to be done before it can be
    // launched.
    const cuda::Stream outer = is_captured ? own_stream_.get() : stream;
    order_.use(outer);
    before(outer, uploads_);
    if (is_captured) own_stream_.synchronize();
    return is_captured;
  }
  void open_forward(cuda::Stream stream) noexcept;
  // Nothing more is enqueued for the forward on `stream`, open or only entered. `launches`: every
  // launch of the graph that `stream` is captured for is a use of the cache.
  void close_forward(cuda::Stream stream, bool launches) noexcept;

 private:
  friend class OutOfBandCall;

  const Gpu* device_;
  ScratchTrim scratch_trim_;  // Before all that has scratch.
  DeviceStream own_stream_;
  mutable std::mutex mutex_;  // Guards what follows.
  mutable DeviceOrder order_;
  mutable DeviceUploads uploads_;  // For out-of-band calls.
  bool in_forward_ = false;
  cuda::Stream forward_stream_ = nullptr;

  mutable std::mutex lost_mutex_;  // Guards lost_reason_; the first failure wins.
  mutable std::atomic<bool> is_lost_{false};
  mutable std::string lost_reason_;
};

// One call beside the open forward, in its place in the order. Holds the lock.
class OutOfBandCall {
 public:
  // Throws DEVICE.
  OutOfBandCall(const StreamOrder& order, CallStream stream);
  ~OutOfBandCall();
  OutOfBandCall(const OutOfBandCall&) = delete;
  OutOfBandCall& operator=(const OutOfBandCall&) = delete;

  cuda::Stream stream() const { return stream_; }
  // What is put there holds as long as the call.
  DeviceUploads& uploads() const { return order_.uploads_; }

 private:
  bool runs_beside_forward() const {
    return order_.in_forward_ && order_.forward_stream_ != stream_;
  }

  const StreamOrder& order_;
  std::unique_lock<std::mutex> lock_;
  cuda::Stream stream_ = nullptr;
  bool is_waited_for_ = false;
};

}  // namespace kvc
