#include "src/plan/layout.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/plan/rows.h"

namespace kvc {
namespace {

constexpr int64_t kStateAlignment = 64;

// Begin and end of each layer of a layer group in a page.
struct Extent {
  int32_t layer;
  int64_t begin;
  int64_t end;
};
using Extents = std::vector<Extent>;

// The field limits bound it: 2^16 heads * 2^22 tokens * 2^10 dims * 2^2 bytes * 2 fits int64. Sums
// over layers are checked.
LayerLayout make_layer_layout(const LayerSpec& layer, int32_t page_size) {
  LayerLayout part;
  const RowBytes row = row_bytes(layer);
  const int64_t rows = static_cast<int64_t>(layer.num_kv_heads) * page_size;
  part.alignment = std::max({row.k_alignment, row.v_alignment, row.scale_alignment});
  part.k_bytes = rows * row.k;
  part.v_bytes = rows * row.v;
  part.v_offset = layer.v_in_k ? 0 : align_up(part.k_bytes, row.v_alignment);
  part.k_scale_bytes = rows * row.k_scale;
  part.v_scale_bytes = rows * row.v_scale;
  int64_t end = std::max(part.k_bytes, part.v_offset + part.v_bytes);
  if (part.k_scale_bytes != 0) {
    part.k_scale_offset = align_up(end, row.scale_alignment);
    end = part.k_scale_offset + part.k_scale_bytes + part.v_scale_bytes;
  }
  part.page_bytes = align_up(end, part.alignment);
  part.bytes_per_token = layer.num_kv_heads * row.total();
  return part;
}

void add_checked(int64_t* sum, int64_t value, const char* what, int32_t layer) {
  if (__builtin_add_overflow(*sum, value, sum) || *sum > (int64_t{1} << 56))
    fail(KVC_E_OUT_OF_RANGE, "config.layers: the bytes of %s overflow at layer %d", what, layer);
}

void place_states(const LayerSpec& layer, int32_t id, LayerLayout* part, Layout* layout) {
  for (const StateSpec& state : layer.states) {
    part->state_offsets.push_back(layout->state_slot_bytes);
    part->state_bytes += state.bytes();
    add_checked(&layout->state_slot_bytes, align_up(state.bytes(), kStateAlignment), "a state slot",
                id);
  }
}

int64_t widest_alignment(const Layout& layout) {
  int64_t alignment = 1;
  for (const LayerLayout& layer : layout.layers) alignment = std::max(alignment, layer.alignment);
  return alignment;
}

// Places layers one behind the other. When several layer groups share a page, all parts have the
// same alignment, so that any boundary can begin a region.
Extents pack_group(const GroupSpec& group, const Layout& layout, int64_t shared_alignment,
                   int32_t layer_begin) {
  Extents extents;
  int64_t end = 0;
  for (const int32_t layer : group.layers) {
    const LayerLayout& part = layout.layers[layer];
    const int64_t begin = align_up(end, std::max(part.alignment, shared_alignment));
    end = begin;
    add_checked(&end, part.page_bytes, "one page", layer_begin + layer);
    extents.push_back({layer, begin, end});
  }
  return extents;
}

// No layer of the group crosses the boundary.
bool is_boundary(const Extents& extents, int64_t offset) {
  const auto next = std::partition_point(
      extents.begin(), extents.end(), [&](const Extent& extent) { return extent.end <= offset; });
  return next == extents.end() || next->begin >= offset;
}

// The boundaries of regions, ascending from 0. Each begins a layer of the longest layer group.
std::vector<int64_t> cuts_of(const std::vector<Extents>& groups) {
  const auto longest =
      std::max_element(groups.begin(), groups.end(), [](const Extents& a, const Extents& b) {
        return (a.empty() ? 0 : a.back().end) < (b.empty() ? 0 : b.back().end);
      });
  std::vector<int64_t> cuts;
  for (const Extent& extent : *longest) {
    const bool cuts_all = std::all_of(groups.begin(), groups.end(), [&](const Extents& group) {
      return is_boundary(group, extent.begin);
    });
    if (cuts_all) cuts.push_back(extent.begin);
  }
  return cuts;
}

void place_in_regions(const Extents& extents, const std::vector<int64_t>& cuts, Layout* layout) {
  for (const Extent& extent : extents) {
    LayerLayout& part = layout->layers[extent.layer];
    const auto region =
        static_cast<size_t>(std::upper_bound(cuts.begin(), cuts.end(), extent.begin) -
                            cuts.begin()) -
        1;
    part.region = static_cast<int32_t>(region);
    part.region_offset = extent.begin - cuts[region];
    RegionLayout& place = layout->regions[region];
    place.bytes = std::max(place.bytes, extent.end - cuts[region]);
    place.alignment = std::max(place.alignment, part.alignment);
  }
}

void place_groups(const Spec& spec, Layout* layout) {
  const int64_t alignment = widest_alignment(*layout);
  const int64_t shared_alignment = spec.groups.size() > 1 ? alignment : 1;
  std::vector<Extents> groups;
  for (const GroupSpec& group : spec.groups) {
    groups.push_back(pack_group(group, *layout, shared_alignment, spec.layer_begin));
    layout->group_bytes.push_back(groups.back().empty() ? 0 : groups.back().back().end);
  }
  if (groups.empty()) return;
  const std::vector<int64_t> cuts = cuts_of(groups);
  for (const int64_t cut : cuts)
    layout->regions.push_back({.bytes = 0, .offset = cut, .alignment = 1});
  for (const Extents& extents : groups) place_in_regions(extents, cuts, layout);
  for (RegionLayout& region : layout->regions)
    region.bytes = align_up(region.bytes, region.alignment);
  // Pages follow each other in the pool, so the first layer of the next page must be aligned too.
  if (!cuts.empty())
    layout->page_bytes =
        align_up(layout->regions.back().offset + layout->regions.back().bytes, alignment);
}

}  // namespace

Layout make_layout(const Spec& spec) {
  Layout layout;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const int32_t id = spec.layer_begin + static_cast<int32_t>(i);
    LayerLayout part;
    if (layer.keeps_pages()) {
      part = make_layer_layout(layer, spec.groups[layer.group].page_size);
      if (layer.kind != KVC_LAYER_CROSS)
        add_checked(&layout.bytes_per_token, part.bytes_per_token, "a token", id);
    }
    place_states(layer, id, &part, &layout);
    layout.layers.push_back(std::move(part));
  }
  place_groups(spec, &layout);
  return layout;
}

void assign_regions(Spec& spec) {
  const Layout layout = make_layout(spec);
  for (size_t i = 0; i < spec.layers.size(); ++i) spec.layers[i].region = layout.layers[i].region;
}

}  // namespace kvc
