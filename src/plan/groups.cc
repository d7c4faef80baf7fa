#include "src/plan/groups.h"

#include <algorithm>

#include "src/base/math.h"
#include "src/plan/group_search.h"
#include "src/plan/rows.h"

namespace kvc {
namespace {

bool same_kind(const GroupSpec& group, const LayerSpec& layer) {
  return group.is_cross == (layer.kind == KVC_LAYER_CROSS) && group.window == layer.window &&
         group.chunk == layer.chunk;
}

std::vector<LayerKind> kinds_of(const std::vector<LayerSpec>& layers) {
  std::vector<LayerKind> kinds;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerSpec& layer = layers[i];
    if (!layer.keeps_pages()) continue;
    auto kind = std::find_if(kinds.begin(), kinds.end(),
                             [&](const LayerKind& known) { return same_kind(known.group, layer); });
    if (kind == kinds.end()) {
      kinds.emplace_back();
      kind = kinds.end() - 1;
      kind->group.is_cross = layer.kind == KVC_LAYER_CROSS;
      kind->group.window = layer.window;
      kind->group.chunk = layer.chunk;
    }
    kind->group.layers.push_back(static_cast<int32_t>(i));
    kind->layer_bytes.push_back(layer.num_kv_heads * row_bytes(layer).total());
  }
  return kinds;
}

// Groups of about equal length, all with page_size tokens.
GroupPlan padded_groups(const std::vector<LayerKind>& kinds, int32_t page_size) {
  int64_t least = INT64_MAX, most = 0;
  for (const LayerKind& kind : kinds) {
    least = std::min(least, static_cast<int64_t>(kind.layer_bytes.size()));
    most = std::max(most, static_cast<int64_t>(kind.layer_bytes.size()));
  }
  GroupPlan plan;
  if (kinds.empty()) return plan;
  const int64_t length = 2 * most < 3 * least ? most : least;
  for (const LayerKind& kind : kinds) {
    const int64_t parts = ceil_div(static_cast<int64_t>(kind.layer_bytes.size()), length);
    plan.parts.push_back(static_cast<int32_t>(parts));
    plan.page_tokens.emplace_back(static_cast<size_t>(parts), page_size);
  }
  return plan;
}

}  // namespace

std::vector<GroupSpec> make_groups(std::vector<LayerSpec>& layers, const GroupingOptions& options) {
  const std::vector<LayerKind> kinds = kinds_of(layers);
  const bool is_padded = options.pads_pages || kinds.size() < 2;
  const GroupPlan plan = is_padded ? padded_groups(kinds, options.page_size) : search_groups(kinds, options);
  std::vector<GroupSpec> groups;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    const std::vector<int32_t>& ids = kinds[kind].group.layers;
    const auto parts = static_cast<size_t>(plan.parts[kind]);
    for (size_t part = 0; part < parts; ++part) {
      GroupSpec group = kinds[kind].group;
      group.page_tokens = plan.page_tokens[kind][part];
      group.layers.clear();
      for (size_t i = part; i < ids.size(); i += parts) {
        layers[static_cast<size_t>(ids[i])].group = static_cast<int32_t>(groups.size());
        group.layers.push_back(ids[i]);
      }
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

}  // namespace kvc
