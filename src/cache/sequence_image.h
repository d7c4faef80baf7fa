// What a state file says of its sequences, besides the bytes of pages and states: the payload of
// its first chunk.
//
// Pages and states are numbered as they lie in the file. Pages of a layer group lie together, group
// after group.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "kvcache.h"
#include "src/plan/layout.h"
#include "src/sequences/sequence.h"

namespace kvc {

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

}  // namespace kvc
