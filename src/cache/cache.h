// The object behind kvc_cache: what a cache owns, and the parts that work on it.
//
//   sequences  add, remove, fork, pop, shift, windows, checkpoints, token trees
//   prefixes   blocks of tokens that sequences share by what they are: match, attach, insert, pin
//   events     what the prefix cache did, for routers
//   forward    the open forward and the calls on its layers and states
//   swaps      whole sequences to the host pool and back, and page copies by ids
//   files      whole sequences to state files and back
//   tiers      blocks of the prefix cache outside the process
//   transfers  sequences from and to other caches
//   exports    pool and page tables as DLPack tensors
//   debug      stored tokens and states in and out
//
// src/capi calls these functions and nothing below them: they take and return ids, numbers and
// views of tensors. A new way in or out is a part of its own here.
#pragma once

#include <cstdint>
#include <memory>

#include "kvcache.h"
#include "src/cache/cache_forward.h"
#include "src/cache/cache_sequences.h"
#include "src/cache/cache_tiers.h"
#include "src/cache/debug_access.h"
#include "src/cache/exports.h"
#include "src/cache/page_bytes.h"
#include "src/cache/prefix_cache.h"
#include "src/cache/sequence_files.h"
#include "src/cache/swap_store.h"
#include "src/cache/transfers.h"
#include "src/device/device.h"
#include "src/device/gpu.h"
#include "src/plan/plan.h"

namespace kvc {

struct CacheCore;

// Every function throws Error or std::bad_alloc; nothing has changed then. Threads: as kvcache.h
// says for kvc_cache.
class Cache {
  // Before the parts, which borrow it.
  const std::unique_ptr<CacheCore> core_;

 public:
  explicit Cache(std::shared_ptr<const Plan> plan);
  ~Cache();
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  CacheSequences sequences;
  PrefixCache prefixes;
  PrefixEvents events;
  SwapStore swaps;
  SequenceFiles files;
  CacheTiers tiers;
  CacheExports exports;
  PageBytes pages;
  DebugAccess debug;
  CacheForward forward;      // No call finds by its handle a cache that is half gone.
  CacheTransfers transfers;  // Last: nothing arrives in a cache that is half gone.

  const Spec& spec() const;
  // For tests.
  const CacheCore& core() const { return *core_; }

  void clear();
  void resize(int64_t num_pages);
  int64_t trim();  // Returns bytes.
  bool is_empty() const;
  int64_t num_available_pages() const;
  kvc_stats stats() const;
  // Throws CORRUPT naming the page, the state slot or the sequence.
  void check() const;

  // Throws DEVICE once the device has failed, in this call or before.
  void require_alive() const;
  // For record(); empty where calls are complete on return.
  DeviceEvent make_event() const;
  // The event stands for everything that calls on this stream have enqueued so far.
  void record(const DeviceEvent& event, CallStream stream) noexcept;
};

}  // namespace kvc
