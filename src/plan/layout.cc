#include "src/plan/layout.h"

#include <algorithm>
#include <iterator>
#include <vector>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/print.h"
#include "src/base/sha256.h"
#include "src/plan/spec.h"

namespace kvc {
namespace {

bool is_float8(DLDataType type) {
  return type.bits == 8 && (type.code == kDLFloat8_e4m3fn || type.code == kDLFloat8_e5m2);
}

bool is_int(DLDataType type, int bits) { return type.code == kDLInt && type.bits == bits; }

int64_t scale_bytes(kvc_quant quant, int32_t dim) {
  if (quant == KVC_QUANT_PER_TOKEN_HEAD) return sizeof(float);
  return quant == KVC_QUANT_BLOCK16 ? dim / kScaleBlock : 0;
}

}  // namespace

RowBytes row_bytes(const LayerSpec& layer) {
  RowBytes row;
  const auto measure = [](kvc_quant quant, kernels::DType dtype, DLDataType type, int32_t dim,
                          int64_t* bytes, int64_t* alignment, int64_t* scale,
                          int64_t* scale_alignment) {
    if (quant == KVC_QUANT_NONE) {
      *alignment = kernels::dtype_bytes(dtype);
      *bytes = dim * *alignment;
      return;
    }
    *bytes = int64_t{dim} * type.bits / 8;
    *scale = scale_bytes(quant, dim);
    if (quant == KVC_QUANT_PER_TOKEN_HEAD) *scale_alignment = sizeof(float);
  };
  measure(layer.k_quant, layer.k_dtype, layer.k_type, layer.k_dim, &row.k, &row.k_alignment,
          &row.k_scale, &row.k_scale_alignment);
  if (layer.v_in_k) return row;
  measure(layer.v_quant, layer.v_dtype, layer.v_type, layer.v_dim, &row.v, &row.v_alignment,
          &row.v_scale, &row.v_scale_alignment);
  return row;
}

bool stores_type(kvc_quant quant, DLDataType type) {
  if (type.lanes != 1) return false;
  switch (quant) {
    case KVC_QUANT_PER_TENSOR: return is_float8(type) || is_int(type, 8);
    case KVC_QUANT_PER_TOKEN_HEAD: return is_float8(type) || is_int(type, 8) || is_int(type, 4);
    case KVC_QUANT_BLOCK16: return type.code == kDLFloat4_e2m1fn && type.bits == 4;
    default: return false;
  }
}

const char* quant_name(kvc_quant quant) {
  static constexpr const char* kNames[] = {"NONE", "PER_TENSOR", "PER_TOKEN_HEAD", "BLOCK16",
                                           "OFF"};
  return quant >= 0 && quant < static_cast<kvc_quant>(std::size(kNames)) ? kNames[quant] : "?";
}

const char* quant_types(kvc_quant quant) {
  switch (quant) {
    case KVC_QUANT_PER_TENSOR: return "float8_e4m3fn, float8_e5m2 or int8";
    case KVC_QUANT_PER_TOKEN_HEAD: return "float8_e4m3fn, float8_e5m2, int8 or int4";
    case KVC_QUANT_BLOCK16: return "float4_e2m1fn";
    default: return "float32, float16 or bfloat16";
  }
}

namespace {

constexpr int64_t kStateAlignment = 64;

// Begin and end of each layer of a layer group in a page.
struct LayerRange {
  int32_t layer;
  int64_t begin;
  int64_t end;
};
using LayerRanges = std::vector<LayerRange>;

// The field limits bound it: 2^16 heads * 2^22 tokens * 2^10 dims * 2^2 bytes * 2 fits int64. Sums
// over layers are checked.
LayerLayout make_layer_layout(const LayerSpec& layer, int32_t page_size) {
  LayerLayout part;
  const RowBytes row = row_bytes(layer);
  const int64_t rows = static_cast<int64_t>(layer.num_kv_heads) * page_size;
  part.alignment =
      std::max({row.k_alignment, row.v_alignment, row.k_scale_alignment, row.v_scale_alignment});
  part.k_bytes = rows * row.k;
  part.v_bytes = rows * row.v;
  part.v_offset = layer.v_in_k ? 0 : align_up(part.k_bytes, row.v_alignment);
  part.k_scale_bytes = rows * row.k_scale;
  part.v_scale_bytes = rows * row.v_scale;
  int64_t end = std::max(part.k_bytes, part.v_offset + part.v_bytes);
  if (part.k_scale_bytes != 0) {
    part.k_scale_offset = align_up(end, row.k_scale_alignment);
    end = part.k_scale_offset + part.k_scale_bytes;
  }
  if (part.v_scale_bytes != 0) {
    part.v_scale_offset = align_up(end, row.v_scale_alignment);
    end = part.v_scale_offset + part.v_scale_bytes;
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
// same alignment, so that any boundary can begin a region. No layer crosses one of the `cuts`,
// unless it is larger than what lies between two.
LayerRanges pack_group(const GroupSpec& group, const Layout& layout, int64_t shared_alignment,
                       const Spec& spec, const std::vector<int64_t>& cuts = {}) {
  LayerRanges extents;
  int64_t end = 0;
  for (const int32_t layer : group.layers) {
    const LayerLayout& part = layout.layers[layer];
    int64_t begin = align_up(end, std::max(part.alignment, shared_alignment));
    const auto cut = std::upper_bound(cuts.begin(), cuts.end(), begin);
    if (cut != cuts.end() && part.page_bytes > *cut - begin) begin = *cut;
    end = begin;
    add_checked(&end, part.page_bytes, "one page", spec.global_id(layer));
    extents.push_back({layer, begin, end});
  }
  return extents;
}

// No layer of the group crosses the boundary.
bool is_boundary(const LayerRanges& extents, int64_t offset) {
  const auto next =
      std::partition_point(extents.begin(), extents.end(),
                           [&](const LayerRange& extent) { return extent.end <= offset; });
  return next == extents.end() || next->begin >= offset;
}

// The boundaries of regions, ascending from 0. Each begins a layer of the longest layer group.
std::vector<int64_t> cuts_of(const std::vector<LayerRanges>& groups) {
  const auto longest = std::max_element(
      groups.begin(), groups.end(), [](const LayerRanges& a, const LayerRanges& b) {
        return (a.empty() ? 0 : a.back().end) < (b.empty() ? 0 : b.back().end);
      });
  std::vector<int64_t> cuts;
  for (const LayerRange& extent : *longest) {
    const bool cuts_all = std::all_of(groups.begin(), groups.end(), [&](const LayerRanges& group) {
      return is_boundary(group, extent.begin);
    });
    if (cuts_all) cuts.push_back(extent.begin);
  }
  return cuts;
}

void place_in_regions(const LayerRanges& extents, const std::vector<int64_t>& cuts,
                      Layout* layout) {
  for (const LayerRange& extent : extents) {
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
  const auto end_of = [](const LayerRanges& extents) {
    return extents.empty() ? 0 : extents.back().end;
  };
  std::vector<LayerRanges> groups;
  std::vector<int64_t> cuts;
  int64_t longest = 0;
  for (const GroupSpec& group : spec.groups) {
    if (group.has_kept_rows()) continue;
    groups.push_back(pack_group(group, *layout, shared_alignment, spec));
    longest = std::max(longest, end_of(groups.back()));
  }
  if (!groups.empty()) cuts = cuts_of(groups);
  // Kept rows come last. They fit in between the regions of the others where they can.
  for (const GroupSpec& group : spec.groups) {
    if (!group.has_kept_rows()) continue;
    LayerRanges extents = pack_group(group, *layout, shared_alignment, spec, cuts);
    if (end_of(extents) > longest) extents = pack_group(group, *layout, shared_alignment, spec);
    groups.push_back(std::move(extents));
  }
  for (const LayerRanges& extents : groups) layout->group_bytes.push_back(end_of(extents));
  if (groups.empty()) return;
  cuts = cuts_of(groups);
  for (const int64_t cut : cuts)
    layout->regions.push_back({.bytes = 0, .offset = cut, .alignment = 1});
  for (const LayerRanges& extents : groups) place_in_regions(extents, cuts, layout);
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
    const int32_t id = spec.global_id(static_cast<int32_t>(i));
    LayerLayout part;
    if (layer.keeps_pages()) {
      part = make_layer_layout(layer, spec.groups[layer.group].page_size);
      if (layer.kind != KVC_LAYER_CROSS && !layer.is_kept_rows())
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

namespace {

// Writes "<prefix><name> = <value>" lines.
class Fields {
 public:
  explicit Fields(std::string* text) : text_(text) {}

  template <typename... Args>
  void begin(const char* format, Args... args) {
    prefix_.clear();
    append_format(prefix_, format, args...);
  }
  void text(const char* name, const std::string& value) {
    *text_ += prefix_ + name + " = " + value + "\n";
  }
  void number(const char* name, int64_t value) { text(name, std::to_string(value)); }
  void set_number(const char* name, int64_t value) {
    if (value != 0) number(name, value);
  }
  // Six digits: machines compute the same number with different last bits.
  void real(const char* name, double value) {
    std::string digits;
    append_real(digits, value, 6);
    text(name, digits);
  }
  void reals(const char* name, const std::vector<double>& values) {
    if (values.empty()) return;
    std::string list;
    for (const double value : values) {
      if (!list.empty()) list += ' ';
      append_real(list, value, 6);
    }
    text(name, list);
  }

 private:
  std::string* text_;
  std::string prefix_;
};

void write_layer(const Spec& spec, int32_t local, Fields& fields) {
  const LayerSpec& layer = spec.layers[local];
  fields.begin("layers[%d].", spec.layer_begin + local);
  fields.text("kind", layer_kind_name(layer.kind));
  if (layer.kind == KVC_LAYER_SHARED)
    fields.number("source_layer", spec.layer_begin + layer.source);
  if (layer.keeps_pages()) {
    fields.number("num_kv_heads", layer.num_kv_heads);
    fields.number("k_dim", layer.k_dim);
    fields.number("v_dim", layer.v_dim);
    fields.set_number("latent_rank", layer.latent_rank);
    fields.set_number("v_in_k", layer.v_in_k ? 1 : 0);
    fields.text("k_dtype", k_type_name(layer));
    if (!layer.v_in_k) fields.text("v_dtype", v_type_name(layer));
    fields.set_number("quant", layer.k_quant);
    if (layer.v_quant != layer.k_quant)
      fields.number("v_quant", layer.v_quant == KVC_QUANT_NONE ? KVC_QUANT_OFF : layer.v_quant);
    if (layer.k_quant == KVC_QUANT_PER_TENSOR) fields.real("k_scale", layer.k_scale);
    if (layer.v_quant == KVC_QUANT_PER_TENSOR) fields.real("v_scale", layer.v_scale);
    fields.set_number("keep_tokens", layer.keep_tokens);
    if (layer.rope >= 0) fields.number("rope", layer.rope);
  }
  for (size_t i = 0; i < layer.states.size(); ++i) {
    fields.begin("layers[%d].states[%zu].", spec.layer_begin + local, i);
    std::string shape;
    for (const int64_t extent : layer.states[i].shape)
      append_format(shape, "%s%lld", shape.empty() ? "" : " ", ll(extent));
    fields.text("shape", shape);
    fields.text("dtype", dtype_name(layer.states[i].dtype));
  }
}

void write_rope(const RopeSpec& rope, size_t index, Fields& fields) {
  fields.begin("ropes[%zu].", index);
  fields.number("mode", rope.mode);
  fields.number("style", rope.style);
  fields.number("rotary_dim", rope.rotary_dim);
  fields.reals("inverse_frequencies", rope.inverse_frequencies);
  fields.reals("long_inverse_frequencies", rope.long_inverse_frequencies);
  fields.set_number("original_context", rope.original_context);
  fields.real("magnitude", rope.magnitude);
  if (rope.section_of_pair.empty()) return;
  std::string sections;
  for (const int32_t section : rope.section_of_pair)
    append_format(sections, "%s%d", sections.empty() ? "" : " ", section);
  fields.text("section_of_pair", sections);
}

// Takes the first line of a text.
std::string_view take_line(std::string_view& text) {
  const size_t end = text.find('\n');
  const std::string_view line = text.substr(0, end);
  text.remove_prefix(end == std::string_view::npos ? text.size() : end + 1);
  return line;
}

}  // namespace

std::string layout_text(const Spec& spec) {
  std::string text;
  Fields fields(&text);
  fields.begin("%s", "");
  fields.number("num_layers", spec.num_layers);
  fields.number("layer_begin", spec.layer_begin);
  fields.number("layer_end", spec.layer_end);
  // What users set comes before what follows from it, so that a difference has their names.
  for (int32_t local = 0; local < spec.num_local_layers(); ++local)
    write_layer(spec, local, fields);
  for (size_t i = 0; i < spec.ropes.size(); ++i) write_rope(spec.ropes[i], i, fields);
  for (size_t i = 0; i < spec.groups.size(); ++i) {
    const GroupSpec& group = spec.groups[i];
    fields.begin("groups[%zu].", i);
    fields.number("page_size", group.page_size);
    std::string layers;
    for (const int32_t local : group.layers)
      append_format(layers, "%s%d", layers.empty() ? "" : " ", spec.global_id(local));
    fields.text("layers", layers);
    fields.set_number("keep_tokens", group.keep_tokens);
    fields.set_number("is_cross", group.is_cross ? 1 : 0);
    fields.set_number("window", group.window);
    fields.set_number("chunk", group.chunk);
  }
  return text;
}

std::string page_format_text(const Spec& spec, int32_t num_ranks) {
  Spec whole = spec;
  for (GroupSpec& group : whole.groups) group.page_size = 0;
  for (LayerSpec& layer : whole.layers) {
    if (layer.keeps_pages() && !layer.is_mla()) layer.num_kv_heads *= num_ranks;
  }
  return layout_text(whole);
}

std::string layout_fingerprint(std::string_view text) {
  std::string fingerprint = "kvcache-layout-1:";
  for (const uint8_t byte : sha256(text.data(), text.size()))
    append_format(fingerprint, "%02x", byte);
  return fingerprint;
}

std::string layout_difference(std::string_view my_text, const char* mine,
                              std::string_view their_text, const char* theirs) {
  while (!my_text.empty() || !their_text.empty()) {
    const std::string_view my_line = take_line(my_text), their_line = take_line(their_text);
    if (my_line == their_line) continue;
    constexpr std::string_view kEquals = " = ";
    const auto name = [&](std::string_view line) { return line.substr(0, line.find(kEquals)); };
    const auto value = [&](std::string_view line) {
      const size_t at = line.find(kEquals);
      std::string text(at == std::string_view::npos ? "" : line.substr(at + kEquals.size()));
      constexpr size_t kMost = 60;
      if (text.size() > kMost) text = text.substr(0, kMost) + "...";
      return text;
    };
    if (name(my_line) == name(their_line)) {
      return std::string(name(my_line)) + " is " + value(their_line) + " in " + theirs + ", " +
             value(my_line) + " in " + mine;
    }
    // One side has a field more.
    const bool is_mine =
        their_line.empty() || (!my_line.empty() && my_text.size() > their_text.size());
    const std::string_view line = is_mine ? my_line : their_line;
    return std::string(name(line)) + " is " + value(line) + " in " + (is_mine ? mine : theirs) +
           ", not set in " + (is_mine ? theirs : mine);
  }
  return {};
}

}  // namespace kvc
