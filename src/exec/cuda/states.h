// Recurrent states on a CUDA device: read, written and computed with, in the memory of the state
// pool.
#pragma once

#include <cstdint>

#include "src/exec/cuda/forward.h"
#include "src/exec/engine.h"
#include "src/pages/state_pool.h"

namespace kvc {

class CudaStates {
 public:
  // All are borrowed.
  CudaStates(const Spec* spec, const StatePool* states, StreamOrder* order, CudaForward* open)
      : spec_(spec),
        states_(states),
        order_(order),
        open_(open),
        sequences_(order->device()),
        carried_(order->device()) {}

  // ---- The open forward; as Engine says
  void get(const Forward& forward, const StateRef& ref, const StateRows& out) const;
  void set(const Forward& forward, const StateRef& ref, const StateRows& value);
  void carry_on(const Forward& forward) const noexcept;
  void linear(const Forward& forward, const StateRef& ref, kernels::LinearParams params);
  void conv(const Forward& forward, const StateRef& ref, kernels::ConvParams params);

 private:
  const StateSpec& spec_of(const StateRef& ref) const {
    return spec_->layers[ref.local_layer].states[ref.state];
  }
  cuda::ConvertParams rows_of(const Forward& forward, const StateRef& ref) const;
  void copy_in(const Forward& forward, const StateRef& ref, const StateRows& value) const;
  void secure_carried();
  template <typename Params>
  Params with_states(const Forward& forward, const StateRef& ref, Params params,
                     int64_t sequence_bytes);

  const Spec* spec_;
  const StatePool* states_;
  StreamOrder* order_;
  CudaForward* open_;
  DeviceBuffer sequences_, carried_;
};

}  // namespace kvc
