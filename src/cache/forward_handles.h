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
// of destroyed caches serve others and go on counting. An entry whose 2^35 forwards are used up,
// four days at one per 10 microseconds, is never used again, so that no number comes twice. The
// table grows with the caches that exist at once, and by these.
class ForwardHandle {
 public:
  // Takes an entry for the cache, which counts from `counted` on at least. Throws NO_MEMORY,
  // std::bad_alloc.
  explicit ForwardHandle(Cache* cache, uint64_t counted = 0);
  ~ForwardHandle();
  ForwardHandle(const ForwardHandle&) = delete;
  ForwardHandle& operator=(const ForwardHandle&) = delete;

  // Takes another entry where no forward is left in this one. Throws like the constructor.
  void prepare();
  // A forward begins, after prepare(); returns its handle.
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
