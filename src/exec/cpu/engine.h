// The engine of the CPU: schedules the calls of the open forward and runs them over threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/table.h"
#include "src/base/executor.h"
#include "src/base/memory.h"
#include "src/exec/cascade.h"
#include "src/exec/cpu/runner.h"
#include "src/exec/cpu/work_list.h"
#include "src/exec/engine.h"
#include "src/exec/linear.h"
#include "src/exec/options.h"
#include "src/exec/sequence_set.h"
#include "src/pages/pool.h"
#include "src/pages/state_pool.h"
#include "src/plan/plan.h"
#include "src/step/forward.h"

namespace kvc {

// One call at a time. Workspace grows and is kept, so that a steady decode allocates nothing; it is
// secured before anything is written, so that std::bad_alloc leaves pool and outputs untouched.
class CpuEngine final : public Engine {
 public:
  // Throws UNSUPPORTED when the machine lacks the wanted instruction set.
  CpuEngine(const Spec& spec, const PagePool* pool, const StatePool* states);

  const kernels::cpu::KernelTable& kernels() const { return *kernels_; }
  Executor& executor() { return executor_; }

  const char* name() const override { return kernels_->name; }
  int32_t num_threads() const override { return executor_.concurrency(); }
  uint64_t num_cascades() const override { return num_cascades_.load(std::memory_order_relaxed); }
  void set_stream(const kvc_stream*) override {}
  void await_begin() override {}
  void require_alive() const override {}
  void drain() override {}
  DeviceEvent make_event() const override { return {}; }
  void record(const DeviceEvent&) noexcept override {}

  void check_begin(const Batch& batch, bool has_positions, bool is_replay,
                   bool needs_rows) const override;
  void begin(Forward& forward, bool is_replay) override;
  void check_end() const override {}
  void check_abort() const override {}
  void closed(Forward&, bool) noexcept override {}
  void carry_states_on(Forward& forward) noexcept override;
  void attend(Forward& forward, const AttnCall& call, const AttnOptions& options,
              const AttnTensors& tensors) override;
  void append(Forward& forward, int32_t local_layer, const kernels::TokenRows& k,
              const kernels::TokenRows& v) override;
  void merge(const kernels::MergeParams& params, int64_t num_rows) override;
  void linear(Forward& forward, const StateRef& state, kernels::LinearParams params) override;
  void conv(Forward& forward, const StateRef& state, kernels::ConvParams params) override;
  void get_states(Forward& forward, const StateRef& state, const StateRows& out) override;
  void set_states(Forward& forward, const StateRef& state, const StateRows& value) override;
  void write_positions(const Forward& forward, const I32Matrix& out) const override;

  void gather(const RowSource& source, const kernels::GatherParams& params,
              int64_t num_keys) override;
  void read_rows(const RowSource&, const kernels::GatherParams& params, int64_t key_begin,
                 int64_t key_end, kvc_stream) const override {
    kernels_->gather(params, key_begin, key_end);
  }
  void read_state(const std::byte* state, const StateSpec& spec, const StateRows& out,
                  kvc_stream stream) const override;
  void write_state(std::byte* state, const StateSpec& spec, const StateRows& value) override;
  bool reads_quantised() const override { return false; }

  void prepare_copies(int64_t) override {}
  void copy_pages(const std::vector<PageCopy>& copies) noexcept override;
  void prepare_writes(int64_t, int64_t) override {}
  void write_rows(int32_t, const kernels::AppendParams& params,
                  int64_t num_rows) noexcept override {
    kernels_->append(params, 0, num_rows);
  }

  void copy_bytes(void* to, const void* from, int64_t bytes) noexcept override;

  void prepare_moves(int64_t) override {}
  void next_sequence() noexcept override {}
  void move_token(int32_t group, const TokenPlace& from, const TokenPlace& to) noexcept override;
  void finish_moves() noexcept override {}
  void turn_keys(int32_t local_layer, const kernels::Rotation& angles, const PageTable& table,
                 int64_t begin, int64_t end) noexcept override;

 private:
  void clear_pages(const std::vector<PageId>& pages) noexcept;
  // One view of the batch, with a work list per shape: layers of equal shape share one.
  struct CachedView {
    uint64_t step = 0;  // Step it was made for; 0: stale.
    KeyView view;
    SequenceSet set;
    struct List {
      WorkShape shape;
      bool cascades;  // Sequences may share prefixes.
      WorkList list;
      // Those of the set, then the shared prefixes; empty without any prefix.
      std::vector<kernels::AttnSequence> sequences;
      SharedEntries shared;
    };
    std::vector<std::unique_ptr<List>> lists;
    size_t num_lists = 0;
  };

  CachedView& view_of(Forward& forward, const KeyView& view, const std::vector<Span>* spans);
  const CachedView::List& work_list(Forward& forward, CachedView& view, const LayerSpec& layer,
                                    const WorkShape& shape, bool may_cascade);
  // Fills `list.shared` and `list.sequences` when some sequences begin with the same pages and
  // reading those together pays.
  void share_prefixes(Forward& forward, const CachedView& view, const LayerSpec& layer,
                      const WorkShape& shape, CachedView::List& list);
  void stage_new_keys(Forward& forward, const AttnCall& call, const AttnTensors& tensors,
                      kernels::AttnParams* params);

  const Spec* spec_;
  const PagePool* pool_;
  const StatePool* states_;
  const kernels::cpu::KernelTable* kernels_;
  Executor executor_;
  ItemRunner runner_;
  std::vector<std::unique_ptr<CachedView>> views_;
  std::vector<int64_t> identity_slots_;  // 0, 1, 2, ...
  AlignedBuffer new_k_, new_v_;
  LinearWorkspace linear_workspace_;
  std::vector<PrefixCandidate> candidates_;
  std::vector<CommonPrefix> prefixes_;
  std::atomic<uint64_t> num_cascades_{0};  // Read by kvc_stats beside an attention.
};

}  // namespace kvc
