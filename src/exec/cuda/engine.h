// The engine of a CUDA device: enqueues kernels, with parameters that lie there. It decides nothing
// on the host that a replayed graph would have to decide anew: masks and the work list are computed
// on the device.
#pragma once

#include <atomic>
#include <cstdint>
#include <vector>

#include "src/exec/cuda/attn_kernels.h"
#include "src/exec/cuda/batch_metadata.h"
#include "src/exec/cuda/device.h"
#include "src/exec/cuda/forward.h"
#include "src/exec/cuda/page_copies.h"
#include "src/exec/cuda/states.h"
#include "src/exec/cuda/stream_order.h"
#include "src/exec/engine.h"

namespace kvc {

class CudaEngine final : public Engine {
 public:
  // All are borrowed. Throws UNSUPPORTED, NO_MEMORY, DEVICE.
  CudaEngine(const Plan& plan, const PagePool* pool, const StatePool* states, CudaDevice* device);
  ~CudaEngine() override;

  int64_t host_bytes() const override {
    return static_cast<int64_t>(sizeof *this) + open_.host_bytes() + metadata_.host_bytes();
  }
  uint64_t num_cascades() const override { return num_cascades_.load(std::memory_order_relaxed); }
  int64_t cos_sin_bytes() const override { return open_.cos_sin().key_bytes(); }
  uint64_t values_saturated() const override { return 0; }
  void check_begin(const Batch& batch, const ForwardMode& mode, CallStream stream) const override {
    open_.check_begin(batch, mode, order_->stream_of(stream));
  }
  void begin(Forward& forward, const ForwardMode& mode, CallStream stream) override;
  void close(Forward& forward, bool aborted) override;

  void attend(Forward& forward, const AttnCall& call, const AttnOptions& options,
              const AttnTensors& tensors) override;
  void append(Forward& forward, int32_t local_layer, const kernels::TokenRows& k,
              const kernels::TokenRows& v) override;
  void merge(const kernels::MergeParams& params, int64_t num_rows) override;
  void linear(Forward& forward, const StateRef& state, kernels::LinearParams params) override {
    open_.require_enqueues();
    states_.linear(forward, state, params);
  }
  void conv(Forward& forward, const StateRef& state, kernels::ConvParams params) override {
    open_.require_enqueues();
    states_.conv(forward, state, params);
  }
  void get_states(Forward& forward, const StateRef& state, const StateRows& out) override {
    open_.require_enqueues();
    states_.get(forward, state, out);
  }
  void set_states(Forward& forward, const StateRef& state, const StateRows& value) override {
    open_.require_enqueues();
    states_.set(forward, state, value);
  }
  void write_positions(const Forward& forward, const I32Matrix& out) const override;

  void gather(const RowSource& source, const kernels::GatherParams& params,
              int64_t num_keys) override;

 private:
  // Sequences that one kernel serves.
  struct RowClass {
    cuda::AttnKernel kernel;
    RowRange rows;
    const Schedule* schedule = nullptr;
  };

  void append_rows(const kernels::AppendParams& params, const cuda::RowStorage& k_storage,
                   const cuda::RowStorage& v_storage, int64_t num_rows, const int32_t* num_rows_at);
  std::vector<RowClass> row_classes(const Forward& forward, const cuda::AttnLaunch& launch,
                                    bool is_invariant) const;
  bool may_cascade(const AttnCall& call, const AttnOptions& options, const GroupSpec& group) const;
  bool may_have_sinks(const Forward& forward, const KeySelection& key,
                      const GroupSpec& group) const;
  const SharedPrefixes* find_sharing(const Forward& forward, BatchMetadata& metadata,
                                     const LayerSpec& source, const cuda::AttnLaunch& launch);
  float* partials_of(const Schedule& schedule, int32_t v_dim);
  void run(const Schedule& schedule, cuda::AttnKernel kernel, float* partials,
           cuda::AttnLaunch launch);

  const Plan* plan_;
  const Spec* spec_;
  const PagePool* pool_;
  CudaDevice* device_;
  StreamOrder* order_;
  const Gpu* gpu_;
  TakenClearer clearer_;
  CudaForward open_;
  CudaStates states_;
  BatchMetadataCache metadata_;
  NewKeys new_keys_;
  std::atomic<uint64_t> num_cascades_{0};  // Read by kvc_stats beside an attention.
};

}  // namespace kvc
