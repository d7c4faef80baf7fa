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

// One sequence that runs on the decode kernel and sees every key from its first on: no window, no
// sinks; a token tree only behind num_keys. Equal pages must mean equal keys: the same key
// positions and the same rotation on read for all candidates of a call.
struct PrefixCandidate {
  int32_t sequence;      // its index in the list of sequences
  const int32_t* pages;  // borrowed
  int64_t num_keys;      // that all of its rows see
  int64_t num_rows;
};

// What reading costs on one thread: rates of common servers, of which only the proportions matter.
struct CascadeCosts {
  double bytes_per_second = 20e9;  // a decode item
  // A decode item whose arithmetic takes longer than its reading
  double decode_flops_per_second = 75e9;
  double tile_flops_per_second = 80e9;    // a tile item in float32; 160e9 with bf16 dot products
  double packed_bytes_per_second = 15e9;  // a tile item packs every key once
  double seconds_per_item = 2e-6;         // begin and end of an item, merging aside
  double smallest_gain = 0.1;             // of the time without sharing; less is noise
};

struct CascadeShape {
  int32_t page_size;
  int32_t num_q_heads;
  int32_t num_kv_heads;
  int32_t k_dim;
  int32_t v_dim;
  int64_t key_bytes;  // of K and V in one kv head
};

struct CommonPrefix {
  int64_t key_begin, key_end;  // multiples of PrefixGrid::key_multiple
  std::vector<int32_t> sequences;
};

// Where prefixes may begin and end.
struct PrefixGrid {
  int32_t page_size;
  int64_t key_multiple;
};

// What a member adds to the price of reading keys apart, in two units of the price's choice.
using MemberWork = std::array<double, 2>;

// The members of a prefix as sums, so that the price of one prefix does not depend on their number.
struct PrefixMembers {
  int64_t count = 0;
  int64_t num_rows = 0;
  MemberWork work{};
};

// Whether reading the next `num_keys` keys once for all members pays.
class SharingPrice {
 public:
  // Asked once per candidate.
  virtual MemberWork work(const PrefixCandidate& member) const = 0;
  virtual bool pays(const PrefixMembers& members, int64_t num_keys) const = 0;

 protected:
  ~SharingPrice() = default;
};

// What a search has done, for tests.
struct PrefixSearchWork {
  // At most log2(candidates) times the pages of all tables, mostly twice
  int64_t pages_compared = 0;
  int64_t nodes = 0;  // fewer than candidates
};

// The prefixes worth sharing, outer ones before the inner ones inside them (at most kPrefixLevels
// deep), ready for plan_work. Empty, and quickly so, when all first pages differ. The depth of the
// stack does not depend on the tables. Throws std::bad_alloc.
constexpr int kPrefixLevels = 2;
PrefixSearchWork find_shared_prefixes(std::span<const PrefixCandidate> candidates,
                                      const PrefixGrid& grid, const SharingPrice& price,
                                      std::vector<CommonPrefix>* found);
// On the CPU: prefixes at multiples of 64.
PrefixSearchWork find_shared_prefixes(const PrefixCandidate* candidates, int64_t num_candidates,
                                      const CascadeShape& shape, const CascadeCosts& costs,
                                      std::vector<CommonPrefix>* found);

// The list entries that stand for shared prefixes, and what plan_work wants to know of them.
class SharedEntries {
 public:
  // Appends one entry per prefix to `sequences`, made of those of its members. What the entries
  // point to lives here until the next call. Throws std::bad_alloc.
  void build(const std::vector<CommonPrefix>& found, std::vector<kernels::AttnSequence>* sequences);

  const std::vector<SharedPrefix>& prefixes() const { return prefixes_; }

 private:
  std::vector<SharedPrefix> prefixes_;
  std::vector<int32_t> row_maps_;
  std::vector<int32_t> row_positions_;
};

}  // namespace kvc
