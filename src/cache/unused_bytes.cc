#include "src/cache/unused_bytes.h"

#include <algorithm>
#include <utility>

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
      add(layer.k_scale_offset + layer.k_scale_bytes, layer.v_scale_bytes);
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

}  // namespace kvc
