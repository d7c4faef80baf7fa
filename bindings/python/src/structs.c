/* Structs as dictionaries, by tables of their fields: what a table says is what the compiler of this module saw. */
#include <stddef.h>
#include <string.h>

#include "binding.h"

enum { OTHER, I32, I64, U64, F32, F64, TYPE, DEVICE, TEXT, U64S, I32S };

/* clang-format off */
#define KIND(x) _Generic((x), int32_t: I32, int64_t: I64, uint64_t: U64, float: F32, double: F64, DLDataType: TYPE, DLDevice: DEVICE, \
                         char *: TEXT, uint64_t *: U64S, int32_t *: I32S, default: OTHER)
#define F(field) {#field, offsetof(S, field), sizeof(((S *)0)->field), KIND(((S *)0)->field)}
#define END {NULL, 0, 0, OTHER}

#define S kvc_config
static const kvcpy_field config_fields[] = {
    F(struct_size), F(ext), F(flags), F(device), F(page_size), F(num_layers), F(layers), F(layer_begin), F(layer_end),
    F(max_seqs), F(forwards_in_flight), F(max_tokens_per_forward), F(max_seq_len), F(num_pages), F(byte_budget),
    F(host_byte_budget), F(storage), F(pool_layout), F(pool_tensors), F(num_pool_tensors), F(num_threads), F(cpu_isa),
    F(reserved), F(allocator), F(executor), F(max_cross_len), F(state_stride), F(num_state_slots), F(event_capacity), END};
#undef S
#define S kvc_layer
static const kvcpy_field layer_fields[] = {
    F(struct_size), F(kind), F(num_q_heads), F(num_kv_heads), F(k_dim), F(v_dim), F(quant), F(k_dtype), F(v_dtype),
    F(rope), F(window), F(chunk), F(source_layer), F(latent_rank), F(latent_rope_dim), F(flags), F(states),
    F(num_states), F(reserved), F(k_scale), F(v_scale), END};
#undef S
#define S kvc_rope
static const kvcpy_field rope_fields[] = {
    F(struct_size), F(mode), F(style), F(rotary_dim), F(num_freq_factors), F(theta), F(scale), F(freq_factors),
    F(scaling), F(num_sections), F(sections), F(section_layout), F(reserved), F(factor), F(low_freq_factor),
    F(high_freq_factor), F(beta_fast), F(beta_slow), F(attention_factor), F(original_context), F(long_freq_factors), END};
#undef S
#define S kvc_state_spec
static const kvcpy_field state_spec_fields[] = {
    F(struct_size), F(ndim), F(dtype), F(shape), F(init), END};
#undef S
#define S kvc_plan_info
static const kvcpy_field plan_info_fields[] = {
    F(struct_size), F(page_size), F(num_layers), F(layer_begin), F(layer_end), F(num_groups), F(num_layer_regions),
    F(num_pages), F(page_bytes), F(bytes_per_token), F(pool_bytes), F(max_tokens), F(max_seq_len),
    F(state_slot_bytes), F(num_state_slots), F(state_slot_pages), F(prefix_block), F(forwards_in_flight),
    F(num_host_pages), F(request_pages), F(concurrency), F(waste), END};
#undef S
#define S kvc_group_info
static const kvcpy_field group_info_fields[] = {
    F(struct_size), F(num_layers), F(is_cross), F(window), F(chunk), F(page_bytes), F(padding_bytes), F(page_tokens),
    F(first_layer), F(request_pages), F(bytes_per_token), END};
#undef S
#define S kvc_layer_info
static const kvcpy_field layer_info_fields[] = {
    F(struct_size), F(kind), F(group), F(num_q_heads), F(num_kv_heads), F(k_dim), F(v_dim), F(k_dtype), F(v_dtype),
    F(page_bytes), F(k_page_bytes), F(v_page_bytes), F(bytes_per_token), F(window), F(chunk), F(source_layer),
    F(latent_rank), F(latent_rope_dim), F(flags), F(num_states), F(region), F(state_bytes), F(region_bytes),
    F(region_offset), F(quant), F(page_tokens), F(k_scale_bytes), F(v_scale_bytes), END};
#undef S
#define S kvc_stats
static const kvcpy_field stats_fields[] = {
    F(struct_size), F(num_seqs), F(total_length), F(pages_total), F(pages_free), F(pages_used), F(pages_shared),
    F(pages_peak), F(page_bytes), F(pool_bytes), F(forwards), F(forwards_aborted), F(tokens_appended),
    F(pages_copied), F(no_pages), F(step_bytes), F(step_copies), F(state_slots_used), F(state_slot_bytes),
    F(tree_tokens), F(cascades), F(slots_unused), F(pages_cached), F(pages_evictable), F(prefix_blocks),
    F(prefix_blocks_host), F(prefix_pinned), F(prefix_lookups), F(prefix_query_tokens), F(prefix_hit_tokens),
    F(recent_query_tokens), F(recent_hit_tokens), F(prefix_stored), F(prefix_duplicates), F(prefix_evicted),
    F(prefix_rejected), F(prefix_demoted), F(prefix_promoted), F(host_pages_total), F(host_pages_used),
    F(num_swapped_seqs), F(pages_swapped_out), F(pages_swapped_in), F(copy_runs), F(events_made), F(events_lost),
    F(block_lifetime), F(block_idle), F(block_reuse_gap), END};
#undef S
#define S kvc_seq_info
static const kvcpy_field seq_info_fields[] = {
    F(struct_size), F(length), F(first_position), F(last_position), F(num_pages), F(num_shared_pages), F(window),
    F(sink), F(in_forward), F(num_checkpoints), F(tree_nodes), F(cross_length), F(is_swapped), F(reserved),
    F(known_tokens), END};
#undef S
#define S kvc_device_caps
static const kvcpy_field device_caps_fields[] = {
    F(struct_size), F(backend_present), F(arch), F(num_cores), F(page_granularity), F(dtypes), F(isas),
    F(memory_bytes), F(memory_free_bytes), F(name), END};
#undef S
#define S kvc_error
static const kvcpy_field error_fields[] = {
    F(struct_size), F(status), F(sys_code), F(detail), F(message), END};
#undef S
#define S kvc_ext
static const kvcpy_field ext_fields[] = {
    F(type), F(next), END};
#undef S
#define S kvc_allocator
static const kvcpy_field allocator_fields[] = {
    F(struct_size), F(user), F(alloc), F(free), END};
#undef S
#define S kvc_executor
static const kvcpy_field executor_fields[] = {
    F(struct_size), F(user), F(concurrency), F(parallel_for), END};
#undef S
#define S kvc_forward_desc
static const kvcpy_field forward_desc_fields[] = {
    F(struct_size), F(ext), F(stream), F(num_seqs), F(seqs), F(append_lengths), F(tree_parents), F(tokens), F(flags),
    F(positions), F(cross_lengths), END};
#undef S
#define S kvc_attn_opt
static const kvcpy_field attn_opt_fields[] = {
    F(struct_size), F(ext), F(flags), F(scale), F(soft_cap), F(window), F(sink_logits), F(alibi_slopes), F(bias), F(spans), END};
#undef S
#define S kvc_linear_opt
static const kvcpy_field linear_opt_fields[] = {
    F(struct_size), F(ext), F(flags), F(decay), F(state), F(scale), F(reserved), F(skip), END};
#undef S
#define S kvc_op_pool
static const kvcpy_field op_pool_fields[] = {
    F(struct_size), F(k), F(v), F(layout), F(reserved), END};
#undef S
#define S kvc_op_table
static const kvcpy_field op_table_fields[] = {
    F(struct_size), F(seq_lens), F(qo_indptr), F(page_indptr), F(page_indices), F(block_table), END};
#undef S
#define S kvc_op_opt
static const kvcpy_field op_opt_fields[] = {
    F(struct_size), F(ext), F(executor), F(cpu_isa), F(full), F(attn), F(positions), F(rope), F(stream),
    END};
#undef S
#define S kvc_prefix_key
static const kvcpy_field prefix_key_fields[] = {
    F(struct_size), F(type), F(reserved), F(offset), F(data), F(size), END};
#undef S
#define S kvc_prefix_query
static const kvcpy_field prefix_query_fields[] = {
    F(struct_size), F(ext), F(flags), F(num_tokens), F(tokens), F(hashes), F(num_hashes), F(salt), F(salt_size),
    F(keys), F(num_keys), F(priority), F(reserved), END};
#undef S
#define S kvc_event
static const kvcpy_field event_fields[] = {
    F(struct_size), F(number), F(type), F(tier), F(from_tier), F(group), F(num_tokens), F(reserved), F(tokens),
    F(hash), F(parent), END};
#undef S
#define S DLDevice
static const kvcpy_field DLDevice_fields[] = {
    F(device_type), F(device_id), END};
#undef S
#define S DLDataType
static const kvcpy_field DLDataType_fields[] = {
    F(code), F(bits), F(lanes), END};
#undef S
#define S DLTensor
static const kvcpy_field DLTensor_fields[] = {
    F(data), F(device), F(ndim), F(dtype), F(shape), F(strides), F(byte_offset), END};
#undef S
#define S DLPackVersion
static const kvcpy_field DLPackVersion_fields[] = {
    F(major), F(minor), END};
#undef S
#define S DLManagedTensorVersioned
static const kvcpy_field DLManagedTensorVersioned_fields[] = {
    F(version), F(manager_ctx), F(deleter), F(flags), F(dl_tensor), END};
#undef S
/* clang-format on */

/* The first ones in the order of their numbers; the rest for kvcpy_layout. */
#define TABLE(name, fields) \
  { #name, sizeof(name), fields }
const kvcpy_struct kvcpy_structs[] = {TABLE(kvc_config, config_fields),
                                      TABLE(kvc_layer, layer_fields),
                                      TABLE(kvc_rope, rope_fields),
                                      TABLE(kvc_state_spec, state_spec_fields),
                                      TABLE(kvc_plan_info, plan_info_fields),
                                      TABLE(kvc_group_info, group_info_fields),
                                      TABLE(kvc_layer_info, layer_info_fields),
                                      TABLE(kvc_stats, stats_fields),
                                      TABLE(kvc_seq_info, seq_info_fields),
                                      TABLE(kvc_device_caps, device_caps_fields),
                                      TABLE(kvc_error, error_fields),
                                      TABLE(kvc_ext, ext_fields),
                                      TABLE(kvc_allocator, allocator_fields),
                                      TABLE(kvc_executor, executor_fields),
                                      TABLE(kvc_forward_desc, forward_desc_fields),
                                      TABLE(kvc_attn_opt, attn_opt_fields),
                                      TABLE(kvc_linear_opt, linear_opt_fields),
                                      TABLE(kvc_op_pool, op_pool_fields),
                                      TABLE(kvc_op_table, op_table_fields),
                                      TABLE(kvc_op_opt, op_opt_fields),
                                      TABLE(kvc_prefix_key, prefix_key_fields),
                                      TABLE(kvc_prefix_query, prefix_query_fields),
                                      TABLE(kvc_event, event_fields),
                                      TABLE(DLDevice, DLDevice_fields),
                                      TABLE(DLDataType, DLDataType_fields),
                                      TABLE(DLTensor, DLTensor_fields),
                                      TABLE(DLPackVersion, DLPackVersion_fields),
                                      TABLE(DLManagedTensorVersioned, DLManagedTensorVersioned_fields),
                                      {NULL, 0, NULL}};

static PyObject *array_out(const char *at, size_t size, int kind) {
  const size_t width = kind == U64S ? sizeof(uint64_t) : sizeof(int32_t);
  const Py_ssize_t count = (Py_ssize_t)(size / width);
  PyObject *tuple = PyTuple_New(count);
  Py_ssize_t i;
  for (i = 0; tuple && i < count; ++i) {
    PyObject *item = kind == U64S ? PyLong_FromUnsignedLongLong(((const uint64_t *)at)[i])
                                  : PyLong_FromLong(((const int32_t *)at)[i]);
    if (!item || PyTuple_SetItem(tuple, i, item)) Py_CLEAR(tuple);
  }
  return tuple;
}

static PyObject *field_out(const char *at, const kvcpy_field *field) {
  switch (field->kind) {
    case I32: return PyLong_FromLong(*(const int32_t *)at);
    case I64: return PyLong_FromLongLong(*(const int64_t *)at);
    case U64: return PyLong_FromUnsignedLongLong(*(const uint64_t *)at);
    case F32: return PyFloat_FromDouble((double)*(const float *)at);
    case F64: return PyFloat_FromDouble(*(const double *)at);
    case TEXT: return PyUnicode_DecodeUTF8(at, (Py_ssize_t)strnlen(at, field->size), "replace");
    case TYPE: {
      const DLDataType *type = (const DLDataType *)at;
      return Py_BuildValue("(iii)", (int)type->code, (int)type->bits, (int)type->lanes);
    }
    case DEVICE:
      return Py_BuildValue("(ii)", (int)((const DLDevice *)at)->device_type,
                           (int)((const DLDevice *)at)->device_id);
    default: return array_out(at, field->size, field->kind);
  }
}

static int internal(const kvcpy_field *field) {
  return field->kind == OTHER || strcmp(field->name, "struct_size") == 0 ||
         strcmp(field->name, "reserved") == 0;
}

PyObject *kvcpy_struct_out(int which, const void *from) {
  const kvcpy_field *field;
  PyObject *dict = PyDict_New();
  for (field = kvcpy_structs[which].fields; dict && field->name; ++field) {
    PyObject *value;
    if (internal(field)) continue;
    value = field_out((const char *)from + field->offset, field);
    if (!value || PyDict_SetItemString(dict, field->name, value)) Py_CLEAR(dict);
    Py_XDECREF(value);
  }
  return dict;
}

static int array_in(char *at, const kvcpy_field *field, PyObject *value) {
  kvcpy_ints items;
  int failed;
  kvcpy_ints_init(&items);
  failed = kvcpy_ints_in(value, &items, 4, field->name);
  if (!failed && items.count * sizeof(int32_t) > field->size) {
    kvcpy_fail(KVC_E_INVALID_ARGUMENT, "%s: %zu entries, at most %zu", field->name, items.count,
               field->size / sizeof(int32_t));
    failed = -1;
  }
  if (!failed && items.count) memcpy(at, items.data, items.count * sizeof(int32_t));
  kvcpy_ints_done(&items);
  return failed;
}

static int type_in(char *at, PyObject *value, const char *name) {
  DLDataType *type = (DLDataType *)at;
  int code, bits, lanes;
  if (!PyTuple_Check(value) || !PyArg_ParseTuple(value, "iii", &code, &bits, &lanes))
    return kvcpy_refuse(KVCPY_TYPE, "%s: expected (code, bits, lanes), got %R", name, value);
  type->code = (uint8_t)code;
  type->bits = (uint8_t)bits;
  type->lanes = (uint16_t)lanes;
  return 0;
}

static int integer_in(char *at, const kvcpy_field *field, PyObject *value) {
  switch (field->kind) {
    case U64: return kvcpy_uint64_in(value, (uint64_t *)at, field->name);
    case I64: return kvcpy_int64_in(value, (int64_t *)at, field->name);
    default: return kvcpy_int32_in(value, (int32_t *)at, field->name);
  }
}

static int field_in(char *at, const kvcpy_field *field, PyObject *value) {
  double real;
  switch (field->kind) {
    case TYPE: return type_in(at, value, field->name);
    case I32S: return array_in(at, field, value);
    case DEVICE: {
      int type, id;
      if (!PyTuple_Check(value) || !PyArg_ParseTuple(value, "ii", &type, &id))
        return kvcpy_refuse(KVCPY_TYPE, "%s: expected (device_type, device_id), got %R", field->name, value);
      ((DLDevice *)at)->device_type = (DLDeviceType)type;
      ((DLDevice *)at)->device_id = id;
      return 0;
    }
    case F32:
    case F64:
      if (kvcpy_real_in(value, &real, field->name)) return -1;
      if (field->kind == F32)
        *(float *)at = (float)real;
      else
        *(double *)at = real;
      return 0;
    default: return integer_in(at, field, value);
  }
}

static const kvcpy_field *find(int which, PyObject *key) {
  const kvcpy_field *field;
  for (field = kvcpy_structs[which].fields; field->name; ++field)
    if (PyUnicode_CompareWithASCIIString(key, field->name) == 0) return internal(field) ? NULL : field;
  return NULL;
}

int kvcpy_struct_in(int which, void *to, PyObject *dict, const char *const *taken) {
  PyObject *key, *value;
  Py_ssize_t at = 0;
  if (!PyDict_Check(dict)) return kvcpy_refuse_type(kvcpy_structs[which].name, "a dict", dict);
  memset(to, 0, kvcpy_structs[which].size);
  *(size_t *)to = kvcpy_structs[which].size;
  while (PyDict_Next(dict, &at, &key, &value)) {
    const kvcpy_field *field;
    const char *const *name = taken;
    if (!PyUnicode_Check(key)) continue;
    while (*name && PyUnicode_CompareWithASCIIString(key, *name)) ++name;
    if (*name || value == Py_None) continue;
    field = find(which, key);
    if (!field) return kvcpy_refuse(KVCPY_TYPE, "%s has no field %R", kvcpy_structs[which].name, key);
    if (field_in((char *)to + field->offset, field, value)) return -1;
  }
  return 0;
}

PyObject *kvcpy_layout(void) {
  const kvcpy_struct *s;
  const kvcpy_field *field;
  PyObject *all = PyDict_New();
  for (s = kvcpy_structs; all && s->name; ++s) {
    PyObject *fields = PyDict_New(), *entry;
    for (field = s->fields; fields && field->name; ++field) {
      PyObject *place = Py_BuildValue("[nn]", (Py_ssize_t)field->offset, (Py_ssize_t)field->size);
      if (!place || PyDict_SetItemString(fields, field->name, place)) Py_CLEAR(fields);
      Py_XDECREF(place);
    }
    entry = fields ? Py_BuildValue("{s:n,s:N}", "size", (Py_ssize_t)s->size, "fields", fields) : NULL;
    if (!entry || PyDict_SetItemString(all, s->name, entry)) Py_CLEAR(all);
    Py_XDECREF(entry);
  }
  return all;
}
