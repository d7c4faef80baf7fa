// The search for layer groups of a hybrid model: how each kind of layers is cut, and how many
// tokens the pages of each group have.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "src/plan/groups.h"

namespace kvc {

// All layers with the same visible ranges.
struct LayerKind {
  GroupSpec group;
  std::vector<int64_t> layer_bytes;  // Bytes per token, in the order of group.layers.

  int32_t num_layers() const { return static_cast<int32_t>(layer_bytes.size()); }
};

// A layer group that a kind is cut into.
struct GroupPart {
  int32_t num_layers;
  int32_t page_size;
};

struct GroupPlan {
  std::vector<LayerKind> kinds;               // The given kinds, or finer ones.
  std::vector<std::vector<GroupPart>> parts;  // [kind]
};

// Numbers of groups per kind, so that groups have about equal length. That length is the size of
// the largest kind when it is below 1.5 times the smallest, else the size of the smallest. This is
// the rule of vLLM's hybrid planner.
std::vector<int32_t> equal_parts(const std::vector<int32_t>& layer_counts);

// Layers of one part of an even cut; the first parts get the remainder.
constexpr int32_t even_part(int32_t num_layers, int32_t parts, int32_t part) {
  return (num_layers - part + parts - 1) / parts;
}

// Deterministic, so that every rank of a model finds the same. Needs at least two kinds.
GroupPlan search_groups(const std::vector<LayerKind>& kinds, const GroupingOptions& options);

// The plan that vLLM's hybrid planner would make of the same layers. Ours should not be worse.

// Its rule: every kind is cut into groups of about equal length (equal_parts). A page is as long as
// the longest group with base_page_size tokens; smaller groups get several times as many tokens
// when those fill it.
class FormulaPlan {
 public:
  // The groups of one kind.
  struct Groups {
    int32_t parts;
    int32_t times;    // Multiples of base_page_size tokens per page.
    GroupSpec group;  // One of them, without its layers.
  };

  // At least one kind. The layers of a kind have the same bytes.
  FormulaPlan(const std::vector<LayerKind>& kinds, int32_t base_page_size);

  // [kind]
  const std::vector<Groups>& groups() const { return groups_; }
  // Bytes of a page, divided by base_page_size.
  int64_t capacity() const { return capacity_; }
  // Bytes of the pages of a request, divided by base_page_size.
  double request_bytes(int64_t num_tokens, const RequestLimits& limits) const;

 private:
  std::vector<Groups> groups_;
  int64_t capacity_ = 0;
};

// The ways to cut the layers of one kind into layer groups whose pages have given bytes, and the
// pages that each way takes.

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
