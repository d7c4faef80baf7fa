// Captured steps of layers that keep something else than tokens: recurrent states, an encoder's
// keys.
#include "tests/cuda/graph_support.h"
#include "tests/cuda/state_cache.h"

namespace kvc::test {
namespace {

constexpr uint64_t kStateSeed = 20261123;

class CudaGraphStates : public CudaCache {
 protected:
  static GraphModel model() {
    GraphModel made;
    made.layers = {{}, {.kind = KVC_LAYER_STATE}, {.kind = KVC_LAYER_STATE}};
    return made;
  }
};

// Whatever the graph leaves unset has to be there for the next step, which reads it.
TEST_F(CudaGraphStates, CarryOnWhatTheCapturedStepDidNotSet) {
  for (const StepParts& parts : {StepParts{}, StepParts{.sets_conv = false},
                                 StepParts{.sets_linear = false, .sets_own = true},
                                 StepParts{.sets_linear = false, .sets_conv = false}}) {
    for (const bool aborts : {false, true}) {
      SCOPED_TRACE(::testing::Message() << "sets " << parts.sets_linear << parts.sets_conv
                                        << parts.sets_own << ", capture aborted " << aborts);
      GraphPair pair(model(), kGpu);
      uint64_t seed = kStateSeed;
      pair.add({1, 2, 3});
      pair.eager({1, 2}, {3, 6}, ++seed, {.sets_own = true});
      const GraphPointer graph = pair.capture({1, 2}, {1, 1}, aborts, parts);
      ASSERT_NE(graph, nullptr) << pair.device.message();
      if (!aborts) pair.launch_first(*graph, {1, 2}, ++seed);
      for (int i = 0; i < 3; ++i) {
        pair.replay(*graph, {2, 1}, ++seed);
        pair.replay(*graph, {3, 2}, ++seed);  // an empty one at first
        pair.eager({1, 2, 3}, {1, 1, 2}, ++seed);
      }
      pair.eager({3, 2, 1}, {2, 1, 1}, ++seed, {.sets_own = true});
      pair.replay(*graph, {1, 3}, ++seed);
      kvc_forward* forward = pair.device.begin({1, 2}, {1, 1}, pair.stream, KVC_FORWARD_REPLAY);
      ASSERT_NE(forward, nullptr) << pair.device.message();
      ASSERT_EQ(kvc_forward_abort(forward, nullptr), KVC_OK);
      pair.replay(*graph, {2, 3}, ++seed);
      pair.eager({1, 2, 3}, {1, 1, 2}, ++seed);
      pair.check();
    }
  }
}

TEST_F(CudaGraphStates, AreCapturedBeforeAnythingHasRun) {
  GraphPair pair(model(), kGpu);
  uint64_t seed = kStateSeed;
  pair.add({1, 2});
  const GraphPointer prefill = pair.capture({1}, {7}, false, {.sets_conv = false});
  ASSERT_NE(prefill, nullptr) << pair.device.message();
  pair.launch_first(*prefill, {1}, ++seed);
  pair.replay(*prefill, {2}, ++seed);
  pair.both(
      [](kvc_cache* cache, kvc_error* error) { return kvc_seq_fork(cache, 1, 3, -1, error); });
  pair.replay(*prefill, {3}, ++seed);
  pair.eager({1, 2, 3}, {1, 1, 1}, ++seed);
  pair.check();
}

TEST_F(CudaGraphStates, EndBeforeTheirCaptureDoes) {
  GraphPair pair(model(), kGpu);
  uint64_t seed = kStateSeed;
  pair.add({1});
  pair.eager({1}, {3}, ++seed);
  StepTensors tensors(model(), kGpu, {1}, {});
  ASSERT_EQ(cudaStreamBeginCapture(pair.stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  kvc_forward* forward = pair.device.begin({1}, {1}, pair.stream, 0);
  ASSERT_NE(forward, nullptr) << pair.device.message();
  ASSERT_EQ(tensors.run(forward, pair.device.clean()), KVC_OK) << pair.device.message();
  Graph graph;
  ASSERT_EQ(cudaStreamEndCapture(pair.stream, &graph.graph), cudaSuccess);
  EXPECT_EQ(kvc_forward_end(forward, nullptr), KVC_E_INVALID_STATE);
  EXPECT_EQ(kvc_forward_abort(forward, nullptr), KVC_OK);
  graph.lengths = {1};
  // It would not carry states on
  pair.expect_refused(graph, {1}, KVC_E_INVALID_STATE, "was captured");
  pair.eager({1}, {2}, ++seed);
  pair.check();
}

TEST_F(CudaGraphStates, SeeEncodersOfAnyLengthThatTheConfigurationDeclares) {
  for (const int64_t max_cross_len : {0, 16}) {
    GraphModel model;
    model.layers = {{}, {.kind = KVC_LAYER_CROSS, .is_invariant = true}};
    model.max_cross_len = max_cross_len;
    GraphPair pair(model, kGpu);
    uint64_t seed = kStateSeed;
    pair.add({1, 2, 3});
    pair.eager({1, 2, 3}, {2, 3, 1}, ++seed, {.cross = {5, 11, 3}});
    const GraphPointer graph = pair.capture({1}, {1}, false);
    ASSERT_NE(graph, nullptr) << pair.device.message();
    pair.launch_first(*graph, {1}, ++seed);
    pair.replay(*graph, {3}, ++seed);
    if (max_cross_len == 0) {
      pair.expect_refused(*graph, {2}, KVC_E_INVALID_STATE, "max_cross_len");
    } else {
      pair.replay(*graph, {2}, ++seed);
    }
    pair.replay(*graph, {1}, ++seed);
    pair.check();
  }
}

// A graph is captured for a batch of its own size behind larger ones, and serves other sequences of
// the same lengths.
TEST_F(CudaGraphStates, ServeOtherSequencesWithChunksAndConvolutions) {
  StateCache cpu({kDLCPU, 0}, 70), device(kGpu, 70);
  std::vector<kvc_seq> all;
  for (kvc_seq id = 0; id < 70; ++id) all.push_back(id);
  const auto compare = [](const StateCache::Step& found, const StateCache::Step& expected) {
    expect_close(found.out.values, expected.out.values, 1e-4f);
    expect_close(found.y.values, expected.y.values, 1e-5f);
  };
  uint64_t seed = 1;
  const std::vector<int64_t> ones(70, 1);
  compare(*device.step(all, ones, seed), *cpu.step(all, ones, seed));
  cudaStream_t stream;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  for (const std::vector<int64_t>& lengths :
       {std::vector<int64_t>{1, 1}, std::vector<int64_t>{1, 30, 66}}) {
    const auto n = static_cast<kvc_seq>(lengths.size());
    StateCache::Step step(n == 2 ? 2 : 97, kGpu);
    std::vector<kvc_seq> seqs(all.begin(), all.begin() + n);
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    kvc_forward* forward = device.begin(seqs, lengths, stream);
    StateCache::run(forward, step);
    StateCache::end(forward);
    cudaGraph_t graph;
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    cudaGraphExec_t executable;
    ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
    for (kvc_seq i = 0; i < 4; ++i) {
      if (i > 0) {
        for (kvc_seq& id : seqs) id = (id + 13 * i) % 70;
        forward = device.begin(seqs, lengths, stream, KVC_FORWARD_REPLAY);
        ASSERT_NE(forward, nullptr);
      }
      step.fill(++seed);
      ASSERT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
      if (i > 0) StateCache::end(forward);
      ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
      compare(step, *cpu.step(seqs, lengths, seed));
    }
    (void)cudaGraphExecDestroy(executable);
    (void)cudaGraphDestroy(graph);
  }
  (void)cudaStreamDestroy(stream);
}

}  // namespace
}  // namespace kvc::test
