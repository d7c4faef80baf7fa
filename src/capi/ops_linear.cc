// kvcache.h, section "Operators": the recurrence of linear attention over the host's own states.
#include <climits>
#include <vector>

#include "src/base/overlap.h"
#include "src/base/tensor.h"
#include "src/capi/guard.h"
#include "src/capi/op_options.h"
#include "src/capi/sized_struct.h"
#include "src/exec/linear.h"
#include "src/exec/row_moves.h"
#include "src/ops/cuda_operators.h"

namespace {

using kvc::fail_with;
using kvc::guard;
using kvc::StateView;
using kvc::kernels::LinearParams;
using kvc::kernels::LinearSequence;
using kvc::kernels::cpu::KernelTable;

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

std::vector<LinearSequence> cut_sequences(const StateView& states, const DLTensor* qo_indptr) {
  const auto count = static_cast<size_t>(states.sequences);
  const int32_t* ends = nullptr;
  if (qo_indptr != nullptr) {
    ends = kvc::view_i32_vector(qo_indptr, "qo_indptr", states.sequences + 1);
    if (ends[0] != 0)
      fail_with(KVC_E_INVALID_ARGUMENT, ends[0], "qo_indptr[0] = %d, expected 0", ends[0]);
  }
  std::vector<LinearSequence> sequences(count);
  for (size_t i = 0; i < count; ++i) {
    std::byte* state = states.base + static_cast<int64_t>(i) * states.sequence_stride;
    const auto row = static_cast<int64_t>(i);
    sequences[i] = {row, 1, state, state};
    if (ends == nullptr) continue;
    if (ends[i + 1] < ends[i]) {
      fail_with(KVC_E_INVALID_ARGUMENT, ends[i + 1],
                "qo_indptr[%zu] = %d is less than qo_indptr[%zu] = %d", i + 1, ends[i + 1], i,
                ends[i]);
    }
    sequences[i].row_begin = ends[i];
    sequences[i].num_rows = ends[i + 1] - ends[i];
  }
  return sequences;
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

// The recurrences on a device. The host has not seen the sequence bounds: the rows are those of q.
void step_on(const kvc::OpPlace& place, const kvc_linear_opt& linear, const kvc::OpOptions& read,
             const DLTensor* qo_indptr, const DLTensor* state_tensor, const StateView& view,
             const kvc::LinearTensors& tensors) {
  kvc::kernels::OpStateTensors states{};
  states.num_sequences = static_cast<int32_t>(view.sequences);
  states.num_rows = view.sequences;
  states.states = view.base;
  states.stride = view.sequence_stride;
  if (qo_indptr != nullptr) {
    states.row_indptr =
        kvc::view_i32_vector(qo_indptr, "qo_indptr", view.sequences + 1, place.dlpack);
    (void)kvc::check_activations(tensors.q, "q", {-1, -1, -1}, place.dlpack);
    states.num_rows = tensors.q->shape[0];
  }
  kvc::CudaOperators(place.device, read.opt.stream)
      .linear(read_params(linear, state_tensor, tensors, view, states.num_rows, place.dlpack),
              states);
}

}  // namespace

kvc_status kvc_op_linear_step(const kvc_linear_opt* linear, const kvc_op_opt* opt,
                              const DLTensor* qo_indptr, DLTensor* states, const DLTensor* q,
                              const DLTensor* k, const DLTensor* v, const DLTensor* decay,
                              const DLTensor* beta, DLTensor* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    const kvc_linear_opt linear_opt = read_linear_opt(linear);
    const kvc::OpOptions op_opt = kvc::read_op_options(opt, 0, "kvc_op_linear_step");
    const kvc::OpPlace place = kvc::place_of_op(states);
    const StateView view = view_linear_states(states, place.dlpack);
    if (!place.on_host()) {
      return step_on(place, linear_opt, op_opt, qo_indptr, states, view,
                     {q, k, v, decay, beta, out});
    }
    const KernelTable& table = *kvc::choose_kernels(op_opt.opt.cpu_isa, "opt.cpu_isa");
    const std::vector<LinearSequence> sequences = cut_sequences(view, qo_indptr);
    const int64_t num_rows =
        sequences.empty() ? 0 : sequences.back().row_begin + sequences.back().num_rows;
    LinearParams params =
        read_params(linear_opt, states, {q, k, v, decay, beta, out}, view, num_rows, place.dlpack);
    params.sequences = sequences.data();
    kvc::Executor executor =
        op_opt.host() != nullptr ? kvc::Executor(*op_opt.host()) : kvc::Executor(1);
    kvc::LinearWorkspace workspace;
    kvc::run_linear(table, executor, workspace, params, view.sequences);
  });
}
