// What kvc_fence holds, and how a call hands one out.
#pragma once

#include <memory>

#include "kvcache.h"
#include "src/tiers/fence.h"

struct kvc_fence {
  std::shared_ptr<kvc::Completion> completion;  // shared with the back end: a fence may outlive its cache
};

namespace kvc {

// The nullable `out_fence` of a call. Made before the copies begin, so that nothing fails after them.
class FenceOut {
 public:
  // Throws std::bad_alloc.
  explicit FenceOut(kvc_fence** out) : out_(out) {
    if (out_ != nullptr) fence_.reset(new kvc_fence{std::make_shared<Completion>()});
  }
  // The copies are done, as they always are on the CPU when the call returns.
  void give_done() noexcept {
    if (out_ == nullptr) return;
    fence_->completion->signal();
    *out_ = fence_.release();
  }

 private:
  kvc_fence** out_;
  std::unique_ptr<kvc_fence> fence_;
};

}  // namespace kvc
