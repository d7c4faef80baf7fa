/* What surrounds the calls: whose turn it is on a cache, and whether the GIL is let go. Part of kvcache.i. */

%define %call(MODE, FUNCTION)
%exception FUNCTION {
  result = 0;
  arg1 = kvcpy_enter(&hold1, hold1.handle, MODE);
  if (arg1) { $action }
  if (kvcpy_leave(&hold1)) SWIG_fail;
}
%enddef

/* Buffers of a two-call function are filled under one lock. */
%define %two_calls(MODE, FUNCTION, BUFFER, COUNT, SIZE)
%exception FUNCTION {
  result = 0;
  arg1 = kvcpy_enter(&hold1, hold1.handle, MODE);
  if (arg1) {
    $action
    if (!result && (BUFFER = calloc(*COUNT ? *COUNT : 1, SIZE))) { $action }
  }
  if (kvcpy_leave(&hold1)) SWIG_fail;
}
%enddef
%define %two_calls_alone(FUNCTION, BUFFER, COUNT, SIZE)
%exception FUNCTION {
  $action
  if (!result && (BUFFER = calloc(*COUNT ? *COUNT : 1, SIZE))) { $action }
}
%enddef
%define %without_gil(FUNCTION)
%exception FUNCTION {
  PyThreadState *thread = PyEval_SaveThread();
  $action
  PyEval_RestoreThread(thread);
}
%enddef

/* Everything not named below is quick and needs no lock: questions to plans, names, versions. */
%without_gil(kvc_plan_create)
%without_gil(kvc_cache_create)
%without_gil(kvc_fence_wait)
%without_gil(kvc_fence_wait_on_stream)
%without_gil(kvc_op_append)
%without_gil(kvc_op_attention_paged)
%without_gil(kvc_op_attention_ragged)
%without_gil(kvc_op_mla_paged)
%without_gil(kvc_op_merge)
%without_gil(kvc_op_gather)
%without_gil(kvc_op_copy_pages)
%without_gil(kvc_op_rotate)
%without_gil(kvc_op_quantize)
%without_gil(kvc_op_dequantize)
%without_gil(kvc_op_linear_step)
%without_gil(kvc_transport_open)
%without_gil(kvc_transport_progress)
%without_gil(kvc_transport_close)
%without_gil(kvc_transfer_wait)
%without_gil(kvc_transfer_cancel)
%two_calls_alone(kvc_transport_address, arg2, arg3, 1)
%two_calls_alone(kvc_transfer_ticket, arg2, arg3, 1)
%two_calls_alone(kvc_plan_describe, arg2, arg3, 1)
%two_calls_alone(kvc_plan_to_json, arg2, arg3, 1)
%two_calls_alone(kvc_layout_fingerprint, arg2, arg3, 1)
%two_calls_alone(kvc_state_file_describe, arg2, arg3, 1)
%two_calls_alone(kvc_prefix_hash, arg8, arg9, KVC_HASH_BYTES)

%call(KVCPY_EXCLUSIVE, kvc_cache_clear)
%call(KVCPY_EXCLUSIVE, kvc_cache_resize)
%call(KVCPY_EXCLUSIVE, kvc_cache_trim)
%call(KVCPY_SHARED | KVCPY_QUICK, kvc_cache_stats_get)
%call(KVCPY_SHARED | KVCPY_QUICK, kvc_cache_available_pages)
%call(KVCPY_SHARED | KVCPY_QUICK, kvc_cache_total_length)
%call(KVCPY_SHARED | KVCPY_QUICK, kvc_cache_is_empty)
%call(KVCPY_SHARED, kvc_cache_check)
%call(KVCPY_EXCLUSIVE | KVCPY_QUICK, kvc_seq_add)
%call(KVCPY_EXCLUSIVE | KVCPY_QUICK, kvc_seq_remove)
%call(KVCPY_EXCLUSIVE | KVCPY_QUICK, kvc_seq_fork)
%call(KVCPY_EXCLUSIVE | KVCPY_QUICK, kvc_seq_pop)
%call(KVCPY_EXCLUSIVE | KVCPY_QUICK, kvc_seq_reserve)
%call(KVCPY_EXCLUSIVE, kvc_seq_shift)
%call(KVCPY_EXCLUSIVE | KVCPY_QUICK, kvc_seq_set_window)
%call(KVCPY_SHARED | KVCPY_QUICK, kvc_seq_length)
%call(KVCPY_SHARED | KVCPY_QUICK, kvc_seq_info_get)
%two_calls(KVCPY_SHARED | KVCPY_QUICK, kvc_seq_list, arg2, arg3, sizeof(kvc_seq))
%call(KVCPY_SHARED | KVCPY_QUICK, kvc_seq_can_append)
%call(KVCPY_SHARED | KVCPY_QUICK, kvc_seq_can)
%call(KVCPY_SHARED | KVCPY_QUICK, kvc_seq_positions)
%call(KVCPY_EXCLUSIVE, kvc_tree_commit)
%call(KVCPY_ATTEND | KVCPY_QUICK, kvc_forward_num_tokens)
%call(KVCPY_ATTEND | KVCPY_QUICK, kvc_forward_positions)
%call(KVCPY_ATTEND, kvc_attn)
%call(KVCPY_ATTEND, kvc_attn_fused_qkv)
%call(KVCPY_ATTEND, kvc_attn_self)
%call(KVCPY_ATTEND, kvc_attn_cached)
%call(KVCPY_ATTEND, kvc_attn_merge)
%call(KVCPY_ATTEND, kvc_attn_cross)
%call(KVCPY_ATTEND, kvc_attn_shared_kv)
%call(KVCPY_ATTEND, kvc_attn_linear)
%call(KVCPY_ATTEND, kvc_kv_append)
%call(KVCPY_ATTEND, kvc_mla_append)
%call(KVCPY_ATTEND, kvc_kv_gather)
%call(KVCPY_ATTEND, kvc_state_get)
%call(KVCPY_ATTEND, kvc_state_set)
%call(KVCPY_ATTEND, kvc_state_conv)
%call(KVCPY_ATTEND, kvc_export_page_table)
%call(KVCPY_EXCLUSIVE | KVCPY_QUICK, kvc_state_checkpoint)
%call(KVCPY_EXCLUSIVE | KVCPY_QUICK, kvc_state_checkpoint_release)
%call(KVCPY_SHARED, kvc_debug_get_kv)
%call(KVCPY_EXCLUSIVE, kvc_debug_set_kv)
%call(KVCPY_SHARED, kvc_debug_get_mla)
%call(KVCPY_EXCLUSIVE, kvc_debug_set_mla)
%call(KVCPY_SHARED, kvc_debug_get_layer)
%call(KVCPY_EXCLUSIVE, kvc_debug_set_layer)
%call(KVCPY_SHARED, kvc_debug_get_state)
%call(KVCPY_EXCLUSIVE, kvc_debug_set_state)
%call(KVCPY_EXCLUSIVE | KVCPY_QUICK, kvc_export_pool)
%call(KVCPY_SHARED | KVCPY_QUICK, kvc_export_seq_pages)
%call(KVCPY_SHARED | KVCPY_QUICK, kvc_prefix_match)
%call(KVCPY_EXCLUSIVE, kvc_prefix_attach)
%call(KVCPY_EXCLUSIVE, kvc_prefix_insert)
%call(KVCPY_EXCLUSIVE, kvc_prefix_pin)
%call(KVCPY_EXCLUSIVE, kvc_prefix_unpin)
%call(KVCPY_EXCLUSIVE, kvc_prefix_evict)
%call(KVCPY_EXCLUSIVE, kvc_prefix_reset)
%call(KVCPY_EXCLUSIVE, kvc_prefix_quota_set)
%call(KVCPY_EXCLUSIVE, kvc_swap_out)
%call(KVCPY_EXCLUSIVE, kvc_swap_in)
%call(KVCPY_EXCLUSIVE, kvc_pages_swap)
%call(KVCPY_EXCLUSIVE, kvc_pages_copy)
%call(KVCPY_SHARED, kvc_pages_export)
%call(KVCPY_EXCLUSIVE, kvc_pages_import)
%call(KVCPY_SHARED, kvc_seq_save)
%call(KVCPY_EXCLUSIVE, kvc_seq_load)
%call(KVCPY_EXCLUSIVE, kvc_tier_attach)
%call(KVCPY_EXCLUSIVE, kvc_tier_attach_file)
%call(KVCPY_EXCLUSIVE, kvc_tier_detach)
%call(KVCPY_SHARED, kvc_tier_flush)
%call(KVCPY_SHARED, kvc_tier_stats_get)

/* The transfer has a reference to its function until that has run, which begins with the call. */
%define %transfer_call(FUNCTION)
%exception FUNCTION {
  int left;
  Py_XINCREF((PyObject *)arg3->user);
  result = KVC_E_INVALID_STATE;
  arg1 = kvcpy_enter(&hold1, hold1.handle, KVCPY_EXCLUSIVE);
  if (arg1) { $action }
  left = kvcpy_leave(&hold1);
  if (result) Py_XDECREF((PyObject *)arg3->user);
  if (left) SWIG_fail;
}
%enddef
%transfer_call(kvc_transfer_recv)
%transfer_call(kvc_transfer_send)

%exception kvc_forward_begin {
  result = 0;
  arg1 = kvcpy_enter(&hold1, hold1.handle, KVCPY_EXCLUSIVE);
  if (arg1) {
    $action
    if (!result) opened3 = kvcpy_forward_opened(hold1.handle, *arg3);
  }
  if (kvcpy_leave(&hold1)) SWIG_fail;
}
%define %last_call(FUNCTION)
%exception FUNCTION {
  result = 0;
  arg1 = kvcpy_enter(&hold1, hold1.handle, KVCPY_EXCLUSIVE);
  if (arg1) {
    $action
    if (!result) kvcpy_forward_closed(hold1.handle);
  }
  if (kvcpy_leave(&hold1)) SWIG_fail;
}
%enddef
%last_call(kvc_forward_end)
%last_call(kvc_forward_abort)

/* Tokens of events are the library's until the lock is given up. */
%exception kvc_events_poll {
  result = 0;
  arg1 = kvcpy_enter(&hold1, hold1.handle, KVCPY_EXCLUSIVE);
  if (arg1) {
    enum { AT_ONCE = 256 };
    arg2 = calloc(AT_ONCE, sizeof *arg2);
    if (arg2) {
      arg2[0].struct_size = sizeof *arg2;
      *arg3 = AT_ONCE;
      $action
      if (result) *arg3 = 0;
      if (kvcpy_events_keep(arg2, *arg3)) result = KVC_E_NO_MEMORY;
    } else {
      result = KVC_E_NO_MEMORY;
    }
  }
  if (kvcpy_leave(&hold1)) SWIG_fail;
}
%exception kvc_events_snapshot {
  result = 0;
  arg1 = kvcpy_enter(&hold1, hold1.handle, KVCPY_SHARED);
  if (arg1) {
    $action
    if (!result) {
      arg2 = calloc(*arg3 + 1, sizeof *arg2);
      if (arg2) {
        arg2[0].struct_size = sizeof *arg2;
        $action
        if (result) *arg3 = 0;
        if (kvcpy_events_keep(arg2, *arg3)) result = KVC_E_NO_MEMORY;
      } else {
        *arg3 = 0;
        result = KVC_E_NO_MEMORY;
      }
    }
  }
  if (kvcpy_leave(&hold1)) SWIG_fail;
}
