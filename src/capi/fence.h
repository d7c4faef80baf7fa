// What kvc_fence holds, and how a call hands one out.
#pragma once

#include <memory>

#include "kvcache.h"
#include "src/attention/engine.h"
#include "src/base/device.h"

struct kvc_fence {
  kvc::DeviceEvent event;  // of a cache on a device; a fence may outlive its cache
};

namespace kvc {

// The nullable `out_fence` of a call. Made before the copies begin, so that only the device can fail after them.
class FenceOut {
 public:
  // Throws std::bad_alloc.
  explicit FenceOut(kvc_fence** out) : out_(out) {
    if (out_ != nullptr) fence_ = std::make_unique<kvc_fence>();
  }
  // Stands for everything that the engine was given so far; on the CPU that is done.
  void give(Engine& engine) {
    engine.require_alive();  // copies don't throw
    if (out_ == nullptr) return;
    engine.record(&fence_->event);
    *out_ = fence_.release();
  }

 private:
  kvc_fence** out_;
  std::unique_ptr<kvc_fence> fence_;
};

}  // namespace kvc
