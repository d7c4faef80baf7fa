#include "src/attention/cascade.h"

#include <algorithm>
#include <cstring>

#include "src/base/math.h"

namespace kvc {
namespace {

using kernels::AttnSequence;

class PrefixFinder {
 public:
  PrefixFinder(const PrefixGrid& grid, const SharingPrice& price, std::vector<CommonPrefix>* found)
      : grid_(grid), price_(price), found_(*found) {}

  void run(std::span<const PrefixCandidate> candidates) {
    order_.reserve(candidates.size());
    for (const PrefixCandidate& candidate : candidates) {
      if (candidate.num_keys >= grid_.key_multiple) order_.push_back(&candidate);
    }
    if (order_.size() > 1) search(0, order_.size(), 0, 0, 0);
  }

 private:
  int64_t num_pages(const PrefixCandidate* candidate) const {
    return ceil_div(candidate->num_keys, grid_.page_size);
  }
  // -1 behind the end of a table.
  int64_t page_at(const PrefixCandidate* candidate, int64_t index) const {
    return index < num_pages(candidate) ? candidate->pages[index] : -1;
  }

  // Length of the common beginning of two tables that agree in front of `begin`; at most `end`.
  static int64_t common_pages(const int32_t* a, const int32_t* b, int64_t begin, int64_t end) {
    constexpr int64_t kStep = 64;
    while (begin + kStep <= end && std::memcmp(a + begin, b + begin, kStep * sizeof(int32_t)) == 0)
      begin += kStep;
    while (begin < end && a[begin] == b[begin]) ++begin;
    return begin;
  }

  // One node of the tree that all tables make: [begin, end) have their first `depth` pages in common; keys in front of key_begin are
  // shared already. On the way down every table is read once.
  void search(size_t begin, size_t end, int64_t depth, int64_t key_begin, int level) {
    const PrefixCandidate* first = order_[begin];
    int64_t common = num_pages(first), keys = first->num_keys;
    for (size_t i = begin + 1; i < end; ++i) {
      const int64_t limit = std::min(common, num_pages(order_[i]));
      common = common_pages(first->pages, order_[i]->pages, std::min(depth, limit), limit);
      keys = std::min(keys, order_[i]->num_keys);
    }
    const int64_t key_end =
        std::min(keys, common * grid_.page_size) / grid_.key_multiple * grid_.key_multiple;
    const size_t taken = found_.size();
    const bool takes =
        key_end > key_begin && price_.pays({order_.data() + begin, end - begin}, key_end - key_begin);
    if (takes) {
      found_.push_back({key_begin, key_end, {}});
      key_begin = key_end;
      ++level;
    }
    if (level < kPrefixLevels) search_parts(begin, end, common, key_begin, level);
    // Now that the parts below have their places, their members follow each other here too.
    for (size_t i = begin; takes && i < end; ++i) found_[taken].sequences.push_back(order_[i]->sequence);
  }

  // The same for those of [begin, end) that go on with the same page.
  void search_parts(size_t begin, size_t end, int64_t depth, int64_t key_begin, int level) {
    const auto at = [&](size_t i) { return order_.begin() + static_cast<ptrdiff_t>(i); };
    std::sort(at(begin), at(end), [&](const PrefixCandidate* a, const PrefixCandidate* b) {
      const int64_t a_page = page_at(a, depth), b_page = page_at(b, depth);
      return a_page != b_page ? a_page < b_page : a->sequence < b->sequence;
    });
    for (size_t next = begin; begin < end; begin = next) {
      const int64_t page = page_at(order_[begin], depth);
      for (next = begin + 1; next < end && page_at(order_[next], depth) == page;) ++next;
      if (page >= 0 && next - begin > 1) search(begin, next, depth + 1, key_begin, level);
    }
  }

  const PrefixGrid grid_;
  const SharingPrice& price_;
  std::vector<CommonPrefix>& found_;
  std::vector<const PrefixCandidate*> order_;
};

// Of one thread.
class CpuPrice final : public SharingPrice {
 public:
  CpuPrice(const CascadeShape& shape, const CascadeCosts& costs) : shape_(shape), costs_(costs) {}

  bool pays(std::span<const PrefixCandidate* const> members, int64_t num_keys) const override {
    const auto keys = static_cast<double>(num_keys);
    const double bytes = keys * static_cast<double>(shape_.key_bytes) * shape_.num_kv_heads;
    const double flops_per_row = 2.0 * keys * shape_.num_q_heads * (shape_.k_dim + shape_.v_dim);
    double apart = 0, rows = 0;
    for (const PrefixCandidate* member : members) {
      const auto own_rows = static_cast<double>(member->num_rows);
      apart += std::max(bytes / costs_.bytes_per_second,
                        own_rows * flops_per_row / costs_.decode_flops_per_second);
      rows += own_rows;
    }
    const auto pieces = static_cast<double>(ceil_div(num_keys, kPrefixKeys));
    const double partial_bytes = pieces * rows * shape_.num_q_heads * (2.0 + shape_.v_dim) * sizeof(float);
    const double together = bytes / costs_.packed_bytes_per_second +
                            rows * flops_per_row / costs_.tile_flops_per_second +
                            2 * partial_bytes / costs_.bytes_per_second +
                            (pieces + static_cast<double>(members.size())) * costs_.seconds_per_item;
    return together < apart * (1 - costs_.smallest_gain);
  }

 private:
  const CascadeShape& shape_;
  const CascadeCosts& costs_;
};

}  // namespace

void find_shared_prefixes(std::span<const PrefixCandidate> candidates, const PrefixGrid& grid,
                          const SharingPrice& price, std::vector<CommonPrefix>* found) {
  found->clear();
  if (candidates.size() < 2) return;
  PrefixFinder(grid, price, found).run(candidates);
}

void find_shared_prefixes(const PrefixCandidate* candidates, int64_t num_candidates,
                          const CascadeShape& shape, const CascadeCosts& costs,
                          std::vector<CommonPrefix>* found) {
  find_shared_prefixes({candidates, static_cast<size_t>(num_candidates)}, {shape.page_size, kTileKeys},
                       CpuPrice(shape, costs), found);
}

void SharedEntries::build(const std::vector<CommonPrefix>& found, std::vector<AttnSequence>* sequences) {
  prefixes_.clear();
  size_t num_rows = 0;
  for (const CommonPrefix& prefix : found) {
    for (const int32_t member : prefix.sequences)
      num_rows += static_cast<size_t>((*sequences)[static_cast<size_t>(member)].num_rows);
  }
  row_maps_.resize(num_rows);
  row_positions_.resize(num_rows);
  size_t next = 0;
  for (const CommonPrefix& prefix : found) {
    SharedPrefix shared{.sequence = static_cast<int32_t>(sequences->size()),
                        .key_begin = prefix.key_begin,
                        .key_end = prefix.key_end,
                        .members = {}};
    AttnSequence entry = (*sequences)[static_cast<size_t>(prefix.sequences.front())];
    entry.row_map = row_maps_.data() + next;
    entry.row_positions = row_positions_.data() + next;
    entry.row_begin = entry.num_rows = entry.position = 0;
    entry.first_key_end = prefix.key_end;  // rows of causal calls would see more: items end here
    entry.key_begins = entry.key_ends = nullptr;
    entry.tree_mask = nullptr;
    entry.sink_end = entry.tree_begin = entry.tree_words = 0;
    for (const int32_t index : prefix.sequences) {
      const AttnSequence& member = (*sequences)[static_cast<size_t>(index)];
      shared.members.push_back({index, entry.num_rows});
      for (int64_t row = 0; row < member.num_rows; ++row, ++next) {
        row_maps_[next] =
            member.row_map != nullptr ? member.row_map[row] : static_cast<int32_t>(member.row_begin + row);
        row_positions_[next] = member.row_positions != nullptr ? member.row_positions[row]
                                                               : static_cast<int32_t>(member.position + row);
      }
      entry.num_rows += member.num_rows;
    }
    sequences->push_back(entry);
    prefixes_.push_back(std::move(shared));
  }
}

}  // namespace kvc
