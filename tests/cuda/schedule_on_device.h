// Plans in memory of the device, for tests that run on the emulator and on a GPU.
#pragma once

#include "tests/cuda/device_memory.h"
#include "tests/cuda/schedule_executor.h"

namespace kvc::cuda::test {

class ScheduleOnDevice {
 public:
  // Sized by schedule_bytes, poisoned.
  ScheduleOnDevice(const ScheduleShape& shape, const ScheduleLimits& limits, int32_t v_dim)
      : shape_(shape), limits_(limits), host_(empty_schedule(shape, limits)) {
    counts_ = decltype(counts_)(host_.counts.size());
    cta_begin_ = decltype(cta_begin_)(host_.cta_begin.size());
    items_ = decltype(items_)(host_.items.size());
    reductions_ = decltype(reductions_)(host_.reductions.size());
    sources_ = decltype(sources_)(host_.sources.size());
    scratch_ = decltype(scratch_)(host_.scratch.size());
    partials_ = testing::DeviceArray<float>(static_cast<size_t>(
        host_.bytes.num_splits * split_floats(shape.geometry.tile_rows, v_dim)));
  }
  // A schedule that the host made.
  ScheduleOnDevice(const HostSchedule& schedule, const ScheduleLimits& limits, int32_t v_dim)
      : ScheduleOnDevice(schedule.shape, limits, v_dim) {
    counts_.write(schedule.counts);
    cta_begin_.write(schedule.cta_begin);
    items_.write(schedule.items);
    reductions_.write(schedule.reductions);
    sources_.write(schedule.sources);
  }

  WorkSchedule view() const {
    return {counts_.data(),           cta_begin_.data(),        items_.data(),
            reductions_.data(),       sources_.data(),          partials_.data(),
            shape_.geometry.num_ctas, shape_.geometry.tile_rows};
  }
  ScheduleLaunch launch(const kernels::AttnSequence* sequences, const int32_t* num_sequences_at,
                        const PrefixShare* shares = nullptr) const {
    return {shape_, limits_, sequences, num_sequences_at, view(), scratch_.data(), shares};
  }
  testing::DeviceArray<float>& partials() { return partials_; }
  // Whether the scheduler has written to its scratch.
  bool scratch_is_used() const {
    for (const std::byte byte : scratch_.read()) {
      if (byte != std::byte{testing::DeviceArray<std::byte>::kPoison}) return true;
    }
    return false;
  }

  // The arrays, without partials.
  HostSchedule read() const {
    HostSchedule schedule = host_;
    schedule.counts = counts_.read();
    schedule.cta_begin = cta_begin_.read();
    schedule.items = items_.read();
    schedule.reductions = reductions_.read();
    schedule.sources = sources_.read();
    return schedule;
  }

 private:
  ScheduleShape shape_;
  ScheduleLimits limits_;
  HostSchedule host_;
  testing::DeviceArray<int32_t> counts_, cta_begin_;
  testing::DeviceArray<WorkItem> items_;
  testing::DeviceArray<ReduceItem> reductions_;
  testing::DeviceArray<ReduceSource> sources_;
  testing::DeviceArray<std::byte> scratch_;
  testing::DeviceArray<float> partials_;
};

}  // namespace kvc::cuda::test
