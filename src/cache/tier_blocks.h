// The attached tiers as a place of blocks: which block has which key and value, what is written,
// what is there.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcache.h"
#include "src/base/memory.h"
#include "src/cache/staging.h"
#include "src/cache/unused_bytes.h"
#include "src/prefix/keys.h"
#include "src/sequences/block_sink.h"
#include "src/tiers/tier_store.h"
#include "src/tiers/value.h"

namespace kvc {

struct CacheCore;

// Blocks [begin, end) of a query, which the tiers have.
struct TierRun {
  int64_t begin = 0;
  int64_t end = 0;
  std::vector<TierStore*> stores;  // [block - begin]
  std::vector<TierKey> keys;       // [block - begin]
  std::vector<std::byte> heads;    // [block - begin][head_bytes]
  int64_t num_pages = 0;           // Needed by a sequence of `end` blocks.

  bool empty() const { return begin == end; }
};

// const functions may run at once; the rest as the cache.
class TierBlocks final : public BlockSink {
 public:
  explicit TierBlocks(const CacheCore& core) : core_(core) {}

  bool empty() const { return tiers_.empty(); }
  // Null: this tier is not attached.
  TierStore* store(kvc_tier tier) const;
  const ValueShape& shape() const { return shape_; }
  // Before attach(): the shape of values. Throws std::bad_alloc.
  void describe_values();
  // `settings`: checked. Throws Error or std::bad_alloc.
  void attach(const kvc_tier_desc& settings, std::unique_ptr<Tier> tier);
  // Writes what waits.
  void detach(kvc_tier tier) noexcept;
  void detach_all() noexcept { tiers_.clear(); }

  bool is_open() const noexcept override { return !empty(); }
  // Puts a published block into every tier that lacks it.
  void add(const NewBlock& block, CallStream stream) noexcept override;

  // The longest run behind the first `begin` blocks of the query, which hit in the cache. It makes
  // a hit of at most `most` blocks and takes at most `room` pages. Throws std::bad_alloc.
  TierRun find(KeyChain& chain, int64_t begin, int64_t most, int64_t room) const;
  // Whether a sequence of run.end blocks needs this page of a block of the run.
  bool needs(const TierRun& run, int64_t block, const BlockGroup& group, int32_t index) const;
  const std::byte* head(const TierRun& run, int64_t block) const {
    return run.heads.data() + static_cast<size_t>(block - run.begin) * shape_.head_bytes();
  }

  // Buffers of reads, kept because new memory is slow. For one call at a time.
  std::vector<AlignedBuffer>& buffers() { return buffers_; }

 private:
  struct Attached {
    kvc_tier kind;
    BlockKey owner;  // Digest of what a key stands for beside tokens: model, shard, layout.
    std::unique_ptr<TierStore> store;
  };

  static TierKey key_of(const Attached& tier, const BlockKey& root, const BlockKey& block) noexcept;
  void write(const NewBlock& block, std::byte* value, CallStream stream);
  void find_heads(KeyChain& chain, int64_t most, TierRun* run) const;
  bool has_full_pages(const std::byte* head) const noexcept;
  int64_t best_end(const TierRun& run, int64_t found, int64_t room) const;
  int64_t pages_for(const TierRun& run, int64_t end) const;

  const CacheCore& core_;
  ValueShape shape_;
  std::optional<UnusedBytes> unused_;
  std::optional<Staging> staging_;  // One value, where the device is a GPU.
  std::vector<Attached> tiers_;     // In the order of lookups.
  std::vector<AlignedBuffer> buffers_;
};

}  // namespace kvc
