// Context shift (kvc_seq_shift): tokens in the middle of a sequence go, those behind them move up.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "kvcache.h"
#include "src/cache/cache_core.h"

namespace kvc {

// Rows of K that kvc_seq_shift has left as they were rotated (KeyLead): where that is allowed, and
// how they leave the cache rotated for the positions that their tokens have now.
//
// A chat at its limit is shifted thousands of times, by few tokens each. In 16 bit a small rotation
// of a stored row is below half an ulp for most of its elements and gets lost each time. So the
// rows stay, and queries are rotated to meet them.

// A shift may leave rows as they are: only this library reads them, on the CPU, every layer rotates
// Q as the layer whose K it reads does, and no rotated K is V as well.
bool keeps_key_leads(const CacheCore& core);

// Rotates rows of sequences to where their tokens are, each row once.
class LeadSettler {
 public:
  // Borrows `core`. Throws std::bad_alloc.
  LeadSettler(CacheCore& core, int64_t num_tokens);
  // At most `num_tokens` tokens. The sequence has no KeyLead then; all that share a page with it
  // have to be settled too.
  void settle(Sequence& sequence) noexcept;

 private:
  CacheCore& core_;
  std::vector<int64_t> slots_;
  std::vector<uint8_t> is_settled_;  // [page]
};

// Rotates the rows of all sequences to where their tokens are; no sequence has a KeyLead then.
// Throws BUSY while a forward is open, INVALID_STATE where a sequence that has one is swapped out,
// and std::bad_alloc; nothing has changed then.
void settle_key_leads(CacheCore& core);

// From where the rows of a sequence are rotated to where its tokens are, for one layer.
class LeadRotation {
 public:
  LeadRotation(const Spec& spec, int32_t local_layer, const KeyLead& lead);
  LeadRotation(const LeadRotation&) = delete;
  LeadRotation& operator=(const LeadRotation&) = delete;

  // One row; rotary_dim 0: nothing to rotate.
  const kernels::Rotation& get() const { return rotation_; }

 private:
  float cosines_[kMaxLatentDim / 2], sines_[kMaxLatentDim / 2];
  kernels::Rotation rotation_{};
};

// The other way, for the rows of tokens [begin, begin + count): a row of cos and sin each.
class TokenLeads {
 public:
  // Throws std::bad_alloc.
  TokenLeads(const Spec& spec, int32_t local_layer, const KeyLead& lead, int64_t begin,
             int64_t count);
  const kernels::Rotation& get() const { return rotation_; }

 private:
  std::vector<float> cosines_, sines_;
  kernels::Rotation rotation_{};
};

// Rotates a copy of what one layer keeps in a page whose first token is `first`.
void rotate_copied_page(const CacheCore& core, int32_t local_layer, const KeyLead& lead,
                        int64_t first, std::byte* rows);

// Drops tokens [begin, end) and moves the positions of those behind them by `delta`. Throws Error
// or std::bad_alloc; nothing has changed then. What is enqueued afterwards does not throw.
void shift_tokens(CacheCore& core, kvc_seq id, int64_t begin, int64_t end, int64_t delta);

// The tokens around `position` of which each could be taken out. `position` -1: the last token.
Neighbours shifts_around(const CacheCore& core, const Sequence& sequence, int64_t position);

}  // namespace kvc
