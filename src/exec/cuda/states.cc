#include "src/exec/cuda/states.h"

#include <algorithm>

#include "src/base/error.h"

namespace kvc {
namespace {

// Sequences to start kernels for. Every step that a graph serves has as many, of the same lengths.
int32_t num_sequences(const Forward& forward) {
  return static_cast<int32_t>(forward.batch().entries().size());
}

}  // namespace

// The state of every sequence of the step.
cuda::ConvertParams CudaStates::rows_of(const Forward& forward, const StateRef& ref) const {
  cuda::ConvertParams params{};
  params.num_rows = num_sequences(forward);
  params.num_rows_at = open_->step().state().counts;
  params.num_elements = spec_of(ref).num_elements;
  return params;
}

void CudaStates::get(const Forward& forward, const StateRef& ref, const StateRows& out) const {
  cuda::ConvertParams params = rows_of(forward, ref);
  params.in = states_->memory().state(0, ref.local_layer, ref.state);
  params.in_stride = states_->memory().slot_stride();
  params.in_type = spec_of(ref).dtype;
  params.fallback = states_->memory().state(kInitialState, ref.local_layer, ref.state);
  params.rows = open_->step().state().state_in;
  params.out = out.base;
  params.out_stride = out.row_stride;
  params.out_type = out.dtype;
  const Gpu& device = order_->device();
  device.call("convert", device.table->convert, params, open_->stream());
}

void CudaStates::set(const Forward& forward, const StateRef& ref, const StateRows& value) {
  secure_carried();
  copy_in(forward, ref, value);
}

void CudaStates::copy_in(const Forward& forward, const StateRef& ref,
                         const StateRows& value) const {
  cuda::ConvertParams params = rows_of(forward, ref);
  params.in = value.base;
  params.in_stride = value.row_stride;
  params.in_type = value.dtype;
  params.rows = open_->step().state().state_out;
  params.scatter = 1;
  params.out = states_->memory().state(0, ref.local_layer, ref.state);
  params.out_stride = states_->memory().slot_stride();
  params.out_type = spec_of(ref).dtype;
  const Gpu& device = order_->device();
  device.call("convert", device.table->convert, params, open_->stream());
}

// Room for carrying on at the end, which cannot fail.
void CudaStates::secure_carried() {
  int64_t largest = 0;
  for (const LayerSpec& layer : spec_->layers) {
    for (const StateSpec& state : layer.states) largest = std::max(largest, state.bytes());
  }
  carried_.ensure(open_->step().max_sequences() * largest, open_->stream());
}

// Through a buffer, by the slots that the step names: in a graph these are each step's own.
void CudaStates::carry_on(const Forward& forward) const noexcept {
  try {
    for (size_t layer = 0; layer < spec_->layers.size(); ++layer) {
      const std::vector<StateSpec>& states = spec_->layers[layer].states;
      const auto local = static_cast<int32_t>(layer);
      for (int32_t state = 0; state < static_cast<int32_t>(states.size()); ++state) {
        if (forward.written().is_state_set(local, state)) continue;
        const StateSpec& spec = states[state];
        const StateRows rows{carried_.data(), spec.bytes(), spec.dtype};
        get(forward, {local, state}, rows);
        copy_in(forward, {local, state}, rows);
      }
    }
  } catch (...) {
    order_->lost("carrying states on");
  }
}

template <typename Params>
Params CudaStates::with_states(const Forward& forward, const StateRef& ref, Params params,
                               int64_t sequence_bytes) {
  secure_carried();
  sequences_.ensure(open_->step().max_sequences() * sequence_bytes, open_->stream());
  const cuda::StateMetadataParams view{
      .step = open_->step().state(),
      .states = states_->memory().state(0, ref.local_layer, ref.state),
      .slot_stride = states_->memory().slot_stride(),
      .initial = states_->memory().state(kInitialState, ref.local_layer, ref.state),
      .sequences = sequences_.data()};
  const Gpu& device = order_->device();
  device.call("state_metadata", device.table->state_metadata, view, num_sequences(forward),
              open_->stream());
  params.sequences = reinterpret_cast<decltype(params.sequences)>(sequences_.data());
  return params;
}

void CudaStates::linear(const Forward& forward, const StateRef& ref, kernels::LinearParams params) {
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
  const Gpu& device = order_->device();
  device.call("linear", device.table->linear, params, num_sequences(forward),
              open_->step().state().counts, num_long, open_->stream());
}

void CudaStates::conv(const Forward& forward, const StateRef& ref, kernels::ConvParams params) {
  params = with_states(forward, ref, params, sizeof(kernels::ConvSequence));
  const Gpu& device = order_->device();
  device.call("conv", device.table->conv, params, num_sequences(forward),
              open_->step().state().counts, forward.batch().num_rows(), open_->stream());
}

}  // namespace kvc
