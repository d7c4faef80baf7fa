// Prefixes that sequences of a cache on the device share: found, read once, and the results those
// of reading them apart.
#include <cuda_runtime_api.h>

#include <array>
#include <numeric>

#include "tests/cuda/cascade_support.h"

namespace kvc::test {
namespace {

constexpr DLDataType kF32{kDLFloat, 32, 1}, kF16{kDLFloat, 16, 1}, kBf16{kDLBfloat, 16, 1};

class Cascade : public ::testing::Test {
 protected:
  void SetUp() override {
    cudasim::reset();
    cudasim::set_num_devices(kSmallGpu.device_id + 1);
    cudasim::DeviceFacts facts;
    facts.num_sms = 1;
    cudasim::set_device(kSmallGpu.device_id, facts);
    seen_launches().clear();
    refused_kernels() = 0;
    std::string why;
    ASSERT_TRUE(install_backend(seeing_backend(), &why)) << why;
  }
  void TearDown() override {
    cudasim::reset();
    std::string why;
    (void)install_backend(nullptr, &why);
  }

  // `count` sequences 0, 1, … with the first `shared` tokens in common and up to `own` more.
  static std::vector<kvc_seq> add_forks(Forks& forks, int64_t count, int64_t shared, int64_t own) {
    constexpr kvc_seq kRoot = 1000;
    forks.add(kRoot, shared);
    std::vector<kvc_seq> seqs(static_cast<size_t>(count));
    std::iota(seqs.begin(), seqs.end(), 0);
    for (const kvc_seq seq : seqs) {
      forks.fork(kRoot, seq, shared);
      if (own > 0) forks.grow(seq, 1 + forks.below(own));
    }
    return seqs;
  }
  // Keys of all items of the launches since the last call.
  static int64_t keys_read() {
    int64_t keys = 0;
    for (const SeenLaunch& launch : seen_launches()) keys += launch.num_keys();
    seen_launches().clear();
    return keys;
  }
  static std::vector<int64_t> ones(const std::vector<kvc_seq>& seqs) {
    return std::vector<int64_t>(seqs.size(), 1);
  }
};

// Float32 differs by the order of sums alone. Matrix instructions round probabilities (and queries
// times scale) to 16 bits: 2^-9 of them, of values up to 2.
void expect_alike(const Forks::Outputs& a, const Forks::Outputs& b, const ForkModel& model) {
  expect_close(a.out, b.out, model.is_exact() ? 2e-5f : 8e-3f);
  expect_close(a.lse, b.lse, model.is_exact() ? 2e-5f : 8e-3f);
}

TEST_F(Cascade, ReadsAPrefixOnceAndSaysSo) {
  constexpr int64_t kCount = 8, kShared = 256;
  for (const DLDataType storage : {kF32, kBf16}) {
    ForkModel model;
    model.storage = storage;
    Forks forks(model, 1);
    const std::vector<kvc_seq> seqs = add_forks(forks, kCount, kShared, 40);
    seen_launches().clear();
    kvc_forward* forward = forks.begin(seqs, ones(seqs));
    forks.make_rows(seqs, ones(seqs));
    const Forks::Outputs together = forks.attend(forward, 0, true);
    ASSERT_EQ(seen_launches().size(), 1u) << "the prefix and the members are one launch";
    std::vector<int64_t> times_read(kShared, 0);
    for (const cuda::WorkItem& item : seen_launches()[0].items) {
      if (item.sequence >= kCount) {
        EXPECT_EQ(item.sequence, kCount) << "there is one prefix";
        EXPECT_GE(item.split, 0);
        ASSERT_LE(item.key_end, kShared);
        for (int32_t key = item.key_begin; key < item.key_end; ++key)
          ++times_read[static_cast<size_t>(key)];
      } else {
        EXPECT_GE(item.key_begin, kShared) << "sequence " << item.sequence;
        EXPECT_GE(item.split, 0);
      }
    }
    EXPECT_EQ(times_read, std::vector<int64_t>(kShared, model.kv_heads))
        << "16 rows of each kv head";
    EXPECT_EQ(forks.cascades(), 1u);
    int64_t own = 0;
    for (const kvc_seq seq : seqs) own += forks.length(seq) - kShared;
    EXPECT_EQ(keys_read(), model.kv_heads * (kShared + own));

    const Forks::Outputs apart = forks.attend(forward, KVC_ATTN_NO_CASCADE, false);
    EXPECT_EQ(keys_read(), model.kv_heads * (kCount * kShared + own));
    EXPECT_EQ(forks.cascades(), 1u);
    forks.end(forward);
    expect_alike(together, apart, model);
    expect_alike(together, forks.in_double(seqs, ones(seqs)), model);
  }
}

constexpr uint32_t bit(cuda::AttnKernel kernel) { return 1u << static_cast<uint32_t>(kernel); }

// Rows of 18 members in one tile of wgmma, and latents, where 16 heads of a token fill a quarter of
// one.
TEST_F(Cascade, RunsOnTheKernelsOfSm90) {
  ForkModel wide, latent;
  wide.storage = latent.storage = kBf16;
  wide.q_heads = 7, wide.kv_heads = 1, wide.dim = 128;
  latent.is_latent = true;
  latent.q_heads = 16, latent.kv_heads = 1;
  refused_kernels() = bit(cuda::AttnKernel::kMma16) | bit(cuda::AttnKernel::kMma64);
  for (const ForkModel& model : {wide, latent}) {
    Forks forks(model, 2);
    const std::vector<kvc_seq> seqs = add_forks(forks, model.is_latent ? 4 : 18, 512, 3);
    for (int step = 0; step < 2; ++step) {
      std::vector<int64_t> lengths = ones(seqs);
      lengths[2] += model.is_latent ? 0 : step;
      kvc_forward* forward = forks.begin(seqs, lengths);
      forks.make_rows(seqs, lengths);
      seen_launches().clear();
      const Forks::Outputs together = forks.attend(forward, 0, true);
      ASSERT_EQ(seen_launches().size(), 1u);
      EXPECT_EQ(seen_launches()[0].kernel,
                model.is_latent ? cuda::AttnKernel::kLatent : cuda::AttnKernel::kWgmma);
      const Forks::Outputs apart = forks.attend(forward, KVC_ATTN_NO_CASCADE, false);
      forks.end(forward);
      EXPECT_EQ(forks.cascades(), static_cast<uint64_t>(step + 1));
      expect_alike(together, apart, model);
      expect_alike(together, forks.in_double(seqs, lengths), model);
    }
  }
}

// Roots whose forks have forks, loners, appends of several tokens, and a sequence that sees a
// window.
TEST_F(Cascade, GivesWhatReadingApartGivesOverRandomForks) {
  constexpr int32_t kPages[] = {1, 16, 48};
  constexpr int32_t kHeads[][2] = {{4, 2}, {3, 1}, {5, 5}, {14, 2}};
  constexpr int32_t kDims[] = {64, 80, 128};
  constexpr DLDataType kStorage[] = {kF32, kBf16, kF16};
  uint64_t cases_with_sharing = 0, most_prefixes = 0;
  std::map<cuda::AttnKernel, int> kernels;
  for (uint64_t seed = 1; seed <= 12; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    std::mt19937_64 random(seed);
    ForkModel model;
    model.page_size = kPages[seed % 3];
    model.q_heads = kHeads[seed % 4][0], model.kv_heads = kHeads[seed % 4][1];
    model.dim = kDims[random() % 3];
    model.storage = kStorage[seed / 3 % 3];
    model.has_alibi = random() % 3 == 0, model.has_sinks = random() % 2 == 0;
    // So that every kernel gets its turn.
    refused_kernels() =
        std::array{0u, bit(cuda::AttnKernel::kMma64),
                   bit(cuda::AttnKernel::kMma64) | bit(cuda::AttnKernel::kMma16)}[random() % 3];
    Forks forks(model, seed);
    std::vector<kvc_seq> seqs;
    kvc_seq next = 0;
    for (int64_t root = 0; root <= static_cast<int64_t>(seed % 2); ++root) {
      const kvc_seq first = next++;
      forks.add(first, 130 + forks.below(200));
      seqs.push_back(first);
      for (int64_t child = 3 + forks.below(5); child > 0; --child) {
        const kvc_seq seq = next++;
        forks.fork(first, seq, forks.length(first) - forks.below(30));
        seqs.push_back(seq);
        if (child != 1) {
          if (forks.below(2) == 0) forks.grow(seq, 1 + forks.below(20));
          continue;
        }
        forks.grow(seq, 140);
        for (int grandchild = 0; grandchild < 4; ++grandchild, ++next) {
          forks.fork(seq, next, forks.length(seq));
          seqs.push_back(next);
        }
      }
      forks.fork(first, next, forks.length(first));
      forks.set_window(next, 60, 4);
      seqs.push_back(next++);
    }
    forks.add(next, 100);
    seqs.push_back(next);
    const uint64_t before = forks.cascades();
    for (int step = 0; step < 2; ++step) {
      std::shuffle(seqs.begin(), seqs.end(), random);
      std::vector<int64_t> lengths = ones(seqs);
      for (int64_t& length : lengths) length += forks.below(4) == 0 ? forks.below(3) : 0;
      if (step == 1) lengths[0] = 21;
      kvc_forward* forward = forks.begin(seqs, lengths);
      ASSERT_NE(forward, nullptr);
      forks.make_rows(seqs, lengths);
      const uint64_t prefixes = forks.cascades();
      seen_launches().clear();
      const Forks::Outputs together = forks.attend(forward, 0, true);
      most_prefixes = std::max(most_prefixes, forks.cascades() - prefixes);
      if (forks.cascades() != prefixes) ++kernels[seen_launches()[0].kernel];
      const Forks::Outputs apart = forks.attend(forward, KVC_ATTN_NO_CASCADE, false);
      forks.end(forward);
      ASSERT_NO_FATAL_FAILURE(expect_alike(together, apart, model)) << "step " << step;
      ASSERT_NO_FATAL_FAILURE(expect_alike(together, forks.in_double(seqs, lengths), model))
          << "step " << step;
    }
    cases_with_sharing += forks.cascades() != before ? 1 : 0;
    EXPECT_EQ(kvc_cache_check(forks.cache, nullptr), KVC_OK);
  }
  EXPECT_GE(cases_with_sharing, 9u);
  EXPECT_GE(most_prefixes, 3u);
  EXPECT_GE(kernels.size(), 3u) << "kernels that took prefixes";
}

TEST_F(Cascade, IsOffWhereItMayNotOrNeedNotBe) {
  Forks forks({}, 3);
  std::vector<kvc_seq> seqs = add_forks(forks, 8, 256, 0);
  kvc_forward* forward = forks.begin(seqs, ones(seqs));
  forks.make_rows(seqs, ones(seqs));
  const Forks::Outputs together = forks.attend(forward, 0, true);
  const uint64_t before = forks.cascades();
  ASSERT_EQ(before, 1u);
  for (const uint64_t flags : {KVC_ATTN_NO_CASCADE, KVC_ATTN_BATCH_INVARIANT})
    expect_alike(forks.attend(forward, flags, false), together, {});
  expect_alike(forks.attend(forward, 0, false, 0, 10000), together, {});  // a window, however wide
  EXPECT_EQ(forks.cascades(), before);
  (void)forks.attend(forward, 0, false);
  EXPECT_EQ(forks.cascades(), before + 1);
  forks.end(forward);

  // One sequence of the prefix, and sequences of 20 tokens in common.
  forward = forks.begin({seqs[0]}, {1});
  forks.make_rows({seqs[0]}, {1});
  (void)forks.attend(forward, 0, true);
  forks.end(forward);
  Forks few({}, 4);
  seqs = add_forks(few, 8, 20, 300);
  forward = few.begin(seqs, ones(seqs));
  few.make_rows(seqs, ones(seqs));
  (void)few.attend(forward, 0, true);
  few.end(forward);
  EXPECT_EQ(forks.cascades(), before + 1);
  EXPECT_EQ(few.cascades(), 0u);
}

TEST_F(Cascade, LeavesTreesToThemselves) {
  Forks forks({}, 5);
  const std::vector<kvc_seq> seqs = add_forks(forks, 8, 256, 0);
  const std::vector<int64_t> lengths{1, 1, 4, 1, 1, 1, 1, 1};
  constexpr int32_t kNo = KVC_TREE_NONE;
  const int32_t parents[] = {kNo, kNo, -1, 0, 0, 1, kNo, kNo, kNo, kNo, kNo};
  kvc_forward* forward = forks.begin(seqs, lengths, nullptr, 0, parents);
  ASSERT_NE(forward, nullptr);
  forks.make_rows(seqs, lengths);
  seen_launches().clear();
  const Forks::Outputs together = forks.attend(forward, 0, true);
  ASSERT_EQ(seen_launches().size(), 1u);
  int64_t keys_of_tree = 0;
  for (const cuda::WorkItem& item : seen_launches()[0].items)
    keys_of_tree += item.sequence == 2 ? item.key_end - item.key_begin : 0;
  EXPECT_EQ(keys_of_tree, 2 * (256 + 4)) << "of each kv head";
  const Forks::Outputs apart = forks.attend(forward, KVC_ATTN_NO_CASCADE, false);
  EXPECT_EQ(forks.cascades(), 1u);
  expect_alike(together, apart, {});
  forks.end(forward);
}

// Equal pages are different keys once a sequence counts its positions otherwise.
TEST_F(Cascade, LeavesMovedPositionsToThemselvesWhereTheyMatter) {
  for (const bool turns_keys : {true, false}) {
    ForkModel model;
    model.turns_keys = turns_keys;
    Forks forks(model, 8);
    const std::vector<kvc_seq> seqs = add_forks(forks, 8, 256, 0);
    kvc_error error = OneCache::blank();
    ASSERT_EQ(kvc_seq_shift(forks.cache, 3, 100, 100, 50, &error), KVC_OK) << error.message;
    kvc_forward* forward = forks.begin(seqs, ones(seqs));
    forks.make_rows(seqs, ones(seqs));
    seen_launches().clear();
    const Forks::Outputs together = forks.attend(forward, 0, true);
    int64_t keys_of_moved = 0;
    for (const cuda::WorkItem& item : seen_launches()[0].items)
      keys_of_moved += item.sequence == 3 ? item.key_end - item.key_begin : 0;
    EXPECT_EQ(keys_of_moved, turns_keys ? 2 * 257 : 2) << "of both kv heads";
    const Forks::Outputs apart = forks.attend(forward, KVC_ATTN_NO_CASCADE, false);
    forks.end(forward);
    EXPECT_EQ(forks.cascades(), 1u);
    expect_alike(together, apart, model);
  }
}

// The plain step is the one message that the device fetches itself. Sharing costs two copies per
// step, however many layers there are.
TEST_F(Cascade, CopiesOncePerStepAndOnlyWhereItShares) {
  for (const int64_t shared : {256, 0}) {
    ForkModel model;
    model.num_layers = 3;
    Forks forks(model, 6);
    std::vector<kvc_seq> seqs;
    if (shared != 0) {
      seqs = add_forks(forks, 8, shared, 0);
    } else {
      for (kvc_seq seq = 0; seq < 8; ++seq) forks.add(seq, 256), seqs.push_back(seq);
    }
    for (int step = 0; step < 6; ++step) {
      cudasim::reset_counters();
      kvc_forward* forward = forks.begin(seqs, ones(seqs));
      forks.make_rows(seqs, ones(seqs));
      for (int32_t layer = 0; layer < model.num_layers; ++layer)
        (void)forks.attend(forward, 0, true, layer);
      forks.end(forward);
      if (step < 2) continue;  // memory grows
      const cudasim::Counters counters = cudasim::counters();
      EXPECT_EQ(counters.synchronizations, 0u);
      EXPECT_EQ(counters.copy_calls, shared != 0 ? 2u : 0u);
      EXPECT_LE(counters.host_to_device_bytes, shared != 0 ? 1024u : 0u);
    }
    EXPECT_EQ(forks.cascades(), shared != 0 ? 18u : 0u);
  }
}

TEST_F(Cascade, CanBeAskedAgainWhenMemoryRanOut) {
  for (uint64_t nth = 1;; ++nth) {
    ASSERT_LT(nth, 30u) << "allocations of one call";
    Forks forks({}, 9);
    const std::vector<kvc_seq> seqs = add_forks(forks, 8, 256, 5);
    kvc_forward* forward = forks.begin(seqs, ones(seqs));
    forks.make_rows(seqs, ones(seqs));
    forks.may_fail = true;
    cudasim::fail_allocation(nth);
    (void)forks.attend(forward, 0, true);
    cudasim::clear_failures();
    const bool failed = forks.status != KVC_OK;
    EXPECT_EQ(forks.status, failed ? KVC_E_NO_MEMORY : KVC_OK) << "allocation " << nth;
    forks.may_fail = false;
    const Forks::Outputs together = forks.attend(forward, 0, true);
    forks.end(forward);
    expect_alike(together, forks.in_double(seqs, ones(seqs)), {});
    EXPECT_EQ(forks.cascades(), failed ? 1u : 2u);
    if (!failed) break;
  }
}

TEST_F(Cascade, StaysOutOfGraphs) {
  ForkModel model;
  model.max_seqs = 12, model.max_tokens = 400, model.max_seq_len = 400;
  Forks forks(model, 7);
  const std::vector<kvc_seq> seqs = add_forks(forks, 8, 256, 0);
  cudaStream_t stream;
  ASSERT_EQ(cudaSetDevice(kSmallGpu.device_id), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  kvc_forward* forward = forks.begin(seqs, ones(seqs), stream);
  forks.make_rows(seqs, ones(seqs));
  (void)forks.attend(forward, 0, true);
  forks.end(forward);
  ASSERT_EQ(forks.cascades(), 1u);

  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  forward = forks.begin(seqs, ones(seqs), stream);
  ASSERT_NE(forward, nullptr);
  forks.make_rows(seqs, ones(seqs));
  (void)forks.attend(forward, 0, true);
  forks.end(forward);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  cudasim::reset_counters();
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(cudasim::counters().copy_calls, 0u);
  EXPECT_EQ(forks.cascades(), 1u);
  expect_alike(forks.last(), forks.in_double(seqs, ones(seqs)), model);

  forward = forks.begin(seqs, ones(seqs), stream, KVC_FORWARD_REPLAY);
  ASSERT_NE(forward, nullptr);
  forks.make_rows(seqs, ones(seqs));
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  forks.end(forward);
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  EXPECT_EQ(forks.cascades(), 1u);
  expect_alike(forks.last(), forks.in_double(seqs, ones(seqs)), model);

  // Eager again: what the graph left behind is not in the way.
  forward = forks.begin(seqs, ones(seqs), stream);
  forks.make_rows(seqs, ones(seqs));
  const Forks::Outputs together = forks.attend(forward, 0, true);
  forks.end(forward);
  EXPECT_EQ(forks.cascades(), 2u);
  expect_alike(together, forks.in_double(seqs, ones(seqs)), model);
  (void)cudaGraphExecDestroy(executable);
  (void)cudaGraphDestroy(graph);
  (void)cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace kvc::test
