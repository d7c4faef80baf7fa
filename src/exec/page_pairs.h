// Which pages a caller wants copied where: a checked list, in an order that brings out the runs.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache.h"
#include "src/pages/allocator.h"

namespace kvc {

// Page from[i] goes to to[i]. Destinations are distinct and ascending, so that pairs which are
// neighbours in both pools are neighbours here, whatever order they came in.
struct PagePairs {
  std::vector<PageId> from, to;

  int64_t size() const { return static_cast<int64_t>(from.size()); }
};

// A pool that pairs name pages of; `name` appears in messages.
struct PairedPool {
  const char* name;
  int64_t num_pages;
};

// Reads int64 [n, 2] of (from, to). Throws a tensor status, OUT_OF_RANGE for a page that a pool
// does not have, INVALID_ARGUMENT for a destination named twice; both with detail = the row. Takes
// memory for the rows that can be valid, at most to.num_pages.
PagePairs read_page_pairs(const DLTensor* pairs, const PairedPool& from, const PairedPool& to);

// The same inside one pool. Throws INVALID_ARGUMENT for a page that is the source of one pair and
// the destination of another: what it would hold depends on the order. A page copied to itself is
// fine.
PagePairs read_page_pairs(const DLTensor* pairs, const PairedPool& pool);

// Pairs [begin, begin + count) as one stretch of pages in both pools, whichever end the list begins
// with.
struct PageRun {
  PageId from, to;  // its first pages
  int64_t count;
};

// The run that begins with pair `begin`, up to pair `end`: as many as are adjacent in both pools,
// all ascending or all descending.
PageRun run_at(const PageId* from, const PageId* to, int64_t begin, int64_t end) noexcept;

}  // namespace kvc
