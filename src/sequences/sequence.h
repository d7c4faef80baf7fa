// One sequence: how many tokens it has, where they lie, which of them later queries see.
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <utility>
#include <vector>

#include "kvcache.h"
#include "src/base/math.h"
#include "src/base/memory.h"
#include "src/pages/allocator.h"
#include "src/pages/state_pool.h"
#include "src/plan/groups.h"
#include "src/prefix/keys.h"
#include "src/sequences/page_list.h"

namespace kvc {

// The uncommitted token tree of a sequence in speculative decoding. Nodes are in the order in which
// their tokens were appended. Node n lies behind the committed tokens, at token length + n of the
// tables. Its position is Sequence::next_position() plus its depth.
struct TokenTree {
  std::vector<int32_t> parents;  // -1: a root; else less than the index of the node.
  std::vector<int32_t> depths;   // 0 for roots.
  std::vector<int32_t> ids;      // Token ids, as far as they were given: [size()] or fewer.
  // [size()]; 1: a partial forward left rows of the node unwritten. Empty: all rows are written.
  std::vector<uint8_t> unwritten;

  int64_t size() const { return static_cast<int64_t>(parents.size()); }
  bool empty() const { return parents.empty(); }
  int64_t host_bytes() const {
    return kvc::host_bytes(parents) + kvc::host_bytes(depths) + kvc::host_bytes(ids) +
           kvc::host_bytes(unwritten);
  }

  // Call it after reserve().
  void add(int32_t parent) noexcept {
    depths.push_back(parent < 0 ? 0 : depths[parent] + 1);
    parents.push_back(parent);
    if (!unwritten.empty()) unwritten.push_back(0);
  }
  // Marks the nodes from `begin` on as unwritten.
  void mark_unwritten(int64_t begin) noexcept {
    unwritten.resize(parents.size(), 0);
    std::fill(unwritten.begin() + begin, unwritten.end(), uint8_t{1});
  }
  bool is_unwritten(int64_t node) const { return !unwritten.empty() && unwritten[node] != 0; }
  void truncate(int64_t nodes) noexcept {
    parents.resize(nodes);
    depths.resize(nodes);
    if (ids.size() > static_cast<size_t>(nodes)) ids.resize(nodes);
    if (unwritten.size() > static_cast<size_t>(nodes)) unwritten.resize(nodes);
  }
  // Returns whether there was less room.
  bool reserve(int64_t nodes) {
    const int64_t before = host_bytes();
    parents.reserve(nodes);
    depths.reserve(nodes);
    ids.reserve(nodes);
    unwritten.reserve(nodes);
    return host_bytes() != before;
  }
};

inline const std::vector<ExtraKey> no_extra_keys;

// The known tokens of a sequence: their ids and the keys of their blocks, so that full blocks can
// be published to the prefix index. The leading `num_known` tokens are known by the keys of their
// full blocks, and from `ids_begin` (a multiple of the block) on by their ids too. Without a prefix
// index no token is known.
struct TokenHistory {
  BlockKey root;
  std::shared_ptr<const std::vector<ExtraKey>> extra;  // Null: none.
  std::vector<BlockKey> keys;                          // [num_known / block_tokens]
  std::vector<int32_t> ids;                            // Ids of [ids_begin, num_known).
  int64_t ids_begin = 0;
  int64_t num_known = 0;
  int64_t num_published = 0;  // Leading blocks that publishing can skip.
  int64_t num_given = 0;      // Leading keys that the caller gave.
  int32_t priority = 0;
  bool is_closed = false;  // A quota kept a block out, so later blocks have no parent.

  // The rows are not those that the tokens give: they were moved, overwritten, or come from older
  // weights. No token is known then, so none is published.
  bool has_diverged = false;

  void cut(int64_t num_tokens, int32_t block_tokens) noexcept {
    if (num_tokens >= num_known) return;
    // Among tokens known by keys alone, only whole blocks stay known.
    num_known = num_tokens >= ids_begin ? num_tokens : num_tokens / block_tokens * block_tokens;
    ids_begin = std::min(ids_begin, num_known);
    ids.resize(num_known - ids_begin);
    keys.resize(num_known / block_tokens);
    num_published = std::min(num_published, num_known / block_tokens);
    num_given = std::min(num_given, num_known / block_tokens);
  }
  void diverge() noexcept {
    cut(0, 1);
    has_diverged = true;
  }
  // Makes room for `count` more tokens. Returns whether there was less. Throws std::bad_alloc.
  bool reserve(int64_t count, int32_t block_tokens) {
    const auto grow = [](auto& values, size_t more) {
      if (values.size() + more <= values.capacity()) return false;
      values.reserve(std::max(values.size() + more, values.capacity() * 2));
      return true;
    };
    const bool has_grown = grow(ids, static_cast<size_t>(count));
    return grow(keys, static_cast<size_t>((num_known + count) / block_tokens) - keys.size()) ||
           has_grown;
  }
  // Extra keys that several sequences share count in each.
  int64_t host_bytes() const;
  // Call it after reserve(), with all earlier tokens known.
  void add(const int32_t* tokens, int64_t count, int32_t block_tokens) noexcept {
    ids.insert(ids.end(), tokens, tokens + count);
    num_known += count;
    for (auto block = static_cast<int64_t>(keys.size()); (block + 1) * block_tokens <= num_known;
         ++block) {
      const int64_t begin = block * block_tokens;
      keys.push_back(block_key(block == 0 ? root : keys.back(),
                               extra == nullptr ? no_extra_keys : *extra, begin,
                               ids.data() + (begin - ids_begin), block_tokens));
    }
  }
  // See NewBlock::num_plain.
  int32_t num_plain(int64_t block, int32_t block_tokens) const noexcept {
    if (block < num_given) return kUnknownPlain;
    if (extra == nullptr) return block_tokens;
    return tokens_before_extra_keys(*extra, block * block_tokens, block_tokens);
  }
  // Ids of the block; null: known by its key alone.
  const int32_t* block_ids(int64_t block, int32_t block_tokens) const noexcept {
    const int64_t begin = block * block_tokens;
    return begin >= ids_begin ? ids.data() + (begin - ids_begin) : nullptr;
  }
};

// The page table of one layer group. Invariants:
// 1. pages.size() == ceil(stored tokens / page_size of the group). Only the last page can be
//    partial.
// 2. A place is one reference to its page, or kNoPage where a window has dropped the page: exactly
//    where all its tokens are in [sink_kept, kept_begin).
// 3. The table grows and shrinks at its end and is never rebuilt, so a decode step touches at most
//    one entry.
// One cache line, because every step reads it for every sequence.
struct alignas(64) PageTable {
  PageList pages;
  int64_t kept_begin = 0;    // Tokens [sink_kept, kept_begin) may be dropped.
  int64_t sink_kept = 0;     // Tokens [0, sink_kept) are kept whatever kept_begin says.
  int32_t synced_pages = 0;  // Leading places that the device already has.
  // Only this table refers to the last page, and the prefix index does not know it. False: look it
  // up. It saves a decode step of many sequences one cache miss in the allocator per table.
  bool owns_last = false;

  // Number of entries for `num_tokens` tokens, no fewer than now. Divides only when the table
  // grows, which is rare in decode steps.
  int64_t grown_size(int64_t num_tokens, int32_t page_size) const {
    const int64_t size = pages.size(), beyond = num_tokens - size * page_size;
    return beyond <= 0 ? size : size + ceil_div(beyond, page_size);
  }
  // The device has to hear of places from `place` on.
  void send_from(int64_t place) {
    synced_pages = static_cast<int32_t>(std::min<int64_t>(synced_pages, place));
  }
  // Dropped places may become a gap.
  void close_up(int32_t page_size) noexcept {
    if (kept_begin > 0) pages.close_up(ceil_div(sink_kept, page_size), kept_begin / page_size);
  }
  // The sequence has shrunk to `tokens` tokens. No sink token was ever dropped.
  void note_length(int64_t tokens) {
    kept_begin = std::min(kept_begin, tokens);
    if (tokens <= sink_kept) kept_begin = sink_kept = 0;
  }
  bool keeps(int64_t begin, int64_t end) const {
    return begin >= end || begin >= kept_begin || end <= sink_kept;
  }
};

// Value of Sequence::first_unwritten: every layer has the rows of every token.
constexpr int64_t kAllWritten = INT64_MAX;

// From token `begin` to the next segment, position = index + offset.
struct PositionSegment {
  int64_t begin;
  int64_t offset;
};

// K that is stored rotated, where kvc_seq_shift leaves rows as they are: from token `begin` on a
// row is rotated for its token's position + ahead. Sequences that hold the same row agree about
// it.
struct KeyLead {
  int64_t begin = 0;
  int64_t ahead = 0;  // 0: none.
};

constexpr int64_t kMostAhead = int64_t{1} << 52;

// A state that was kept at a position, which is at most the length.
struct Checkpoint {
  int64_t position;
  StateSlot slot;
  bool is_automatic = false;  // It may be given up when state slots are missing.
};

// The fields that every decode step reads or writes come first, in one cache line.
struct alignas(64) Sequence {
  kvc_seq id = -1;
  uint64_t begin_stamp = 0;  // The last begin that named this sequence, to find duplicate ids.
  int64_t length = 0;        // Committed tokens.
  // Up to this length an append without a tree takes no page, copies none and sends no table, so a
  // decode step need not look at the tables. 0: not known. Code that changes a table calls
  // invalidate_tables().
  int64_t no_table_change_before = 0;
  std::vector<PageTable> tables;          // [layer group]
  int32_t slot = -1;                      // Row in the tables of a device; dense, reused.
  int32_t batch_index = -1;               // Entry of the open forward; -1: not in it.
  int64_t window = 0;                     // Window set by kvc_seq_set_window; 0: none.
  int64_t sink = 0;                       // Sink tokens of that window.
  int64_t cross_length = 0;               // Encoder tokens.
  int64_t next_drop = 0;                  // Below this length no layer's window hides a whole page.
  std::vector<PositionSegment> segments;  // Ascending; empty: position = index.
  bool is_swapped = false;                // Tables name host pages, states name host slots.
  bool is_arriving = false;               // A transfer writes its rows; nobody else uses it.
  TokenTree tree;                         // Uncommitted nodes.
  StateSlot state = kInitialState;        // State at `length`.
  std::vector<Checkpoint> checkpoints;    // Ascending positions.
  TokenHistory history;
  // First token whose rows a partial forward left unwritten in some layer; kAllWritten, or below
  // length.
  int64_t first_unwritten = kAllWritten;
  KeyLead lead;
  // Transfers send its rows as they are computed, if this is theirs; 0: none does, or rows that
  // they have sent are not the sequence's any more.
  uint64_t followed = 0;
  int64_t counted_bytes = 0;  // Its part of SequenceTable::host_bytes().

  // Itself included.
  int64_t host_bytes() const;

  // Makes the sequence like new but keeps the memory of its vectors, the history aside.
  void recycle() noexcept {
    Sequence blank;
    blank.tables = std::move(tables);
    for (PageTable& table : blank.tables)
      table.pages.clear(), table = PageTable{.pages = std::move(table.pages)};
    blank.checkpoints = std::move(checkpoints);
    blank.checkpoints.clear();
    *this = std::move(blank);
  }

  // The tokens from `tokens` on were removed.
  void cut_rows(int64_t tokens) noexcept {
    if (first_unwritten >= tokens) first_unwritten = kAllWritten;
    if (lead.begin >= tokens) lead = {};
    followed = 0;
  }
  void invalidate_tables() noexcept { no_table_change_before = next_drop = 0; }
  bool in_forward() const { return batch_index >= 0; }
  // Tokens in the tables of a layer group, without those of the open forward.
  int64_t stored(const GroupSpec& group) const {
    return group.is_cross ? cross_length : group.tokens_of(length + tree.size());
  }
  // The same in those of groups that have all tokens.
  int64_t stored(bool is_cross) const { return is_cross ? cross_length : length + tree.size(); }

  int64_t position_of(int64_t token) const {
    int64_t offset = 0;
    for (const PositionSegment& segment : segments) {
      if (segment.begin > token) break;
      offset = segment.offset;
    }
    return token + offset;
  }
  // Position of the token that is appended next.
  int64_t next_position() const { return length + (segments.empty() ? 0 : segments.back().offset); }
};

}  // namespace kvc
