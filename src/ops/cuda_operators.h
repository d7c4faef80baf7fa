// The operators on a CUDA device. Kernels alone read the host program's tensors, and everything is
// enqueued on the caller's stream. Scratch is allocated and freed in the order of that stream; in a
// capture it is the graph's own.
#pragma once

#include <cstdint>
#include <vector>

#include "src/device/gpu.h"
#include "src/ops/operators.h"

namespace kvc {

class CudaOperators : public Operators {
 public:
  CudaOperators(const Gpu& device, cuda::Stream stream) : device_(device), stream_(stream) {}

  OpExtent check(const kernels::OpSequenceTensors& sequences) override {
    return {sequences.num_rows, sequences.num_keys, 0};
  }
  int64_t check(const kernels::OpStateTensors& states) override { return states.num_rows; }

  // Throws UNSUPPORTED, NO_MEMORY, DEVICE.
  void attend(const OpAttention& attention, const AttnOptions& options, const AttnTensors& tensors,
              const OpRotation& rotation) override;
  void append(const OpPool& pool, const kernels::TokenRows& k, const kernels::TokenRows& v,
              const int64_t* slots, int64_t num_rows, const OpRotation& rotation) override;
  // Throws UNSUPPORTED.
  void gather(const OpPool& pool, const kernels::OpSequenceTensors& sequences,
              const kernels::TokenRows& k_out, const kernels::TokenRows& v_out) override;
  void copy_pages(const OpPool& pool, const int64_t* pairs, int64_t stride,
                  int64_t num_pairs) override;
  void rotate(const kernels::TokenRows& x, const kernels::TokenRows& out, int32_t num_heads,
              int32_t dim, int64_t num_rows, const OpRotation& rotation) override;
  void merge(const MergeCall& call) override;
  void linear(kernels::LinearParams params, const kernels::OpStateTensors& states) override;

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

  std::vector<RowClass> row_classes(const OpAttention& attention,
                                    const cuda::AttnLaunch& launch) const;
  static void place_cos_sin(const OpRotation& rotation, int64_t num_rows, CosSin* cos_sin,
                            Scratch* scratch);
  kernels::Rotation make_cos_sin(const OpRotation& rotation, CosSin* cos_sin) const;

  Gpu device_;
  cuda::Stream stream_;
};

}  // namespace kvc
