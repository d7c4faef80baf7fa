#include "src/cache/private_pages.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"

namespace kvc {

void PrivatePages::add(int64_t begin, int64_t end, std::vector<uint8_t> groups) {
  ranges_.push_back({begin, end, std::move(groups)});
  const Shared shared = count(ranges_.back());
  shared_.held += shared.held;
  shared_.cached += shared.cached;
}

template <typename Visit>
void PrivatePages::visit(const Range& range, Visit&& visit) const {
  for (size_t group = 0; group < range.groups.size(); ++group) {
    if (range.groups[group] == 0) continue;
    const PageList& pages = sequence_.tables[group].pages;
    const int32_t page_size = core_.group(group).page_size;
    const int64_t end = std::min(ceil_div(range.end, page_size), pages.size());  // Kept rows end.
    for (int64_t i = range.begin / page_size; i < end; ++i) {
      const PageId page = pages[i];
      if (page != kNoPage && !is_private(core_.allocator, page)) visit(group, i, page);
    }
  }
}

PrivatePages::Shared PrivatePages::count(const Range& range) const {
  Shared shared;
  visit(range, [&](size_t, int64_t, PageId page) {
    ++(core_.allocator.refs(page) > 1 ? shared.held : shared.cached);
  });
  return shared;
}

void PrivatePages::check() {
  const int64_t available = core_.allocator.num_available();
  const int64_t needed = shared_.held + num_fresh_;
  if (needed > available) {
    fail_with(
        KVC_E_NO_PAGES, needed - available,
        "sequence %lld shares %lld pages that have to be copied and needs %lld new ones, %lld "
        "are free: %lld missing",
        ll(sequence_.id), ll(shared_.held), ll(num_fresh_), ll(available), ll(needed - available));
  }
  forgets_cached_ = needed + shared_.cached > available;
}

void PrivatePages::prepare() { copies_.reserve(num_copies(shared_)); }

void PrivatePages::replace(const Range& range, CallStream stream) noexcept {
  const Shared shared = count(range);
  if (forgets_cached_) {
    visit(range, [&](size_t, int64_t, PageId page) {
      if (core_.allocator.refs(page) == 1) core_.index.eviction().forget_page(page);
    });
  }
  core_.index.eviction().evict_for(num_copies(shared), stream);
  visit(range, [&](size_t group, int64_t i, PageId page) {
    sequence_.invalidate_tables();
    PageTable& table = sequence_.tables[group];
    const PageId previous = i == 0 ? kNoPage : table.pages[i - 1];
    const PageId copy = core_.allocator.take(previous, 0);
    copies_.push_back({page, copy, static_cast<int32_t>(group)});
    table.pages.set(i, copy);
    table.send_from(i);
  });
}

void PrivatePages::copy(CallStream stream) noexcept {
  for (const Range& range : ranges_) replace(range, stream);
  if (num_fresh_ > 0) core_.index.eviction().evict_for(num_fresh_, stream);
  core_.device->copy_group_pages(copies_, stream);
  for (const PageCopy& copy : copies_) core_.allocator.drop_ref(copy.from);
  core_.counters.pages_copied += copies_.size();
  core_.note_pages_used();
}

}  // namespace kvc
