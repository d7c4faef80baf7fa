// Recurrent states: of the open forward's sequences, and of any sequence for debugging.
#include <cstring>

#include "src/base/error.h"
#include "src/cache/cache.h"

namespace kvc {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

// A state is one row of one head in a page of one token: the kernels that move rows convert it.
kernels::PagedRows as_page(const std::byte* state, const StateSpec& spec) {
  return {const_cast<std::byte*>(state), 0, 0, 0, spec.dtype};
}

void read_state(const AttentionEngine& engine, const std::byte* state, const StateSpec& spec, std::byte* out,
                kernels::DType out_type) {
  const int32_t page = 0;
  engine.gather_range({.rows = as_page(state, spec),
                       .pages = &page,
                       .out = {out, 0, 0, out_type},
                       .page_size = 1,
                       .num_heads = 1,
                       .dim = static_cast<int32_t>(spec.num_elements)},
                      0, 1);
}

void write_state(const AttentionEngine& engine, std::byte* state, const StateSpec& spec, std::byte* value,
                 kernels::DType value_type) {
  const int64_t slot = 0;
  kernels::AppendParams params{};
  params.k = {value, 0, 0, value_type};
  params.k_pages = params.v_pages = as_page(state, spec);
  params.slots = &slot;
  params.page_size = 1;
  params.num_kv_heads = 1;
  params.k_dim = static_cast<int32_t>(spec.num_elements);
  engine.scatter(params, 1);
}

}  // namespace

int32_t Cache::require_state_layer(int32_t layer, int32_t state, const char* what) const {
  const int32_t local = require_layer(layer);
  const LayerSpec& spec_of_layer = spec().layers[static_cast<size_t>(local)];
  if (spec_of_layer.kind != KVC_LAYER_STATE) {
    fail_with(KVC_E_INVALID_STATE, spec_of_layer.kind, "%s: layer %d is of kind %d, expected STATE (%d)",
              what, layer, spec_of_layer.kind, KVC_LAYER_STATE);
  }
  const auto num_states = static_cast<int32_t>(spec_of_layer.states.size());
  if (state < 0 || state >= num_states) {
    fail_with(KVC_E_OUT_OF_RANGE, state, "state %d out of range: layer %d has %d states", state, layer,
              num_states);
  }
  return local;
}

const std::byte* Cache::old_state(const BatchEntry& entry, int32_t local_layer, int32_t state) const {
  return states_.state(entry.sequence->state, local_layer, state);
}

std::byte* Cache::new_state(const BatchEntry& entry, int32_t local_layer, int32_t state) const {
  return states_.state(entry.new_state, local_layer, state);
}

void Cache::get_states(int32_t local_layer, int32_t state, const StateRows& out) const {
  const StateSpec& shape = spec().layers[static_cast<size_t>(local_layer)].states[static_cast<size_t>(state)];
  std::byte* to = out.base;
  for (const BatchEntry& entry : forward_.batch().entries()) {
    read_state(engine_, old_state(entry, local_layer, state), shape, to, out.dtype);
    to += out.row_stride;
  }
}

void Cache::set_states(int32_t local_layer, int32_t state, const StateRows& value) {
  const StateSpec& shape = spec().layers[static_cast<size_t>(local_layer)].states[static_cast<size_t>(state)];
  std::byte* from = value.base;
  for (const BatchEntry& entry : forward_.batch().entries()) {
    write_state(engine_, new_state(entry, local_layer, state), shape, from, value.dtype);
    from += value.row_stride;
  }
  forward_.mark_state_set(local_layer, state);
}

// States that this forward did not set are those of before.
void Cache::carry_states_on() noexcept {
  if (!pool_.has_storage()) return;
  for (size_t layer = 0; layer < spec().layers.size(); ++layer) {
    const std::vector<StateSpec>& states = spec().layers[layer].states;
    const auto local = static_cast<int32_t>(layer);
    for (int32_t state = 0; state < static_cast<int32_t>(states.size()); ++state) {
      if (forward_.is_state_set(local, state)) continue;
      for (const BatchEntry& entry : forward_.batch().entries()) {
        std::memcpy(new_state(entry, local, state), old_state(entry, local, state),
                    static_cast<size_t>(states[static_cast<size_t>(state)].bytes()));
      }
    }
  }
}

void Cache::debug_get_state(kvc_seq id, int32_t local_layer, int32_t state, const StateRows& out) const {
  const StateSpec& shape = spec().layers[static_cast<size_t>(local_layer)].states[static_cast<size_t>(state)];
  read_state(engine_,
             states_.state(sequences_.get_on_device(id, "read the state of").state, local_layer, state),
             shape, out.base, out.dtype);
}

void Cache::debug_set_state(kvc_seq id, int32_t local_layer, int32_t state, const StateRows& value) {
  Sequence& sequence = sequences_.get_idle(id, "set the state of");
  sequences_.check_on_device(sequence, "set the state of");
  // The state at the length is also that of a checkpoint there.
  Checkpoint* here = nullptr;
  if (!sequence.checkpoints.empty() && sequence.checkpoints.back().position == sequence.length)
    here = &sequence.checkpoints.back();
  const StateSpec& shape = spec().layers[static_cast<size_t>(local_layer)].states[static_cast<size_t>(state)];
  const int32_t own_holders = here == nullptr ? 1 : 2;
  if (sequence.state == kInitialState || states_.holders(sequence.state) > own_holders) {
    // Into a slot of its own: earlier checkpoints and forks keep the old one.
    if (states_.missing(1) > 0) {
      fail_with(KVC_E_NO_PAGES, states_.missing(1),
                "the state of sequence %lld needs a slot, all %lld are in use", ll(id),
                ll(spec().num_state_slots));
    }
    states_.prepare(1);
    if (states_.slot_pages() > allocator_.num_vacant()) index_.make_vacant(states_.slot_pages());
    if (states_.to_evict(1) > 0) index_.make_states_vacant(1);
    const StateSlot fresh = states_.take();
    states_.copy_slot(sequence.state, fresh);
    states_.drop_holder(sequence.state);
    sequence.state = fresh;
    if (here != nullptr) {
      states_.drop_holder(here->slot);
      here->slot = fresh;
      states_.add_holder(fresh);
    }
  }
  write_state(engine_, states_.state(sequence.state, local_layer, state), shape, value.base, value.dtype);
}

}  // namespace kvc
