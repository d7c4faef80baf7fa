// What goes on beside captures and graphs: streams that run late, fences, swaps, the legacy default
// stream, steps that nobody launches.
#include <atomic>
#include <chrono>
#include <thread>
#include <vector>

#include "kernels/cuda/step.h"
#include "tests/cuda/graph_support.h"

namespace kvc::test {
namespace {

constexpr uint64_t kStreamSeed = 20261124;

class CudaGraphStreams : public CudaCache {
 protected:
  void SetUp() override {
    CudaCache::SetUp();
    ASSERT_EQ(cudaStreamCreateWithFlags(&second_, cudaStreamNonBlocking), cudaSuccess);
    ASSERT_EQ(cudaStreamCreate(&blocking_), cudaSuccess);
  }
  void TearDown() override {
    finish_runtime();
    (void)cudaStreamDestroy(second_);
    (void)cudaStreamDestroy(blocking_);
    CudaCache::TearDown();
  }
  static GraphModel model() {
    GraphModel made;
    made.host_bytes = 1 << 20;
    return made;
  }
  // Work that delays what follows on the stream: some 20 milliseconds of a device, or until
  // something waits for a lazy stream.
  static void delay(cudaStream_t on) {
    constexpr int kPieces = 400;
    pieces_left() += kPieces;
    const auto piece = [](void*) {
      std::this_thread::sleep_for(std::chrono::microseconds(50));
      --pieces_left();
    };
    for (int i = 0; i < kPieces; ++i)
      ASSERT_EQ(cudaLaunchHostFunc(on, piece, nullptr), cudaSuccess);
  }
  static std::atomic<int>& pieces_left() {
    static std::atomic<int> left = 0;
    return left;
  }
  // A step on a stream of which nothing is waited for.
  static std::unique_ptr<StepTensors> start(GraphPair& pair, kvc_stream on,
                                            const std::vector<kvc_seq>& seqs,
                                            const std::vector<int64_t>& lengths, uint64_t seed) {
    auto tensors = std::make_unique<StepTensors>(model(), kGpu, lengths, StepParts{});
    tensors->fill(seed);
    kvc_forward* forward = pair.device.begin(seqs, lengths, on, 0);
    EXPECT_NE(forward, nullptr) << pair.device.message();
    if (forward == nullptr) return tensors;
    EXPECT_EQ(tensors->run(forward, pair.device.clean()), KVC_OK) << pair.device.message();
    EXPECT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
    return tensors;
  }

  cudaStream_t second_ = nullptr, blocking_ = nullptr;
};

TEST_F(CudaGraphStreams, ACapturedStepFollowsWhatOtherStreamsDidAndLaterOnesFollowIt) {
  for (uint64_t order = 1; order <= 12; ++order) {
    SCOPED_TRACE(::testing::Message() << "seed of streams " << order);
    run_streams_late(order);
    GraphPair pair(model(), kGpu);
    pair.add({1, 2});
    delay(second_);
    const auto prefill = start(pair, second_, {1, 2}, {5, 9}, 1);
    const GraphPointer graph = pair.capture({1, 2}, {1, 1}, false);
    ASSERT_NE(graph, nullptr) << pair.device.message();
    graph->tensors->fill(2);
    // Where it is launched is the caller's choice.
    ASSERT_EQ(cudaGraphLaunch(graph->executable, order % 2 == 0 ? pair.stream : blocking_),
              cudaSuccess);
    const auto decode = start(pair, second_, {2, 1}, {1, 1}, 3);
    ASSERT_EQ(cudaStreamSynchronize(second_), cudaSuccess);
    expect_close(prefill->results(), pair.expected({1, 2}, {5, 9}, 1));
    expect_close(graph->tensors->results(), pair.expected({1, 2}, {1, 1}, 2));
    expect_close(decode->results(), pair.expected({2, 1}, {1, 1}, 3));
    pair.check();
    finish_runtime();
  }
}

TEST_F(CudaGraphStreams, CallsOutsideForwardsFollowALaunchedGraph) {
  for (uint64_t order = 1; order <= 12; ++order) {
    SCOPED_TRACE(::testing::Message() << "seed of streams " << order);
    run_streams_late(order);
    GraphPair pair(model(), kGpu);
    pair.add({1, 2});
    pair.eager({1, 2}, {5, 9}, 1);
    const GraphPointer graph = pair.capture({1, 2}, {1, 1}, false);
    ASSERT_NE(graph, nullptr) << pair.device.message();
    graph->tensors->fill(2);
    ASSERT_EQ(cudaGraphLaunch(graph->executable, pair.stream), cudaSuccess);
    const std::vector<float> step = pair.expected({1, 2}, {1, 1}, 2);
    pair.both([](kvc_cache* cache, kvc_error* error) {
      return kvc_seq_shift(cache, 1, 1, 3, -2, error);
    });
    pair.both([&](kvc_cache* cache, kvc_error* error) {
      const kvc_seq id = 2;
      return kvc_swap_out(cache, 1, &id, second_, nullptr, error);
    });
    pair.both([&](kvc_cache* cache, kvc_error* error) {
      const kvc_seq id = 2;
      return kvc_swap_in(cache, 1, &id, blocking_, nullptr, error);
    });
    pair.eager_on(second_, {1, 2}, {1, 1}, 3);
    expect_close(graph->tensors->results(), step);
    pair.check();
  }
}

TEST_F(CudaGraphStreams, ReplaysFollowEachOtherAndEagerStepsOnOtherStreams) {
  for (uint64_t order = 1; order <= 8; ++order) {
    SCOPED_TRACE(::testing::Message() << "seed of streams " << order);
    run_streams_late(order);
    GraphPair pair(model(), kGpu);
    uint64_t seed = kStreamSeed;
    pair.add({1, 2});
    const GraphPointer graph = pair.capture({1, 2}, {1, 1}, true);
    ASSERT_NE(graph, nullptr) << pair.device.message();
    for (int i = 0; i < 3; ++i) {
      delay(second_);
      const auto eager = start(pair, second_, {1, 2}, {2, 1}, ++seed);
      const std::vector<float> first = pair.expected({1, 2}, {2, 1}, seed);
      pair.replay(*graph, {2, 1}, ++seed);
      expect_close(eager->results(), first);
    }
  }
}

TEST_F(CudaGraphStreams, SwapsAndFencesBesideACaptureAreNoPartOfIt) {
  GraphPair pair(model(), kGpu);
  uint64_t seed = kStreamSeed;
  pair.add({1, 2, 3});
  pair.eager({1, 2, 3}, {5, 9, 6}, ++seed);
  for (const bool in_forward : {false, true}) {
    for (cudaStream_t on : {pair.stream, second_}) {
      SCOPED_TRACE(::testing::Message()
                   << "in a forward " << in_forward << " on its stream " << (on == pair.stream));
      run_streams_late(1);
      ASSERT_EQ(cudaStreamBeginCapture(pair.stream, cudaStreamCaptureModeGlobal), cudaSuccess);
      kvc_forward* forward = nullptr;
      StepTensors tensors(model(), kGpu, {1, 1}, {});
      if (in_forward) {
        forward = pair.device.begin({1, 2}, {1, 1}, pair.stream, 0);
        ASSERT_NE(forward, nullptr) << pair.device.message();
        ASSERT_EQ(tensors.run(forward, pair.device.clean()), KVC_OK) << pair.device.message();
      }
      const kvc_seq id = 3;
      for (const auto swap : {kvc_swap_out, kvc_swap_in}) {
        kvc_fence* fence = nullptr;
        delay(second_);
        ASSERT_EQ(swap(pair.device.cache, 1, &id, on, &fence, pair.device.clean()), KVC_OK)
            << pair.device.message();
        // Neither the graph nor the forward in it can wait for the call.
        EXPECT_EQ(pieces_left() == 0, in_forward && on == second_);
        ASSERT_NE(fence, nullptr);
        int32_t is_done = -1;
        EXPECT_EQ(kvc_fence_query(fence, &is_done, pair.device.clean()), KVC_OK)
            << pair.device.message();
        EXPECT_TRUE(is_done == 1 || on == second_);
        EXPECT_EQ(kvc_fence_wait(fence, -1, nullptr), KVC_OK);
        if (on == pair.stream) {
          EXPECT_EQ(kvc_fence_wait_on_stream(fence, on, nullptr), KVC_OK);
        }
        kvc_fence_destroy(fence);
      }
      if (in_forward) {
        ASSERT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
      }
      Graph graph;
      ASSERT_EQ(cudaStreamEndCapture(pair.stream, &graph.graph), cudaSuccess) << "still valid";
      size_t nodes = 0;
      ASSERT_EQ(cudaGraphGetNodes(graph.graph, nullptr, &nodes), cudaSuccess);
      EXPECT_EQ(nodes == 0, !in_forward);
      if (in_forward) {
        ASSERT_EQ(cudaGraphInstantiate(&graph.executable, graph.graph, 0), cudaSuccess);
        tensors.fill(++seed);
        ASSERT_EQ(cudaGraphLaunch(graph.executable, pair.stream), cudaSuccess);
        const std::vector<float> expected = pair.expected({1, 2}, {1, 1}, seed);
        ASSERT_EQ(cudaStreamSynchronize(pair.stream), cudaSuccess);
        expect_close(tensors.results(), expected);
      }
      pair.eager({1, 2, 3}, {1, 1, 1}, ++seed);
      pair.check();
    }
  }
}

// The legacy default stream cannot be used while a stream that it waits for is captured: by
// anybody.
TEST_F(CudaGraphStreams, TheDefaultStreamIsAvoidedBesideACaptureOfABlockingStream) {
  GraphPair pair(model(), kGpu);
  uint64_t seed = kStreamSeed;
  pair.add({1, 2});
  pair.eager_on(kNoStream, {1, 2}, {5, 9}, ++seed);
  ASSERT_EQ(cudaStreamBeginCapture(blocking_, cudaStreamCaptureModeGlobal), cudaSuccess);
  const kvc_seq id = 2;
  for (const auto swap : {kvc_swap_out, kvc_swap_in}) {
    kvc_fence* fence = nullptr;
    ASSERT_EQ(swap(pair.device.cache, 1, &id, kNoStream, &fence, pair.device.clean()), KVC_OK)
        << pair.device.message();
    int32_t is_done = 0;
    EXPECT_EQ(kvc_fence_query(fence, &is_done, nullptr), KVC_OK);
    EXPECT_EQ(is_done, 1);
    kvc_fence_destroy(fence);
  }
  EXPECT_EQ(pair.device.begin({1, 2}, {1, 1}, kNoStream, 0), nullptr);
  EXPECT_EQ(pair.device.status, KVC_E_INVALID_STATE);
  EXPECT_NE(pair.device.message().find("desc->stream"), std::string::npos) << pair.device.message();
  pair.check();
  pair.eager_on(second_, {1, 2}, {2, 1}, ++seed);  // another one may
  Graph graph;
  ASSERT_EQ(cudaStreamEndCapture(blocking_, &graph.graph), cudaSuccess) << "nothing has touched it";
  pair.eager_on(kNoStream, {1, 2}, {1, 1}, ++seed);
}

TEST_F(CudaGraphStreams, AForwardOnTheDefaultStreamEndsAfterTheCaptureOfAnother) {
  GraphPair pair(model(), kGpu);
  uint64_t seed = kStreamSeed;
  pair.add({1, 2});
  pair.eager_on(kNoStream, {1, 2}, {5, 9}, ++seed);
  StepTensors tensors(model(), kGpu, {1}, {});
  tensors.fill(++seed);
  kvc_forward* forward = pair.device.begin({1}, {1}, kNoStream, 0);
  ASSERT_NE(forward, nullptr) << pair.device.message();
  ASSERT_EQ(tensors.run(forward, pair.device.clean()), KVC_OK);
  ASSERT_EQ(cudaStreamBeginCapture(blocking_, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(kvc_forward_end(forward, pair.device.clean()), KVC_E_INVALID_STATE);
  EXPECT_NE(pair.device.message().find("captured"), std::string::npos) << pair.device.message();
  const kvc_seq id = 2;
  ASSERT_EQ(kvc_swap_out(pair.device.cache, 1, &id, kNoStream, nullptr, pair.device.clean()),
            KVC_OK)
      << pair.device.message();
  ASSERT_EQ(kvc_swap_in(pair.device.cache, 1, &id, second_, nullptr, pair.device.clean()), KVC_OK)
      << pair.device.message();
  Graph graph;
  ASSERT_EQ(cudaStreamEndCapture(blocking_, &graph.graph), cudaSuccess);
  ASSERT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
  finish_runtime();
  expect_close(tensors.results(), pair.expected({1}, {1}, seed));
  pair.eager({1, 2}, {1, 1}, ++seed);
  pair.check();
}

TEST_F(CudaGraphStreams, ALayerOfAForwardThatWasBegunBeforeTheCaptureIsRefused) {
  GraphPair pair(model(), kGpu);
  uint64_t seed = kStreamSeed;
  pair.add({1, 2});
  pair.eager({1, 2}, {5, 9}, ++seed);
  StepTensors tensors(model(), kGpu, {1, 1}, {});
  tensors.fill(++seed);
  kvc_forward* forward = pair.device.begin({1, 2}, {1, 1}, pair.stream, 0);
  ASSERT_NE(forward, nullptr) << pair.device.message();
  ASSERT_EQ(cudaStreamBeginCapture(pair.stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(tensors.run(forward, pair.device.clean()), KVC_E_INVALID_STATE);
  EXPECT_NE(pair.device.message().find("before the capture"), std::string::npos)
      << pair.device.message();
  EXPECT_EQ(kvc_forward_end(forward, pair.device.clean()), KVC_E_INVALID_STATE);
  EXPECT_EQ(kvc_forward_abort(forward, pair.device.clean()), KVC_E_INVALID_STATE);
  EXPECT_NE(pair.device.message().find("before the capture"), std::string::npos)
      << pair.device.message();
  Graph graph;
  ASSERT_EQ(cudaStreamEndCapture(pair.stream, &graph.graph), cudaSuccess);
  ASSERT_EQ(tensors.run(forward, pair.device.clean()), KVC_OK) << pair.device.message();
  ASSERT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
  finish_runtime();
  expect_close(tensors.results(), pair.expected({1, 2}, {1, 1}, seed));
  pair.check();
}

TEST_F(CudaGraphStreams, StepsThatAreNotLaunchedFillTheRing) {
  GraphPair pair(model(), kGpu);
  pair.add({1});
  std::vector<GraphPointer> graphs;
  for (int i = 0; i < cuda::kStepEntries; ++i) {
    graphs.push_back(pair.capture({1}, {1}, false));
    ASSERT_NE(graphs.back(), nullptr) << pair.device.message();
  }
  const auto expect_full = [&] {
    EXPECT_EQ(pair.device.status, KVC_E_INVALID_STATE);
    EXPECT_NE(pair.device.message().find("not launched"), std::string::npos)
        << pair.device.message();
    pair.check();
    int64_t length = 0;
    EXPECT_EQ(kvc_seq_length(pair.device.cache, 1, &length, nullptr), KVC_OK);
    EXPECT_EQ(length, cuda::kStepEntries);
  };
  EXPECT_EQ(pair.capture({1}, {1}, false), nullptr);
  expect_full();
  EXPECT_EQ(pair.device.begin({1}, {1}, pair.stream, 0), nullptr);
  expect_full();
  EXPECT_EQ(pair.device.begin({1}, {1}, pair.stream, KVC_FORWARD_REPLAY), nullptr);
  expect_full();
  for (size_t i = 0; i < graphs.size(); ++i) pair.launch_first(*graphs[i], {1}, kStreamSeed + i);
  pair.eager({1}, {2}, 7);
  pair.replay(*graphs.front(), {1}, 8);
  pair.check();
}

// Steps that the device has not come to yet are waited for.
TEST_F(CudaGraphStreams, MoreStepsThanTheRingHoldsWaitForTheDevice) {
  run_streams_late(1);
  GraphPair pair(model(), kGpu);
  pair.add({1});
  const GraphPointer graph = pair.capture({1}, {1}, true);
  ASSERT_NE(graph, nullptr) << pair.device.message();
  for (int i = 0; i < cuda::kStepEntries + 9; ++i) {
    kvc_forward* forward = pair.device.begin({1}, {1}, pair.stream, KVC_FORWARD_REPLAY);
    ASSERT_NE(forward, nullptr) << pair.device.message();
    ASSERT_EQ(cudaGraphLaunch(graph->executable, pair.stream), cudaSuccess);
    ASSERT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
  }
  finish_runtime();
  int64_t length = 0;
  EXPECT_EQ(kvc_seq_length(pair.device.cache, 1, &length, nullptr), KVC_OK);
  EXPECT_EQ(length, cuda::kStepEntries + 9);
  pair.check();
}

}  // namespace
}  // namespace kvc::test
