#include "src/plan/layout.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/math.h"

namespace kvc {

Layout make_layout(const Spec& spec) {
  // Bounded by the field limits: 65536 heads * 65536 tokens * 512 dims * 4 bytes * 2 * 65536 layers does not fit int64,
  // hence the checked sum below; a single layer does.
  Layout layout;
  int64_t widest = 1;
  for (size_t i = 0; i < spec.layers.size(); ++i) {
    const LayerSpec& layer = spec.layers[i];
    const int64_t k_element = kernels::dtype_bytes(layer.k_dtype);
    const int64_t v_element = kernels::dtype_bytes(layer.v_dtype);
    const int64_t rows = static_cast<int64_t>(layer.num_kv_heads) * spec.page_size;
    widest = std::max({widest, k_element, v_element});
    LayerLayout part{};
    part.k_bytes = rows * layer.k_dim * k_element;
    part.v_bytes = rows * layer.v_dim * v_element;
    part.v_offset = align_up(part.k_bytes, v_element);
    part.page_bytes = align_up(part.v_offset + part.v_bytes, std::max(k_element, v_element));
    part.page_offset = align_up(layout.page_bytes, std::max(k_element, v_element));
    part.bytes_per_token = layer.num_kv_heads * (layer.k_dim * k_element + layer.v_dim * v_element);
    if (__builtin_add_overflow(part.page_offset, part.page_bytes, &layout.page_bytes)) {
      fail(KVC_E_OUT_OF_RANGE, "config.layers: the bytes of one page overflow at layer %d",
           spec.layer_begin + static_cast<int32_t>(i));
    }
    layout.bytes_per_token += part.bytes_per_token;
    layout.layers.push_back(part);
  }
  // Pages follow each other in the pool: the first layer of the next one must be aligned as well.
  layout.page_bytes = align_up(layout.page_bytes, widest);
  return layout;
}

}  // namespace kvc
