// Sequences of a step for the recurrence.
#include <gtest/gtest.h>

#include "kernels/cuda/launches.h"
#include "tests/cuda/step_writer.h"

namespace kvc::cuda {
namespace {

using kernels::LinearSequence;
using testing::DeviceArray;
using testing::finish;
using testing::StepDescription;
using testing::StepDevice;

TEST(CudaStateView, SlotsBecomeAddressesAndTheInitialStateStandsForMinusOne) {
  StepDescription step;
  for (int32_t i = 0; i < 300; ++i)
    step.sequences.push_back(
        {.slot = i, .stored = 0, .append = i % 3, .state_in = i % 5 - 1, .state_out = i});
  StepDevice device({.max_sequences = 310,
                     .max_rows = 400,
                     .table_rows = 310,
                     .table_entries = 1,
                     .groups = {{16, false}}});
  device.write(testing::step_words(step));
  ASSERT_EQ(cuda::step(device.state, {}, nullptr), cudaSuccess);
  // Slots so far apart that 32 bits do not reach; nothing reads there.
  constexpr int64_t kStride = int64_t{1} << 30;
  DeviceArray<std::byte> states(16), initial(16);
  for (const bool has_initial : {false, true}) {
    DeviceArray<LinearSequence> sequences(310);
    const StateMetadataParams params{.step = device.state,
                                     .states = states.data(),
                                     .slot_stride = kStride,
                                     .initial = has_initial ? initial.data() : nullptr,
                                     .sequences = sequences.data()};
    ASSERT_EQ(cuda::state_metadata(params, 310, nullptr), cudaSuccess);
    finish();
    const std::vector<LinearSequence> found = sequences.read();
    const auto address = [&](int64_t slot) {
      return reinterpret_cast<uintptr_t>(states.data()) + static_cast<uintptr_t>(slot * kStride);
    };
    int64_t rows = 0;
    for (size_t i = 0; i < step.sequences.size(); ++i) {
      const auto& s = step.sequences[i];
      ASSERT_EQ(found[i].row_begin, rows);
      ASSERT_EQ(found[i].num_rows, s.append);
      if (s.state_in < 0) {
        ASSERT_EQ(found[i].state_in, params.initial);
      } else {
        ASSERT_EQ(reinterpret_cast<uintptr_t>(found[i].state_in), address(s.state_in));
      }
      ASSERT_EQ(reinterpret_cast<uintptr_t>(found[i].state_out), address(s.state_out));
      rows += s.append;
    }
    // Nothing behind the last sequence was touched.
    ASSERT_EQ(found[300].num_rows, -1);
  }
}

}  // namespace
}  // namespace kvc::cuda
