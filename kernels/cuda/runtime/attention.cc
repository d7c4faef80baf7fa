#include "kernels/cuda/runtime/attention.h"

#include "kernels/cuda/attn_mma/launch.h"
#include "kernels/cuda/attn_simt/launch.h"
#include "kernels/cuda/runtime/launch_on.h"
#if !defined(KVC_CUDA_WITHOUT_HOPPER)
#include "kernels/cuda/attn_latent/launch.h"
#include "kernels/cuda/attn_wgmma/launch.h"
#endif

namespace kvc::cuda::runtime {
namespace {

struct Attention {
  const char* name;
  bool (*fits)(const DeviceFacts& facts, const AttnLaunch& launch, const char** why);
  AttnGeometry (*geometry)(const DeviceFacts& facts, int32_t k_dim, int32_t v_dim);
  cudaError_t (*launch)(const AttnLaunch& launch, cudaStream_t stream);
};

#if defined(KVC_CUDA_WITHOUT_HOPPER)

bool never_fits(const DeviceFacts&, const AttnLaunch&, const char** why) {
  if (why != nullptr) *why = "this build has no code for sm_90a";
  return false;
}
AttnGeometry no_geometry(const DeviceFacts&, int32_t, int32_t) { return {}; }
cudaError_t no_launch(const AttnLaunch&, cudaStream_t) { return cudaErrorNoKernelImageForDevice; }

constexpr Attention kWgmmaRow{"attn_wgmma", never_fits, no_geometry, no_launch};
constexpr Attention kLatentRow{"attn_latent", never_fits, no_geometry, no_launch};

#else

constexpr Attention kWgmmaRow{
    "attn_wgmma",
    [](const DeviceFacts& facts, const AttnLaunch& launch, const char** why) {
      return attn_wgmma_fits(launch, facts.arch, why);
    },
    [](const DeviceFacts& facts, int32_t k_dim, int32_t v_dim) {
      return attn_wgmma_geometry(facts.num_sms, k_dim, v_dim);
    },
    attn_wgmma};
constexpr Attention kLatentRow{
    "attn_latent",
    [](const DeviceFacts& facts, const AttnLaunch& launch, const char** why) {
      return attn_latent_fits(launch, facts.arch, why);
    },
    [](const DeviceFacts& facts, int32_t k_dim, int32_t v_dim) {
      return attn_latent_geometry(facts.num_sms, k_dim, v_dim);
    },
    attn_latent};

#endif

// By AttnKernel.
constexpr Attention kAttention[kNumAttnKernels] = {
    {"attn_simt",
     [](const DeviceFacts&, const AttnLaunch& launch, const char** why) {
       return attn_simt_fits(launch, why);
     },
     [](const DeviceFacts& facts, int32_t k_dim, int32_t v_dim) {
       return attn_simt_geometry(facts.arch, facts.num_sms, k_dim, v_dim);
     },
     attn_simt},
    {"attn_mma16",
     [](const DeviceFacts& facts, const AttnLaunch& launch, const char** why) {
       return attn_mma16_fits(launch, facts.arch, facts.shared_bytes, why);
     },
     [](const DeviceFacts& facts, int32_t k_dim, int32_t v_dim) {
       return attn_mma16_geometry(facts.num_sms, k_dim, v_dim);
     },
     attn_mma16},
    {"attn_mma64",
     [](const DeviceFacts& facts, const AttnLaunch& launch, const char** why) {
       return attn_mma64_fits(launch, facts.arch, facts.shared_bytes, why);
     },
     [](const DeviceFacts& facts, int32_t k_dim, int32_t v_dim) {
       return attn_mma64_geometry(facts.num_sms, k_dim, v_dim);
     },
     attn_mma64},
    kWgmmaRow,
    kLatentRow};

const Attention* row_of(AttnKernel kernel) {
  const auto index = static_cast<int32_t>(kernel);
  return index >= 0 && index < kNumAttnKernels ? &kAttention[index] : nullptr;
}

// Known since the core queried the device; CUDA is asked by a caller that did not.
const DeviceFacts* facts_of(int32_t device) {
  const DeviceFacts* facts = known_facts(device);
  if (facts != nullptr) return facts;
  const DeviceScope scope(device);
  Failure ignored;
  if (scope.error() != cudaSuccess || find_facts(device, &facts, &ignored) != Result::kOk)
    return nullptr;
  return facts;
}

}  // namespace

bool attention_fits(int32_t device, AttnKernel kernel, const AttnLaunch& launch, const char** why) {
  const Attention* const row = row_of(kernel);
  const DeviceFacts* const facts = facts_of(device);
  if (row != nullptr && facts != nullptr) return row->fits(*facts, launch, why);
  if (why != nullptr) *why = row == nullptr ? "no such kernel" : "the device cannot be used";
  return false;
}

AttnGeometry attention_geometry(int32_t device, AttnKernel kernel, int32_t k_dim, int32_t v_dim) {
  const Attention* const row = row_of(kernel);
  const DeviceFacts* const facts = facts_of(device);
  return row != nullptr && facts != nullptr ? row->geometry(*facts, k_dim, v_dim) : AttnGeometry{};
}

Result attention(int32_t device, AttnKernel kernel, const AttnLaunch& launch, Stream stream,
                 Failure* failure) {
  const Attention* const row = row_of(kernel);
  if (row == nullptr) {
    return refuse(Result::kUnsupported, cudaErrorInvalidValue, failure,
                  "there is no attention kernel %d", static_cast<int>(kernel));
  }
  return launch_on(device, row->name, failure, [&](const DeviceFacts&) {
    return row->launch(launch, static_cast<cudaStream_t>(stream));
  });
}

}  // namespace kvc::cuda::runtime
