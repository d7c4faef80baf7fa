// What kvc_fence holds, and how a call hands one out.
#pragma once

#include <memory>

#include "kvcache.h"
#include "src/device/device.h"
#include "src/exec/engine.h"

struct kvc_fence {
  kvc::DeviceEvent event;  // of a cache on a device; a fence may outlive its cache
};

namespace kvc {

// The nullable `out_fence` of a call. Made before the copies begin, event and all, so that only the
// device can fail after them.
class FenceOut {
 public:
  // Throws what keeps a fence from being made.
  FenceOut(kvc_fence** out, const Engine& engine) : out_(out) {
    if (out_ == nullptr) return;
    fence_ = std::make_unique<kvc_fence>();
    fence_->event = engine.make_event();
  }
  // Stands for everything that the engine was given so far; on the CPU that is done.
  void give(Engine& engine) {
    if (out_ != nullptr) engine.record(fence_->event);
    engine.require_alive();  // neither that nor copies throw
    if (out_ == nullptr) return;
    *out_ = fence_.release();
  }

 private:
  kvc_fence** out_;
  std::unique_ptr<kvc_fence> fence_;
};

}  // namespace kvc
