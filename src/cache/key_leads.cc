#include "src/cache/key_leads.h"

#include <algorithm>
#include <vector>

#include "src/base/error.h"
#include "src/exec/row_moves.h"
#include "src/step/position_cos_sin.h"

namespace kvc {

bool keeps_key_leads(const CacheCore& core) {
  const Spec& spec = core.spec();
  if (spec.is_on_gpu() || !core.writes_pool_alone()) return false;
  return std::all_of(spec.layers.begin(), spec.layers.end(), [&](const LayerSpec& layer) {
    if (layer.kind == KVC_LAYER_SHARED && layer.source >= 0)
      return layer.rope == spec.layers[layer.source].rope;
    const bool rotates = layer.rope >= 0 && !spec.rotates_on_read(layer.rope);
    return !rotates || !layer.v_in_k || layer.rotation_begin() >= layer.v_dim;
  });
}

LeadSettler::LeadSettler(CacheCore& core, int64_t num_tokens) : core_(core) {
  int32_t largest = 0;
  for (const GroupSpec& group : core.spec().groups) largest = std::max(largest, group.page_size);
  slots_.reserve(static_cast<size_t>(num_tokens + largest));
  is_settled_.assign(static_cast<size_t>(core.allocator.num_pages()), 0);
}

void LeadSettler::settle(Sequence& sequence) noexcept {
  const KeyLead& lead = sequence.lead;
  for (size_t group = 0; lead.ahead != 0 && group < sequence.tables.size(); ++group) {
    const GroupSpec& spec = core_.group(group);
    if (spec.is_cross) continue;
    const PageTable& table = sequence.tables[group];
    slots_.clear();
    table.pages.for_each([&](int64_t place, PageId page) {
      const int64_t first = place * spec.page_size;
      if (first + spec.page_size <= lead.begin || is_settled_[page] != 0) return;
      is_settled_[page] = 1;
      // To the end of the page: a longer sequence may share it.
      for (int64_t token = std::max(first, lead.begin); token < first + spec.page_size; ++token)
        slots_.push_back(slot_of(table, token, spec.page_size));
    });
    for (const int32_t layer : spec.layers) {
      const LeadRotation rotation(core_.spec(), layer, lead);
      if (rotation.get().rotary_dim != 0)
        core_.device->rotate_keys(layer, rotation.get(), slots_, kOwnStream);
    }
  }
  sequence.lead = {};
}

void settle_key_leads(CacheCore& core) {
  bool has_leads = false;
  core.sequences.for_each([&](const Sequence& sequence) {
    if (sequence.lead.ahead == 0) return;
    has_leads = true;
    if (sequence.is_swapped) {
      fail_with(KVC_E_INVALID_STATE, sequence.id,
                "sequence %lld is swapped out, and kvc_seq_shift has moved its tokens: swap it in "
                "before the host reads or writes pages itself",
                ll(sequence.id));
    }
  });
  if (!has_leads) return;
  core.require_closed("let the host read or write pages while tokens are shifted");
  LeadSettler settler(core, core.sequences.total_length());
  core.sequences.for_each([&](Sequence& sequence) { settler.settle(sequence); });
}

LeadRotation::LeadRotation(const Spec& spec, int32_t local_layer, const KeyLead& lead) {
  const LayerSpec& layer = spec.layers[local_layer];
  if (lead.ahead == 0 || layer.rope < 0 || spec.rotates_on_read(layer.rope)) return;
  rotation_ = shift_rotation(spec.ropes[layer.rope], -lead.ahead, cosines_, sines_);
  rotation_.begin = layer.rotation_begin();
}

TokenLeads::TokenLeads(const Spec& spec, int32_t local_layer, const KeyLead& lead, int64_t begin,
                       int64_t count) {
  const LayerSpec& layer = spec.layers[local_layer];
  if (lead.ahead == 0 || layer.rope < 0 || spec.rotates_on_read(layer.rope)) return;
  const RopeSpec& rope = spec.ropes[layer.rope];
  const int64_t pairs = rope.rotary_dim / 2;
  cosines_.resize(static_cast<size_t>(count * pairs));
  sines_.resize(cosines_.size());
  for (int64_t i = count - 1; i >= 0; --i) {
    rotation_ = shift_rotation(rope, begin + i < lead.begin ? 0 : lead.ahead,
                               cosines_.data() + i * pairs, sines_.data() + i * pairs);
  }
  rotation_.begin = layer.rotation_begin();
}

void rotate_copied_page(const CacheCore& core, int32_t local_layer, const KeyLead& lead,
                        int64_t first, std::byte* rows) {
  const LeadRotation rotation(core.spec(), local_layer, lead);
  if (rotation.get().rotary_dim == 0) return;
  kernels::PagedRows keys = core.pool.k_rows(local_layer);
  keys.base = rows;
  std::vector<int64_t> slots;
  const int64_t page_size = core.spec().layer_page_size(local_layer);
  for (int64_t slot = std::max<int64_t>(0, lead.begin - first); slot < page_size; ++slot)
    slots.push_back(slot);
  rotate_key_rows(*choose_kernels(KVC_CPU_ISA_AUTO, ""), core.layer(local_layer), keys, page_size,
                  rotation.get(), slots);
}

}  // namespace kvc
