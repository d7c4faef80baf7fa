// State files: what one holds, the order of its chunks (the description, pages, states), and a
// report of it as JSON.
#pragma once

#include <algorithm>
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvcache.h"
#include "src/files/byte_source.h"
#include "src/files/chunks.h"
#include "src/plan/layout.h"
#include "src/sequences/sequence.h"

namespace kvc {

// What a state file says of its sequences, besides the bytes of pages and states: the payload of
// its first chunk.
//
// Pages and states are numbered as they lie in the file. Pages of a layer group lie together, group
// after group.
struct TableImage {
  int64_t kept_begin = 0;
  int64_t sink_kept = 0;
  std::vector<int32_t> pages;  // -1: a window has dropped the page.
};

struct CheckpointImage {
  int64_t position;
  int32_t state;  // -1: the initial one.
  int32_t is_automatic;
};

struct SequenceImage {
  kvc_seq id = 0;  // It had in the cache that saved it.
  int64_t length = 0;
  int64_t cross_length = 0;
  int64_t window = 0;
  int64_t sink = 0;
  std::vector<PositionSegment> segments;
  KeyLead lead;
  std::vector<TableImage> tables;  // [layer group]
  int32_t state = -1;              // -1: the initial one.
  std::vector<CheckpointImage> checkpoints;
  int64_t first_unwritten = kAllWritten;
  TokenHistory history;
};

struct StateFileImage {
  std::string layout;                    // layout_text().
  std::string model_id;                  // The host program's name of the model; empty: none.
  std::vector<int64_t> pages_per_group;  // [layer group]
  std::vector<int64_t> page_bytes;       // [layer group]
  int64_t num_states = 0;
  int64_t state_bytes = 0;
  std::vector<SequenceImage> sequences;

  int64_t num_pages() const;
  uint64_t payload_bytes() const;  // All pages and states.
};

std::vector<std::byte> encode(const StateFileImage& image);
// Throws CORRUPT or VERSION. Numbers are in range, nothing else has been checked.
StateFileImage decode_state_file(std::span<const std::byte> bytes);
// Throws CORRUPT unless a cache of this spec and layout could have saved it.
void check_image(const StateFileImage& image, const Spec& spec, const Layout& layout);

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

// Positions and token history of one sequence. Throws CORRUPT unless a cache of this spec could
// have them.
void check_sequence(const SequenceImage& sequence, const Spec& spec);

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

// What a state file holds, as JSON. Reads and checks the whole file. Throws Error.
std::string describe_state_file(ByteSource& source);

}  // namespace kvc
