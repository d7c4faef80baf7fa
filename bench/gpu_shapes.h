// The shapes that the device benches measure, as data: those that kernels are commonly compared on.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace kvc::bench {

enum class GpuOp {
  kAttend,   // kvc_attn: decode, prefill, trees, latents.
  kSelf,     // kvc_attn_self: MLA prefill in the ragged form.
  kCascade,  // kvc_attn over a shared prefix, with it read together and read apart.
  kAppend,   // kvc_kv_append with rotation of K.
  kCopy,     // kvc_pages_copy
  kLinear    // kvc_attn_linear, one token of each sequence.
};

struct GpuShape {
  std::string id;
  std::string bench;  // Subcommand that runs it.
  std::string what;
  GpuOp op = GpuOp::kAttend;
  int64_t batch = 1;
  int64_t new_tokens = 1;  // Tokens of each sequence per step.
  int64_t cached = 0;      // Tokens of each sequence before the step.
  int q_heads = 32, kv_heads = 8;
  int k_dim = 128, v_dim = 128;
  int page_size = 16;
  bool fp8 = false;   // e4m3 storage with one scale, else bfloat16.
  bool zipf = false;  // Lengths by Zipf's law: `cached` on average, `longest` at most.
  int64_t longest = 0;
  int64_t window = 0;
  bool sinks = false;
  bool tree = false;   // The new tokens are a binary tree.
  int64_t shared = 0;  // kCascade: tokens that all sequences share, in front of `cached`
  int latent_rank = 0,
      latent_rope_dim =
          // MLA: k_dim = rank + rope dim, v_dim = rank; kSelf: k_dim and v_dim of the ragged form.
      0;

  bool is_mla() const { return latent_rank > 0; }
};

const std::vector<GpuShape>& gpu_shapes();

// The same operation in a size that an emulated device gets through in seconds.
GpuShape tiny(const GpuShape& shape);

// Tokens of each sequence before the step.
std::vector<int64_t> cached_lengths(const GpuShape& shape);
// Parent of each node of the binary tree.
std::vector<int32_t> tree_parents(int64_t nodes);

// What a call has to move and compute at least. Bytes: stored K and V (latents, states) that are
// seen, once; what is written where that is the job.
struct GpuWork {
  double bytes = 0;
  double flops = 0;
};
GpuWork work_of(const GpuShape& shape);
// The same where every sequence reads the shared prefix by itself.
GpuWork flat_work_of(const GpuShape& shape);

// K and V of a token in one layer.
int64_t token_bytes(const GpuShape& shape);

}  // namespace kvc::bench
