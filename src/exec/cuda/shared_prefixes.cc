// BatchMetadataCache: prefixes that the sequences of an eager forward share. The host finds them in
// its page tables, for it alone knows which pages are the same; a captured plan could not change
// with the batch.
#include <algorithm>
#include <climits>
#include <cstring>

#include "src/exec/cuda/batch_metadata.h"

namespace kvc {
namespace {

using cuda::PrefixShare;
using kernels::AttnSequence;

template <typename T>
int64_t bytes_of(const std::vector<T>& values) {
  return static_cast<int64_t>(values.size() * sizeof(T));
}

template <typename T>
void write(std::byte* to, const std::vector<T>& values) {
  std::memcpy(to, values.data(), values.size() * sizeof(T));
}

// Equal pages must hold equal keys: all of them visible, all at their places where positions
// matter, and all rotated alike.
bool takes_part(const Forward& forward, const KeyView& key, const BatchEntry& entry) {
  const Sequence& sequence = *entry.sequence;
  if (entry.append_length == 0 || entry.is_tree || entry.old_nodes != 0 || sequence.window != 0)
    return false;
  if (key.needs_positions && !sequence.segments.empty()) return false;
  return key.rope < 0 || !forward.uses_long(key.rope, entry);
}

}  // namespace

void BatchMetadataCache::list_sequences(const Forward& forward, const KeyView& key) {
  const auto group = static_cast<size_t>(key.group);
  const cuda::StepState::LayerGroup& tables = step_->state().groups[group];
  cascade_sequences_.clear();
  for (const BatchEntry& entry : forward.batch().entries()) {
    const Sequence& sequence = *entry.sequence;
    const PageList& pages = sequence.tables[group].pages;
    const bool shares = takes_part(forward, key, entry) && pages.num_dropped() == 0;
    const int64_t stored = entry.old_stored(false);
    cascade_sequences_.push_back(
        {.pages = shares ? pages.data() : nullptr,
         .device_pages = tables.table + sequence.slot * tables.table_stride,
         .row_begin = entry.row_begin,
         .num_rows = entry.append_length,
         .num_keys = sequence.window == 0 ? stored + 1 : std::min(stored + 1, sequence.window),
         .position = stored});
  }
}

const SharedPrefixes* BatchMetadataCache::shared_prefixes_of(const Forward& forward,
                                                             BatchMetadata& view,
                                                             const CascadeCall& call,
                                                             DeviceUploads& uploads,
                                                             cuda::Stream stream) {
  SharedPrefixes* sharing = nullptr;
  for (const std::unique_ptr<SharedPrefixes>& known : view.sharings_) {
    if (known->call.same_as(call)) sharing = known.get();
  }
  if (sharing == nullptr) {
    view.sharings_.push_back(std::make_unique<SharedPrefixes>());
    sharing = view.sharings_.back().get();
    sharing->call = call;
    sharing->plan.memory = DeviceBuffer(*device_);
  }
  DeviceCascade& cascade = sharing->cascade;
  if (sharing->step != forward.step()) {
    sharing->step = 0;  // stays stale when making it throws
    list_sequences(forward, view.key());
    const GroupSpec& group = spec_->groups[view.key().group];
    cascade.choose(cascade_sequences_, call, group.page_size, num_sms_);
    if (!cascade.empty()) {
      sharing->plan.shape = {.num_kv_heads = call.num_kv_heads,
                             .group_size = call.group_size,
                             .causal = 1,
                             .split_sinks = 0,
                             .fixed_keys = 0,
                             .min_rows = 0,
                             .max_rows = INT_MAX,
                             .geometry = call.geometry[static_cast<size_t>(cascade.kernel)]};
      ScheduleInput planned = upload_sharing(view, cascade, uploads, stream);
      planned.limits.max_keys = limits_of(forward, view).max_keys;
      planned.limits.max_rows =
          forward.batch().num_rows() + static_cast<int64_t>(cascade.row_map.size());
      make_schedule(planned, sharing->plan, stream);
      sharing->sequences = planned.sequences;
    }
    sharing->step = forward.step();
  }
  return cascade.empty() ? nullptr : sharing;
}

// One copy from the host: shares, how many sequences there are, the rows of the prefixes, and the
// prefixes themselves behind the room for the view's sequences, which come from the view.
BatchMetadataCache::ScheduleInput BatchMetadataCache::upload_sharing(const BatchMetadata& view,
                                                                     const DeviceCascade& cascade,
                                                                     DeviceUploads& uploads,
                                                                     cuda::Stream stream) const {
  const std::vector<AttnSequence>& entries = cascade.entries;
  const auto count = static_cast<int32_t>(cascade.shares.size());
  const int64_t own_bytes =
      static_cast<int64_t>(cascade.shares.size() * sizeof(AttnSequence)) - bytes_of(entries);
  const bool has_positions = view.key().needs_positions;
  const int64_t shares_at = own_bytes + bytes_of(entries);
  const int64_t rows_at = shares_at + bytes_of(cascade.shares);
  const int64_t positions_at = rows_at + bytes_of(cascade.row_map);
  const int64_t count_at = positions_at + (has_positions ? bytes_of(cascade.row_positions) : 0);
  const auto fill = [&](std::byte* host, std::byte* device) {
    int64_t row = 0;
    for (size_t i = 0; i < entries.size(); ++i) {
      AttnSequence entry = entries[i];
      entry.row_map = reinterpret_cast<const int32_t*>(device + rows_at) + row;
      if (has_positions)
        entry.row_positions = reinterpret_cast<const int32_t*>(device + positions_at) + row;
      row += entry.num_rows;
      std::memcpy(host + own_bytes + i * sizeof entry, &entry, sizeof entry);
    }
    write(host + shares_at, cascade.shares);
    write(host + rows_at, cascade.row_map);
    if (has_positions) write(host + positions_at, cascade.row_positions);
    std::memcpy(host + count_at, &count, sizeof count);
  };
  std::byte* device = uploads.put_filled(count_at + int64_t{sizeof count}, own_bytes, stream, fill);
  device_->copy(device, view.sequences(), own_bytes, stream);
  return {.sequences = reinterpret_cast<const AttnSequence*>(device),
          .num_sequences_at = reinterpret_cast<const int32_t*>(device + count_at),
          .shares = reinterpret_cast<const PrefixShare*>(device + shares_at),
          .limits = {
              .max_sequences = count, .max_rows = 0, .max_keys = 0, .max_prefixes = kPrefixLevels}};
}

}  // namespace kvc
