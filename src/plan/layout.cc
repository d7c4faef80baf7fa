#include "src/plan/layout.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/math.h"

namespace kvc {
namespace {

constexpr int64_t kStateAlignment = 64;

// Bounded by the field limits: 65536 heads * 65536 tokens * 1024 dims * 4 bytes * 2 fits int64; sums over layers are checked.
LayerLayout make_layer_layout(const LayerSpec& layer, int32_t page_size) {
  LayerLayout part;
  const int64_t k_element = kernels::dtype_bytes(layer.k_dtype);
  const int64_t v_element = kernels::dtype_bytes(layer.v_dtype);
  const int64_t rows = static_cast<int64_t>(layer.num_kv_heads) * page_size;
  const int64_t v_dim = layer.v_in_k ? 0 : layer.v_dim;
  part.alignment = std::max(k_element, v_element);
  part.k_bytes = rows * layer.k_dim * k_element;
  part.v_bytes = rows * v_dim * v_element;
  part.v_offset = layer.v_in_k ? 0 : align_up(part.k_bytes, v_element);
  part.page_bytes = align_up(std::max(part.k_bytes, part.v_offset + part.v_bytes), part.alignment);
  part.bytes_per_token = layer.num_kv_heads * (layer.k_dim * k_element + v_dim * v_element);
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
    add_checked(&layout->state_slot_bytes, align_up(state.bytes(), kStateAlignment), "a state slot", id);
  }
}

}  // namespace

Layout make_layout(const Spec& spec) {
  Layout layout;
  layout.slots.resize(static_cast<size_t>(spec.num_slots()));
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const int32_t id = spec.layer_begin + static_cast<int32_t>(i);
    LayerLayout part;
    if (layer.keeps_pages()) {
      part = make_layer_layout(layer, spec.page_size);
      SlotLayout& slot = layout.slots[static_cast<size_t>(layer.slot)];
      slot.bytes = std::max(slot.bytes, part.page_bytes);
      slot.alignment = std::max(slot.alignment, part.alignment);
      if (layer.kind != KVC_LAYER_CROSS)
        add_checked(&layout.bytes_per_token, part.bytes_per_token, "a token", id);
    }
    place_states(layer, id, &part, &layout);
    layout.layers.push_back(std::move(part));
  }
  int64_t widest = 1;
  for (SlotLayout& slot : layout.slots) {
    slot.bytes = align_up(slot.bytes, slot.alignment);
    slot.offset = align_up(layout.page_bytes, slot.alignment);
    layout.page_bytes = slot.offset;
    add_checked(&layout.page_bytes, slot.bytes, "one page", spec.layer_end - 1);
    widest = std::max(widest, slot.alignment);
  }
  // Pages follow each other in the pool: the first layer of the next one must be aligned as well.
  layout.page_bytes = align_up(layout.page_bytes, widest);
  return layout;
}

}  // namespace kvc
