#include "src/exec/linear.h"

#include <algorithm>
#include <cmath>
#include <string>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/overlap.h"
#include "src/base/tensor.h"
#include "src/exec/cpu/work_list.h"

namespace kvc {
namespace {

using kernels::ConvParams;
using kernels::ConvSequence;
using kernels::dtype_bytes;
using kernels::LinearParams;
using kernels::LinearSequence;

// Cautious speeds of one thread.
constexpr double kBytesPerSecond = 20e9;
constexpr double kFlopsPerSecond = 50e9;
// A step fetches the next head's state while it works on one, so its tasks shall be long runs of
// heads.
constexpr int64_t kTasksPerThread = 4, kStepTasksPerThread = 2;

// Dimension 1 of [>= T, heads, dim], 0 when the tensor is not of that kind: view_rows says what is
// wrong then.
int64_t heads_of(const DLTensor* tensor) {
  return tensor != nullptr && tensor->ndim == 3 && tensor->shape != nullptr ? tensor->shape[1] : 0;
}

void read_decay(const kvc_linear_opt& opt, const char* name, const DLTensor* decay,
                int64_t num_rows, DLDevice device, LinearParams* params) {
  if (opt.decay < KVC_DECAY_NONE || opt.decay > KVC_DECAY_CHANNEL) {
    fail_with(KVC_E_UNSUPPORTED, opt.decay, "%s.decay = %d is not known: %d to %d are", name,
              opt.decay, static_cast<int>(KVC_DECAY_NONE), static_cast<int>(KVC_DECAY_CHANNEL));
  }
  if ((decay == nullptr) != (opt.decay == KVC_DECAY_NONE)) {
    fail_with(KVC_E_INVALID_ARGUMENT, opt.decay, "decay is %s and %s.decay = %d: %s",
              decay == nullptr ? "NULL" : "set", name, opt.decay,
              decay == nullptr ? "a tensor is expected" : "NULL is expected");
  }
  const int32_t heads = params->num_heads;
  if (opt.decay == KVC_DECAY_HEAD) {
    params->decay = view_f32_vector(decay, "decay", heads, device);
    params->decay_head_stride = 1;
  } else if (opt.decay == KVC_DECAY_TOKEN) {
    const F32Matrix matrix = view_f32_matrix(decay, "decay", num_rows, heads, device);
    params->decay = matrix.data;
    params->decay_token_stride = matrix.row_stride;
    params->decay_head_stride = 1;
  } else if (opt.decay == KVC_DECAY_CHANNEL) {
    const F32Rows rows = view_f32_rows(decay, {"decay", num_rows, heads, params->k_dim, device});
    params->decay = rows.data;
    params->decay_token_stride = rows.token_stride;
    params->decay_head_stride = rows.head_stride;
    params->decay_per_channel = 1;
  }
}

void secure_scratch(LinearWorkspace& workspace, const Executor& executor, size_t bytes) {
  const auto workers = static_cast<size_t>(executor.concurrency());
  if (workspace.scratch.size() < workers) workspace.scratch.resize(workers);
  for (AlignedBuffer& scratch : workspace.scratch) scratch.ensure(bytes);
}

// Cuts `units` (heads, channels) of every sequence into tasks_each_sequence of `units_each` and
// runs them, on threads when that pays.
template <typename Run>
void run_tasks(Executor& executor, LinearWorkspace& workspace, int64_t num_sequences, int64_t units,
               int64_t units_each, double seconds, Run&& run) {
  const int64_t tasks_each_sequence = ceil_div(units, units_each);
  const auto one = [&](int64_t task, int32_t worker) {
    const int64_t begin = task % tasks_each_sequence * units_each;
    run(static_cast<int32_t>(task / tasks_each_sequence), static_cast<int32_t>(begin),
        static_cast<int32_t>(std::min(units, begin + units_each)),
        workspace.scratch[worker].data());
  };
  const int64_t num_tasks = num_sequences * tasks_each_sequence;
  if (seconds < kWorthThreads) {
    for (int64_t task = 0; task < num_tasks; ++task) one(task, 0);
  } else {
    executor.run(num_tasks, one);
  }
}

// Units of a task: so many tasks for every thread, each a multiple of `together`.
int64_t units_per_task(const Executor& executor, int64_t tasks_each, int64_t num_sequences,
                       int64_t units, int64_t together) {
  if (executor.concurrency() == 1) return std::max<int64_t>(1, units);
  const int64_t wanted =
      std::max<int64_t>(1, num_sequences * units / (tasks_each * executor.concurrency()));
  return std::max<int64_t>(1, std::min(units, align_up(wanted, together)));
}

}  // namespace

LinearParams read_linear(const kvc_linear_opt& opt, const char* name, const LinearTensors& tensors,
                         const LinearShape& shape, int64_t num_rows, DLDevice device) {
  constexpr uint64_t kKnownFlags = KVC_LINEAR_DELTA;
  if ((opt.flags & ~kKnownFlags) != 0) {
    fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(opt.flags),
              "%s.flags = %#llx has bits beyond %#llx", name,
              static_cast<unsigned long long>(opt.flags),
              static_cast<unsigned long long>(kKnownFlags));
  }
  if (opt.reserved != 0)
    fail_with(KVC_E_UNSUPPORTED, opt.reserved, "%s.reserved = %d is not supported: 0 is", name,
              opt.reserved);
  if (!std::isfinite(opt.scale))
    fail(KVC_E_OUT_OF_RANGE, "%s.scale = %g, expected a finite number", name,
         static_cast<double>(opt.scale));
  LinearParams params{};
  params.scale = opt.scale == 0
                     ? static_cast<float>(1.0 / std::sqrt(static_cast<double>(shape.k_dim)))
                     : opt.scale;
  params.delta = (opt.flags & KVC_LINEAR_DELTA) != 0 ? 1 : 0;
  params.num_heads = shape.heads;
  params.k_dim = shape.k_dim;
  params.v_dim = shape.v_dim;
  const int64_t k_heads = heads_of(tensors.q);
  params.q = view_rows(tensors.q, {"q", num_rows, k_heads, shape.k_dim, device});
  if (k_heads < 1 || k_heads > shape.heads || shape.heads % k_heads != 0) {
    fail_with(KVC_E_SHAPE, k_heads,
              "q has shape %s, expected [T, heads, dim] with heads a divisor of the state's %d",
              shape_text(*tensors.q).text, shape.heads);
  }
  params.num_k_heads = static_cast<int32_t>(k_heads);
  params.k = view_rows(tensors.k, {"k", num_rows, k_heads, shape.k_dim, device});
  params.v = view_rows(tensors.v, {"v", num_rows, shape.heads, shape.v_dim, device});
  read_decay(opt, name, tensors.decay, num_rows, device, &params);
  if (tensors.beta != nullptr) {
    const F32Matrix beta = view_f32_matrix(tensors.beta, "beta", num_rows, shape.heads, device);
    params.beta = beta.data;
    params.beta_token_stride = beta.row_stride;
  }
  if (opt.skip != nullptr)
    params.skip =
        view_f32_vector(opt.skip, (std::string(name) + ".skip").c_str(), shape.heads, device);
  params.out = view_rows(tensors.out, {"out", num_rows, shape.heads, shape.v_dim, device});
  const int64_t decay_rows = opt.decay == KVC_DECAY_HEAD ? -1 : num_rows;
  const TensorUse output{tensors.out, "out", num_rows};
  const TensorUse inputs[] = {
      {tensors.q, "q", num_rows},       {tensors.k, "k", num_rows},
      {tensors.v, "v", num_rows},       {tensors.decay, "decay", decay_rows},
      {tensors.beta, "beta", num_rows}, {opt.skip, "skip"}};
  refuse_overlaps({&output, 1}, inputs);
  params.state_dtype = shape.state_dtype;
  params.state_row_stride = shape.v_dim * dtype_bytes(shape.state_dtype);
  params.state_head_stride = shape.k_dim * params.state_row_stride;
  return params;
}

ConvParams read_conv(const ConvTensors& tensors, kvc_activation activation, const ConvShape& shape,
                     int64_t num_rows, DLDevice device) {
  if (activation != KVC_ACTIVATION_NONE && activation != KVC_ACTIVATION_SILU) {
    fail_with(KVC_E_UNSUPPORTED, activation, "activation = %d is not known: %d and %d are",
              activation, static_cast<int>(KVC_ACTIVATION_NONE),
              static_cast<int>(KVC_ACTIVATION_SILU));
  }
  ConvParams params{};
  params.x = view_row_matrix(tensors.x, "x", num_rows, shape.channels, device);
  const F32Matrix weight =
      view_f32_matrix(tensors.weight, "weight", shape.channels, shape.width, device);
  if (tensors.weight->shape[0] != shape.channels) {
    fail_with(KVC_E_SHAPE, tensors.weight->shape[0], "weight has shape[0] = %lld, expected %d",
              static_cast<long long>(tensors.weight->shape[0]), shape.channels);
  }
  params.weight = weight.data;
  params.weight_stride = weight.row_stride;
  if (tensors.bias != nullptr)
    params.bias = view_f32_vector(tensors.bias, "bias", shape.channels, device);
  params.out = view_row_matrix(tensors.out, "out", num_rows, shape.channels, device);
  const TensorUse output{tensors.out, "out", num_rows};
  const TensorUse inputs[] = {
      {tensors.x, "x", num_rows}, {tensors.weight, "weight"}, {tensors.bias, "bias"}};
  refuse_overlaps({&output, 1}, inputs);
  params.activation =
      activation == KVC_ACTIVATION_SILU ? kernels::Activation::kSilu : kernels::Activation::kNone;
  params.channels = shape.channels;
  params.width = shape.width;
  params.state_dtype = shape.state_dtype;
  return params;
}

void run_linear(const kernels::cpu::KernelTable& table, Executor& executor,
                LinearWorkspace& workspace, const LinearParams& params, int64_t num_sequences) {
  if (num_sequences == 0) return;
  int64_t rows = 0, longest = 0;
  for (int64_t i = 0; i < num_sequences; ++i) {
    rows += params.sequences[i].num_rows;
    longest = std::max(longest, params.sequences[i].num_rows);
  }
  secure_scratch(workspace, executor, table.linear_scratch_bytes(params, longest));
  const double elements = static_cast<double>(params.num_heads) * params.k_dim * params.v_dim;
  const double bytes =
      2.0 * elements * static_cast<double>(num_sequences * dtype_bytes(params.state_dtype));
  const double flops = 6.0 * elements * static_cast<double>(rows);
  // Heads of one q and k head share its part of a chunk: small groups stay in one task.
  const int64_t group = params.num_heads / params.num_k_heads;
  const int64_t together = longest > 1 && group <= 4 ? group : 1;
  run_tasks(executor, workspace, num_sequences, params.num_heads,
            units_per_task(executor, longest > 1 ? kTasksPerThread : kStepTasksPerThread,
                           num_sequences, params.num_heads, together),
            bytes / kBytesPerSecond + flops / kFlopsPerSecond,
            [&](int32_t sequence, int32_t begin, int32_t end, void* scratch) {
              table.linear(params, sequence, begin, end, scratch);
            });
}

void run_conv(const kernels::cpu::KernelTable& table, Executor& executor,
              LinearWorkspace& workspace, const ConvParams& params, int64_t num_sequences) {
  constexpr int64_t kChannelsTogether = 256;  // Whole lines of x and out, whatever their type.
  constexpr double kBytesPerInput = 16;       // Read and written, with the weights' share.
  if (num_sequences == 0) return;
  int64_t rows = 0;
  for (int64_t i = 0; i < num_sequences; ++i) rows += params.sequences[i].num_rows + params.width;
  secure_scratch(workspace, executor, table.conv_scratch_bytes(params));
  run_tasks(
      executor, workspace, num_sequences, params.channels,
      units_per_task(executor, kTasksPerThread, num_sequences, params.channels, kChannelsTogether),
      static_cast<double>(rows) * params.channels * kBytesPerInput / kBytesPerSecond,
      [&](int32_t sequence, int32_t begin, int32_t end, void* scratch) {
        table.conv(params, sequence, begin, end, scratch);
      });
}

}  // namespace kvc
