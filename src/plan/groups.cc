#include "src/plan/groups.h"

#include <algorithm>
#include <numeric>
#include <utility>

#include "src/base/math.h"
#include "src/plan/group_search.h"
#include "src/plan/layout.h"

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
    if (!layer.keeps_pages() || layer.is_kept_rows()) continue;
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

// Layer groups of about equal length, all with base_page_size tokens per page.
GroupPlan padded_groups(std::vector<LayerKind> kinds, int32_t base_page_size) {
  std::vector<int32_t> counts;
  for (const LayerKind& kind : kinds) counts.push_back(kind.num_layers());
  const std::vector<int32_t> parts = equal_parts(counts);
  GroupPlan plan;
  for (size_t kind = 0; kind < kinds.size(); ++kind) {
    std::vector<GroupPart>& cut = plan.parts.emplace_back();
    for (int32_t part = 0; part < parts[kind]; ++part)
      cut.push_back({even_part(counts[kind], parts[kind], part), base_page_size});
  }
  plan.kinds = std::move(kinds);
  return plan;
}

// The least divisor of `base_page_size` that holds the kept tokens, so that most often one page has
// them and little of it is left over; the whole of it where there are more.
int32_t kept_page_size(int64_t keep_tokens, int32_t base_page_size) {
  const int64_t wanted = std::min<int64_t>(keep_tokens, base_page_size);
  int32_t page_size = base_page_size;
  for (int32_t divisor = base_page_size; divisor >= wanted; --divisor) {
    if (base_page_size % divisor == 0) page_size = divisor;
  }
  return page_size;
}

// Adds the groups of kept rows: those of as many tokens together, cut where the page of the other
// groups has no room for more. A layer whose kept rows are larger than that page makes it larger.
void add_kept_groups(std::vector<LayerSpec>& layers, int32_t base_page_size,
                     std::vector<GroupSpec>* groups) {
  int64_t page_bytes = 0;
  for (const GroupSpec& group : *groups) {
    int64_t bytes = 0;
    for (const int32_t id : group.layers)
      bytes += layers[id].num_kv_heads * row_bytes(layers[id]).total() * group.page_size;
    page_bytes = std::max(page_bytes, bytes);
  }
  const size_t first = groups->size();
  std::vector<int64_t> used;  // [kept group] Bytes of its page so far.
  for (size_t id = 0; id < layers.size(); ++id) {
    LayerSpec& layer = layers[id];
    if (!layer.is_kept_rows()) continue;
    const int32_t page_size = kept_page_size(layer.keep_tokens, base_page_size);
    const int64_t bytes = layer.num_kv_heads * row_bytes(layer).total() * page_size;
    size_t index = groups->size();  // The last group of as many tokens.
    while (index > first && (*groups)[index - 1].keep_tokens != layer.keep_tokens) --index;
    if (index == first || used[index - 1 - first] + bytes > page_bytes) {
      GroupSpec& group = groups->emplace_back();
      group.page_size = page_size;
      group.keep_tokens = layer.keep_tokens;
      used.push_back(0);
      index = groups->size();
    }
    used[index - 1 - first] += bytes;
    (*groups)[index - 1].layers.push_back(static_cast<int32_t>(id));
    layer.group = static_cast<int32_t>(index - 1);
  }
}

// The part that each layer of a kind belongs to. Every part is spread evenly over the model, so
// that each slice of a pipeline gets its share. Parts of equal length alternate.
std::vector<size_t> spread_layers(const std::vector<GroupPart>& parts) {
  // Layer j of a part of n is placed at (2 j + 1) / 2 n of the way.
  struct Place {
    int64_t nth, of;
    size_t part;
  };
  std::vector<Place> places;
  for (size_t part = 0; part < parts.size(); ++part) {
    for (int64_t j = 0; j < parts[part].num_layers; ++j)
      places.push_back({2 * j + 1, parts[part].num_layers, part});
  }
  std::sort(places.begin(), places.end(), [](const Place& a, const Place& b) {
    const int64_t left = a.nth * b.of, right = b.nth * a.of;
    return left != right ? left < right : a.part < b.part;
  });
  std::vector<size_t> part_of;
  for (const Place& place : places) part_of.push_back(place.part);
  return part_of;
}

}  // namespace

int64_t kept_tokens(const GroupSpec& group, int64_t num_tokens, const RequestLimits& limits) {
  if (group.has_kept_rows()) return group.tokens_of(num_tokens);
  if (group.is_cross) return num_tokens > 0 ? limits.max_cross_len : 0;
  // A plan with several context parallel ranks has no windows.
  if (limits.cp_size > 1) return ceil_div(num_tokens, limits.cp_size);
  if (!group.is_windowed()) return num_tokens;
  // The visible range behind the first query of a forward, and the tokens of the forwards
  // themselves.
  const int64_t in_flight =
      limits.tokens_in_flight == 0 ? num_tokens : std::min(num_tokens, limits.tokens_in_flight);
  const int64_t behind = (group.window != 0 ? group.window : group.chunk) - 1;
  return behind > num_tokens - in_flight ? num_tokens : behind + in_flight;
}

int64_t request_pages(const GroupSpec& group, int64_t num_tokens, const RequestLimits& limits) {
  const int64_t kept = kept_tokens(group, num_tokens, limits);
  const int64_t whole = group.pages_for(group.is_windowed() ? num_tokens : kept);
  if (!group.is_windowed()) return whole;
  // One more page for a range that straddles an edge, and never more than all. Chunks begin at page
  // edges when the page size divides them.
  const int64_t straddling =
      group.chunk == 0 ? kept : kept - std::gcd(group.chunk, int64_t{group.page_size});
  return std::min(whole - 1, group.pages_for(std::max<int64_t>(0, straddling))) + 1;
}

std::vector<GroupSpec> make_groups(std::vector<LayerSpec>& layers, const GroupingOptions& options) {
  std::vector<LayerKind> kinds = kinds_of(layers);
  const bool is_padded = options.pads_pages || kinds.size() < 2;
  const GroupPlan plan = is_padded ? padded_groups(std::move(kinds), options.base_page_size)
                                   : search_groups(kinds, options);
  std::vector<GroupSpec> groups;
  for (size_t kind = 0; kind < plan.kinds.size(); ++kind) {
    const std::vector<int32_t>& ids = plan.kinds[kind].group.layers;
    const size_t first_group = groups.size();
    GroupSpec group = plan.kinds[kind].group;
    group.layers.clear();
    for (const GroupPart& part : plan.parts[kind]) {
      group.page_size = part.page_size;
      groups.push_back(group);
    }
    const std::vector<size_t> part_of = spread_layers(plan.parts[kind]);
    for (size_t i = 0; i < ids.size(); ++i) {
      const size_t index = first_group + part_of[i];
      layers[ids[i]].group = static_cast<int32_t>(index);
      groups[index].layers.push_back(ids[i]);
    }
  }
  add_kept_groups(layers, options.base_page_size, &groups);
  return groups;
}

}  // namespace kvc
