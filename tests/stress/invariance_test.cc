// Results do not depend on threads, on the batch, nor (with BATCH_INVARIANT) on how a prompt was
// cut into forwards. Bit for bit.
#include <string>

#include "tests/stress/decoder.h"
#include "tests/stress/executor.h"

namespace kvc::test {
namespace {

std::vector<kvc_cpu_isa> isas() {
  kvc_device_caps caps{};
  caps.struct_size = sizeof caps;
  std::vector<kvc_cpu_isa> result;
  if (kvc_device_query({kDLCPU, 0}, &caps, nullptr) != KVC_OK) return result;
  for (kvc_cpu_isa isa = KVC_CPU_ISA_REFERENCE; isa <= KVC_CPU_ISA_AVX512_BF16; ++isa) {
    if ((caps.isas >> isa & 1) != 0) result.push_back(isa);
  }
  return result;
}

// The reference kernels are slow: smaller heads show as much.
DecoderShape shape_for(kvc_cpu_isa isa) {
  DecoderShape shape;
  shape.isa = isa;
  if (isa == KVC_CPU_ISA_REFERENCE) {
    shape.num_layers = 1;
    shape.k_dim = shape.v_dim = 16;
    shape.q_heads = 2;
  }
  return shape;
}

// Prefill, decode, mixed: lengths around page and block edges, contexts longer than one split.
std::vector<std::vector<TokenOutput>> run_workload(const DecoderShape& shape, uint64_t flags) {
  Decoder decoder(shape);
  std::vector<std::vector<TokenOutput>> outputs;
  outputs.push_back(decoder.step(
      {{1, 130}, {2, 1}, {3, 17}, {4, shape.isa == KVC_CPU_ISA_REFERENCE ? 150 : 600}}, flags));
  outputs.push_back(decoder.step({{4, 1}, {2, 1}, {1, 1}, {3, 1}}, flags));
  outputs.push_back(decoder.step({{2, 63}, {4, 1}, {5, 16}, {1, 1}}, flags));
  outputs.push_back(decoder.step({{4, 1}}, flags));
  return outputs;
}

class PerIsa : public testing::TestWithParam<kvc_cpu_isa> {};

TEST_P(PerIsa, ThreadsAndExecutorsDoNotChangeABit) {
  for (const Elem storage : {Elem::kBF16, Elem::kF32}) {
    DecoderShape shape = shape_for(GetParam());
    shape.storage = storage;
    for (const uint64_t flags : {uint64_t{0}, uint64_t{KVC_ATTN_BATCH_INVARIANT}}) {
      shape.num_threads = 1;
      shape.executor = nullptr;
      const auto alone = run_workload(shape, flags);
      for (const int32_t threads : {2, 7}) {
        shape.num_threads = threads;
        EXPECT_EQ(run_workload(shape, flags), alone)
            << threads << " threads, storage " << name_of(storage) << ", flags " << flags;
      }
      ThreadedExecutor executor;
      const kvc_executor hooks = executor.hooks();
      shape.executor = &hooks;
      EXPECT_EQ(run_workload(shape, flags), alone)
          << "executor, storage " << name_of(storage) << ", flags " << flags;
      EXPECT_GT(executor.tasks, 0) << "the executor was never asked";
    }
  }
}

TEST_P(PerIsa, TheRestOfTheBatchDoesNotChangeABit) {
  DecoderShape shape = shape_for(GetParam());
  for (const uint64_t flags : {uint64_t{0}, uint64_t{KVC_ATTN_BATCH_INVARIANT}}) {
    Decoder alone(shape), crowded(shape);
    for (const int64_t append : {37, 1, 1, 5, 1}) {
      const std::vector<TokenOutput> expected = alone.step({{1, append}}, flags);
      const std::vector<TokenOutput> got =
          crowded.step({{8, 3}, {9, 1}, {1, append}, {7, 40}}, flags);
      ASSERT_EQ(got.size(), static_cast<size_t>(append) + 44);
      EXPECT_EQ(std::vector<TokenOutput>(got.begin() + 4, got.begin() + 4 + append), expected)
          << append << " tokens, flags " << flags;
    }
  }
}

TEST_P(PerIsa, ChunkedPrefillAndDecodeEqualOneShotPrefill) {
  const int64_t num_tokens = GetParam() == KVC_CPU_ISA_REFERENCE ? 101 : 261;
  for (const Elem storage : {Elem::kBF16, Elem::kF16, Elem::kF32}) {
    DecoderShape shape = shape_for(GetParam());
    shape.storage = storage;
    shape.num_layers = 1;
    Decoder one_shot(shape);
    const std::vector<TokenOutput> expected =
        one_shot.step({{1, num_tokens}}, KVC_ATTN_BATCH_INVARIANT);
    for (const int64_t chunk : {1, 3, 16, 17, 64, 100, 260}) {
      if (chunk == 1 && GetParam() == KVC_CPU_ISA_REFERENCE) continue;  // slow, and nothing new
      Decoder chunked(shape);
      std::vector<TokenOutput> got;
      for (int64_t done = 0; done < num_tokens; done += chunk) {
        for (TokenOutput& output :
             chunked.step({{1, std::min(chunk, num_tokens - done)}}, KVC_ATTN_BATCH_INVARIANT))
          got.push_back(std::move(output));
      }
      EXPECT_EQ(got, expected) << "chunks of " << chunk << ", storage " << name_of(storage);
    }
  }
}

// Queries turn differently for sinks where keys are rotated on reading, so those are apart: also
// for rows that see all keys.
TEST_P(PerIsa, WindowsWithSinksDoNotDependOnHowAPromptIsCut) {
  constexpr int64_t kTokens = 61;
  for (const kvc_rope_mode rope : {KVC_ROPE_ON_APPEND, KVC_ROPE_ON_READ}) {
    for (const auto& [window, sink] : {std::pair<int64_t, int64_t>{20, 1}, {40, 17}, {200, 3}}) {
      DecoderShape shape = shape_for(GetParam());
      shape.num_layers = 1;
      shape.rope = rope;
      shape.window = window;
      shape.sink = sink;
      Decoder one_shot(shape);
      const std::vector<TokenOutput> expected =
          one_shot.step({{1, kTokens}}, KVC_ATTN_BATCH_INVARIANT);
      for (const int64_t chunk : {1, 15, 32}) {
        Decoder chunked(shape);
        std::vector<TokenOutput> got;
        for (int64_t done = 0; done < kTokens; done += chunk) {
          for (TokenOutput& output :
               chunked.step({{1, std::min(chunk, kTokens - done)}}, KVC_ATTN_BATCH_INVARIANT))
            got.push_back(std::move(output));
        }
        EXPECT_EQ(got, expected) << "chunks of " << chunk << ", window " << window << ", sink "
                                 << sink << ", rope " << rope;
      }
    }
  }
}

TEST_P(PerIsa, WherePagesLieDoesNotChangeABit) {
  DecoderShape shape = shape_for(GetParam());
  Decoder packed(shape);
  const std::vector<TokenOutput> expected = packed.step({{1, 90}}, 0);
  for (const int32_t page_size : {1, 7, 48, 256}) {
    shape.page_size = page_size;
    shape.num_pages = 4096 / page_size;
    Decoder other(shape);
    other.step({{5, 30}, {6, 20}}, 0);
    EXPECT_EQ(kvc_seq_remove(other.cache(), 5, nullptr), KVC_OK);
    EXPECT_EQ(other.step({{1, 90}}, 0), expected) << "page size " << page_size;
  }
}

INSTANTIATE_TEST_SUITE_P(Isa, PerIsa, testing::ValuesIn(isas()),
                         [](const auto& info) { return "isa" + std::to_string(info.param); });

}  // namespace
}  // namespace kvc::test
