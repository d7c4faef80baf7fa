// Which layers share a page table.
#pragma once

#include <cstdint>
#include <vector>

namespace kvc {

struct LayerSpec;

// Layers that see the same keys: one page table per sequence serves all of them. All groups take
// pages from one pool; in a page the layers of a group lie one behind the other. A group without a
// layer in the pipeline slice has page tables all the same.
struct GroupSpec {
  std::vector<int32_t> layers;  // local ids, ascending
  bool is_cross = false;        // counts encoder tokens
  int64_t window = 0;           // 0: none
  int64_t chunk = 0;            // 0: none
  int32_t page_size = 0;        // tokens per page

  bool is_windowed() const { return window != 0 || chunk != 0; }
  // For any count: nothing overflows.
  int64_t pages_for(int64_t num_tokens) const {
    return num_tokens / page_size + (num_tokens % page_size != 0 ? 1 : 0);
  }
};

// First key that the layers of a group show to a query at token `index` (what a sequence's own
// window hides aside).
inline int64_t first_visible_key(const GroupSpec& group, int64_t index) {
  if (group.chunk != 0) return index / group.chunk * group.chunk;
  return group.window != 0 && index >= group.window ? index - group.window + 1 : 0;
}

// What is known of requests beside their length; 0: not known.
struct RequestLimits {
  int64_t tokens_in_flight = 0;  // that a window keeps beside itself; 0: all of the request
  int64_t max_cross_len = 0;
};

// Tokens of a request that a group keeps at once.
int64_t kept_tokens(const GroupSpec& group, int64_t num_tokens, const RequestLimits& limits);
// Most pages of a group that a request needs at any time while it is computed.
int64_t request_pages(const GroupSpec& group, int64_t num_tokens, const RequestLimits& limits);

struct GroupingOptions {
  int32_t base_page_size = 16;   // tokens per page of the widest group
  bool pads_pages = false;       // of every group
  int64_t max_seq_len = 0;       // 0: not known
  int64_t max_cross_len = 0;     // 0: not known
  int64_t tokens_in_flight = 0;  // that a window keeps beside itself; 0: not known
};

// Groups of the layers of a whole model (ids are indices) in the order in which their kinds first
// appear; fills LayerSpec::group.
//
// A page has the same bytes for every group, so a group narrower than the widest would leave room.
// Two things avoid that: a kind can be cut into several groups, not all of the same length, and a
// narrow group gets several times base_page_size tokens into its page. The search in
// group_search.cc weighs what is lost. With pads_pages neither is tried: every group has
// base_page_size tokens, and kinds are cut into groups of about equal length (equal_parts). One
// kind is one group, whatever its layers.
std::vector<GroupSpec> make_groups(std::vector<LayerSpec>& layers, const GroupingOptions& options);

}  // namespace kvc
