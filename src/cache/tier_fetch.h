// A run of blocks from tiers, behind the tokens of a sequence.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "src/cache/tier_blocks.h"
#include "src/cache/tier_reader.h"
#include "src/sequences/sequence.h"

namespace kvc {

struct CacheCore;

class TierFetch {
 public:
  // Makes room and starts to read. `history`: of all tokens of the run. Throws Error or
  // std::bad_alloc.
  TierFetch(CacheCore& core, TierRun run, TokenHistory history);

  // Appends what the tiers give to a sequence of run.begin blocks that has room in its tables, and
  // publishes it. A layer's window, or a state, needs all blocks: then it is all or nothing.
  void append_to(Sequence& sequence) noexcept;

 private:
  int64_t read_blocks() noexcept;
  bool take_pages(int64_t block, const std::byte* value);
  void keep(int64_t num_blocks) noexcept;

  CacheCore& core_;
  const TierRun run_;
  TokenHistory history_;
  std::vector<PageId> pages_;  // [block - begin][page of the block]; kNoPage: not needed.
  StateSlot state_ = kInitialState;
  std::optional<Staging> staging_;  // One value, where the device is a GPU.
  TierReader reader_;
};

}  // namespace kvc
