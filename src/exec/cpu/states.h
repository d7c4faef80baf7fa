// Recurrent states on the CPU: read, written and computed with, in the memory of the state pool.
#pragma once

#include <cstdint>

#include "src/exec/cpu/device.h"
#include "src/exec/engine.h"
#include "src/exec/linear.h"
#include "src/pages/state_pool.h"

namespace kvc {

// Of the open forward; functions as Engine says.
class CpuStates {
 public:
  // Borrows all.
  CpuStates(const Spec* spec, const StatePool* states, CpuDevice* device)
      : spec_(spec), states_(states), device_(device) {}

  // Zeros in the slots that a forward has taken (KVC_CONFIG_CLEAR_PAGES).
  void clear_taken(const Batch& batch) const;
  void get(const Forward& forward, const StateRef& ref, const StateRows& out) const;
  void set(const Forward& forward, const StateRef& ref, const StateRows& value) const;
  void carry_on(const Forward& forward) const noexcept;
  void linear(const Forward& forward, const StateRef& ref, kernels::LinearParams params);
  void conv(const Forward& forward, const StateRef& ref, kernels::ConvParams params);

 private:
  const StateSpec& spec_of(const StateRef& ref) const {
    return spec_->layers[ref.local_layer].states[ref.state];
  }
  // Of an entry, before and after the forward.
  std::byte* before(const BatchEntry& entry, const StateRef& ref) const {
    return states_->memory().state(entry.sequence->state, ref.local_layer, ref.state);
  }
  std::byte* after(const BatchEntry& entry, const StateRef& ref) const {
    return states_->memory().state(entry.new_state, ref.local_layer, ref.state);
  }
  template <typename T>
  std::vector<T> sequences_of(const Batch& batch, const StateRef& ref) const;

  const Spec* spec_;
  const StatePool* states_;
  CpuDevice* device_;
  LinearWorkspace workspace_;
};

}  // namespace kvc
