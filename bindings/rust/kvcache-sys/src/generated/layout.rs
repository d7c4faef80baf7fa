// Generated from include/kvcache.h by `make abi`. Do not edit.
//! Sizes and offsets on 64-bit machines.

use crate::*;

layouts! {
    kvc_error = 512 {
        struct_size @ 0, status @ 8, sys_code @ 12, detail @ 16, message @ 24,
    }
    kvc_ext = 16 {
        type_ @ 0, next @ 8,
    }
    kvc_device_caps = 120 {
        struct_size @ 0, backend_present @ 8, arch @ 12, num_cores @ 16, page_granularity @ 20,
        dtypes @ 24, isas @ 32, memory_bytes @ 40, memory_free_bytes @ 48, name @ 56,
    }
    kvc_rope = 144 {
        struct_size @ 0, mode @ 8, style @ 12, rotary_dim @ 16, num_freq_factors @ 20, theta @ 24,
        scale @ 32, freq_factors @ 40, scaling @ 48, num_sections @ 52, sections @ 56,
        section_layout @ 72, reserved @ 76, factor @ 80, low_freq_factor @ 88,
        high_freq_factor @ 96, beta_fast @ 104, beta_slow @ 112, attention_factor @ 120,
        original_context @ 128, long_freq_factors @ 136,
    }
    kvc_state_spec = 32 {
        struct_size @ 0, ndim @ 8, dtype @ 12, shape @ 16, init @ 24,
    }
    kvc_layer = 112 {
        struct_size @ 0, kind @ 8, num_q_heads @ 12, num_kv_heads @ 16, k_dim @ 20, v_dim @ 24,
        quant @ 28, k_dtype @ 32, v_dtype @ 36, rope @ 40, window @ 48, chunk @ 56,
        source_layer @ 64, latent_rank @ 68, latent_rope_dim @ 72, flags @ 76, states @ 80,
        num_states @ 88, reserved @ 92, k_scale @ 96, v_scale @ 100, v_quant @ 104,
        keep_tokens @ 108,
    }
    kvc_allocator = 32 {
        struct_size @ 0, user @ 8, alloc @ 16, free @ 24,
    }
    kvc_executor = 32 {
        struct_size @ 0, user @ 8, concurrency @ 16, parallel_for @ 24,
    }
    kvc_config = 184 {
        struct_size @ 0, ext @ 8, flags @ 16, device @ 24, page_size @ 32, num_layers @ 36,
        layers @ 40, layer_begin @ 48, layer_end @ 52, max_seqs @ 56, forwards_in_flight @ 60,
        max_tokens_per_forward @ 64, max_seq_len @ 72, num_pages @ 80, byte_budget @ 88,
        host_byte_budget @ 96, storage @ 104, pool_layout @ 108, pool_tensors @ 112,
        num_pool_tensors @ 120, num_threads @ 124, cpu_isa @ 128, cp_size @ 132, allocator @ 136,
        executor @ 144, max_cross_len @ 152, state_stride @ 160, num_state_slots @ 168,
        event_capacity @ 176,
    }
    kvc_hf_options = 32 {
        struct_size @ 0, flags @ 8, assume @ 16, mtp_layers @ 24, cp_size @ 28,
    }
    kvc_plan_info = 160 {
        struct_size @ 0, page_size @ 8, num_layers @ 12, layer_begin @ 16, layer_end @ 20,
        num_groups @ 24, num_layer_regions @ 28, num_pages @ 32, page_bytes @ 40,
        bytes_per_token @ 48, pool_bytes @ 56, max_tokens @ 64, max_seq_len @ 72,
        state_slot_bytes @ 80, num_state_slots @ 88, state_slot_pages @ 96, prefix_block @ 104,
        forwards_in_flight @ 108, num_host_pages @ 112, request_pages @ 120, concurrency @ 128,
        waste @ 136, cos_sin_bytes_per_token @ 144, host_bytes @ 152,
    }
    kvc_group_info = 80 {
        struct_size @ 0, num_layers @ 8, is_cross @ 12, window @ 16, chunk @ 24, page_bytes @ 32,
        padding_bytes @ 40, page_size @ 48, first_layer @ 52, request_pages @ 56,
        bytes_per_token @ 64, keep_tokens @ 72,
    }
    kvc_layer_info = 176 {
        struct_size @ 0, kind @ 8, group @ 12, num_q_heads @ 16, num_kv_heads @ 20, k_dim @ 24,
        v_dim @ 28, k_dtype @ 32, v_dtype @ 36, page_bytes @ 40, k_page_bytes @ 48,
        v_page_bytes @ 56, bytes_per_token @ 64, window @ 72, chunk @ 80, source_layer @ 88,
        latent_rank @ 92, latent_rope_dim @ 96, flags @ 100, num_states @ 104, region @ 108,
        state_bytes @ 112, region_bytes @ 120, region_offset @ 128, quant @ 136, page_size @ 140,
        k_scale_bytes @ 144, v_scale_bytes @ 152, v_quant @ 160, keep_tokens @ 164,
        kept_group @ 168, reserved @ 172,
    }
    kvc_stats = 1168 {
        struct_size @ 0, num_seqs @ 8, total_length @ 16, pages_total @ 24, pages_available @ 32,
        pages_used @ 40, pages_shared @ 48, pages_peak @ 56, page_bytes @ 64, pool_bytes @ 72,
        forwards @ 80, forwards_aborted @ 88, tokens_appended @ 96, pages_copied @ 104,
        no_pages @ 112, step_bytes @ 120, step_copies @ 128, state_slots_used @ 136,
        state_slot_bytes @ 144, tree_tokens @ 152, cascades @ 160, slots_unused @ 168,
        pages_indexed @ 176, pages_cached @ 184, prefix_blocks @ 192, prefix_blocks_host @ 200,
        prefix_pinned @ 208, prefix_lookups @ 216, prefix_query_tokens @ 224,
        prefix_hit_tokens @ 232, recent_query_tokens @ 240, recent_hit_tokens @ 248,
        prefix_stored @ 256, prefix_duplicates @ 264, prefix_evicted @ 272, prefix_rejected @ 280,
        prefix_demoted @ 288, prefix_promoted @ 296, host_pages_total @ 304, host_pages_used @ 312,
        num_swapped_seqs @ 320, pages_swapped_out @ 328, pages_swapped_in @ 336, copy_runs @ 344,
        events_made @ 352, events_lost @ 360, block_lifetime @ 368, block_idle @ 624,
        block_reuse_gap @ 880, cos_sin_bytes @ 1136, values_saturated @ 1144,
        state_slots_cached @ 1152, host_bytes @ 1160,
    }
    kvc_seq_info = 104 {
        struct_size @ 0, length @ 8, first_position @ 16, last_position @ 24, num_pages @ 32,
        num_shared_pages @ 40, window @ 48, sink @ 56, in_forward @ 64, num_checkpoints @ 68,
        tree_nodes @ 72, cross_length @ 80, is_swapped @ 88, reserved @ 92, known_tokens @ 96,
    }
    kvc_forward_desc = 88 {
        struct_size @ 0, ext @ 8, stream @ 16, num_seqs @ 24, seqs @ 32, append_lengths @ 40,
        tree_parents @ 48, tokens @ 56, flags @ 64, positions @ 72, cross_lengths @ 80,
    }
    kvc_attn_opt = 72 {
        struct_size @ 0, ext @ 8, flags @ 16, scale @ 24, soft_cap @ 28, window @ 32,
        sink_logits @ 40, alibi_slopes @ 48, bias @ 56, spans @ 64,
    }
    kvc_prefix_key = 40 {
        struct_size @ 0, type_ @ 8, reserved @ 12, offset @ 16, data @ 24, size @ 32,
    }
    kvc_prefix_query = 96 {
        struct_size @ 0, ext @ 8, flags @ 16, num_tokens @ 24, tokens @ 32, hashes @ 40,
        num_hashes @ 48, salt @ 56, salt_size @ 64, keys @ 72, num_keys @ 80, priority @ 88,
        reserved @ 92,
    }
    kvc_event = 112 {
        struct_size @ 0, number @ 8, type_ @ 16, tier @ 20, from_tier @ 24, group @ 28,
        num_tokens @ 32, reserved @ 36, tokens @ 40, hash @ 48, parent @ 80,
    }
    kvc_save_desc = 72 {
        struct_size @ 0, flags @ 8, path @ 16, data @ 24, size @ 32, write @ 40, user @ 48,
        model_id @ 56, ext @ 64,
    }
    kvc_load_desc = 72 {
        struct_size @ 0, flags @ 8, path @ 16, data @ 24, size @ 32, read @ 40, user @ 48,
        model_id @ 56, ext @ 64,
    }
    kvc_transport_desc = 88 {
        struct_size @ 0, flags @ 8, engine @ 16, address @ 24, idle_ns @ 32, beat_ns @ 40,
        drain_ns @ 48, tombstone_ns @ 56, bytes_in_flight @ 64, resend_rounds @ 72, reserved @ 76,
        ext @ 80,
    }
    kvc_transport_stats = 88 {
        struct_size @ 0, transfers_open @ 8, transfers_done @ 16, transfers_failed @ 24,
        messages_sent @ 32, messages_received @ 40, bytes_sent @ 48, bytes_received @ 56,
        messages_refused @ 64, messages_damaged @ 72, payloads_damaged @ 80,
    }
    kvc_recv_desc = 120 {
        struct_size @ 0, flags @ 8, seq @ 16, begin @ 24, num_tokens @ 32, cross_length @ 40,
        deadline_ns @ 48, idle_ns @ 56, priority @ 64, reserved @ 68, model_id @ 72, ext @ 80,
        tp_rank @ 88, tp_size @ 92, sender_tp_size @ 96, reserved2 @ 100, on_done @ 104, user @ 112,
    }
    kvc_send_desc = 112 {
        struct_size @ 0, flags @ 8, seq @ 16, begin @ 24, ticket @ 32, ticket_len @ 40, mode @ 48,
        reserved @ 52, deadline_ns @ 56, idle_ns @ 64, model_id @ 72, ext @ 80, tp_rank @ 88,
        tp_size @ 92, on_done @ 96, user @ 104,
    }
    kvc_transfer_info = 576 {
        struct_size @ 0, state @ 8, status @ 12, is_receiving @ 16, reserved @ 20,
        chunks_total @ 24, chunks_done @ 32, chunks_resent @ 40, bytes_total @ 48, bytes_done @ 56,
        message @ 64, peer_message @ 320,
    }
    kvc_tier_desc = 104 {
        struct_size @ 0, flags @ 8, tier @ 16, shard @ 20, address @ 24, model_id @ 32,
        byte_limit @ 40, queue_bytes @ 48, get_ms @ 56, put_ms @ 60, connect_ms @ 64, reserved @ 68,
        ttl_s @ 72, username @ 80, password @ 88, ext @ 96,
    }
    kvc_tier_stats = 120 {
        struct_size @ 0, blocks_put @ 8, blocks_dropped @ 16, blocks_put_failed @ 24,
        bytes_put @ 32, lookups @ 40, blocks_found @ 48, blocks_got @ 56, blocks_missed @ 64,
        blocks_corrupt @ 72, blocks_timed_out @ 80, blocks_failed @ 88, bytes_got @ 96,
        waiting_bytes @ 104, stored_bytes @ 112,
    }
    kvc_linear_opt = 48 {
        struct_size @ 0, ext @ 8, flags @ 16, decay @ 24, state @ 28, scale @ 32, reserved @ 36,
        skip @ 40,
    }
    kvc_op_pool = 64 {
        struct_size @ 0, k @ 8, v @ 16, layout @ 24, reserved @ 28, quant @ 32, k_scale @ 36,
        v_scale @ 40, k_scales @ 48, v_scales @ 56,
    }
    kvc_op_table = 48 {
        struct_size @ 0, seq_lens @ 8, qo_indptr @ 16, page_indptr @ 24, page_indices @ 32,
        block_table @ 40,
    }
    kvc_op_opt = 64 {
        struct_size @ 0, ext @ 8, executor @ 16, cpu_isa @ 24, full @ 28, attn @ 32, positions @ 40,
        rope @ 48, stream @ 56,
    }
    kvc_api = 1080 {
        struct_size @ 0, abi_version @ 8, reserved @ 12, get_abi_version @ 16, version_string @ 24,
        status_name @ 32, has_feature @ 40, device_query @ 48, set_logger @ 56, config_init @ 64,
        plan_create @ 72, plan_destroy @ 80, plan_info_get @ 88, plan_layer_get @ 96,
        plan_pages_for @ 104, plan_max_tokens @ 112, plan_request_pages @ 120, plan_describe @ 128,
        plan_to_json @ 136, cache_create @ 144, cache_destroy @ 152, cache_clear @ 160,
        cache_resize @ 168, cache_stats_get @ 176, cache_available_pages @ 184,
        cache_total_length @ 192, cache_is_empty @ 200, cache_check @ 208, seq_add @ 216,
        seq_remove @ 224, seq_fork @ 232, seq_pop @ 240, seq_length @ 248, seq_info_get @ 256,
        seq_list @ 264, seq_can_append @ 272, seq_can @ 280, forward_begin @ 288,
        forward_num_tokens @ 296, forward_positions @ 304, forward_end @ 312, forward_abort @ 320,
        attn @ 328, attn_fused_qkv @ 336, attn_self @ 344, attn_cached @ 352, attn_merge @ 360,
        kv_append @ 368, kv_gather @ 376, debug_get_kv @ 384, debug_set_kv @ 392, export_pool @ 400,
        export_page_table @ 408, export_seq_pages @ 416, plan_group_get @ 424, seq_shift @ 432,
        seq_set_window @ 440, tree_commit @ 448, mla_append @ 456, attn_cross @ 464,
        attn_shared_kv @ 472, state_get @ 480, state_set @ 488, state_checkpoint @ 496,
        attn_linear @ 504, state_conv @ 512, debug_get_mla @ 520, debug_set_mla @ 528,
        debug_get_layer @ 536, debug_set_layer @ 544, debug_get_state @ 552, debug_set_state @ 560,
        op_append @ 568, op_attention_paged @ 576, op_attention_ragged @ 584, op_mla_paged @ 592,
        op_merge @ 600, op_gather @ 608, op_copy_pages @ 616, op_rotate @ 624, op_linear_step @ 632,
        plan_min_pages @ 640, config_from_hf_json @ 648, prefix_hash @ 656, prefix_match @ 664,
        prefix_attach @ 672, prefix_insert @ 680, prefix_pin @ 688, prefix_unpin @ 696,
        prefix_evict @ 704, prefix_reset @ 712, prefix_quota_set @ 720, events_poll @ 728,
        events_snapshot @ 736, swap_out @ 744, swap_in @ 752, pages_swap @ 760, pages_copy @ 768,
        fence_query @ 776, fence_wait @ 784, fence_wait_on_stream @ 792, fence_destroy @ 800,
        module_path_set @ 808, layout_fingerprint @ 816, seq_save @ 824, seq_load @ 832,
        state_file_describe @ 840, seq_reserve @ 848, pages_export @ 856, pages_import @ 864,
        tier_attach @ 872, tier_attach_file @ 880, tier_detach @ 888, tier_flush @ 896,
        tier_stats_get @ 904, op_quantize @ 912, op_dequantize @ 920, cache_trim @ 928,
        seq_positions @ 936, state_checkpoint_release @ 944, transport_open @ 952,
        transport_address @ 960, transport_fd @ 968, transport_progress @ 976,
        transport_stats_get @ 984, transport_close @ 992, transport_destroy @ 1000,
        transfer_recv @ 1008, transfer_ticket @ 1016, transfer_send @ 1024, transfer_query @ 1032,
        transfer_wait @ 1040, transfer_fence @ 1048, transfer_cancel @ 1056,
        transfer_destroy @ 1064, config_from_hf @ 1072,
    }
    DLDevice = 8 {
        device_type @ 0, device_id @ 4,
    }
    DLDataType = 4 {
        code @ 0, bits @ 1, lanes @ 2,
    }
    DLTensor = 48 {
        data @ 0, device @ 8, ndim @ 16, dtype @ 20, shape @ 24, strides @ 32, byte_offset @ 40,
    }
    DLPackVersion = 8 {
        major @ 0, minor @ 4,
    }
    DLManagedTensorVersioned = 80 {
        version @ 0, manager_ctx @ 8, deleter @ 16, flags @ 24, dl_tensor @ 32,
    }
}
