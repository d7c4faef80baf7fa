// The operators on a CUDA device. Kernels alone read the host program's tensors, and everything is
// enqueued on the caller's stream. Scratch is allocated and freed in the order of that stream; in a
// capture it is the graph's own.
#pragma once

#include <cstdint>
#include <vector>

#include "src/device/gpu.h"
#include "src/exec/engine.h"
#include "src/exec/options.h"
#include "src/exec/row_moves.h"
#include "src/ops/inputs.h"

namespace kvc {

// The keys of one attention.
struct CudaOpAttention {
  LayerSpec shape;  // Heads, dims and latent_rank.
  kernels::PagedRows k;
  kernels::PagedRows v;
  int32_t page_size;
  kernels::OpSequenceTensors sequences;
};

class CudaOperators {
 public:
  CudaOperators(const Gpu& device, cuda::Stream stream) : device_(device), stream_(stream) {}

  // Throws UNSUPPORTED, NO_MEMORY, DEVICE.
  void attend(const CudaOpAttention& attention, const AttnOptions& options,
              const AttnTensors& tensors, const OpRotation& rotation);
  void append(const OpPool& pool, const kernels::TokenRows& k, const kernels::TokenRows& v,
              const int64_t* slots, int64_t num_rows, const OpRotation& rotation);
  void copy_pages(const OpPool& pool, const int64_t* pairs, int64_t stride, int64_t num_pairs);
  void rotate(const kernels::TokenRows& x, const kernels::TokenRows& out, int32_t num_heads,
              int32_t dim, int64_t num_rows, const OpRotation& rotation);
  void merge(const MergeCall& call);
  // Fills in params.sequences.
  void linear(kernels::LinearParams params, const kernels::OpStateTensors& states);

 private:
  struct RowClass {
    cuda::AttnKernel kernel;
    cuda::ScheduleShape shape;
    cuda::ScheduleLimits limits;
  };
  struct CosSin {
    cuda::CosSinParams params{};
    double* frequencies = nullptr;
  };
  class Scratch;

  std::vector<RowClass> row_classes(const CudaOpAttention& attention,
                                    const cuda::AttnLaunch& launch) const;
  static void place_cos_sin(const OpRotation& rotation, int64_t num_rows, CosSin* cos_sin,
                            Scratch* scratch);
  kernels::Rotation make_cos_sin(const OpRotation& rotation, CosSin* cos_sin) const;

  Gpu device_;
  cuda::Stream stream_;
};

// Where an operator runs: on the host, or on a device that was found usable.
struct OpPlace {
  DLDevice dlpack = kHost;
  Gpu device;

  bool on_host() const { return device.table == nullptr; }
};
// The place of a call with `tensor` (nullable). Throws UNSUPPORTED, OUT_OF_RANGE, DEVICE.
OpPlace place_of_op(const DLTensor* tensor);

}  // namespace kvc
