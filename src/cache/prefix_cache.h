// The prefix cache: sequences begin with blocks of tokens that others have computed, and publish
// their own; events tell routers of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kvcache.h"
#include "src/prefix/events.h"
#include "src/prefix/keys.h"

namespace kvc {

struct CacheCore;
struct PrefixMatch;
struct TierRun;

// Every function throws Error or std::bad_alloc; nothing has changed then.
class PrefixCache {
 public:
  explicit PrefixCache(CacheCore& core) : core_(core) {}

  int32_t block_tokens() const;

  // Each returns the tokens that its function of kvcache.h reports.
  int64_t match(const PrefixQuery& query) const;
  int64_t attach(kvc_seq id, const PrefixQuery& query);
  int64_t insert(kvc_seq id, const PrefixQuery& query);
  int64_t pin(const PrefixQuery& query);
  int64_t unpin(const PrefixQuery& query);
  // Returns how many pages left the device.
  int64_t evict(int64_t pages);
  void reset();
  // At most so many bytes for the namespace of `root`.
  void set_quota(const BlockKey& root, uint64_t max_bytes);

 private:
  struct AttachPlan;
  AttachPlan plan_attach(KeyChain& chain, bool whole_blocks) const;
  TierRun find_run(KeyChain& chain, AttachPlan* plan) const;
  PrefixMatch fetch_match(KeyChain& chain, const AttachPlan& plan) noexcept;

  CacheCore& core_;
};

// Events of the prefix cache, for routers that follow what it holds.
class PrefixEvents {
 public:
  explicit PrefixEvents(CacheCore& core) : core_(core) {}

  // Throws UNSUPPORTED for a cache that makes no events.
  void require_used() const;
  // The number of the newest event.
  uint64_t num_made() const;
  // The oldest event that was not polled yet; false when there is none.
  bool poll(kvc_event* out);
  // Everything held as STORED events, parents first. Throws std::bad_alloc.
  std::vector<Event> snapshot() const;
  // The event as callers see it. Its tokens are borrowed from the index.
  kvc_event describe(const Event& event, uint64_t number) const;

 private:
  CacheCore& core_;
};

}  // namespace kvc
