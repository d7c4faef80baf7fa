#include <stdexcept>
#include <string>

#include "tools/replay/bookkeeper.h"

namespace kvc::replay {
namespace {

void require(kvc_status status, const kvc_error& error) {
  if (status != KVC_OK)
    throw std::runtime_error(std::string(kvc_status_name(status)) + ": " + error.message);
}

struct DestroyCache {
  void operator()(kvc_cache* cache) const { kvc_cache_destroy(cache); }
};
struct DestroyPlan {
  void operator()(kvc_plan* plan) const { kvc_plan_destroy(plan); }
};

class CacheBookkeeper : public Bookkeeper {
 public:
  CacheBookkeeper(int64_t block, int64_t num_pages, int64_t window)
      : block_(static_cast<int32_t>(block)) {
    kvc_layer layers[2] = {};
    for (kvc_layer& layer : layers) {
      layer.struct_size = sizeof(layer);
      layer.num_kv_heads = 1;
      layer.num_q_heads = 1;
      layer.k_dim = 128;
    }
    layers[1].window = window;
    kvc_config config{};
    config.struct_size = sizeof(config);
    config.page_size = block_;
    config.num_layers = window != 0 ? 2 : 1;
    config.layers = layers;
    config.num_pages = num_pages;
    config.storage = KVC_STORAGE_NONE;
    config.num_threads = 1;
    kvc_plan* plan = nullptr;
    require(kvc_plan_create(&config, &plan, &error_), error_);
    const std::unique_ptr<kvc_plan, DestroyPlan> owner(plan);
    kvc_cache* cache = nullptr;
    require(kvc_cache_create(plan, &cache, &error_), error_);
    cache_.reset(cache);
  }

  void make_keys(const int32_t* tokens, int64_t num_tokens, std::vector<uint8_t>* keys) override {
    size_t count = static_cast<size_t>(num_tokens / block_);
    keys->resize(count * KVC_HASH_BYTES);
    if (count == 0) return;
    require(kvc_prefix_hash(tokens, static_cast<size_t>(num_tokens), block_, nullptr, 0, nullptr, 0,
                            keys->data(), &count, &error_),
            error_);
  }
  void add(kvc_seq seq) override { require(kvc_seq_add(cache_.get(), seq, &error_), error_); }
  int64_t attach(kvc_seq seq, const kvc_prefix_query& query) override {
    int64_t hit = 0;
    require(kvc_prefix_attach(cache_.get(), seq, &query, &hit, &error_), error_);
    return hit;
  }
  Append append(kvc_seq seq, int64_t num_tokens) override {
    kvc_forward_desc desc{};
    desc.struct_size = sizeof(desc);
    desc.num_seqs = 1;
    desc.seqs = &seq;
    desc.append_lengths = &num_tokens;
    kvc_forward* forward = nullptr;
    const kvc_status status = kvc_forward_begin(cache_.get(), &desc, &forward, &error_);
    if (status == KVC_E_NO_PAGES) return Append::kFull;
    if (status == KVC_E_NEVER_FITS) return Append::kNeverFits;
    require(status, error_);
    require(kvc_forward_end(forward, &error_), error_);
    return Append::kDone;
  }
  void insert(kvc_seq seq, const kvc_prefix_query& query) override {
    require(kvc_prefix_insert(cache_.get(), seq, &query, nullptr, &error_), error_);
  }
  void remove(kvc_seq seq) override { require(kvc_seq_remove(cache_.get(), seq, &error_), error_); }

  kvc_stats stats() const override {
    kvc_stats stats{};
    stats.struct_size = sizeof(stats);
    kvc_error error{};
    require(kvc_cache_stats_get(cache_.get(), &stats, &error), error);
    return stats;
  }
  void check() const override {
    kvc_error error{};
    require(kvc_cache_check(cache_.get(), &error), error);
  }

 private:
  int32_t block_;
  kvc_error error_{};
  std::unique_ptr<kvc_cache, DestroyCache> cache_;
};

}  // namespace

std::unique_ptr<Bookkeeper> make_cache_bookkeeper(int64_t block, int64_t num_pages,
                                                  int64_t window) {
  return std::make_unique<CacheBookkeeper>(block, num_pages, window);
}

}  // namespace kvc::replay
