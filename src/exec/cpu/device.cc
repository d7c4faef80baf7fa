#include "src/exec/cpu/device.h"

#include <algorithm>
#include <cstring>

#include "src/base/math.h"
#include "src/exec/cpu/runner.h"
#include "src/exec/row_moves.h"

namespace kvc {

CpuDevice::CpuDevice(const Plan& plan, const PagePool* pool, const PagePool* host)
    : spec_(&plan.spec()),
      pool_(pool),
      kernels_(choose_kernels(spec_->cpu_isa, "config.cpu_isa")),
      executor_(spec_->has_executor ? Executor(spec_->executor) : Executor(spec_->num_threads)),
      copies_(&plan, pool, host, kernels_, &executor_) {}

// ---- Pages and states

// Neighbours are one piece where they lie together.
void CpuDevice::clear_pages(const std::vector<PageId>& pages) noexcept {
  if (pages.empty() || pool_->regions().empty()) return;
  const auto num_pages = static_cast<int64_t>(pages.size());
  const int64_t num_slots = pool_->num_pieces();
  const auto clear = [&](int64_t slot, int64_t begin, int64_t end) {
    const PagePool::Piece piece = pool_->piece(slot);
    for (int64_t i = begin; i < end;) {
      int64_t count = 1;
      while (i + count < end && piece.stride == piece.bytes && pages[i + count] == pages[i] + count)
        ++count;
      std::memset(piece.base + pages[i] * piece.stride, 0,
                  static_cast<size_t>(piece.bytes * count));
      i += count;
    }
  };
  double bytes = 0;
  for (int64_t slot = 0; slot < num_slots; ++slot)
    bytes += static_cast<double>(pool_->piece(slot).bytes) * static_cast<double>(num_pages);
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

// Calls copy(piece of the pool, packed piece, bytes) for the pieces of the first bytes of packed
// pages.
template <typename Byte, typename Copy>
static void for_each_piece(const PagePool& pool, const PageId* pages, int64_t count, int64_t bytes,
                           Byte* packed, const Copy& copy) {
  for (int64_t i = 0; i < count; ++i, packed += bytes) {
    for (int64_t index = 0; index < pool.num_pieces(); ++index) {
      const PagePool::Piece piece = pool.piece(index);
      if (piece.offset >= bytes) break;
      copy(piece.base + pages[i] * piece.stride, packed + piece.offset,
           static_cast<size_t>(std::min(piece.bytes, bytes - piece.offset)));
    }
  }
}

void CpuDevice::read_pages(const PageId* pages, int64_t count, int64_t bytes, std::byte* to,
                           CallStream) const {
  for_each_piece(
      *pool_, pages, count, bytes, to,
      [](const std::byte* page, std::byte* packed, size_t n) { std::memcpy(packed, page, n); });
}

void CpuDevice::write_pages(const PageId* pages, int64_t count, int64_t bytes,
                            const std::byte* from, CallStream) {
  for_each_piece(*pool_, pages, count, bytes, from,
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
