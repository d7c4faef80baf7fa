// One configuration of a cache drawn from a seed, with everything it borrows: layers, pool tensors,
// allocator, executor.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tests/model/naive_cache.h"
#include "tests/model/page_model.h"
#include "tests/model/random.h"
#include "tests/model/random_layers.h"

namespace kvc::test {

enum class RunKind {
  kBookkeeping,  // no tensors: lengths and pages
  kData,         // K, V and attention compared with the oracle
  kFailures      // every allocation of every call fails once
};

// Runs the tasks backwards on the caller's thread, worker after worker: an order no thread pool
// takes.
struct BackwardsExecutor {
  int32_t workers = 3;
  kvc_executor hooks();
};

// Memory that starts as NaN and whose allocations can be made to fail.
struct PoisonAllocator {
  int64_t live = 0;
  kvc_allocator hooks();
};

class RandomSetup {
 public:
  // Draws a configuration; creates nothing but a plan to ask for its groups.
  RandomSetup(Random& random, RunKind kind);
  ~RandomSetup();
  RandomSetup(const RandomSetup&) = delete;
  RandomSetup& operator=(const RandomSetup&) = delete;

  kvc_status create_plan(kvc_error* err) { return kvc_plan_create(&config_, &plan_, err); }
  kvc_status create_cache(kvc_error* err) { return kvc_cache_create(plan_, &cache_, err); }
  void destroy_cache();

  kvc_cache* cache() const { return cache_; }
  const kvc_config& config() const { return config_; }
  bool has_data() const { return config_.storage != KVC_STORAGE_NONE; }
  bool is_borrowed() const { return config_.storage == KVC_STORAGE_BORROWED; }
  const std::vector<NaiveLayer>& layers() const { return layers_.naive(); }  // of the slice
  int32_t global_layer(size_t local) const {
    return config_.layer_begin + static_cast<int32_t>(local);
  }
  // The layer groups whose pages hold rows of the layer.
  std::vector<int> groups_of(size_t local) const {
    const NaiveLayer& layer = layers()[local];
    const NaiveLayer& source =
        layer.source < 0 ? layer : layers()[static_cast<size_t>(layer.source)];
    std::vector<int> groups{source.group};
    if (source.kept_group >= 0) groups.push_back(source.kept_group);
    return groups;
  }
  // Sequences are given no window: rows of a layer would be dropped that no call shows.
  bool refrains_from_windows() const { return layers_.turns_kept(); }
  int num_sections() const { return num_sections_; }  // rows of caller-given positions
  const ModelLimits& limits() const { return limits_; }
  // Pages of one sequence of the configuration's max_seq_len, by the plan.
  int64_t longest_pages() const;
  std::string describe() const;
  // Largest relative error of an attention output of float32 arithmetic over the layer's storage
  // types.
  double tolerance(const NaiveLayer& layer) const;
  // How much attention of this layer rounds q and the weights, in roundings to bfloat16: 1, 1/8 for
  // float16, 0.
  double half_rounding(const NaiveLayer& layer) const;
  // Where the pool has the scale of a row, of a layer with a scale per row. Exports the pool.
  std::byte* scale_at(size_t local_layer, kvc_pool_kind half, int64_t page, int64_t head,
                      int64_t offset) const;
  // The bytes between borrowed pages still hold poison.
  bool pool_gaps_untouched() const;
  int64_t live_allocations() const { return allocator_.live; }

 private:
  void draw_limits(Random& random, bool data, bool long_context);
  // Reads the groups of a plan without storage and lets max_seq_len fit.
  void ask_plan(Random& random);
  void settle_ropes();
  void borrow_pools(Random& random);

  kvc_config config_{};
  RandomLayers layers_;
  ModelLimits limits_;
  kvc_cpu_isa best_isa_ = 0;
  int num_sections_ = 1;
  int64_t page_bytes_ = 0;
  std::vector<int64_t> region_bytes_;  // of a page, by layer region

  struct Pool {
    std::vector<std::byte, TensorAllocator<std::byte>> memory;
    int64_t page_bytes;
    int64_t stride;
    int64_t shape[2];
    int64_t strides[2];
    DLTensor tensor;
  };
  std::vector<std::unique_ptr<Pool>> pools_;
  std::vector<const DLTensor*> pool_tensors_;

  BackwardsExecutor executor_;
  PoisonAllocator allocator_;
  kvc_executor executor_hooks_{};
  kvc_allocator allocator_hooks_{};
  kvc_plan* plan_ = nullptr;
  kvc_cache* cache_ = nullptr;
};

// Instruction sets of this machine.
std::vector<kvc_cpu_isa> available_isas();

}  // namespace kvc::test
