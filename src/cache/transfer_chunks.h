// The chunks of a transfer: which bytes of which pages travel in which message.
//
// Both sides derive them from the layout, which is equal, and from the shape of the sequence on
// either side. What lies between the rows of a page belongs to nobody and does not travel.
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

class TransferChunks {
 public:
  struct Chunk {
    int32_t group;  // -1: bytes of the state slot.
    int64_t first;  // Index into places(group), or a byte.
    int64_t count;
  };

  // Throws std::bad_alloc.
  TransferChunks(const Plan& plan, const TransferShape& mine, const TransferShape& theirs);

  const std::vector<Chunk>& chunks() const { return chunks_; }
  // Places of the table of a layer group that travel, ascending.
  const std::vector<int64_t>& places(size_t group) const { return places_[group]; }
  uint64_t chunk_bytes(uint32_t chunk) const;
  // Adds the ranges of a page in the pool, or of one that was packed as Device::read_pages() does.
  void add_page(const PagePool& pool, size_t group, PageId page, std::vector<IoRange>* out) const;
  void add_packed(std::byte* page, size_t group, std::vector<IoRange>* out) const;

 private:
  struct Part {
    int32_t local_layer;
    int64_t offset;  // In the layer's part of a page.
    int64_t packed;  // In a packed page.
    int64_t bytes;
  };

  std::vector<std::vector<Part>> parts_;  // [layer group]
  std::vector<int64_t> page_bytes_;       // [layer group] Of all parts.
  std::vector<std::vector<int64_t>> places_;
  std::vector<Chunk> chunks_;
};

}  // namespace kvc
