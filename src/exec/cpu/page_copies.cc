#include "src/exec/cpu/page_copies.h"

#include <algorithm>

#include "src/base/math.h"
#include "src/exec/cpu/runner.h"
#include "src/exec/page_pairs.h"
#include "src/exec/row_moves.h"

namespace kvc {
namespace {

// What one task moves: some tens of microseconds, so that taking the next task does not show.
constexpr int64_t kTaskBytes = int64_t{512} << 10;
constexpr int64_t kCacheLine = 64;
constexpr int64_t kPrefetchBytes = 1024;

}  // namespace

// One region of the pages, or the whole page where its regions lie together.
struct CpuPageCopies::Region {
  const std::byte* from;
  int64_t from_stride;
  std::byte* to;
  int64_t to_stride;
  int64_t bytes;

  // Adjacent pages are adjacent bytes. Not so in borrowed pools whose pages stand apart: what lies
  // between is not ours to copy.
  bool is_dense() const { return from_stride == bytes && to_stride == bytes; }
  // Asks for the beginning of the next page while this one is copied, because the processor does
  // not foresee where that is: pages in random order come 5 to 7 % faster.
  void prefetch(int64_t page) const {
    const std::byte* begin = from + page * from_stride;
    for (int64_t i = 0; i < std::min(bytes, kPrefetchBytes); i += kCacheLine)
      __builtin_prefetch(begin + i);
  }
};

struct CpuPageCopies::Job {
  const PagePool* source;
  const PagePool* target;
  const PageId* from;
  const PageId* to;
  int64_t count;
  int64_t num_regions;

  // The next pages, in one piece where they are a run.
  PageRun next(int64_t begin, int64_t end) const { return run_at(from, to, begin, end); }
  bool is_noop(const PageRun& run) const { return source == target && run.from == run.to; }
};

CpuPageCopies::Region CpuPageCopies::region(const Job& job, int64_t index) const {
  const PagePool::Piece source = job.source->piece(index), target = job.target->piece(index);
  return {source.base, source.stride, target.base, target.stride, source.bytes};
}

void CpuPageCopies::copy_pages(const Job& job, int64_t region_index, int64_t begin,
                               int64_t end) const {
  const Region s = region(job, region_index);
  PageRun next = job.next(begin, end);
  for (int64_t i = begin; i < end;) {
    const PageRun run = next;
    i += run.count;
    if (i < end) next = job.next(i, end);
    if (job.is_noop(run)) continue;
    const int64_t pieces = s.is_dense() ? 1 : run.count;
    const int64_t bytes = s.bytes * (run.count / pieces);
    for (int64_t piece = 0; piece < pieces; ++piece) {
      const int64_t from = run.from + piece;
      if (piece + 1 < pieces || i < end) s.prefetch(piece + 1 < pieces ? from + 1 : next.from);
      kernels_->copy(s.to + (run.to + piece) * s.to_stride, s.from + from * s.from_stride,
                     static_cast<size_t>(bytes));
    }
  }
}

// Bytes [part * kTaskBytes, (part + 1) * kTaskBytes) of the region of one page.
void CpuPageCopies::copy_part(const Job& job, int64_t region_index, int64_t pair,
                              int64_t part) const {
  static_assert(kTaskBytes % kCacheLine == 0);
  const PageRun page = job.next(pair, pair + 1);
  const Region s = region(job, region_index);
  const int64_t offset = part * kTaskBytes;
  if (job.is_noop(page) || offset >= s.bytes) return;
  kernels_->copy(s.to + page.to * s.to_stride + offset, s.from + page.from * s.from_stride + offset,
                 static_cast<size_t>(std::min(kTaskBytes, s.bytes - offset)));
}

// Tasks of several pages of a region, or of a part of one where pages are large.
void CpuPageCopies::spread(const Job& job) const {
  int64_t largest = 0;
  for (int64_t i = 0; i < job.num_regions; ++i) largest = std::max(largest, region(job, i).bytes);
  const int64_t parts = ceil_div(largest, kTaskBytes);
  const int64_t pages = std::max<int64_t>(1, kTaskBytes / largest);
  const int64_t tasks_per_region = parts * ceil_div(job.count, pages);
  executor_->run(job.num_regions * tasks_per_region, [&](int64_t task, int32_t) {
    const int64_t region_index = task / tasks_per_region, place = task % tasks_per_region;
    if (parts > 1) {
      copy_part(job, region_index, place / parts, place % parts);
    } else {
      copy_pages(job, region_index, place * pages, std::min(job.count, (place + 1) * pages));
    }
  });
}

int64_t CpuPageCopies::count_runs(const Job& job) const {
  bool is_dense = true;
  for (int64_t i = 0; i < job.num_regions; ++i) is_dense = is_dense && region(job, i).is_dense();
  int64_t runs = 0;
  for (int64_t i = 0; i < job.count;) {
    const PageRun run = job.next(i, job.count);
    i += run.count;
    if (!job.is_noop(run)) runs += is_dense ? 1 : run.count;
  }
  return runs;
}

void CpuPageCopies::copy(CopyDirection direction, const PageId* from, const PageId* to,
                         int64_t count) noexcept {
  // Pages of a plan without layers that keep any have no memory, in either layout.
  if (count == 0 || plan_->layout().regions.empty() || !device_->has_storage()) return;
  const int64_t num_regions = device_->num_pieces();
  const Job job{direction == CopyDirection::kHostToDevice ? host_ : device_,
                direction == CopyDirection::kDeviceToHost ? host_ : device_,
                from,
                to,
                count,
                num_regions};
  num_runs_ += static_cast<uint64_t>(count_runs(job));
  const double bytes = static_cast<double>(plan_->layout().page_bytes) * static_cast<double>(count);
  if (executor_->concurrency() > 1 && bytes / kCopyBytesPerSecond >= kWorthThreads) {
    try {
      spread(job);
      return;
    } catch (...) {
      // A host's executor that throws although it must not. Sources do not change: copying once
      // more is right, whatever it has done.
    }
  }
  for (int64_t i = 0; i < num_regions; ++i) copy_pages(job, i, 0, count);
}

}  // namespace kvc
