#include "src/plan/group_formulas.h"

#include <algorithm>

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

}  // namespace kvc
