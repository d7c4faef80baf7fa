// Refuses outputs that share bytes with other tensors of their call.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache.h"

namespace kvc {

// The part of a checked tensor that a call reads or writes; null: none.
struct TensorUse {
  const DLTensor* tensor;
  const char* name;
  int64_t rows = -1;  // Rows in use of dimension `row_dimension`; -1: all.
  int row_dimension = 0;
};

// Both use a common byte. Exact: tensors whose rows interleave do not overlap.
bool overlap(const TensorUse& a, const TensorUse& b);

// Throws INVALID_ARGUMENT when an output overlaps an input or another output.
void refuse_overlaps(std::span<const TensorUse> outputs, std::span<const TensorUse> inputs);
void refuse_overlap(const TensorUse& output, const TensorUse& other);

}  // namespace kvc
