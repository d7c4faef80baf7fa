// kvcache_api.h: the functions of kvcache.h as a table, for programs that load the library at run time.
#include <cstddef>

#include "kvcache_api.h"

namespace {

// Positional on purpose: a function of the wrong type in a slot does not compile.
constexpr kvc_api kTable = {
    sizeof(kvc_api),
    KVC_ABI_VERSION,
    0,
    kvc_abi_version,
    kvc_version_string,
    kvc_status_name,
    kvc_has_feature,
    kvc_device_query,
    kvc_set_logger,
    kvc_config_init,
    kvc_plan_create,
    kvc_plan_destroy,
    kvc_plan_info_get,
    kvc_plan_layer_get,
    kvc_plan_pages_for,
    kvc_plan_max_tokens,
    kvc_plan_request_pages,
    kvc_plan_describe,
    kvc_plan_to_json,
    kvc_cache_create,
    kvc_cache_destroy,
    kvc_cache_clear,
    kvc_cache_resize,
    kvc_cache_stats_get,
    kvc_cache_free_pages,
    kvc_cache_total_length,
    kvc_cache_is_empty,
    kvc_cache_check,
    kvc_seq_add,
    kvc_seq_remove,
    kvc_seq_fork,
    kvc_seq_pop,
    kvc_seq_length,
    kvc_seq_info_get,
    kvc_seq_list,
    kvc_seq_can_append,
    kvc_seq_can,
    kvc_forward_begin,
    kvc_forward_num_tokens,
    kvc_forward_positions,
    kvc_forward_end,
    kvc_forward_abort,
    kvc_attn,
    kvc_attn_fused_qkv,
    kvc_attn_self,
    kvc_attn_cached,
    kvc_attn_merge,
    kvc_kv_append,
    kvc_kv_gather,
    kvc_debug_get_kv,
    kvc_debug_set_kv,
    kvc_export_pool,
    kvc_export_page_table,
    kvc_export_seq_pages,
    kvc_plan_group_get,
    kvc_seq_shift,
    kvc_seq_set_window,
    kvc_tree_commit,
    kvc_mla_append,
    kvc_attn_cross,
    kvc_attn_shared_kv,
    kvc_state_get,
    kvc_state_set,
    kvc_state_checkpoint,
    kvc_attn_linear,
    kvc_state_conv,
    kvc_debug_get_mla,
    kvc_debug_set_mla,
    kvc_debug_get_layer,
    kvc_debug_set_layer,
    kvc_debug_get_state,
    kvc_debug_set_state,
    kvc_op_append,
    kvc_op_attention_paged,
    kvc_op_attention_ragged,
    kvc_op_mla_paged,
    kvc_op_merge,
    kvc_op_gather,
    kvc_op_copy_pages,
    kvc_op_rotate,
    kvc_op_linear_step,
    kvc_plan_min_pages,
    kvc_config_from_hf_json,
    kvc_prefix_hash,
    kvc_prefix_match,
    kvc_prefix_attach,
    kvc_prefix_insert,
    kvc_prefix_pin,
    kvc_prefix_unpin,
    kvc_prefix_evict,
    kvc_prefix_reset,
    kvc_prefix_quota_set,
    kvc_events_poll,
    kvc_events_snapshot,
    kvc_swap_out,
    kvc_swap_in,
    kvc_pages_swap,
    kvc_pages_copy,
    kvc_fence_query,
    kvc_fence_wait,
    kvc_fence_wait_on_stream,
    kvc_fence_destroy,
    kvc_module_path_set,
};

// Slots never move: clients of every released header find their functions where they were.
constexpr size_t slot(size_t offset) {
  return (offset - offsetof(kvc_api, get_abi_version)) / sizeof(void (*)());
}
static_assert(slot(offsetof(kvc_api, export_seq_pages)) == 50);
static_assert(slot(offsetof(kvc_api, fence_destroy)) == 98);
static_assert(slot(offsetof(kvc_api, module_path_set)) == 99, "end of 0.1");
static_assert(sizeof(kvc_api) == offsetof(kvc_api, module_path_set) + sizeof(void (*)()));

}  // namespace

const kvc_api* kvc_get_api(uint32_t abi_version) noexcept {
  const uint32_t major = abi_version >> 16;
  const uint32_t minor = abi_version & 0xffff;
  return major == KVC_ABI_VERSION_MAJOR && minor <= KVC_ABI_VERSION_MINOR ? &kTable : nullptr;
}
