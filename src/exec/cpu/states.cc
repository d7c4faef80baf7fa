#include "src/exec/cpu/states.h"

#include <cstring>

namespace kvc {

// LinearSequence or ConvSequence of every entry: its rows, and its state before and after.
template <typename T>
std::vector<T> CpuStates::sequences_of(const Batch& batch, const StateRef& ref) const {
  std::vector<T> sequences;
  for (const BatchEntry& entry : batch.entries())
    sequences.push_back(
        {entry.row_begin, entry.append_length, before(entry, ref), after(entry, ref)});
  return sequences;
}

void CpuStates::clear_taken(const Batch& batch) const {
  if (!spec_->clears_pages || !states_->is_used()) return;
  for (const BatchEntry& entry : batch.entries()) states_->memory().clear(entry.new_state);
}

void CpuStates::get(const Forward& forward, const StateRef& ref, const StateRows& out) const {
  const StateSpec& spec = spec_of(ref);
  std::byte* row = out.base;
  for (const BatchEntry& entry : forward.batch().entries()) {
    device_->convert({row, out.dtype}, {before(entry, ref), spec.dtype}, spec.num_elements,
                     kOwnStream);
    row += out.row_stride;
  }
}

void CpuStates::set(const Forward& forward, const StateRef& ref, const StateRows& value) const {
  const StateSpec& spec = spec_of(ref);
  std::byte* row = value.base;
  for (const BatchEntry& entry : forward.batch().entries()) {
    device_->convert({after(entry, ref), spec.dtype}, {row, value.dtype}, spec.num_elements,
                     kOwnStream);
    row += value.row_stride;
  }
}

void CpuStates::carry_on(const Forward& forward) const noexcept {
  for (size_t layer = 0; layer < spec_->layers.size(); ++layer) {
    const auto count = static_cast<int32_t>(spec_->layers[layer].states.size());
    for (int32_t state = 0; state < count; ++state) {
      const StateRef ref{static_cast<int32_t>(layer), state};
      if (forward.written().is_state_set(ref.local_layer, state)) continue;
      for (const BatchEntry& entry : forward.batch().entries())
        std::memcpy(after(entry, ref), before(entry, ref),
                    static_cast<size_t>(spec_of(ref).bytes()));
    }
  }
}

void CpuStates::linear(const Forward& forward, const StateRef& ref, kernels::LinearParams params) {
  const auto sequences = sequences_of<kernels::LinearSequence>(forward.batch(), ref);
  params.sequences = sequences.data();
  run_linear(device_->kernels(), device_->executor(), workspace_, params,
             static_cast<int64_t>(sequences.size()));
}

void CpuStates::conv(const Forward& forward, const StateRef& ref, kernels::ConvParams params) {
  const auto sequences = sequences_of<kernels::ConvSequence>(forward.batch(), ref);
  params.sequences = sequences.data();
  run_conv(device_->kernels(), device_->executor(), workspace_, params,
           static_cast<int64_t>(sequences.size()));
}

}  // namespace kvc
