#include "src/cache/page_moves.h"

#include <algorithm>

#include "src/cache/cache_core.h"
#include "src/exec/cuda/stream_order.h"

namespace kvc {

PageMoves::PageMoves(CacheCore& core, int64_t limit) : core_(core), limit_(limit) {
  for (PageId page = core.allocator.first_used(limit); page != kNoPage;
       page = core.allocator.first_used(page + 1))
    from_.push_back(page);
  to_.reserve(from_.size());
}

void PageMoves::copy() noexcept {
  // Cached pages above are not worth a copy. Once as many pages are free as are cut off, those
  // below the limit suffice for the pages that move.
  for (PageId page = core_.allocator.first_indexed(limit_); page != kNoPage;
       page = core_.allocator.first_indexed(page + 1)) {
    if (core_.allocator.refs(page) == 0) core_.index.eviction().forget_page(page);
  }
  core_.index.eviction().evict_for(core_.allocator.num_pages() - limit_, kOwnStream);
  for (size_t i = 0; i < from_.size(); ++i) to_.push_back(core_.allocator.take_lowest());
  core_.device->copy_pages(CopyDirection::kInsideDevice, from_.data(), to_.data(),
                           static_cast<int64_t>(from_.size()), kOwnStream);
  if (core_.executors.order != nullptr) core_.executors.order->drain();
}

PageId PageMoves::target(PageId page) const noexcept {
  return to_[static_cast<size_t>(std::lower_bound(from_.begin(), from_.end(), page) -
                                 from_.begin())];
}

void PageMoves::run() noexcept {
  copy();
  if (from_.empty()) return;
  core_.sequences.for_each([&](Sequence& sequence) {
    if (sequence.is_swapped) return;
    sequence.invalidate_tables();
    for (PageTable& table : sequence.tables) {
      table.pages.map_pages([&](PageId page) { return page < limit_ ? page : target(page); });
      table.synced_pages = 0;
    }
  });
  for (size_t i = 0; i < from_.size(); ++i) {
    core_.index.move_page(from_[i], to_[i]);
    core_.allocator.move_refs(from_[i], to_[i]);
  }
}

}  // namespace kvc
