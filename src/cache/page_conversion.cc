#include "src/cache/page_conversion.h"

#include <cstring>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/exec/row_moves.h"
#include "src/plan/layout_text.h"

namespace kvc {
namespace {

using kernels::DType;

// The value of a field in a layout text; false: it is not there, or is no type that can be
// converted.
bool read_dtype(const std::string& text, const std::string& field, DType* out) {
  const std::string line = "\n" + field + " = ";
  const size_t at = text.find(line);
  if (at == std::string::npos) return false;
  const size_t begin = at + line.size();
  const std::string value = text.substr(begin, text.find('\n', begin) - begin);
  for (const DType type : {DType::kF32, DType::kF16, DType::kBF16}) {
    if (value == dtype_name(type)) return *out = type, true;
  }
  return false;
}

}  // namespace

PageConversion::PageConversion(const Plan& plan, const std::string& file_layout, const char* name)
    : plan_(&plan), spec_(plan.spec()), kernels_(choose_kernels(KVC_CPU_ISA_AUTO, "")) {
  for (int32_t local = 0; local < spec_.num_local_layers(); ++local) {
    LayerSpec& layer = spec_.layers[local];
    const std::string prefix = "layers[" + std::to_string(spec_.layer_begin + local) + "].";
    if (layer.keeps_pages() && !layer.is_quantised()) {
      (void)read_dtype(file_layout, prefix + "k_dtype", &layer.k_dtype);
      if (layer.v_in_k)
        layer.v_dtype = layer.k_dtype;
      else
        (void)read_dtype(file_layout, prefix + "v_dtype", &layer.v_dtype);
    }
    for (size_t i = 0; i < layer.states.size(); ++i) {
      (void)read_dtype(file_layout, prefix + "states[" + std::to_string(i) + "].dtype",
                       &layer.states[i].dtype);
    }
  }
  // What is still different is no element type.
  const std::string difference =
      layout_difference(layout_text(spec_), "this cache", file_layout, "the file");
  if (!difference.empty()) {
    fail(KVC_E_UNSUPPORTED, "%s has pages of another layout, which KVC_LOAD_CONVERT leaves: %s",
         name, difference.c_str());
  }
  from_ = make_layout(spec_);
}

// One row of one head in a page of one token: the kernel that moves rows converts it.
void PageConversion::convert(const std::byte* from, DType from_type, std::byte* to, DType to_type,
                             int64_t count) const {
  const int32_t page = 0;
  kernels_->gather({.rows = {const_cast<std::byte*>(from), 0, 0, 0, from_type},
                    .pages = &page,
                    .out = {to, 0, 0, to_type},
                    .page_size = 1,
                    .num_heads = 1,
                    .dim = static_cast<int32_t>(count)},
                   0, 1);
}

void PageConversion::convert_page(size_t group, const std::byte* from, std::byte* to) const {
  const Layout& target = plan_->layout();
  std::memset(to, 0, static_cast<size_t>(target.group_bytes[group]));
  for (const int32_t local : spec_.groups[group].layers) {
    const LayerSpec& theirs = spec_.layers[local];
    const LayerSpec& mine = plan_->spec().layers[local];
    const LayerLayout& source_layer = from_.layers[local];
    const LayerLayout& target_layer = target.layers[local];
    const std::byte* source =
        from + from_.regions[source_layer.region].offset + source_layer.region_offset;
    std::byte* out = to + target.regions[target_layer.region].offset + target_layer.region_offset;
    if (mine.is_quantised()) {
      std::memcpy(out, source, static_cast<size_t>(source_layer.page_bytes));
      continue;
    }
    convert(source, theirs.k_dtype, out, mine.k_dtype,
            source_layer.k_bytes / kernels::dtype_bytes(theirs.k_dtype));
    if (source_layer.v_bytes == 0) continue;
    convert(source + source_layer.v_offset, theirs.v_dtype, out + target_layer.v_offset,
            mine.v_dtype, source_layer.v_bytes / kernels::dtype_bytes(theirs.v_dtype));
  }
}

void PageConversion::convert_state(const std::byte* from, std::byte* to) const {
  const Layout& target = plan_->layout();
  std::memset(to, 0, static_cast<size_t>(target.state_slot_bytes));
  for (size_t local = 0; local < from_.layers.size(); ++local) {
    for (size_t i = 0; i < spec_.layers[local].states.size(); ++i) {
      convert(from + from_.layers[local].state_offsets[i], spec_.layers[local].states[i].dtype,
              to + target.layers[local].state_offsets[i],
              plan_->spec().layers[local].states[i].dtype,
              spec_.layers[local].states[i].num_elements);
    }
  }
}

}  // namespace kvc
