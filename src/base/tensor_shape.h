// Compares the shapes of callers' tensors with the expected ones; messages show both as a whole.
#pragma once

#include <cstdint>
#include <span>

#include "kvcache.h"

namespace kvc {

// One expected dimension. `symbol` is its name in kvcache.h, or null.
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

// Checks the number of dimensions, before anything else of the tensor is read. Throws SHAPE,
// INVALID_ARGUMENT.
void check_rank(const DLTensor& tensor, const char* name, std::span<const Extent> expected);
// Checks the dimensions in their order, once the rank is checked. Throws SHAPE.
void check_extents(const DLTensor& tensor, const char* name, std::span<const Extent> expected);

// Text for messages, such as "[1, 3, 512]".
struct ShapeText {
  char text[128];
};
ShapeText shape_text(const DLTensor& tensor);

}  // namespace kvc
