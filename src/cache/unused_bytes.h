// What lies between and behind the contents of pages and states belongs to nobody, or to others:
// whatever leaves the process has zeros there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <vector>

#include "src/plan/plan.h"

namespace kvc {

class UnusedBytes {
 public:
  explicit UnusedBytes(const Plan& plan);  // Throws std::bad_alloc.

  // `tokens`: those that the packed page of a layer group holds.
  void clear_page(size_t group, int64_t tokens, std::byte* page) const;
  // Rows [begin, end) of every layer.
  void clear_rows(size_t group, int64_t begin, int64_t end, std::byte* page) const;
  void clear_state(std::byte* state) const { clear(state_gaps_, state); }

 private:
  struct Range {
    int64_t begin, end;
  };
  // Rows [num_rows][page_size][row_bytes] at an offset of a packed page.
  struct Block {
    int64_t begin, row_bytes, num_rows;
  };
  static std::vector<Range> gaps(std::vector<Range> used, int64_t size);
  static void clear(const std::vector<Range>& ranges, std::byte* data) {
    for (const Range& range : ranges)
      std::memset(data + range.begin, 0, static_cast<size_t>(range.end - range.begin));
  }

  std::vector<int64_t> page_sizes_;            // [layer group]
  std::vector<std::vector<Block>> blocks_;     // [layer group]
  std::vector<std::vector<Range>> page_gaps_;  // [layer group]
  std::vector<Range> state_gaps_;
};

}  // namespace kvc
