// A brute-force search over the numbers of parts that each kind is cut into. What a candidate costs:
//
//   mean over four reference requests of (1 - bytes of the tokens that the request keeps / bytes of the pages that it takes)
//   + kTableCost per group            a page table more per sequence to keep, to send to a device and to look prefixes up in
//   + kBlockCost per page_size tokens by which a block of the prefix index grows: hits end at blocks
//
// The pages of a request are counted on average: tokens / page_tokens, and half a page behind the last token or, in a window, one page over both
// ends. So a candidate pays for padding, for room that long pages leave, and for being complicated.
#include "src/plan/group_search.h"

#include <algorithm>
#include <array>
#include <numeric>

namespace kvc {
namespace {

constexpr int32_t kMostGroups = 16;
constexpr int32_t kFewKinds = 4;
constexpr int32_t kMostBlock = 64;  // of the prefix index, in units of page_size
constexpr double kTableCost = 0.0025;
constexpr double kBlockCost = 0.002;
// Where the configuration sets no limit.
constexpr int64_t kLongRequest = 131072;
constexpr int64_t kForward = 2048;
constexpr int64_t kEncoderTokens = 1500;

constexpr size_t kRequests = 4;

// A request's tokens in one group and the pages around them.
struct Need {
  double tokens;
  double extra_pages;
};

// A group of a candidate.
struct Table {
  const std::vector<Need>* needs;
  int64_t width;       // bytes per token
  int32_t most_times;  // that page_size tokens fit a page
  bool is_cross;
};

class Search {
 public:
  Search(const std::vector<LayerKind>& kinds, const GroupingOptions& options)
      : kinds_(kinds), page_size_(options.page_size) {
    const int64_t longest = options.max_seq_len == 0 ? kLongRequest : options.max_seq_len;
    const std::array<int64_t, kRequests> lengths = {longest, kLongRequest / 8, kLongRequest / 64,
                                                    kLongRequest / 512};
    for (const LayerKind& kind : kinds) {
      std::vector<Need>& needs = needs_.emplace_back();
      for (const int64_t length : lengths)
        needs.push_back(need_of(kind.group, std::min(length, longest), options));
      cuts_.push_back(cuts_of(kind));
    }
  }

  GroupPlan run() {
    parts_.assign(kinds_.size(), 1);
    if (kinds_.size() >= kMostGroups) {
      weigh();
    } else {
      visit(0, most_groups());
    }
    return std::move(best_);
  }

 private:
  // Bytes per token of each group when a kind is cut into 1, 2, ... parts.
  using Cuts = std::vector<std::vector<int64_t>>;

  static Cuts cuts_of(const LayerKind& kind) {
    Cuts cuts;
    const size_t most = std::min<size_t>(kMostGroups, kind.layer_bytes.size());
    for (size_t parts = 1; parts <= most; ++parts) {
      std::vector<int64_t>& widths = cuts.emplace_back(parts, 0);
      for (size_t i = 0; i < kind.layer_bytes.size(); ++i) widths[i % parts] += kind.layer_bytes[i];
    }
    return cuts;
  }

  static Need need_of(const GroupSpec& group, int64_t length, const GroupingOptions& options) {
    if (group.is_cross)
      return {static_cast<double>(options.max_cross_len == 0 ? kEncoderTokens : options.max_cross_len), 0.5};
    const int64_t forward = options.tokens_in_flight == 0 ? kForward : options.tokens_in_flight;
    const int64_t behind = (group.window != 0 ? group.window : group.chunk) - 1;
    if (!group.is_windowed() || behind + std::min(length, forward) >= length)
      return {static_cast<double>(length), 0.5};
    return {static_cast<double>(behind + std::min(length, forward)), 1};
  }

  // Models have few kinds of layers, and all ways to cut them are tried; with many kinds the ways would be too many.
  int32_t most_groups() const {
    const auto num_kinds = static_cast<int32_t>(kinds_.size());
    return num_kinds <= kFewKinds ? kMostGroups : std::min(kMostGroups, num_kinds + kFewKinds);
  }

  // All ways to cut the kinds from `kind` on into at most `left` groups.
  void visit(size_t kind, int32_t left) {
    if (kind == kinds_.size()) return weigh();
    const auto later = static_cast<int32_t>(kinds_.size() - kind - 1);
    const auto most = std::min(left - later, static_cast<int32_t>(cuts_[kind].size()));
    for (int32_t parts = 1; parts <= most; ++parts) {
      parts_[kind] = parts;
      visit(kind + 1, left - parts);
    }
  }

  const std::vector<int64_t>& widths(size_t kind) const {
    return cuts_[kind][static_cast<size_t>(parts_[kind]) - 1];
  }

  // How often page_size tokens of a table fit a page: a divisor of `block`, so that blocks of the prefix index, which hold no encoder tokens,
  // stay small.
  static int32_t times_in(const Table& table, int32_t block) {
    if (table.is_cross) return table.most_times;
    int32_t times = std::min(table.most_times, block);
    while (block % times != 0) --times;
    return times;
  }

  void weigh() {
    tables_.clear();
    widest_ = 0;
    for (size_t kind = 0; kind < kinds_.size(); ++kind)
      for (const int64_t width : widths(kind)) widest_ = std::max(widest_, width);
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      for (const int64_t width : widths(kind)) {
        const int64_t times = std::clamp<int64_t>(widest_ / std::max<int64_t>(1, width), 1, kMostBlock);
        tables_.push_back({.needs = &needs_[kind],
                           .width = width,
                           .most_times = static_cast<int32_t>(times),
                           .is_cross = kinds_[kind].group.is_cross});
      }
    }
    const double least = cost_of([](const Table& table) { return table.most_times; });
    for (int32_t block = 1; block <= kMostBlock; ++block) {
      if (!best_.parts.empty() && least + kBlockCost * (block - 1) >= least_cost_) return;
      weigh_block(block);
    }
  }

  void weigh_block(int32_t block) {
    int32_t common = 1;
    for (const Table& table : tables_) {
      if (!table.is_cross) common = std::lcm(common, times_in(table, block));
    }
    if (common != block) return;  // the same as a smaller block
    const double cost =
        cost_of([&](const Table& table) { return times_in(table, block); }) + kBlockCost * (block - 1);
    // Nearly equal is equal: rounding must not decide, and the first has fewer parts.
    if (best_.parts.empty() || cost < least_cost_ - 1e-9) {
      least_cost_ = cost;
      remember(block);
    }
  }

  // Of waste and tables.
  template <typename Times>
  double cost_of(const Times& times) const {
    std::array<double, kRequests> kept{}, taken{};
    for (const Table& table : tables_) {
      const double page_tokens = static_cast<double>(page_size_) * times(table);
      for (size_t i = 0; i < kRequests; ++i) {
        const Need& need = (*table.needs)[i];
        kept[i] += need.tokens * static_cast<double>(table.width);
        taken[i] += need.tokens / page_tokens + need.extra_pages;
      }
    }
    const double page_bytes = static_cast<double>(widest_) * page_size_;
    double cost = kTableCost * static_cast<double>(tables_.size());
    for (size_t i = 0; i < kRequests; ++i) cost += (1 - kept[i] / (taken[i] * page_bytes)) / kRequests;
    return cost;
  }

  void remember(int32_t block) {
    best_.parts = parts_;
    best_.page_tokens.clear();
    size_t table = 0;
    for (const int32_t parts : parts_) {
      std::vector<int32_t>& tokens = best_.page_tokens.emplace_back();
      for (int32_t part = 0; part < parts; ++part, ++table)
        tokens.push_back(page_size_ * times_in(tables_[table], block));
    }
  }

  const std::vector<LayerKind>& kinds_;
  int32_t page_size_;
  std::vector<std::vector<Need>> needs_;  // per kind and reference request
  std::vector<Cuts> cuts_;                // per kind
  std::vector<int32_t> parts_;            // the candidate
  std::vector<Table> tables_;             // its groups
  int64_t widest_ = 0;                    // bytes per token of its widest group
  double least_cost_ = 0;
  GroupPlan best_;
};

}  // namespace

GroupPlan search_groups(const std::vector<LayerKind>& kinds, const GroupingOptions& options) {
  return Search(kinds, options).run();
}

}  // namespace kvc
