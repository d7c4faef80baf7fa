// A whole cache on a device, through the C interface: the same results as on the CPU.
#include <cuda_runtime_api.h>

#include "kernels/cuda/step.h"
#include "tests/cuda/cache_support.h"

namespace kvc::test {
namespace {

// Sequences 1 and 2, and 3, which is 2's first 17 tokens; then `steps` of one token each.
void prefill_fork_and_decode(CachePair& pair, int steps, uint64_t& seed) {
  for (const kvc_seq id : {1, 2})
    pair.both([&](kvc_cache* cache, kvc_error* error) { return kvc_seq_add(cache, id, error); });
  pair.step({1, 2}, {7, 19}, ++seed);
  pair.both(
      [](kvc_cache* cache, kvc_error* error) { return kvc_seq_fork(cache, 2, 3, 17, error); });
  for (int i = 0; i < steps; ++i) pair.step({1, 2, 3}, {1, 1, 1}, ++seed);
}

TEST_F(CudaCache, GivesWhatTheCpuGivesOverPrefillDecodeForkAndPop) {
  CachePair pair({}, kGpu);
  uint64_t seed = seed_of_run();
  prefill_fork_and_decode(pair, 6, seed);
  pair.both([](kvc_cache* cache, kvc_error* error) { return kvc_seq_pop(cache, 2, 5, error); });
  pair.step({3, 2}, {5, 2}, ++seed);
  pair.both([](kvc_cache* cache, kvc_error* error) { return kvc_seq_remove(cache, 1, error); });
  pair.both([](kvc_cache* cache, kvc_error* error) { return kvc_seq_add(cache, 9, error); });
  pair.step({9, 3}, {33, 1}, ++seed);
  pair.device.check();
}

TEST_F(CudaCache, KeepsWindowsAndTrees) {
  SmallModel model;
  model.window = 6;
  CachePair windowed(model, kGpu);
  windowed.both([](kvc_cache* cache, kvc_error* error) { return kvc_seq_add(cache, 1, error); });
  uint64_t seed = seed_of_run();
  windowed.step({1}, {11}, ++seed);
  for (int i = 0; i < 9; ++i) windowed.step({1}, {1}, ++seed);
  CachePair trees({}, kGpu);
  trees.both([](kvc_cache* cache, kvc_error* error) { return kvc_seq_add(cache, 1, error); });
  trees.step({1}, {6}, ++seed);
  const int32_t parents[] = {-1, 0, 0, 1, 2, -1};
  trees.step({1}, {6}, ++seed, nullptr, parents);
  trees.both([](kvc_cache* cache, kvc_error* error) {
    const kvc_seq id = 1;
    const int32_t leaf = 4;
    return kvc_tree_commit(cache, 1, &id, &leaf, nullptr, error);
  });
  for (int i = 0; i < 4; ++i) trees.step({1}, {1}, ++seed);
}

TEST_F(CudaCache, StoresKAndVApart) {
  constexpr DLDataType kInt8{kDLInt, 8, 1}, kE4M3{kDLFloat8_e4m3fn, 8, 1}, kF32{kDLFloat, 32, 1},
      kF16{kDLFloat, 16, 1}, kBF16{kDLBfloat, 16, 1};
  const struct {
    const char* name;
    kvc_quant quant, v_quant;
    DLDataType k, v;
    float k_scale, v_scale;
  } kinds[] = {
      {"K alone", KVC_QUANT_PER_TOKEN_HEAD, KVC_QUANT_OFF, kInt8, kBF16, 0, 0},
      {"K alone, one scale", KVC_QUANT_PER_TENSOR, KVC_QUANT_OFF, kE4M3, kF32, 0.01f, 0},
      {"V alone", KVC_QUANT_NONE, KVC_QUANT_PER_TOKEN_HEAD, kF16, kE4M3, 0, 0},
      {"V alone, one scale", KVC_QUANT_NONE, KVC_QUANT_PER_TENSOR, kF32, kInt8, 0, 0.01f},
      {"two kinds", KVC_QUANT_PER_TENSOR, KVC_QUANT_PER_TOKEN_HEAD, kInt8, kInt8, 0.01f, 0},
      {"two types", KVC_QUANT_PER_TOKEN_HEAD, KVC_QUANT_PER_TENSOR, kE4M3, kInt8, 0, 0.01f}};
  for (const auto& kind : kinds) {
    SCOPED_TRACE(kind.name);
    SmallModel model;
    model.quant = kind.quant;
    model.v_quant = kind.v_quant;
    model.storage = kind.k;
    model.v_storage = kind.v;
    model.k_scale = kind.k_scale;
    model.v_scale = kind.v_scale;
    model.rope = KVC_ROPE_NONE;  // Rotations may tip a rounding.
    CachePair pair(model, kGpu);
    pair.tolerance = 1e-3f;  // Tensor cores take q and weights in 16 bits.
    uint64_t seed = seed_of_run();
    prefill_fork_and_decode(pair, 3, seed);
    pair.both([](kvc_cache* cache, kvc_error* error) {
      return kvc_seq_shift(cache, 2, 3, 6, -3, error);
    });
    pair.step({3, 2}, {5, 2}, ++seed);
    pair.device.check();
  }
}

TEST_F(CudaCache, ReadsTheScaleOfARowForKAndVWhereOneHoldsBoth) {
  for (const DLDataType type : {DLDataType{kDLInt, 8, 1}, {kDLFloat8_e4m3fn, 8, 1}}) {
    for (const int32_t rank : {0, 24}) {
      SCOPED_TRACE(testing::Message() << "type " << int{type.code} << ", rank " << rank);
      SmallModel model;
      model.quant = KVC_QUANT_PER_TOKEN_HEAD;
      model.storage = type;
      model.rope = KVC_ROPE_NONE;  // Rotations may tip a rounding.
      model.v_in_k = rank == 0;
      model.latent_rank = rank;
      model.dim = 32;
      if (rank != 0) model.kv_heads = 1;
      CachePair pair(model, kGpu);
      pair.tolerance = 1e-3f;  // Tensor cores take q and weights in 16 bits.
      uint64_t seed = seed_of_run();
      prefill_fork_and_decode(pair, 3, seed);
      pair.step({3, 2}, {5, 2}, ++seed);
      pair.device.check();
    }
  }
}

TEST_F(CudaCache, RotatesKeysOnReadAtAnyPositionWithABoundedTable) {
  SmallModel model;
  model.rope = KVC_ROPE_ON_READ;
  for (const int64_t delta : {cuda::kNearPositions - 12, cuda::kNearPositions, int64_t{3'000'000},
                              int64_t{INT32_MAX} - 100}) {
    SCOPED_TRACE(::testing::Message() << "delta " << delta);
    CachePair pair(model, kGpu);
    pair.both([](kvc_cache* cache, kvc_error* error) { return kvc_seq_add(cache, 1, error); });
    uint64_t seed = seed_of_run();
    pair.step({1}, {10}, ++seed);
    // A gap behind token 4.
    pair.both([delta](kvc_cache* cache, kvc_error* error) {
      return kvc_seq_shift(cache, 1, 4, 4, delta, error);
    });
    pair.step({1}, {7}, ++seed);
    for (int i = 0; i < 4; ++i) pair.step({1}, {1}, ++seed);
    const uint64_t bytes = pair.device.stats().cos_sin_bytes;
    EXPECT_GE(bytes, uint64_t{8} * 8 * 4096);
    EXPECT_LE(bytes, uint64_t{8} * 786'432);
  }
}

TEST_F(CudaCache, SurvivesStreamsThatRunLate) {
  run_streams_late(1);
  SmallModel model;
  model.host_bytes = 1 << 20;
  CachePair pair(model, kGpu);
  cudaStream_t streams[2];
  for (cudaStream_t& stream : streams)
    ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  for (kvc_seq id = 0; id < 4; ++id)
    pair.both([id](kvc_cache* cache, kvc_error* error) { return kvc_seq_add(cache, id, error); });
  uint64_t seed = seed_of_run();
  pair.step({0, 1, 2, 3}, {3, 9, 14, 5}, ++seed, streams[0]);
  for (int i = 0; i < 12; ++i) {
    pair.step({0, 1, 2, 3}, {1, 1, 1, 1}, ++seed, streams[i % 2]);
    if (i != 5) continue;
    const auto swap = [&](auto&& call) {
      pair.both([&](kvc_cache* cache, kvc_error* error) {
        const kvc_seq id = 2;
        return call(cache, 1, &id, streams[1], nullptr, error);
      });
    };
    swap(kvc_swap_out);
    pair.step({0, 1}, {2, 1}, ++seed, streams[0]);
    swap(kvc_swap_in);
    pair.both([](kvc_cache* cache, kvc_error* error) {
      return kvc_seq_shift(cache, 1, 2, 5, -3, error);
    });
  }
  pair.device.check();
  for (cudaStream_t stream : streams) (void)cudaStreamDestroy(stream);
}

TEST_F(CudaCache, ReplaysACapturedStepWithNewLengths) {
  SmallModel model;
  model.max_seqs = 4;
  model.max_tokens = 32;
  model.max_seq_len = 64;
  CachePair pair(model, kGpu);
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  const std::vector<kvc_seq> seqs{5, 6};
  for (const kvc_seq id : seqs)
    pair.both([id](kvc_cache* cache, kvc_error* error) { return kvc_seq_add(cache, id, error); });
  uint64_t seed = seed_of_run();
  pair.step(seqs, {4, 13}, ++seed, stream);
  pair.step(seqs, {1, 1}, ++seed, stream);

  pair.device.make_inputs(2, ++seed);
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  kvc_forward* forward = pair.device.begin(seqs, {1, 1}, stream, 0);
  ASSERT_NE(forward, nullptr) << pair.device.message;
  pair.device.attend(forward);
  ASSERT_EQ(pair.device.status, KVC_OK) << pair.device.message;
  pair.device.end(forward);
  cudaGraph_t graph;
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  cudaGraphExec_t executable;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);

  const auto compare = [&](uint64_t step_seed) {
    std::vector<float> got;
    for (const auto& out : pair.device.outs)
      got.insert(got.end(), out->values.begin(), out->values.end());
    expect_close(got, pair.cpu.step(seqs, {1, 1}, step_seed));
  };
  ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);  // for the step that was captured
  ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
  compare(seed);
  for (int i = 0; i < 9; ++i) {
    pair.device.fill_inputs(++seed);  // the graph reads the tensors that it was captured with
    forward = pair.device.begin(seqs, {1, 1}, stream, KVC_FORWARD_REPLAY);
    ASSERT_NE(forward, nullptr) << pair.device.message;
    ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
    pair.device.end(forward);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    compare(seed);
  }
  pair.step(seqs, {3, 1}, ++seed, stream);  // and without a graph again

  EXPECT_EQ(pair.device.begin(seqs, {2, 1}, stream, KVC_FORWARD_REPLAY), nullptr);
  EXPECT_EQ(pair.device.status, KVC_E_INVALID_STATE);
  EXPECT_EQ(pair.cpu.begin(seqs, {1, 1}, nullptr, KVC_FORWARD_REPLAY), nullptr);
  EXPECT_EQ(pair.cpu.status, KVC_E_UNSUPPORTED);
  pair.device.check();
  (void)cudaGraphExecDestroy(executable);
  (void)cudaGraphDestroy(graph);
  (void)cudaStreamDestroy(stream);
}

TEST_F(CudaCache, RefusesTensorsOfAnotherDevice) {
  OneCache cache({}, kGpu);
  ASSERT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK);
  kvc_forward* forward = cache.begin({1}, {3}, nullptr, 0);
  ASSERT_NE(forward, nullptr) << cache.message;
  for (const DLDevice wrong : {DLDevice{kDLCPU, 0}, DLDevice{kDLCUDA, 1}}) {
    Tensor q({3, 4, 16}, wrong), k({3, 2, 16}, kGpu), v({3, 2, 16}, kGpu), out({3, 4, 16}, kGpu);
    kvc_error error = OneCache::blank();
    EXPECT_EQ(
        kvc_attn(forward, 0, nullptr, q.view(), k.view(), v.view(), out.view(), nullptr, &error),
        KVC_E_DEVICE_MISMATCH);
    EXPECT_NE(std::string(error.message).find("q "), std::string::npos) << error.message;
    EXPECT_EQ(
        kvc_attn(forward, 0, nullptr, q.view(), k.view(), v.view(), out.view(), nullptr, nullptr),
        KVC_E_DEVICE_MISMATCH);
  }
  EXPECT_EQ(kvc_forward_abort(forward, nullptr), KVC_OK);
}

}  // namespace
}  // namespace kvc::test
