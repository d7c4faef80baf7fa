/* Generated from include/kvcache.h by `make abi`. Do not edit. */
#ifndef KVCACHE_GO_SHIM_ABI_H_
#define KVCACHE_GO_SHIM_ABI_H_

#include "shim.h"

/* clang-format off */
static inline uint32_t shim_abi_version(uintptr_t api) {
  return SHIM_API(api)->get_abi_version();
}
static inline const char *shim_version_string(uintptr_t api) {
  return SHIM_API(api)->version_string();
}
static inline const char *shim_status_name(uintptr_t api, int32_t status) {
  return SHIM_API(api)->status_name(status);
}
static inline int32_t shim_has_feature(uintptr_t api, const char *name) {
  return SHIM_API(api)->has_feature(name);
}
static inline kvc_error *shim_device_query(uintptr_t api, DLDevice device, kvc_device_caps *out) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  const kvc_status status = SHIM_API(api)->device_query(device, out, &err);
  return shim_result(status, &err);
}
static inline void shim_plan_destroy(uintptr_t api, uintptr_t plan) {
  SHIM_API(api)->plan_destroy((kvc_plan *)plan);
}
static inline kvc_error *shim_plan_info_get(uintptr_t api, uintptr_t plan, kvc_plan_info *out) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  const kvc_status status = SHIM_API(api)->plan_info_get((kvc_plan *)plan, out, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_plan_layer_get(uintptr_t api, uintptr_t plan, int32_t layer,
                                             kvc_layer_info *out) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  const kvc_status status = SHIM_API(api)->plan_layer_get((kvc_plan *)plan, layer, out, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_plan_pages_for(uintptr_t api, uintptr_t plan, uint64_t byte_budget,
                                             int64_t *out_pages) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->plan_pages_for((kvc_plan *)plan, byte_budget, out_pages,
                                                          &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_plan_max_tokens(uintptr_t api, uintptr_t plan, uint64_t byte_budget,
                                              int64_t *out_tokens) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->plan_max_tokens((kvc_plan *)plan, byte_budget,
                                                           out_tokens, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_plan_request_pages(uintptr_t api, uintptr_t plan, int64_t num_tokens,
                                                 int64_t *out_pages) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->plan_request_pages((kvc_plan *)plan, num_tokens,
                                                              out_pages, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_cache_create(uintptr_t api, uintptr_t plan, uintptr_t *out) {
  SHIM_ERROR;
  kvc_cache *out_made = NULL;
  const kvc_status status = SHIM_API(api)->cache_create((kvc_plan *)plan, &out_made, &err);
  *out = (uintptr_t)out_made;
  return shim_result(status, &err);
}
static inline void shim_cache_destroy(uintptr_t api, uintptr_t cache) {
  SHIM_API(api)->cache_destroy((kvc_cache *)cache);
}
static inline kvc_error *shim_cache_clear(uintptr_t api, uintptr_t cache) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->cache_clear((kvc_cache *)cache, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_cache_resize(uintptr_t api, uintptr_t cache, int64_t num_pages) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->cache_resize((kvc_cache *)cache, num_pages, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_cache_stats_get(uintptr_t api, uintptr_t cache, kvc_stats *out) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  const kvc_status status = SHIM_API(api)->cache_stats_get((kvc_cache *)cache, out, &err);
  return shim_result(status, &err);
}
static inline int64_t shim_cache_available_pages(uintptr_t api, uintptr_t cache) {
  return SHIM_API(api)->cache_available_pages((kvc_cache *)cache);
}
static inline int64_t shim_cache_total_length(uintptr_t api, uintptr_t cache) {
  return SHIM_API(api)->cache_total_length((kvc_cache *)cache);
}
static inline int32_t shim_cache_is_empty(uintptr_t api, uintptr_t cache) {
  return SHIM_API(api)->cache_is_empty((kvc_cache *)cache);
}
static inline kvc_error *shim_cache_check(uintptr_t api, uintptr_t cache) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->cache_check((kvc_cache *)cache, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_add(uintptr_t api, uintptr_t cache, int64_t seq) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->seq_add((kvc_cache *)cache, seq, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_remove(uintptr_t api, uintptr_t cache, int64_t seq) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->seq_remove((kvc_cache *)cache, seq, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_fork(uintptr_t api, uintptr_t cache, int64_t parent,
                                       int64_t child, int64_t pos) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->seq_fork((kvc_cache *)cache, parent, child, pos, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_pop(uintptr_t api, uintptr_t cache, int64_t seq, int64_t n) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->seq_pop((kvc_cache *)cache, seq, n, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_length(uintptr_t api, uintptr_t cache, int64_t seq,
                                         int64_t *out_length) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->seq_length((kvc_cache *)cache, seq, out_length, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_info_get(uintptr_t api, uintptr_t cache, int64_t seq,
                                           kvc_seq_info *out) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  const kvc_status status = SHIM_API(api)->seq_info_get((kvc_cache *)cache, seq, out, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_list(uintptr_t api, uintptr_t cache, int64_t *ids,
                                       size_t *count) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->seq_list((kvc_cache *)cache, ids, count, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_can_append(uintptr_t api, uintptr_t cache, size_t n,
                                             const int64_t *seqs, const int64_t *lengths,
                                             int64_t *out_missing_pages) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->seq_can_append((kvc_cache *)cache, n, seqs, lengths,
                                                          out_missing_pages, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_can(uintptr_t api, uintptr_t cache, int64_t seq, int32_t op,
                                      int64_t pos, int64_t *out_nearest) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->seq_can((kvc_cache *)cache, seq, op, pos, out_nearest,
                                                   &err);
  return shim_result(status, &err);
}
static inline int64_t shim_forward_num_tokens(uintptr_t api, uintptr_t fwd) {
  return SHIM_API(api)->forward_num_tokens((kvc_forward *)fwd);
}
static inline kvc_error *shim_forward_positions(uintptr_t api, uintptr_t fwd, SHIM_TENSOR(out)) {
  SHIM_ERROR;
  SHIM_DL(out);
  const kvc_status status = SHIM_API(api)->forward_positions((kvc_forward *)fwd, out_dl, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_forward_end(uintptr_t api, uintptr_t fwd) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->forward_end((kvc_forward *)fwd, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_forward_abort(uintptr_t api, uintptr_t fwd) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->forward_abort((kvc_forward *)fwd, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_attn_merge(uintptr_t api, uintptr_t fwd, SHIM_TENSOR(out),
                                         SHIM_TENSOR(lse), SHIM_TENSOR(other_out),
                                         SHIM_TENSOR(other_lse)) {
  SHIM_ERROR;
  SHIM_DL(out);
  SHIM_DL(lse);
  SHIM_DL(other_out);
  SHIM_DL(other_lse);
  const kvc_status status = SHIM_API(api)->attn_merge((kvc_forward *)fwd, out_dl, lse_dl,
                                                      other_out_dl, other_lse_dl, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_kv_append(uintptr_t api, uintptr_t fwd, int32_t layer, SHIM_TENSOR(k),
                                        SHIM_TENSOR(v)) {
  SHIM_ERROR;
  SHIM_DL(k);
  SHIM_DL(v);
  const kvc_status status = SHIM_API(api)->kv_append((kvc_forward *)fwd, layer, k_dl, v_dl, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_kv_gather(uintptr_t api, uintptr_t fwd, int32_t layer, int64_t seq,
                                        SHIM_TENSOR(k_out), SHIM_TENSOR(v_out)) {
  SHIM_ERROR;
  SHIM_DL(k_out);
  SHIM_DL(v_out);
  const kvc_status status = SHIM_API(api)->kv_gather((kvc_forward *)fwd, layer, seq, k_out_dl,
                                                     v_out_dl, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_export_pool(uintptr_t api, uintptr_t cache, int32_t layer,
                                          int32_t kind, uintptr_t *out) {
  SHIM_ERROR;
  DLManagedTensorVersioned *out_made = NULL;
  const kvc_status status = SHIM_API(api)->export_pool((kvc_cache *)cache, layer, kind, &out_made,
                                                       &err);
  *out = (uintptr_t)out_made;
  return shim_result(status, &err);
}
static inline kvc_error *shim_export_page_table(uintptr_t api, uintptr_t fwd, int32_t group,
                                                int32_t kind, uintptr_t *out) {
  SHIM_ERROR;
  DLManagedTensorVersioned *out_made = NULL;
  const kvc_status status = SHIM_API(api)->export_page_table((kvc_forward *)fwd, group, kind,
                                                             &out_made, &err);
  *out = (uintptr_t)out_made;
  return shim_result(status, &err);
}
static inline kvc_error *shim_export_seq_pages(uintptr_t api, uintptr_t cache, int64_t seq,
                                               int32_t group, uintptr_t *out) {
  SHIM_ERROR;
  DLManagedTensorVersioned *out_made = NULL;
  const kvc_status status = SHIM_API(api)->export_seq_pages((kvc_cache *)cache, seq, group,
                                                            &out_made, &err);
  *out = (uintptr_t)out_made;
  return shim_result(status, &err);
}
static inline kvc_error *shim_plan_group_get(uintptr_t api, uintptr_t plan, int32_t group,
                                             kvc_group_info *out) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  const kvc_status status = SHIM_API(api)->plan_group_get((kvc_plan *)plan, group, out, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_shift(uintptr_t api, uintptr_t cache, int64_t seq, int64_t begin,
                                        int64_t end, int64_t delta) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->seq_shift((kvc_cache *)cache, seq, begin, end, delta,
                                                     &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_set_window(uintptr_t api, uintptr_t cache, int64_t seq,
                                             int64_t window, int64_t sink) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->seq_set_window((kvc_cache *)cache, seq, window, sink,
                                                          &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_tree_commit(uintptr_t api, uintptr_t cache, size_t n,
                                          const int64_t *seqs, const int32_t *leaves,
                                          uintptr_t stream) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->tree_commit((kvc_cache *)cache, n, seqs, leaves,
                                                       (kvc_stream)stream, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_mla_append(uintptr_t api, uintptr_t fwd, int32_t layer,
                                         SHIM_TENSOR(latent)) {
  SHIM_ERROR;
  SHIM_DL(latent);
  const kvc_status status = SHIM_API(api)->mla_append((kvc_forward *)fwd, layer, latent_dl, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_state_checkpoint(uintptr_t api, uintptr_t cache, int64_t seq) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->state_checkpoint((kvc_cache *)cache, seq, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_state_conv(uintptr_t api, uintptr_t fwd, int32_t layer, int32_t state,
                                         SHIM_TENSOR(x), SHIM_TENSOR(weight), SHIM_TENSOR(bias),
                                         int32_t activation, SHIM_TENSOR(out)) {
  SHIM_ERROR;
  SHIM_DL(x);
  SHIM_DL(weight);
  SHIM_DL(bias);
  SHIM_DL(out);
  const kvc_status status = SHIM_API(api)->state_conv((kvc_forward *)fwd, layer, state, x_dl,
                                                      weight_dl, bias_dl, activation, out_dl, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_config_from_hf_json(uintptr_t api, const char *json,
                                                  kvc_config *config, kvc_layer *layers,
                                                  size_t *n) {
  SHIM_ERROR;
  config->struct_size = sizeof *config;
  layers->struct_size = sizeof *layers;
  const kvc_status status = SHIM_API(api)->config_from_hf_json(json, config, layers, n, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_prefix_evict(uintptr_t api, uintptr_t cache, int64_t pages,
                                           int64_t *out_freed) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->prefix_evict((kvc_cache *)cache, pages, out_freed, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_prefix_reset(uintptr_t api, uintptr_t cache) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->prefix_reset((kvc_cache *)cache, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_prefix_quota_set(uintptr_t api, uintptr_t cache, const uint8_t *salt,
                                               size_t salt_size, uint64_t max_bytes) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->prefix_quota_set((kvc_cache *)cache, salt, salt_size,
                                                            max_bytes, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_fence_query(uintptr_t api, uintptr_t fence, int32_t *out_done) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->fence_query((kvc_fence *)fence, out_done, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_fence_wait(uintptr_t api, uintptr_t fence, int64_t timeout_ns) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->fence_wait((kvc_fence *)fence, timeout_ns, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_fence_wait_on_stream(uintptr_t api, uintptr_t fence,
                                                   uintptr_t stream) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->fence_wait_on_stream((kvc_fence *)fence,
                                                                (kvc_stream)stream, &err);
  return shim_result(status, &err);
}
static inline void shim_fence_destroy(uintptr_t api, uintptr_t fence) {
  SHIM_API(api)->fence_destroy((kvc_fence *)fence);
}
static inline kvc_error *shim_module_path_set(uintptr_t api, const char *path) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->module_path_set(path, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_reserve(uintptr_t api, uintptr_t cache, int64_t seq, int64_t n) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->seq_reserve((kvc_cache *)cache, seq, n, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_tier_attach_file(uintptr_t api, uintptr_t cache, const char *path,
                                               uint64_t byte_limit) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->tier_attach_file((kvc_cache *)cache, path, byte_limit,
                                                            &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_tier_detach(uintptr_t api, uintptr_t cache, int32_t tier) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->tier_detach((kvc_cache *)cache, tier, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_tier_flush(uintptr_t api, uintptr_t cache, int64_t timeout_ms) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->tier_flush((kvc_cache *)cache, timeout_ms, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_tier_stats_get(uintptr_t api, uintptr_t cache, int32_t tier,
                                             kvc_tier_stats *out) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  const kvc_status status = SHIM_API(api)->tier_stats_get((kvc_cache *)cache, tier, out, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_cache_trim(uintptr_t api, uintptr_t cache, uint64_t *out_released) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->cache_trim((kvc_cache *)cache, out_released, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_seq_positions(uintptr_t api, uintptr_t cache, int64_t seq, int32_t op,
                                            int64_t pos, int64_t *out_below, int64_t *out_above) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->seq_positions((kvc_cache *)cache, seq, op, pos,
                                                         out_below, out_above, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_state_checkpoint_release(uintptr_t api, uintptr_t cache, int64_t seq,
                                                       int64_t pos) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->state_checkpoint_release((kvc_cache *)cache, seq, pos,
                                                                    &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_transport_address(uintptr_t api, uintptr_t transport, char *buf,
                                                size_t *len) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->transport_address((kvc_transport *)transport, buf, len,
                                                             &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_transport_fd(uintptr_t api, uintptr_t transport, int32_t *out_fd) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->transport_fd((kvc_transport *)transport, out_fd, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_transport_progress(uintptr_t api, uintptr_t transport,
                                                 int64_t timeout_ns) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->transport_progress((kvc_transport *)transport,
                                                              timeout_ns, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_transport_stats_get(uintptr_t api, uintptr_t transport,
                                                  kvc_transport_stats *out) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  const kvc_status status = SHIM_API(api)->transport_stats_get((kvc_transport *)transport, out,
                                                               &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_transport_close(uintptr_t api, uintptr_t transport,
                                              int64_t timeout_ns) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->transport_close((kvc_transport *)transport, timeout_ns,
                                                           &err);
  return shim_result(status, &err);
}
static inline void shim_transport_destroy(uintptr_t api, uintptr_t transport) {
  SHIM_API(api)->transport_destroy((kvc_transport *)transport);
}
static inline kvc_error *shim_transfer_ticket(uintptr_t api, uintptr_t transfer, uint8_t *buf,
                                              size_t *len) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->transfer_ticket((kvc_transfer *)transfer, buf, len,
                                                           &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_transfer_query(uintptr_t api, uintptr_t transfer,
                                             kvc_transfer_info *out) {
  SHIM_ERROR;
  out->struct_size = sizeof *out;
  const kvc_status status = SHIM_API(api)->transfer_query((kvc_transfer *)transfer, out, &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_transfer_wait(uintptr_t api, uintptr_t transfer, int64_t timeout_ns) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->transfer_wait((kvc_transfer *)transfer, timeout_ns,
                                                         &err);
  return shim_result(status, &err);
}
static inline kvc_error *shim_transfer_fence(uintptr_t api, uintptr_t transfer, uintptr_t *out) {
  SHIM_ERROR;
  kvc_fence *out_made = NULL;
  const kvc_status status = SHIM_API(api)->transfer_fence((kvc_transfer *)transfer, &out_made,
                                                          &err);
  *out = (uintptr_t)out_made;
  return shim_result(status, &err);
}
static inline kvc_error *shim_transfer_cancel(uintptr_t api, uintptr_t transfer) {
  SHIM_ERROR;
  const kvc_status status = SHIM_API(api)->transfer_cancel((kvc_transfer *)transfer, &err);
  return shim_result(status, &err);
}
static inline void shim_transfer_destroy(uintptr_t api, uintptr_t transfer) {
  SHIM_API(api)->transfer_destroy((kvc_transfer *)transfer);
}
/* clang-format on */

#endif /* KVCACHE_GO_SHIM_ABI_H_ */
