// kvc_cache_check: recount every invariant from the sequences' tables and compare.
#include <vector>

#include "src/base/error.h"
#include "src/cache/cache.h"

namespace kvc {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

}  // namespace

void Cache::check() const {
  const int64_t num_pages = allocator_.num_pages();
  std::vector<int32_t> holders(static_cast<size_t>(num_pages), 0);
  const auto count = [&](const Sequence& sequence, PageId page) {
    if (page < 0 || page >= num_pages) {
      fail_with(KVC_E_CORRUPT, page, "sequence %lld holds page %d: the pool has %lld pages", ll(sequence.id),
                page, ll(num_pages));
    }
    ++holders[static_cast<size_t>(page)];
  };
  int64_t total_length = 0;
  int64_t in_forward = 0;
  std::vector<uint8_t> slot_seen;
  sequences_.for_each([&](const Sequence& sequence) {
    int64_t length = sequence.length;
    total_length += length;
    if (sequence.in_forward()) {
      ++in_forward;
      const std::vector<BatchEntry>& entries = forward_.batch().entries();
      const auto index = static_cast<size_t>(sequence.batch_index);
      if (index >= entries.size() || entries[index].sequence != &sequence ||
          entries[index].old_length != length) {
        fail_with(KVC_E_CORRUPT, sequence.id,
                  "sequence %lld says it is entry %d of the open forward, which disagrees", ll(sequence.id),
                  sequence.batch_index);
      }
      length = entries[index].new_length();
    }
    const auto held = static_cast<int64_t>(sequence.pages.size());
    if (sequence.length < 0 || held != plan_->pages_for_tokens(length)) {
      fail_with(KVC_E_CORRUPT, sequence.id, "sequence %lld of %lld tokens holds %lld pages, expected %lld",
                ll(sequence.id), ll(length), ll(held), ll(plan_->pages_for_tokens(length)));
    }
    if (sequence.synced_pages < 0 || sequence.synced_pages > held) {
      fail_with(KVC_E_CORRUPT, sequence.id, "sequence %lld says %lld of its %lld table entries were sent",
                ll(sequence.id), ll(sequence.synced_pages), ll(held));
    }
    const auto slot = static_cast<size_t>(sequence.slot);
    if (slot >= slot_seen.size()) slot_seen.resize(slot + 1, 0);
    if (slot_seen[slot]++ != 0)
      fail_with(KVC_E_CORRUPT, sequence.id, "sequence %lld shares slot %d with another", ll(sequence.id),
                sequence.slot);
    if (sequences_.find(sequence.id) != &sequence)
      fail_with(KVC_E_CORRUPT, sequence.id, "sequence %lld is not found by its id", ll(sequence.id));
    for (const PageId page : sequence.pages) count(sequence, page);
  });
  const bool open = forward_.is_open();
  if (in_forward != (open ? static_cast<int64_t>(forward_.batch().entries().size()) : 0)) {
    fail(KVC_E_CORRUPT, "%lld sequences say they are in the open forward, which has %zu", ll(in_forward),
         forward_.batch().entries().size());
  }
  for (const BatchEntry& entry : forward_.batch().entries()) {
    if (entry.replaced_page != kNoPage) count(*entry.sequence, entry.replaced_page);
  }
  if (total_length != sequences_.total_length()) {
    fail(KVC_E_CORRUPT, "total length is %lld, the sequences have %lld", ll(sequences_.total_length()),
         ll(total_length));
  }
  int64_t num_free = 0;
  int64_t num_shared = 0;
  for (int64_t page = 0; page < num_pages; ++page) {
    const int32_t expected = holders[static_cast<size_t>(page)];
    const int32_t recorded = allocator_.refs(static_cast<PageId>(page));
    if (expected != recorded) {
      fail_with(KVC_E_CORRUPT, page, "page %lld has %d holders recorded, the sequences hold it %d times",
                ll(page), recorded, expected);
    }
    if (allocator_.is_marked_free(static_cast<PageId>(page)) != (expected == 0)) {
      fail_with(KVC_E_CORRUPT, page, "page %lld has %d holders and is marked %s", ll(page), expected,
                expected == 0 ? "used" : "free");
    }
    num_free += expected == 0 ? 1 : 0;
    num_shared += expected > 1 ? 1 : 0;
  }
  if (num_free != allocator_.num_free() || num_shared != allocator_.num_shared()) {
    fail(KVC_E_CORRUPT, "%lld free and %lld shared pages recorded, counted %lld and %lld",
         ll(allocator_.num_free()), ll(allocator_.num_shared()), ll(num_free), ll(num_shared));
  }
}

}  // namespace kvc
