// The batch as attention kernels on a device take it: sequences and schedules, made there once per
// step and kept at fixed addresses.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/cuda/table.h"
#include "src/device/gpu.h"
#include "src/device/uploads.h"
#include "src/exec/cuda/cascade.h"
#include "src/exec/cuda/device_step.h"
#include "src/exec/sequence_set.h"
#include "src/step/forward.h"

namespace kvc {

// One schedule of a batch.
struct Schedule {
  uint64_t step = 0;  // Step it was made for.
  cuda::ScheduleShape shape{};
  cuda::WorkSchedule lists{};
  int64_t num_slots = 0;
  DeviceBuffer memory;
};

// The prefixes that sequences share in calls of one shape, and the schedule with them.
struct SharedPrefixes {
  uint64_t step = 0;  // Step it was made for.
  CascadeCall call{};
  DeviceCascade cascade;                             // Empty: the sequences share none.
  const kernels::AttnSequence* sequences = nullptr;  // Those of the batch, then the prefixes.
  Schedule schedule;
};

class BatchMetadata {
 public:
  BatchMetadata(const Gpu* device, const KeySelection& key)
      : key_(key), memory_(*device), masks_(*device), positions_(*device) {}

  const KeySelection& key() const { return key_; }
  const kernels::AttnSequence* sequences() const { return params_.sequences; }

 private:
  friend class BatchMetadataCache;
  KeySelection key_;
  uint64_t step_ = 0;
  cuda::BatchMetadataParams params_{};
  DeviceBuffer memory_, masks_, positions_;
  std::vector<std::unique_ptr<Schedule>> schedules_;
  std::vector<std::unique_ptr<SharedPrefixes>> sharings_;
};

class BatchMetadataCache {
 public:
  BatchMetadataCache(const Spec* spec, const DeviceStep* step, const Gpu* device);

  // Enqueues the kernel that makes it, where this step has not made it yet. `spans` are those of
  // the call.
  BatchMetadata& metadata_of(const Forward& forward, const KeySelection& key,
                             const std::vector<Span>& spans, DeviceUploads& uploads,
                             cuda::Stream stream);
  const Schedule& schedule_of(const Forward& forward, BatchMetadata& metadata,
                              const cuda::ScheduleShape& shape, cuda::Stream stream);
  // The prefixes that the sequences share in such calls: KeyScope::kAll without windows and spans.
  // Found and scheduled where this step has not done it yet; null: none pays. The stream is not
  // captured.
  const SharedPrefixes* shared_prefixes_of(const Forward& forward, BatchMetadata& metadata,
                                           const CascadeCall& call, DeviceUploads& uploads,
                                           cuda::Stream stream);
  int64_t host_bytes() const;
  // Memory for the partial results of a schedule, the same for all of them.
  float* partials_for(const Schedule& schedule, int64_t split_floats, cuda::Stream stream);

 private:
  void make_metadata(const Forward& forward, BatchMetadata& metadata,
                     const std::vector<Span>& spans, DeviceUploads& uploads, cuda::Stream stream);
  // What a schedule is made of.
  struct ScheduleInput {
    const kernels::AttnSequence* sequences;
    const int32_t* num_sequences_at;
    const cuda::PrefixShare* shares;
    cuda::ScheduleLimits limits;
  };
  cuda::ScheduleLimits limits_of(const Forward& forward, const BatchMetadata& metadata) const;
  void make_schedule(const ScheduleInput& input, Schedule& schedule, cuda::Stream stream);
  void list_sequences(const Forward& forward, const KeySelection& key);
  ScheduleInput upload_sharing(const BatchMetadata& metadata, const DeviceCascade& cascade,
                               DeviceUploads& uploads, cuda::Stream stream) const;

  const Spec* spec_;
  const DeviceStep* step_;
  const Gpu* device_;
  const int32_t num_sms_;
  std::vector<std::unique_ptr<BatchMetadata>> metadata_;
  std::vector<CascadeSequence> cascade_sequences_;
  DeviceBuffer partials_;
};

}  // namespace kvc
