#include "src/plan/group_cuts.h"

#include <algorithm>
#include <utility>

#include "src/base/math.h"

namespace kvc {
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

}  // namespace kvc
