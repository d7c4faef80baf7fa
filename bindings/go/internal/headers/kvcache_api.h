/* Generated from include/kvcache.h by `make abi`. Do not edit. */
/*
 * kvcache_api.h - the function table of libkvcache, for programs that load the library at run time.
 *
 * SPDX-License-Identifier: Apache-2.0
 *
 * A program that links libkvcache needs kvcache.h alone. One that loads the library does this:
 *
 *   void *library = dlopen("libkvcache.so.0", RTLD_NOW | RTLD_LOCAL);
 *   const kvc_api *(*get_api)(uint32_t) = dlsym(library, "kvc_get_api");    (in C: by memcpy)
 *   const kvc_api *api = get_api(KVC_ABI_VERSION);
 *   api->plan_create(&config, &plan, &err);
 *
 * 1. Check every step for NULL. kvc_get_api is NULL when the library is too old for this header.
 * 2. A slot is the function of kvcache.h without the prefix kvc_, with the same contract.
 *    kvc_abi_version is get_abi_version here, because a field has the other name.
 * 3. The table is append-only: a slot never moves, and new slots come at the end.
 * 4. Do not unload the library (dlclose) while tensors that it exported live.
 */
#ifndef KVCACHE_API_H_
#define KVCACHE_API_H_

#include "kvcache.h"

#ifdef __cplusplus
extern "C" {
#endif

/* Every function of kvcache.h, in the order in which they came into being. */
typedef struct kvc_api {
  size_t struct_size;   /* Bytes that the library has filled. */
  uint32_t abi_version; /* ABI of the library, as kvc_abi_version returns it. */
  uint32_t reserved;    /* 0 */
  /* Functions of version 0.1. */
  uint32_t (*get_abi_version)(void);
  const char *(*version_string)(void);
  const char *(*status_name)(kvc_status status);
  int32_t (*has_feature)(const char *KVC_NULLABLE name);
  kvc_status (*device_query)(DLDevice device, kvc_device_caps *out, kvc_error *KVC_NULLABLE err);
  kvc_status (*set_logger)(kvc_log_fn KVC_NULLABLE fn, void *KVC_NULLABLE user,
                           kvc_log_level min_level, kvc_error *KVC_NULLABLE err);
  kvc_status (*config_init)(kvc_config *config, size_t struct_size);
  kvc_status (*plan_create)(const kvc_config *config, kvc_plan **out, kvc_error *KVC_NULLABLE err);
  void (*plan_destroy)(kvc_plan *KVC_NULLABLE plan);
  kvc_status (*plan_info_get)(const kvc_plan *plan, kvc_plan_info *out,
                              kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_layer_get)(const kvc_plan *plan, int32_t layer, kvc_layer_info *out,
                               kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_pages_for)(const kvc_plan *plan, uint64_t byte_budget, int64_t *out_pages,
                               kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_max_tokens)(const kvc_plan *plan, uint64_t byte_budget, int64_t *out_tokens,
                                kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_request_pages)(const kvc_plan *plan, int64_t num_tokens, int64_t *out_pages,
                                   kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_describe)(const kvc_plan *plan, char *KVC_NULLABLE buf, size_t *len,
                              kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_to_json)(const kvc_plan *plan, char *KVC_NULLABLE buf, size_t *len,
                             kvc_error *KVC_NULLABLE err);
  kvc_status (*cache_create)(const kvc_plan *plan, kvc_cache **out, kvc_error *KVC_NULLABLE err);
  void (*cache_destroy)(kvc_cache *KVC_NULLABLE cache);
  kvc_status (*cache_clear)(kvc_cache *cache, kvc_error *KVC_NULLABLE err);
  kvc_status (*cache_resize)(kvc_cache *cache, int64_t num_pages, kvc_error *KVC_NULLABLE err);
  kvc_status (*cache_stats_get)(const kvc_cache *cache, kvc_stats *out,
                                kvc_error *KVC_NULLABLE err);
  int64_t (*cache_available_pages)(const kvc_cache *cache);
  int64_t (*cache_total_length)(const kvc_cache *cache);
  int32_t (*cache_is_empty)(const kvc_cache *cache);
  kvc_status (*cache_check)(const kvc_cache *cache, kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_add)(kvc_cache *cache, kvc_seq seq, kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_remove)(kvc_cache *cache, kvc_seq seq, kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_fork)(kvc_cache *cache, kvc_seq parent, kvc_seq child, int64_t pos,
                         kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_pop)(kvc_cache *cache, kvc_seq seq, int64_t n, kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_length)(const kvc_cache *cache, kvc_seq seq, int64_t *out_length,
                           kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_info_get)(const kvc_cache *cache, kvc_seq seq, kvc_seq_info *out,
                             kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_list)(const kvc_cache *cache, kvc_seq *KVC_NULLABLE ids, size_t *count,
                         kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_can_append)(const kvc_cache *cache, size_t n, const kvc_seq *seqs,
                               const int64_t *lengths, int64_t *out_missing_pages,
                               kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_can)(const kvc_cache *cache, kvc_seq seq, kvc_seq_op op, int64_t pos,
                        int64_t *out_nearest, kvc_error *KVC_NULLABLE err);
  kvc_status (*forward_begin)(kvc_cache *cache, const kvc_forward_desc *desc, kvc_forward **out,
                              kvc_error *KVC_NULLABLE err);
  int64_t (*forward_num_tokens)(const kvc_forward *fwd);
  kvc_status (*forward_positions)(kvc_forward *fwd, DLTensor *out, kvc_error *KVC_NULLABLE err);
  kvc_status (*forward_end)(kvc_forward *fwd, kvc_error *KVC_NULLABLE err);
  kvc_status (*forward_abort)(kvc_forward *KVC_NULLABLE fwd, kvc_error *KVC_NULLABLE err);
  kvc_status (*attn)(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt,
                     const DLTensor *q, const DLTensor *KVC_NULLABLE k,
                     const DLTensor *KVC_NULLABLE v, DLTensor *out, DLTensor *KVC_NULLABLE lse,
                     kvc_error *KVC_NULLABLE err);
  kvc_status (*attn_fused_qkv)(kvc_forward *fwd, int32_t layer,
                               const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *qkv,
                               DLTensor *out, kvc_error *KVC_NULLABLE err);
  kvc_status (*attn_self)(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt,
                          const DLTensor *q, const DLTensor *k, const DLTensor *KVC_NULLABLE v,
                          DLTensor *out, DLTensor *KVC_NULLABLE lse, kvc_error *KVC_NULLABLE err);
  kvc_status (*attn_cached)(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt,
                            const DLTensor *q, DLTensor *out, DLTensor *KVC_NULLABLE lse,
                            kvc_error *KVC_NULLABLE err);
  kvc_status (*attn_merge)(kvc_forward *fwd, DLTensor *out, DLTensor *lse,
                           const DLTensor *other_out, const DLTensor *other_lse,
                           kvc_error *KVC_NULLABLE err);
  kvc_status (*kv_append)(kvc_forward *fwd, int32_t layer, const DLTensor *k,
                          const DLTensor *KVC_NULLABLE v, kvc_error *KVC_NULLABLE err);
  kvc_status (*kv_gather)(kvc_forward *fwd, int32_t layer, kvc_seq seq,
                          DLTensor *KVC_NULLABLE k_out, DLTensor *KVC_NULLABLE v_out,
                          kvc_error *KVC_NULLABLE err);
  kvc_status (*debug_get_kv)(const kvc_cache *cache, kvc_seq seq, int64_t begin, int64_t end,
                             DLTensor *KVC_NULLABLE k, DLTensor *KVC_NULLABLE v,
                             kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err);
  kvc_status (*debug_set_kv)(kvc_cache *cache, kvc_seq seq, int64_t begin,
                             const DLTensor *KVC_NULLABLE k, const DLTensor *KVC_NULLABLE v,
                             kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err);
  kvc_status (*export_pool)(kvc_cache *cache, int32_t layer, kvc_pool_kind kind,
                            struct DLManagedTensorVersioned **out, kvc_error *KVC_NULLABLE err);
  kvc_status (*export_page_table)(kvc_forward *fwd, int32_t group, kvc_table_kind kind,
                                  struct DLManagedTensorVersioned **out,
                                  kvc_error *KVC_NULLABLE err);
  kvc_status (*export_seq_pages)(const kvc_cache *cache, kvc_seq seq, int32_t group,
                                 struct DLManagedTensorVersioned **out,
                                 kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_group_get)(const kvc_plan *plan, int32_t group, kvc_group_info *out,
                               kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_shift)(kvc_cache *cache, kvc_seq seq, int64_t begin, int64_t end, int64_t delta,
                          kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_set_window)(kvc_cache *cache, kvc_seq seq, int64_t window, int64_t sink,
                               kvc_error *KVC_NULLABLE err);
  kvc_status (*tree_commit)(kvc_cache *cache, size_t n, const kvc_seq *seqs, const int32_t *leaves,
                            kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err);
  kvc_status (*mla_append)(kvc_forward *fwd, int32_t layer, const DLTensor *latent,
                           kvc_error *KVC_NULLABLE err);
  kvc_status (*attn_cross)(kvc_forward *fwd, int32_t layer, const kvc_attn_opt *KVC_NULLABLE opt,
                           const DLTensor *q, const DLTensor *KVC_NULLABLE k,
                           const DLTensor *KVC_NULLABLE v, DLTensor *out,
                           DLTensor *KVC_NULLABLE lse, kvc_error *KVC_NULLABLE err);
  kvc_status (*attn_shared_kv)(kvc_forward *fwd, int32_t source_layer,
                               const kvc_attn_opt *KVC_NULLABLE opt, const DLTensor *q,
                               DLTensor *out, DLTensor *KVC_NULLABLE lse,
                               kvc_error *KVC_NULLABLE err);
  kvc_status (*state_get)(kvc_forward *fwd, int32_t layer, int32_t state, DLTensor *out,
                          kvc_error *KVC_NULLABLE err);
  kvc_status (*state_set)(kvc_forward *fwd, int32_t layer, int32_t state, const DLTensor *value,
                          kvc_error *KVC_NULLABLE err);
  kvc_status (*state_checkpoint)(kvc_cache *cache, kvc_seq seq, kvc_error *KVC_NULLABLE err);
  kvc_status (*attn_linear)(kvc_forward *fwd, int32_t layer, const kvc_linear_opt *KVC_NULLABLE opt,
                            const DLTensor *q, const DLTensor *k, const DLTensor *v,
                            const DLTensor *KVC_NULLABLE decay, const DLTensor *KVC_NULLABLE beta,
                            DLTensor *out, kvc_error *KVC_NULLABLE err);
  kvc_status (*state_conv)(kvc_forward *fwd, int32_t layer, int32_t state, const DLTensor *x,
                           const DLTensor *weight, const DLTensor *KVC_NULLABLE bias,
                           kvc_activation activation, DLTensor *out, kvc_error *KVC_NULLABLE err);
  kvc_status (*debug_get_mla)(const kvc_cache *cache, kvc_seq seq, int64_t begin, int64_t end,
                              DLTensor *latent, kvc_stream KVC_NULLABLE stream,
                              kvc_error *KVC_NULLABLE err);
  kvc_status (*debug_set_mla)(kvc_cache *cache, kvc_seq seq, int64_t begin, const DLTensor *latent,
                              kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err);
  kvc_status (*debug_get_layer)(const kvc_cache *cache, kvc_seq seq, int32_t layer, int64_t begin,
                                int64_t end, DLTensor *KVC_NULLABLE k, DLTensor *KVC_NULLABLE v,
                                kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err);
  kvc_status (*debug_set_layer)(kvc_cache *cache, kvc_seq seq, int32_t layer, int64_t begin,
                                const DLTensor *KVC_NULLABLE k, const DLTensor *KVC_NULLABLE v,
                                kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err);
  kvc_status (*debug_get_state)(const kvc_cache *cache, kvc_seq seq, int32_t layer, int32_t state,
                                DLTensor *out, kvc_stream KVC_NULLABLE stream,
                                kvc_error *KVC_NULLABLE err);
  kvc_status (*debug_set_state)(kvc_cache *cache, kvc_seq seq, int32_t layer, int32_t state,
                                const DLTensor *value, kvc_stream KVC_NULLABLE stream,
                                kvc_error *KVC_NULLABLE err);
  kvc_status (*op_append)(const kvc_op_pool *pool, const kvc_op_opt *KVC_NULLABLE opt,
                          const DLTensor *slots, const DLTensor *k, const DLTensor *KVC_NULLABLE v,
                          kvc_error *KVC_NULLABLE err);
  kvc_status (*op_attention_paged)(const kvc_op_pool *pool, const kvc_op_table *table,
                                   const kvc_op_opt *KVC_NULLABLE opt, const DLTensor *q,
                                   DLTensor *out, DLTensor *KVC_NULLABLE lse,
                                   kvc_error *KVC_NULLABLE err);
  kvc_status (*op_attention_ragged)(const DLTensor *qo_indptr,
                                    const DLTensor *KVC_NULLABLE kv_indptr,
                                    const kvc_op_opt *KVC_NULLABLE opt, const DLTensor *q,
                                    const DLTensor *k, const DLTensor *v, DLTensor *out,
                                    DLTensor *KVC_NULLABLE lse, kvc_error *KVC_NULLABLE err);
  kvc_status (*op_mla_paged)(const kvc_op_pool *pool, const kvc_op_table *table,
                             int32_t latent_rank, const kvc_op_opt *opt, const DLTensor *q,
                             DLTensor *out, DLTensor *KVC_NULLABLE lse,
                             kvc_error *KVC_NULLABLE err);
  kvc_status (*op_merge)(const kvc_op_opt *KVC_NULLABLE opt, DLTensor *out, DLTensor *lse,
                         const DLTensor *other_out, const DLTensor *other_lse,
                         kvc_error *KVC_NULLABLE err);
  kvc_status (*op_gather)(const kvc_op_pool *pool, const kvc_op_table *table,
                          const kvc_op_opt *KVC_NULLABLE opt, DLTensor *KVC_NULLABLE k_out,
                          DLTensor *KVC_NULLABLE v_out, kvc_error *KVC_NULLABLE err);
  kvc_status (*op_copy_pages)(const kvc_op_pool *pool, const kvc_op_opt *KVC_NULLABLE opt,
                              const DLTensor *pairs, kvc_error *KVC_NULLABLE err);
  kvc_status (*op_rotate)(const kvc_op_opt *opt, const DLTensor *x, DLTensor *out,
                          kvc_error *KVC_NULLABLE err);
  kvc_status (*op_linear_step)(const kvc_linear_opt *KVC_NULLABLE linear,
                               const kvc_op_opt *KVC_NULLABLE opt,
                               const DLTensor *KVC_NULLABLE qo_indptr, DLTensor *states,
                               const DLTensor *q, const DLTensor *k, const DLTensor *v,
                               const DLTensor *KVC_NULLABLE decay,
                               const DLTensor *KVC_NULLABLE beta, DLTensor *out,
                               kvc_error *KVC_NULLABLE err);
  kvc_status (*plan_min_pages)(const kvc_plan *const *plans, size_t n, int64_t *out_pages,
                               kvc_error *KVC_NULLABLE err);
  kvc_status (*config_from_hf_json)(const char *json, kvc_config *config,
                                    kvc_layer *KVC_NULLABLE layers, size_t *n,
                                    kvc_error *KVC_NULLABLE err);
  kvc_status (*prefix_hash)(const int32_t *KVC_NULLABLE tokens, size_t num_tokens,
                            int32_t block_tokens, const void *KVC_NULLABLE salt, size_t salt_size,
                            const kvc_prefix_key *KVC_NULLABLE keys, size_t num_keys,
                            uint8_t *KVC_NULLABLE out_hashes, size_t *len,
                            kvc_error *KVC_NULLABLE err);
  kvc_status (*prefix_match)(const kvc_cache *cache, const kvc_prefix_query *query,
                             int64_t *out_tokens, kvc_error *KVC_NULLABLE err);
  kvc_status (*prefix_attach)(kvc_cache *cache, kvc_seq seq, const kvc_prefix_query *query,
                              int64_t *KVC_NULLABLE out_tokens, kvc_error *KVC_NULLABLE err);
  kvc_status (*prefix_insert)(kvc_cache *cache, kvc_seq seq, const kvc_prefix_query *query,
                              int64_t *KVC_NULLABLE out_tokens, kvc_error *KVC_NULLABLE err);
  kvc_status (*prefix_pin)(kvc_cache *cache, const kvc_prefix_query *query,
                           int64_t *KVC_NULLABLE out_tokens, kvc_error *KVC_NULLABLE err);
  kvc_status (*prefix_unpin)(kvc_cache *cache, const kvc_prefix_query *query,
                             int64_t *KVC_NULLABLE out_tokens, kvc_error *KVC_NULLABLE err);
  kvc_status (*prefix_evict)(kvc_cache *cache, int64_t pages, int64_t *KVC_NULLABLE out_freed,
                             kvc_error *KVC_NULLABLE err);
  kvc_status (*prefix_reset)(kvc_cache *cache, kvc_error *KVC_NULLABLE err);
  kvc_status (*prefix_quota_set)(kvc_cache *cache, const void *KVC_NULLABLE salt, size_t salt_size,
                                 uint64_t max_bytes, kvc_error *KVC_NULLABLE err);
  kvc_status (*events_poll)(kvc_cache *cache, kvc_event *out, size_t *count,
                            kvc_error *KVC_NULLABLE err);
  kvc_status (*events_snapshot)(const kvc_cache *cache, kvc_event *KVC_NULLABLE out, size_t *count,
                                uint64_t *out_number, kvc_error *KVC_NULLABLE err);
  kvc_status (*swap_out)(kvc_cache *cache, size_t n, const kvc_seq *seqs,
                         kvc_stream KVC_NULLABLE stream,
                         kvc_fence *KVC_NULLABLE *KVC_NULLABLE out_fence,
                         kvc_error *KVC_NULLABLE err);
  kvc_status (*swap_in)(kvc_cache *cache, size_t n, const kvc_seq *seqs,
                        kvc_stream KVC_NULLABLE stream,
                        kvc_fence *KVC_NULLABLE *KVC_NULLABLE out_fence,
                        kvc_error *KVC_NULLABLE err);
  kvc_status (*pages_swap)(kvc_cache *cache, const DLTensor *pairs, kvc_swap_direction direction,
                           kvc_stream KVC_NULLABLE stream,
                           kvc_fence *KVC_NULLABLE *KVC_NULLABLE out_fence,
                           kvc_error *KVC_NULLABLE err);
  kvc_status (*pages_copy)(kvc_cache *cache, const DLTensor *pairs, kvc_stream KVC_NULLABLE stream,
                           kvc_fence *KVC_NULLABLE *KVC_NULLABLE out_fence,
                           kvc_error *KVC_NULLABLE err);
  kvc_status (*fence_query)(const kvc_fence *fence, int32_t *out_done, kvc_error *KVC_NULLABLE err);
  kvc_status (*fence_wait)(const kvc_fence *fence, int64_t timeout_ns, kvc_error *KVC_NULLABLE err);
  kvc_status (*fence_wait_on_stream)(const kvc_fence *fence, kvc_stream KVC_NULLABLE stream,
                                     kvc_error *KVC_NULLABLE err);
  void (*fence_destroy)(kvc_fence *KVC_NULLABLE fence);
  kvc_status (*module_path_set)(const char *KVC_NULLABLE path, kvc_error *KVC_NULLABLE err);
  kvc_status (*layout_fingerprint)(const kvc_plan *plan, char *KVC_NULLABLE buf, size_t *len,
                                   kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_save)(const kvc_cache *cache, size_t n, const kvc_seq *seqs,
                         const kvc_save_desc *desc, kvc_stream KVC_NULLABLE stream,
                         uint64_t *KVC_NULLABLE out_bytes, kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_load)(kvc_cache *cache, const kvc_load_desc *desc, size_t n, const kvc_seq *seqs,
                         kvc_stream KVC_NULLABLE stream, kvc_error *KVC_NULLABLE err);
  kvc_status (*state_file_describe)(const kvc_load_desc *desc, char *KVC_NULLABLE buf, size_t *len,
                                    kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_reserve)(kvc_cache *cache, kvc_seq seq, int64_t n, kvc_error *KVC_NULLABLE err);
  kvc_status (*pages_export)(const kvc_cache *cache, int32_t layer, const DLTensor *ids,
                             DLTensor *out, kvc_stream KVC_NULLABLE stream,
                             kvc_error *KVC_NULLABLE err);
  kvc_status (*pages_import)(kvc_cache *cache, int32_t layer, const DLTensor *ids,
                             const DLTensor *in, kvc_stream KVC_NULLABLE stream,
                             kvc_error *KVC_NULLABLE err);
  kvc_status (*tier_attach)(kvc_cache *cache, const kvc_tier_desc *desc,
                            kvc_error *KVC_NULLABLE err);
  kvc_status (*tier_attach_file)(kvc_cache *cache, const char *path, uint64_t byte_limit,
                                 kvc_error *KVC_NULLABLE err);
  kvc_status (*tier_detach)(kvc_cache *cache, kvc_tier tier, kvc_error *KVC_NULLABLE err);
  kvc_status (*tier_flush)(const kvc_cache *cache, int64_t timeout_ms, kvc_error *KVC_NULLABLE err);
  kvc_status (*tier_stats_get)(const kvc_cache *cache, kvc_tier tier, kvc_tier_stats *out,
                               kvc_error *KVC_NULLABLE err);
  kvc_status (*op_quantize)(const kvc_op_opt *KVC_NULLABLE opt, kvc_quant quant, const DLTensor *x,
                            DLTensor *out, DLTensor *scales, uint64_t *KVC_NULLABLE out_saturated,
                            kvc_error *KVC_NULLABLE err);
  kvc_status (*op_dequantize)(const kvc_op_opt *KVC_NULLABLE opt, kvc_quant quant,
                              const DLTensor *x, const DLTensor *scales, DLTensor *out,
                              kvc_error *KVC_NULLABLE err);
  kvc_status (*cache_trim)(kvc_cache *cache, uint64_t *KVC_NULLABLE out_released,
                           kvc_error *KVC_NULLABLE err);
  kvc_status (*seq_positions)(const kvc_cache *cache, kvc_seq seq, kvc_seq_op op, int64_t pos,
                              int64_t *out_below, int64_t *out_above, kvc_error *KVC_NULLABLE err);
  kvc_status (*state_checkpoint_release)(kvc_cache *cache, kvc_seq seq, int64_t pos,
                                         kvc_error *KVC_NULLABLE err);
  kvc_status (*transport_open)(const kvc_transport_desc *desc, kvc_transport **out,
                               kvc_error *KVC_NULLABLE err);
  kvc_status (*transport_address)(const kvc_transport *transport, char *KVC_NULLABLE buf,
                                  size_t *len, kvc_error *KVC_NULLABLE err);
  kvc_status (*transport_fd)(const kvc_transport *transport, int32_t *out_fd,
                             kvc_error *KVC_NULLABLE err);
  kvc_status (*transport_progress)(kvc_transport *transport, int64_t timeout_ns,
                                   kvc_error *KVC_NULLABLE err);
  kvc_status (*transport_stats_get)(const kvc_transport *transport, kvc_transport_stats *out,
                                    kvc_error *KVC_NULLABLE err);
  kvc_status (*transport_close)(kvc_transport *transport, int64_t timeout_ns,
                                kvc_error *KVC_NULLABLE err);
  void (*transport_destroy)(kvc_transport *KVC_NULLABLE transport);
  kvc_status (*transfer_recv)(kvc_cache *cache, kvc_transport *transport, const kvc_recv_desc *desc,
                              kvc_transfer **out, kvc_error *KVC_NULLABLE err);
  kvc_status (*transfer_ticket)(const kvc_transfer *transfer, void *KVC_NULLABLE buf, size_t *len,
                                kvc_error *KVC_NULLABLE err);
  kvc_status (*transfer_send)(kvc_cache *cache, kvc_transport *transport, const kvc_send_desc *desc,
                              kvc_transfer **out, kvc_error *KVC_NULLABLE err);
  kvc_status (*transfer_query)(const kvc_transfer *transfer, kvc_transfer_info *out,
                               kvc_error *KVC_NULLABLE err);
  kvc_status (*transfer_wait)(kvc_transfer *transfer, int64_t timeout_ns,
                              kvc_error *KVC_NULLABLE err);
  kvc_status (*transfer_fence)(const kvc_transfer *transfer, kvc_fence **out,
                               kvc_error *KVC_NULLABLE err);
  kvc_status (*transfer_cancel)(kvc_transfer *transfer, kvc_error *KVC_NULLABLE err);
  void (*transfer_destroy)(kvc_transfer *KVC_NULLABLE transfer);
  kvc_status (*config_from_hf)(const char *json, const kvc_hf_options *KVC_NULLABLE opt,
                               kvc_config *config, kvc_layer *KVC_NULLABLE layers, size_t *n,
                               kvc_error *KVC_NULLABLE err);
  /* End of version 0.1. */
} kvc_api;

/* Returns the table for a program that was compiled against `abi_version`: pass KVC_ABI_VERSION.
 *
 * The table has static storage. NULL: the library cannot serve that version, because the major
 * version differs or the minor version is newer than the library's.
 *
 * Threading: any. Device: host only. */
KVC_API const kvc_api *kvc_get_api(uint32_t abi_version) KVC_NOEXCEPT;

#ifdef __cplusplus
}
#endif

#endif /* KVCACHE_API_H_ */
