// Reads the values of a run of blocks in their order, ahead of who uses them.
#pragma once

#include <array>
#include <cstddef>
#include <future>
#include <vector>

#include "src/base/memory.h"
#include "src/tiers/tier_store.h"

namespace kvc {

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

}  // namespace kvc
