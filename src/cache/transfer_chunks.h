// The chunks of a transfer: which rows of which pages travel in which message.
//
// Both sides derive them from the shapes of the sequence on either side, in pages of the receiver,
// so that payloads land in their place. Pages of a sender may have another size, and keep other
// heads. Bytes between the rows of a page belong to nobody and do not travel.
#pragma once

#include <cstdint>
#include <vector>

#include "src/pages/pool.h"
#include "src/plan/plan.h"
#include "src/transfer/engine.h"
#include "src/transfer/message.h"

namespace kvc {

// A chunk has about so many bytes: one digest finds damage in it, one message moves it.
constexpr int64_t kTransferChunkBytes = int64_t{1} << 20;

// What both sides keep of a table.
KeptRange kept_by_both(const KeptRange& a, const KeptRange& b);
inline bool keeps_page(const KeptRange& kept, int64_t first, int64_t end) {
  return first < kept.sink_kept || end > kept.kept_begin;
}

// Which of a cache's heads travel: the `part`-th of `num_parts` equal runs of them.
struct HeadSlice {
  int32_t part = 0, num_parts = 1;
};

class TransferChunks {
 public:
  struct Options {
    bool is_by_layer;     // A chunk has rows of one layer, so that it can leave before others.
    HeadSlice heads;      // Heads of this side.
    bool has_replicated;  // Latents and states travel, which each tensor-parallel rank keeps whole.
  };
  // Layers whose rows travel together: one, or all of a layer group.
  struct Lane {
    int32_t group;
    int32_t first_part, end_part;  // In the parts of the group.
    int64_t page_bytes;            // Bytes of a page of the receiver.
    uint32_t first_chunk, end_chunk;
  };
  struct Chunk {
    int32_t lane;   // -1: bytes of the state slot.
    int64_t first;  // Index into places(group), or a byte.
    int64_t count;
  };
  // Rows of one layer that follow each other by head and token: K, V or their scales.
  struct Part {
    int32_t local_layer;
    int64_t offset;  // Place of the first head that travels, in the layer's part of a page.
    int64_t packed;  // The same in a packed page.
    int64_t row_bytes;
    int64_t num_heads;
  };

  // `receiver`, `sender`: shapes of both sides; this side's plan. Throws std::bad_alloc, or
  // UNSUPPORTED for heads that cannot be divided.
  TransferChunks(const Plan& plan, const TransferShape& receiver, const TransferShape& sender,
                 const Options& options);

  const std::vector<Chunk>& chunks() const { return chunks_; }
  const std::vector<Lane>& lanes() const { return lanes_; }
  size_t group_of(const Chunk& chunk) const {
    return static_cast<size_t>(lanes_[static_cast<size_t>(chunk.lane)].group);
  }
  // Places of the receiver's table that travel, ascending.
  const std::vector<int64_t>& places(size_t group) const { return places_[group]; }
  const std::vector<Part>& parts(size_t group) const { return parts_[group]; }
  // The receiver's.
  int64_t page_size(size_t group) const { return page_sizes_[group]; }
  uint64_t chunk_bytes(uint32_t chunk) const;
  // Adds the ranges of a page of the receiver's size in the pool, or of one that was packed as
  // Device::read_pages() does.
  void add_page(const PagePool& pool, const Lane& lane, PageId page,
                std::vector<IoRange>* out) const;
  void add_packed(std::byte* page, const Lane& lane, std::vector<IoRange>* out) const;

 private:
  void add_parts(const Plan& plan, size_t group, const Options& options);
  // Places from `num_full` on have a chunk of their own.
  void add_lane(size_t group, size_t first_part, size_t end_part, int64_t num_full);

  std::vector<std::vector<Part>> parts_;  // [layer group]
  std::vector<std::vector<int64_t>> places_;
  std::vector<int64_t> page_sizes_;
  std::vector<Lane> lanes_;
  std::vector<Chunk> chunks_;
};

}  // namespace kvc
