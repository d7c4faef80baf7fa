#include "src/exec/cuda/batch_metadata.h"

#include <algorithm>
#include <climits>
#include <cstring>

#include "src/base/math.h"
#include "src/base/memory.h"

namespace kvc {
namespace {

using cuda::ScheduleBytes;
using cuda::ScheduleLimits;
using cuda::ScheduleShape;

bool same_shape(const ScheduleShape& a, const ScheduleShape& b) {
  return std::memcmp(&a, &b, sizeof a) == 0;
}

cuda::KeyScope scope_of(KeyScope scope) {
  switch (scope) {
    case KeyScope::kAll: return cuda::KeyScope::kAll;
    case KeyScope::kCached: return cuda::KeyScope::kCached;
    case KeyScope::kNew: return cuda::KeyScope::kNew;
    case KeyScope::kCross: break;
  }
  return cuda::KeyScope::kCross;
}

// Lays arrays out one behind the other.
class Places {
 public:
  int64_t add(int64_t bytes) {
    const int64_t at = bytes_;
    bytes_ += align_up(bytes, kArrayAlignment);
    return at;
  }
  int64_t bytes() const { return bytes_; }

 private:
  int64_t bytes_ = 0;
};

template <typename T>
T* at(const DeviceBuffer& memory, int64_t offset) {
  return reinterpret_cast<T*>(memory.data() + offset);
}

// 32-bit words of the masks of all trees, and keys whose positions have to be written out.
struct Extras {
  int64_t mask_words = 0;
  int64_t positions = 0;
};

Extras extras_of(const Batch& batch) {
  Extras extras;
  for (const BatchEntry& entry : batch.entries()) {
    const int64_t nodes = entry.old_nodes + entry.append_length;
    if (entry.is_tree) extras.mask_words += entry.append_length * ceil_div(nodes, 64);
    if (entry.is_tree || !entry.sequence->segments.empty()) extras.positions += entry.new_length();
  }
  return extras;
}

}  // namespace

BatchMetadataCache::BatchMetadataCache(const Spec* spec, const DeviceStep* step, const Gpu* device)
    : spec_(spec),
      step_(step),
      device_(device),
      num_sms_(device_info(*device).num_sms),
      partials_(*device) {}

int64_t BatchMetadataCache::host_bytes() const {
  int64_t bytes = kvc::host_bytes(metadata_) + kvc::host_bytes(cascade_sequences_);
  for (const std::unique_ptr<BatchMetadata>& metadata : metadata_) {
    const size_t objects = sizeof(BatchMetadata) + metadata->schedules_.size() * sizeof(Schedule) +
                           metadata->sharings_.size() * sizeof(SharedPrefixes);
    bytes += static_cast<int64_t>(objects) + kvc::host_bytes(metadata->schedules_) +
             kvc::host_bytes(metadata->sharings_);
    for (const std::unique_ptr<SharedPrefixes>& sharing : metadata->sharings_)
      bytes += sharing->cascade.host_bytes();
  }
  return bytes;
}

BatchMetadata& BatchMetadataCache::metadata_of(const Forward& forward, const KeySelection& key,
                                               const std::vector<Span>& spans,
                                               DeviceUploads& uploads, cuda::Stream stream) {
  BatchMetadata* metadata = nullptr;
  for (const std::unique_ptr<BatchMetadata>& known : metadata_) {
    if (known->key() == key) metadata = known.get();
  }
  if (metadata == nullptr) {
    metadata_.push_back(std::make_unique<BatchMetadata>(device_, key));
    metadata = metadata_.back().get();
  }
  if (metadata->step_ == forward.step() && spans.empty()) return *metadata;
  metadata->step_ = 0;  // Stays stale when making it throws.
  for (const std::unique_ptr<Schedule>& schedule : metadata->schedules_) schedule->step = 0;
  make_metadata(forward, *metadata, spans, uploads, stream);
  if (spans.empty()) metadata->step_ = forward.step();
  return *metadata;
}

void BatchMetadataCache::make_metadata(const Forward& forward, BatchMetadata& metadata,
                                       const std::vector<Span>& spans, DeviceUploads& uploads,
                                       cuda::Stream stream) {
  const KeySelection& key = metadata.key();
  const GroupSpec& group = spec_->groups[key.group];
  const int64_t sequences = step_->max_sequences();
  const int64_t rows = step_->max_rows();
  Places places;
  const int64_t sequences_at =
      places.add(sequences * static_cast<int64_t>(sizeof(kernels::AttnSequence)));
  const int64_t first_rows_at = places.add(sequences * 4);
  const int64_t begins_at = places.add(rows * 4);
  const int64_t ends_at = places.add(rows * 4);
  const Extras extras = extras_of(forward.batch());
  metadata.memory_.ensure(places.bytes(), stream);
  metadata.masks_.ensure(extras.mask_words * 8, stream);
  const int64_t positions = key.needs_positions ? extras.positions : 0;
  metadata.positions_.ensure(positions * 4, stream);
  cuda::BatchMetadataParams& params = metadata.params_;
  params = {};
  params.step = step_->state();
  params.scope = scope_of(key.scope);
  params.group = key.group;
  params.layer_window = static_cast<int32_t>(group.window);
  params.layer_chunk = static_cast<int32_t>(group.chunk);
  params.call_window = static_cast<int32_t>(std::min<int64_t>(key.window, INT32_MAX));
  params.needs_positions = key.needs_positions ? 1 : 0;
  params.rope = key.rope;
  params.sequences = at<kernels::AttnSequence>(metadata.memory_, sequences_at);
  params.first_rows = at<int32_t>(metadata.memory_, first_rows_at);
  params.key_begins = at<int32_t>(metadata.memory_, begins_at);
  params.key_ends = at<int32_t>(metadata.memory_, ends_at);
  params.masks = at<uint64_t>(metadata.masks_, 0);
  params.masks_capacity = extras.mask_words;
  params.key_positions = at<int32_t>(metadata.positions_, 0);
  params.key_positions_capacity = positions;
  if (!spans.empty()) {
    static_assert(sizeof(Span) == 3 * sizeof(int32_t));
    params.spans = reinterpret_cast<const int32_t*>(uploads.put(spans, stream));
    params.num_spans = static_cast<int32_t>(spans.size());
  }
  device_->call("batch_metadata", device_->table->batch_metadata, params, step_->max_sequences(),
                stream);
}

const Schedule& BatchMetadataCache::schedule_of(const Forward& forward, BatchMetadata& metadata,
                                                const ScheduleShape& shape, cuda::Stream stream) {
  Schedule* schedule = nullptr;
  for (const std::unique_ptr<Schedule>& known : metadata.schedules_) {
    if (same_shape(known->shape, shape)) schedule = known.get();
  }
  if (schedule == nullptr) {
    metadata.schedules_.push_back(std::make_unique<Schedule>());
    schedule = metadata.schedules_.back().get();
    schedule->shape = shape;
    schedule->memory = DeviceBuffer(*device_);
  }
  if (schedule->step == forward.step()) return *schedule;
  make_schedule({.sequences = metadata.sequences(),
                 .num_sequences_at = step_->state().counts,
                 .shares = nullptr,
                 .limits = limits_of(forward, metadata)},
                *schedule, stream);
  schedule->step = metadata.step_;  // 0 with spans: for this call alone.
  return *schedule;
}

ScheduleLimits BatchMetadataCache::limits_of(const Forward& forward,
                                             const BatchMetadata& metadata) const {
  const bool is_cross = metadata.key().scope == KeyScope::kCross;
  const int64_t declared = is_cross ? spec_->max_cross_len : spec_->max_seq_len;
  return {.max_sequences = step_->max_sequences(),
          .max_rows = step_->max_rows(),
          .max_keys = std::max(declared, forward.batch().longest(is_cross))};
}

void BatchMetadataCache::make_schedule(const ScheduleInput& input, Schedule& schedule,
                                       cuda::Stream stream) {
  ScheduleBytes bytes{};
  device_->table->schedule_bytes(schedule.shape, input.limits, &bytes);
  Places places;
  const int64_t counts_at = places.add(bytes.counts);
  const int64_t cta_begin_at = places.add(bytes.cta_begin);
  const int64_t items_at = places.add(bytes.items);
  const int64_t merges_at = places.add(bytes.reductions);
  const int64_t sources_at = places.add(bytes.sources);
  const int64_t scratch_at = places.add(bytes.scratch);
  schedule.memory.ensure(places.bytes(), stream);
  schedule.num_slots = bytes.num_splits;
  schedule.lists = {.counts = at<int32_t>(schedule.memory, counts_at),
                    .cta_begin = at<int32_t>(schedule.memory, cta_begin_at),
                    .items = at<cuda::WorkItem>(schedule.memory, items_at),
                    .reductions = at<cuda::ReduceItem>(schedule.memory, merges_at),
                    .sources = at<cuda::ReduceSource>(schedule.memory, sources_at),
                    .partials = nullptr,
                    .num_ctas = schedule.shape.geometry.num_ctas,
                    .tile_rows = schedule.shape.geometry.tile_rows};
  const cuda::ScheduleLaunch launch{.shape = schedule.shape,
                                    .limits = input.limits,
                                    .sequences = input.sequences,
                                    .num_sequences_at = input.num_sequences_at,
                                    .schedule = schedule.lists,
                                    .scratch = at<void>(schedule.memory, scratch_at),
                                    .shares = input.shares};
  device_->call("schedule", device_->table->schedule, launch, stream);
}

float* BatchMetadataCache::partials_for(const Schedule& schedule, int64_t split_floats,
                                        cuda::Stream stream) {
  const int64_t bytes = schedule.num_slots * split_floats * static_cast<int64_t>(sizeof(float));
  partials_.ensure(bytes, stream);
  return reinterpret_cast<float*>(partials_.data());
}

}  // namespace kvc
