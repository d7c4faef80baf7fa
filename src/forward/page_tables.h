// The page tables of a batch in the shapes other kernels read: CSR, padded, slots.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache.h"
#include "src/forward/batch.h"

namespace kvc {

// A table with its shape; the elements are int32, or int64 for slots.
struct TableData {
  std::vector<int32_t> i32;
  std::vector<int64_t> i64;
  std::vector<int64_t> shape;
};

// Throws INVALID_ARGUMENT for an unknown kind, OUT_OF_RANGE when an index would not fit int32.
TableData build_table(const Batch& batch, int32_t page_size, kvc_table_kind kind);

// page * page_size + offset of each new token.
void fill_slots(const Batch& batch, int32_t page_size, std::vector<int64_t>* slots);

}  // namespace kvc
