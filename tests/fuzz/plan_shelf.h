// Plans that were made before. Finding the groups of a model takes longer than the life of a small
// cache.
#pragma once

#include <cstdint>
#include <map>

#include "kvcache.h"
#include "tests/fuzz/sized_struct.h"

namespace kvc::fuzz {

class PlanShelf {
 public:
  // The plan of a configuration, whose choices `key` numbers; nullptr: it is refused.
  const kvc_plan* get(uint64_t key, const kvc_config& config) {
    if (const auto found = plans_.find(key); found != plans_.end()) return found->second;
    if (plans_.size() >= kMost) clear();
    kvc_plan* plan = nullptr;
    const kvc_status status = kvc_plan_create(&config, &plan, nullptr);
    KVC_FUZZ_CHECK((plan != nullptr) == (status == KVC_OK));
    return plans_[key] = plan;
  }
  ~PlanShelf() { clear(); }

 private:
  static constexpr size_t kMost = 4096;
  void clear() {
    for (const auto& [key, plan] : plans_) kvc_plan_destroy(plan);
    plans_.clear();
  }
  std::map<uint64_t, kvc_plan*> plans_;
};

}  // namespace kvc::fuzz
