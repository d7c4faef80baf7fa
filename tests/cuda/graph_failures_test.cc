// Captured steps on an emulated device that fails.
#include "cudasim/cudasim.h"
#include "kernels/cuda/step.h"
#include "tests/cuda/graph_support.h"

namespace kvc::test {
namespace {

class CudaGraphFailures : public CudaCache {};

TEST_F(CudaGraphFailures, ADeviceThatFailsWhileAFullRingLooksAtItIsReported) {
  GraphPair pair(GraphModel{}, kGpu);
  pair.add({1});
  std::vector<GraphPointer> graphs;
  for (int i = 0; i < cuda::kStepEntries; ++i) {
    graphs.push_back(pair.capture({1}, {1}, false));
    ASSERT_NE(graphs.back(), nullptr) << pair.device.message();
  }
  EXPECT_EQ(pair.device.begin({1}, {1}, pair.stream, 0), nullptr);
  EXPECT_EQ(pair.device.status, KVC_E_INVALID_STATE) << pair.device.message();
  cudasim::fail_call("cudaEventQuery", 1, cudaErrorIllegalAddress);
  EXPECT_EQ(pair.device.begin({1}, {1}, pair.stream, 0), nullptr);
  EXPECT_EQ(pair.device.status, KVC_E_DEVICE) << pair.device.message();
  cudasim::clear_failures();
  pair.check();
  for (size_t i = 0; i < graphs.size(); ++i) pair.launch_first(*graphs[i], {1}, i);
  pair.eager({1}, {2}, 7);
  pair.check();
}

}  // namespace
}  // namespace kvc::test
