// Elements of GGUF tensors as float32 or bfloat16. The blocks are those of ggml
// (github.com/ggml-org/ggml, ggml-common.h): a scale for a group of small integers, in the K types
// also scales of scales.
#pragma once

#include <cstddef>
#include <cstdint>

#include "tools/gguf/file.h"

namespace kvc::gguf {

// Elements [begin, begin + count) of a tensor in the order of the file; both multiples of the
// type's block.
void unpack(const Tensor& tensor, int64_t begin, int64_t count, float* out);

}  // namespace kvc::gguf
