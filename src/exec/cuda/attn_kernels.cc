#include "src/exec/cuda/attn_kernels.h"

#include <numeric>
#include <vector>

#include "src/base/error.h"
#include "src/exec/launch.h"

namespace kvc {

void NewKeys::secure(CudaForward& open, const AttnCall& call, const AttnTensors& tensors,
                     kernels::AttnParams* params) {
  const int64_t rows = open.step().max_rows();
  const NewKeyBytes bytes = new_key_bytes(call.layer);
  const bool has_v = tensors.v.base != nullptr;
  k_.ensure(rows * bytes.k_token, open.stream());
  if (has_v) v_.ensure(rows * bytes.v_token, open.stream());
  place_new_keys(call.layer, rows, k_.data(), has_v ? v_.data() : nullptr, params);
  if (open.is_captured()) slots_.ensure(slots_.bytes(), open.stream());
  if (num_slots_ >= rows) return;
  if (open.is_captured()) {
    fail(KVC_E_INVALID_STATE,
         "kvc_attn_self of up to %lld tokens: before the capture, run a forward with it",
         static_cast<long long>(rows));
  }
  std::vector<int64_t> slots(static_cast<size_t>(rows));
  std::iota(slots.begin(), slots.end(), 0);
  const auto size = static_cast<int64_t>(slots.size() * sizeof(int64_t));
  slots_.ensure(size, open.stream());
  const Gpu& device = slots_.device();
  device.copy(slots_.data(), open.uploads().put(slots.data(), size, open.stream()), size,
              open.stream());
  num_slots_ = rows;
}

namespace {

using cuda::AttnKernel;
using cuda::AttnLaunch;

// A kernel is asked about the launch as it would get it: cut into tiles of its own.
bool fits(const Gpu& device, AttnKernel kernel, AttnLaunch launch) {
  launch.schedule.tile_rows = attn_geometry(device, kernel, launch.params).tile_rows;
  return device.table->attention_fits(device.id, kernel, launch, nullptr);
}

constexpr uint32_t bit(AttnKernel kernel) { return 1u << static_cast<uint32_t>(kernel); }

}  // namespace

cuda::AttnGeometry attn_geometry(const Gpu& device, AttnKernel kernel,
                                 const kernels::AttnParams& params) {
  return device.table->attention_geometry(device.id, kernel, params.k_dim, params.v_dim);
}

AttnKernels find_attn_kernels(const Gpu& device, const AttnLaunch& launch) {
  if (fits(device, AttnKernel::kLatent, launch))
    return {AttnKernel::kLatent, AttnKernel::kLatent, bit(AttnKernel::kLatent)};
  AttnKernels found{AttnKernel::kSimt, AttnKernel::kSimt, 0};
  if (fits(device, AttnKernel::kMma16, launch)) found.small = AttnKernel::kMma16;
  for (const AttnKernel kernel : {AttnKernel::kMma64, AttnKernel::kWgmma}) {
    if (!fits(device, kernel, launch)) continue;
    found.large = kernel;
    found.all |= bit(kernel);
  }
  found.all |= bit(found.small) | bit(found.large);
  return found;
}

AttnKernel invariant_attn_kernel(const Gpu& device, const AttnLaunch& launch) {
  return fits(device, AttnKernel::kMma64, launch) ? AttnKernel::kMma64 : AttnKernel::kSimt;
}

cuda::ScheduleShape schedule_shape(const Gpu& device, AttnKernel kernel, const RowRange& rows,
                                   const kernels::AttnParams& params, bool splits_sinks,
                                   int32_t fixed_keys) {
  return {.num_kv_heads = params.num_kv_heads,
          .group_size = params.num_q_heads / params.num_kv_heads,
          .causal = params.causal,
          .split_sinks = splits_sinks ? 1 : 0,
          .fixed_keys = fixed_keys,
          .min_rows = rows.min_rows,
          .max_rows = rows.max_rows,
          .geometry = attn_geometry(device, kernel, params)};
}

}  // namespace kvc
