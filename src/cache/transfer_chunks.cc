#include "src/cache/transfer_chunks.h"

#include <algorithm>

#include "src/plan/layout.h"

namespace kvc {
namespace {

void add_range(std::byte* data, int64_t bytes, std::vector<IoRange>* out) {
  if (!out->empty() && out->back().data + out->back().size == data) {
    out->back().size += static_cast<size_t>(bytes);
  } else {
    out->push_back({data, static_cast<size_t>(bytes)});
  }
}

}  // namespace

KeptRange kept_by_both(const KeptRange& a, const KeptRange& b) {
  if (a.kept_begin == 0) return b;
  if (b.kept_begin == 0) return a;
  return {std::min(a.sink_kept, b.sink_kept), std::max(a.kept_begin, b.kept_begin)};
}

TransferChunks::TransferChunks(const Plan& plan, const TransferShape& mine,
                               const TransferShape& theirs) {
  const Layout& layout = plan.layout();
  const std::vector<GroupSpec>& groups = plan.spec().groups;
  parts_.resize(groups.size());
  page_bytes_.resize(groups.size(), 0);
  places_.resize(groups.size());
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const int32_t local : groups[group].layers) {
      const LayerLayout& layer = layout.layers[local];
      const int64_t begin = layout.regions[layer.region].offset + layer.region_offset;
      const auto add = [&](int64_t offset, int64_t bytes) {
        if (bytes == 0) return;
        std::vector<Part>& parts = parts_[group];
        page_bytes_[group] += bytes;
        if (!parts.empty() && parts.back().local_layer == local &&
            parts.back().offset + parts.back().bytes == offset) {
          parts.back().bytes += bytes;
        } else {
          parts.push_back({local, offset, begin + offset, bytes});
        }
      };
      add(0, layer.k_bytes);
      add(layer.v_offset, layer.v_bytes);
      add(layer.k_scale_offset, layer.k_scale_bytes);
      add(layer.v_scale_offset, layer.v_scale_bytes);
    }
    const GroupSpec& spec = groups[group];
    if (spec.is_cross && mine.begin != 0) continue;  // The receiver has its encoder tokens.
    const int64_t page_size = spec.page_size;
    const KeptRange kept = kept_by_both(mine.groups[group], theirs.groups[group]);
    const int64_t end =
        spec.pages_for(spec.is_cross ? mine.cross_length : spec.tokens_of(mine.length));
    for (int64_t place = spec.is_cross ? 0 : mine.begin / page_size; place < end; ++place) {
      if (keeps_page(kept, place * page_size, (place + 1) * page_size))
        places_[group].push_back(place);
    }
    const auto count = static_cast<int64_t>(places_[group].size());
    const int64_t most =
        std::max<int64_t>(1, kTransferChunkBytes / std::max<int64_t>(1, page_bytes_[group]));
    for (int64_t first = 0; first < count && page_bytes_[group] != 0; first += most)
      chunks_.push_back({static_cast<int32_t>(group), first, std::min(most, count - first)});
  }
  if (mine.length == 0) return;
  for (int64_t first = 0; first < layout.state_slot_bytes; first += kTransferChunkBytes)
    chunks_.push_back({-1, first, std::min(kTransferChunkBytes, layout.state_slot_bytes - first)});
}

uint64_t TransferChunks::chunk_bytes(uint32_t index) const {
  const Chunk& chunk = chunks_[index];
  return static_cast<uint64_t>(chunk.group < 0 ? chunk.count
                                               : chunk.count * page_bytes_[chunk.group]);
}

void TransferChunks::add_page(const PagePool& pool, size_t group, PageId page,
                              std::vector<IoRange>* out) const {
  for (const Part& part : parts_[group]) {
    const LayerPages pages = pool.layer(part.local_layer);
    add_range(pages.base + page * pages.page_stride + part.offset, part.bytes, out);
  }
}

void TransferChunks::add_packed(std::byte* page, size_t group, std::vector<IoRange>* out) const {
  for (const Part& part : parts_[group]) add_range(page + part.packed, part.bytes, out);
}

}  // namespace kvc
