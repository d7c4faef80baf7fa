// The engine of the CPU: schedules the calls of the open forward and runs them over threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/table.h"
#include "src/base/executor.h"
#include "src/base/memory.h"
#include "src/exec/attn_options.h"
#include "src/exec/cascade.h"
#include "src/exec/cpu/cos_sin.h"
#include "src/exec/cpu/device.h"
#include "src/exec/cpu/work_list.h"
#include "src/exec/engine.h"
#include "src/exec/linear.h"
#include "src/exec/sequence_set.h"
#include "src/pages/pool.h"
#include "src/pages/state_pool.h"
#include "src/plan/plan.h"
#include "src/step/forward.h"

namespace kvc {

// Recurrent states on the CPU: read, written and computed with, in the memory of the state pool.
// They are those of the open forward; its functions are as Engine says.
class CpuStates {
 public:
  // Borrows all.
  CpuStates(const Spec* spec, const StatePool* states, CpuDevice* device)
      : spec_(spec), states_(states), device_(device) {}

  // Zeros in the slots that a forward has taken (KVC_CONFIG_CLEAR_PAGES).
  void clear_taken(const Batch& batch) const;
  void get(const Forward& forward, const StateRef& ref, const StateRows& out) const;
  void set(const Forward& forward, const StateRef& ref, const StateRows& value) const;
  void carry_on(const Forward& forward) const noexcept;
  void linear(const Forward& forward, const StateRef& ref, kernels::LinearParams params);
  void conv(const Forward& forward, const StateRef& ref, kernels::ConvParams params);
  int64_t host_bytes() const { return workspace_.host_bytes(); }

 private:
  const StateSpec& spec_of(const StateRef& ref) const {
    return spec_->layers[ref.local_layer].states[ref.state];
  }
  // Of an entry, before and after the forward.
  std::byte* before(const BatchEntry& entry, const StateRef& ref) const {
    return states_->memory().state(entry.sequence->state, ref.local_layer, ref.state);
  }
  std::byte* after(const BatchEntry& entry, const StateRef& ref) const {
    return states_->memory().state(entry.new_state, ref.local_layer, ref.state);
  }
  template <typename T>
  std::vector<T> sequences_of(const Batch& batch, const StateRef& ref) const;

  const Spec* spec_;
  const StatePool* states_;
  CpuDevice* device_;
  LinearWorkspace workspace_;
};

// One call at a time. Workspace grows and is kept, so that a steady decode allocates nothing; it is
// secured before anything is written, so that std::bad_alloc leaves pool and outputs untouched.
class CpuEngine final : public Engine {
 public:
  // Borrows all.
  CpuEngine(const Spec& spec, const PagePool* pool, const StatePool* states, CpuDevice* device);

  int64_t host_bytes() const override;
  uint64_t num_cascades() const override { return num_cascades_.load(std::memory_order_relaxed); }
  int64_t cos_sin_bytes() const override { return cos_sin_.bytes(); }
  uint64_t values_saturated() const override {
    return values_saturated_.load(std::memory_order_relaxed);
  }
  void check_begin(const Batch& batch, const ForwardMode& mode, CallStream) const override;
  void begin(Forward& forward, const ForwardMode& mode, CallStream) override;
  void close(Forward& forward, bool aborted) override;

  void attend(Forward& forward, const AttnCall& call, const AttnOptions& options,
              const AttnTensors& tensors) override;
  void append(Forward& forward, int32_t local_layer, const kernels::TokenRows& k,
              const kernels::TokenRows& v) override;
  void merge(const kernels::MergeParams& params, int64_t num_rows) override;
  void gather(const RowSource& source, const kernels::GatherParams& params,
              int64_t num_keys) override;
  void linear(Forward& forward, const StateRef& state, kernels::LinearParams params) override {
    recurrent_.linear(forward, state, params);
  }
  void conv(Forward& forward, const StateRef& state, kernels::ConvParams params) override {
    recurrent_.conv(forward, state, params);
  }
  void get_states(Forward& forward, const StateRef& state, const StateRows& out) override {
    recurrent_.get(forward, state, out);
  }
  void set_states(Forward& forward, const StateRef& state, const StateRows& value) override {
    recurrent_.set(forward, state, value);
  }
  void write_positions(const Forward& forward, const I32Matrix& out) const override;

 private:
  // The batch with the keys of one selection, and a work list per shape: layers of equal shape
  // share one.
  struct CachedBatch {
    uint64_t step = 0;  // Step it was made for; 0: stale.
    KeySelection selection;
    SequenceSet set;
    struct List {
      WorkShape shape;
      bool cascades;  // Sequences may share prefixes.
      WorkList list;
      // Those of the set, then the shared prefixes; empty without any prefix.
      std::vector<kernels::AttnSequence> sequences;
      SharedEntries shared;

      int64_t host_bytes() const {
        return list.host_bytes() + kvc::host_bytes(sequences) + shared.host_bytes();
      }
    };
    std::vector<std::unique_ptr<List>> lists;
    size_t num_lists = 0;

    int64_t host_bytes() const;
  };

  CachedBatch& batch_of(Forward& forward, const KeySelection& selection,
                        const std::vector<Span>* spans);
  const CachedBatch::List& work_list(Forward& forward, CachedBatch& cached, const LayerSpec& layer,
                                     const WorkShape& shape, bool may_cascade);
  // Fills `list.shared` and `list.sequences` when some sequences begin with the same pages and
  // reading those together pays.
  void share_prefixes(Forward& forward, const CachedBatch& cached, const LayerSpec& layer,
                      const WorkShape& shape, CachedBatch::List& list);
  // `kept`: null where no kept rows are read.
  void stage_new_keys(Forward& forward, const AttnCall& call, const AttnTensors& tensors,
                      kernels::AttnParams* params, kernels::AttnParams* kept);
  void stage_rows(Forward& forward, const LayerSpec& layer, const AttnTensors& tensors,
                  AlignedBuffer& new_k, AlignedBuffer& new_v, kernels::AttnParams* params);

  const Spec* spec_;
  const PagePool* pool_;
  CpuDevice* device_;
  HostCosSin cos_sin_;
  CpuStates recurrent_;
  ItemRunner runner_;
  std::vector<std::unique_ptr<CachedBatch>> cached_;
  std::vector<int64_t> identity_slots_;  // 0, 1, 2, ...
  AlignedBuffer new_k_, new_v_, kept_k_, kept_v_;
  std::vector<PrefixCandidate> candidates_;
  std::vector<CommonPrefix> prefixes_;
  // Read by kvc_stats beside an attention or an append.
  std::atomic<uint64_t> num_cascades_{0}, values_saturated_{0};
};

}  // namespace kvc
