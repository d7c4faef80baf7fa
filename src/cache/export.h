// Tensors handed out as DLPack: the pool itself, page tables as snapshots.
#pragma once

#include <memory>

#include "kvcache.h"
#include "src/cache/cache.h"
#include "src/step/page_tables.h"

namespace kvc {

// Each result keeps its memory alive and is released by its own deleter, on any thread. Throws
// Error or std::bad_alloc.
DLManagedTensorVersioned* export_pool(Cache& cache, int32_t layer, kvc_pool_kind kind);
DLManagedTensorVersioned* export_table(TableData table);

}  // namespace kvc
