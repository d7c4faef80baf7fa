// How a function of the C API uses a cache: it makes one of these objects, inside guard().
//
//   CacheCall call(cache);            the handle is checked
//   call.enqueue_on(stream, fence);   the device is alive; the fence, if one is wanted, is made
//   call->swaps.out(n, seqs, stream); the cache works
//   call.finish();                    the device did not fail meanwhile; the fence is handed out
//
// Calls that enqueue nothing, and calls on an open forward, whose stream kvc_forward_begin has
// named, need the first and third line only.
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "kvcache.h"
#include "src/cache/cache.h"
#include "src/capi/guard.h"
#include "src/device/gpu.h"
#include "src/plan/plan.h"

struct kvc_plan {
  std::shared_ptr<const kvc::Plan> plan;
};

struct kvc_cache {
  explicit kvc_cache(std::shared_ptr<const kvc::Plan> plan) : cache(std::move(plan)) {}
  kvc::Cache cache;
};

struct kvc_fence {
  kvc::DeviceEvent event;  // Empty on the CPU, whose copies are done. It may outlive its cache.
  std::function<bool()> is_open;  // A transfer is on its way; empty: no transfer.
};

namespace kvc {

// Throws INVALID_ARGUMENT for NULL, INVALID_STATE for a handle whose forward is over, however long.
inline Cache& open_cache(const kvc_forward* fwd) {
  require(fwd, "fwd");
  Cache* cache = ForwardHandle::find(fwd);
  if (cache == nullptr) {
    fail(KVC_E_INVALID_STATE,
         "fwd is not open: it was ended or aborted, or its cache is gone (open = 0, expected 1)");
  }
  return *cache;
}

// A call that changes a cache, or works on its open forward. One at a time per cache: the caller
// excludes others (kvcache.h, Threading).
class CacheCall {
 public:
  // Throws INVALID_ARGUMENT for NULL.
  explicit CacheCall(kvc_cache* cache) : cache_((require(cache, "cache"), &cache->cache)) {
    if (cache_->transfers.has_news()) cache_->transfers.try_settle();
  }
  // The cache whose open forward it is; throws as open_cache().
  explicit CacheCall(kvc_forward* fwd) : cache_(&open_cache(fwd)) {}
  CacheCall(const CacheCall&) = delete;
  CacheCall& operator=(const CacheCall&) = delete;

  Cache* operator->() const { return cache_; }
  Cache& operator*() const { return *cache_; }

  // `out_fence` is nullable. The fence is made here, event and all, so that only the device can
  // fail after the work. Throws DEVICE where the device has failed before.
  void enqueue_on(kvc_stream stream, kvc_fence** out_fence = nullptr) {
    if (out_fence != nullptr) {
      fence_ = std::make_unique<kvc_fence>();
      fence_->event = cache_->make_event();
      out_fence_ = out_fence;
    }
    stream_ = stream;
    cache_->require_alive();
  }

  // After work that does not throw itself when the device fails.
  void finish() {
    if (out_fence_ != nullptr) cache_->record(fence_->event, stream_);
    cache_->require_alive();
    if (out_fence_ != nullptr) *out_fence_ = fence_.release();
  }

 private:
  Cache* cache_;
  CallStream stream_ = kOwnStream;
  kvc_fence** out_fence_ = nullptr;
  std::unique_ptr<kvc_fence> fence_;
};

// A call that changes nothing: several may run at once.
class ReadCall {
 public:
  explicit ReadCall(const kvc_cache* cache) : cache_((require(cache, "cache"), &cache->cache)) {}
  explicit ReadCall(const kvc_forward* fwd) : cache_(&open_cache(fwd)) {}

  const Cache* operator->() const { return cache_; }
  const Cache& operator*() const { return *cache_; }

 private:
  const Cache* cache_;
};

}  // namespace kvc
