// The function table of the CUDA back end. Each entry that launches kernels makes the device
// current, calls one function of launches.h, and reports its error.
#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/device_scope.h"
#include "kernels/cuda/runtime/functions.h"
#include "kernels/cuda/schedule/bounds.h"

#ifndef KVC_LIBRARY_VERSION
#error "KVC_LIBRARY_VERSION comes from the build"
#endif

namespace kvc::cuda::runtime {
namespace {

cudaStream_t native(Stream stream) { return static_cast<cudaStream_t>(stream); }

// Runs launch() with `device` current. `what` names the call in the failure.
template <typename Launch>
Result launch_on(int32_t device, const char* what, Failure* failure, Launch launch) {
  const DeviceScope scope(device);
  if (scope.error() != cudaSuccess) return report(scope.error(), "cudaSetDevice", failure);
  const DeviceFacts* facts = nullptr;
  const Result result = find_facts(device, &facts, failure);
  return result == Result::kOk ? report(launch(), what, failure) : result;
}

// ---- Attention kernels

struct AttentionKernel {
  const char* name;
  bool (*fits)(const AttnLaunch& launch, const DeviceLimits& device, const char** why);
  AttnGeometry (*geometry)(const DeviceLimits& device, int32_t k_dim, int32_t v_dim);
  cudaError_t (*launch)(const AttnLaunch& launch, cudaStream_t stream);
};

#if defined(KVC_CUDA_WITHOUT_HOPPER)

bool never_fits(const AttnLaunch&, const DeviceLimits&, const char** why) {
  if (why != nullptr) *why = "this build has no code for sm_90a";
  return false;
}
AttnGeometry no_geometry(const DeviceLimits&, int32_t, int32_t) { return {}; }
cudaError_t no_launch(const AttnLaunch&, cudaStream_t) { return cudaErrorNoKernelImageForDevice; }

constexpr AttentionKernel kWgmma{"attn_wgmma", never_fits, no_geometry, no_launch};
constexpr AttentionKernel kLatent{"attn_latent", never_fits, no_geometry, no_launch};

#else

constexpr AttentionKernel kWgmma{"attn_wgmma", attn_wgmma_fits, attn_wgmma_geometry, attn_wgmma};
constexpr AttentionKernel kLatent{"attn_latent", attn_latent_fits, attn_latent_geometry,
                                  attn_latent};

#endif

// Indexed by AttnKernel.
constexpr AttentionKernel kAttention[kNumAttnKernels] = {
    {"attn_simt", attn_simt_fits, attn_simt_geometry, attn_simt},
    {"attn_mma16", attn_mma16_fits, attn_mma16_geometry, attn_mma16},
    {"attn_mma64", attn_mma64_fits, attn_mma64_geometry, attn_mma64},
    kWgmma,
    kLatent};

const AttentionKernel* find_kernel(AttnKernel kernel) {
  const auto index = static_cast<int32_t>(kernel);
  return index >= 0 && index < kNumAttnKernels ? &kAttention[index] : nullptr;
}

// The facts are known once the core has queried the device. Otherwise this asks CUDA.
bool find_limits(int32_t device, DeviceLimits* out) {
  const DeviceFacts* facts = known_facts(device);
  if (facts == nullptr) {
    const DeviceScope scope(device);
    Failure ignored;
    if (scope.error() != cudaSuccess || find_facts(device, &facts, &ignored) != Result::kOk)
      return false;
  }
  *out = {facts->arch, facts->num_sms, facts->shared_bytes};
  return true;
}

bool attention_fits(int32_t device, AttnKernel kernel, const AttnLaunch& launch, const char** why) {
  const AttentionKernel* const found = find_kernel(kernel);
  DeviceLimits limits;
  if (found != nullptr && find_limits(device, &limits)) return found->fits(launch, limits, why);
  if (why != nullptr) *why = found == nullptr ? "no such kernel" : "the device cannot be used";
  return false;
}

AttnGeometry attention_geometry(int32_t device, AttnKernel kernel, int32_t k_dim, int32_t v_dim) {
  const AttentionKernel* const found = find_kernel(kernel);
  DeviceLimits limits;
  return found != nullptr && find_limits(device, &limits) ? found->geometry(limits, k_dim, v_dim)
                                                          : AttnGeometry{};
}

Result attention(int32_t device, AttnKernel kernel, const AttnLaunch& launch, Stream stream,
                 Failure* failure) {
  const AttentionKernel* const found = find_kernel(kernel);
  if (found == nullptr) {
    return refuse(Result::kUnsupported, cudaErrorInvalidValue, failure,
                  "there is no attention kernel %d", static_cast<int>(kernel));
  }
  return launch_on(device, found->name, failure,
                   [&] { return found->launch(launch, native(stream)); });
}

// ---- The other launches

Result step(int32_t device, const StepState& state, const StepPages& pages, Stream stream,
            Failure* failure) {
  return launch_on(device, "step", failure,
                   [&] { return cuda::step(state, pages, native(stream)); });
}

Result batch_metadata(int32_t device, const BatchMetadataParams& params, int32_t max_sequences,
                      Stream stream, Failure* failure) {
  return launch_on(device, "batch_metadata", failure,
                   [&] { return cuda::batch_metadata(params, max_sequences, native(stream)); });
}

Result state_metadata(int32_t device, const StateMetadataParams& params, int32_t max_sequences,
                      Stream stream, Failure* failure) {
  return launch_on(device, "state_metadata", failure,
                   [&] { return cuda::state_metadata(params, max_sequences, native(stream)); });
}

Result cos_sin(int32_t device, const CosSinParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "cos_sin", failure,
                   [&] { return cuda::cos_sin(params, native(stream)); });
}

void schedule_bytes(const ScheduleShape& shape, const ScheduleLimits& limits, ScheduleBytes* out) {
  *out = cuda::schedule_bytes(shape, limits);
}

Result schedule(int32_t device, const ScheduleLaunch& launch, Stream stream, Failure* failure) {
  return launch_on(device, "schedule", failure,
                   [&] { return cuda::schedule(launch, native(stream)); });
}

Result reduce_splits(int32_t device, const AttnLaunch& launch, Stream stream, Failure* failure) {
  return launch_on(device, "reduce_splits", failure,
                   [&] { return cuda::reduce_splits(launch, native(stream)); });
}

Result append(int32_t device, const AppendLaunch& launch, Stream stream, Failure* failure) {
  return launch_on(device, "append", failure, [&] { return cuda::append(launch, native(stream)); });
}

Result gather(int32_t device, const kernels::GatherParams& params, const RowStorage& storage,
              int64_t key_begin, int64_t key_end, Stream stream, Failure* failure) {
  return launch_on(device, "gather", failure, [&] {
    return cuda::gather(params, storage, key_begin, key_end, native(stream));
  });
}

Result merge_states(int32_t device, const kernels::MergeParams& params, int64_t num_rows,
                    const int32_t* num_rows_at, Stream stream, Failure* failure) {
  return launch_on(device, "merge_states", failure, [&] {
    return cuda::merge_states(params, num_rows, num_rows_at, native(stream));
  });
}

Result copy_pages(int32_t device, const PageCopyParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "copy_pages", failure,
                   [&] { return cuda::copy_pages(params, native(stream)); });
}

Result move_rows(int32_t device, const MoveParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "move_rows", failure,
                   [&] { return cuda::move_rows(params, native(stream)); });
}

Result convert(int32_t device, const ConvertParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "convert", failure,
                   [&] { return cuda::convert(params, native(stream)); });
}

Result linear(int32_t device, const kernels::LinearParams& params, int32_t max_sequences,
              const int32_t* num_sequences_at, int32_t num_long, Stream stream, Failure* failure) {
  return launch_on(device, "linear", failure, [&] {
    return cuda::linear(params, max_sequences, num_sequences_at, num_long, native(stream));
  });
}

Result conv(int32_t device, const kernels::ConvParams& params, int32_t max_sequences,
            const int32_t* num_sequences_at, int64_t num_rows, Stream stream, Failure* failure) {
  return launch_on(device, "conv", failure, [&] {
    return cuda::conv(params, max_sequences, num_sequences_at, num_rows, native(stream));
  });
}

Result op_sequences(int32_t device, const OpSequencesParams& params, Stream stream,
                    Failure* failure) {
  return launch_on(device, "op_sequences", failure,
                   [&] { return cuda::op_sequences(params, native(stream)); });
}

Result op_states(int32_t device, const OpStatesParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "op_states", failure,
                   [&] { return cuda::op_states(params, native(stream)); });
}

Result op_pairs(int32_t device, const OpPairsParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "op_pairs", failure,
                   [&] { return cuda::op_pairs(params, native(stream)); });
}

Result op_slots(int32_t device, const OpSlotsParams& params, Stream stream, Failure* failure) {
  return launch_on(device, "op_slots", failure,
                   [&] { return cuda::op_slots(params, native(stream)); });
}

Result op_constants(int32_t device, const OpConstantsParams& params, Stream stream,
                    Failure* failure) {
  return launch_on(device, "op_constants", failure,
                   [&] { return cuda::op_constants(params, native(stream)); });
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
    .batch_metadata = batch_metadata,
    .state_metadata = state_metadata,
    .cos_sin = cos_sin,
    .schedule_bytes = schedule_bytes,
    .schedule = schedule,
    .attention_fits = attention_fits,
    .attention_geometry = attention_geometry,
    .attention = attention,
    .reduce_splits = reduce_splits,
    .append = append,
    .gather = gather,
    .merge_states = merge_states,
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
