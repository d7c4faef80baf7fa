#include "src/cache/exports.h"

#include <utility>
#include <vector>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/cache/cache_core.h"
#include "src/cache/context_shift.h"
#include "src/plan/spec.h"
#include "src/step/page_tables.h"

namespace kvc {
namespace {

// A managed tensor with everything it points at. The owner keeps the data alive.
template <typename Owner>
struct Exported {
  DLManagedTensorVersioned tensor{};
  std::vector<int64_t> shape;
  std::vector<int64_t> strides;
  Owner owner;
};

template <typename Owner>
DLManagedTensorVersioned* finish(std::unique_ptr<Exported<Owner>> exported, void* data,
                                 DLDataType dtype, uint64_t flags, DLDevice device) {
  Exported<Owner>* self = exported.release();
  self->tensor.version = {DLPACK_MAJOR_VERSION, DLPACK_MINOR_VERSION};
  self->tensor.manager_ctx = self;
  self->tensor.deleter = [](DLManagedTensorVersioned* tensor) {
    delete static_cast<Exported<Owner>*>(tensor->manager_ctx);
  };
  self->tensor.flags = flags;
  self->tensor.dl_tensor = {.data = data,
                            .device = device,
                            .ndim = static_cast<int32_t>(self->shape.size()),
                            .dtype = dtype,
                            .shape = self->shape.data(),
                            .strides = self->strides.data(),
                            .byte_offset = 0};
  return &self->tensor;
}

std::vector<int64_t> compact_strides(const std::vector<int64_t>& shape) {
  std::vector<int64_t> strides(shape.size(), 1);
  for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
  return strides;
}

DLManagedTensorVersioned* export_table(TableData table) {
  auto exported = std::make_unique<Exported<TableData>>();
  exported->shape = table.shape;
  exported->strides = compact_strides(table.shape);
  exported->owner = std::move(table);
  TableData& owned = exported->owner;
  const bool wide = owned.is_wide;
  void* data = wide ? static_cast<void*>(owned.i64.data()) : static_cast<void*>(owned.i32.data());
  const DLDataType dtype = wide ? DLDataType{kDLInt, 64, 1} : DLDataType{kDLInt, 32, 1};
  return finish(std::move(exported), data, dtype,
                DLPACK_FLAG_BITMASK_READ_ONLY | DLPACK_FLAG_BITMASK_IS_COPIED, kHost);
}

}  // namespace

DLManagedTensorVersioned* CacheExports::pool(int32_t layer, kvc_pool_kind kind) {
  core_.require_storage("kvc_export_pool");
  const int32_t source = core_.require_paged_layer(layer);
  core_.refuse_kept_rows(source, "kvc_export_pool");
  const LayerSpec& layer_spec = core_.layer(source);
  const LayerLayout& layout = core_.plan->layout().layers[source];
  const LayerPages& pages = core_.pool.layer(source);
  const int64_t num_pages = core_.allocator.num_pages();
  const int64_t heads = layer_spec.num_kv_heads;
  const int64_t tokens = core_.group_of(layer_spec).page_size;

  auto exported = std::make_unique<Exported<std::shared_ptr<PoolMemory>>>();
  exported->owner = core_.pool.memory();
  std::byte* data = pages.base;
  if (layer_spec.v_in_k && (kind == KVC_POOL_V || kind == KVC_POOL_KV)) {
    fail_with(KVC_E_UNSUPPORTED, kind, "kind = %d: V of layer %d lies in its K rows", kind, layer);
  }
  DLDataType dtype = layer_spec.k_type;
  switch (kind) {
    case KVC_POOL_K:
    case KVC_POOL_V: {
      const bool is_v = kind == KVC_POOL_V;
      const int64_t dim = is_v ? layer_spec.v_dim : layer_spec.k_dim;
      if (is_v) dtype = layer_spec.v_type;
      if (is_v) data += layout.v_offset;
      exported->shape = {num_pages, heads, tokens, dim};
      break;
    }
    case KVC_POOL_KV:
      if (layer_spec.k_dim != layer_spec.v_dim ||
          !same_type(layer_spec.k_type, layer_spec.v_type)) {
        fail(KVC_E_UNSUPPORTED,
             "kind = KV (2) needs equal K and V: layer %d has dims %d and %d, types %s and %s",
             layer, layer_spec.k_dim, layer_spec.v_dim, k_type_name(layer_spec).c_str(),
             v_type_name(layer_spec).c_str());
      }
      exported->shape = {num_pages, 2, heads, tokens, layer_spec.k_dim};
      break;
    case KVC_POOL_BYTES:
      dtype = {kDLUInt, 8, 1};
      exported->shape = {num_pages, layout.page_bytes};
      break;
    default:
      fail_with(KVC_E_INVALID_ARGUMENT, kind, "kind = %d is not a kvc_pool_kind (0 to %d)", kind,
                KVC_POOL_BYTES);
  }
  settle_key_leads(core_);
  exported->strides = compact_strides(exported->shape);
  // Elements, not bytes: types of 4 bits are packed.
  exported->strides[0] = pages.page_stride * 8 / dtype.bits;
  core_.is_pool_exported = true;
  return finish(std::move(exported), data, dtype, 0, core_.spec().device);
}

DLManagedTensorVersioned* CacheExports::page_table(int32_t group, kvc_table_kind kind) const {
  core_.require_group(group);
  return export_table(build_table(core_.forward.batch(), core_.spec(), group, kind));
}

DLManagedTensorVersioned* CacheExports::sequence_pages(kvc_seq seq, int32_t group) const {
  core_.require_group(group);
  const Sequence& sequence = core_.sequences.get_on_device(seq, "export");
  const GroupSpec& group_spec = core_.group(static_cast<size_t>(group));
  // Inside a forward the table already holds the new tokens' pages; the answer is about what was
  // there before.
  const BatchEntry* entry = core_.entry_of(sequence);
  const int64_t stored =
      entry != nullptr ? entry->old_stored(group_spec) : sequence.stored(group_spec);
  const PageList& pages = sequence.tables[group].pages;
  TableData table;
  for (int64_t i = 0; i < group_spec.pages_for(stored); ++i) {
    if (pages[i] != kNoPage) table.i32.push_back(pages[i]);
  }
  table.shape = {static_cast<int64_t>(table.i32.size())};
  return export_table(std::move(table));
}

}  // namespace kvc
