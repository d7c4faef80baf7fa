#include "tools/llm/block_kernels.h"

#include "tools/llm/block_kernels-inl.h"

namespace kvc::llm {
namespace {

// One set of wrappers per instruction set. TileRows uses up the registers: two vectors of sums per
// row.
#define KVC_LLM_KERNELS(Name, Label, Target, VectorBytes, TileRows)                  \
  struct Name {                                                                      \
    using Body = BlockBody<VectorBytes, TileRows>;                                   \
    Target static void multiply(const Product& product) { Body::multiply(product); } \
    Target static void softmax(const SoftmaxBlock& block) { Body::softmax(block); }  \
    Target static void silu_multiply(float* gate, const float* up, int64_t count) {  \
      Body::silu_multiply(gate, up, count);                                          \
    }                                                                                \
    Target static void gelu_multiply(float* gate, const float* up, int64_t count) {  \
      Body::gelu_multiply(gate, up, count);                                          \
    }                                                                                \
  };                                                                                 \
  constexpr BlockKernels k##Name{Label,         Name::Body::kPanel,  Name::multiply, \
                                 Name::softmax, Name::silu_multiply, Name::gelu_multiply};

KVC_LLM_KERNELS(Baseline, "baseline", , 16, 4)

#if defined(__x86_64__)
KVC_LLM_KERNELS(Avx2, "avx2", __attribute__((target("avx2,fma"))), 32, 6)
KVC_LLM_KERNELS(Avx512, "avx512", __attribute__((target("avx512f,avx512vl,avx512bw,avx512dq,fma"))),
                64, 12)
#endif

}  // namespace

const BlockKernels& block_kernels(KernelLevel level) {
#if defined(__x86_64__)
  const bool any = level == KernelLevel::kBest;
  if ((any || level == KernelLevel::kAvx512) && __builtin_cpu_supports("avx512f") &&
      __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
      __builtin_cpu_supports("avx512vl")) {
    return kAvx512;
  }
  if (level != KernelLevel::kBaseline && __builtin_cpu_supports("avx2") &&
      __builtin_cpu_supports("fma"))
    return kAvx2;
#else
  (void)level;
#endif
  return kBaseline;
}

}  // namespace kvc::llm
