// What the opaque handles of kvcache.h hold. A kvc_forward * is a number, see
// cache/forward_handles.h.
#pragma once

#include <memory>
#include <utility>

#include "kvcache.h"
#include "src/cache/cache.h"
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
};
