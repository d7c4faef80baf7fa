// Row 1, the classic baseline: each sequence has one contiguous buffer, reserved for the longest
// request there may be. Plain code of the demo; nothing of the library takes part.
#pragma once

#include <map>
#include <memory>

#include "tools/demo/kv_store.h"
#include "tools/llm/block_kernels.h"
#include "tools/llm/shape.h"
#include "tools/llm/worker_pool.h"

namespace kvc::demo {

class ContiguousStore final : public KvStore {
 public:
  // Borrows shape, pool and kernels. Throws std::runtime_error for a rotation that it does not have
  // (YaRN).
  ContiguousStore(const llm::Shape& shape, int64_t max_length, int max_sequences,
                  llm::WorkerPool& pool, const llm::BlockKernels& kernels);

  bool add(int sequence) override;
  void fork(int parent, int child, int64_t length) override;
  bool can_fork() const override { return false; }
  void remove(int sequence) override;
  bool begin(std::span<const BatchItem> batch) override;
  void attend(int32_t layer, const float* qkv, int64_t stride, float* out) override;
  void end() override;
  MemoryUse memory() const override;

  uint64_t slot_bytes() const { return static_cast<uint64_t>(slot_floats_) * sizeof(float); }
  int64_t max_length() const { return max_length_; }

 private:
  // K lies transposed, [layer][kv head][dim][max_length], so that scores are computed over
  // neighbouring keys; V follows, [layer][kv head][max_length][padded_dim_].
  struct Slot {
    std::unique_ptr<float[]> data;
    int64_t length = 0;
  };
  // Queries of up to kTileTokens new tokens of one sequence against one kv head.
  struct Tile {
    Slot* slot;
    int64_t position;   // position of the first token
    int64_t batch_row;  // row of the first token in the packed batch
    int64_t tokens;
    int kv_head;
  };
  // Cosines and sines, [max_length][pairs].
  struct Rotation {
    bool is_interleaved = false;
    int64_t pairs = 0;
    std::vector<float> cosines, sines;
  };
  struct Scratch {
    std::vector<float> queries, scores, accumulated, row_max, row_sum, rotated;
    std::vector<int64_t> visible;
  };

  Rotation make_rotation(const kvc_rope& rope) const;
  int64_t plane(int32_t layer, int kv_head) const {
    return int64_t{layer} * shape_.kv_heads + kv_head;
  }
  float* keys(const Slot& slot, int32_t layer, int kv_head) const;
  float* values(const Slot& slot, int32_t layer, int kv_head) const;
  void rotate(const Rotation& rotation, const float* in, int64_t position, float scale,
              float* out) const;
  void append(int32_t layer, const float* qkv, int64_t stride, const Tile& tile, Scratch& scratch);
  void attend_tile(int32_t layer, const float* qkv, int64_t stride, float* out, const Tile& tile,
                   Scratch& scratch);

  const llm::Shape& shape_;
  int64_t max_length_;
  int64_t padded_dim_;  // Up to a whole panel of the kernels.
  int64_t slot_floats_;
  size_t max_sequences_;
  llm::WorkerPool& pool_;
  const llm::BlockKernels& kernels_;
  std::vector<Rotation> rotations_;  // [shape.ropes]
  std::map<int, Slot> slots_;
  std::vector<BatchItem> batch_;
  std::vector<Tile> tiles_;
  std::vector<Scratch> scratch_;  // one per worker
};

}  // namespace kvc::demo
