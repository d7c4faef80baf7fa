// Forwards on a device that leave layers out, in graphs and outside, and pages that are cleared
// there.
#include "tests/cuda/graph_support.h"

namespace kvc::test {
namespace {

class CudaPartial : public CudaCache {
 protected:
  // K and V of one layer for so many rows, all of them `value`.
  void append(kvc_forward* forward, int32_t layer, int64_t rows, float value) {
    const SmallModel model;
    auto tensor =
        std::make_unique<Tensor>(std::vector<int64_t>{rows, model.kv_heads, model.dim}, kGpu);
    std::fill(tensor->values.begin(), tensor->values.end(), value);
    kvc_error error = OneCache::blank();
    ASSERT_EQ(kvc_kv_append(forward, layer, tensor->view(), tensor->view(), &error), KVC_OK)
        << error.message;
    kept_.push_back(std::move(tensor));  // the device may read it later
  }
  float largest_v(OneCache& cache, kvc_seq seq, int64_t length, int32_t layer) {
    const SmallModel model;
    Tensor v({length, model.kv_heads, model.dim}, kGpu);
    kvc_error error = OneCache::blank();
    EXPECT_EQ(
        kvc_debug_get_layer(cache.cache, seq, layer, 0, length, nullptr, v.view(), nullptr, &error),
        KVC_OK)
        << error.message;
    return *std::max_element(v.values.begin(), v.values.end());
  }
  std::vector<std::unique_ptr<Tensor>> kept_;
};

TEST_F(CudaPartial, EndNamesTheLayersThatGotNothing) {
  OneCache cache(SmallModel{}, kGpu);
  ASSERT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK);
  kvc_forward* forward = cache.begin({1}, {3}, nullptr, 0);
  ASSERT_NE(forward, nullptr) << cache.message;
  append(forward, 0, 3, 1);
  kvc_error error = OneCache::blank();
  EXPECT_EQ(kvc_forward_end(forward, &error), KVC_E_INVALID_STATE);
  EXPECT_NE(std::string(error.message).find("layer 1"), std::string::npos) << error.message;
  append(forward, 1, 3, 1);
  EXPECT_EQ(kvc_forward_end(forward, &error), KVC_OK) << error.message;
}

TEST_F(CudaPartial, AReplayHasGotWhatTheCapturedForwardGot) {
  SmallModel model;
  model.max_seqs = 2, model.max_tokens = 8, model.max_seq_len = 64;
  OneCache cache(model, kGpu);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  for (const kvc_seq seq : {1, 2}) ASSERT_EQ(kvc_seq_add(cache.cache, seq, nullptr), KVC_OK);
  (void)cache.step({1, 2}, {3, 2}, 1, stream);
  for (const bool all : {false, true}) {
    Graph graph;
    ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    kvc_forward* forward = cache.begin({1, 2}, {1, 1}, stream, KVC_FORWARD_PARTIAL);
    ASSERT_NE(forward, nullptr) << cache.message;
    append(forward, 0, 2, 5);
    if (all) append(forward, 1, 2, 5);
    ASSERT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
    ASSERT_EQ(cudaStreamEndCapture(stream, &graph.graph), cudaSuccess);
    ASSERT_EQ(cudaGraphInstantiate(&graph.executable, graph.graph, 0), cudaSuccess);
    ASSERT_EQ(cudaGraphLaunch(graph.executable, stream), cudaSuccess);
    forward = cache.begin({2, 1}, {1, 1}, stream, KVC_FORWARD_REPLAY);
    EXPECT_EQ(forward != nullptr, all) << cache.message;
    if (!all) {
      EXPECT_EQ(cache.status, KVC_E_INVALID_STATE);
      EXPECT_NE(cache.message.find("layer 1"), std::string::npos) << cache.message;
      forward = cache.begin({2, 1}, {1, 1}, stream, KVC_FORWARD_REPLAY | KVC_FORWARD_PARTIAL);
      ASSERT_NE(forward, nullptr) << cache.message;
    }
    ASSERT_EQ(cudaGraphLaunch(graph.executable, stream), cudaSuccess);
    EXPECT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
    EXPECT_EQ(kvc_cache_check(cache.cache, nullptr), KVC_OK);
    finish_runtime();
  }
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

TEST_F(CudaPartial, ClearedPagesShowNothingOfWhoHadThemBefore) {
  for (const uint64_t flags : {uint64_t{0}, uint64_t{KVC_CONFIG_CLEAR_PAGES}}) {
    SmallModel model;
    model.num_pages = 8;
    model.flags = flags;
    OneCache cache(model, kGpu);
    for (const kvc_seq seq : {1, 2}) {
      ASSERT_EQ(kvc_seq_add(cache.cache, seq, nullptr), KVC_OK);
      kvc_forward* forward = cache.begin({seq}, {30}, nullptr, KVC_FORWARD_PARTIAL);
      ASSERT_NE(forward, nullptr) << cache.message;
      append(forward, 0, 30, 777);
      if (seq == 1) append(forward, 1, 30, 777);
      ASSERT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
      EXPECT_EQ(largest_v(cache, seq, 30, 0), 777);
      EXPECT_EQ(largest_v(cache, seq, 30, 1), seq == 1 || flags == 0 ? 777 : 0);
      ASSERT_EQ(kvc_seq_remove(cache.cache, seq, nullptr), KVC_OK);
    }
  }
}

// The graph clears nothing: each step clears the pages that it takes.
TEST_F(CudaPartial, ReplaysClearThePagesThatTheyTake) {
  SmallModel model;
  model.max_seqs = 2, model.max_tokens = 8, model.max_seq_len = 8;
  model.num_pages = 8;
  model.page_size = 1;
  model.flags = KVC_CONFIG_CLEAR_PAGES;
  OneCache cache(model, kGpu);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(kvc_seq_add(cache.cache, 1, nullptr), KVC_OK);
  kvc_forward* forward = cache.begin({1}, {8}, stream, KVC_FORWARD_PARTIAL);
  ASSERT_NE(forward, nullptr) << cache.message;
  for (int32_t layer = 0; layer < 2; ++layer) append(forward, layer, 8, 777);
  ASSERT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_remove(cache.cache, 1, nullptr), KVC_OK);
  ASSERT_EQ(kvc_seq_add(cache.cache, 2, nullptr), KVC_OK);
  Graph graph;
  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  forward = cache.begin({2}, {1}, stream, KVC_FORWARD_PARTIAL);
  ASSERT_NE(forward, nullptr) << cache.message;
  append(forward, 0, 1, 5);
  ASSERT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph.graph), cudaSuccess);
  ASSERT_EQ(cudaGraphInstantiate(&graph.executable, graph.graph, 0), cudaSuccess);
  ASSERT_EQ(cudaGraphLaunch(graph.executable, stream), cudaSuccess);
  for (int64_t length = 1; length <= 6; ++length) {
    if (length > 1) {
      forward = cache.begin({2}, {1}, stream, KVC_FORWARD_REPLAY | KVC_FORWARD_PARTIAL);
      ASSERT_NE(forward, nullptr) << cache.message;
      ASSERT_EQ(cudaGraphLaunch(graph.executable, stream), cudaSuccess);
      ASSERT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
    }
    EXPECT_EQ(largest_v(cache, 2, length, 0), 5) << length;
    EXPECT_EQ(largest_v(cache, 2, length, 1), 0) << length;
  }
  finish_runtime();
  ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
}

}  // namespace
}  // namespace kvc::test
