#include "src/cache/transfer_chunks.h"

#include <algorithm>

#include "src/base/error.h"
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

TransferChunks::TransferChunks(const Plan& plan, const TransferShape& receiver,
                               const TransferShape& sender, const Options& options) {
  const std::vector<GroupSpec>& groups = plan.spec().groups;
  parts_.resize(groups.size());
  places_.resize(groups.size());
  for (size_t group = 0; group < groups.size(); ++group) {
    const GroupSpec& spec = groups[group];
    const int64_t page_size = page_sizes_.emplace_back(receiver.page_sizes[group]);
    add_parts(plan, group, options);
    if (spec.is_cross && receiver.begin != 0) continue;  // The receiver has its encoder tokens.
    const KeptRange kept = kept_by_both(receiver.groups[group], sender.groups[group]);
    const int64_t stored = spec.is_cross ? receiver.cross_length : spec.tokens_of(receiver.length);
    const int64_t end = (stored + page_size - 1) / page_size;
    for (int64_t place = spec.is_cross ? 0 : receiver.begin / page_size; place < end; ++place) {
      if (keeps_page(kept, place * page_size, (place + 1) * page_size))
        places_[group].push_back(place);
    }
    const std::vector<Part>& parts = parts_[group];
    for (size_t first = 0; first < parts.size();) {
      size_t next = options.is_by_layer ? first : parts.size();
      while (next < parts.size() && parts[next].local_layer == parts[first].local_layer) ++next;
      add_lane(group, first, next, options.is_by_layer ? stored / page_size : end);
      first = next;
    }
  }
  if (receiver.length == 0 || !options.has_replicated) return;
  const int64_t state_bytes = plan.layout().state_slot_bytes;
  for (int64_t first = 0; first < state_bytes; first += kTransferChunkBytes)
    chunks_.push_back({-1, first, std::min(kTransferChunkBytes, state_bytes - first)});
}

void TransferChunks::add_parts(const Plan& plan, size_t group, const Options& options) {
  const Layout& layout = plan.layout();
  const GroupSpec& spec = plan.spec().groups[group];
  for (const int32_t local : spec.layers) {
    const LayerLayout& layer = layout.layers[local];
    const LayerSpec& heads_of = plan.spec().layers[local];
    const int64_t begin = layout.regions[layer.region].offset + layer.region_offset;
    const int64_t all_heads = heads_of.num_kv_heads;
    HeadSlice slice = options.heads;
    if (heads_of.is_mla()) {
      if (!options.has_replicated) continue;
      slice = {};
    }
    if (all_heads % slice.num_parts != 0) {
      fail_with(KVC_E_UNSUPPORTED, all_heads,
                "layer %d has %lld KV heads, which %d ranks of the other side cannot share",
                plan.spec().global_id(local), ll(all_heads), slice.num_parts);
    }
    const int64_t num_heads = all_heads / slice.num_parts;
    const auto add = [&](int64_t offset, int64_t bytes) {
      if (bytes == 0) return;
      const int64_t from = offset + bytes / all_heads * num_heads * slice.part;
      parts_[group].push_back(
          {local, from, begin + from, bytes / all_heads / spec.page_size, num_heads});
    };
    add(0, layer.k_bytes);
    add(layer.v_offset, layer.v_bytes);
    add(layer.k_scale_offset, layer.k_scale_bytes);
    add(layer.v_scale_offset, layer.v_scale_bytes);
  }
}

void TransferChunks::add_lane(size_t group, size_t first_part, size_t end_part, int64_t num_full) {
  Lane lane{static_cast<int32_t>(group),           static_cast<int32_t>(first_part),
            static_cast<int32_t>(end_part),        0,
            static_cast<uint32_t>(chunks_.size()), 0};
  for (size_t part = first_part; part < end_part; ++part)
    lane.page_bytes += parts_[group][part].num_heads * parts_[group][part].row_bytes;
  lane.page_bytes *= page_sizes_[group];
  const auto count = static_cast<int64_t>(places_[group].size());
  const int64_t most = std::max<int64_t>(1, kTransferChunkBytes / lane.page_bytes);
  // A page that is not full waits for the end, and keeps no other waiting.
  const bool has_last = count != 0 && places_[group].back() >= num_full;
  const auto add = [&](int64_t first, int64_t chunk_count) {
    chunks_.push_back({static_cast<int32_t>(lanes_.size()), first, chunk_count});
  };
  for (int64_t first = 0, end = count - (has_last ? 1 : 0); first < end; first += most)
    add(first, std::min(most, end - first));
  if (has_last) add(count - 1, 1);
  lane.end_chunk = static_cast<uint32_t>(chunks_.size());
  lanes_.push_back(lane);
}

uint64_t TransferChunks::chunk_bytes(uint32_t index) const {
  const Chunk& chunk = chunks_[index];
  return static_cast<uint64_t>(chunk.lane < 0 ? chunk.count
                                              : chunk.count * lanes_[chunk.lane].page_bytes);
}

void TransferChunks::add_page(const PagePool& pool, const Lane& lane, PageId page,
                              std::vector<IoRange>* out) const {
  const auto group = static_cast<size_t>(lane.group);
  for (int32_t i = lane.first_part; i < lane.end_part; ++i) {
    const Part& part = parts_[group][i];
    const LayerPages pages = pool.layer(part.local_layer);
    add_range(pages.base + page * pages.page_stride + part.offset,
              part.num_heads * part.row_bytes * page_sizes_[group], out);
  }
}

void TransferChunks::add_packed(std::byte* page, const Lane& lane,
                                std::vector<IoRange>* out) const {
  const auto group = static_cast<size_t>(lane.group);
  for (int32_t i = lane.first_part; i < lane.end_part; ++i) {
    const Part& part = parts_[group][i];
    add_range(page + part.packed, part.num_heads * part.row_bytes * page_sizes_[group], out);
  }
}

}  // namespace kvc
