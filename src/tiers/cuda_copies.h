// Page copies of a cache on a CUDA device: enqueued on the engine's stream, in one call per direction where the driver can.
#pragma once

#include <functional>
#include <vector>

#include "src/base/device.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"
#include "src/tiers/page_copies.h"

namespace kvc {

class CudaPageCopier final : public PageCopier {
 public:
  // Runs `enqueue(stream)` where it belongs in the order of what uses the pools; noexcept: what it throws is noted as a lost device.
  using Enqueue = std::function<void(const std::function<void(cuda::Stream)>&)>;

  // All are borrowed; the device pool may be resized between calls. The host pool is pinned.
  CudaPageCopier(const Plan* plan, const PagePool* device_pool, const PagePool* host_pool,
                 const Device* device, Enqueue enqueue)
      : plan_(plan),
        device_pool_(device_pool),
        host_pool_(host_pool),
        device_(device),
        enqueue_(std::move(enqueue)) {}

  void copy(CopyDirection direction, const PageId* from, const PageId* to, int64_t count) noexcept override;

 private:
  const Plan* plan_;
  const PagePool* device_pool_;
  const PagePool* host_pool_;
  const Device* device_;
  Enqueue enqueue_;
  std::vector<void*> targets_;
  std::vector<const void*> sources_;
  std::vector<size_t> sizes_;
};

}  // namespace kvc
