// Which sequences of a batch begin with the same pages, so that attention may read those once for
// all of them (cascade attention: Juravsky et al., arXiv:2402.05099; Ye et al., FlashInfer,
// arXiv:2501.01005). Pure functions of page tables and lengths.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <vector>

#include "kernels/params.h"
#include "src/exec/cpu/work_list.h"

namespace kvc {

// One sequence on the decode kernel that attends to all of its keys: it has no window and no sink
// tokens, and a token tree only behind num_keys. Equal pages must hold equal keys: all candidates
// of a call have the same key positions and the same rotation on read.
struct PrefixCandidate {
  int32_t sequence;      // Index in the list of sequences.
  const int32_t* pages;  // Borrowed.
  int64_t num_keys;      // Keys visible to all of its rows.
  int64_t num_rows;
};

// Rates of one thread of common servers. Only their proportions matter.
struct CascadeCosts {
  double bytes_per_second = 20e9;         // A decode item bound by memory.
  double decode_flops_per_second = 75e9;  // A decode item bound by arithmetic.
  double tile_flops_per_second = 80e9;    // A tile item in float32; 160e9 with bf16 dot products.
  double packed_bytes_per_second = 15e9;  // A tile item packs every key once.
  double seconds_per_item = 2e-6;         // Begin and end of an item, without the reduction.
  double smallest_gain = 0.1;             // Share of the flat time; a smaller gain is noise.
};

struct CascadeShape {
  int32_t page_size;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t k_dim;
  int32_t v_dim;
  int64_t key_bytes;  // K and V of one kv head.
};

struct CommonPrefix {
  int64_t key_begin, key_end;  // Multiples of PrefixGrid::key_multiple.
  std::vector<int32_t> sequences;
};

// Where prefixes may begin and end.
struct PrefixGrid {
  int32_t page_size;
  int64_t key_multiple;
};

// The work of one member without sharing, in two units that the price chooses.
using MemberWork = std::array<double, 2>;

// The members of a prefix, summed: pricing one prefix takes the same time for any number of
// members.
struct PrefixMembers {
  int64_t count = 0;
  int64_t num_rows = 0;
  MemberWork work{};
};

// Tells whether reading the next `num_keys` keys once for all members pays.
class SharingPrice {
 public:
  // Called once per candidate.
  virtual MemberWork work(const PrefixCandidate& member) const = 0;
  virtual bool pays(const PrefixMembers& members, int64_t num_keys) const = 0;

 protected:
  ~SharingPrice() = default;
};

// The work of a search, for tests.
struct PrefixSearchWork {
  // At most log2(candidates) times the pages of all tables; usually twice the pages.
  int64_t pages_compared = 0;
  int64_t nodes = 0;  // Fewer than there are candidates.
};

// Finds the prefixes worth sharing, for schedule_work. An outer prefix comes before the inner ones,
// and at most kPrefixLevels nest. The search ends early when all first pages differ. Stack depth
// does not depend on the tables. Throws std::bad_alloc.
constexpr int kPrefixLevels = 2;
PrefixSearchWork find_shared_prefixes(std::span<const PrefixCandidate> candidates,
                                      const PrefixGrid& grid, const SharingPrice& price,
                                      std::vector<CommonPrefix>* found);
// On the CPU: prefixes at multiples of 64.
PrefixSearchWork find_shared_prefixes(const PrefixCandidate* candidates, int64_t num_candidates,
                                      const CascadeShape& shape, const CascadeCosts& costs,
                                      std::vector<CommonPrefix>* found);

// Entries of the sequence list that stand for shared prefixes.
class SharedEntries {
 public:
  // Appends one entry per prefix to `sequences`, made from the entries of its members. This object
  // owns the arrays of the new entries until the next call. Throws std::bad_alloc.
  void build(const std::vector<CommonPrefix>& found, std::vector<kernels::AttnSequence>* sequences);

  const std::vector<SharedPrefix>& prefixes() const { return prefixes_; }
  int64_t host_bytes() const;

 private:
  std::vector<SharedPrefix> prefixes_;
  std::vector<int32_t> row_maps_;
  std::vector<int32_t> row_positions_;
};

}  // namespace kvc
