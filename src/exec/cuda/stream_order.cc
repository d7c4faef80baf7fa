#include "src/exec/cuda/stream_order.h"

#include <exception>

#include "src/base/error.h"

namespace kvc {

StreamOrder::StreamOrder(const Gpu* device)
    : device_(device),
      scratch_trim_(*device),
      own_stream_(*device),
      order_(*device),
      uploads_(*device) {}

cuda::Stream StreamOrder::out_of_band_stream(cuda::Stream stream) const {
  return device_->excludes_out_of_band(stream) ? own_stream_.get() : stream;
}

bool StreamOrder::is_capturing(cuda::Stream stream) const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return device_->is_capturing(stream);
}

bool StreamOrder::is_idle() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return order_.is_idle();
}

void StreamOrder::require_alive() const {
  if (is_lost_)
    fail(KVC_E_DEVICE, "an earlier call failed on the device: %s", lost_reason_.c_str());
}

void StreamOrder::lost(const char* what) const noexcept {
  const std::lock_guard<std::mutex> lock(lost_mutex_);
  if (is_lost_) return;
  try {
    throw;
  } catch (const std::exception& error) {
    try {
      lost_reason_ = std::string(what) + ": " + error.what();
    } catch (...) {
      // There is no memory for the reason. That the device is lost is known all the same.
    }
  } catch (...) {
    // The library throws nothing else.
  }
  is_lost_ = true;  // Set last: readers of the flag read the reason.
}

void StreamOrder::drain() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (in_forward_) order_.used(forward_stream_);  // A cache may be destroyed with an open forward.
  order_.use(own_stream_.get());
  own_stream_.synchronize();
}

DeviceEvent StreamOrder::make_event() const {
  require_alive();
  return DeviceEvent(*device_);
}

void StreamOrder::record(const DeviceEvent& event, CallStream named) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  const cuda::Stream stream = stream_of(named);
  try {
    if (device_->excludes_out_of_band(stream)) return;
    if (event.try_record(stream)) return;
    // The event cannot be recorded: the host waits instead.
    order_.use(own_stream_.get());
    own_stream_.synchronize();
  } catch (...) {
    lost("recording a fence");
  }
}

void StreamOrder::open_forward(cuda::Stream stream) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  forward_stream_ = stream;
  in_forward_ = true;
}

void StreamOrder::close_forward(cuda::Stream stream, bool launches) noexcept {
  const std::lock_guard<std::mutex> lock(mutex_);
  in_forward_ = false;
  if (launches) order_.used_by_launches(stream);
  order_.used(stream);  // Also of scratch that has grown in the order of the stream.
}

OutOfBandCall::OutOfBandCall(const StreamOrder& order, CallStream named)
    : order_(order), lock_(order.mutex_) {
  const cuda::Stream stream = order.stream_of(named);
  stream_ = order.out_of_band_stream(stream);
  is_waited_for_ = stream_ != stream;
  if (runs_beside_forward()) {
    order_.order_.used(order_.forward_stream_);
    // The forward's stream may be one that cannot wait.
    is_waited_for_ = is_waited_for_ || order_.device_->excludes_out_of_band(order_.forward_stream_);
  }
  order_.order_.use(stream_);
}

OutOfBandCall::~OutOfBandCall() {
  order_.uploads_.finish(stream_);
  order_.order_.used(stream_);
  try {
    if (is_waited_for_) {
      order_.device_->synchronize(stream_);
    } else if (runs_beside_forward()) {
      order_.order_.use(order_.forward_stream_);
    }
  } catch (...) {
    // Work that the forward enqueues later must not run together with this call's. Where the
    // forward's stream cannot wait for an event, the host waits.
    try {
      order_.device_->synchronize(stream_);
    } catch (...) {
      order_.lost("ordering the forward behind another call");
    }
  }
}

}  // namespace kvc
