#include "src/tiers/breaker.h"

#include <algorithm>

#include "src/base/log.h"

namespace kvc {

bool Breaker::allows() noexcept {
  const std::lock_guard lock(mutex_);
  return failures_ < kFailures || std::chrono::steady_clock::now() >= closed_until_;
}

void Breaker::succeeded() noexcept {
  const std::lock_guard lock(mutex_);
  if (failures_ == 0) return;
  failures_ = 0;
  pause_ = std::chrono::seconds(0);
  log(KVC_LOG_INFO, "%s tier: %s work again", tier_, what_);
}

void Breaker::failed(const TierFailure& failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (failures_++ == 0) log(KVC_LOG_WARNING, "%s tier: %s: %s", tier_, what_, failure.text);
  if (failures_ < kFailures) return;
  pause_ = std::clamp(pause_ * 2, kFirst, kLongest);
  closed_until_ = std::chrono::steady_clock::now() + pause_;
  log(KVC_LOG_WARNING, "%s tier: no %s for %lld s: %s", tier_, what_,
      static_cast<long long>(pause_.count()), failure.text);
}

}  // namespace kvc
