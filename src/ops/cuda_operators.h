// Operators on a CUDA device: what the host's tensors there say is read by kernels alone, and
// everything is enqueued on the caller's stream. Scratch comes and goes in the order of that
// stream; in a capture it is the graph's own.
#pragma once

#include <cstdint>
#include <vector>

#include "src/device/device.h"
#include "src/exec/engine.h"
#include "src/exec/options.h"
#include "src/exec/row_moves.h"
#include "src/ops/inputs.h"

namespace kvc {

// Where the keys of one attention lie. `sequences`: the caller's arrays and limits; what kernels
// write is filled in here.
struct CudaOpAttention {
  LayerSpec shape;  // heads, dims, latent_rank
  kernels::PagedRows k;
  kernels::PagedRows v;
  int32_t page_size;
  cuda::OpSequencesParams sequences;
};

class CudaOperators {
 public:
  CudaOperators(const Device& device, cuda::Stream stream) : device_(device), stream_(stream) {}

  // Throws UNSUPPORTED, NO_MEMORY, DEVICE.
  void attend(const CudaOpAttention& attention, const AttnOptions& options,
              const AttnTensors& tensors, const OpRotation& rotation);
  void append(const OpPool& pool, const kernels::TokenRows& k, const kernels::TokenRows& v,
              const int64_t* slots, int64_t num_rows, const OpRotation& rotation);
  void copy_pages(const OpPool& pool, const int64_t* pairs, int64_t stride, int64_t num_pairs);
  void rotate(const kernels::TokenRows& x, const kernels::TokenRows& out, int32_t num_heads,
              int32_t dim, int64_t num_rows, const OpRotation& rotation);
  void merge(const MergeCall& call);
  // `states`: address and stride of the first sequence's state; params.sequences is filled in here.
  void linear(kernels::LinearParams params, const cuda::OpStatesParams& states);

 private:
  struct RowClass {
    cuda::AttnKernel kernel;
    cuda::ScheduleShape shape;
    cuda::ScheduleLimits limits;
  };
  struct Angles {
    cuda::CosSinParams params{};
    double* frequencies = nullptr;
  };
  class Scratch;

  std::vector<RowClass> row_classes(const CudaOpAttention& attention,
                                    const cuda::AttnLaunch& launch) const;
  static void place_angles(const OpRotation& rotation, int64_t num_rows, Angles* angles,
                           Scratch* scratch);
  kernels::Rotation make_angles(const OpRotation& rotation, Angles* angles) const;

  Device device_;
  cuda::Stream stream_;
};

// Where an operator runs: on the host, or on a device that is found usable. `tensor`: one of the
// call, null or not.
struct OpPlace {
  DLDevice dlpack = kHost;
  Device device;

  bool on_host() const { return device.table == nullptr; }
};
// Throws UNSUPPORTED, OUT_OF_RANGE, DEVICE.
OpPlace place_of_op(const DLTensor* tensor);

}  // namespace kvc
