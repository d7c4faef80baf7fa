#include "src/pages/host_pool.h"

#include "src/base/error.h"

namespace kvc {
namespace {

const char* name_of(HostUse use) {
  return use == HostUse::kByPage ? "page ids (kvc_pages_swap)" : "sequences and the prefix index";
}

}  // namespace

HostPool::HostPool(const std::shared_ptr<const Plan>& plan, int64_t num_pages, const Gpu* device)
    : plan_(plan), pool_(plan, num_pages, PoolPlace::kHost, device), allocator_(num_pages) {}

void HostPool::check_use(HostUse use, const char* what) const {
  if (num_pages() == 0) {
    fail(KVC_E_UNSUPPORTED,
         "%s needs a host pool: config.host_byte_budget = %llu holds no page of %lld bytes", what,
         static_cast<unsigned long long>(plan_->spec().host_byte_budget),
         ll(plan_->layout().page_bytes));
  }
  if (use_ != HostUse::kNone && use_ != use) {
    fail(KVC_E_INVALID_STATE,
         "%s uses the host pool by %s, and it is in use by %s until kvc_cache_clear", what,
         name_of(use), name_of(use_));
  }
}

void HostPool::clear() noexcept {
  allocator_.clear();
  use_ = HostUse::kNone;
}

}  // namespace kvc
