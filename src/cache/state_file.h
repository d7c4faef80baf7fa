// The order of chunks in a state file: the description, pages, states.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>

#include "src/cache/sequence_image.h"
#include "src/files/chunks.h"

namespace kvc {

constexpr uint32_t kDescription = chunk_tag("DESC");
constexpr uint32_t kPagesTag = chunk_tag("PAGE");
constexpr uint32_t kStatesTag = chunk_tag("STAT");

// Payloads are of about this size: a digest finds damage before much of it was read, and the bytes
// are still in the processor's cache when they are digested and copied.
constexpr int64_t kChunkBytes = int64_t{1} << 18;

inline int64_t items_per_chunk(int64_t item_bytes) {
  return std::max<int64_t>(1, kChunkBytes / std::max<int64_t>(1, item_bytes));
}

// Calls visit(first, count, bytes of a page, layer group) for each chunk of pages.
template <typename Visit>
void for_each_page_chunk(const StateFileImage& image, Visit&& visit) {
  int64_t begin = 0;
  for (size_t group = 0; group < image.pages_per_group.size(); ++group) {
    const int64_t end = begin + image.pages_per_group[group];
    const int64_t most = items_per_chunk(image.page_bytes[group]);
    for (; begin < end; begin += std::min(most, end - begin))
      visit(begin, std::min(most, end - begin), image.page_bytes[group], group);
  }
}

// Calls visit(first, count) for each chunk of states.
template <typename Visit>
void for_each_state_chunk(const StateFileImage& image, Visit&& visit) {
  const int64_t most = items_per_chunk(image.state_bytes);
  for (int64_t begin = 0; begin < image.num_states; begin += most)
    visit(begin, std::min(most, image.num_states - begin));
}

// Bytes of the largest chunk, in the file or with the pages and states of `layout`.
int64_t largest_chunk(const StateFileImage& image, const Layout& layout);

// The first chunk. Throws Error.
StateFileImage read_description(ChunkReader& reader);

// Throws CORRUPT unless the chunk, null at the end, is this one.
void expect_chunk(ChunkReader& reader, const ChunkHead* head, uint32_t tag, int64_t first,
                  int64_t count, int64_t bytes);

// Calls pages(first, count, layer group, payload) and states(first, count, payload) for the
// rest of the file.
template <typename Pages, typename States>
void read_contents(ChunkReader& reader, const StateFileImage& image, Pages&& pages,
                   States&& states) {
  for_each_page_chunk(image, [&](int64_t first, int64_t count, int64_t bytes, size_t group) {
    expect_chunk(reader, reader.next(), kPagesTag, first, count, count * bytes);
    pages(first, count, group, reader.payload());
  });
  for_each_state_chunk(image, [&](int64_t first, int64_t count) {
    expect_chunk(reader, reader.next(), kStatesTag, first, count, count * image.state_bytes);
    states(first, count, reader.payload());
  });
  if (reader.next() != nullptr) reader.fail_chunk("is not announced by the description");
}

// Reads and checks the rest of the file.
void check_contents(ChunkReader& reader, const StateFileImage& image);

}  // namespace kvc
