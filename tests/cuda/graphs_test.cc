// Captured steps and their replays against the CPU: what a graph has to take from each step, and
// what it cannot serve.
#include "tests/cuda/graph_support.h"

namespace kvc::test {
namespace {

constexpr uint64_t kSeed = 20261122;

class CudaGraphs : public CudaCache {};

GraphModel model_of(const GraphLayer& layer) {
  GraphModel model;
  model.layers = {layer, layer};
  return model;
}

TEST_F(CudaGraphs, ServeReplaysAfterACaptureThatWasAborted) {
  GraphPair pair(GraphModel{}, kGpu);
  uint64_t seed = kSeed;
  pair.add({5, 6, 7});
  const GraphPointer graph = pair.capture({5, 6}, {1, 1}, true);  // before anything has run
  ASSERT_NE(graph, nullptr) << pair.device.message();
  pair.eager({5, 6}, {4, 13}, ++seed);
  for (int i = 0; i < 6; ++i) {
    pair.replay(*graph, {5, 6}, ++seed);
    pair.eager({6, 5, 7}, {2, 1, 3}, ++seed);
    pair.replay(*graph, {7, 5}, ++seed);
    const GraphPointer other = pair.capture({7, 6, 5}, {1, 2, 1}, true);
    ASSERT_NE(other, nullptr) << pair.device.message();
    if (i % 2 == 0) pair.replay(*other, {5, 7, 6}, ++seed);
  }
  pair.check();
}

TEST_F(CudaGraphs, MayBeAbortedInsteadOfLaunched) {
  GraphPair pair(GraphModel{}, kGpu);
  uint64_t seed = kSeed;
  pair.add({1, 2});
  pair.eager({1, 2}, {3, 5}, ++seed);
  const GraphPointer graph = pair.capture({1, 2}, {1, 1}, false);
  ASSERT_NE(graph, nullptr) << pair.device.message();
  pair.launch_first(*graph, {1, 2}, ++seed);
  for (int i = 0; i < 5; ++i) {
    kvc_forward* forward = pair.device.begin({2, 1}, {1, 1}, pair.stream, KVC_FORWARD_REPLAY);
    ASSERT_NE(forward, nullptr) << pair.device.message();
    ASSERT_EQ(kvc_forward_abort(forward, nullptr), KVC_OK);
    pair.replay(*graph, {1, 2}, ++seed);
    pair.eager({2}, {2}, ++seed);
  }
  pair.check();
}

TEST_F(CudaGraphs, TurnKeysOnReadOnceAForwardHasMadeTheirAngles) {
  GraphPair pair(model_of({.rope = KVC_ROPE_ON_READ}), kGpu);
  uint64_t seed = kSeed;
  pair.add({1, 2});
  EXPECT_EQ(pair.capture({1, 2}, {1, 1}, false), nullptr);
  EXPECT_EQ(pair.device.status, KVC_E_INVALID_STATE);
  EXPECT_NE(pair.device.message().find("before the capture"), std::string::npos)
      << pair.device.message();
  pair.eager({1, 2}, {3, 9}, ++seed);
  const GraphPointer aborted = pair.capture({1, 2}, {1, 1}, true);
  ASSERT_NE(aborted, nullptr) << pair.device.message();
  pair.eager({1, 2}, {1, 1}, ++seed);
  for (int i = 0; i < 4; ++i) pair.replay(*aborted, {2, 1}, ++seed);
  pair.eager({1, 2}, {7, 1}, ++seed);
  pair.replay(*aborted, {2, 1}, ++seed);
  pair.check();
}

// Sinks that the captured batch has and the replayed one has not, and the other way round.
TEST_F(CudaGraphs, TakeWindowsAndSinksFromTheStep) {
  for (const kvc_rope_mode rope : {KVC_ROPE_ON_APPEND, KVC_ROPE_ON_READ}) {
    for (const bool has_sinks_at_capture : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << "rope " << rope << " sinks at capture " << has_sinks_at_capture);
      GraphPair pair(model_of({.rope = rope}), kGpu);
      uint64_t seed = kSeed;
      pair.add({1, 2, 3});
      const auto set_window = [&](kvc_seq id, int64_t window, int64_t sink) {
        pair.both([=](kvc_cache* cache, kvc_error* error) {
          return kvc_seq_set_window(cache, id, window, sink, error);
        });
      };
      set_window(2, 9, 2);
      pair.eager({1, 2, 3}, {14, 15, 4}, ++seed);
      const std::vector<kvc_seq> first =
          has_sinks_at_capture ? std::vector<kvc_seq>{2, 1} : std::vector<kvc_seq>{1, 3};
      const GraphPointer graph = pair.capture(first, {1, 1}, false);
      ASSERT_NE(graph, nullptr) << pair.device.message();
      pair.launch_first(*graph, first, ++seed);
      for (int i = 0; i < 4; ++i) {
        pair.replay(*graph, {2, 1}, ++seed);
        pair.replay(*graph, {3, 2}, ++seed);
        pair.replay(*graph, {1, 3}, ++seed);
      }
      set_window(1, 12, 5);
      for (int i = 0; i < 3; ++i) pair.replay(*graph, {1, 2}, ++seed);
      pair.check();
    }
  }
}

TEST_F(CudaGraphs, RefuseAStepWhoseSinksTheCapturedWindowReachesOver) {
  GraphPair pair(model_of({.call_window = 7}), kGpu);
  uint64_t seed = kSeed;
  pair.add({1, 2});
  pair.eager({1, 2}, {10, 12}, ++seed);
  const GraphPointer graph = pair.capture({1}, {1}, false);
  ASSERT_NE(graph, nullptr) << pair.device.message();
  pair.launch_first(*graph, {1}, ++seed);
  pair.both(
      [](kvc_cache* cache, kvc_error* error) { return kvc_seq_set_window(cache, 2, 9, 2, error); });
  pair.replay(*graph, {2}, ++seed);  // 7 = 9 - 2
  pair.both(
      [](kvc_cache* cache, kvc_error* error) { return kvc_seq_set_window(cache, 2, 8, 2, error); });
  pair.expect_refused(*graph, {2}, KVC_E_INVALID_STATE, "sinks");
  pair.replay(*graph, {1}, ++seed);
}

TEST_F(CudaGraphs, KeepLayersWindows) {
  for (const kvc_rope_mode rope : {KVC_ROPE_ON_APPEND, KVC_ROPE_ON_READ}) {
    GraphModel model = model_of({.rope = rope, .window = 6});
    model.layers.push_back({.rope = rope});
    GraphPair pair(model, kGpu);
    uint64_t seed = kSeed;
    pair.add({1, 2});
    pair.eager({1, 2}, {2, 11}, ++seed);
    const GraphPointer graph = pair.capture({1, 2}, {1, 1}, false);
    ASSERT_NE(graph, nullptr) << pair.device.message();
    pair.launch_first(*graph, {1, 2}, ++seed);
    for (int i = 0; i < 12; ++i) pair.replay(*graph, {1, 2}, ++seed);
    pair.check();
  }
}

// Captured below original_context and replayed across it, and the other way round.
TEST_F(CudaGraphs, ChooseTheFactorsOfLongRopeByEachStep) {
  for (const kvc_rope_mode rope : {KVC_ROPE_ON_APPEND, KVC_ROPE_ON_READ}) {
    for (const bool is_long_at_capture : {false, true}) {
      SCOPED_TRACE(::testing::Message()
                   << "rope " << rope << " long at capture " << is_long_at_capture);
      GraphPair pair(model_of({.rope = rope, .original_context = 12}), kGpu);
      uint64_t seed = kSeed;
      pair.add({1, 2, 3});
      pair.eager({1, 2, 3}, {9, 14, 3}, ++seed);
      const std::vector<kvc_seq> first =
          is_long_at_capture ? std::vector<kvc_seq>{2} : std::vector<kvc_seq>{1};
      const GraphPointer graph = pair.capture(first, {1}, false);
      ASSERT_NE(graph, nullptr) << pair.device.message();
      pair.launch_first(*graph, first, ++seed);
      for (int i = 0; i < 6; ++i) pair.replay(*graph, {1}, ++seed);  // 9 to 16 tokens
      pair.replay(*graph, {2}, ++seed);
      pair.replay(*graph, {3}, ++seed);
      pair.eager({3, 1, 2}, {1, 1, 1}, ++seed);
    }
  }
}

TEST_F(CudaGraphs, HoldPrefillsToo) {
  for (const bool is_invariant : {false, true}) {
    GraphPair pair(model_of({.is_invariant = is_invariant}), kGpu);
    uint64_t seed = kSeed;
    pair.add({1, 2, 3, 4});
    const GraphPointer prefill = pair.capture({1, 2}, {9, 5}, false);
    ASSERT_NE(prefill, nullptr) << pair.device.message();
    pair.launch_first(*prefill, {1, 2}, ++seed);
    const GraphPointer mixed = pair.capture({3, 1}, {11, 1}, false);
    ASSERT_NE(mixed, nullptr) << pair.device.message();
    pair.launch_first(*mixed, {3, 1}, ++seed);
    pair.replay(*prefill, {4, 3}, ++seed);
    pair.replay(*mixed, {2, 4}, ++seed);
    pair.replay(*prefill, {1, 4}, ++seed);
    pair.eager({1, 2, 3, 4}, {1, 4, 1, 2}, ++seed);
    pair.replay(*mixed, {4, 2}, ++seed);
    pair.check();
  }
}

// Forks make pages that several hold: the copy on write is the step's own.
TEST_F(CudaGraphs, CopyOnWriteWhatAStepFindsShared) {
  GraphPair pair(GraphModel{}, kGpu);
  uint64_t seed = kSeed;
  pair.add({1});
  pair.eager({1}, {6}, ++seed);
  const GraphPointer graph = pair.capture({1}, {1}, true);
  ASSERT_NE(graph, nullptr) << pair.device.message();
  for (kvc_seq id = 2; id < 4; ++id) {
    pair.both(
        [id](kvc_cache* cache, kvc_error* error) { return kvc_seq_fork(cache, 1, id, -1, error); });
    pair.replay(*graph, {1}, ++seed);
    pair.replay(*graph, {id}, ++seed);
    pair.both(
        [id](kvc_cache* cache, kvc_error* error) { return kvc_seq_pop(cache, id, 2, error); });
    pair.replay(*graph, {id}, ++seed);
  }
  pair.eager({3, 2, 1}, {1, 1, 1}, ++seed);
  pair.check();
}

TEST_F(CudaGraphs, ServeAPoolThatGrewWhereItLies) {
  GraphPair pair(GraphModel{}, kGpu);
  uint64_t seed = kSeed;
  pair.add({1, 2});
  pair.eager({1, 2}, {5, 30}, ++seed);
  const GraphPointer graph = pair.capture({1, 2}, {1, 1}, false);
  ASSERT_NE(graph, nullptr) << pair.device.message();
  pair.launch_first(*graph, {1, 2}, ++seed);
  for (const int64_t pages : {200, 40, 100}) {
    pair.both(
        [=](kvc_cache* cache, kvc_error* error) { return kvc_cache_resize(cache, pages, error); });
    for (int i = 0; i < 5; ++i) pair.replay(*graph, {2, 1}, ++seed);
  }
  pair.eager({1, 2}, {2, 1}, ++seed);
  pair.check();
}

TEST_F(CudaGraphs, AreRefusedWhenThePoolHasMoved) {
  GraphModel model;
  model.num_pages = 17;
  GraphPair pair(model, kGpu);
  uint64_t seed = kSeed;
  pair.add({1, 2});
  pair.eager({1, 2}, {5, 9}, ++seed);
  const GraphPointer old = pair.capture({1, 2}, {1, 1}, false);
  ASSERT_NE(old, nullptr) << pair.device.message();
  pair.launch_first(*old, {1, 2}, ++seed);
  pair.both([](kvc_cache* cache, kvc_error* error) {
    return kvc_cache_resize(cache, 8 * 17 + 1, error);
  });
  pair.expect_refused(*old, {1, 2}, KVC_E_INVALID_STATE, "moved");
  const GraphPointer graph =
      pair.capture({1, 2}, {1, 1}, false);  // the first captured step that sees the pool there
  ASSERT_NE(graph, nullptr) << pair.device.message();
  pair.launch_first(*graph, {1, 2}, ++seed);
  for (int i = 0; i < 3; ++i) pair.replay(*graph, {2, 1}, ++seed);
  pair.eager({1, 2}, {2, 1}, ++seed);
  pair.check();
}

TEST_F(CudaGraphs, ServeSequencesWhosePositionsWereMovedWhereKeysTurnedWithThem) {
  GraphPair pair(GraphModel{}, kGpu);
  uint64_t seed = kSeed;
  pair.add({1, 2});
  pair.eager({1, 2}, {9, 12}, ++seed);
  const auto shift = [&](kvc_seq id, int64_t begin, int64_t end) {
    pair.both([=](kvc_cache* cache, kvc_error* error) {
      return kvc_seq_shift(cache, id, begin, end, begin - end, error);
    });
  };
  const GraphPointer graph = pair.capture({1, 2}, {1, 1}, false);
  ASSERT_NE(graph, nullptr) << pair.device.message();
  pair.launch_first(*graph, {1, 2}, ++seed);
  shift(2, 2, 6);
  for (int i = 0; i < 5; ++i) pair.replay(*graph, {2, 1}, ++seed);
  pair.both(
      [](kvc_cache* cache, kvc_error* error) { return kvc_seq_shift(cache, 1, 5, 5, 4, error); });
  for (int i = 0; i < 5; ++i) pair.replay(*graph, {2, 1}, ++seed);
  const GraphPointer shifted = pair.capture({2}, {1}, false);
  ASSERT_NE(shifted, nullptr) << pair.device.message();
  pair.launch_first(*shifted, {2}, ++seed);
  pair.replay(*shifted, {1}, ++seed);
  pair.check();
}

TEST_F(CudaGraphs, RefuseMovedPositionsWhereKeysGoByThem) {
  for (const GraphLayer& layer : {GraphLayer{.rope = KVC_ROPE_ON_READ},
                                  GraphLayer{.rope = KVC_ROPE_NONE, .has_alibi = true}}) {
    GraphPair pair(model_of(layer), kGpu);
    uint64_t seed = kSeed;
    pair.add({1, 2});
    pair.eager({1, 2}, {9, 12}, ++seed);
    const GraphPointer graph = pair.capture({1}, {1}, false);
    ASSERT_NE(graph, nullptr) << pair.device.message();
    pair.launch_first(*graph, {1}, ++seed);
    pair.both(
        [](kvc_cache* cache, kvc_error* error) { return kvc_seq_shift(cache, 2, 4, 4, 6, error); });
    pair.expect_refused(*graph, {2}, KVC_E_UNSUPPORTED, "sequence 2");
    EXPECT_EQ(pair.capture({2}, {1}, false), nullptr);
    EXPECT_EQ(pair.device.status, KVC_E_UNSUPPORTED) << pair.device.message();
    pair.eager({1, 2}, {1, 1}, ++seed);
    pair.check();
  }
}

}  // namespace
}  // namespace kvc::test
