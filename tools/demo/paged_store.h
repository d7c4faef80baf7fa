// Rows 2 and 3: the same interface on libkvcache.
#pragma once

#include <memory>
#include <stdexcept>
#include <string>

#include "kvcache.h"
#include "tools/demo/kv_store.h"
#include "tools/kv_dtypes.h"
#include "tools/llm/shape.h"
#include "tools/llm/worker_pool.h"

namespace kvc::demo {

struct PagedOptions {
  KvDtype dtype = cpu_kv_dtype("fp32");
  int page_size = 16;
  uint64_t byte_budget = 0;  // num_pages = byte_budget / bytes of a page
  kvc_cpu_isa isa = KVC_CPU_ISA_AUTO;
  bool batch_invariant = false;
};

// A call of the library that failed in a way the demo has no answer to.
struct LibraryError : std::runtime_error {
  using std::runtime_error::runtime_error;
};

class PagedStore final : public KvStore {
 public:
  // Borrows shape and pool.
  PagedStore(const llm::Shape& shape, const PagedOptions& options, llm::WorkerPool& pool);

  bool add(int sequence) override;
  void fork(int parent, int child, int64_t length) override;
  bool can_fork() const override { return true; }
  void remove(int sequence) override;
  bool begin(std::span<const BatchItem> batch) override;
  void attend(int32_t layer, const float* qkv, int64_t stride, float* out) override;
  void end() override;
  MemoryUse memory() const override;
  std::vector<PageUse> pages() const override;

  // To a state file, whose bytes are returned, and back. The loaded sequence has `length` tokens.
  uint64_t save(int sequence, const std::string& path) const;
  void load(int sequence, const std::string& path, int64_t length);

  // Pages of a sequence of `tokens` tokens, but those that it shares with a sequence which has its
  // first `shared` tokens. Windows share nothing for long.
  int64_t own_pages(int64_t tokens, int64_t shared) const;

  kvc_stats stats() const;
  kvc_plan_info plan_info() const { return plan_info_; }
  void check() const;  // the library's own audit

 private:
  struct PlanDeleter {
    void operator()(kvc_plan* plan) const { kvc_plan_destroy(plan); }
  };
  struct CacheDeleter {
    void operator()(kvc_cache* cache) const { kvc_cache_destroy(cache); }
  };

  kvc_group_info group(int32_t index) const;
  void add_pages(kvc_seq sequence, int32_t group, std::vector<PageUse>& pages) const;

  const llm::Shape& shape_;
  uint64_t attention_flags_;
  std::unique_ptr<kvc_plan, PlanDeleter> plan_;
  std::unique_ptr<kvc_cache, CacheDeleter> cache_;
  kvc_plan_info plan_info_{};
  kvc_forward* forward_ = nullptr;  // belongs to the cache
};

}  // namespace kvc::demo
