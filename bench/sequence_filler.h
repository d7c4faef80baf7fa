// Sequences with tokens in them, for a measurement to start from.
#pragma once

#include <kvcache.h>

#include <cstdint>
#include <memory>

#include "bench/fixture.h"

namespace kvc::bench {

class SequenceFiller {
 public:
  explicit SequenceFiller(Cache& cache) : cache_(cache) {}

  // Appends `tokens` tokens to one sequence: bookkeeping only without tensor memory, else random
  // rows in every layer.
  void grow(kvc_seq seq, int64_t tokens);
  // Appends tokens that no measurement reads, so that nobody has to write them: a window drops
  // them.
  void grow_unwritten(kvc_seq seq, int64_t tokens);

 private:
  Cache& cache_;
  std::unique_ptr<Activations> k_, v_;  // MLA: latents and nothing.
};

// Sequences 0..count-1 with `tokens` tokens each. kAdjacent: one after the other into an empty
// pool, so the allocator can lay pages side by side. kScattered: pages at random places in the
// pool, whatever the allocator prefers; needs a pool of exactly the pages that the sequences fill.
enum class Placement { kAdjacent, kScattered };
void fill(Cache& cache, int count, int64_t tokens, Placement placement);

}  // namespace kvc::bench
