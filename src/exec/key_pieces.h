// Which keys the rows of a sequence see together, cut into the key ranges of work items. Pure
// functions of the sequence alone, so that the bits of a result depend on nothing else.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/params.h"

namespace kvc {

// Keys per split of a decode item: a constant, cut at absolute multiples.
constexpr int64_t kSplitKeys = 512;
// Of latent layers, whose partial results are large beside their keys.
constexpr int64_t kLatentSplitKeys = 1024;
// Tile items begin at absolute multiples of this where the kernel packs blocks, but for sinks that
// end elsewhere.
constexpr int64_t kTileKeys = 64;

struct KeyPiece {
  int64_t begin, end;
  bool sink_part;

  bool operator==(const KeyPiece&) const = default;
};

// What token rows [row_begin, row_end) see together: [0, sink_end) and [begin, end). Without a gap
// between the two: sink_end = 0.
struct VisibleKeys {
  int64_t sink_end;
  int64_t begin, end;

  int64_t count() const { return sink_end + (end > begin ? end - begin : 0); }
};

// `split_sinks`: sinks stay apart from the rest even when no gap lies between, since their queries
// turn differently.
VisibleKeys visible_keys(const kernels::AttnSequence& sequence, int64_t row_begin, int64_t row_end,
                         bool causal, bool split_sinks);

// The pieces of a decode sequence from key `first_key` on; empty when there is none. Throws
// std::bad_alloc.
void cut_decode_keys(const VisibleKeys& keys, bool split_sinks, int64_t first_key,
                     int64_t split_keys, std::vector<KeyPiece>* pieces);

// The pieces of a tile item: one, or two when sinks stay apart. Never empty. Throws std::bad_alloc.
void cut_tile_keys(const VisibleKeys& keys, bool split_sinks, std::vector<KeyPiece>* pieces);

}  // namespace kvc
