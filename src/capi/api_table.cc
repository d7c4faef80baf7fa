// kvcache_api.h: the functions of kvcache.h as a table, for programs that load the library at run
// time.
#include <cstddef>

#include "kvcache_api.h"

namespace {

// Positional on purpose: a function of the wrong type in a slot does not compile.
constexpr kvc_api kTable = {
    sizeof(kvc_api),
    KVC_ABI_VERSION,
    0,
#include "src/capi/api_table.inc"
};

// Slots never move: clients of every released header find their functions where they were.
constexpr size_t slot(size_t offset) {
  return (offset - offsetof(kvc_api, get_abi_version)) / sizeof(void (*)());
}
static_assert(slot(offsetof(kvc_api, export_seq_pages)) == 50);
static_assert(slot(offsetof(kvc_api, fence_destroy)) == 98);
static_assert(slot(offsetof(kvc_api, pages_import)) == 106);
static_assert(slot(offsetof(kvc_api, tier_stats_get)) == 111);
static_assert(slot(offsetof(kvc_api, op_dequantize)) == 113);
static_assert(slot(offsetof(kvc_api, cache_trim)) == 114);
static_assert(slot(offsetof(kvc_api, state_checkpoint_release)) == 116);
static_assert(slot(offsetof(kvc_api, config_from_hf)) == 132, "end of 0.1");
static_assert(sizeof(kvc_api) == offsetof(kvc_api, config_from_hf) + sizeof(void (*)()));

}  // namespace

const kvc_api* kvc_get_api(uint32_t abi_version) noexcept {
  const uint32_t major = abi_version >> 16;
  const uint32_t minor = abi_version & 0xffff;
  return major == KVC_ABI_VERSION_MAJOR && minor <= KVC_ABI_VERSION_MINOR ? &kTable : nullptr;
}
