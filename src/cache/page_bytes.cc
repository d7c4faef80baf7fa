#include "src/cache/page_bytes.h"

#include <algorithm>
#include <cstring>
#include <unordered_map>
#include <utility>
#include <vector>

#include "src/base/dtype.h"
#include "src/base/error.h"
#include "src/base/tensor.h"
#include "src/cache/cache_core.h"
#include "src/cache/context_shift.h"
#include "src/exec/row_moves.h"
#include "src/plan/layout.h"
#include "src/plan/spec.h"

namespace kvc {

UnusedBytes::UnusedBytes(const Plan& plan) {
  const Layout& layout = plan.layout();
  for (size_t group = 0; group < plan.spec().groups.size(); ++group) {
    const int64_t page_size = plan.spec().groups[group].page_size;
    page_sizes_.push_back(page_size);
    std::vector<Block>& blocks = blocks_.emplace_back();
    std::vector<Range> used;
    for (const int32_t local : plan.spec().groups[group].layers) {
      const LayerLayout& layer = layout.layers[local];
      const int64_t begin = layout.regions[layer.region].offset + layer.region_offset;
      const int64_t num_heads = plan.spec().layers[local].num_kv_heads;
      const auto add = [&](int64_t offset, int64_t bytes) {
        if (bytes == 0) return;
        blocks.push_back({begin + offset, bytes / num_heads / page_size, num_heads});
        used.push_back({begin + offset, begin + offset + bytes});
      };
      add(0, layer.k_bytes);
      add(layer.v_offset, layer.v_bytes);
      add(layer.k_scale_offset, layer.k_scale_bytes);
      add(layer.v_scale_offset, layer.v_scale_bytes);
    }
    page_gaps_.push_back(gaps(std::move(used), layout.group_bytes[group]));
  }
  std::vector<Range> used;
  for (size_t local = 0; local < layout.layers.size(); ++local) {
    const std::vector<StateSpec>& states = plan.spec().layers[local].states;
    for (size_t i = 0; i < states.size(); ++i) {
      const int64_t begin = layout.layers[local].state_offsets[i];
      used.push_back({begin, begin + states[i].bytes()});
    }
  }
  state_gaps_ = gaps(std::move(used), layout.state_slot_bytes);
}

std::vector<UnusedBytes::Range> UnusedBytes::gaps(std::vector<Range> used, int64_t size) {
  std::sort(used.begin(), used.end(),
            [](const Range& a, const Range& b) { return a.begin < b.begin; });
  used.push_back({size, size});
  std::vector<Range> found;
  int64_t end = 0;
  for (const Range& range : used) {
    if (range.begin > end) found.push_back({end, range.begin});
    end = range.end;
  }
  return found;
}

void UnusedBytes::clear_page(size_t group, int64_t tokens, std::byte* page) const {
  clear(page_gaps_[group], page);
  clear_rows(group, tokens, page_sizes_[group], page);
}

void UnusedBytes::clear_rows(size_t group, int64_t begin, int64_t end, std::byte* page) const {
  for (const Block& block : blocks_[group]) {
    for (int64_t row = 0; row < block.num_rows; ++row) {
      std::memset(page + block.begin + (row * page_sizes_[group] + begin) * block.row_bytes, 0,
                  static_cast<size_t>((end - begin) * block.row_bytes));
    }
  }
}

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
    if (layer.keeps_pages()) {
      if (layer.k_quant == KVC_QUANT_NONE)
        (void)read_dtype(file_layout, prefix + "k_dtype", &layer.k_dtype);
      if (layer.v_in_k)
        layer.v_dtype = layer.k_dtype;
      else if (layer.v_quant == KVC_QUANT_NONE)
        (void)read_dtype(file_layout, prefix + "v_dtype", &layer.v_dtype);
    }
    for (size_t i = 0; i < layer.states.size(); ++i) {
      (void)read_dtype(file_layout, prefix + "states[" + std::to_string(i) + "].dtype",
                       &layer.states[i].dtype);
    }
  }
  for (LayerSpec& layer : spec_.layers) {
    if (!layer.is_kept_rows()) continue;
    const LayerSpec kept = kept_rows_of(spec_.layers[layer.kept_of]);
    layer.k_dtype = kept.k_dtype;
    layer.v_dtype = kept.v_dtype;
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
    const auto copy = [&](int64_t from_offset, int64_t to_offset, int64_t bytes) {
      std::memcpy(out + to_offset, source + from_offset, static_cast<size_t>(bytes));
    };
    if (mine.k_quant != KVC_QUANT_NONE)
      copy(0, 0, source_layer.k_bytes);
    else
      convert(source, theirs.k_dtype, out, mine.k_dtype,
              source_layer.k_bytes / kernels::dtype_bytes(theirs.k_dtype));
    copy(source_layer.k_scale_offset, target_layer.k_scale_offset, source_layer.k_scale_bytes);
    copy(source_layer.v_scale_offset, target_layer.v_scale_offset, source_layer.v_scale_bytes);
    if (source_layer.v_bytes == 0) continue;
    if (mine.v_quant != KVC_QUANT_NONE)
      copy(source_layer.v_offset, target_layer.v_offset, source_layer.v_bytes);
    else
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

// Where the bytes of each page lie, on both sides.
struct PageBytes::Rows {
  const int64_t* ids;
  int64_t id_stride;
  int64_t count;
  std::byte* host;
  int64_t host_stride;
  LayerPages pages;
  int64_t bytes;

  int64_t id(int64_t row) const { return ids[row * id_stride]; }
  std::byte* host_at(int64_t row) const { return host + row * host_stride; }
  std::byte* page_at(int64_t row) const { return pages.base + id(row) * pages.page_stride; }
};

PageBytes::Rows PageBytes::check(const char* function, int32_t layer, const DLTensor* ids,
                                 const DLTensor* bytes, const char* name) const {
  core_.require_storage(function);
  const int32_t source = core_.require_paged_layer(layer);
  core_.refuse_kept_rows(source, function);
  const int64_t page_bytes = core_.plan->layout().layers[source].page_bytes;
  check_integers(ids, "ids", 64, {-1});
  const int64_t count = ids->shape[0];
  const ByteRows rows = view_byte_rows(bytes, name, count, page_bytes);
  Rows found{reinterpret_cast<const int64_t*>(data_of(*ids)),
             stride_of(*ids, 0),
             count,
             rows.base,
             rows.row_stride,
             core_.pool.layer(source),
             page_bytes};
  for (int64_t row = 0; row < count; ++row) {
    if (found.id(row) < 0 || found.id(row) >= core_.allocator.num_pages()) {
      fail_with(KVC_E_OUT_OF_RANGE, row, "ids[%lld] = %lld out of range: the pool has %lld pages",
                ll(row), ll(found.id(row)), ll(core_.allocator.num_pages()));
    }
  }
  return found;
}

void PageBytes::read(int32_t layer, const DLTensor* ids, const DLTensor* out,
                     CallStream stream) const {
  const Rows rows = check("kvc_pages_export", layer, ids, out, "out");
  if (core_.found_gpu.table == nullptr) {
    for (int64_t row = 0; row < rows.count; ++row)
      core_.device->read_bytes(rows.host_at(row), rows.page_at(row), rows.bytes, stream);
    rotate_copies(layer, rows);
    return;
  }
  // The caller's memory need not be pinned.
  const Staging staging(core_.found_gpu, rows.bytes);
  for (int64_t row = 0; row < rows.count; ++row) {
    core_.device->read_bytes(staging.data(), rows.page_at(row), rows.bytes, stream);
    std::memcpy(rows.host_at(row), staging.data(), static_cast<size_t>(rows.bytes));
  }
}

// Where kvc_seq_shift has left rows as they were.
void PageBytes::rotate_copies(int32_t layer, const Rows& rows) const {
  const int32_t source = core_.require_paged_layer(layer);
  const int32_t group = core_.layer(source).group;
  const GroupSpec& spec = core_.group(static_cast<size_t>(group));
  if (spec.is_cross) return;
  struct Page {
    KeyLead lead;
    int64_t first;  // Its first token.
  };
  std::unordered_map<PageId, Page> pages;  // Sequences that share a page agree about its rows.
  core_.sequences.for_each([&](const Sequence& sequence) {
    if (sequence.lead.ahead == 0 || sequence.is_swapped) return;
    const PageTable& table = sequence.tables[static_cast<size_t>(group)];
    table.pages.for_each([&](int64_t place, PageId page) {
      if (place >= sequence.lead.begin / spec.page_size)
        pages[page] = {sequence.lead, place * spec.page_size};
    });
  });
  for (int64_t row = 0; row < rows.count && !pages.empty(); ++row) {
    const auto found = pages.find(static_cast<PageId>(rows.id(row)));
    if (found == pages.end()) continue;
    rotate_copied_page(core_, source, found->second.lead, found->second.first, rows.host_at(row));
  }
}

void PageBytes::write(int32_t layer, const DLTensor* ids, const DLTensor* in, CallStream stream) {
  const Rows rows = check("kvc_pages_import", layer, ids, in, "in");
  std::vector<int64_t> order(static_cast<size_t>(rows.count));
  for (int64_t row = 0; row < rows.count; ++row) order[row] = row;
  settle_key_leads(core_);
  if (core_.observer != nullptr)
    core_.sequences.for_each([](Sequence& sequence) { sequence.followed = 0; });
  std::sort(order.begin(), order.end(), [&](int64_t a, int64_t b) {
    return rows.id(a) != rows.id(b) ? rows.id(a) < rows.id(b) : a < b;
  });
  for (int64_t i = 1; i < rows.count; ++i) {
    if (rows.id(order[i]) != rows.id(order[i - 1])) continue;
    fail_with(KVC_E_INVALID_ARGUMENT, order[i],
              "ids[%lld] = %lld is ids[%lld] too: one destination", ll(order[i]),
              ll(rows.id(order[i])), ll(order[i - 1]));
  }
  if (core_.found_gpu.table == nullptr) {
    for (int64_t row = 0; row < rows.count; ++row)
      core_.device->write_bytes(rows.page_at(row), rows.host_at(row), rows.bytes, stream);
  } else {
    const Staging staging(core_.found_gpu, rows.bytes);
    for (int64_t row = 0; row < rows.count; ++row) {
      std::memcpy(staging.data(), rows.host_at(row), static_cast<size_t>(rows.bytes));
      core_.device->write_bytes(rows.page_at(row), staging.data(), rows.bytes, stream);
    }
  }
  core_.is_pool_exported = true;
}

}  // namespace kvc
