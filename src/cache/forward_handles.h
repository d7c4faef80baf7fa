// Handles of forwards: numbers that are looked up in a table of the process, never dereferenced.
#pragma once

#include <cstdint>

#include "kvcache.h"

namespace kvc {

class Cache;
struct ForwardEntry;  // An entry of the table.

// The handle of a cache's open forward. A kvc_forward * is a number, not an address: the entry of
// its cache in the table, and a count that every forward of the entry increases. The entry says
// which handle is open, so one that is dead, or whose cache is gone, is told from it without
// touching memory that was freed. Entries of caches that are gone serve others, and go on counting:
// a number comes again after 2^47 forwards of one entry, which is 44 years at one per 10
// microseconds. The table grows with the caches that exist at once.
class ForwardHandle {
 public:
  // Takes an entry for the cache. Throws NO_MEMORY, std::bad_alloc.
  explicit ForwardHandle(Cache* cache);
  ~ForwardHandle();
  ForwardHandle(const ForwardHandle&) = delete;
  ForwardHandle& operator=(const ForwardHandle&) = delete;

  // The handle of a forward that begins now.
  kvc_forward* open() noexcept;
  // That one is dead.
  void close() noexcept;

  // The cache whose open forward it is; null: the handle is dead, or never was one. Threads: any.
  static Cache* find(const kvc_forward* handle) noexcept;

 private:
  ForwardEntry* entry_;
};

}  // namespace kvc
