// The RoPE tables of the CPU engine: cos and sin by packed token, by absolute position, and by key
// of sequences that lie far from position 0. Computed when first needed, once per forward.
#pragma once

#include <atomic>
#include <cstdint>
#include <unordered_map>
#include <vector>

#include "kernels/params.h"
#include "src/base/executor.h"
#include "src/step/cos_sin.h"
#include "src/step/forward.h"

namespace kvc {

class HostCosSin {
 public:
  // Borrows both.
  HostCosSin(const Spec* spec, Executor* executor);

  // By packed token; none when rope < 0.
  kernels::Rotation tokens(Forward& forward, int32_t rope);
  // The same for attention to the keys before a KeyLead.
  kernels::Rotation heads(Forward& forward, int32_t rope);
  // Some sequence of the forward has a KeyLead.
  bool has_leads(const Forward& forward);
  // The same for attention to sink tokens: positions are clipped to the window of the sequence
  // (kvc_seq_set_window).
  kernels::Rotation sinks(Forward& forward, int32_t rope);
  // By absolute position, in both variants of LONGROPE, for layers that rotate K on read.
  void keys(Forward& forward, int32_t rope, kernels::Rotation out[2]);
  // For the same layers, by key from *begin on, of a sequence that lies far from position 0; sink
  // tokens still take keys(). Null where keys() is for all. Valid until the forward closes.
  const kernels::Rotation* own_keys(Forward& forward, int32_t rope, const BatchEntry& entry,
                                    int64_t* begin);

  int64_t host_bytes() const;
  // Counts the bytes by position and by key anew.
  void closed() noexcept;
  // As of the last closed(). From any thread.
  int64_t bytes() const { return bytes_.load(std::memory_order_relaxed); }

 private:
  struct Rope {
    TokenCosSin tokens;
    TokenCosSin heads;
    TokenCosSin sinks;
    PositionCosSin keys;
    std::unordered_map<kvc_seq, KeyCosSin> own_keys;  // Sequences used lately.
  };

  void sync(const Forward& forward);
  Rope& sync(const Forward& forward, int32_t rope);
  kernels::Rotation by_token(Forward& forward, int32_t rope, TokenCosSin& table, bool leads);
  bool lies_far(const BatchEntry& entry) const;
  TokenPositions with_variant(const Forward& forward, int32_t rope, const int32_t* positions,
                              int64_t row_stride);

  const Spec* spec_;
  Executor* executor_;
  uint64_t step_ = 0;                    // The forward that token tables are of.
  bool has_leads_ = false;               // In that forward.
  std::vector<Rope> ropes_;              // As Spec::ropes.
  std::vector<int64_t> leads_;           // Scratch, [num_rows].
  std::vector<uint8_t> uses_long_;       // Scratch, [num_rows].
  std::vector<int32_t> sink_positions_;  // Scratch, [num_rows].
  std::vector<int32_t> key_positions_;   // Scratch of own_keys().
  std::atomic<int64_t> bytes_{0};
};

}  // namespace kvc
