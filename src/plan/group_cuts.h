// The ways to cut the layers of one kind into layer groups whose pages have given bytes, and the
// pages that each way takes.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "src/plan/group_search.h"

namespace kvc {

constexpr int32_t kMostGroups = 16;
constexpr int32_t kMostTimes = 64;  // Most multiples of base_page_size tokens in a page.

// How many pages of one size the requests need.
struct PageNeed {
  // Mean over the requests that the search weighs, each divided by the bytes that it keeps.
  double weighed = 0;
  double tail = 0;     // Part of it that shorter pages cannot avoid.
  double longest = 0;  // Pages of the longest request, exactly.

  void add(const PageNeed& other, int32_t count) {
    weighed += count * other.weighed;
    tail += count * other.tail;
    longest += count * other.longest;
  }
};

// Layer groups of the same shape, with `times` times base_page_size tokens per page.
struct CutRun {
  int32_t parts = 0;
  int32_t layers = 0;  // Layers of each group.
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
  // `needs`: pages of a layer group, by times; [0] is not used. `makes_blocks`: blocks of the
  // prefix index have these tokens.
  KindCuts(const std::vector<int64_t>& layer_bytes, std::vector<PageNeed> needs, bool makes_blocks);

  // `capacity`: bytes of a page divided by base_page_size.
  // Least number of groups; more than kMostGroups: not counted.
  int32_t least_parts(int64_t capacity) const;
  bool makes_blocks() const { return makes_blocks_; }
  // The least that each group costs in pages behind the last tokens (see PageNeed::tail).
  double tail() const { return needs_.back().tail; }
  // The capacities that some group of base_page_size tokens fills.
  void add_capacities(std::vector<int64_t>* capacities) const;
  // All cuts that fit, into at most `most_parts` groups, with times out of `divisors` (ascending
  // from 1).
  void find(int64_t capacity, const std::vector<int32_t>& divisors, int32_t most_parts,
            std::vector<Cut>* cuts) const;
  // A cut into groups of about equal length, with the same times each.
  Cut even_cut(int32_t parts, int32_t times) const;

 private:
  int32_t most_times(int64_t capacity, int64_t width, const std::vector<int32_t>& divisors) const;
  void add_run(Cut* cut, const CutRun& run) const;
  void find_even(int64_t capacity, const std::vector<int32_t>& divisors, int32_t most_parts,
                 std::vector<Cut>* cuts) const;
  void find_uneven(Cut cut, int32_t layers, int64_t capacity, const std::vector<int32_t>& divisors,
                   int32_t most_parts, std::vector<Cut>* cuts) const;

  int32_t num_layers_;
  int64_t width_;                     // Bytes per token of every layer; 0: they differ.
  std::vector<int64_t> widest_part_;  // Bytes per token, by an even cut into 1 + index.
  std::vector<PageNeed> needs_;
  bool makes_blocks_;
};

}  // namespace kvc
