#include "src/plan/groups.h"

#include <algorithm>

#include "src/base/math.h"
#include "src/plan/spec.h"

namespace kvc {
namespace {

bool same_kind(const GroupSpec& group, const LayerSpec& layer) {
  return group.is_cross == (layer.kind == KVC_LAYER_CROSS) && group.window == layer.window &&
         group.chunk == layer.chunk;
}

// One bucket per kind, all its layers.
std::vector<GroupSpec> bucket_layers(const std::vector<LayerSpec>& layers) {
  std::vector<GroupSpec> buckets;
  for (size_t i = 0; i < layers.size(); ++i) {
    if (!layers[i].keeps_pages()) continue;
    auto bucket = std::find_if(buckets.begin(), buckets.end(),
                               [&](const GroupSpec& group) { return same_kind(group, layers[i]); });
    if (bucket == buckets.end()) {
      buckets.push_back({.layers = {},
                         .is_cross = layers[i].kind == KVC_LAYER_CROSS,
                         .window = layers[i].window,
                         .chunk = layers[i].chunk});
      bucket = buckets.end() - 1;
    }
    bucket->layers.push_back(static_cast<int32_t>(i));
  }
  return buckets;
}

int64_t group_length(const std::vector<GroupSpec>& buckets) {
  if (buckets.empty()) return 0;
  int64_t least = INT64_MAX, most = 0;
  for (const GroupSpec& bucket : buckets) {
    least = std::min(least, static_cast<int64_t>(bucket.layers.size()));
    most = std::max(most, static_cast<int64_t>(bucket.layers.size()));
  }
  return 2 * most < 3 * least ? most : least;
}

}  // namespace

std::vector<GroupSpec> make_groups(std::vector<LayerSpec>& layers) {
  const std::vector<GroupSpec> buckets = bucket_layers(layers);
  const int64_t length = group_length(buckets);
  std::vector<GroupSpec> groups;
  for (const GroupSpec& bucket : buckets) {
    const auto count = static_cast<int64_t>(bucket.layers.size());
    const int64_t parts = ceil_div(count, length);
    for (int64_t part = 0; part < parts; ++part) {
      GroupSpec group = bucket;
      group.layers.clear();
      for (int64_t i = part; i < count; i += parts) {
        LayerSpec& layer = layers[static_cast<size_t>(bucket.layers[static_cast<size_t>(i)])];
        layer.group = static_cast<int32_t>(groups.size());
        layer.slot = static_cast<int32_t>(group.layers.size());
        group.layers.push_back(bucket.layers[static_cast<size_t>(i)]);
      }
      groups.push_back(std::move(group));
    }
  }
  return groups;
}

}  // namespace kvc
