// What the opaque handles of kvcache.h hold. (A kvc_forward * is a number:
// cache/forward_handles.h.)
#pragma once

#include <memory>
#include <utility>

#include "kvcache.h"
#include "src/cache/cache.h"
#include "src/capi/guard.h"
#include "src/plan/plan.h"

struct kvc_plan {
  std::shared_ptr<const kvc::Plan> plan;
};

struct kvc_cache {
  explicit kvc_cache(std::shared_ptr<const kvc::Plan> plan) : cache(std::move(plan)) {}
  kvc::Cache cache;
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

// The stream that a call gives, for what it enqueues. Throws DEVICE where the device has failed
// before.
class StreamScope {
 public:
  StreamScope(Engine& engine, kvc_stream stream) : engine_(engine) {
    engine_.require_alive();
    engine_.set_stream(&stream);
  }
  ~StreamScope() { engine_.set_stream(nullptr); }
  StreamScope(const StreamScope&) = delete;
  StreamScope& operator=(const StreamScope&) = delete;

 private:
  Engine& engine_;
};

}  // namespace kvc
