#include "src/exec/kv_chunks.h"

#include <algorithm>

#include "kernels/mask.h"

namespace kvc {
namespace {

using kernels::AttnSequence;

void add_chunks(int64_t begin, int64_t end, int64_t sink_q_end, int64_t split_keys,
                std::vector<KvChunk>* chunks) {
  while (begin < end) {
    const bool sink_part = begin < sink_q_end;
    const int64_t next =
        std::min({(begin / split_keys + 1) * split_keys, end, sink_part ? sink_q_end : end});
    chunks->push_back({begin, next, sink_part});
    begin = next;
  }
}

}  // namespace

VisibleKeys visible_keys(const AttnSequence& sequence, int64_t row_begin, int64_t row_end,
                         bool causal) {
  const int64_t end = kernels::row_range<int64_t>(sequence, causal ? 1 : 0, row_end - 1).end;
  VisibleKeys keys{0, 0, std::max<int64_t>(0, end)};
  keys.sink_q_end = std::clamp<int64_t>(sequence.sink_q_end, 0, keys.end);
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
  if (keys.sink_q_end == 0 && keys.sink_end > first_key && keys.sink_end <= split_keys) {
    // A few sink tokens are not worth an item: the first chunk spans the gap, which the kernel
    // skips.
    add_chunks(begin, keys.end, 0, split_keys, chunks);
    if (!chunks->empty()) {
      chunks->front().begin = first_key;
      return;
    }
  }
  add_chunks(first_key, keys.sink_end, keys.sink_q_end, split_keys, chunks);
  add_chunks(begin, keys.end, keys.sink_q_end, split_keys, chunks);
}

void tile_chunks(const VisibleKeys& keys, std::vector<KvChunk>* chunks) {
  chunks->clear();
  const int64_t first = keys.begin / kTileKeys * kTileKeys;
  const bool has_first = keys.sink_end > 0 || keys.begin < keys.sink_q_end;
  if (keys.sink_q_end > 0 && has_first)
    chunks->push_back({keys.sink_end > 0 ? 0 : first, keys.sink_q_end, true});
  if (keys.sink_q_end > 0 && std::max(keys.sink_q_end, keys.begin) >= keys.end && !chunks->empty())
    return;
  // Sinks that meet the same Q as the rest lie in one item with it.
  const bool sinks_here = keys.sink_end > keys.sink_q_end;
  chunks->push_back({std::max(keys.sink_q_end, sinks_here ? 0 : first), keys.end, false});
}

}  // namespace kvc
