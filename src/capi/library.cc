// kvcache.h, section "Library".
#include <algorithm>
#include <cstdio>
#include <cstring>
#include <iterator>

#include "kernels/cpu/table.h"
#include "src/base/executor.h"
#include "src/base/log.h"
#include "src/base/memory.h"
#include "src/base/modules.h"
#include "src/capi/guard.h"
#include "src/capi/version.h"
#include "src/device/gpu.h"
#include "src/tiers/tier.h"
#include "src/transfer/module.h"

namespace {

using kvc::fail_with;
using kvc::guard;

constexpr const char* kStatusNames[] = {"KVC_OK",
                                        "KVC_E_INVALID_ARGUMENT",
                                        "KVC_E_INVALID_STATE",
                                        "KVC_E_NOT_FOUND",
                                        "KVC_E_ALREADY_EXISTS",
                                        "KVC_E_OUT_OF_RANGE",
                                        "KVC_E_SHAPE",
                                        "KVC_E_DTYPE",
                                        "KVC_E_DEVICE_MISMATCH",
                                        "KVC_E_UNSUPPORTED",
                                        "KVC_E_NO_PAGES",
                                        "KVC_E_NEVER_FITS",
                                        "KVC_E_NO_MEMORY",
                                        "KVC_E_BUSY",
                                        "KVC_E_BUFFER_TOO_SMALL",
                                        "KVC_E_VERSION",
                                        "KVC_E_CORRUPT",
                                        "KVC_E_IO",
                                        "KVC_E_TIMEOUT",
                                        "KVC_E_PEER",
                                        "KVC_E_CANCELLED",
                                        "KVC_E_DEVICE",
                                        "KVC_E_INTERNAL"};
static_assert(std::size(kStatusNames) == KVC_E_INTERNAL + 1);

constexpr const char* kFeatures[] = {"cpu",          "f32",
                                     "f16",          "bf16",
                                     "rope.half",    "rope.interleaved",
                                     "rope.on_read", "rope.llama3",
                                     "rope.yarn",    "rope.longrope",
                                     "rope.mrope",   "softcap",
                                     "sink_logits",  "alibi",
                                     "bias",         "spans",
                                     "window",       "window.sink",
                                     "chunk",        "tree",
                                     "mla",          "cross",
                                     "shared",       "v_is_k",
                                     "state",        "linear",
                                     "cascade",      "shift",
                                     "ops",          "storage.borrowed",
                                     "storage.none", "layout.page_first",
                                     "resize",       "export",
                                     "plan.quant",   "plan.hf_json",
                                     "prefix",       "prefix.tail",
                                     "prefix.quota", "prefix.host",
                                     "swap",         "events"};

kvc_device_caps cpu_caps() {
  kvc_device_caps caps{};
  caps.backend_present = 1;
  caps.arch = static_cast<int32_t>(kvc::kernels::cpu::detect());
  caps.num_cores = kvc::available_cores();
  caps.page_granularity = static_cast<int32_t>(kvc::largest_page_bytes());
  caps.dtypes = KVC_DTYPE_F32 | KVC_DTYPE_F16 | KVC_DTYPE_BF16 | KVC_DTYPE_F8_E4M3 |
                KVC_DTYPE_F8_E5M2 | KVC_DTYPE_INT8;
  for (kvc_cpu_isa isa = KVC_CPU_ISA_REFERENCE; isa <= KVC_CPU_ISA_AVX512_BF16; ++isa) {
    if (kvc::kernels::cpu::kernel_table(static_cast<kvc::kernels::cpu::Isa>(isa)) != nullptr)
      caps.isas |= uint64_t{1} << isa;
  }
  caps.memory_bytes = static_cast<uint64_t>(kvc::physical_memory_bytes());
  caps.memory_free_bytes = static_cast<uint64_t>(kvc::available_memory_bytes());
  std::snprintf(caps.name, sizeof caps.name, "cpu");
  return caps;
}

// All fields are zero without the back end or a driver.
kvc_device_caps cuda_caps(int32_t id) {
  kvc_device_caps caps{};
  const int32_t count = kvc::count_devices();
  if (count == 0) return caps;
  if (id < 0 || id >= count) {
    fail_with(KVC_E_OUT_OF_RANGE, id,
              "device.device_id = %d does not exist: there are %d CUDA devices", id, count);
  }
  const auto info = kvc::device_info(kvc::require_device(id));
  caps.backend_present = 1;
  caps.arch = info.arch;
  caps.num_cores = info.num_sms;
  caps.page_granularity = static_cast<int32_t>(info.granularity);
  caps.dtypes = KVC_DTYPE_F32 | KVC_DTYPE_F16 | KVC_DTYPE_BF16 | KVC_DTYPE_F8_E4M3 |
                KVC_DTYPE_F8_E5M2 | KVC_DTYPE_INT8 | KVC_DTYPE_INT4 | KVC_DTYPE_F4_E2M1;
  caps.memory_bytes = info.memory_bytes;
  caps.memory_free_bytes = info.memory_free_bytes;
  std::snprintf(caps.name, sizeof caps.name, "%s", info.name);
  return caps;
}

}  // namespace

uint32_t kvc_abi_version(void) noexcept { return KVC_ABI_VERSION; }

const char* kvc_version_string(void) noexcept { return KVC_LIBRARY_VERSION " cpu"; }

const char* kvc_status_name(kvc_status status) noexcept {
  if (status < 0 || static_cast<size_t>(status) >= std::size(kStatusNames)) return "KVC_E_UNKNOWN";
  return kStatusNames[status];
}

int32_t kvc_has_feature(const char* name) noexcept {
  if (name == nullptr) return 0;
  if (std::strcmp(name, "cuda") == 0) return kvc::find_backend(nullptr) != nullptr ? 1 : 0;
  if (std::strcmp(name, "tier.file") == 0)
    return kvc::find_tier_module(KVC_TIER_FILE, nullptr) != nullptr ? 1 : 0;
  if (std::strcmp(name, "tier.redis") == 0)
    return kvc::find_tier_module(KVC_TIER_REDIS, nullptr) != nullptr ? 1 : 0;
  if (std::strcmp(name, "transport.ucx") == 0) return kvc::has_ucx_engine() ? 1 : 0;
  const auto equals = [&](const char* feature) { return std::strcmp(feature, name) == 0; };
  return std::any_of(std::begin(kFeatures), std::end(kFeatures), equals) ? 1 : 0;
}

kvc_status kvc_module_path_set(const char* path, kvc_error* err) noexcept {
  return guard(err, [&] { kvc::set_module_path(path); });
}

kvc_status kvc_device_query(DLDevice device, kvc_device_caps* out, kvc_error* err) noexcept {
  return guard(err, [&] {
    kvc::check_output(out, "out");
    if (device.device_type == kDLCUDA) return kvc::write_struct(out, cuda_caps(device.device_id));
    if (device.device_type != kDLCPU)
      return kvc::write_struct(out, kvc_device_caps{});  // No back end: nothing is present.
    if (device.device_id != 0) {
      fail_with(KVC_E_OUT_OF_RANGE, device.device_id,
                "device.device_id = %d does not exist: the CPU is device 0", device.device_id);
    }
    kvc::write_struct(out, cpu_caps());
  });
}

kvc_status kvc_set_logger(kvc_log_fn fn, void* user, kvc_log_level min_level,
                          kvc_error* err) noexcept {
  return guard(err, [&] {
    if (min_level < KVC_LOG_DEBUG || min_level > KVC_LOG_ERROR) {
      fail_with(KVC_E_INVALID_ARGUMENT, min_level,
                "min_level = %d is not a kvc_log_level (%d to %d)", min_level, KVC_LOG_DEBUG,
                KVC_LOG_ERROR);
    }
    kvc::set_logger(fn, user, min_level);
  });
}
