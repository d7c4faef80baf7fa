// The page tables of a batch in the shapes that other kernels read: CSR, padded, slots.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache.h"
#include "src/step/batch.h"

namespace kvc {

// A table with its shape; the elements are int32, or int64 for slots.
struct TableData {
  std::vector<int32_t> i32;
  std::vector<int64_t> i64;
  std::vector<int64_t> shape;
  bool is_wide = false;  // The elements are in i64.
};

// Throws INVALID_ARGUMENT for an unknown kind, OUT_OF_RANGE when an index would not fit int32.
TableData build_table(const Batch& batch, const Spec& spec, int32_t group, kvc_table_kind kind);

// The slot, page * page_size + offset, of each new token in a layer group. For CROSS layers: of
// each encoder token that this forward writes.
void fill_slots(const Batch& batch, const Spec& spec, int32_t group, std::vector<int64_t>* slots);

}  // namespace kvc
