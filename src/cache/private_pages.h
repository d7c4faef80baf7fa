// Pages of a sequence's own, where its stored tokens are about to be rewritten in place.
#pragma once

#include <cstdint>
#include <vector>

#include "src/cache/cache_core.h"

namespace kvc {

// Pages that other sequences refer to, or that the prefix index knows, are copied first.
//
//   PrivatePages pages(core, sequence);
//   pages.add(begin, end, groups);  pages.check();  pages.prepare();  …  pages.copy(stream);
class PrivatePages {
 public:
  // Borrows both.
  PrivatePages(CacheCore& core, Sequence& sequence) : core_(core), sequence_(sequence) {}

  // Tokens [begin, end) are rewritten in the layer groups that are marked, one entry per group.
  void add(int64_t begin, int64_t end, std::vector<uint8_t> groups);
  // So many pages are taken besides, after copy().
  void add_fresh(int64_t count) { num_fresh_ += count; }
  // Throws NO_PAGES when the copies and the fresh pages do not fit.
  void check();
  // Makes room for the copies, after check(). Throws std::bad_alloc.
  void prepare();
  // The sequence's tables name the copies from here on, and fresh pages are free.
  void copy(CallStream stream) noexcept;

 private:
  struct Range {
    int64_t begin, end;
    std::vector<uint8_t> groups;
  };
  // Pages of a range that cannot be rewritten as they are.
  struct Shared {
    int64_t held = 0;    // Others refer to them: they have to be copied.
    int64_t cached = 0;  // The index alone knows them: copied while pages are available.
  };
  template <typename Visit>
  void visit(const Range& range, Visit&& visit) const;
  Shared count(const Range& range) const;
  // Pages to copy of these: the index forgets cached ones that do not fit.
  int64_t num_copies(const Shared& shared) const {
    return shared.held + (forgets_cached_ ? 0 : shared.cached);
  }
  void replace(const Range& range, CallStream stream) noexcept;

  CacheCore& core_;
  Sequence& sequence_;
  std::vector<Range> ranges_;
  Shared shared_;
  int64_t num_fresh_ = 0;
  bool forgets_cached_ = false;
  std::vector<PageCopy> copies_;
};

}  // namespace kvc
