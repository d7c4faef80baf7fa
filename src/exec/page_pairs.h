// The page copies that a caller wants: a checked list, sorted so that runs of pages stand out.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache.h"
#include "src/pages/allocator.h"

namespace kvc {

// Page from[i] is copied to to[i]. Destinations are distinct and ascending, so that neighbours in
// both pools are neighbours here.
struct PagePairs {
  std::vector<PageId> from, to;

  int64_t size() const { return static_cast<int64_t>(from.size()); }
};

// A pool of the pairs; messages name it `name`.
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

// Pairs [begin, begin + count) as one run of pages in both pools, ascending or descending.
struct PageRun {
  PageId from, to;  // First pages of the run.
  int64_t count;
};

// The longest run that begins with pair `begin` and ends at pair `end` at most.
PageRun run_at(const PageId* from, const PageId* to, int64_t begin, int64_t end) noexcept;

}  // namespace kvc
