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

// Cuts what is kept from the chunks. A chunk of kept rows holds no keys in front of the window that
// are no sink tokens: their pages are there, but nothing else of them may be.
void cut_kept(const VisibleKeys& keys, std::vector<KvChunk>* chunks) {
  for (size_t i = 0; keys.kept_end > 0 && i < chunks->size(); ++i) {
    const KvChunk chunk = (*chunks)[i];
    if (chunk.begin >= keys.kept_end) continue;
    KvChunk kept = chunk;
    kept.kept_part = true;
    kept.end = std::min(chunk.end, keys.kept_end);
    if (chunk.begin >= keys.sink_end) kept.begin = std::max(chunk.begin, keys.begin);
    if (kept.begin >= kept.end) continue;
    (*chunks)[i] = kept;
    if (chunk.end <= keys.kept_end) continue;
    chunks->insert(chunks->begin() + static_cast<ptrdiff_t>(i) + 1,
                   {keys.kept_end, chunk.end, chunk.sink_part});
    ++i;
  }
}

}  // namespace

VisibleKeys visible_keys(const AttnSequence& sequence, int64_t row_begin, int64_t row_end,
                         bool causal) {
  const int64_t end = kernels::row_range<int64_t>(sequence, causal ? 1 : 0, row_end - 1).end;
  VisibleKeys keys{0, 0, std::max<int64_t>(0, end)};
  keys.sink_q_end = std::clamp<int64_t>(sequence.sink_q_end, 0, keys.end);
  keys.kept_end = std::clamp<int64_t>(sequence.kept_end, 0, keys.end);
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

namespace {

void cut_decode(const VisibleKeys& keys, int64_t first_key, int64_t split_keys,
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

void cut_tile(const VisibleKeys& keys, std::vector<KvChunk>* chunks) {
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

}  // namespace

void decode_chunks(const VisibleKeys& keys, int64_t first_key, int64_t split_keys,
                   std::vector<KvChunk>* chunks) {
  if (keys.kept_end == 0) return cut_decode(keys, first_key, split_keys, chunks);
  // Kept rows are always the sequence's own: what is in front of `first_key` is quantised.
  cut_decode(keys, 0, split_keys, chunks);
  cut_kept(keys, chunks);
  std::erase_if(*chunks, [&](KvChunk& chunk) {
    if (!chunk.kept_part) chunk.begin = std::max(chunk.begin, first_key);
    return chunk.begin >= chunk.end;
  });
}

void tile_chunks(const VisibleKeys& keys, std::vector<KvChunk>* chunks) {
  cut_tile(keys, chunks);
  cut_kept(keys, chunks);
}

}  // namespace kvc
