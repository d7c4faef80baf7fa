#include "src/exec/cpu/device.h"

#include <algorithm>
#include <cstring>

#include "src/base/math.h"
#include "src/exec/cpu/work_list.h"
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

  // The next pages, together where they are a run.
  PageRun next(int64_t begin, int64_t end) const { return run_at(from, to, begin, end); }
  bool is_noop(const PageRun& run) const { return source == target && run.from == run.to; }
};

CpuPageCopies::Region CpuPageCopies::region(const Job& job, int64_t index) const {
  const PagePool::Stripe source = job.source->stripe(index), target = job.target->stripe(index);
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
    const int64_t copies = s.is_dense() ? 1 : run.count;
    const int64_t bytes = s.bytes * (run.count / copies);
    for (int64_t copy = 0; copy < copies; ++copy) {
      const int64_t from = run.from + copy;
      if (copy + 1 < copies || i < end) s.prefetch(copy + 1 < copies ? from + 1 : next.from);
      kernels_->copy(s.to + (run.to + copy) * s.to_stride, s.from + from * s.from_stride,
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
  const int64_t num_regions = device_->num_stripes();
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

CpuDevice::CpuDevice(const Plan& plan, const PagePool* pool, const PagePool* host)
    : spec_(&plan.spec()),
      pool_(pool),
      kernels_(choose_kernels(spec_->cpu_isa, "config.cpu_isa")),
      executor_(spec_->has_executor ? Executor(spec_->executor) : Executor(spec_->num_threads)),
      copies_(&plan, pool, host, kernels_, &executor_) {}

// ---- Pages and states

// Neighbours are cleared together where they lie together.
void CpuDevice::clear_pages(const std::vector<PageId>& pages) noexcept {
  if (pages.empty() || pool_->regions().empty()) return;
  const auto num_pages = static_cast<int64_t>(pages.size());
  const int64_t num_slots = pool_->num_stripes();
  const auto clear = [&](int64_t slot, int64_t begin, int64_t end) {
    const PagePool::Stripe stripe = pool_->stripe(slot);
    for (int64_t i = begin; i < end;) {
      int64_t count = 1;
      while (i + count < end && stripe.stride == stripe.bytes &&
             pages[i + count] == pages[i] + count)
        ++count;
      std::memset(stripe.base + pages[i] * stripe.stride, 0,
                  static_cast<size_t>(stripe.bytes * count));
      i += count;
    }
  };
  double bytes = 0;
  for (int64_t slot = 0; slot < num_slots; ++slot)
    bytes += static_cast<double>(pool_->stripe(slot).bytes) * static_cast<double>(num_pages);
  if (executor_.concurrency() > 1 && bytes / kCopyBytesPerSecond >= kWorthThreads) {
    constexpr int64_t kPagesPerTask = 16;
    const int64_t tasks = ceil_div(num_pages, kPagesPerTask);
    try {
      executor_.run(num_slots * tasks, [&](int64_t task, int32_t) {
        const int64_t begin = task % tasks * kPagesPerTask;
        clear(task / tasks, begin, std::min(num_pages, begin + kPagesPerTask));
      });
      return;
    } catch (...) {
      // A host's executor that throws although it must not. Clearing once more is right, whatever
      // it has done.
    }
  }
  for (int64_t slot = 0; slot < num_slots; ++slot) clear(slot, 0, num_pages);
}

void CpuDevice::copy_group_pages(const std::vector<PageCopy>& copies, CallStream) noexcept {
  if (copies.empty() || !pool_->has_storage()) return;
  // One task per page and layer of its group; groups have at most longest_group layers.
  const auto num_slots = static_cast<int64_t>(spec_->longest_group());
  int64_t most_bytes = 0;
  const auto copy_one = [&](int64_t task, int32_t) {
    const PageCopy& copy = copies[task / num_slots];
    const std::vector<int32_t>& layers = spec_->groups[copy.group].layers;
    if (task % num_slots >= static_cast<int64_t>(layers.size())) return;
    const int32_t layer = layers[task % num_slots];
    const LayerPages& pages = pool_->layer(layer);
    kernels_->copy(pages.base + copy.to * pages.page_stride,
                   pages.base + copy.from * pages.page_stride, pool_->layer_page_bytes(layer));
  };
  for (const int32_t layer : spec_->groups[copies.front().group].layers)
    most_bytes += static_cast<int64_t>(pool_->layer_page_bytes(layer));
  const int64_t num_tasks = static_cast<int64_t>(copies.size()) * num_slots;
  const double bytes = static_cast<double>(most_bytes) * static_cast<double>(copies.size());
  if (bytes / kCopyBytesPerSecond >= kWorthThreads) {
    try {
      executor_.run(num_tasks, copy_one);
      return;
    } catch (...) {
      // A host's executor that throws although it must not. Sources do not change: copying once
      // more is right, whatever it has done.
    }
  }
  for (int64_t task = 0; task < num_tasks; ++task) copy_one(task, 0);
}

void CpuDevice::copy_bytes(void* to, const void* from, int64_t bytes, CallStream) noexcept {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

// Calls copy(stripe of the pool, packed stripe, bytes) for the stripes of the first bytes of packed
// pages.
template <typename Byte, typename Copy>
static void for_each_stripe(const PagePool& pool, const PageId* pages, int64_t count, int64_t bytes,
                            Byte* packed, const Copy& copy) {
  for (int64_t i = 0; i < count; ++i, packed += bytes) {
    for (int64_t index = 0; index < pool.num_stripes(); ++index) {
      const PagePool::Stripe stripe = pool.stripe(index);
      if (stripe.offset >= bytes) break;
      copy(stripe.base + pages[i] * stripe.stride, packed + stripe.offset,
           static_cast<size_t>(std::min(stripe.bytes, bytes - stripe.offset)));
    }
  }
}

void CpuDevice::read_pages(const PageId* pages, int64_t count, int64_t bytes, std::byte* to,
                           CallStream) const {
  for_each_stripe(
      *pool_, pages, count, bytes, to,
      [](const std::byte* page, std::byte* packed, size_t n) { std::memcpy(packed, page, n); });
}

void CpuDevice::write_pages(const PageId* pages, int64_t count, int64_t bytes,
                            const std::byte* from, CallStream) {
  for_each_stripe(*pool_, pages, count, bytes, from,
                  [this](std::byte* page, const std::byte* packed, size_t n) {
                    kernels_->copy(page, packed, static_cast<int64_t>(n));
                  });
}

void CpuDevice::read_bytes(std::byte* to, const std::byte* from, int64_t bytes, CallStream) const {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

void CpuDevice::write_bytes(std::byte* to, const std::byte* from, int64_t bytes, CallStream) {
  std::memcpy(to, from, static_cast<size_t>(bytes));
}

// ---- Rows

void CpuDevice::move_tokens(int32_t group, const TokenMoves& moves, CallStream) noexcept {
  const GroupSpec& spec = spec_->groups[group];
  for (size_t i = 0; i < moves.from.size(); ++i) {
    const int64_t from = moves.from[i], to = moves.to[i];
    for (const int32_t layer : spec.layers)
      pool_->copy_token(layer, from / spec.page_size, from % spec.page_size, to / spec.page_size,
                        to % spec.page_size);
  }
}

void CpuDevice::rotate_keys(int32_t local_layer, const kernels::Rotation& rotation,
                            const std::vector<int64_t>& slots, CallStream) noexcept {
  rotate_key_rows(*kernels_, spec_->layers[local_layer], pool_->k_rows(local_layer),
                  spec_->layer_page_size(local_layer), rotation, slots);
}

// One row of one head in a page of one token: the kernel that moves rows converts it.
void CpuDevice::convert(const Elements& to, const Elements& from, int64_t count, CallStream) const {
  const int32_t page = 0;
  kernels_->gather({.rows = {from.data, 0, 0, 0, from.dtype},
                    .pages = &page,
                    .out = {to.data, 0, 0, to.dtype},
                    .page_size = 1,
                    .num_heads = 1,
                    .dim = static_cast<int32_t>(count)},
                   0, 1);
}

}  // namespace kvc
