// A tier in memory that can do everything wrong that a tier can do.
#pragma once

#include <atomic>
#include <cstring>
#include <map>
#include <mutex>
#include <random>
#include <thread>
#include <vector>

#include "src/tiers/tier.h"

namespace kvc::test {

// What the tier holds and how it fails. It outlives the tier, as a server does.
struct FakeStore {
  std::mutex mutex;
  std::map<TierKey, std::vector<std::byte>> values;
  std::mt19937_64 random{1};
  // Of 100 operations, how many fail, lose, damage or cut what they work on.
  int fails = 0, loses = 0, damages = 0, swaps = 0;
  std::atomic<bool> holds_puts{false};  // put() does not return meanwhile.
  std::atomic<int64_t> num_puts{0}, num_gets{0}, num_finds{0};

  bool happens(int percent) { return static_cast<int>(random() % 100) < percent; }
};

class FakeTier final : public Tier {
 public:
  explicit FakeTier(FakeStore* store) : store_(store) {}

  void put(std::span<TierPut> puts, TierFailure* failure) noexcept override {
    while (store_->holds_puts) std::this_thread::yield();
    const std::lock_guard lock(store_->mutex);
    for (TierPut& put : puts) {
      ++store_->num_puts;
      put.result = TierResult::kFailed;
      if (store_->happens(store_->fails)) {
        failure->set("the fake fails to write");
        continue;
      }
      put.result = TierResult::kOk;
      if (!put.replaces && store_->values.count(put.key) != 0) continue;
      if (!store_->happens(store_->loses))
        store_->values[put.key].assign(put.data, put.data + put.size);
    }
  }

  void get(std::span<TierGet> gets, TierTime, TierFailure* failure) noexcept override {
    const std::lock_guard lock(store_->mutex);
    for (TierGet& get : gets) {
      ++store_->num_gets;
      get.result = TierResult::kMiss;
      if (store_->happens(store_->fails)) {
        get.result = store_->happens(50) ? TierResult::kFailed : TierResult::kTimeout;
        failure->set("the fake fails to read");
        continue;
      }
      auto found = store_->values.find(get.key);
      if (found == store_->values.end() || store_->happens(store_->loses)) continue;
      if (store_->happens(store_->swaps)) {  // Another block's value.
        if (++found == store_->values.end()) found = store_->values.begin();
      }
      if (found->second.size() != get.size) continue;
      std::memcpy(get.data, found->second.data(), get.size);
      if (store_->happens(store_->damages))
        get.data[store_->random() % get.size] ^= std::byte{1} << (store_->random() % 8);
      get.result = TierResult::kOk;
    }
  }

  TierResult find(std::span<const TierKey> keys, size_t head_bytes, std::byte* heads, size_t* found,
                  TierTime, TierFailure* failure) noexcept override {
    const std::lock_guard lock(store_->mutex);
    ++store_->num_finds;
    *found = 0;
    for (const TierKey& key : keys) {
      if (store_->happens(store_->fails)) {
        failure->set("the fake fails to look");
        return TierResult::kFailed;
      }
      const auto value = store_->values.find(key);
      if (value == store_->values.end() || store_->happens(store_->loses)) break;
      std::byte* head = heads + *found * head_bytes;
      std::memcpy(head, value->second.data(), head_bytes);
      if (store_->happens(store_->damages))
        head[store_->random() % head_bytes] ^= std::byte{1} << (store_->random() % 8);
      ++*found;
    }
    return TierResult::kOk;
  }

  uint64_t stored_bytes() noexcept override {
    const std::lock_guard lock(store_->mutex);
    uint64_t bytes = 0;
    for (const auto& [key, value] : store_->values) bytes += value.size();
    return bytes;
  }

 private:
  FakeStore* store_;
};

}  // namespace kvc::test
