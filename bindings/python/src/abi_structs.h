/* Generated from include/kvcache.h by `make abi`. Do not edit. */
#ifndef KVCACHE_PYTHON_ABI_STRUCTS_H_
#define KVCACHE_PYTHON_ABI_STRUCTS_H_

/* clang-format off */
/* X of each struct. */
#define KVCPY_STRUCTS(X) \
  X(kvc_error) \
  X(kvc_ext) \
  X(kvc_device_caps) \
  X(kvc_rope) \
  X(kvc_state_spec) \
  X(kvc_layer) \
  X(kvc_allocator) \
  X(kvc_executor) \
  X(kvc_config) \
  X(kvc_hf_options) \
  X(kvc_plan_info) \
  X(kvc_group_info) \
  X(kvc_layer_info) \
  X(kvc_stats) \
  X(kvc_seq_info) \
  X(kvc_forward_desc) \
  X(kvc_attn_opt) \
  X(kvc_prefix_key) \
  X(kvc_prefix_query) \
  X(kvc_event) \
  X(kvc_save_desc) \
  X(kvc_load_desc) \
  X(kvc_transport_desc) \
  X(kvc_transport_stats) \
  X(kvc_recv_desc) \
  X(kvc_send_desc) \
  X(kvc_transfer_info) \
  X(kvc_tier_desc) \
  X(kvc_tier_stats) \
  X(kvc_linear_opt) \
  X(kvc_op_pool) \
  X(kvc_op_table) \
  X(kvc_op_opt) \
  X(DLDevice) \
  X(DLDataType) \
  X(DLTensor) \
  X(DLPackVersion) \
  X(DLManagedTensorVersioned)

/* F of each struct and field. */
#define KVCPY_FIELDS_kvc_error(F) \
  F(kvc_error, struct_size) F(kvc_error, status) F(kvc_error, sys_code) F(kvc_error, detail) \
  F(kvc_error, message)

#define KVCPY_FIELDS_kvc_ext(F) \
  F(kvc_ext, type) F(kvc_ext, next)

#define KVCPY_FIELDS_kvc_device_caps(F) \
  F(kvc_device_caps, struct_size) F(kvc_device_caps, backend_present) F(kvc_device_caps, arch) \
  F(kvc_device_caps, num_cores) F(kvc_device_caps, page_granularity) F(kvc_device_caps, dtypes) \
  F(kvc_device_caps, isas) F(kvc_device_caps, memory_bytes) F(kvc_device_caps, memory_free_bytes) \
  F(kvc_device_caps, name)

#define KVCPY_FIELDS_kvc_rope(F) \
  F(kvc_rope, struct_size) F(kvc_rope, mode) F(kvc_rope, style) F(kvc_rope, rotary_dim) \
  F(kvc_rope, num_freq_factors) F(kvc_rope, theta) F(kvc_rope, scale) F(kvc_rope, freq_factors) \
  F(kvc_rope, scaling) F(kvc_rope, num_sections) F(kvc_rope, sections) F(kvc_rope, section_layout) \
  F(kvc_rope, reserved) F(kvc_rope, factor) F(kvc_rope, low_freq_factor) \
  F(kvc_rope, high_freq_factor) F(kvc_rope, beta_fast) F(kvc_rope, beta_slow) \
  F(kvc_rope, attention_factor) F(kvc_rope, original_context) F(kvc_rope, long_freq_factors)

#define KVCPY_FIELDS_kvc_state_spec(F) \
  F(kvc_state_spec, struct_size) F(kvc_state_spec, ndim) F(kvc_state_spec, dtype) \
  F(kvc_state_spec, shape) F(kvc_state_spec, init)

#define KVCPY_FIELDS_kvc_layer(F) \
  F(kvc_layer, struct_size) F(kvc_layer, kind) F(kvc_layer, num_q_heads) \
  F(kvc_layer, num_kv_heads) F(kvc_layer, k_dim) F(kvc_layer, v_dim) F(kvc_layer, quant) \
  F(kvc_layer, k_dtype) F(kvc_layer, v_dtype) F(kvc_layer, rope) F(kvc_layer, window) \
  F(kvc_layer, chunk) F(kvc_layer, source_layer) F(kvc_layer, latent_rank) \
  F(kvc_layer, latent_rope_dim) F(kvc_layer, flags) F(kvc_layer, states) F(kvc_layer, num_states) \
  F(kvc_layer, reserved) F(kvc_layer, k_scale) F(kvc_layer, v_scale) F(kvc_layer, v_quant) \
  F(kvc_layer, keep_tokens)

#define KVCPY_FIELDS_kvc_allocator(F) \
  F(kvc_allocator, struct_size) F(kvc_allocator, user) F(kvc_allocator, alloc) \
  F(kvc_allocator, free)

#define KVCPY_FIELDS_kvc_executor(F) \
  F(kvc_executor, struct_size) F(kvc_executor, user) F(kvc_executor, concurrency) \
  F(kvc_executor, parallel_for)

#define KVCPY_FIELDS_kvc_config(F) \
  F(kvc_config, struct_size) F(kvc_config, ext) F(kvc_config, flags) F(kvc_config, device) \
  F(kvc_config, page_size) F(kvc_config, num_layers) F(kvc_config, layers) \
  F(kvc_config, layer_begin) F(kvc_config, layer_end) F(kvc_config, max_seqs) \
  F(kvc_config, forwards_in_flight) F(kvc_config, max_tokens_per_forward) \
  F(kvc_config, max_seq_len) F(kvc_config, num_pages) F(kvc_config, byte_budget) \
  F(kvc_config, host_byte_budget) F(kvc_config, storage) F(kvc_config, pool_layout) \
  F(kvc_config, pool_tensors) F(kvc_config, num_pool_tensors) F(kvc_config, num_threads) \
  F(kvc_config, cpu_isa) F(kvc_config, cp_size) F(kvc_config, allocator) F(kvc_config, executor) \
  F(kvc_config, max_cross_len) F(kvc_config, state_stride) F(kvc_config, num_state_slots) \
  F(kvc_config, event_capacity)

#define KVCPY_FIELDS_kvc_hf_options(F) \
  F(kvc_hf_options, struct_size) F(kvc_hf_options, flags) F(kvc_hf_options, assume) \
  F(kvc_hf_options, mtp_layers) F(kvc_hf_options, cp_size)

#define KVCPY_FIELDS_kvc_plan_info(F) \
  F(kvc_plan_info, struct_size) F(kvc_plan_info, page_size) F(kvc_plan_info, num_layers) \
  F(kvc_plan_info, layer_begin) F(kvc_plan_info, layer_end) F(kvc_plan_info, num_groups) \
  F(kvc_plan_info, num_layer_regions) F(kvc_plan_info, num_pages) F(kvc_plan_info, page_bytes) \
  F(kvc_plan_info, bytes_per_token) F(kvc_plan_info, pool_bytes) F(kvc_plan_info, max_tokens) \
  F(kvc_plan_info, max_seq_len) F(kvc_plan_info, state_slot_bytes) \
  F(kvc_plan_info, num_state_slots) F(kvc_plan_info, state_slot_pages) \
  F(kvc_plan_info, prefix_block) F(kvc_plan_info, forwards_in_flight) \
  F(kvc_plan_info, num_host_pages) F(kvc_plan_info, request_pages) F(kvc_plan_info, concurrency) \
  F(kvc_plan_info, waste) F(kvc_plan_info, cos_sin_bytes_per_token) F(kvc_plan_info, host_bytes)

#define KVCPY_FIELDS_kvc_group_info(F) \
  F(kvc_group_info, struct_size) F(kvc_group_info, num_layers) F(kvc_group_info, is_cross) \
  F(kvc_group_info, window) F(kvc_group_info, chunk) F(kvc_group_info, page_bytes) \
  F(kvc_group_info, padding_bytes) F(kvc_group_info, page_size) F(kvc_group_info, first_layer) \
  F(kvc_group_info, request_pages) F(kvc_group_info, bytes_per_token) \
  F(kvc_group_info, keep_tokens)

#define KVCPY_FIELDS_kvc_layer_info(F) \
  F(kvc_layer_info, struct_size) F(kvc_layer_info, kind) F(kvc_layer_info, group) \
  F(kvc_layer_info, num_q_heads) F(kvc_layer_info, num_kv_heads) F(kvc_layer_info, k_dim) \
  F(kvc_layer_info, v_dim) F(kvc_layer_info, k_dtype) F(kvc_layer_info, v_dtype) \
  F(kvc_layer_info, page_bytes) F(kvc_layer_info, k_page_bytes) F(kvc_layer_info, v_page_bytes) \
  F(kvc_layer_info, bytes_per_token) F(kvc_layer_info, window) F(kvc_layer_info, chunk) \
  F(kvc_layer_info, source_layer) F(kvc_layer_info, latent_rank) \
  F(kvc_layer_info, latent_rope_dim) F(kvc_layer_info, flags) F(kvc_layer_info, num_states) \
  F(kvc_layer_info, region) F(kvc_layer_info, state_bytes) F(kvc_layer_info, region_bytes) \
  F(kvc_layer_info, region_offset) F(kvc_layer_info, quant) F(kvc_layer_info, page_size) \
  F(kvc_layer_info, k_scale_bytes) F(kvc_layer_info, v_scale_bytes) F(kvc_layer_info, v_quant) \
  F(kvc_layer_info, keep_tokens) F(kvc_layer_info, kept_group) F(kvc_layer_info, reserved)

#define KVCPY_FIELDS_kvc_stats(F) \
  F(kvc_stats, struct_size) F(kvc_stats, num_seqs) F(kvc_stats, total_length) \
  F(kvc_stats, pages_total) F(kvc_stats, pages_available) F(kvc_stats, pages_used) \
  F(kvc_stats, pages_shared) F(kvc_stats, pages_peak) F(kvc_stats, page_bytes) \
  F(kvc_stats, pool_bytes) F(kvc_stats, forwards) F(kvc_stats, forwards_aborted) \
  F(kvc_stats, tokens_appended) F(kvc_stats, pages_copied) F(kvc_stats, no_pages) \
  F(kvc_stats, step_bytes) F(kvc_stats, step_copies) F(kvc_stats, state_slots_used) \
  F(kvc_stats, state_slot_bytes) F(kvc_stats, tree_tokens) F(kvc_stats, cascades) \
  F(kvc_stats, slots_unused) F(kvc_stats, pages_indexed) F(kvc_stats, pages_cached) \
  F(kvc_stats, prefix_blocks) F(kvc_stats, prefix_blocks_host) F(kvc_stats, prefix_pinned) \
  F(kvc_stats, prefix_lookups) F(kvc_stats, prefix_query_tokens) F(kvc_stats, prefix_hit_tokens) \
  F(kvc_stats, recent_query_tokens) F(kvc_stats, recent_hit_tokens) F(kvc_stats, prefix_stored) \
  F(kvc_stats, prefix_duplicates) F(kvc_stats, prefix_evicted) F(kvc_stats, prefix_rejected) \
  F(kvc_stats, prefix_demoted) F(kvc_stats, prefix_promoted) F(kvc_stats, host_pages_total) \
  F(kvc_stats, host_pages_used) F(kvc_stats, num_swapped_seqs) F(kvc_stats, pages_swapped_out) \
  F(kvc_stats, pages_swapped_in) F(kvc_stats, copy_runs) F(kvc_stats, events_made) \
  F(kvc_stats, events_lost) F(kvc_stats, block_lifetime) F(kvc_stats, block_idle) \
  F(kvc_stats, block_reuse_gap) F(kvc_stats, cos_sin_bytes) F(kvc_stats, values_saturated) \
  F(kvc_stats, state_slots_cached) F(kvc_stats, host_bytes)

#define KVCPY_FIELDS_kvc_seq_info(F) \
  F(kvc_seq_info, struct_size) F(kvc_seq_info, length) F(kvc_seq_info, first_position) \
  F(kvc_seq_info, last_position) F(kvc_seq_info, num_pages) F(kvc_seq_info, num_shared_pages) \
  F(kvc_seq_info, window) F(kvc_seq_info, sink) F(kvc_seq_info, in_forward) \
  F(kvc_seq_info, num_checkpoints) F(kvc_seq_info, tree_nodes) F(kvc_seq_info, cross_length) \
  F(kvc_seq_info, is_swapped) F(kvc_seq_info, reserved) F(kvc_seq_info, known_tokens)

#define KVCPY_FIELDS_kvc_forward_desc(F) \
  F(kvc_forward_desc, struct_size) F(kvc_forward_desc, ext) F(kvc_forward_desc, stream) \
  F(kvc_forward_desc, num_seqs) F(kvc_forward_desc, seqs) F(kvc_forward_desc, append_lengths) \
  F(kvc_forward_desc, tree_parents) F(kvc_forward_desc, tokens) F(kvc_forward_desc, flags) \
  F(kvc_forward_desc, positions) F(kvc_forward_desc, cross_lengths)

#define KVCPY_FIELDS_kvc_attn_opt(F) \
  F(kvc_attn_opt, struct_size) F(kvc_attn_opt, ext) F(kvc_attn_opt, flags) F(kvc_attn_opt, scale) \
  F(kvc_attn_opt, soft_cap) F(kvc_attn_opt, window) F(kvc_attn_opt, sink_logits) \
  F(kvc_attn_opt, alibi_slopes) F(kvc_attn_opt, bias) F(kvc_attn_opt, spans)

#define KVCPY_FIELDS_kvc_prefix_key(F) \
  F(kvc_prefix_key, struct_size) F(kvc_prefix_key, type) F(kvc_prefix_key, reserved) \
  F(kvc_prefix_key, offset) F(kvc_prefix_key, data) F(kvc_prefix_key, size)

#define KVCPY_FIELDS_kvc_prefix_query(F) \
  F(kvc_prefix_query, struct_size) F(kvc_prefix_query, ext) F(kvc_prefix_query, flags) \
  F(kvc_prefix_query, num_tokens) F(kvc_prefix_query, tokens) F(kvc_prefix_query, hashes) \
  F(kvc_prefix_query, num_hashes) F(kvc_prefix_query, salt) F(kvc_prefix_query, salt_size) \
  F(kvc_prefix_query, keys) F(kvc_prefix_query, num_keys) F(kvc_prefix_query, priority) \
  F(kvc_prefix_query, reserved)

#define KVCPY_FIELDS_kvc_event(F) \
  F(kvc_event, struct_size) F(kvc_event, number) F(kvc_event, type) F(kvc_event, tier) \
  F(kvc_event, from_tier) F(kvc_event, group) F(kvc_event, num_tokens) F(kvc_event, reserved) \
  F(kvc_event, tokens) F(kvc_event, hash) F(kvc_event, parent)

#define KVCPY_FIELDS_kvc_save_desc(F) \
  F(kvc_save_desc, struct_size) F(kvc_save_desc, flags) F(kvc_save_desc, path) \
  F(kvc_save_desc, data) F(kvc_save_desc, size) F(kvc_save_desc, write) F(kvc_save_desc, user) \
  F(kvc_save_desc, model_id) F(kvc_save_desc, ext)

#define KVCPY_FIELDS_kvc_load_desc(F) \
  F(kvc_load_desc, struct_size) F(kvc_load_desc, flags) F(kvc_load_desc, path) \
  F(kvc_load_desc, data) F(kvc_load_desc, size) F(kvc_load_desc, read) F(kvc_load_desc, user) \
  F(kvc_load_desc, model_id) F(kvc_load_desc, ext)

#define KVCPY_FIELDS_kvc_transport_desc(F) \
  F(kvc_transport_desc, struct_size) F(kvc_transport_desc, flags) F(kvc_transport_desc, engine) \
  F(kvc_transport_desc, address) F(kvc_transport_desc, idle_ns) F(kvc_transport_desc, beat_ns) \
  F(kvc_transport_desc, drain_ns) F(kvc_transport_desc, tombstone_ns) \
  F(kvc_transport_desc, bytes_in_flight) F(kvc_transport_desc, resend_rounds) \
  F(kvc_transport_desc, reserved) F(kvc_transport_desc, ext)

#define KVCPY_FIELDS_kvc_transport_stats(F) \
  F(kvc_transport_stats, struct_size) F(kvc_transport_stats, transfers_open) \
  F(kvc_transport_stats, transfers_done) F(kvc_transport_stats, transfers_failed) \
  F(kvc_transport_stats, messages_sent) F(kvc_transport_stats, messages_received) \
  F(kvc_transport_stats, bytes_sent) F(kvc_transport_stats, bytes_received) \
  F(kvc_transport_stats, messages_refused) F(kvc_transport_stats, messages_damaged) \
  F(kvc_transport_stats, payloads_damaged)

#define KVCPY_FIELDS_kvc_recv_desc(F) \
  F(kvc_recv_desc, struct_size) F(kvc_recv_desc, flags) F(kvc_recv_desc, seq) \
  F(kvc_recv_desc, begin) F(kvc_recv_desc, num_tokens) F(kvc_recv_desc, cross_length) \
  F(kvc_recv_desc, deadline_ns) F(kvc_recv_desc, idle_ns) F(kvc_recv_desc, priority) \
  F(kvc_recv_desc, reserved) F(kvc_recv_desc, model_id) F(kvc_recv_desc, ext) \
  F(kvc_recv_desc, tp_rank) F(kvc_recv_desc, tp_size) F(kvc_recv_desc, sender_tp_size) \
  F(kvc_recv_desc, reserved2) F(kvc_recv_desc, on_done) F(kvc_recv_desc, user)

#define KVCPY_FIELDS_kvc_send_desc(F) \
  F(kvc_send_desc, struct_size) F(kvc_send_desc, flags) F(kvc_send_desc, seq) \
  F(kvc_send_desc, begin) F(kvc_send_desc, ticket) F(kvc_send_desc, ticket_len) \
  F(kvc_send_desc, mode) F(kvc_send_desc, reserved) F(kvc_send_desc, deadline_ns) \
  F(kvc_send_desc, idle_ns) F(kvc_send_desc, model_id) F(kvc_send_desc, ext) \
  F(kvc_send_desc, tp_rank) F(kvc_send_desc, tp_size) F(kvc_send_desc, on_done) \
  F(kvc_send_desc, user)

#define KVCPY_FIELDS_kvc_transfer_info(F) \
  F(kvc_transfer_info, struct_size) F(kvc_transfer_info, state) F(kvc_transfer_info, status) \
  F(kvc_transfer_info, is_receiving) F(kvc_transfer_info, reserved) \
  F(kvc_transfer_info, chunks_total) F(kvc_transfer_info, chunks_done) \
  F(kvc_transfer_info, chunks_resent) F(kvc_transfer_info, bytes_total) \
  F(kvc_transfer_info, bytes_done) F(kvc_transfer_info, message) \
  F(kvc_transfer_info, peer_message)

#define KVCPY_FIELDS_kvc_tier_desc(F) \
  F(kvc_tier_desc, struct_size) F(kvc_tier_desc, flags) F(kvc_tier_desc, tier) \
  F(kvc_tier_desc, shard) F(kvc_tier_desc, address) F(kvc_tier_desc, model_id) \
  F(kvc_tier_desc, byte_limit) F(kvc_tier_desc, queue_bytes) F(kvc_tier_desc, get_ms) \
  F(kvc_tier_desc, put_ms) F(kvc_tier_desc, connect_ms) F(kvc_tier_desc, reserved) \
  F(kvc_tier_desc, ttl_s) F(kvc_tier_desc, username) F(kvc_tier_desc, password) \
  F(kvc_tier_desc, ext)

#define KVCPY_FIELDS_kvc_tier_stats(F) \
  F(kvc_tier_stats, struct_size) F(kvc_tier_stats, blocks_put) F(kvc_tier_stats, blocks_dropped) \
  F(kvc_tier_stats, blocks_put_failed) F(kvc_tier_stats, bytes_put) F(kvc_tier_stats, lookups) \
  F(kvc_tier_stats, blocks_found) F(kvc_tier_stats, blocks_got) F(kvc_tier_stats, blocks_missed) \
  F(kvc_tier_stats, blocks_corrupt) F(kvc_tier_stats, blocks_timed_out) \
  F(kvc_tier_stats, blocks_failed) F(kvc_tier_stats, bytes_got) F(kvc_tier_stats, waiting_bytes) \
  F(kvc_tier_stats, stored_bytes)

#define KVCPY_FIELDS_kvc_linear_opt(F) \
  F(kvc_linear_opt, struct_size) F(kvc_linear_opt, ext) F(kvc_linear_opt, flags) \
  F(kvc_linear_opt, decay) F(kvc_linear_opt, state) F(kvc_linear_opt, scale) \
  F(kvc_linear_opt, reserved) F(kvc_linear_opt, skip)

#define KVCPY_FIELDS_kvc_op_pool(F) \
  F(kvc_op_pool, struct_size) F(kvc_op_pool, k) F(kvc_op_pool, v) F(kvc_op_pool, layout) \
  F(kvc_op_pool, reserved) F(kvc_op_pool, quant) F(kvc_op_pool, k_scale) F(kvc_op_pool, v_scale) \
  F(kvc_op_pool, k_scales) F(kvc_op_pool, v_scales)

#define KVCPY_FIELDS_kvc_op_table(F) \
  F(kvc_op_table, struct_size) F(kvc_op_table, seq_lens) F(kvc_op_table, qo_indptr) \
  F(kvc_op_table, page_indptr) F(kvc_op_table, page_indices) F(kvc_op_table, block_table)

#define KVCPY_FIELDS_kvc_op_opt(F) \
  F(kvc_op_opt, struct_size) F(kvc_op_opt, ext) F(kvc_op_opt, executor) F(kvc_op_opt, cpu_isa) \
  F(kvc_op_opt, full) F(kvc_op_opt, attn) F(kvc_op_opt, positions) F(kvc_op_opt, rope) \
  F(kvc_op_opt, stream)

#define KVCPY_FIELDS_DLDevice(F) \
  F(DLDevice, device_type) F(DLDevice, device_id)

#define KVCPY_FIELDS_DLDataType(F) \
  F(DLDataType, code) F(DLDataType, bits) F(DLDataType, lanes)

#define KVCPY_FIELDS_DLTensor(F) \
  F(DLTensor, data) F(DLTensor, device) F(DLTensor, ndim) F(DLTensor, dtype) F(DLTensor, shape) \
  F(DLTensor, strides) F(DLTensor, byte_offset)

#define KVCPY_FIELDS_DLPackVersion(F) \
  F(DLPackVersion, major) F(DLPackVersion, minor)

#define KVCPY_FIELDS_DLManagedTensorVersioned(F) \
  F(DLManagedTensorVersioned, version) F(DLManagedTensorVersioned, manager_ctx) \
  F(DLManagedTensorVersioned, deleter) F(DLManagedTensorVersioned, flags) \
  F(DLManagedTensorVersioned, dl_tensor)
/* clang-format on */

#endif
