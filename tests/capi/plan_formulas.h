// What vLLM's hybrid planner takes for a request, from its published formulas: layers of one kind
// in groups of about equal length, one size of block for all, small layers with longer blocks where
// they divide the largest, states in blocks of their own.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kvcache.h"

namespace kvc::test {

struct FormulaOptions {
  int64_t block_tokens = 16;
  int64_t in_flight = 0;  // tokens
  int64_t max_cross_len = 0;
  int64_t states =
      // Of a request: 2 where prefixes are shared ("align"), 1 where states are kept for nothing
      // else ("none")
      2;
};

class FormulaPlan {
 public:
  FormulaPlan() = default;
  // Reads the layers of a plan of the whole model, not its groups.
  FormulaPlan(const kvc_plan* plan, const FormulaOptions& options) : options_(options) {
    kvc_plan_info info{};
    info.struct_size = sizeof info;
    EXPECT_EQ(kvc_plan_info_get(plan, &info, nullptr), KVC_OK);
    for (int32_t i = 0; i < info.num_layers; ++i) {
      kvc_layer_info layer{};
      layer.struct_size = sizeof layer;
      EXPECT_EQ(kvc_plan_layer_get(plan, i, &layer, nullptr), KVC_OK);
      add(layer);
    }
    if (buckets_.empty()) return;
    make_blocks();
    make_groups();
  }

  // The most bytes that a request of this many tokens needs at any time.
  int64_t request_bytes(int64_t tokens) const {
    int64_t blocks = 0;
    for (const Bucket& bucket : buckets_) blocks += bucket.groups * bucket_blocks(bucket, tokens);
    return blocks * block_bytes_;
  }
  int64_t num_groups() const {
    int64_t groups = 0;
    for (const Bucket& bucket : buckets_) groups += bucket.groups;
    return groups;
  }

 private:
  struct Bucket {
    kvc_layer_kind kind;
    int64_t window, chunk;
    int64_t bytes;  // per token; of a state: of a layer
    int64_t layers = 0;
    int64_t block_tokens = 0;
    int64_t groups = 0;
  };

  void add(const kvc_layer_info& layer) {
    if (layer.kind == KVC_LAYER_SHARED || layer.kind == KVC_LAYER_NONE) return;
    const bool is_state = layer.kind == KVC_LAYER_STATE;
    const Bucket found{layer.kind, layer.window, layer.chunk,
                       static_cast<int64_t>(is_state ? layer.state_bytes : layer.bytes_per_token)};
    auto bucket = std::find_if(buckets_.begin(), buckets_.end(), [&](const Bucket& known) {
      return known.kind == found.kind && known.window == found.window &&
             known.chunk == found.chunk && known.bytes == found.bytes;
    });
    if (bucket == buckets_.end()) bucket = buckets_.insert(bucket, found);
    ++bucket->layers;
  }

  static int64_t up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }

  // Bytes that a layer has of a block: those of the largest.
  void make_blocks() {
    int64_t widest = 0, state = 0;
    bool is_latent = false;
    for (const Bucket& bucket : buckets_) {
      int64_t& most = bucket.kind == KVC_LAYER_STATE ? state : widest;
      most = std::max(most, bucket.bytes);
      is_latent = is_latent || bucket.kind == KVC_LAYER_MLA;
    }
    int64_t tokens = options_.block_tokens;
    if (state != 0 && widest != 0) {
      const int64_t step = is_latent ? std::max<int64_t>(128, tokens) : tokens;
      tokens = std::max(tokens, step * up(state, step * widest));
    }
    layer_block_bytes_ = widest == 0 ? state : tokens * widest;
    for (Bucket& bucket : buckets_)
      bucket.block_tokens =
          widest != 0 && widest % bucket.bytes == 0 ? tokens * (widest / bucket.bytes) : tokens;
  }

  void make_groups() {
    int64_t least = INT64_MAX, most = 0, longest = 0;
    for (const Bucket& bucket : buckets_) {
      least = std::min(least, bucket.layers);
      most = std::max(most, bucket.layers);
    }
    const int64_t length = 2 * most < 3 * least ? most : least;
    for (Bucket& bucket : buckets_) {
      bucket.groups = up(bucket.layers, length);
      longest = std::max(longest, up(bucket.layers, bucket.groups));
    }
    block_bytes_ = layer_block_bytes_ * longest;
  }

  int64_t bucket_blocks(const Bucket& bucket, int64_t tokens) const {
    if (bucket.kind == KVC_LAYER_STATE) return options_.states;
    if (bucket.kind == KVC_LAYER_CROSS) return up(options_.max_cross_len, bucket.block_tokens);
    const int64_t whole = up(tokens, bucket.block_tokens);
    if (bucket.chunk != 0)
      return up(std::min(bucket.chunk + options_.in_flight, tokens), bucket.block_tokens);
    if (bucket.window == 0) return whole;
    // vLLM counts the block over the edge even where that is more than all.
    const int64_t kept = std::min(bucket.window - 1 + options_.in_flight, tokens);
    return std::min(whole, up(kept, bucket.block_tokens) + 1);
  }

  FormulaOptions options_;
  std::vector<Bucket> buckets_;
  int64_t layer_block_bytes_ = 0;
  int64_t block_bytes_ = 0;  // of all layers of a group
};

}  // namespace kvc::test
