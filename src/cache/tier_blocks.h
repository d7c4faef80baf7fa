// The attached tiers as a place of blocks: which block has which key and value, what is written,
// what is there, and how a run of blocks is read from there.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "kvcache.h"
#include "src/base/memory.h"
#include "src/cache/page_bytes.h"
#include "src/prefix/keys.h"
#include "src/sequences/publisher.h"
#include "src/sequences/sequence.h"
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

  int64_t host_bytes() const;
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
  bool has_full_pages(const std::byte* head, int64_t block) const noexcept;
  int64_t best_end(const TierRun& run, int64_t found, int64_t room) const;
  int64_t pages_for(const TierRun& run, int64_t end) const;

  const CacheCore& core_;
  ValueShape shape_;
  std::optional<UnusedBytes> unused_;
  std::optional<Staging> staging_;  // One value, where the device is a GPU.
  std::vector<Attached> tiers_;     // In the order of lookups.
  std::vector<AlignedBuffer> buffers_;
};

// Reads the values of a run of blocks in their order, ahead of who uses them.
class TierReader {
 public:
  // What to read, without memory for it; `stores`: where. Reading begins at once, into `buffers`,
  // which are borrowed. Throws std::bad_alloc.
  TierReader(std::vector<TierGet> gets, std::vector<TierStore*> stores,
             std::vector<AlignedBuffer>* buffers);
  // Waits until nobody uses the buffers.
  ~TierReader();
  TierReader(const TierReader&) = delete;
  TierReader& operator=(const TierReader&) = delete;

  // The next value, valid until the next call; null: the tier did not give it.
  const std::byte* next() noexcept;

 private:
  // While one batch is used, the others are read: two cores of a reader and their pauses.
  static constexpr size_t kBatches = 4;
  static constexpr size_t kBatchBytes = size_t{2} << 20;

  // Gets [begin, end) from one tier, of `bytes` in all.
  struct Batch {
    size_t begin, end, bytes;
  };

  void start(size_t batch) noexcept;
  void read(size_t batch) noexcept;

  std::vector<TierGet> gets_;
  std::vector<TierStore*> stores_;
  std::vector<Batch> batches_;
  std::vector<AlignedBuffer>* buffers_;
  std::array<std::future<void>, kBatches> reads_;  // Invalid: next() reads the batch itself.
  TierTime deadline_;
  size_t batch_ = 0;  // The batch of the next value.
  size_t next_ = 0;
};

// A run of blocks from tiers, behind the tokens of a sequence.
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
