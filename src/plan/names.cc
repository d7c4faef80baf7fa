#include "src/plan/names.h"

#include "src/base/dtype.h"

namespace kvc {

std::string k_type_name(const LayerSpec& layer) {
  return layer.is_quantised() ? describe(layer.k_type).text : dtype_name(layer.k_dtype);
}

std::string v_type_name(const LayerSpec& layer) {
  return layer.is_quantised() ? describe(layer.v_type).text : dtype_name(layer.v_dtype);
}

const char* storage_name(kvc_storage storage) {
  return storage == KVC_STORAGE_OWNED      ? "owned"
         : storage == KVC_STORAGE_BORROWED ? "borrowed"
                                           : "none";
}

const char* pool_layout_name(kvc_pool_layout layout) {
  return layout == KVC_POOL_LAYER_FIRST ? "layer_first" : "page_first";
}

const char* group_kind_name(const GroupSpec& group) {
  if (group.is_cross) return "cross";
  return group.window != 0 ? "window" : group.chunk != 0 ? "chunk" : "full";
}

}  // namespace kvc
