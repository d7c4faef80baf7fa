// The table: one place where everything in kernels/cuda comes together.
#include "kernels/cuda/angles/launch.h"
#include "kernels/cuda/append/launch.h"
#include "kernels/cuda/combine/launch.h"
#include "kernels/cuda/conv/launch.h"
#include "kernels/cuda/convert/launch.h"
#include "kernels/cuda/copy_pages/launch.h"
#include "kernels/cuda/gather/launch.h"
#include "kernels/cuda/linear/launch.h"
#include "kernels/cuda/merge/launch.h"
#include "kernels/cuda/move_rows/launch.h"
#include "kernels/cuda/op_view/launch.h"
#include "kernels/cuda/planner/bounds.h"
#include "kernels/cuda/planner/launch.h"
#include "kernels/cuda/runtime/attention.h"
#include "kernels/cuda/runtime/functions.h"
#include "kernels/cuda/runtime/launch_on.h"
#include "kernels/cuda/state_view/launch.h"
#include "kernels/cuda/step/launch.h"
#include "kernels/cuda/view/launch.h"

#ifndef KVC_LIBRARY_VERSION
#error "KVC_LIBRARY_VERSION comes from the build"
#endif

namespace kvc::cuda::runtime {
namespace {

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream); }

// The launch functions of the folders, with the table's device and errors around them.

Result step(int32_t device, const StepState& state, const StepPages& pages, Stream stream,
            Failure* failure) {
  return launch_on(device, "step", failure,
                   [&](const DeviceFacts&) { return cuda::step(state, pages, native(stream)); });
}

Result view(int32_t device, const ViewParams& params, int32_t max_sequences, Stream stream,
            Failure* failure) {
  return launch_on(device, "view", failure, [&](const DeviceFacts&) {
    return cuda::view(params, max_sequences, native(stream));
  });
}

Result state_view(int32_t device, const StateViewParams& params, int32_t max_sequences,
                  Stream stream, Failure* failure) {
  return launch_on(device, "state_view", failure, [&](const DeviceFacts&) {
    return cuda::state_view(params, max_sequences, native(stream));
  });
}

Result angles(int32_t device, const AngleParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "angles", failure,
                   [&](const DeviceFacts&) { return cuda::angles(params, native(stream)); });
}

void plan_bytes(const PlanShape& shape, const PlanLimits& limits, PlanBytes* out) {
  *out = cuda::plan_bytes(shape, limits);
}

Result plan(int32_t device, const PlanLaunch& launch, Stream stream, Failure* failure) {
  return launch_on(device, "plan", failure,
                   [&](const DeviceFacts&) { return cuda::plan(launch, native(stream)); });
}

Result combine(int32_t device, const AttnLaunch& launch, Stream stream, Failure* failure) {
  return launch_on(device, "combine", failure,
                   [&](const DeviceFacts&) { return cuda::combine(launch, native(stream)); });
}

Result append(int32_t device, const AppendLaunch& launch, Stream stream, Failure* failure) {
  return launch_on(device, "append", failure,
                   [&](const DeviceFacts&) { return cuda::append(launch, native(stream)); });
}

Result gather(int32_t device, const kernels::GatherParams& params, const RowStorage& storage,
              int64_t key_begin, int64_t key_end, Stream stream, Failure* failure) {
  return launch_on(device, "gather", failure, [&](const DeviceFacts&) {
    return cuda::gather(params, storage, key_begin, key_end, native(stream));
  });
}

Result merge(int32_t device, const kernels::MergeParams& params, int64_t num_rows,
             const int32_t* num_rows_at, Stream stream, Failure* failure) {
  return launch_on(device, "merge", failure, [&](const DeviceFacts&) {
    return cuda::merge(params, num_rows, num_rows_at, native(stream));
  });
}

Result copy_pages(int32_t device, const PageCopyParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "copy_pages", failure,
                   [&](const DeviceFacts&) { return cuda::copy_pages(params, native(stream)); });
}

Result move_rows(int32_t device, const MoveParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "move_rows", failure,
                   [&](const DeviceFacts&) { return cuda::move_rows(params, native(stream)); });
}

Result convert(int32_t device, const ConvertParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "convert", failure,
                   [&](const DeviceFacts&) { return cuda::convert(params, native(stream)); });
}

Result linear(int32_t device, const kernels::LinearParams& params, int32_t max_sequences,
              const int32_t* num_sequences_at, int32_t num_long, Stream stream, Failure* failure) {
  return launch_on(device, "linear", failure, [&](const DeviceFacts&) {
    return cuda::linear(params, max_sequences, num_sequences_at, num_long, native(stream));
  });
}

Result conv(int32_t device, const kernels::ConvParams& params, int32_t max_sequences,
            const int32_t* num_sequences_at, int64_t num_rows, Stream stream, Failure* failure) {
  return launch_on(device, "conv", failure, [&](const DeviceFacts&) {
    return cuda::conv(params, max_sequences, num_sequences_at, num_rows, native(stream));
  });
}

Result op_sequences(int32_t device, const OpSequencesParams& params, Stream stream,
                    Failure* failure) {
  return launch_on(device, "op_sequences", failure,
                   [&](const DeviceFacts&) { return cuda::op_sequences(params, native(stream)); });
}

Result op_states(int32_t device, const OpStatesParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "op_states", failure,
                   [&](const DeviceFacts&) { return cuda::op_states(params, native(stream)); });
}

Result op_pairs(int32_t device, const OpPairsParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "op_pairs", failure,
                   [&](const DeviceFacts&) { return cuda::op_pairs(params, native(stream)); });
}

Result op_slots(int32_t device, const OpSlotsParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "op_slots", failure,
                   [&](const DeviceFacts&) { return cuda::op_slots(params, native(stream)); });
}

Result op_constants(int32_t device, const OpConstantsParams& params, Stream stream,
                    Failure* failure) {
  return launch_on(device, "op_constants", failure,
                   [&](const DeviceFacts&) { return cuda::op_constants(params, native(stream)); });
}

constexpr BackendTable kTable{
    .struct_size = sizeof(BackendTable),
    .version = KVC_LIBRARY_VERSION,
    .count_devices = count_devices,
    .query_device = query_device,
    .reserve = reserve,
    .commit = commit,
    .discard = discard,
    .release = release,
    .allocate = allocate,
    .free = free,
    .allocate_on = allocate_on,
    .free_on = free_on,
    .free_idle = free_idle,
    .trim = trim,
    .allocate_pinned = allocate_pinned,
    .free_pinned = free_pinned,
    .locate = locate,
    .create_stream = create_stream,
    .destroy_stream = destroy_stream,
    .synchronize = synchronize,
    .is_capturing = is_capturing,
    .create_event = create_event,
    .destroy_event = destroy_event,
    .record_event = record_event,
    .record_launches = record_launches,
    .wait_event = wait_event,
    .query_event = query_event,
    .copy = copy,
    .copy_many = copy_many,
    .fill = fill,
    .step = step,
    .view = view,
    .state_view = state_view,
    .angles = angles,
    .plan_bytes = plan_bytes,
    .plan = plan,
    .attention_fits = attention_fits,
    .attention_geometry = attention_geometry,
    .attention = attention,
    .combine = combine,
    .append = append,
    .gather = gather,
    .merge = merge,
    .copy_pages = copy_pages,
    .move_rows = move_rows,
    .convert = convert,
    .linear = linear,
    .conv = conv,
    .op_sequences = op_sequences,
    .op_states = op_states,
    .op_pairs = op_pairs,
    .op_slots = op_slots,
    .op_constants = op_constants,
};

}  // namespace
}  // namespace kvc::cuda::runtime

extern "C" __attribute__((visibility("default"))) const kvc::cuda::BackendTable* kvc_cuda_backend(
    void) {
  return &kvc::cuda::runtime::kTable;
}
