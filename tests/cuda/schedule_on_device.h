// Plans in memory of the device, for tests that run on the emulator and on a GPU.
#pragma once

#include "tests/cuda/device_memory.h"
#include "tests/cuda/schedule_executor.h"

namespace kvc::cuda::test {

class PlanOnDevice {
 public:
  // As large as plan_bytes says, poisoned.
  PlanOnDevice(const ScheduleShape& shape, const ScheduleLimits& limits, int32_t v_dim)
      : shape_(shape), limits_(limits), host_(empty_plan(shape, limits)) {
    counts_ = decltype(counts_)(host_.counts.size());
    cta_begin_ = decltype(cta_begin_)(host_.cta_begin.size());
    items_ = decltype(items_)(host_.items.size());
    merges_ = decltype(merges_)(host_.merges.size());
    sources_ = decltype(sources_)(host_.sources.size());
    scratch_ = decltype(scratch_)(host_.scratch.size());
    partials_ = testing::DeviceArray<float>(static_cast<size_t>(
        host_.bytes.num_splits * split_floats(shape.geometry.tile_rows, v_dim)));
  }
  // A plan that the host made.
  PlanOnDevice(const HostPlan& plan, const ScheduleLimits& limits, int32_t v_dim)
      : PlanOnDevice(plan.shape, limits, v_dim) {
    counts_.write(plan.counts);
    cta_begin_.write(plan.cta_begin);
    items_.write(plan.items);
    merges_.write(plan.reductions);
    sources_.write(plan.sources);
  }

  WorkSchedule view() const {
    return {counts_.data(),           cta_begin_.data(),        items_.data(),
            merges_.data(),           sources_.data(),          partials_.data(),
            shape_.geometry.num_ctas, shape_.geometry.tile_rows};
  }
  ScheduleLaunch launch(const kernels::AttnSequence* sequences, const int32_t* num_sequences_at,
                        const PrefixShare* shares = nullptr) const {
    return {shape_, limits_, sequences, num_sequences_at, view(), scratch_.data(), shares};
  }
  testing::DeviceArray<float>& partials() { return partials_; }
  // Whether the planner has written to its scratch.
  bool scratch_is_used() const {
    for (const std::byte byte : scratch_.read()) {
      if (byte != std::byte{testing::DeviceArray<std::byte>::kPoison}) return true;
    }
    return false;
  }

  // The arrays, without partials.
  HostPlan read() const {
    HostPlan plan = host_;
    plan.counts = counts_.read();
    plan.cta_begin = cta_begin_.read();
    plan.items = items_.read();
    plan.reductions = merges_.read();
    plan.sources = sources_.read();
    return plan;
  }

 private:
  ScheduleShape shape_;
  ScheduleLimits limits_;
  HostPlan host_;
  testing::DeviceArray<int32_t> counts_, cta_begin_;
  testing::DeviceArray<WorkItem> items_;
  testing::DeviceArray<ReduceItem> merges_;
  testing::DeviceArray<ReduceSource> sources_;
  testing::DeviceArray<std::byte> scratch_;
  testing::DeviceArray<float> partials_;
};

}  // namespace kvc::cuda::test
