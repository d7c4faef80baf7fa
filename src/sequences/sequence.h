// One sequence: its tokens' number and its page table.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache.h"
#include "src/pages/allocator.h"

namespace kvc {

// Invariant: pages.size() == ceil(length / page_size), while in an open forward ceil((length + appended) / page_size); every entry
// counts as one holder of its page. Only the last page can be partial. The table grows and shrinks at its end and is never
// rebuilt, so that a decode step touches one entry at most.
struct Sequence {
  kvc_seq id = -1;
  int64_t length = 0;  // committed tokens
  std::vector<PageId> pages;
  int32_t slot = -1;         // row in device-side tables; dense, reused
  int32_t batch_index = -1;  // in the open forward, else -1
  int64_t synced_pages = 0;  // leading entries a device already has
  uint64_t begin_stamp = 0;  // last begin that named this sequence: finds duplicate ids

  bool in_forward() const { return batch_index >= 0; }
};

}  // namespace kvc
