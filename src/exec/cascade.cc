#include "src/exec/cascade.h"

#include <algorithm>
#include <cstring>

#include "src/base/math.h"
#include "src/base/memory.h"

namespace kvc {
namespace {

using kernels::AttnSequence;

// A candidate in the sorted order of page tables. `common`: pages that it has in common with the
// one before it.
struct Entry {
  const PrefixCandidate* candidate;
  int64_t num_pages;
  int64_t common;
};

// Entries [begin, end), which have exactly `common` pages in common: a node of the tree that all
// tables make.
struct Interval {
  size_t begin, end;
  int64_t common;
  int64_t num_keys;  // The fewest of a member.
};

class PrefixFinder {
 public:
  PrefixFinder(const PrefixGrid& grid, const SharingPrice& price, std::vector<CommonPrefix>* found)
      : grid_(grid), price_(price), found_(*found) {}

  PrefixSearchWork run(std::span<const PrefixCandidate> candidates) {
    entries_.reserve(candidates.size());
    for (const PrefixCandidate& candidate : candidates) {
      if (candidate.num_keys >= grid_.key_multiple)
        entries_.push_back({&candidate, ceil_div(candidate.num_keys, grid_.page_size), 0});
    }
    if (entries_.size() > 1) {
      sort();
      if (std::any_of(entries_.begin(), entries_.end(),
                      [](const Entry& entry) { return entry.common > 0; })) {
        make_nodes();
        choose();
      }
    }
    return work_;
  }

 private:
  // Length of the common beginning of two tables that agree in front of `begin`.
  int64_t common_pages(const Entry& a, const Entry& b, int64_t begin) {
    constexpr int64_t kStep = 64;
    const int64_t end = std::min(a.num_pages, b.num_pages);
    const int32_t *left = a.candidate->pages, *right = b.candidate->pages;
    int64_t at = begin;
    while (at + kStep <= end && std::memcmp(left + at, right + at, kStep * sizeof(int32_t)) == 0)
      at += kStep;
    while (at < end && left[at] == right[at]) ++at;
    work_.pages_compared += at - begin + 1;
    return at;
  }
  // Whether `a`, which has `common` pages in common with `b` and no more, comes first.
  static bool precedes(const Entry& a, const Entry& b, int64_t common) {
    const int64_t left = common < a.num_pages ? a.candidate->pages[common] : -1;
    const int64_t right = common < b.num_pages ? b.candidate->pages[common] : -1;
    return left != right ? left < right : a.candidate->sequence < b.candidate->sequence;
  }

  // Merge sort by page tables. What two runs have in common with the entry that was put out last
  // says mostly which of their heads comes first; only where that is equal pages are compared, and
  // none of them again (Ng and Kakehi, "Merging string sequences by longest common prefixes",
  // 2008).
  void sort() {
    std::vector<Entry> merged(entries_.size());
    for (size_t width = 1; width < entries_.size(); width *= 2) {
      for (size_t begin = 0; begin < entries_.size(); begin += 2 * width) {
        const size_t middle = std::min(begin + width, entries_.size());
        merge(begin, middle, std::min(middle + width, entries_.size()), &merged);
      }
      entries_.swap(merged);
    }
  }
  void merge(size_t left, size_t right, size_t right_end, std::vector<Entry>* out) {
    const size_t left_end = right;
    for (size_t next = left; next < right_end; ++next) {
      bool takes_left = right == right_end;
      if (left != left_end && right != right_end) {
        Entry &a = entries_[left], &b = entries_[right];
        if (a.common != b.common) {
          takes_left = a.common > b.common;
        } else {
          const int64_t common = common_pages(a, b, a.common);
          takes_left = precedes(a, b, common);
          (takes_left ? b : a).common = common;
        }
      }
      (*out)[next] = entries_[takes_left ? left++ : right++];
    }
  }

  // The intervals of equal common beginnings (Abouelhoda, Kurtz and Ohlebusch, "Replacing suffix
  // trees with enhanced suffix arrays", 2004), outer ones before the inner ones, those beside each
  // other in their order.
  void make_nodes() {
    std::vector<Interval> open;
    for (size_t i = 1; i <= entries_.size(); ++i) {
      const int64_t common = i < entries_.size() ? entries_[i].common : 0;
      size_t begin = i - 1;
      int64_t num_keys = entries_[i - 1].candidate->num_keys;
      while (!open.empty() && open.back().common > common) {
        Interval& closed = open.back();
        closed.end = i;
        begin = closed.begin;
        closed.num_keys = num_keys = std::min(closed.num_keys, num_keys);
        nodes_.push_back(closed);
        open.pop_back();
      }
      if (common == 0) continue;
      if (open.empty() || open.back().common < common) {
        open.push_back({begin, 0, common, num_keys});
      } else {
        open.back().num_keys = std::min(open.back().num_keys, num_keys);
      }
    }
    std::sort(nodes_.begin(), nodes_.end(), [](const Interval& a, const Interval& b) {
      return a.begin != b.begin ? a.begin < b.begin : a.end > b.end;
    });
    work_.nodes = static_cast<int64_t>(nodes_.size());
  }

  // Which nodes are prefixes to share, from the outermost in.
  void choose() {
    std::vector<PrefixMembers> sums(entries_.size() + 1);  // Sums over the entries in front.
    for (size_t i = 0; i < entries_.size(); ++i) {
      const PrefixCandidate& candidate = *entries_[i].candidate;
      const MemberWork work = price_.work(candidate), before = sums[i].work;
      sums[i + 1] = {sums[i].count + 1,
                     sums[i].num_rows + candidate.num_rows,
                     {before[0] + work[0], before[1] + work[1]}};
    }
    struct Taken {
      size_t end;
      int64_t key_end;
    };
    std::vector<Taken> around;  // The prefixes that hold the node at hand.
    for (const Interval& node : nodes_) {
      while (!around.empty() && around.back().end <= node.begin) around.pop_back();
      if (around.size() == kPrefixLevels) continue;
      const int64_t key_begin = around.empty() ? 0 : around.back().key_end;
      const int64_t key_end = std::min(node.num_keys, node.common * grid_.page_size) /
                              grid_.key_multiple * grid_.key_multiple;
      const PrefixMembers &first = sums[node.begin], &last = sums[node.end];
      const PrefixMembers members{last.count - first.count,
                                  last.num_rows - first.num_rows,
                                  {last.work[0] - first.work[0], last.work[1] - first.work[1]}};
      if (key_end <= key_begin || !price_.pays(members, key_end - key_begin)) continue;
      around.push_back({node.end, key_end});
      CommonPrefix& prefix = found_.emplace_back();
      prefix.key_begin = key_begin;
      prefix.key_end = key_end;
      for (size_t i = node.begin; i < node.end; ++i)
        prefix.sequences.push_back(entries_[i].candidate->sequence);
    }
  }

  const PrefixGrid grid_;
  const SharingPrice& price_;
  std::vector<CommonPrefix>& found_;
  std::vector<Entry> entries_;
  std::vector<Interval> nodes_;
  PrefixSearchWork work_;
};

// Of one thread.
class CpuPrice final : public SharingPrice {
 public:
  CpuPrice(const CascadeShape& shape, const CascadeCosts& costs) : shape_(shape), costs_(costs) {}

  // Seconds per key that a member takes alone: reading or arithmetic, whichever is longer.
  MemberWork work(const PrefixCandidate& member) const override {
    const double flops = static_cast<double>(member.num_rows) * flops_per_key();
    return {
        std::max(bytes_per_key() / costs_.bytes_per_second, flops / costs_.decode_flops_per_second),
        0};
  }
  bool pays(const PrefixMembers& members, int64_t num_keys) const override {
    const auto keys = static_cast<double>(num_keys), rows = static_cast<double>(members.num_rows);
    const auto splits = static_cast<double>(ceil_div(num_keys, kPrefixKeys));
    const double partial_bytes =
        splits * rows * shape_.num_q_heads * (2.0 + shape_.v_dim) * sizeof(float);
    const double together = keys * bytes_per_key() / costs_.packed_bytes_per_second +
                            rows * keys * flops_per_key() / costs_.tile_flops_per_second +
                            2 * partial_bytes / costs_.bytes_per_second +
                            (splits + static_cast<double>(members.count)) * costs_.seconds_per_item;
    return together < keys * members.work[0] * (1 - costs_.smallest_gain);
  }

 private:
  double bytes_per_key() const {
    return static_cast<double>(shape_.key_bytes) * shape_.num_kv_heads;
  }
  double flops_per_key() const { return 2.0 * shape_.num_q_heads * (shape_.k_dim + shape_.v_dim); }

  const CascadeShape& shape_;
  const CascadeCosts& costs_;
};

}  // namespace

PrefixSearchWork find_shared_prefixes(std::span<const PrefixCandidate> candidates,
                                      const PrefixGrid& grid, const SharingPrice& price,
                                      std::vector<CommonPrefix>* found) {
  found->clear();
  if (candidates.size() < 2) return {};
  return PrefixFinder(grid, price, found).run(candidates);
}

PrefixSearchWork find_shared_prefixes(const PrefixCandidate* candidates, int64_t num_candidates,
                                      const CascadeShape& shape, const CascadeCosts& costs,
                                      std::vector<CommonPrefix>* found) {
  return find_shared_prefixes({candidates, static_cast<size_t>(num_candidates)},
                              {shape.page_size, kTileKeys}, CpuPrice(shape, costs), found);
}

int64_t SharedEntries::host_bytes() const {
  int64_t bytes =
      kvc::host_bytes(prefixes_) + kvc::host_bytes(row_maps_) + kvc::host_bytes(row_positions_);
  for (const SharedPrefix& prefix : prefixes_) bytes += kvc::host_bytes(prefix.members);
  return bytes;
}

void SharedEntries::build(const std::vector<CommonPrefix>& found,
                          std::vector<AttnSequence>* sequences) {
  prefixes_.clear();
  size_t num_rows = 0;
  for (const CommonPrefix& prefix : found) {
    for (const int32_t member : prefix.sequences)
      num_rows += static_cast<size_t>((*sequences)[member].num_rows);
  }
  row_maps_.resize(num_rows);
  row_positions_.resize(num_rows);
  size_t next = 0;
  for (const CommonPrefix& prefix : found) {
    SharedPrefix shared{.sequence = static_cast<int32_t>(sequences->size()),
                        .key_begin = prefix.key_begin,
                        .key_end = prefix.key_end,
                        .members = {}};
    AttnSequence entry = (*sequences)[prefix.sequences.front()];
    entry.row_map = row_maps_.data() + next;
    entry.row_positions = row_positions_.data() + next;
    entry.row_begin = entry.num_rows = entry.position = 0;
    entry.first_key_end = prefix.key_end;  // Rows of causal calls would see more: items end here.
    entry.key_begins = entry.key_ends = nullptr;
    entry.tree_mask = nullptr;
    entry.sink_end = entry.tree_begin = entry.tree_words = 0;
    for (const int32_t index : prefix.sequences) {
      const AttnSequence& member = (*sequences)[index];
      shared.members.push_back({index, entry.num_rows});
      for (int64_t row = 0; row < member.num_rows; ++row, ++next) {
        row_maps_[next] = member.row_map != nullptr ? member.row_map[row]
                                                    : static_cast<int32_t>(member.row_begin + row);
        row_positions_[next] = member.row_positions != nullptr
                                   ? member.row_positions[row]
                                   : static_cast<int32_t>(member.position + row);
      }
      entry.num_rows += member.num_rows;
    }
    sequences->push_back(entry);
    prefixes_.push_back(std::move(shared));
  }
}

}  // namespace kvc
