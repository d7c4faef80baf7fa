// How much is started and read for a step, as the emulator counts it: CTAs of the kernels of
// states, bytes that the step kernel has from the host.
#include <gtest/gtest.h>

#include "cudasim/cudasim.h"
#include "kernels/cuda/launches.h"
#include "tests/cuda/state_cache.h"
#include "tests/cuda/step_writer.h"

namespace kvc::test {
namespace {

// CTAs of the kernels of states for a step of sequences 0, 1, ... with so many tokens.
std::map<std::string, uint64_t> ctas(StateCache& cache, const std::vector<int64_t>& lengths) {
  std::vector<kvc_seq> seqs;
  for (size_t i = 0; i < lengths.size(); ++i) seqs.push_back(static_cast<kvc_seq>(i));
  cudasim::reset_counters();
  (void)cache.step(seqs, lengths, 1);
  std::map<std::string, uint64_t> found;
  for (const auto& [kernel, count] : cudasim::counters().ctas_by_kernel) {
    for (const char* name :
         {"linear_chunk_kernel", "linear_kernel", "conv_kernel", "state_metadata_kernel"})
      if (kernel.find(name) != std::string::npos) found[name] += count;
  }
  return found;
}

class CudaLaunchSizes : public CudaCache {};

using Ctas = std::map<std::string, uint64_t>;

TEST_F(CudaLaunchSizes, KernelsOfStatesAreStartedForTheBatchAndNotForTheLargestThatEverWas) {
  StateCache cache(kGpu, 300);
  // Each call has its view. 300 states of 2 heads; 2 tiles of channels for the 300 / 64 blocks of
  // rows and one more for each sequence.
  const Ctas many{
      {"linear_kernel", 600}, {"conv_kernel", 2 * (4 + 300)}, {"state_metadata_kernel", 6}};
  EXPECT_EQ(ctas(cache, std::vector<int64_t>(300, 1)), many);
  EXPECT_EQ(ctas(cache, {1}),
            (Ctas{{"linear_kernel", 2}, {"conv_kernel", 2}, {"state_metadata_kernel", 2}}));
  // One long sequence does not make the others any larger.
  std::vector<int64_t> lengths(300, 1);
  lengths[7] = 200;
  const Ctas mixed{{"linear_kernel", 600},
                   {"linear_chunk_kernel", 2},
                   {"conv_kernel", 2 * (499 / 64 + 300)},
                   {"state_metadata_kernel", 6}};
  EXPECT_EQ(ctas(cache, lengths), mixed);
}

}  // namespace
}  // namespace kvc::test

namespace kvc::cuda {
namespace {

using testing::DeviceArray;
using testing::StepDescription;
using testing::StepDevice;

// Bytes that the step kernel has read from the host.
uint64_t host_bytes(const StepDescription& step, int32_t num_layers) {
  constexpr int32_t kPages = 2000;
  StepDevice device({.max_sequences = 400,
                     .max_rows = 400,
                     .table_rows = 400,
                     .table_entries = 4,
                     .groups = {{16, false}, {16, false}}});
  DeviceArray<std::byte> pool(static_cast<size_t>(num_layers) * kPages * 16);
  std::vector<PageRegion> parts;
  for (int32_t layer = 0; layer < num_layers; ++layer)
    parts.push_back({pool.data() + int64_t{layer} * kPages * 16, 16, 16, layer % 2, 0});
  const DeviceArray<PageRegion> slots(parts);
  device.write(testing::step_words(step));
  cudasim::reset_counters();
  EXPECT_EQ(cuda::step(device.state, {slots.data(), num_layers}, nullptr), cudaSuccess);
  testing::finish();
  return cudasim::counters().host_bytes_by_kernels;
}

StepDescription step_with_tables() {
  StepDescription step;
  for (int32_t i = 0; i < 400; ++i)
    step.sequences.push_back(
        {.slot = i, .stored = 0, .append = 1, .tables = {{0, 0, {i}}, {1, 0, {i}}}});
  return step;
}

class CudaStepTraffic : public ::testing::Test {
 protected:
  void SetUp() override { cudasim::reset(); }
  static constexpr uint64_t kCopyCtas = 31, kHeader = 32;
  // The first CTA reads the step once, but for what it asks for with the header and a few words
  // twice.
  static uint64_t once(const StepDescription& step) {
    return 4 * testing::step_words(step).size() + 8192 + 64;
  }
};

TEST_F(CudaStepTraffic, WithoutPagesToCopyTheOtherCtasReadTheHeaderAlone) {
  const StepDescription step = step_with_tables();
  EXPECT_LE(host_bytes(step, 6), once(step) + kCopyCtas * kHeader);
}

TEST_F(CudaStepTraffic, EveryCtaReadsThePairsOnceWhateverTheNumberOfLayers) {
  StepDescription step = step_with_tables();
  for (int32_t i = 0; i < 700; ++i) step.copies.push_back({i % 2, i, 1000 + i});
  const uint64_t changes = 2 * 16, pairs = 700 * 8;
  const uint64_t few = host_bytes(step, 2), many = host_bytes(step, 40);
  EXPECT_LE(few, once(step) + kCopyCtas * (kHeader + changes + pairs));
  EXPECT_EQ(many, few);
}

}  // namespace
}  // namespace kvc::cuda
