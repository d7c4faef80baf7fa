#include "bench/gpu_shapes.h"

#include <algorithm>
#include <cmath>
#include <random>

namespace kvc::bench {
namespace {

GpuShape decode(const char* id, const char* what, int64_t batch, int64_t context) {
  GpuShape shape;
  shape.id = id;
  shape.bench = "decode";
  shape.what = what;
  shape.batch = batch;
  shape.cached = context - 1;
  return shape;
}

GpuShape prefill(const char* id, const char* what, int64_t batch, int64_t new_tokens,
                 int64_t context) {
  GpuShape shape = decode(id, what, batch, context);
  shape.bench = "prefill";
  shape.new_tokens = new_tokens;
  shape.cached = context - new_tokens;
  return shape;
}

GpuShape heads(GpuShape shape, int q_heads, int kv_heads, int dim) {
  shape.q_heads = q_heads;
  shape.kv_heads = kv_heads;
  shape.k_dim = shape.v_dim = dim;
  return shape;
}

GpuShape pages_of(GpuShape shape, int page_size) {
  shape.page_size = page_size;
  return shape;
}

GpuShape latents(GpuShape shape, int num_heads) {
  shape.bench = "mla";
  shape.q_heads = num_heads;
  shape.kv_heads = 1;
  shape.latent_rank = 512;
  shape.latent_rope_dim = 64;
  shape.k_dim = 576;
  shape.v_dim = 512;
  shape.page_size = 64;
  return shape;
}

GpuShape skewed(GpuShape shape, int64_t longest) {
  shape.zipf = true;
  shape.longest = longest;
  return shape;
}

GpuShape windowed(GpuShape shape, int64_t window) {
  shape.window = window;
  shape.sinks = true;
  return shape;
}

GpuShape quantised(GpuShape shape) {
  shape.fp8 = true;
  return shape;
}

GpuShape other(GpuShape shape, const char* bench, GpuOp op) {
  shape.bench = bench;
  shape.op = op;
  return shape;
}

GpuShape tree(GpuShape shape, int64_t nodes) {
  shape.bench = "tree";
  shape.tree = true;
  shape.new_tokens = nodes;
  shape.cached = shape.cached + 1 - nodes;
  return shape;
}

GpuShape shared(GpuShape shape, int64_t tokens) {
  shape.shared = tokens;
  return shape;
}

GpuShape ragged(GpuShape shape) {
  shape = latents(shape, 128);
  shape.k_dim = 192;
  shape.v_dim = 128;
  return other(shape, "prefill", GpuOp::kSelf);
}

std::vector<GpuShape> all_shapes() {
  constexpr int64_t k = 1024;
  return {
      decode("D1", "one sequence of 4k", 1, 4 * k),
      decode("D2", "32 sequences of 4k", 32, 4 * k),
      pages_of(decode("D2-p64", "the same, pages of 64", 32, 4 * k), 64),
      skewed(decode("D3", "64 sequences, Zipf lengths, 4k on average", 64, 4 * k), 64 * k),
      pages_of(decode("D4", "8 sequences of 32k", 8, 32 * k), 64),
      heads(decode("D5", "64 sequences of 8k, a TP8 part of 70B", 64, 8 * k), 8, 1, 128),
      heads(decode("D6", "16 sequences of 4k, MHA", 16, 4 * k), 32, 32, 128),
      pages_of(heads(decode("D6-p1", "the same, pages of 1", 16, 4 * k), 32, 32, 128), 1),
      quantised(decode("D7", "32 sequences of 4k, e4m3 storage", 32, 4 * k)),
      windowed(heads(decode("D8", "64 sequences of 8k, window 128, sinks", 64, 8 * k), 64, 8, 64),
               128),
      pages_of(heads(decode("D9", "32 sequences of 8k, head dim 256", 32, 8 * k), 16, 4, 256), 32),
      tree(decode("V1", "16 trees of 32 nodes over 8k", 16, 8 * k), 32),
      prefill("P1", "8k new tokens", 1, 8 * k, 8 * k),
      pages_of(prefill("P1-p64", "the same, pages of 64", 1, 8 * k, 8 * k), 64),
      prefill("P2", "16 prompts of 1k", 16, k, k),
      prefill("P3", "4 chunks of 2k, the last of 8k", 4, 2 * k, 8 * k),
      ragged(prefill("P4", "8k new tokens of MLA, 128 heads, 192/128", 1, 8 * k, 8 * k)),
      shared(other(decode("C1", "64 sequences, 4k shared and 512 of their own", 64, 512), "cascade",
                   GpuOp::kCascade),
             4 * k),
      latents(decode("M1", "128 sequences of 4k latents, 128 heads", 128, 4 * k), 128),
      latents(decode("M2", "128 sequences of 4k latents, 16 heads", 128, 4 * k), 16),
      other(decode("A1", "one token of 128 sequences", 128, 256), "append", GpuOp::kAppend),
      other(prefill("A2", "8k tokens of one sequence", 1, 8 * k, 8 * k), "append", GpuOp::kAppend),
      other(decode("S1", "4096 pages of 64 KiB", 4096, 1), "copy", GpuOp::kCopy),
      other(heads(decode("R1", "64 gated delta states, 32 heads, 128 x 128 float32", 64, 1), 32, 16,
                  128),
            "linear", GpuOp::kLinear),
  };
}

// Visible keys of all rows of a sequence, summed, and keys that are visible to any of them.
struct Keys {
  double pairs = 0, seen = 0;
};
Keys keys_of(const GpuShape& shape, int64_t cached) {
  Keys keys;
  if (shape.tree) {
    const std::vector<int32_t> parents = tree_parents(shape.new_tokens);
    for (int64_t node = 0; node < shape.new_tokens; ++node) {
      int64_t path = 1;
      for (int32_t up = parents[static_cast<size_t>(node)]; up >= 0;
           up = parents[static_cast<size_t>(up)])
        ++path;
      keys.pairs += static_cast<double>(cached + path);
    }
    keys.seen = static_cast<double>(cached + shape.new_tokens);
    return keys;
  }
  for (int64_t row = 0; row < shape.new_tokens; ++row) {
    const int64_t visible = cached + row + 1;
    keys.pairs += static_cast<double>(shape.window > 0 ? std::min(visible, shape.window) : visible);
  }
  const int64_t total = cached + shape.new_tokens;
  keys.seen = static_cast<double>(
      shape.window > 0 ? std::min(total, shape.window + shape.new_tokens - 1) : total);
  return keys;
}

// `each`: times that the shared prefix is read.
GpuWork attention_work(const GpuShape& shape, int64_t each) {
  GpuWork work;
  for (const int64_t cached : cached_lengths(shape)) {
    const Keys keys = keys_of(shape, cached);
    work.bytes += keys.seen * static_cast<double>(token_bytes(shape));
    work.flops += 2.0 * shape.q_heads * (shape.k_dim + shape.v_dim) *
                  (keys.pairs + static_cast<double>(shape.shared * shape.new_tokens));
  }
  work.bytes += static_cast<double>(each * shape.shared * token_bytes(shape));
  return work;
}

}  // namespace

const std::vector<GpuShape>& gpu_shapes() {
  static const std::vector<GpuShape> shapes = all_shapes();
  return shapes;
}

GpuShape tiny(const GpuShape& shape) {
  GpuShape small = shape;
  small.what = "(tiny) " + shape.what;
  small.batch = std::min<int64_t>(shape.batch, shape.op == GpuOp::kCopy ? 8 : 3);
  small.new_tokens = std::min<int64_t>(shape.new_tokens, 6);
  small.cached = std::min<int64_t>(shape.cached, 40);
  small.longest = std::min<int64_t>(shape.longest, 80);
  small.shared = std::min<int64_t>(shape.shared, 2 * int64_t{shape.page_size});
  small.window = std::min<int64_t>(shape.window, 16);
  const int group = std::max(1, shape.q_heads / shape.kv_heads);
  small.kv_heads = shape.kv_heads == 1 ? 1 : 2;
  small.q_heads = small.kv_heads * std::min(group, 4);
  if (shape.op == GpuOp::kLinear)
    small.q_heads = 2, small.kv_heads = 1, small.k_dim = small.v_dim = 16;
  return small;
}

std::vector<int64_t> cached_lengths(const GpuShape& shape) {
  std::vector<int64_t> lengths(static_cast<size_t>(shape.batch), shape.cached);
  if (!shape.zipf) return lengths;
  // length of rank r: longest / r^a, with the `a` that gives the average.
  const auto total = [&](double a) {
    double sum = 0;
    for (int64_t rank = 1; rank <= shape.batch; ++rank)
      sum += static_cast<double>(shape.longest) / std::pow(static_cast<double>(rank), a);
    return sum;
  };
  double low = 0, high = 16;
  for (int i = 0; i < 60; ++i) {
    const double middle = 0.5 * (low + high);
    (total(middle) > static_cast<double>(shape.batch * (shape.cached + 1)) ? low : high) = middle;
  }
  for (size_t i = 0; i < lengths.size(); ++i) {
    const double length =
        static_cast<double>(shape.longest) / std::pow(static_cast<double>(i + 1), low);
    lengths[i] = std::max<int64_t>(1, static_cast<int64_t>(length) - 1);
  }
  std::shuffle(lengths.begin(), lengths.end(), std::mt19937_64(5));
  return lengths;
}

std::vector<int32_t> tree_parents(int64_t nodes) {
  std::vector<int32_t> parents;
  for (int64_t node = 0; node < nodes; ++node)
    parents.push_back(node == 0 ? -1 : static_cast<int32_t>((node - 1) / 2));
  return parents;
}

int64_t token_bytes(const GpuShape& shape) {
  if (shape.is_mla()) return (shape.latent_rank + shape.latent_rope_dim) * int64_t{2};
  return int64_t{shape.kv_heads} * (shape.k_dim + shape.v_dim) * (shape.fp8 ? 1 : 2);
}

GpuWork work_of(const GpuShape& shape) {
  const auto rows = static_cast<double>(shape.batch * shape.new_tokens);
  switch (shape.op) {
    case GpuOp::kAttend:
    case GpuOp::kCascade: return attention_work(shape, 1);
    case GpuOp::kSelf: {  // k and v come as tensors, of all heads.
      GpuWork work = attention_work(shape, 0);
      work.bytes = rows * shape.q_heads * (shape.k_dim + shape.v_dim) * 2;
      return work;
    }
    case GpuOp::kAppend: return {rows * static_cast<double>(2 * token_bytes(shape)), 0};
    case GpuOp::kCopy:
      return {2.0 * static_cast<double>(shape.batch * shape.page_size * token_bytes(shape)), 0};
    case GpuOp::kLinear: {
      const double elements = rows * shape.q_heads * shape.k_dim * shape.v_dim;
      return {2 * 4 * elements, 0};  // float32 arithmetic, far from its limit: memory bounds it.
    }
  }
  return {};
}

GpuWork flat_work_of(const GpuShape& shape) { return attention_work(shape, shape.batch); }

}  // namespace kvc::bench
