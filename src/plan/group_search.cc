#include "src/plan/group_search.h"

#include <algorithm>
#include <array>
#include <numeric>
#include <utility>

#include "src/base/math.h"

namespace kvc {

FormulaPlan::FormulaPlan(const std::vector<LayerKind>& kinds, int32_t base_page_size) {
  std::vector<int32_t> counts;
  int64_t widest = 0;
  for (const LayerKind& kind : kinds) {
    counts.push_back(kind.num_layers());
    widest = std::max(widest, kind.layer_bytes.front());
  }
  const std::vector<int32_t> parts = equal_parts(counts);
  for (size_t i = 0; i < kinds.size(); ++i) {
    const int64_t width = kinds[i].layer_bytes.front();
    const int64_t fits = widest % width == 0 ? widest / width : 1;
    const auto times = static_cast<int32_t>(std::min<int64_t>(fits, INT32_MAX / base_page_size));
    groups_.push_back({parts[i], times, kinds[i].group});
    groups_.back().group.layers.clear();
    groups_.back().group.page_size = base_page_size * times;
    capacity_ = std::max(capacity_, widest * even_part(counts[i], parts[i], 0));
  }
}

double FormulaPlan::request_bytes(int64_t num_tokens, const RequestLimits& limits) const {
  double pages = 0;
  for (const Groups& groups : groups_)
    pages += groups.parts * static_cast<double>(request_pages(groups.group, num_tokens, limits));
  return pages * static_cast<double>(capacity_);
}

namespace {

// Kinds with more layers do not try every length of a group.
constexpr int32_t kMostLengths = 64;

}  // namespace

KindCuts::KindCuts(const std::vector<int64_t>& layer_bytes, std::vector<PageNeed> needs,
                   bool makes_blocks)
    : num_layers_(static_cast<int32_t>(layer_bytes.size())),
      width_(layer_bytes.front()),
      needs_(std::move(needs)),
      makes_blocks_(makes_blocks) {
  for (const int64_t bytes : layer_bytes) {
    if (bytes != width_) width_ = 0;
  }
  const auto most = std::min<size_t>(kMostGroups, layer_bytes.size());
  for (size_t parts = 1; parts <= most; ++parts) {
    std::vector<int64_t> widths(parts, 0);
    for (size_t i = 0; i < layer_bytes.size(); ++i) widths[i % parts] += layer_bytes[i];
    widest_part_.push_back(*std::max_element(widths.begin(), widths.end()));
  }
}

int32_t KindCuts::least_parts(int64_t capacity) const {
  const auto fits = std::find_if(widest_part_.begin(), widest_part_.end(),
                                 [&](int64_t width) { return width <= capacity; });
  return fits == widest_part_.end() ? kMostGroups + 1
                                    : 1 + static_cast<int32_t>(fits - widest_part_.begin());
}

void KindCuts::add_capacities(std::vector<int64_t>* capacities) const {
  capacities->insert(capacities->end(), widest_part_.begin(), widest_part_.end());
  const int32_t lengths = width_ == 0 ? 0 : std::min(num_layers_, kMostLengths);
  for (int32_t i = 1; i <= lengths; ++i)
    capacities->push_back(width_ * (int64_t{num_layers_} * i / lengths));
}

void KindCuts::find(int64_t capacity, const std::vector<int32_t>& divisors, int32_t most_parts,
                    std::vector<Cut>* cuts) const {
  cuts->clear();
  find_even(capacity, divisors, most_parts, cuts);
  if (width_ != 0) find_uneven({}, num_layers_, capacity, divisors, most_parts, cuts);
}

Cut KindCuts::even_cut(int32_t parts, int32_t times) const {
  Cut cut;
  const int32_t longer = num_layers_ % parts;
  if (longer != 0) add_run(&cut, {longer, num_layers_ / parts + 1, times});
  add_run(&cut, {parts - longer, num_layers_ / parts, times});
  return cut;
}

int32_t KindCuts::most_times(int64_t capacity, int64_t width,
                             const std::vector<int32_t>& divisors) const {
  const int64_t most = capacity / std::max<int64_t>(1, width);
  if (!makes_blocks_) return static_cast<int32_t>(std::min<int64_t>(most, kMostTimes));
  const auto beyond = std::upper_bound(divisors.begin(), divisors.end(), most);
  return beyond == divisors.begin() ? 0 : *(beyond - 1);
}

void KindCuts::add_run(Cut* cut, const CutRun& run) const {
  cut->runs[cut->num_runs++] = run;
  cut->parts += run.parts;
  cut->need.add(needs_[run.times], run.parts);
}

void KindCuts::find_even(int64_t capacity, const std::vector<int32_t>& divisors, int32_t most_parts,
                         std::vector<Cut>* cuts) const {
  const auto most = std::min(most_parts, static_cast<int32_t>(widest_part_.size()));
  for (int32_t parts = 1; parts <= most; ++parts) {
    const int32_t times =
        most_times(capacity, widest_part_[static_cast<size_t>(parts) - 1], divisors);
    if (times != 0) cuts->push_back(even_cut(parts, times));
  }
}

// As many groups as possible of those that fill the capacity with some times. The rest is cut
// likewise.
void KindCuts::find_uneven(Cut cut, int32_t layers, int64_t capacity,
                           const std::vector<int32_t>& divisors, int32_t most_parts,
                           std::vector<Cut>* cuts) const {
  if (cut.parts >= most_parts) return;
  const int32_t last_times = most_times(capacity, width_ * layers, divisors);
  if (last_times != 0 && cut.num_runs != 0) {
    cuts->push_back(cut);
    add_run(&cuts->back(), {1, layers, last_times});
  }
  if (cut.num_runs + 1 == static_cast<int32_t>(cut.runs.size())) return;
  for (const int32_t times : divisors) {
    if (cut.num_runs != 0 && times <= cut.runs[static_cast<size_t>(cut.num_runs) - 1].times)
      continue;
    const int64_t length = capacity / (width_ * times);
    if (length == 0) return;
    if (length >= layers) continue;
    const auto parts = static_cast<int32_t>(layers / length);
    if (cut.parts + parts > most_parts) return;
    Cut longer = cut;
    add_run(&longer, {parts, static_cast<int32_t>(length), times});
    const auto rest = static_cast<int32_t>(layers % length);
    if (rest == 0)
      cuts->push_back(longer);
    else
      find_uneven(longer, rest, capacity, divisors, most_parts, cuts);
  }
}

// A search over page sizes and, for each, over the ways to cut every kind of layers into layer
// groups that fit. The cost of a candidate is the sum of:
// 1. The mean, over four reference requests, of (bytes of the pages of the request / bytes of the
//    tokens that it keeps - 1).
// 2. kTableCost per layer group: one more page table per sequence to keep, to send to a device, and
//    to look prefixes up in.
// 3. kBlockCost per base_page_size tokens by which a block of the prefix index grows, because hits
//    end at blocks.
// 4. kWasteCost times the share by which the longest request wastes more than kMostWaste.
//
// A candidate is refused when a request takes more than by the formulas of vLLM's planner. The
// grouping of the formulas is the first candidate. Only when it has more than kMostGroups groups
// does the excess, times kShortfallCost, become part of the cost.
//
// Pages of the reference requests are counted on average: tokens / page_size, plus half a page
// behind the last token or, in a window, one page over both ends. So a candidate pays for padding,
// for the room that long pages leave, and for complexity. The comparison with the formulas is
// exact, for max_seq_len and for shorter requests at the lengths where long pages are worst.

namespace {

constexpr int32_t kFewKinds = 4;
// One more table costs a decode step about 20 ns per sequence, much less than 0.8 % of a model's
// step. A block that is 16 tokens longer costs 8 tokens of a prompt on average.
constexpr double kTableCost = 0.008;
constexpr double kBlockCost = 0.003;
constexpr double kWasteCost = 100;
constexpr double kShortfallCost = 3;
constexpr double kMostWaste = 0.04;
// Nearly equal costs are equal, so that rounding does not decide.
constexpr double kRounding = 1e-9;
// The length when the configuration sets no limit.
constexpr int64_t kLongRequest = 131072;
constexpr int64_t kForward = 2048;
constexpr int64_t kEncoderTokens = 1500;
constexpr int64_t kShortRequest = kLongRequest / 512;

constexpr size_t kRequests = 4;
constexpr size_t kPicks = 3;  // cuts of each kind that are tried for a size of pages
constexpr size_t kLimits = 2;

// A request to compare with the formulas.
struct Sample {
  int64_t tokens;
  std::array<double, kLimits> formula_bytes;
};

struct Candidate {
  int64_t capacity = 0;   // bytes of a page, divided by base_page_size
  std::vector<Cut> cuts;  // per kind
  double cost = 0;
};

class Search {
 public:
  // `formulas`: those of the same layers; NULL when unknown.
  Search(const std::vector<LayerKind>& kinds, const FormulaPlan* formulas,
         const GroupingOptions& options)
      : kinds_(kinds),
        formulas_(formulas),
        base_page_size_(options.base_page_size),
        longest_(options.max_seq_len == 0 ? kLongRequest : options.max_seq_len) {
    const int64_t cross = options.max_cross_len == 0 ? kEncoderTokens : options.max_cross_len;
    // Counts as the plan does, for hosts that do not tell the length of their forwards.
    const int64_t forward = options.tokens_in_flight == 0 ? kForward : options.tokens_in_flight;
    limits_ = {RequestLimits{options.tokens_in_flight, cross}, RequestLimits{forward, cross}};
    num_limits_ = options.tokens_in_flight == 0 ? 2 : 1;
    const std::vector<double> kept = kept_bytes();
    for (const LayerKind& kind : kinds) {
      longest_kept_ +=
          total_width(kind) * static_cast<double>(kept_tokens(kind.group, longest_, limits_[0]));
      cuts_.emplace_back(kind.layer_bytes, needs_of(kind.group, kept), !kind.group.is_cross);
    }
    most_groups_ = most_groups();
  }

  // The limits that no candidate may exceed: the pages by the formulas.
  bool is_bound() const { return is_bound_; }
  void bind(bool is_bound) { is_bound_ = is_bound; }
  bool has_plan() const { return !best_.cuts.empty(); }
  double cost() const { return best_.cost; }

  // The layer groups of the formulas, which were made for the same kinds.
  void consider_formulas() {
    Candidate candidate{.capacity = formulas_->capacity(), .cuts = {}};
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      const FormulaPlan::Groups& groups = formulas_->groups()[kind];
      if (groups.times > kMostTimes) return;
      candidate.cuts.push_back(cuts_[kind].even_cut(groups.parts, groups.times));
    }
    consider(candidate);
    is_bound_ = !best_.cuts.empty();
  }

  void run() {
    std::vector<int64_t> capacities;
    for (const KindCuts& cuts : cuts_) cuts.add_capacities(&capacities);
    std::sort(capacities.begin(), capacities.end());
    capacities.erase(std::unique(capacities.begin(), capacities.end()), capacities.end());
    std::vector<int32_t> divisors;
    for (int32_t block = 1; block <= kMostTimes; ++block) {
      divisors.clear();
      for (int32_t times = 1; times <= block; ++times) {
        if (block % times == 0) divisors.push_back(times);
      }
      for (const int64_t capacity : capacities) visit(capacity, block, divisors);
    }
  }

  GroupPlan plan() const {
    GroupPlan plan{.kinds = kinds_, .parts = {}};
    for (const Cut& cut : best_.cuts) {
      std::vector<GroupPart>& parts = plan.parts.emplace_back();
      for (int32_t run = 0; run < cut.num_runs; ++run) {
        const CutRun& groups = cut.runs[run];
        for (int32_t part = 0; part < groups.parts; ++part)
          parts.push_back({groups.layers, groups.times * base_page_size_});
      }
    }
    return plan;
  }

 private:
  // Few kinds are cut when there are many, because there would be too many ways.
  int32_t most_groups() const {
    const auto num_kinds = static_cast<int32_t>(kinds_.size());
    const int32_t most = num_kinds <= kFewKinds ? kMostGroups : num_kinds + kFewKinds;
    return std::max(num_kinds, std::min(kMostGroups, most));
  }

  int64_t reference(size_t request) const {
    static constexpr std::array<int64_t, kRequests> kLengths = {INT64_MAX, kLongRequest / 8,
                                                                kLongRequest / 64, kShortRequest};
    return std::min(longest_, kLengths[request]);
  }

  static double total_width(const LayerKind& kind) {
    return static_cast<double>(
        std::accumulate(kind.layer_bytes.begin(), kind.layer_bytes.end(), int64_t{0}));
  }

  int64_t kept(const GroupSpec& group, size_t request) const {
    return kept_tokens(group, reference(request), limits_[kLimits - 1]);
  }

  // [reference request]
  std::vector<double> kept_bytes() const {
    std::vector<double> bytes(kRequests, 0);
    for (const LayerKind& kind : kinds_) {
      for (size_t i = 0; i < kRequests; ++i)
        bytes[i] += total_width(kind) * static_cast<double>(kept(kind.group, i));
    }
    return bytes;
  }

  std::vector<PageNeed> needs_of(GroupSpec group, const std::vector<double>& bytes) const {
    std::vector<PageNeed> needs(1);
    for (int32_t times = 1; times <= kMostTimes; ++times) {
      group.page_size = base_page_size_ * times;
      PageNeed& need = needs.emplace_back();
      for (size_t i = 0; i < kRequests; ++i) {
        const int64_t tokens = kept(group, i);
        const double extra = group.is_windowed() && tokens < reference(i) ? 1 : 0.5;
        need.tail += extra / bytes[i] / kRequests;
        need.weighed +=
            (static_cast<double>(tokens) / group.page_size + extra) / bytes[i] / kRequests;
      }
      need.longest = static_cast<double>(request_pages(group, longest_, limits_[0]));
    }
    return needs;
  }

  // For each kind, the cut of least cost, the one that wastes least and the best one for the
  // longest request, for pages of `capacity` and times that divide `block`.
  void visit(int64_t capacity, int32_t block, const std::vector<int32_t>& divisors) {
    const double bytes = static_cast<double>(capacity) * base_page_size_;
    int32_t least = 0;
    double least_cost = kBlockCost * (block - 1);
    for (const KindCuts& cuts : cuts_) {
      const int32_t parts = cuts.least_parts(capacity);
      least += parts;
      least_cost += parts * (kTableCost + cuts.tail() * bytes);
    }
    if (least > most_groups_ || (!best_.cuts.empty() && best_.cost <= least_cost)) return;
    for (Candidate& pick : picks_) {
      pick.capacity = capacity;
      pick.cuts.clear();
    }
    for (const KindCuts& cuts : cuts_) {
      const int32_t most_parts = most_groups_ - (least - cuts.least_parts(capacity));
      cuts.find(capacity, divisors, most_parts, &found_);
      if (found_.empty()) return;
      const std::array<const Cut*, kPicks> best = {
          least_of(
              [&](const Cut& cut) { return cut.need.weighed * bytes + kTableCost * cut.parts; }),
          least_of([&](const Cut& cut) { return cut.need.weighed * bytes; }),
          least_of([&](const Cut& cut) { return cut.need.longest + 1e-3 * cut.parts; })};
      for (size_t i = 0; i < kPicks; ++i) picks_[i].cuts.push_back(*best[i]);
    }
    for (Candidate& pick : picks_) consider(pick);
    if (kinds_.size() != 2) return;
    pair_.capacity = capacity;
    for (size_t i = 0; i < kPicks; ++i) {
      for (size_t j = 0; j < kPicks; ++j) {
        if (i == j) continue;
        pair_.cuts.assign(1, picks_[i].cuts[0]);
        pair_.cuts.push_back(picks_[j].cuts[1]);
        consider(pair_);
      }
    }
  }

  // The first of the cuts with the least value.
  template <typename Value>
  const Cut* least_of(const Value& value) const {
    const Cut* best = nullptr;
    double least = 0;
    for (const Cut& cut : found_) {
      const double own = value(cut);
      if (best == nullptr || own < least - 1e-12) best = &cut, least = own;
    }
    return best;
  }

  // Computes the cost, as far as it matters.
  void consider(Candidate& candidate) {
    PageNeed need;
    int32_t parts = 0;
    for (const Cut& cut : candidate.cuts) {
      need.add(cut.need, 1);
      parts += cut.parts;
    }
    const double bytes = static_cast<double>(candidate.capacity) * base_page_size_;
    candidate.cost = need.weighed * bytes - 1 + kTableCost * parts;
    if (parts > most_groups_ || !is_better(candidate)) return;
    const int32_t block = block_of(candidate);
    candidate.cost += kBlockCost * (block - 1);
    if (block > kMostTimes || !has_page_size(candidate) || !is_better(candidate)) return;
    candidate.cost += kWasteCost * excess_waste(candidate);
    if (!is_better(candidate)) return;
    const double above = shortfall(candidate, block);
    if (is_bound_ && above > 0) return;
    candidate.cost += kShortfallCost * above;
    if (is_better(candidate)) best_ = candidate;
  }

  // Some group has base_page_size tokens per page.
  static bool has_page_size(const Candidate& candidate) {
    return std::any_of(candidate.cuts.begin(), candidate.cuts.end(), [](const Cut& cut) {
      return std::any_of(cut.runs.begin(), cut.runs.begin() + cut.num_runs,
                         [](const CutRun& run) { return run.times == 1; });
    });
  }

  // Tokens per block of the prefix index, divided by base_page_size.
  int32_t block_of(const Candidate& candidate) const {
    int32_t block = 1;
    for (size_t kind = 0; kind < kinds_.size(); ++kind) {
      if (!cuts_[kind].makes_blocks()) continue;
      const Cut& cut = candidate.cuts[kind];
      for (int32_t run = 0; run < cut.num_runs; ++run) block = std::lcm(block, cut.runs[run].times);
    }
    return block;
  }

  bool is_better(const Candidate& candidate) const {
    return best_.cuts.empty() || candidate.cost < best_.cost - kRounding;
  }

  // The share by which the longest request wastes more than kMostWaste.
  double excess_waste(const Candidate& candidate) const {
    double pages = 0;
    for (const Cut& cut : candidate.cuts) pages += cut.need.longest;
    const double bytes = pages * static_cast<double>(candidate.capacity) * base_page_size_;
    return std::max(0.0, 1 - longest_kept_ / bytes - kMostWaste);
  }

  // The largest share by which a request takes more pages than by the formulas.
  double shortfall(const Candidate& candidate, int32_t block) {
    if (formulas_ == nullptr) return 0;
    double most = 0;
    for (const Sample& sample : samples(block)) {
      for (size_t i = 0; i < num_limits_; ++i) {
        double pages = 0;
        for (size_t kind = 0; kind < kinds_.size(); ++kind) {
          GroupSpec group{.layers = {},
                          .is_cross = kinds_[kind].group.is_cross,
                          .window = kinds_[kind].group.window,
                          .chunk = kinds_[kind].group.chunk};
          for (int32_t r = 0; r < candidate.cuts[kind].num_runs; ++r) {
            const CutRun& run = candidate.cuts[kind].runs[r];
            group.page_size = base_page_size_ * run.times;
            pages +=
                run.parts * static_cast<double>(request_pages(group, sample.tokens, limits_[i]));
          }
        }
        most = std::max(
            most, pages * static_cast<double>(candidate.capacity) / sample.formula_bytes[i] - 1);
      }
    }
    return most < kRounding ? 0 : most;
  }

  // The longest request, and shorter ones whose last token begins a page in every layer group.
  const std::vector<Sample>& samples(int32_t block) {
    std::vector<Sample>& of_block = samples_[block];
    if (!of_block.empty()) return of_block;
    const int64_t tokens = int64_t{base_page_size_} * block;
    std::vector<int64_t> lengths{longest_};
    for (int64_t length = kShortRequest; length < longest_; length += length / 4)
      lengths.push_back(std::min(longest_, length / tokens * tokens + 1));
    for (const int64_t length : lengths) {
      Sample& sample = of_block.emplace_back();
      sample.tokens = length;
      for (size_t i = 0; i < kLimits; ++i)
        sample.formula_bytes[i] = formulas_->request_bytes(length, limits_[i]);
    }
    return of_block;
  }

  const std::vector<LayerKind>& kinds_;
  const FormulaPlan* formulas_;
  int32_t base_page_size_;
  int64_t longest_;
  std::array<RequestLimits, kLimits> limits_;
  size_t num_limits_ = 0;    // Limits that differ.
  double longest_kept_ = 0;  // bytes, of the longest request
  int32_t most_groups_ = 0;
  bool is_bound_ = false;
  std::vector<KindCuts> cuts_;                               // per kind
  std::array<std::vector<Sample>, kMostTimes + 1> samples_;  // by block
  // Scratch, reused because there are thousands of candidates.
  std::vector<Cut> found_;
  std::array<Candidate, kPicks> picks_;
  Candidate pair_;
  Candidate best_;
};

// Kinds whose layers have the same bytes, in the order in which they first appear. Empty when there
// are too many.
std::vector<LayerKind> split_by_bytes(const std::vector<LayerKind>& kinds) {
  std::vector<LayerKind> alike;
  for (const LayerKind& kind : kinds) {
    const size_t first = alike.size();
    for (size_t i = 0; i < kind.layer_bytes.size(); ++i) {
      auto known = std::find_if(
          alike.begin() + static_cast<std::ptrdiff_t>(first), alike.end(),
          [&](const LayerKind& one) { return one.layer_bytes[0] == kind.layer_bytes[i]; });
      if (known == alike.end()) {
        if (alike.size() == kMostGroups) return {};
        known = alike.insert(known, {.group = kind.group, .layer_bytes = {}});
        known->group.layers.clear();
      }
      known->group.layers.push_back(kind.group.layers[i]);
      known->layer_bytes.push_back(kind.layer_bytes[i]);
    }
  }
  std::sort(alike.begin(), alike.end(), [](const LayerKind& a, const LayerKind& b) {
    return a.group.layers.front() < b.group.layers.front();
  });
  return alike;
}

}  // namespace

std::vector<int32_t> equal_parts(const std::vector<int32_t>& layer_counts) {
  std::vector<int32_t> parts;
  if (layer_counts.empty()) return parts;
  const auto [least, most] = std::minmax_element(layer_counts.begin(), layer_counts.end());
  const int32_t length = 2 * int64_t{*most} < 3 * int64_t{*least} ? *most : *least;
  for (const int32_t count : layer_counts)
    parts.push_back(static_cast<int32_t>(ceil_div(count, length)));
  return parts;
}

GroupPlan search_groups(const std::vector<LayerKind>& kinds, const GroupingOptions& options) {
  const std::vector<LayerKind> alike = split_by_bytes(kinds);
  if (alike.empty()) {
    Search search(kinds, nullptr, options);
    search.run();
    return search.plan();
  }
  const FormulaPlan formulas(alike, options.base_page_size);
  Search finer(alike, &formulas, options);
  finer.consider_formulas();
  finer.run();
  if (alike.size() == kinds.size()) return finer.plan();
  Search coarser(kinds, &formulas, options);
  coarser.bind(finer.is_bound());
  coarser.run();
  return coarser.has_plan() && coarser.cost() < finer.cost() - kRounding ? coarser.plan()
                                                                         : finer.plan();
}

}  // namespace kvc
