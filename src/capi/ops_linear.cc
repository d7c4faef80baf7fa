// kvcache.h, section "Operators": the recurrence of linear attention over the host's own states.
#include <climits>

#include "src/base/overlap.h"
#include "src/base/tensor.h"
#include "src/capi/guard.h"
#include "src/capi/op_options.h"
#include "src/capi/sized_struct.h"
#include "src/exec/linear.h"
#include "src/ops/operators.h"

namespace {

using kvc::fail_with;
using kvc::guard;
using kvc::StateView;
using kvc::kernels::LinearParams;

kvc_linear_opt read_linear_opt(const kvc_linear_opt* linear) {
  kvc_linear_opt read{};
  if (linear == nullptr) return read;
  read = kvc::read_struct(linear, "linear");
  kvc::refuse_extensions(read.ext, "linear");
  if (read.state != 0) {
    fail_with(KVC_E_OUT_OF_RANGE, read.state,
              "linear.state = %d: states has one state per sequence, index 0", read.state);
  }
  return read;
}

StateView view_linear_states(const DLTensor* tensor, DLDevice device) {
  const StateView states = kvc::view_states(tensor, "states", device);
  for (int dimension = 0; dimension < 4; ++dimension) {
    const int64_t extent = tensor->shape[dimension];
    if (extent > INT32_MAX || (dimension > 0 && extent < 1)) {
      fail_with(KVC_E_SHAPE, extent, "states has shape[%d] = %lld, expected %d to %d", dimension,
                static_cast<long long>(extent), dimension > 0 ? 1 : 0, INT32_MAX);
    }
  }
  return states;
}

// Refuses overlaps with the states, which are read and written.
void refuse_state_overlaps(const DLTensor* states, const kvc_linear_opt& opt,
                           const kvc::LinearTensors& tensors, int64_t num_rows) {
  const int64_t decay_rows = opt.decay == KVC_DECAY_HEAD ? -1 : num_rows;
  const kvc::TensorUse outputs[] = {{states, "states"}};
  const kvc::TensorUse others[] = {
      {tensors.q, "q", num_rows},       {tensors.k, "k", num_rows},
      {tensors.v, "v", num_rows},       {tensors.decay, "decay", decay_rows},
      {tensors.beta, "beta", num_rows}, {opt.skip, "skip"},
      {tensors.out, "out", num_rows}};
  kvc::refuse_overlaps(outputs, others);
}

LinearParams read_params(const kvc_linear_opt& opt, const DLTensor* states,
                         const kvc::LinearTensors& tensors, const StateView& view, int64_t num_rows,
                         DLDevice device) {
  LinearParams params = kvc::read_linear(opt, "linear", tensors,
                                         {.heads = static_cast<int32_t>(view.heads),
                                          .k_dim = static_cast<int32_t>(view.k_dim),
                                          .v_dim = static_cast<int32_t>(view.v_dim),
                                          .state_dtype = view.dtype},
                                         num_rows, device);
  refuse_state_overlaps(states, opt, tensors, num_rows);
  params.state_head_stride = view.head_stride;
  params.state_row_stride = view.row_stride;
  return params;
}

kvc::kernels::OpStateTensors read_sequences(const StateView& view, const DLTensor* qo_indptr,
                                            const DLTensor* q, DLDevice device) {
  kvc::kernels::OpStateTensors states{};
  states.num_sequences = static_cast<int32_t>(view.sequences);
  states.num_rows = view.sequences;
  states.states = view.base;
  states.stride = view.sequence_stride;
  if (qo_indptr != nullptr) {
    states.row_indptr = kvc::view_i32_vector(qo_indptr, "qo_indptr", view.sequences + 1, device);
    (void)kvc::check_activations(q, "q", {-1, -1, -1}, device);
    states.num_rows = q->shape[0];
  }
  return states;
}

}  // namespace

kvc_status kvc_op_linear_step(const kvc_linear_opt* linear, const kvc_op_opt* opt,
                              const DLTensor* qo_indptr, DLTensor* states, const DLTensor* q,
                              const DLTensor* k, const DLTensor* v, const DLTensor* decay,
                              const DLTensor* beta, DLTensor* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const kvc_linear_opt linear_opt = read_linear_opt(linear);
    const kvc::OpOptions op_opt = kvc::read_op_options(opt, 0, "kvc_op_linear_step");
    const DLDevice device = kvc::device_of_op(states);
    const StateView view = view_linear_states(states, device);
    const auto operators =
        kvc::make_operators(device, {op_opt.opt.cpu_isa, op_opt.host(), op_opt.opt.stream});
    const kvc::kernels::OpStateTensors sequences = read_sequences(view, qo_indptr, q, device);
    const int64_t num_rows = operators->check(sequences);
    operators->linear(
        read_params(linear_opt, states, {q, k, v, decay, beta, out}, view, num_rows, device),
        sequences);
  });
}
