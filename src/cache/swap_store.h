// Whole sequences between the device and the host pool: pages, states, checkpoints. What they share
// stays shared.
#pragma once

#include <cstddef>

#include "kvcache.h"

namespace kvc {

struct CacheCore;

// Every function throws Error or std::bad_alloc; nothing has changed then. What is enqueued does
// not throw.
class SwapStore {
 public:
  explicit SwapStore(CacheCore& core) : core_(core) {}

  void out(size_t num_seqs, const kvc_seq* seqs);
  void in(size_t num_seqs, const kvc_seq* seqs);

 private:
  CacheCore& core_;
};

}  // namespace kvc
