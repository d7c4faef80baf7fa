// Sequences that share prefixes, on the emulated device: one forward with prefixes read together
// and apart, beside attention in double over what the sequences hold.
#pragma once

#include <map>
#include <memory>

#include "cudasim/cudasim.h"
#include "tests/cuda/cache_support.h"

namespace kvc::test {

// With a single multiprocessor, so that small batches have something to save.
constexpr DLDevice kSmallGpu{kDLCUDA, 3};

// What an attention kernel was given.
struct SeenLaunch {
  cuda::AttnKernel kernel;
  std::vector<cuda::WorkItem> items;

  int64_t num_keys() const {
    int64_t sum = 0;
    for (const cuda::WorkItem& item : items) sum += item.key_end - item.key_begin;
    return sum;
  }
};
// Of the launches through seeing_backend() outside captures.
inline std::vector<SeenLaunch>& seen_launches() {
  static std::vector<SeenLaunch> launches;
  return launches;
}
// Bit k: seeing_backend() says that AttnKernel k does not fit.
inline uint32_t& refused_kernels() {
  static uint32_t kernels = 0;
  return kernels;
}
inline const cuda::BackendTable* seeing_backend() {
  static const cuda::BackendTable table = [] {
    cuda::BackendTable copy = *kvc_cuda_backend();
    copy.attention_fits = [](int32_t device, cuda::AttnKernel kernel,
                             const cuda::AttnLaunch& launch, const char** why) {
      const bool is_refused = (refused_kernels() >> static_cast<uint32_t>(kernel) & 1u) != 0;
      return !is_refused && kvc_cuda_backend()->attention_fits(device, kernel, launch, why);
    };
    copy.attention = [](int32_t device, cuda::AttnKernel kernel, const cuda::AttnLaunch& launch,
                        cuda::Stream stream, cuda::Failure* failure) {
      int32_t is_capturing = 0;
      (void)kvc_cuda_backend()->is_capturing(device, stream, &is_capturing, failure);
      if (is_capturing == 0) {
        cudasim::finish_all();  // the plan is made
        const cuda::WorkSchedule& plan = launch.schedule;
        seen_launches().push_back({kernel, {plan.items, plan.items + plan.counts[0]}});
      }
      return kvc_cuda_backend()->attention(device, kernel, launch, stream, failure);
    };
    return copy;
  }();
  return &table;
}

struct ForkModel {
  int32_t page_size = 16;
  int32_t q_heads = 4, kv_heads = 2, dim = 64;
  DLDataType storage{kDLFloat, 32, 1};
  int32_t num_layers = 1;
  int32_t max_seqs = 0;
  int64_t max_tokens = 0, max_seq_len = 0;
  bool has_alibi = false, has_sinks = false;
  bool turns_keys = false;  // as they are read; not in double
  bool is_latent = false;   // MLA of rank 512 and 64 rotary dims

  bool is_exact() const { return storage.bits == 32; }
  int32_t k_dim() const { return is_latent ? 576 : dim; }
  int32_t v_dim() const { return is_latent ? 512 : dim; }
};

// A cache on the small device, and K and V of every token on the host. Values are such that 16-bit
// storage holds them exactly.
class Forks {
 public:
  struct Outputs {
    std::vector<float> out, lse;
  };

  Forks(const ForkModel& model, uint64_t seed) : model_(model), random_(seed) {
    kvc_layer layer{};
    layer.struct_size = sizeof layer;
    layer.num_q_heads = model.q_heads;
    layer.num_kv_heads = model.kv_heads;
    layer.k_dim = layer.v_dim = model.dim;
    layer.k_dtype = layer.v_dtype = model.storage;
    if (model.is_latent) {
      layer.kind = KVC_LAYER_MLA;
      layer.num_kv_heads = 1;
      layer.latent_rank = 512, layer.latent_rope_dim = 64;
    }
    kvc_rope rope{};
    rope.struct_size = sizeof rope;
    rope.mode = KVC_ROPE_ON_READ;
    if (model.turns_keys) layer.rope = &rope;
    const std::vector<kvc_layer> layers(static_cast<size_t>(model.num_layers), layer);
    kvc_config config{};
    (void)kvc_config_init(&config, sizeof config);
    config.device = kSmallGpu;
    config.page_size = model.page_size;
    config.num_layers = model.num_layers;
    config.layers = layers.data();
    config.num_pages = 12000 / model.page_size;
    config.max_seqs = model.max_seqs;
    config.max_tokens_per_forward = model.max_tokens;
    config.max_seq_len = model.max_seq_len;
    kvc_plan* plan = nullptr;
    kvc_error error = OneCache::blank();
    EXPECT_EQ(kvc_plan_create(&config, &plan, &error), KVC_OK) << error.message;
    EXPECT_EQ(kvc_cache_create(plan, &cache, &error), KVC_OK) << error.message;
    kvc_plan_destroy(plan);
    if (model.has_alibi) alibi_ = head_values(0.001f, 0.01f);
    if (model.has_sinks) sinks_ = head_values(-1.0f, 2.0f);
  }
  ~Forks() { kvc_cache_destroy(cache); }
  Forks(const Forks&) = delete;
  Forks& operator=(const Forks&) = delete;

  int64_t below(int64_t count) {
    return static_cast<int64_t>(random_() % static_cast<uint64_t>(count));
  }
  int64_t length(kvc_seq seq) const { return static_cast<int64_t>(tokens_.at(seq).size()); }

  void add(kvc_seq seq) {
    ASSERT_EQ(kvc_seq_add(cache, seq, nullptr), KVC_OK);
    tokens_[seq].clear();
  }
  // A new sequence of so many tokens, none of them attended to.
  void add(kvc_seq seq, int64_t tokens) {
    add(seq);
    grow(seq, tokens);
  }
  void fork(kvc_seq parent, kvc_seq child, int64_t tokens) {
    kvc_error error = OneCache::blank();
    ASSERT_EQ(kvc_seq_fork(cache, parent, child, tokens, &error), KVC_OK) << error.message;
    tokens_[child] = tokens_[parent];
    tokens_[child].resize(static_cast<size_t>(tokens));
  }
  void grow(kvc_seq seq, int64_t tokens) {
    kvc_forward* forward = begin({seq}, {tokens});
    ASSERT_NE(forward, nullptr);
    make_rows({seq}, {tokens});
    kvc_error error = OneCache::blank();
    for (int32_t layer = 0; layer < model_.num_layers; ++layer) {
      const kvc_status status = model_.is_latent
                                    ? kvc_mla_append(forward, layer, k->view(), &error)
                                    : kvc_kv_append(forward, layer, k->view(), v->view(), &error);
      ASSERT_EQ(status, KVC_OK) << error.message;
    }
    end(forward);
  }
  void set_window(kvc_seq seq, int64_t window, int64_t sink) {
    ASSERT_EQ(kvc_seq_set_window(cache, seq, window, sink, nullptr), KVC_OK);
    windows_[seq] = {window, sink};
  }

  kvc_forward* begin(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                     kvc_stream stream = nullptr, uint64_t flags = 0,
                     const int32_t* parents = nullptr) {
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.stream = stream;
    desc.num_seqs = seqs.size();
    desc.seqs = seqs.data();
    desc.append_lengths = lengths.data();
    desc.tree_parents = parents;
    desc.flags = flags;
    kvc_forward* forward = nullptr;
    kvc_error error = OneCache::blank();
    EXPECT_EQ(kvc_forward_begin(cache, &desc, &forward, &error), KVC_OK) << error.message;
    return forward;
  }
  void end(kvc_forward* forward) {
    kvc_error error = OneCache::blank();
    ASSERT_EQ(kvc_forward_end(forward, &error), KVC_OK) << error.message;
    cudasim::finish_all();
  }

  // New values of q, k and v, in this order the same for equal seeds; the sequences hold them from
  // now on.
  void make_rows(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) {
    int64_t rows = 0;
    for (const int64_t length : lengths) rows += length;
    if (q == nullptr || rows != rows_) {
      q = tensor(rows, model_.q_heads, model_.k_dim());
      k = tensor(rows, model_.kv_heads, model_.k_dim());
      v = tensor(rows, model_.kv_heads, model_.v_dim());
      rows_ = rows;
    }
    for (Tensor* values : {q.get(), k.get(), v.get()})
      for (float& value : values->values) value = static_cast<float>(below(33) - 16) / 8.0f;
    if (model_.is_latent) {
      for (size_t i = 0; i < v->values.size(); ++i)
        v->values[i] = k->values[i / 512 * 576 + i % 512];
    }
    int64_t row = 0;
    for (size_t i = 0; i < seqs.size(); ++i) {
      for (int64_t token = 0; token < lengths[i]; ++token, ++row) {
        const auto of = [&](const Tensor& values) {
          const auto size = static_cast<int64_t>(values.values.size()) / rows;
          return std::vector<float>(values.values.begin() + row * size,
                                    values.values.begin() + (row + 1) * size);
        };
        tokens_[seqs[i]].push_back({of(*k), of(*v)});
      }
    }
  }
  Outputs attend(kvc_forward* forward, uint64_t flags, bool appends, int32_t layer = 0,
                 int64_t window = 0) {
    kvc_attn_opt opt{};
    opt.struct_size = sizeof opt;
    opt.flags = flags;
    opt.window = window;
    if (alibi_ != nullptr) opt.alibi_slopes = alibi_->view();
    if (sinks_ != nullptr) opt.sink_logits = sinks_->view();
    if (model_.is_latent) opt.scale = 0.0625f;
    // They live on: a graph may have seen them.
    kept_.push_back(tensor(rows_, model_.q_heads, model_.v_dim()));
    Tensor& out = *kept_.back();
    kept_.push_back(
        std::make_unique<Tensor>(std::vector<int64_t>{rows_, model_.q_heads}, kSmallGpu));
    Tensor& lse = *kept_.back();
    kvc_error error = OneCache::blank();
    status = kvc_attn(forward, layer, &opt, q->view(), appends ? k->view() : nullptr,
                      appends && !model_.is_latent ? v->view() : nullptr, out.view(), lse.view(),
                      &error);
    EXPECT_TRUE(status == KVC_OK || may_fail) << error.message;
    cudasim::finish_all();
    return {out.copy(), lse.copy()};
  }

  // What the last call gave, once a graph has run again.
  Outputs last() const { return {kept_[kept_.size() - 2]->copy(), kept_.back()->copy()}; }

  // Attention of the newest tokens in double.
  Outputs in_double(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) const {
    Outputs all;
    int64_t row = 0;
    for (size_t i = 0; i < seqs.size(); ++i) {
      for (int64_t token = 0; token < lengths[i]; ++token, ++row) {
        for (int32_t head = 0; head < model_.q_heads; ++head)
          add_in_double(seqs[i], length(seqs[i]) - lengths[i] + token, row, head, &all);
      }
    }
    return all;
  }

  uint64_t cascades() const {
    kvc_stats stats{};
    stats.struct_size = sizeof stats;
    EXPECT_EQ(kvc_cache_stats_get(cache, &stats, nullptr), KVC_OK);
    return stats.cascades;
  }

  kvc_cache* cache = nullptr;
  bool may_fail = false;       // attend
  kvc_status status = KVC_OK;  // of it
  std::unique_ptr<Tensor> q, k, v;

 private:
  struct Token {
    std::vector<float> k, v;
  };
  struct Window {
    int64_t size = 0, sink = 0;
  };

  static std::unique_ptr<Tensor> tensor(int64_t rows, int32_t heads, int32_t dim) {
    return std::make_unique<Tensor>(std::vector<int64_t>{rows, heads, dim}, kSmallGpu);
  }
  std::unique_ptr<Tensor> head_values(float low, float high) {
    auto values = std::make_unique<Tensor>(std::vector<int64_t>{model_.q_heads}, kSmallGpu);
    for (float& value : values->values)
      value = std::uniform_real_distribution<float>(low, high)(random_);
    return values;
  }

  void add_in_double(kvc_seq seq, int64_t position, int64_t row, int32_t head, Outputs* all) const {
    const std::vector<Token>& tokens = tokens_.at(seq);
    const auto known = windows_.find(seq);
    const Window window = known == windows_.end() ? Window{} : known->second;
    const int64_t k_dim = model_.k_dim(), v_dim = model_.v_dim();
    const int64_t kv_head = head / (model_.q_heads / model_.kv_heads);
    const float* query = q->values.data() + (row * model_.q_heads + head) * k_dim;
    const double scale = model_.is_latent ? 0.0625 : 1 / std::sqrt(static_cast<double>(k_dim));
    double sum = 0;
    std::vector<double> out(static_cast<size_t>(v_dim));
    for (int64_t key = 0; key <= position; ++key) {
      if (window.size != 0 && key >= window.sink && key <= position - (window.size - window.sink))
        continue;
      const Token& token = tokens[static_cast<size_t>(key)];
      double score = 0;
      for (int64_t d = 0; d < k_dim; ++d)
        score += double{query[d]} * token.k[static_cast<size_t>(kv_head * k_dim + d)];
      score *= scale;
      if (alibi_ != nullptr)
        score -= double{alibi_->values[static_cast<size_t>(head)]} * (position - key);
      const double weight = std::exp(score);
      sum += weight;
      for (int64_t d = 0; d < v_dim; ++d)
        out[static_cast<size_t>(d)] += weight * token.v[static_cast<size_t>(kv_head * v_dim + d)];
    }
    const double sink =
        sinks_ != nullptr ? std::exp(double{sinks_->values[static_cast<size_t>(head)]}) : 0;
    for (const double value : out) all->out.push_back(static_cast<float>(value / (sum + sink)));
    all->lse.push_back(static_cast<float>(std::log(sum)));
  }

  ForkModel model_;
  std::mt19937_64 random_;
  std::map<kvc_seq, std::vector<Token>> tokens_;
  std::map<kvc_seq, Window> windows_;
  std::unique_ptr<Tensor> alibi_, sinks_;
  std::vector<std::unique_ptr<Tensor>> kept_;
  int64_t rows_ = 0;
};

}  // namespace kvc::test
