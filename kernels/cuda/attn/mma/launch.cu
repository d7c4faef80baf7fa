// What the kernel supports, its tile shape and grid, and the choice of the instantiation.
#include "kernels/cuda/attn/mma/item.cuh"
#include "kernels/cuda/launches.h"

namespace kvc::cuda {
namespace {

using attn_mma::Kv;
using attn_mma::Shared;

// Returns false if no instantiation reads such rows.
bool stored_type(const AttnLaunch& launch, Kv* out) {
  const RowStorage &k = launch.k_storage, &v = launch.v_storage;
  const bool quantized = k.quant != Quant::kNone;
  if (quantized != (v.quant != Quant::kNone)) return false;
  if (!quantized) {
    if (launch.params.k.dtype != launch.params.v.dtype ||
        launch.params.k.dtype == kernels::DType::kF32)
      return false;
    *out = launch.params.k.dtype == kernels::DType::kBF16 ? Kv::kBF16 : Kv::kF16;
    return true;
  }
  if (k.type != v.type || k.quant == Quant::kBlock16 || v.quant == Quant::kBlock16) return false;
  switch (k.type) {
    case Stored::kE4M3: *out = Kv::kE4M3; return true;
    case Stored::kE5M2: *out = Kv::kE5M2; return true;
    case Stored::kInt8: *out = Kv::kInt8; return true;
    default: return false;
  }
}

bool in_sixteens(const kernels::PagedRows& rows, int64_t row_bytes) {
  const auto base = static_cast<int64_t>(reinterpret_cast<uintptr_t>(rows.base));
  return ((base | rows.page_stride | rows.head_stride | rows.token_stride | row_bytes) & 15) == 0;
}

// Shared memory of the instantiation that runs on a device with at most `max_bytes` bytes per CTA.
template <int Rows>
int32_t shared_bytes_of(Kv stored, int dims, int32_t max_bytes) {
  const auto bytes = []<typename C>(C) { return Shared<C>::kBytes; };
  switch (stored) {
    case Kv::kBF16: return attn_mma::with_config<Kv::kBF16, Rows>(dims, max_bytes, bytes);
    case Kv::kF16: return attn_mma::with_config<Kv::kF16, Rows>(dims, max_bytes, bytes);
    case Kv::kE4M3: return attn_mma::with_config<Kv::kE4M3, Rows>(dims, max_bytes, bytes);
    case Kv::kE5M2: return attn_mma::with_config<Kv::kE5M2, Rows>(dims, max_bytes, bytes);
    case Kv::kInt8: return attn_mma::with_config<Kv::kInt8, Rows>(dims, max_bytes, bytes);
  }
  return INT32_MAX;
}

// The reason why the kernel does not support the launch, or null.
const char* misfit(const AttnLaunch& launch, int arch, int32_t shared_bytes, int32_t tile_rows) {
  const kernels::AttnParams& params = launch.params;
  if (arch < 80) return "mma.sync of bf16 and cp.async need compute capability 8.0";
  if (launch.schedule.tile_rows != tile_rows) return "the schedule was made for another tile";
  Kv stored;
  if (!stored_type(launch, &stored))
    return "K and V must both be bf16, f16, e4m3, e5m2 or int8 with scales per tensor or per row";
  const int dims = attn_mma::dims_index(params.k_dim, params.v_dim);
  if (dims < 0) return "rows of more than 256 elements";
  const int32_t needed = tile_rows == 16 ? shared_bytes_of<16>(stored, dims, shared_bytes)
                                         : shared_bytes_of<64>(stored, dims, shared_bytes);
  if (needed > shared_bytes)
    return "the device has too little shared memory for rows of this length";
  if (params.k_rotations[0].rotary_dim != 0 || params.k_rotations[1].rotary_dim != 0)
    return "K is rotated while it is read";
  const int64_t element = stored == Kv::kBF16 || stored == Kv::kF16 ? 2 : 1;
  if (!in_sixteens(params.k, params.k_dim * element) ||
      !in_sixteens(params.v, params.v_dim * element))
    return "K and V rows must begin and end at multiples of 16 bytes";
  const auto q = static_cast<int64_t>(reinterpret_cast<uintptr_t>(params.q.base));
  if (((q | params.q.token_stride | params.q.head_stride) & 15) != 0)
    return "rows of Q must begin at multiples of 16 bytes";
  if (params.q.dtype == kernels::DType::kF32 ? false : params.k_dim % 8 != 0)
    return "rows of Q must end at multiples of 16 bytes";
  return nullptr;
}

bool fits(const AttnLaunch& launch, const DeviceLimits& device, int32_t tile_rows,
          const char** why) {
  const char* reason = misfit(launch, device.arch, device.shared_bytes, tile_rows);
  if (why != nullptr && reason != nullptr) *why = reason;
  return reason == nullptr;
}

// item_cost covers a prologue of two memory round trips and an epilogue, in units of 64 keys. These
// are 32 KiB at 128 dims: about 1,700 clocks of an SM's share of the bandwidth with 16 rows, and as
// long in the tensor cores with 64. Not yet measured.
AttnGeometry geometry(int32_t tile_rows, int num_sms, int32_t k_dim, int32_t v_dim) {
  const int dims = attn_mma::dims_index(k_dim, v_dim);
  const int ctas = dims < 0 ? 1 : attn_mma::ctas_per_sm(attn_mma::kDims[dims].v);
  return {tile_rows, 64, num_sms * ctas, 2};
}

cudaError_t run(const AttnLaunch& launch, int32_t tile_rows, cudaStream_t stream) {
  Kv stored;
  const int dims = attn_mma::dims_index(launch.params.k_dim, launch.params.v_dim);
  if (!stored_type(launch, &stored) || dims < 0) return cudaErrorInvalidValue;
  switch (stored) {
    case Kv::kBF16: return attn_mma::launch_mma<Kv::kBF16>(tile_rows, dims, launch, stream);
    case Kv::kF16: return attn_mma::launch_mma<Kv::kF16>(tile_rows, dims, launch, stream);
    case Kv::kE4M3: return attn_mma::launch_mma<Kv::kE4M3>(tile_rows, dims, launch, stream);
    case Kv::kE5M2: return attn_mma::launch_mma<Kv::kE5M2>(tile_rows, dims, launch, stream);
    case Kv::kInt8: return attn_mma::launch_mma<Kv::kInt8>(tile_rows, dims, launch, stream);
  }
  return cudaErrorInvalidValue;
}

}  // namespace

bool attn_mma16_fits(const AttnLaunch& launch, const DeviceLimits& device, const char** why) {
  return fits(launch, device, 16, why);
}
bool attn_mma64_fits(const AttnLaunch& launch, const DeviceLimits& device, const char** why) {
  return fits(launch, device, 64, why);
}

AttnGeometry attn_mma16_geometry(const DeviceLimits& device, int32_t k_dim, int32_t v_dim) {
  return geometry(16, device.num_sms, k_dim, v_dim);
}
AttnGeometry attn_mma64_geometry(const DeviceLimits& device, int32_t k_dim, int32_t v_dim) {
  return geometry(64, device.num_sms, k_dim, v_dim);
}

cudaError_t attn_mma16(const AttnLaunch& launch, cudaStream_t stream) {
  return run(launch, 16, stream);
}
cudaError_t attn_mma64(const AttnLaunch& launch, cudaStream_t stream) {
  return run(launch, 64, stream);
}

}  // namespace kvc::cuda
