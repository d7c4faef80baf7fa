// One configuration of a cache with a prefix index, drawn from a seed: models whose layers see all
// keys, windows, chunks, states, latents.
#pragma once

#include <algorithm>
#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "kvcache.h"
#include "tests/model/random.h"
#include "tests/model/random_setup.h"

namespace kvc::test {

enum class PrefixRunKind {
  kBookkeeping,  // no tensors, but for half of those with a host tier
  kData,         // rows are written and read back
  kFailures      // every allocation of every call fails once
};

class PrefixSetup {
 public:
  struct Group {
    int64_t window, chunk, page_size;
    int64_t keep;  // Of kept rows: its tables end after so many tokens. 0: they have all.
    bool sees_all() const { return window == 0 && chunk == 0; }
    int64_t tokens_of(int64_t tokens) const { return keep == 0 ? tokens : std::min(tokens, keep); }
    int64_t entries(int64_t tokens) const {
      return (tokens_of(tokens) + page_size - 1) / page_size;
    }
  };

  PrefixSetup(Random& random, PrefixRunKind kind);
  ~PrefixSetup();
  PrefixSetup(const PrefixSetup&) = delete;
  PrefixSetup& operator=(const PrefixSetup&) = delete;

  // Throws std::runtime_error.
  void create();
  void destroy_cache();

  kvc_cache* cache() const { return cache_; }
  const kvc_config& config() const { return config_; }
  const std::vector<kvc_layer>& layers() const { return layers_; }
  const kvc_plan_info& info() const { return info_; }
  const std::vector<Group>& groups() const { return groups_; }
  int group_of(size_t layer) const { return layer_groups_[layer]; }
  int32_t block() const { return info_.prefix_block; }
  bool has_data() const { return config_.storage != KVC_STORAGE_NONE; }
  bool has_states() const { return has_states_; }
  bool has_host() const { return config_.host_byte_budget != 0; }
  // Every group sees all tokens, and there are no states: what the index holds is what hits.
  bool sees_all() const { return sees_all_; }
  int64_t live_allocations() const { return allocator_.live; }
  std::string describe() const;

 private:
  void draw_layers(Random& random);
  void draw_kept(Random random);
  kvc_layer token_layer(Random& random, bool mla, int64_t window, int64_t chunk);
  kvc_status ask();  // fills what the plan says

  kvc_config config_{};
  std::vector<kvc_layer> layers_;
  std::deque<kvc_state_spec> states_;
  int64_t state_shape_[1] = {3};
  PoisonAllocator allocator_;
  kvc_allocator hooks_{};
  kvc_plan* plan_ = nullptr;
  kvc_cache* cache_ = nullptr;
  kvc_plan_info info_{};
  std::vector<Group> groups_;
  std::vector<int> layer_groups_;
  bool has_states_ = false;
  bool sees_all_ = true;
};

}  // namespace kvc::test
