// One attached tier of one cache: its queue of puts, its breakers, its counters.
#pragma once

#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "kvcache.h"
#include "src/tiers/breaker.h"
#include "src/tiers/put_queue.h"
#include "src/tiers/tier.h"
#include "src/tiers/value.h"

namespace kvc {

// put() is called by one thread at a time, everything else by any.
class TierStore {
 public:
  // `name` for the log, borrowed; `shape` is borrowed too. Throws Error or std::bad_alloc.
  TierStore(std::unique_ptr<Tier> tier, const char* name, const ValueShape& shape,
            uint64_t queue_bytes, int32_t get_ms);
  // Writes what waits.
  ~TierStore();

  // ---- Puts

  // Memory for the next value, whose head is started; null: the tier has it already, or there is no
  // room, which is counted.
  std::byte* start_put(const TierKey& key, bool has_state) noexcept;
  // Queues the value that start_put() gave memory for.
  void finish_put(const TierKey& key) noexcept;
  // Bytes that could not be read from the cache.
  void fail_put(const TierKey& key) noexcept;
  // False: the time ran out.
  bool flush(TierTime deadline) noexcept { return queue_->wait(deadline); }

  // ---- Gets

  // When a call has to be over that reads so many bytes.
  TierTime deadline(uint64_t bytes) const noexcept;
  // The leading keys that are there, all heads checked.
  size_t find(std::span<const TierKey> keys, std::byte* heads, TierTime deadline) noexcept;
  // Values of known heads; checks them. What is not kOk is counted.
  void get(std::span<TierGet> gets, TierTime deadline) noexcept;

  void fill(kvc_tier_stats* stats) const noexcept;

 private:
  struct Counters {
    std::atomic<uint64_t> puts{0}, puts_dropped{0}, puts_failed{0}, bytes_put{0};
    std::atomic<uint64_t> lookups{0}, blocks_found{0};
    std::atomic<uint64_t> gets{0}, gets_missed{0}, gets_corrupt{0}, gets_timed_out{0},
        gets_failed{0}, bytes_got{0};
  };

  void write(std::span<TierPut> puts) noexcept;
  std::atomic<uint64_t>& known_at(const TierKey& key) const noexcept;
  static uint64_t tag(const TierKey& key, bool has_state) noexcept;
  void forget(const TierKey& key) noexcept { known_at(key) = 0; }

  const std::unique_ptr<Tier> tier_;
  const ValueShape* shape_;
  const int32_t get_ms_;
  // A full disk takes no writes, and can still be read.
  Breaker puts_breaker_, gets_breaker_;
  Counters counters_;
  // Tags of values that the tier was seen to have, so that they are not copied for nothing.
  const std::unique_ptr<std::atomic<uint64_t>[]> known_;
  // Last of all: its thread uses the rest.
  std::unique_ptr<PutQueue> queue_;
};

}  // namespace kvc
