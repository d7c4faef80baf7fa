// Which layers share a page table.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/visibility.h"

namespace kvc {

struct LayerSpec;

// A layer group: layers with the same visible ranges, which share one page table per sequence. All
// groups take pages from one pool. In a page the layers of a group lie one behind the other. A
// group without a layer in the pipeline slice has page tables too.
struct GroupSpec {
  std::vector<int32_t> layers;  // Local ids, ascending.
  bool is_cross = false;        // The tables count encoder tokens.
  int64_t window = 0;           // 0: none.
  int64_t chunk = 0;            // 0: none.
  int32_t page_size = 0;        // Tokens per page.
  // Kept rows (see Spec::layers): the tables end after so many tokens, which no window drops. 0: a
  // group of any other kind, whose tables have all tokens.
  int64_t keep_tokens = 0;

  bool is_windowed() const { return window != 0 || chunk != 0; }
  bool has_kept_rows() const { return keep_tokens != 0; }
  // Windows of layers or sequences drop pages of its tables.
  bool may_drop() const { return !is_cross && !has_kept_rows(); }
  // Of the first `num_tokens` tokens, those that the tables have.
  int64_t tokens_of(int64_t num_tokens) const {
    return has_kept_rows() ? std::min(num_tokens, keep_tokens) : num_tokens;
  }
  // Pages for any count of tokens; nothing overflows.
  int64_t pages_for(int64_t num_tokens) const {
    return num_tokens / page_size + (num_tokens % page_size != 0 ? 1 : 0);
  }
};

// First key in the visible range of a query at token `index`. The window of the sequence is left
// aside.
inline int64_t first_visible_key(const GroupSpec& group, int64_t index) {
  const kernels::Windows<int64_t> windows{group.window, group.chunk, 0, 0, 0};
  return kernels::visible_range(windows, index).begin;
}

// Facts about requests beside their length; 0: not known.
struct RequestLimits {
  int64_t tokens_in_flight = 0;  // Tokens kept beside a window; 0: the whole request.
  int64_t max_cross_len = 0;
  // Context parallel ranks that a request's tokens are dealt out over. Every rank keeps whole what
  // an encoder wrote.
  int32_t cp_size = 1;
};

// Most tokens of a request that a layer group keeps at once.
int64_t kept_tokens(const GroupSpec& group, int64_t num_tokens, const RequestLimits& limits);
// Most pages of a layer group that a request needs at any time while it is computed.
int64_t request_pages(const GroupSpec& group, int64_t num_tokens, const RequestLimits& limits);

struct GroupingOptions {
  int32_t base_page_size = 16;   // Tokens per page of the widest group.
  bool pads_pages = false;       // KVC_CONFIG_PAD_PAGES.
  int64_t max_seq_len = 0;       // 0: not known.
  int64_t max_cross_len = 0;     // 0: not known.
  int64_t tokens_in_flight = 0;  // Tokens kept beside a window; 0: not known.
};

// Makes the layer groups of a whole model (ids are indices), in the order in which their kinds
// first appear. Fills LayerSpec::group.
//
// A page has the same bytes for every layer group, so a group narrower than the widest would waste
// room. Two things avoid that: a kind can be cut into several groups of different lengths, and a
// narrow group gets several times base_page_size tokens into a page. The search in group_search.cc
// weighs the loss. With pads_pages neither is tried: every group has base_page_size tokens, and
// kinds are cut into groups of about equal length (equal_parts). A single kind is one group.
//
// Kept rows take no part in this. Their groups come last and follow the page that the others make.
std::vector<GroupSpec> make_groups(std::vector<LayerSpec>& layers, const GroupingOptions& options);

}  // namespace kvc
