// What fails again and again in a tier is left alone for a while, longer each time.
#pragma once

#include <chrono>
#include <cstdint>
#include <mutex>

#include "src/tiers/tier.h"

namespace kvc {

// Any thread.
class Breaker {
 public:
  // For the log, borrowed: the tier ("file", "Redis") and what it does ("reads", "writes").
  Breaker(const char* tier, const char* what) : tier_(tier), what_(what) {}

  // False: the tier is left alone now.
  bool allows() noexcept;
  void succeeded() noexcept;
  void failed(const TierFailure& failure) noexcept;

 private:
  static constexpr int32_t kFailures = 3;  // In a row.
  static constexpr std::chrono::seconds kFirst{1}, kLongest{60};

  const char* tier_;
  const char* what_;
  std::mutex mutex_;
  int32_t failures_ = 0;
  std::chrono::seconds pause_{0};
  TierTime closed_until_{};
};

}  // namespace kvc
