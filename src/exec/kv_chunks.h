// The keys visible to rows of a sequence, split into KV chunks for work items. Pure functions of
// the sequence: the bits of a result depend on nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"

namespace kvc {

// Keys per chunk of a decode item. Chunks end at absolute multiples of it.
constexpr int64_t kSplitKeys = 512;
// The same for latent layers, whose partial results are large beside their keys.
constexpr int64_t kLatentSplitKeys = 1024;
// Tile items begin at absolute multiples of it where the kernel packs blocks, or where keys meet Q
// that is rotated otherwise.
constexpr int64_t kTileKeys = 64;

struct KvChunk {
  int64_t begin, end;
  bool sink_part;
  bool kept_part = false;  // Its keys are kept rows.

  bool operator==(const KvChunk&) const = default;
};

// The keys visible to token rows [row_begin, row_end): [0, sink_end) and [begin, end). sink_end is
// 0 when no gap lies between the two. Keys before sink_q_end meet Q that is rotated otherwise, so
// that chunks end there.
struct VisibleKeys {
  int64_t sink_end;
  int64_t begin, end;
  int64_t sink_q_end = 0;
  int64_t kept_end = 0;  // Keys before it are read from kept rows; chunks end there too.

  int64_t count() const { return sink_end + (end > begin ? end - begin : 0); }
};

VisibleKeys visible_keys(const kernels::AttnSequence& sequence, int64_t row_begin, int64_t row_end,
                         bool causal);

// The chunks of a decode sequence from key `first_key` on; empty when there is none. Throws
// std::bad_alloc.
void decode_chunks(const VisibleKeys& keys, int64_t first_key, int64_t split_keys,
                   std::vector<KvChunk>* chunks);

// The chunks of a tile item: one, or two where Q is rotated otherwise for the first keys. Never
// empty; one more where the first keys are kept rows. Throws std::bad_alloc.
void tile_chunks(const VisibleKeys& keys, std::vector<KvChunk>* chunks);

}  // namespace kvc
