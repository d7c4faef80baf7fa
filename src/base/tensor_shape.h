// Shapes of callers' tensors against what a call expects; messages show both as a whole.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache.h"

namespace kvc {

// One expected dimension. `symbol`: its name in kvcache.h, or null.
struct Extent {
  enum Rule { kEqual, kAtLeast, kAny };

  const char* symbol;
  int64_t value;
  Rule rule = kEqual;
};

constexpr Extent exactly(const char* symbol, int64_t value) {
  return {symbol, value, Extent::kEqual};
}
constexpr Extent at_least(const char* symbol, int64_t value) {
  return {symbol, value, Extent::kAtLeast};
}
constexpr Extent any_extent(const char* symbol) { return {symbol, 0, Extent::kAny}; }

// The number of dimensions, before anything else is asked of a tensor: throws SHAPE,
// INVALID_ARGUMENT.
void check_rank(const DLTensor& tensor, const char* name, std::span<const Extent> expected);
// The dimensions, in their order: throws SHAPE. The rank has been checked.
void check_extents(const DLTensor& tensor, const char* name, std::span<const Extent> expected);

// "[1, 3, 512]", for messages.
struct ShapeText {
  char text[128];
};
ShapeText shape_text(const DLTensor& tensor);

}  // namespace kvc
