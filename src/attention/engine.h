// Runs kernels for a cache: fills their parameters from the open forward, cuts the work, spreads it over threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/table.h"
#include "src/attention/cascade.h"
#include "src/attention/linear.h"
#include "src/attention/options.h"
#include "src/attention/runner.h"
#include "src/attention/sequence_set.h"
#include "src/attention/work_list.h"
#include "src/base/executor.h"
#include "src/base/memory.h"
#include "src/forward/forward.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"

namespace kvc {

// Checked tensors of one call.
struct AttnTensors {
  kernels::TokenRows q;
  kernels::TokenRows k;  // base null: read only
  kernels::TokenRows v;  // base null with k given: V is in K
  kernels::TokenRows out;
  float* lse = nullptr;
  int64_t lse_token_stride = 0;
};

// What one attention call works on. `layer`: heads and dims as q, k, v, out have them; its `source` names the pages.
struct AttnCall {
  const LayerSpec& layer;
  KeyScope scope;
  bool is_mla_self = false;  // the ragged form of MLA: K and V per head, nothing of the pool
};

// One call at a time. Workspace grows and is kept, so that a steady decode allocates nothing; it is secured before
// anything is written, so that std::bad_alloc leaves pool and outputs untouched.
class AttentionEngine {
 public:
  // Throws UNSUPPORTED when the machine lacks the wanted instruction set.
  AttentionEngine(const Spec& spec, const PagePool* pool);

  const char* isa_name() const { return kernels_->name; }
  const kernels::cpu::KernelTable& kernels() const { return *kernels_; }
  Executor& executor() { return executor_; }
  uint64_t num_cascades() const { return num_cascades_.load(std::memory_order_relaxed); }

  // Appends k and v first when they are given (kAll, kCross).
  void attend(Forward& forward, const AttnCall& call, const AttnOptions& options, const AttnTensors& tensors);
  // To the pages of a layer: the new tokens of its group, or the encoder's.
  void append(Forward& forward, int32_t local_layer, const kernels::TokenRows& k, const kernels::TokenRows& v);
  void merge(const kernels::MergeParams& params, int64_t num_rows);

  void run_linear(const kernels::LinearParams& params, int64_t num_sequences) {
    kvc::run_linear(*kernels_, executor_, linear_workspace_, params, num_sequences);
  }
  void run_conv(const kernels::ConvParams& params, int64_t num_sequences) {
    kvc::run_conv(*kernels_, executor_, linear_workspace_, params, num_sequences);
  }

  // Keys [0, num_keys) of the sequence whose table `params` has.
  void gather(const kernels::GatherParams& params, int64_t num_keys);
  // The same without threads, for const callers: several may run at once, and beside a call above.
  void gather_range(const kernels::GatherParams& params, int64_t key_begin, int64_t key_end) const {
    kernels_->gather(params, key_begin, key_end);
  }
  void scatter(const kernels::AppendParams& params, int64_t num_rows) const {
    kernels_->append(params, 0, num_rows);
  }
  void copy_pages(const std::vector<PageCopy>& copies);

 private:
  // The batch seen in one way, with its work lists by shape: layers of equal shape share one.
  struct CachedView {
    uint64_t step = 0;  // 0: stale
    KeyView view;
    SequenceSet set;
    struct List {
      WorkShape shape;
      bool cascades;  // may share prefixes
      WorkList list;
      std::vector<kernels::AttnSequence> sequences;  // the set's and the shared prefixes; empty without any
      SharedEntries shared;
    };
    std::vector<std::unique_ptr<List>> lists;
    size_t num_lists = 0;
  };

  kernels::AppendParams append_params(Forward& forward, const LayerSpec& layer, const kernels::TokenRows& k,
                                      const kernels::TokenRows& v);
  CachedView& view_of(Forward& forward, const KeyView& view, const std::vector<Span>* spans);
  const CachedView::List& work_list(Forward& forward, CachedView& view, const LayerSpec& layer,
                                    const WorkShape& shape, bool may_cascade);
  // Fills `list.shared` and `list.sequences` when some sequences begin with the same pages and reading those together pays.
  void share_prefixes(Forward& forward, const CachedView& view, const LayerSpec& layer,
                      const WorkShape& shape, CachedView::List& list);
  void stage_new_keys(Forward& forward, const AttnCall& call, const AttnTensors& tensors,
                      kernels::AttnParams* params);
  void set_rotations(Forward& forward, const AttnCall& call, bool has_sinks, kernels::AttnParams* params);

  const Spec* spec_;
  const PagePool* pool_;
  const kernels::cpu::KernelTable* kernels_;
  Executor executor_;
  ItemRunner runner_;
  std::vector<std::unique_ptr<CachedView>> views_;
  std::vector<int64_t> identity_slots_;  // 0, 1, 2, ...
  AlignedBuffer new_k_, new_v_;
  LinearWorkspace linear_workspace_;
  std::vector<PrefixCandidate> candidates_;
  std::vector<CommonPrefix> prefixes_;
  std::atomic<uint64_t> num_cascades_{0};  // statistics are read beside an attention
};

}  // namespace kvc
