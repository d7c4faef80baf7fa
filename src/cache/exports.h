// Tensors handed out as DLPack: the pool itself, and page tables as snapshots.
#pragma once

#include <cstdint>

#include "kvcache.h"

namespace kvc {

struct CacheCore;

// Each result keeps its memory alive and is released by its own deleter, on any thread. Every
// function throws Error or std::bad_alloc.
class CacheExports {
 public:
  explicit CacheExports(CacheCore& core) : core_(core) {}

  // From here on the host may write the pool itself.
  DLManagedTensorVersioned* pool(int32_t layer, kvc_pool_kind kind);
  // Of the open forward's batch.
  DLManagedTensorVersioned* page_table(int32_t group, kvc_table_kind kind) const;
  // Pages of the committed tokens of one sequence.
  DLManagedTensorVersioned* sequence_pages(kvc_seq seq, int32_t group) const;

 private:
  CacheCore& core_;
};

}  // namespace kvc
