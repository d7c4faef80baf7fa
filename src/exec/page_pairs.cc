#include "src/exec/page_pairs.h"

#include <algorithm>
#include <functional>

#include "src/base/error.h"
#include "src/base/tensor.h"

namespace kvc {
namespace {

// The rows of a checked tensor.
struct Rows {
  const int64_t* base;
  int64_t stride;

  int64_t at(int64_t row, int side) const { return base[row * stride + side]; }
};

void check_page(const Rows& rows, int64_t row, int side, const PairedPool& pool) {
  const int64_t page = rows.at(row, side);
  if (page < 0 || page >= pool.num_pages) {
    fail_with(KVC_E_OUT_OF_RANGE, row, "pairs[%lld][%d] = %lld out of range: the %s has %lld pages",
              ll(row), side, ll(page), pool.name, ll(pool.num_pages));
  }
}

// A destination and its row as one number that sorts by the destination.
uint64_t key_of(int64_t page, int64_t row) {
  return static_cast<uint64_t>(page) << 32 | static_cast<uint64_t>(row);
}
int64_t page_of(uint64_t key) { return static_cast<int64_t>(key >> 32); }
int64_t row_of(uint64_t key) { return static_cast<int64_t>(key & UINT32_MAX); }

// The first row whose destination an earlier row has.
void check_distinct(const std::vector<uint64_t>& keys) {
  int64_t repeated = -1, earlier = -1;
  for (size_t i = 1; i < keys.size(); ++i) {
    if (page_of(keys[i]) != page_of(keys[i - 1])) continue;
    if (repeated != -1 && row_of(keys[i]) >= repeated) continue;
    repeated = row_of(keys[i]);
    earlier = row_of(keys[i - 1]);
  }
  if (repeated == -1) return;
  const auto same = [&](uint64_t key) { return row_of(key) == repeated; };
  const int64_t page = page_of(*std::find_if(keys.begin(), keys.end(), same));
  fail_with(KVC_E_INVALID_ARGUMENT, repeated,
            "pairs[%lld][1] = %lld is the destination of pairs[%lld] already", ll(repeated),
            ll(page), ll(earlier));
}

}  // namespace

PagePairs read_page_pairs(const DLTensor* pairs, const PairedPool& from, const PairedPool& to) {
  check_integers(pairs, "pairs", 64, {-1, 2});
  const Rows rows{reinterpret_cast<const int64_t*>(data_of(*pairs)), stride_of(*pairs, 0)};
  // One row more than there are destinations proves that one comes twice; what follows need not be
  // looked at.
  const int64_t count = std::min(pairs->shape[0], to.num_pages + 1);
  std::vector<uint64_t> keys;
  keys.reserve(count);
  for (int64_t row = 0; row < count; ++row) {
    check_page(rows, row, 0, from);
    check_page(rows, row, 1, to);
    keys.push_back(key_of(rows.at(row, 1), row));
  }
  // By destination, and not by source, from which pages may go to several places: then these would
  // lie between the pages of a run.
  if (std::is_sorted(keys.begin(), keys.end(), std::greater<>())) {
    std::reverse(keys.begin(), keys.end());
  } else if (!std::is_sorted(keys.begin(), keys.end())) {
    std::sort(keys.begin(), keys.end());
  }
  check_distinct(keys);
  PagePairs result;
  result.from.reserve(keys.size());
  result.to.reserve(keys.size());
  for (const uint64_t key : keys) {
    result.from.push_back(static_cast<PageId>(rows.at(row_of(key), 0)));
    result.to.push_back(static_cast<PageId>(page_of(key)));
  }
  return result;
}

PagePairs read_page_pairs(const DLTensor* pairs, const PairedPool& pool) {
  PagePairs result = read_page_pairs(pairs, pool, pool);
  const Rows rows{reinterpret_cast<const int64_t*>(data_of(*pairs)), stride_of(*pairs, 0)};
  for (int64_t row = 0; row < result.size(); ++row) {
    const auto page = static_cast<PageId>(rows.at(row, 0));
    if (page == rows.at(row, 1)) continue;
    if (std::binary_search(result.to.begin(), result.to.end(), page)) {
      fail_with(KVC_E_INVALID_ARGUMENT, row,
                "pairs[%lld][0] = %d is the destination of another pair: the result would depend "
                "on the order",
                ll(row), page);
    }
  }
  return result;
}

PageRun run_at(const PageId* from, const PageId* to, int64_t begin, int64_t end) noexcept {
  int64_t last = begin;
  PageId step = 0;
  while (last + 1 < end) {
    const PageId next = from[last + 1] - from[last];
    if ((next != 1 && next != -1) || to[last + 1] - to[last] != next) break;
    if (step != 0 && next != step) break;
    step = next;
    ++last;
  }
  const int64_t first = step < 0 ? last : begin;
  return {from[first], to[first], last - begin + 1};
}

}  // namespace kvc
