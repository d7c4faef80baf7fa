// Runs kernels for a cache: fills their parameters from the open forward, cuts the work, spreads it over threads.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cpu/table.h"
#include "src/attention/options.h"
#include "src/attention/work_list.h"
#include "src/base/executor.h"
#include "src/base/memory.h"
#include "src/forward/forward.h"
#include "src/pages/pool.h"
#include "src/plan/plan.h"

namespace kvc {

// Which keys the new queries see.
enum class KeyScope {
  kAll,     // cached and new tokens, causal
  kCached,  // tokens cached before this forward
  kNew,     // the new tokens of this call, causal, not in the pool
};

// Checked tensors of one call.
struct AttnTensors {
  kernels::TokenRows q;
  kernels::TokenRows k;  // base null: read only
  kernels::TokenRows v;
  kernels::TokenRows out;
  float* lse = nullptr;
  int64_t lse_token_stride = 0;
};

// One call at a time. Workspace grows and is kept, so that a steady decode allocates nothing; it is secured before
// anything is written, so that std::bad_alloc leaves pool and outputs untouched.
class AttentionEngine {
 public:
  // Throws UNSUPPORTED when the machine lacks the wanted instruction set.
  AttentionEngine(const Spec& spec, const PagePool* pool);

  const char* isa_name() const { return kernels_->name; }
  Executor& executor() { return executor_; }

  // Appends k and v first when they are given (never for kNew).
  void attend(Forward& forward, int32_t local_layer, KeyScope scope, const AttnOptions& options,
              const AttnTensors& tensors);
  void append(Forward& forward, int32_t local_layer, const kernels::TokenRows& k, const kernels::TokenRows& v);
  void merge(const kernels::MergeParams& params, int64_t num_rows);

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
  struct NewKeys;  // k and v of this call, rotated and rounded, outside the pool

  kernels::AppendParams append_params(Forward& forward, int32_t local_layer, const kernels::TokenRows& k,
                                      const kernels::TokenRows& v);
  void run_append(const kernels::AppendParams& params, int64_t num_rows);
  void fill_sequences(const Forward& forward, KeyScope scope);
  const WorkList& work_list(const Forward& forward, KeyScope scope, const WorkShape& shape);
  void stage_new_keys(Forward& forward, int32_t local_layer, const AttnTensors& tensors,
                      kernels::AttnParams* params);
  void secure_workspace(const WorkList& list, const kernels::AttnParams& params);
  void run_items(const WorkList& list, const kernels::AttnParams& params);

  const Spec* spec_;
  const PagePool* pool_;
  const kernels::cpu::KernelTable* kernels_;
  Executor executor_;

  // Work lists of this step, by scope and shape: layers of equal shape share one.
  struct CachedList {
    uint64_t step = 0;
    KeyScope scope = KeyScope::kAll;
    WorkShape shape{};
    WorkList list;
  };
  std::vector<std::unique_ptr<CachedList>> lists_;
  std::vector<kernels::AttnSequence> sequences_;
  std::vector<int32_t> first_rows_;      // page table of each sequence's new keys (kNew)
  std::vector<int64_t> identity_slots_;  // 0, 1, 2, ...
  std::vector<AlignedBuffer> scratch_;   // per worker
  AlignedBuffer partials_;
  AlignedBuffer new_k_, new_v_;
  std::unique_ptr<std::atomic<int32_t>[]> finished_;  // per merge group: splits done
  size_t finished_capacity_ = 0;
};

}  // namespace kvc
