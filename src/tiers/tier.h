// What a tier is to the cache: a store of values by key, which may lose any of them at any time.
// Modules implement it (src/tiers/rocksdb, src/tiers/redis), each in a shared object of its own.
//
// Everything here crosses the boundary of a module, where nothing is thrown.
#pragma once

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>

#include "kvcache.h"
#include "src/base/modules.h"

namespace kvc {

using TierKey = std::array<uint8_t, KVC_HASH_BYTES>;
using TierTime = std::chrono::steady_clock::time_point;

enum class TierResult : int32_t { kOk, kMiss, kFailed, kTimeout };

// For the log and for the error of kvc_tier_attach.
using TierFailure = ModuleFailure;

// A value begins with its head (src/tiers/value.h), which a tier hands out without the rest.
struct TierPut {
  TierKey key;
  std::byte* data;
  size_t size;
  bool replaces;  // The value says more than one that may be there. False: an old one may stay.
  TierResult result;
};

struct TierGet {
  TierKey key;
  std::byte* data;  // Room for `size` bytes.
  size_t size;      // Bytes of the value. A value of another size is a miss.
  TierResult result;
};

// Every function may be called from any thread, at the same time as any other. A failure is written
// to `failure`; results say what it hit.
class Tier {
 public:
  virtual ~Tier() = default;
  // Sets every result to kOk or kFailed or kTimeout.
  virtual void put(std::span<TierPut> puts, TierFailure* failure) noexcept = 0;
  // Sets every result. Returns about when the deadline has passed, at the latest.
  virtual void get(std::span<TierGet> gets, TierTime deadline, TierFailure* failure) noexcept = 0;
  // The heads of the leading keys that are there, [*found][head_bytes]. kOk also where it is none.
  virtual TierResult find(std::span<const TierKey> keys, size_t head_bytes, std::byte* heads,
                          size_t* found, TierTime deadline, TierFailure* failure) noexcept = 0;
  // Bytes that the tier holds, as far as it knows.
  virtual uint64_t stored_bytes() noexcept = 0;
};

// What a module is opened with: the fields of kvc_tier_desc, checked and without defaults. Borrowed
// for the call.
struct TierConfig {
  const char* address;
  const char* username;  // Nullable.
  const char* password;  // Nullable.
  uint64_t byte_limit;
  int64_t ttl_s;
  int32_t connect_ms;
  int32_t put_ms;
  uint64_t head_bytes;
  uint64_t value_bytes;  // The largest value.
  // The library's log.
  void (*log)(kvc_log_level level, const char* format, ...) noexcept;
};

struct TierModule {
  ModuleTable table;
  // Null with a failure: the reason that kvc_tier_attach reports.
  Tier* (*open)(const TierConfig& config, TierFailure* failure);
};

// The modules of tiers, found at run time.

// Null: there is no module of this tier, and `why` (nullable) names the file looked for.
const TierModule* find_tier_module(kvc_tier tier, std::string* why);
// Throws UNSUPPORTED with the reason.
const TierModule& require_tier_module(kvc_tier tier);

}  // namespace kvc
