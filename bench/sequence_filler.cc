#include "bench/sequence_filler.h"

#include <algorithm>
#include <random>
#include <vector>

namespace kvc::bench {
namespace {

constexpr int64_t kFillTokens = 512;  // Tokens of one filling forward.
constexpr kvc_seq kFirstFiller = 1 << 20;

}  // namespace

void SequenceFiller::grow(kvc_seq seq, int64_t tokens) {
  const CacheShape& shape = cache_.shape();
  const bool latent = shape.latent_rank > 0;
  if (shape.tensor_memory && k_ == nullptr) {
    k_ = std::make_unique<Activations>(shape.storage, kFillTokens, latent ? 1 : shape.kv_heads,
                                       latent ? shape.latent_dim() : shape.head_dim, 11);
    if (!latent) {
      v_ = std::make_unique<Activations>(shape.storage, kFillTokens, shape.kv_heads, shape.head_dim,
                                         12);
    }
  }
  for (int64_t done = 0; done < tokens;) {
    const int64_t part = shape.tensor_memory ? std::min(kFillTokens, tokens - done) : tokens;
    kvc_forward* forward = cache_.begin({seq}, {part});
    for (int layer = 0; shape.tensor_memory && layer < shape.layers; ++layer) {
      if (latent) {
        cache_.append_latents(forward, layer, k_->tensor());
      } else {
        cache_.append_kv(forward, layer, k_->tensor(), v_->tensor());
      }
    }
    cache_.end(forward);
    done += part;
  }
}

void SequenceFiller::grow_unwritten(kvc_seq seq, int64_t tokens) {
  for (int64_t done = 0; done < tokens; done += kFillTokens)
    cache_.step_without_layers({seq}, {std::min(kFillTokens, tokens - done)});
}

void fill(Cache& cache, int count, int64_t tokens, Placement placement) {
  for (int seq = 0; seq < count; ++seq) cache.add(seq);
  SequenceFiller filler(cache);
  if (placement == Placement::kAdjacent) {
    for (int seq = 0; seq < count; ++seq) filler.grow(seq, tokens);
    return;
  }
  // Fillers of one page hold the whole pool. Whenever one random filler goes, its page is the only
  // free one, and the next page of a random sequence has to take it.
  const int page_size = cache.shape().page_size;
  const int64_t pages_each = (tokens + page_size - 1) / page_size;
  std::vector<kvc_seq> fillers, turns;
  for (int64_t page = 0; page < cache.shape().num_pages; ++page) {
    fillers.push_back(kFirstFiller + page);
    cache.add(fillers.back());
    cache.step_without_layers({fillers.back()}, {1});
  }
  for (int seq = 0; seq < count; ++seq)
    turns.insert(turns.end(), static_cast<size_t>(pages_each), seq);
  std::mt19937_64 random(7);
  std::shuffle(fillers.begin(), fillers.end(), random);
  std::shuffle(turns.begin(), turns.end(), random);
  std::vector<int64_t> missing(static_cast<size_t>(count), tokens);
  for (size_t turn = 0; turn < turns.size(); ++turn) {
    cache.remove(fillers.at(turn));
    int64_t& left = missing[static_cast<size_t>(turns[turn])];
    const int64_t part = std::min<int64_t>(page_size, left);
    filler.grow(turns[turn], part);
    left -= part;
  }
  for (size_t left = turns.size(); left < fillers.size(); ++left) cache.remove(fillers[left]);
}

}  // namespace kvc::bench
