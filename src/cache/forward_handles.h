// Handles of forwards: numbers that are looked up in a table of the process, never dereferenced.
#pragma once

#include <cstdint>

#include "kvcache.h"

namespace kvc {

class Cache;
struct ForwardEntry;  // An entry of the table.

// The handle of a cache's open forward. A kvc_forward * is a number, not an address. It names the
// entry of its cache in the table, and a count that every forward of the entry increases. The entry
// says which handle is open, so a stale handle is recognised without touching freed memory. Entries
// of destroyed caches serve others and go on counting: a number comes again after 2^47 forwards of
// one entry, 44 years at one per 10 microseconds. The table grows with the caches that exist at
// once.
class ForwardHandle {
 public:
  // Takes an entry for the cache. Throws NO_MEMORY, std::bad_alloc.
  explicit ForwardHandle(Cache* cache);
  ~ForwardHandle();
  ForwardHandle(const ForwardHandle&) = delete;
  ForwardHandle& operator=(const ForwardHandle&) = delete;

  // A forward begins; returns its handle.
  kvc_forward* open() noexcept;
  // The forward is over, and its handle stale.
  void close() noexcept;

  // The cache whose open forward this is; null for a stale handle and for a number that never was
  // one. Any thread may call it.
  static Cache* find(const kvc_forward* handle) noexcept;

 private:
  ForwardEntry* entry_;
};

}  // namespace kvc
