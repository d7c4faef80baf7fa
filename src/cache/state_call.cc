#include "src/cache/state_call.h"

#include "src/base/error.h"
#include "src/cache/cache_core.h"
#include "src/plan/names.h"

namespace kvc {

StateCall::StateCall(CacheCore& core, int32_t layer, int32_t index, const char* function)
    : core_(core), layer_(layer), index_(index), local_(core.require_layer(layer)) {
  const LayerSpec& spec_of_layer = core.layer(local_);
  if (spec_of_layer.kind != KVC_LAYER_STATE) {
    fail_with(KVC_E_INVALID_STATE, spec_of_layer.kind,
              "%s: layer %d is of kind %s (%d), expected STATE (%d)", function, layer,
              layer_kind_name(spec_of_layer.kind), spec_of_layer.kind, KVC_LAYER_STATE);
  }
  const auto num_states = static_cast<int32_t>(spec_of_layer.states.size());
  if (index < 0 || index >= num_states) {
    fail_with(KVC_E_OUT_OF_RANGE, index, "state %d out of range: layer %d has %d states", index,
              layer, num_states);
  }
  core.require_storage(function);
  spec_ = &spec_of_layer.states[index];
}

DLDevice StateCall::device() const { return core_.spec().device; }

int64_t StateCall::num_rows() const { return core_.forward.batch().num_rows(); }

int64_t StateCall::num_seqs() const {
  return static_cast<int64_t>(core_.forward.batch().entries().size());
}

void StateCall::get(const StateRows& out) {
  core_.engine->get_states(core_.forward, {local_, index_}, out);
}

void StateCall::set(const StateRows& value) {
  core_.engine->set_states(core_.forward, {local_, index_}, value);
  core_.forward.written().mark_state_set(local_, index_);
}

void StateCall::linear(const kernels::LinearParams& params) {
  core_.engine->linear(core_.forward, {local_, index_}, params);
  core_.forward.written().mark_state_set(local_, index_);
}

void StateCall::conv(const kernels::ConvParams& params) {
  core_.engine->conv(core_.forward, {local_, index_}, params);
  core_.forward.written().mark_state_set(local_, index_);
}

}  // namespace kvc
