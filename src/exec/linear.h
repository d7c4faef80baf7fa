// Linear attention and the short convolution: checks the caller's tensors, and runs the kernels
// over threads.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/table.h"
#include "kernels/linear_params.h"
#include "kvcache.h"
#include "src/base/executor.h"
#include "src/base/memory.h"
#include "src/base/tensor.h"

namespace kvc {

// The tensors of one call of linear attention, as the caller passed them.
struct LinearTensors {
  const DLTensor* q;
  const DLTensor* k;
  const DLTensor* v;
  const DLTensor* decay;  // Nullable
  const DLTensor* beta;   // Nullable
  const DLTensor* out;
};

// The shape of the state, [heads][k_dim][v_dim] compact.
struct LinearShape {
  int32_t heads;
  int32_t k_dim;
  int32_t v_dim;
  kernels::DType state_dtype;
};

// `opt` has been read by the sized-struct rules, and messages name it `name`. The caller checks
// opt.state, and fills the sequences and the strides of a state that is not compact. The result
// points into the tensors. Throws UNSUPPORTED, OUT_OF_RANGE, INVALID_ARGUMENT or a tensor status.
kernels::LinearParams read_linear(const kvc_linear_opt& opt, const char* name,
                                  const LinearTensors& tensors, const LinearShape& shape,
                                  int64_t num_rows, DLDevice device = kHost);

// x, out [>= num_rows, channels]; weight [channels, width]; bias [channels] or NULL. width is the
// kept inputs plus one.
struct ConvTensors {
  const DLTensor* x;
  const DLTensor* weight;
  const DLTensor* bias;  // Nullable
  const DLTensor* out;
};
struct ConvShape {
  int32_t channels;
  int32_t width;
  kernels::DType state_dtype;
};
kernels::ConvParams read_conv(const ConvTensors& tensors, kvc_activation activation,
                              const ConvShape& shape, int64_t num_rows, DLDevice device = kHost);

// Scratch of the workers, kept between calls so that a steady step allocates nothing.
struct LinearWorkspace {
  std::vector<AlignedBuffer> scratch;

  int64_t host_bytes() const { return buffer_bytes(scratch); }
};

// Runs all heads (or channels) of params.sequences[0, num_sequences). Memory is secured before
// anything is written: std::bad_alloc leaves states and outputs as they were. No sequence may share
// a state that another one writes.
void run_linear(const kernels::cpu::KernelTable& table, Executor& executor,
                LinearWorkspace& workspace, const kernels::LinearParams& params,
                int64_t num_sequences);
void run_conv(const kernels::cpu::KernelTable& table, Executor& executor,
              LinearWorkspace& workspace, const kernels::ConvParams& params, int64_t num_sequences);

}  // namespace kvc
