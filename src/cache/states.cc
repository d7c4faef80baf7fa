// Recurrent states: of the open forward's sequences, and of any sequence for debugging.
#include "src/base/error.h"
#include "src/cache/cache.h"

namespace kvc {
int32_t Cache::require_state_layer(int32_t layer, int32_t state, const char* what) const {
  const int32_t local = require_layer(layer);
  const LayerSpec& spec_of_layer = spec().layers[static_cast<size_t>(local)];
  if (spec_of_layer.kind != KVC_LAYER_STATE) {
    fail_with(KVC_E_INVALID_STATE, spec_of_layer.kind,
              "%s: layer %d is of kind %s (%d), expected STATE (%d)", what, layer,
              layer_kind_name(spec_of_layer.kind), spec_of_layer.kind, KVC_LAYER_STATE);
  }
  const auto num_states = static_cast<int32_t>(spec_of_layer.states.size());
  if (state < 0 || state >= num_states) {
    fail_with(KVC_E_OUT_OF_RANGE, state, "state %d out of range: layer %d has %d states", state,
              layer, num_states);
  }
  return local;
}

void Cache::debug_get_state(kvc_seq id, int32_t local_layer, int32_t state, const StateRows& out,
                            kvc_stream stream) const {
  const StateSpec& shape =
      spec().layers[static_cast<size_t>(local_layer)].states[static_cast<size_t>(state)];
  engine_->read_state(
      states_.memory().state(sequences_.get_on_device(id, "read the state of").state, local_layer,
                             state),
      shape, out, stream);
}

void Cache::debug_set_state(kvc_seq id, int32_t local_layer, int32_t state,
                            const StateRows& value) {
  Sequence& sequence = sequences_.get_idle(id, "set the state of");
  check_on_device(sequence, "set the state of");
  // The state at the length is also that of a checkpoint there.
  Checkpoint* here = nullptr;
  if (!sequence.checkpoints.empty() && sequence.checkpoints.back().position == sequence.length)
    here = &sequence.checkpoints.back();
  const StateSpec& shape =
      spec().layers[static_cast<size_t>(local_layer)].states[static_cast<size_t>(state)];
  const int32_t own_refs = here == nullptr ? 1 : 2;
  if (sequence.state == kInitialState || states_.refs(sequence.state) > own_refs ||
      states_.is_indexed(sequence.state)) {
    // Into a slot of its own: earlier checkpoints, forks and the prefix index keep the old one.
    if (states_.missing(1) > 0) {
      fail_with(KVC_E_NO_PAGES, states_.missing(1),
                "the state of sequence %lld needs a slot, all %lld are in use", ll(id),
                ll(spec().num_state_slots));
    }
    states_.prepare(1);
    if (states_.slot_pages() > allocator_.num_free())
      index_.eviction().evict_for(states_.slot_pages());
    if (states_.to_evict(1) > 0) index_.eviction().evict_states_for(1);
    const StateSlot fresh = states_.take();
    states_.memory().copy(sequence.state, fresh);
    states_.drop_ref(sequence.state);
    sequence.state = fresh;
    if (here != nullptr) {
      states_.drop_ref(here->slot);
      here->slot = fresh;
      states_.add_ref(fresh);
    }
  }
  sequence.history.diverge();
  engine_->write_state(states_.memory().state(sequence.state, local_layer, state), shape, value);
}

}  // namespace kvc
