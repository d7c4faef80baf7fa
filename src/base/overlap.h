// Outputs that have bytes in common with other tensors of their call.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache.h"

namespace kvc {

// What a call reads or writes of a tensor, which has been checked; null: nothing.
struct TensorUse {
  const DLTensor* tensor;
  const char* name;
  int64_t rows = -1;  // Rows in use of dimension `row_dimension`; -1: all.
  int row_dimension = 0;
};

// Whether both use a byte. Exact: tensors that lie between each other's rows do not overlap.
bool overlap(const TensorUse& a, const TensorUse& b);

// Throws INVALID_ARGUMENT where an output overlaps an input or another output.
void refuse_overlaps(std::span<const TensorUse> outputs, std::span<const TensorUse> inputs);
void refuse_overlap(const TensorUse& output, const TensorUse& other);

}  // namespace kvc
