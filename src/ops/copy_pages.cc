// CpuOperators::copy_pages: whole pages inside a pool of any strides.
#include <algorithm>
#include <cstdlib>
#include <utility>

#include "src/base/error.h"
#include "src/exec/cpu/runner.h"
#include "src/ops/cpu_operators.h"

namespace kvc {
namespace {

using kernels::PagedRows;

void copy_page(const kernels::cpu::KernelTable& kernels, const PagedRows& rows,
               const PageRuns& runs, int64_t from, int64_t to) {
  for (int64_t outer = 0; outer < runs.outer_count; ++outer) {
    for (int64_t inner = 0; inner < runs.inner_count; ++inner) {
      const int64_t offset = outer * runs.outer_stride + inner * runs.inner_stride;
      kernels.copy(rows.base + to * rows.page_stride + offset,
                   rows.base + from * rows.page_stride + offset, static_cast<size_t>(runs.bytes));
    }
  }
}

// A run of one page may not reach into that of the next: copies go through memcpy.
void check_pages_apart(const char* name, const PagedRows& rows, const PageRuns& runs) {
  if (std::abs(rows.page_stride) >= runs.bytes) return;
  fail_with(KVC_E_SHAPE, rows.page_stride,
            "%s has pages %lld bytes apart, but %lld bytes of each lie together: they overlap",
            name, ll(rows.page_stride), ll(runs.bytes));
}

void check_pairs(const OpPool& pool, const int64_t* pairs, int64_t stride, int64_t num_pairs) {
  std::vector<int64_t> targets;
  targets.reserve(num_pairs);
  for (int64_t i = 0; i < num_pairs; ++i) {
    for (int side = 0; side < 2; ++side) {
      const int64_t page = pairs[i * stride + side];
      if (page < 0 || page >= pool.num_pages) {
        fail_with(KVC_E_OUT_OF_RANGE, page,
                  "pairs[%lld][%d] = %lld out of range: the pool has %lld pages", ll(i), side,
                  ll(page), ll(pool.num_pages));
      }
    }
    targets.push_back(pairs[i * stride + 1]);
  }
  std::sort(targets.begin(), targets.end());
  const auto twice = std::adjacent_find(targets.begin(), targets.end());
  if (twice != targets.end())
    fail_with(KVC_E_INVALID_ARGUMENT, *twice, "pairs: page %lld is the destination of two copies",
              ll(*twice));
  for (int64_t i = 0; i < num_pairs; ++i) {
    const int64_t from = pairs[i * stride];
    if (std::binary_search(targets.begin(), targets.end(), from)) {
      fail_with(KVC_E_INVALID_ARGUMENT, from,
                "pairs[%lld]: page %lld is a source and a destination", ll(i), ll(from));
    }
  }
}

}  // namespace

void CpuOperators::copy_pages(const OpPool& pool, const int64_t* pairs, int64_t stride,
                              int64_t num_pairs) {
  check_pairs(pool, pairs, stride, num_pairs);
  const PageRuns k_runs = runs_of(pool.k, pool.num_heads, pool.page_size, pool.k_dim);
  const PageRuns v_runs = runs_of(pool.v, pool.num_heads, pool.page_size, pool.v_dim);
  if (num_pairs > 0) {
    check_pages_apart("pool.k", pool.k, k_runs);
    if (!pool.v_in_k) check_pages_apart("pool.v", pool.v, v_runs);
  }
  const auto copy_one = [&](int64_t i, int32_t) {
    const int64_t from = pairs[i * stride], to = pairs[i * stride + 1];
    copy_page(*kernels_, pool.k, k_runs, from, to);
    if (!pool.v_in_k) copy_page(*kernels_, pool.v, v_runs, from, to);
  };
  const double bytes = 4.0 * static_cast<double>(num_pairs) * pool.num_heads * pool.page_size *
                       (pool.k_dim + pool.v_dim);
  if (bytes / kCopyBytesPerSecond < kWorthThreads) {
    for (int64_t i = 0; i < num_pairs; ++i) copy_one(i, 0);
  } else {
    executor_.run(num_pairs, copy_one);
  }
}

}  // namespace kvc
