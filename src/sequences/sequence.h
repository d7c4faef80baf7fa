// One sequence: its tokens' number, where they lie, which of them later queries can see.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
#include <vector>

#include "kvcache.h"
#include "src/base/math.h"
#include "src/pages/allocator.h"
#include "src/pages/state_pool.h"
#include "src/sequences/token_history.h"
#include "src/sequences/token_tree.h"

namespace kvc {

// The pages of one group. pages.size() == ceil(stored tokens / page_size of the group); an entry
// is kNoPage where a window has dropped the page, else it counts as one holder. Only the last page
// can be partial. The table grows and shrinks at its end and is never rebuilt, so that a decode
// step touches one entry at most. A cache line, because every step reads it for every sequence.
struct alignas(64) PageTable {
  std::vector<PageId> pages;
  int64_t kept_begin = 0;    // tokens [sink_kept, kept_begin) may be gone
  int64_t sink_kept = 0;     // tokens [0, sink_kept) are there whatever kept_begin says
  int64_t num_dropped = 0;   // entries that are kNoPage
  int64_t synced_pages = 0;  // leading entries a device already has
  // Only this table holds the last page, and the prefix index does not know it. False where that
  // has to be looked up: a decode step of many sequences would otherwise wait for a line of the
  // allocator per table.
  bool owns_last = false;

  // How many entries it has once it holds `num_tokens` tokens, no fewer than now. Divides only
  // where it grows, which a decode step rarely does.
  int64_t grown_size(int64_t num_tokens, int32_t page_size) const {
    const auto size = static_cast<int64_t>(pages.size());
    const int64_t beyond = num_tokens - size * page_size;
    return beyond <= 0 ? size : size + ceil_div(beyond, page_size);
  }
  int64_t num_held() const { return static_cast<int64_t>(pages.size()) - num_dropped; }
  // The sequence has `tokens` tokens now, not more than before. Among the sinks nothing was ever
  // dropped.
  void note_length(int64_t tokens) {
    kept_begin = std::min(kept_begin, tokens);
    if (tokens <= sink_kept) kept_begin = sink_kept = 0;
  }
  bool keeps(int64_t begin, int64_t end) const {
    return begin >= end || begin >= kept_begin || end <= sink_kept;
  }
};

// As Sequence::first_unwritten: every layer has the rows of every token.
constexpr int64_t kAllWritten = INT64_MAX;

// Tokens from `begin` on have position = index + offset (until the next segment).
struct PositionSegment {
  int64_t begin;
  int64_t offset;
};

// The state that was kept at a position, at most the length.
struct Checkpoint {
  int64_t position;
  StateSlot slot;
  bool is_automatic = false;  // may be given up when slots are missing
};

// What every decode step reads or writes comes first, in one cache line.
struct alignas(64) Sequence {
  kvc_seq id = -1;
  uint64_t begin_stamp = 0;  // last begin that named this sequence: finds duplicate ids
  int64_t length = 0;        // committed tokens
  // Without a tree, appending up to this length takes no page, copies none and sends no table: a
  // decode step then looks at no table at all. 0: not known. Whoever changes a table calls
  // invalidate_tables().
  int64_t no_table_change_before = 0;
  std::vector<PageTable> tables;  // per group
  int32_t slot = -1;              // row in device-side tables; dense, reused
  int32_t batch_index = -1;       // in the open forward, else -1
  int64_t window = 0;             // of the sequence; 0: none
  int64_t sink = 0;
  int64_t cross_length = 0;               // encoder tokens
  int64_t next_drop = 0;                  // below this length no page is behind a window of a layer
  std::vector<PositionSegment> segments;  // ascending; empty: position = index
  bool is_swapped = false;                // the tables name host pages, the states host slots
  TokenTree tree;                         // uncommitted
  StateSlot state = kInitialState;        // at `length`
  std::vector<Checkpoint> checkpoints;    // ascending positions
  TokenHistory history;
  // First token whose rows a partial forward left unwritten in some layer; kAllWritten, or below
  // length.
  int64_t first_unwritten = kAllWritten;

  // As new, but for the memory that its vectors have. The history's is left to others.
  void recycle() noexcept {
    Sequence blank;
    blank.tables = std::move(tables);
    for (PageTable& table : blank.tables)
      table.pages.clear(), table = PageTable{.pages = std::move(table.pages)};
    blank.checkpoints = std::move(checkpoints);
    blank.checkpoints.clear();
    *this = std::move(blank);
  }

  // The tokens from `tokens` on are gone.
  void cut_unwritten(int64_t tokens) noexcept {
    if (first_unwritten >= tokens) first_unwritten = kAllWritten;
  }
  void invalidate_tables() noexcept { no_table_change_before = next_drop = 0; }
  bool in_forward() const { return batch_index >= 0; }
  // Tokens in the tables of a group, without those of the open forward.
  int64_t stored(bool is_cross) const { return is_cross ? cross_length : length + tree.size(); }

  int64_t position_of(int64_t token) const {
    int64_t offset = 0;
    for (const PositionSegment& segment : segments) {
      if (segment.begin > token) break;
      offset = segment.offset;
    }
    return token + offset;
  }
  // Of the token that would be appended next.
  int64_t next_position() const { return length + (segments.empty() ? 0 : segments.back().offset); }
};

}  // namespace kvc
