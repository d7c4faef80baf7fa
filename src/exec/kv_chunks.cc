#include "src/exec/kv_chunks.h"

#include <algorithm>

namespace kvc {
namespace {

using kernels::AttnSequence;

int64_t end_of_row(const AttnSequence& sequence, int64_t row, bool causal) {
  return sequence.key_ends != nullptr ? sequence.key_ends[row]
                                      : sequence.first_key_end + (causal ? row : 0);
}

void cut_at_splits(int64_t begin, int64_t end, int64_t turn_end, int64_t split_keys,
                   std::vector<KvChunk>* chunks) {
  while (begin < end) {
    const bool turns = begin < turn_end;
    const int64_t next =
        std::min({(begin / split_keys + 1) * split_keys, end, turns ? turn_end : end});
    chunks->push_back({begin, next, turns});
    begin = next;
  }
}

}  // namespace

VisibleKeys visible_keys(const AttnSequence& sequence, int64_t row_begin, int64_t row_end,
                         bool causal) {
  VisibleKeys keys{0, 0, std::max<int64_t>(0, end_of_row(sequence, row_end - 1, causal))};
  keys.turn_end = std::clamp<int64_t>(sequence.turn_end, 0, keys.end);
  if (sequence.key_begins == nullptr) return keys;
  keys.begin = *std::min_element(sequence.key_begins + row_begin, sequence.key_begins + row_end);
  keys.begin = std::clamp<int64_t>(keys.begin, 0, keys.end);
  const int64_t sink_end = std::clamp<int64_t>(sequence.sink_end, 0, keys.end);
  if (sink_end < keys.begin) {
    keys.sink_end = sink_end;
  } else {
    keys.begin = 0;
  }
  return keys;
}

void decode_chunks(const VisibleKeys& keys, int64_t first_key, int64_t split_keys,
                   std::vector<KvChunk>* chunks) {
  chunks->clear();
  const int64_t begin = std::max(keys.begin, first_key);
  if (keys.turn_end == 0 && keys.sink_end > first_key && keys.sink_end <= split_keys) {
    // A few sink tokens are not worth an item: the first chunk spans the gap, which the kernel
    // skips.
    cut_at_splits(begin, keys.end, 0, split_keys, chunks);
    if (!chunks->empty()) {
      chunks->front().begin = first_key;
      return;
    }
  }
  cut_at_splits(first_key, keys.sink_end, keys.turn_end, split_keys, chunks);
  cut_at_splits(begin, keys.end, keys.turn_end, split_keys, chunks);
}

void tile_chunks(const VisibleKeys& keys, std::vector<KvChunk>* chunks) {
  chunks->clear();
  const int64_t first = keys.begin / kTileKeys * kTileKeys;
  const bool sees_first = keys.sink_end > 0 || keys.begin < keys.turn_end;
  if (keys.turn_end > 0 && sees_first)
    chunks->push_back({keys.sink_end > 0 ? 0 : first, keys.turn_end, true});
  if (keys.turn_end > 0 && std::max(keys.turn_end, keys.begin) >= keys.end && !chunks->empty())
    return;
  // Sinks that meet the same Q as the rest lie in one item with it.
  const bool sinks_here = keys.sink_end > keys.turn_end;
  chunks->push_back({std::max(keys.turn_end, sinks_here ? 0 : first), keys.end, false});
}

}  // namespace kvc
