#include "tools/chat/chat_cache.h"

#include <numeric>

#include "tools/refusal.h"

namespace kvc::chat {
namespace {

// Calls the library: check([&](kvc_error* error) { return kvc_seq_add(cache, seq, error); }).
template <class Call>
void check(const Call& call) {
  kvc_error error{};
  error.struct_size = sizeof error;
  const kvc_status status = call(&error);
  if (status != KVC_OK) throw CacheError(status, error.message, error.detail);
}

// Heads of packed tokens: [tokens][heads][dim] of float32, rows `stride` floats apart.
struct Heads {
  Heads(const float* data, int64_t tokens, int64_t heads, int64_t dim, int64_t stride)
      : shape{tokens, heads, dim}, strides{stride, dim, 1} {
    tensor.data = const_cast<float*>(data);  // DLPack has no const. Inputs are only read.
    tensor.device = {kDLCPU, 0};
    tensor.ndim = 3;
    tensor.dtype = {kDLFloat, 32, 1};
    tensor.shape = shape;
    tensor.strides = strides;
  }
  Heads(const Heads&) = delete;
  Heads& operator=(const Heads&) = delete;

  int64_t shape[3], strides[3];
  DLTensor tensor{};
};

}  // namespace

ChatCache::ChatCache(const llm::Shape& shape, DLDataType dtype, int64_t context,
                     llm::WorkerPool& pool, kvc_quant quant, int32_t keep_tokens)
    : shape_(shape) {
  const std::vector<kvc_layer> layers = llm::kv_layers(shape, dtype, quant, keep_tokens);
  const kvc_executor executor = pool.executor();
  kvc_config config;
  kvc_config_init(&config, sizeof config);
  config.num_layers = static_cast<int32_t>(layers.size());
  config.layers = layers.data();
  config.page_size = 16;
  config.num_pages = (context + config.page_size - 1) / config.page_size + 1;
  config.executor = &executor;
  // How many pages a conversation needs depends on the layers' windows: the plan knows.
  kvc_plan* plan = nullptr;
  check([&](kvc_error* error) { return kvc_plan_create(&config, &plan, error); });
  plan_.reset(plan);
  int64_t pages = 0;
  check([&](kvc_error* error) { return kvc_plan_request_pages(plan, context, &pages, error); });
  config.num_pages = pages + 1;
  check([&](kvc_error* error) { return kvc_plan_create(&config, &plan, error); });
  plan_.reset(plan);
  info_.struct_size = sizeof info_;
  check([&](kvc_error* error) { return kvc_plan_info_get(plan, &info_, error); });
  kvc_cache* cache = nullptr;
  check([&](kvc_error* error) { return kvc_cache_create(plan, &cache, error); });
  cache_.reset(cache);
}

void ChatCache::add(kvc_seq seq) {
  check([&](kvc_error* error) { return kvc_seq_add(cache_.get(), seq, error); });
}

void ChatCache::remove(kvc_seq seq) {
  check([&](kvc_error* error) { return kvc_seq_remove(cache_.get(), seq, error); });
}

void ChatCache::fork(kvc_seq parent, kvc_seq child, int64_t pos) {
  check([&](kvc_error* error) { return kvc_seq_fork(cache_.get(), parent, child, pos, error); });
}

void ChatCache::pop(kvc_seq seq, int64_t n) {
  check([&](kvc_error* error) { return kvc_seq_pop(cache_.get(), seq, n, error); });
}

void ChatCache::cut(kvc_seq seq, int64_t begin, int64_t end) {
  check([&](kvc_error* error) {
    return kvc_seq_shift(cache_.get(), seq, begin, end, begin - end, error);
  });
}

int64_t ChatCache::length(kvc_seq seq) const {
  int64_t length = 0;
  check([&](kvc_error* error) { return kvc_seq_length(cache_.get(), seq, &length, error); });
  return length;
}

void ChatCache::save(kvc_seq seq, std::span<const kvc_seq> beginnings, const std::string& path,
                     const std::string& model) {
  std::vector<kvc_seq> seqs = {seq};
  seqs.insert(seqs.end(), beginnings.begin(), beginnings.end());
  kvc_save_desc desc{};
  desc.struct_size = sizeof desc;
  desc.path = path.c_str();
  desc.model_id = model.c_str();
  uint64_t bytes = 0;
  check([&](kvc_error* error) {
    return kvc_seq_save(cache_.get(), seqs.size(), seqs.data(), &desc, nullptr, &bytes, error);
  });
}

size_t ChatCache::load(kvc_seq first, const std::string& path, const std::string& model) {
  kvc_load_desc desc{};
  desc.struct_size = sizeof desc;
  desc.path = path.c_str();
  desc.model_id = model.c_str();
  std::vector<kvc_seq> seqs = {first};
  const auto load = [&](kvc_error* error) {
    return kvc_seq_load(cache_.get(), &desc, seqs.size(), seqs.data(), nullptr, error);
  };
  try {
    check_with_room(load);
  } catch (const CacheError& refused) {
    // A file of more sequences says how many.
    if (refused.status != KVC_E_INVALID_ARGUMENT || refused.detail < 2) throw;
    seqs.resize(static_cast<size_t>(refused.detail));
    std::iota(seqs.begin(), seqs.end(), first);
    check_with_room(load);
  }
  int64_t shortest = -1;
  for (size_t i = 1; i < seqs.size(); ++i) {
    const int64_t tokens = length(seqs[i]);
    if (tokens <= shortest || tokens >= length(first)) {
      for (const kvc_seq seq : seqs) remove(seq);
      throw Refusal(path + " holds several sequences that are not one chat and its beginnings");
    }
    shortest = tokens;
  }
  return seqs.size() - 1;
}

// Calls the library. Branches, and what a file holds, may need more pages than one conversation:
// then the pool grows by half.
template <class Call>
void ChatCache::check_with_room(const Call& call) {
  for (;;) {
    try {
      check(call);
      return;
    } catch (const CacheError& refused) {
      if (refused.status != KVC_E_NO_PAGES && refused.status != KVC_E_NEVER_FITS) throw;
    }
    const int64_t pages = stats().pages_total;
    check([&](kvc_error* error) {
      return kvc_cache_resize(cache_.get(), pages + pages / 2 + 1, error);
    });
  }
}

void ChatCache::begin(kvc_seq seq, std::span<const int32_t> tokens) {
  const auto count = static_cast<int64_t>(tokens.size());
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = 1;
  desc.seqs = &seq;
  desc.append_lengths = &count;
  desc.tokens = tokens.data();
  check_with_room(
      [&](kvc_error* error) { return kvc_forward_begin(cache_.get(), &desc, &forward_, error); });
}

void ChatCache::forward(kvc_seq seq, std::span<const int32_t> tokens, llm::Network& network,
                        float* logits) {
  const int64_t last = static_cast<int64_t>(tokens.size()) - 1;
  forward(seq, tokens, network, std::span<const int64_t>(&last, logits == nullptr ? 0 : 1), logits);
}

void ChatCache::forward(kvc_seq seq, std::span<const int32_t> tokens, llm::Network& network,
                        std::span<const int64_t> wanted, float* logits) {
  begin(seq, tokens);
  try {
    network.forward(*this, tokens, wanted, logits);
  } catch (...) {
    (void)kvc_forward_abort(forward_, nullptr);
    throw;
  }
  check([&](kvc_error* error) { return kvc_forward_end(forward_, error); });
}

void ChatCache::attend(int32_t layer, const float* qkv, int64_t stride, float* out) {
  const int64_t tokens = kvc_forward_num_tokens(forward_), dim = shape_.head_dim;
  const Heads q(qkv, tokens, shape_.q_heads, dim, stride);
  const Heads k(qkv + shape_.q_width(), tokens, shape_.kv_heads, dim, stride);
  const Heads v(qkv + shape_.q_width() + shape_.kv_width(), tokens, shape_.kv_heads, dim, stride);
  Heads result(out, tokens, shape_.q_heads, dim, shape_.q_width());
  kvc_attn_opt options{};
  options.struct_size = sizeof options;
  options.scale = static_cast<float>(shape_.attention_scale);
  check([&](kvc_error* error) {
    return kvc_attn(forward_, layer, &options, &q.tensor, &k.tensor, &v.tensor, &result.tensor,
                    nullptr, error);
  });
}

kvc_stats ChatCache::stats() const {
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  check([&](kvc_error* error) { return kvc_cache_stats_get(cache_.get(), &stats, error); });
  return stats;
}

}  // namespace kvc::chat
