// A cache on a GPU over a pool of the bench's own (borrowed storage), made and filled through the C
// interface: pages at random places, random contents.
#pragma once

#include <memory>
#include <random>
#include <vector>

#include "bench/gpu.h"
#include "bench/gpu_shapes.h"

namespace kvc::bench {

class GpuCache {
 public:
  // `layers` layers alike with `num_pages` pages; state layers lie beside one small attention
  // layer, the last, and own their memory.
  GpuCache(const Gpu& gpu, const GpuShape& shape, int layers, int64_t num_pages);
  GpuCache(const GpuCache&) = delete;
  GpuCache& operator=(const GpuCache&) = delete;
  ~GpuCache();

  kvc_cache* get() const { return cache_; }
  const GpuShape& shape() const { return shape_; }
  int layers() const { return layers_; }

  void add(kvc_seq seq);
  void remove(kvc_seq seq);
  void fork(kvc_seq parent, kvc_seq child);
  // `parents` of all sequences' nodes: trees.
  kvc_forward* begin(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                     const std::vector<int32_t>& parents = {});
  void end(kvc_forward* forward);
  void abort(kvc_forward* forward);
  kvc_stats stats() const;

  // Appends lengths[i] tokens to seqs[i] page by page, the sequences in random order, into pages at
  // random places: fillers hold the free pages of the pool and give one up at a time, a random one
  // its last page. Layers with a window have no fillers: their sequences take each other's dropped
  // pages.
  void grow_shuffled(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths);

  // Whether two pages of layer 0 hold the same bytes (waits).
  bool are_equal(int64_t page, int64_t other) const;

  // Share of neighbours in the page tables that are neighbours in the pool.
  double adjacent_share(kvc_forward* forward) const;

 private:
  void make(const kvc_config& config);
  std::vector<kvc_seq> add_fillers();

  const Gpu& gpu_;
  GpuShape shape_;
  int layers_;
  std::vector<std::unique_ptr<GpuMemory>> pool_;
  kvc_cache* cache_ = nullptr;
  std::mt19937_64 random_{7};
};

// Pages of `tokens` tokens.
int64_t pages_for(const GpuShape& shape, int64_t tokens);

}  // namespace kvc::bench
