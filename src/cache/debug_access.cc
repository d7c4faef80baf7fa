#include "src/cache/debug_access.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"
#include "src/cache/cache_core.h"
#include "src/cache/context_shift.h"
#include "src/cache/private_pages.h"

namespace kvc {

void DebugAccess::require_storage(const char* function) const { core_.require_storage(function); }

int32_t DebugAccess::require_layer(int32_t layer) const { return core_.require_layer(layer); }

void DebugAccess::require_idle(kvc_seq id, const char* action) const {
  core_.sequences.get_idle(id, action);
}

void DebugAccess::require_on_device(kvc_seq id, const char* action) const {
  core_.sequences.get_on_device(id, action);
}

// Throws OUT_OF_RANGE when [begin, end) is not inside what the layers keep.
void DebugAccess::require_kept(const Sequence& sequence, int64_t begin, int64_t end,
                               const std::vector<LayerRows>& layers) const {
  for (const LayerRows& rows : layers) {
    const LayerSpec& layer = core_.layer(rows.local_layer);
    const bool is_cross = core_.group_of(layer).is_cross;
    const int64_t length = is_cross ? sequence.cross_length : sequence.length;
    if (begin < 0 || begin > end || end > length) {
      fail_with(KVC_E_OUT_OF_RANGE, end,
                "[begin, end) = [%lld, %lld) out of range: sequence %lld has %lld tokens",
                ll(begin), ll(end), ll(sequence.id), ll(length));
    }
    const PageTable& table = sequence.tables[layer.group];
    if (!table.keeps(begin, end)) {
      fail_with(
          KVC_E_OUT_OF_RANGE, table.kept_begin,
          "[begin, end) = [%lld, %lld): layer %d keeps the first %lld tokens of sequence %lld and "
          "those from %lld on, a window has dropped the others",
          ll(begin), ll(end), core_.spec().layer_begin + rows.local_layer, ll(table.sink_kept),
          ll(sequence.id), ll(table.kept_begin));
    }
  }
}

void DebugAccess::require_tokens(kvc_seq id, int64_t begin, int64_t end) const {
  const Sequence& sequence = core_.sequences.get_on_device(id, "read the tokens of");
  if (begin < 0 || begin > end || end > sequence.length) {
    fail_with(KVC_E_OUT_OF_RANGE, end,
              "[begin, end) = [%lld, %lld) out of range: sequence %lld has %lld tokens", ll(begin),
              ll(end), ll(id), ll(sequence.length));
  }
}

void DebugAccess::read_tokens(kvc_seq id, int64_t begin, int64_t end,
                              const std::vector<LayerRows>& layers, CallStream stream) const {
  const Sequence& sequence = core_.sequences.get_on_device(id, "read the tokens of");
  for (const LayerRows& rows : layers) core_.require_readable(rows.local_layer, "reading tokens");
  require_kept(sequence, begin, end, layers);
  if (begin == end) return;
  for (const LayerRows& rows : layers) {
    const LayerSpec& layer = core_.layer(rows.local_layer);
    const bool is_cross = core_.group_of(layer).is_cross;
    const KeyLead lead = is_cross ? KeyLead{} : sequence.lead;
    const LeadRotation back(core_.spec(), rows.local_layer, lead);
    const auto read_part = [&](int32_t local, bool is_v, const kernels::TokenRows& out, int32_t dim,
                               int64_t part_end) {
      const LayerSpec& stored = core_.layer(local);
      const PageList& pages = sequence.tables[stored.group].pages;
      core_.device->read_rows({local, is_v},
                              {.rows = is_v ? core_.pool.v_rows(local) : core_.pool.k_rows(local),
                               .pages = pages.data(),
                               .out = out,
                               .page_size = core_.group_of(stored).page_size,
                               .num_heads = layer.num_kv_heads,
                               .dim = dim,
                               .rotation = is_v ? kernels::Rotation{} : back.get(),
                               .rotate_from = lead.begin,
                               .gap = pages.gap()},
                              begin, part_end, stream);
    };
    const auto read = [&](bool is_v, const kernels::TokenRows& out, int32_t dim) {
      read_part(rows.local_layer, is_v, out, dim, end);
      // Kept rows take the places of the quantised ones.
      const int64_t kept_end = std::min<int64_t>(end, layer.keep_tokens);
      if (begin < kept_end) read_part(layer.kept_rows, is_v, out, dim, kept_end);
    };
    if (rows.k.base != nullptr) read(false, rows.k, layer.k_dim);
    if (rows.v.base != nullptr) read(true, rows.v, layer.v_dim);
  }
}

void DebugAccess::write_tokens(kvc_seq id, int64_t begin, int64_t count,
                               const std::vector<LayerRows>& layers, CallStream stream) {
  Sequence& sequence = core_.sequences.get_idle(id, "set tokens of");
  check_on_device(sequence, "set tokens of");
  for (const LayerRows& rows : layers) core_.require_readable(rows.local_layer, "setting tokens");
  require_kept(sequence, begin, begin > INT64_MAX - count ? -1 : begin + count, layers);
  if (count == 0) return;
  std::vector<int64_t> slots(static_cast<size_t>(count));
  std::vector<uint8_t> groups(core_.spec().groups.size(), 0);
  for (const LayerRows& rows : layers) {
    const LayerSpec& layer = core_.layer(rows.local_layer);
    groups[layer.group] = 1;
    if (layer.kept_rows >= 0) groups[core_.layer(layer.kept_rows).group] = 1;
  }
  PrivatePages private_pages(core_, sequence);
  private_pages.add(begin, begin + count, std::move(groups));
  private_pages.check();
  private_pages.prepare();
  sequence.followed = 0;
  std::vector<TokenLeads> leads;  // [layers]
  for (const LayerRows& rows : layers) {
    const bool is_cross = core_.group_of(core_.layer(rows.local_layer)).is_cross;
    leads.emplace_back(core_.spec(), rows.local_layer, is_cross ? KeyLead{} : sequence.lead, begin,
                       count);
  }
  // Nothing throws from here on but for a device that fails.
  private_pages.copy(stream);
  sequence.history.diverge();
  for (size_t index = 0; index < layers.size(); ++index) {
    const LayerRows& rows = layers[index];
    const auto write = [&](int32_t local, int64_t end) {
      const LayerSpec& layer = core_.layer(local);
      const PageTable& table = sequence.tables[layer.group];
      const int32_t page_size = core_.group_of(layer).page_size;
      for (int64_t i = 0; i < end - begin; ++i) slots[i] = slot_of(table, begin + i, page_size);
      core_.counters.values_saturated +=
          core_.device->write_rows(local,
                                   {.k = rows.k,
                                    .v = rows.v,
                                    .k_rotation = leads[index].get(),
                                    .k_pages = core_.pool.k_rows(local),
                                    .v_pages = core_.pool.v_rows(local),
                                    .slots = slots.data(),
                                    .page_size = page_size,
                                    .num_kv_heads = layer.num_kv_heads,
                                    .k_dim = layer.k_dim,
                                    .v_dim = layer.v_dim},
                                   end - begin, stream);
    };
    const LayerSpec& layer = core_.layer(rows.local_layer);
    write(rows.local_layer, begin + count);
    const int64_t kept_end = std::min<int64_t>(begin + count, layer.keep_tokens);
    if (begin < kept_end) write(layer.kept_rows, kept_end);
  }
}

void DebugAccess::read_state(kvc_seq id, int32_t local_layer, int32_t state, const StateRows& out,
                             CallStream stream) const {
  const StateSpec& shape = core_.layer(local_layer).states[state];
  std::byte* stored = core_.states.memory().state(
      core_.sequences.get_on_device(id, "read the state of").state, local_layer, state);
  core_.device->convert({out.base, out.dtype}, {stored, shape.dtype}, shape.num_elements, stream);
}

// Earlier checkpoints, forks and the prefix index keep the old slot.
void DebugAccess::make_state_private(Sequence& sequence, CallStream stream) {
  StatePool& states = core_.states;
  // The state at the length is also that of a checkpoint there.
  Checkpoint* here = nullptr;
  if (!sequence.checkpoints.empty() && sequence.checkpoints.back().position == sequence.length)
    here = &sequence.checkpoints.back();
  const int32_t own_refs = here == nullptr ? 1 : 2;
  if (sequence.state != kInitialState && states.refs(sequence.state) <= own_refs &&
      !states.is_indexed(sequence.state))
    return;
  if (states.missing(1) > 0) {
    fail_with(KVC_E_NO_PAGES, states.missing(1),
              "the state of sequence %lld needs a slot, all %lld are in use", ll(sequence.id),
              ll(core_.spec().num_state_slots));
  }
  states.prepare(1);
  if (states.slot_pages() > core_.allocator.num_free())
    core_.index.eviction().evict_for(states.slot_pages(), stream);
  if (states.to_evict(1) > 0) core_.index.eviction().evict_states_for(1);
  const StateSlot fresh = states.take();
  states.memory().copy(sequence.state, states.memory(), fresh, *core_.device, stream);
  states.drop_ref(sequence.state);
  sequence.state = fresh;
  if (here == nullptr) return;
  states.drop_ref(here->slot);
  here->slot = fresh;
  states.add_ref(fresh);
}

void DebugAccess::write_state(kvc_seq id, int32_t local_layer, int32_t state,
                              const StateRows& value, CallStream stream) {
  Sequence& sequence = core_.sequences.get_idle(id, "set the state of");
  check_on_device(sequence, "set the state of");
  make_state_private(sequence, stream);
  sequence.history.diverge();
  const StateSpec& shape = core_.layer(local_layer).states[state];
  std::byte* stored = core_.states.memory().state(sequence.state, local_layer, state);
  core_.device->convert({stored, shape.dtype}, {value.base, value.dtype}, shape.num_elements,
                        stream);
}

}  // namespace kvc
