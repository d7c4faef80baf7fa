// CudaEngine: recurrent states.
#include <algorithm>

#include "src/base/error.h"
#include "src/exec/cuda/engine.h"
#include "src/exec/cuda/outside.h"

namespace kvc {

using cuda::ConvertParams;

// Sequences to start kernels for, in a graph too: every step that it serves has as many of the same
// lengths (CapturedShape).
int32_t CudaEngine::num_sequences(const Forward& forward) {
  return static_cast<int32_t>(forward.batch().entries().size());
}

// The state of every sequence of the step, in the memory of the pool.
ConvertParams CudaEngine::state_rows(const Forward& forward, const StateRef& ref) const {
  const StateSpec& spec =
      spec_->layers[static_cast<size_t>(ref.local_layer)].states[static_cast<size_t>(ref.state)];
  ConvertParams params{};
  params.num_rows = num_sequences(forward);
  params.num_rows_at = step_.state().counts;
  params.num_elements = spec.num_elements;
  return params;
}

void CudaEngine::get_states(Forward& forward, const StateRef& ref, const StateRows& out) {
  require_stream();
  copy_states_out(forward, ref, out);
}

void CudaEngine::copy_states_out(const Forward& forward, const StateRef& ref,
                                 const StateRows& out) {
  const StateSpec& spec =
      spec_->layers[static_cast<size_t>(ref.local_layer)].states[static_cast<size_t>(ref.state)];
  ConvertParams params = state_rows(forward, ref);
  params.in = states_->state(0, ref.local_layer, ref.state);
  params.in_stride = states_->slot_stride();
  params.in_type = spec.dtype;
  params.fallback = states_->state(kInitialState, ref.local_layer, ref.state);
  params.rows = step_.state().state_in;
  params.out = out.base;
  params.out_stride = out.row_stride;
  params.out_type = out.dtype;
  device_->call("convert", device_->table->convert, params, forward_stream_);
}

void CudaEngine::set_states(Forward& forward, const StateRef& ref, const StateRows& value) {
  require_stream();
  secure_carried_states();
  copy_states_in(forward, ref, value);
}

void CudaEngine::copy_states_in(const Forward& forward, const StateRef& ref,
                                const StateRows& value) {
  const StateSpec& spec =
      spec_->layers[static_cast<size_t>(ref.local_layer)].states[static_cast<size_t>(ref.state)];
  ConvertParams params = state_rows(forward, ref);
  params.in = value.base;
  params.in_stride = value.row_stride;
  params.in_type = value.dtype;
  params.rows = step_.state().state_out;
  params.scatter = 1;
  params.out = states_->state(0, ref.local_layer, ref.state);
  params.out_stride = states_->slot_stride();
  params.out_type = spec.dtype;
  device_->call("convert", device_->table->convert, params, forward_stream_);
}

// So that carrying on at the end, which cannot fail, has its room.
void CudaEngine::secure_carried_states() {
  int64_t largest = 0;
  for (const LayerSpec& layer : spec_->layers) {
    for (const StateSpec& state : layer.states) largest = std::max(largest, state.bytes());
  }
  carried_states_.ensure(step_.max_sequences() * largest, forward_stream_);
}

// Through a buffer, by the slots that the step says: in a graph these are each step's own.
void CudaEngine::carry_states_on(Forward& forward) noexcept {
  try {
    for (size_t layer = 0; layer < spec_->layers.size(); ++layer) {
      const std::vector<StateSpec>& states = spec_->layers[layer].states;
      const auto local = static_cast<int32_t>(layer);
      for (int32_t state = 0; state < static_cast<int32_t>(states.size()); ++state) {
        if (forward.is_state_set(local, state)) continue;
        const StateSpec& spec = states[static_cast<size_t>(state)];
        const StateRows rows{carried_states_.data(), spec.bytes(), spec.dtype};
        copy_states_out(forward, {local, state}, rows);
        copy_states_in(forward, {local, state}, rows);
      }
    }
  } catch (...) {
    lost("carrying states on");
  }
}

template <typename Params>
Params CudaEngine::with_states(const Forward& forward, const StateRef& ref, Params params,
                               int64_t sequence_bytes) {
  const cuda::StateMetadataParams view{
      .step = step_.state(),
      .states = states_->state(0, ref.local_layer, ref.state),
      .slot_stride = states_->slot_stride(),
      .initial = states_->state(kInitialState, ref.local_layer, ref.state),
      .sequences = nullptr};
  secure_carried_states();
  state_sequences_.ensure(step_.max_sequences() * sequence_bytes, forward_stream_);
  cuda::StateMetadataParams placed = view;
  placed.sequences = state_sequences_.data();
  device_->call("state_metadata", device_->table->state_metadata, placed, num_sequences(forward),
                forward_stream_);
  params.sequences = reinterpret_cast<decltype(params.sequences)>(state_sequences_.data());
  return params;
}

void CudaEngine::linear(Forward& forward, const StateRef& ref, kernels::LinearParams params) {
  require_stream();
  if (params.k_dim > kMaxHeadDim) {
    fail_with(KVC_E_UNSUPPORTED, params.k_dim, "state %d has a k dim of %d: on a device at most %d",
              ref.state, params.k_dim, kMaxHeadDim);
  }
  params = with_states(forward, ref, params, sizeof(kernels::LinearSequence));
  const std::vector<BatchEntry>& entries = forward.batch().entries();
  const auto num_long =
      static_cast<int32_t>(std::count_if(entries.begin(), entries.end(), [](const auto& entry) {
        return entry.append_length >= cuda::kLongSequence;
      }));
  device_->call("linear", device_->table->linear, params, num_sequences(forward),
                step_.state().counts, num_long, forward_stream_);
}

void CudaEngine::conv(Forward& forward, const StateRef& ref, kernels::ConvParams params) {
  require_stream();
  params = with_states(forward, ref, params, sizeof(kernels::ConvSequence));
  device_->call("conv", device_->table->conv, params, num_sequences(forward), step_.state().counts,
                forward.batch().num_rows(), forward_stream_);
}

void CudaEngine::read_state(const std::byte* state, const StateSpec& spec, const StateRows& out,
                            kvc_stream stream) const {
  require_alive();
  const Outside outside(*this, stream);
  ConvertParams params{};
  params.in = state;
  params.in_type = spec.dtype;
  params.out = out.base;
  params.out_type = out.dtype;
  params.num_rows = 1;
  params.num_elements = spec.num_elements;
  device_->call("convert", device_->table->convert, params, outside.stream());
  device_->synchronize(outside.stream());
}

void CudaEngine::write_state(std::byte* state, const StateSpec& spec, const StateRows& value) {
  require_alive();
  const Outside outside(*this, stream_);
  ConvertParams params{};
  params.in = value.base;
  params.in_type = value.dtype;
  params.out = state;
  params.out_type = spec.dtype;
  params.num_rows = 1;
  params.num_elements = spec.num_elements;
  device_->call("convert", device_->table->convert, params, outside.stream());
  device_->synchronize(outside.stream());
}

}  // namespace kvc
