// The ways to cut one kind of layers into groups whose pages have given bytes, and what each way
// takes of the pages.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "src/plan/group_search.h"

namespace kvc {

constexpr int32_t kMostGroups = 16;
constexpr int32_t kMostTimes = 64;  // that base_page_size tokens fit a page

// Pages of one size that requests need.
struct PageNeed {
  // Mean over the requests that the search weighs, each divided by the bytes it keeps
  double weighed = 0;
  double tail = 0;     // the part of it that no page can be short enough to avoid
  double longest = 0;  // of the longest request, exactly

  void add(const PageNeed& other, int32_t count) {
    weighed += count * other.weighed;
    tail += count * other.tail;
    longest += count * other.longest;
  }
};

// Groups of the same shape, with `times` times base_page_size tokens per page.
struct CutRun {
  int32_t parts = 0;
  int32_t layers = 0;  // of each part
  int32_t times = 0;
};

struct Cut {
  std::array<CutRun, 3> runs;
  int32_t num_runs = 0;
  int32_t parts = 0;
  PageNeed need;
};

class KindCuts {
 public:
  // `needs` of a group by times; [0] is not used. `makes_blocks`: its tokens are those of the
  // prefix index.
  KindCuts(const std::vector<int64_t>& layer_bytes, std::vector<PageNeed> needs, bool makes_blocks);

  // Capacity is bytes of a page divided by base_page_size.
  // Least number of parts; more than kMostGroups: not counted.
  int32_t least_parts(int64_t capacity) const;
  bool makes_blocks() const { return makes_blocks_; }
  // The least that each part costs in pages behind the last tokens, see PageNeed::tail.
  double tail() const { return needs_.back().tail; }
  // Those that some part of base_page_size tokens fills.
  void add_capacities(std::vector<int64_t>* capacities) const;
  // All that fit, of at most `most_parts`, with times out of `divisors` (ascending from 1).
  void find(int64_t capacity, const std::vector<int32_t>& divisors, int32_t most_parts,
            std::vector<Cut>* cuts) const;
  // Into parts of about equal length, with the same times each.
  Cut even_cut(int32_t parts, int32_t times) const;

 private:
  int32_t most_times(int64_t capacity, int64_t width, const std::vector<int32_t>& divisors) const;
  void add_run(Cut* cut, const CutRun& run) const;
  void find_even(int64_t capacity, const std::vector<int32_t>& divisors, int32_t most_parts,
                 std::vector<Cut>* cuts) const;
  void find_uneven(Cut cut, int32_t layers, int64_t capacity, const std::vector<int32_t>& divisors,
                   int32_t most_parts, std::vector<Cut>* cuts) const;

  int32_t num_layers_;
  int64_t width_;                     // bytes per token of every layer; 0: they differ
  std::vector<int64_t> widest_part_;  // bytes per token, of an even cut into 1 + index parts
  std::vector<PageNeed> needs_;
  bool makes_blocks_;
};

}  // namespace kvc
