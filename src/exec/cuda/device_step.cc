#include "src/exec/cuda/device_step.h"

#include <algorithm>
#include <cstring>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/memory.h"

namespace kvc {

DevicePages::DevicePages(const Plan& plan, const PagePool* pool, const Gpu* gpu)
    : plan_(&plan), pool_(pool), gpu_(gpu), stream_(*gpu) {
  for (const GroupSpec& group : plan.spec().groups)
    parts_.resize(parts_.size() + group.layers.size());
  const auto bytes = static_cast<int64_t>(parts_.size() * sizeof(cuda::PageRegion));
  memory_ = DeviceMemory(*gpu, std::max<int64_t>(bytes, 1));
  pages_ = {.layers = reinterpret_cast<const cuda::PageRegion*>(memory_.data()),
            .num_layers = static_cast<int32_t>(parts_.size())};
  upload();
}

bool DevicePages::is_current() const {
  const auto is_same = [](const LayerPages& a, const LayerPages& b) {
    return a.base == b.base && a.page_stride == b.page_stride;
  };
  return std::equal(regions_.begin(), regions_.end(), pool_->regions().begin(),
                    pool_->regions().end(), is_same);
}

// Waits: nothing that reads the old regions runs while the pool moves, and nothing that follows may
// read them.
void DevicePages::upload() {
  size_t index = 0;
  const std::vector<GroupSpec>& groups = plan_->spec().groups;
  for (size_t group = 0; group < groups.size(); ++group) {
    for (const int32_t layer : groups[group].layers) {
      const LayerPages pages = pool_->layer(layer);
      parts_[index++] = {.base = pages.base,
                         .page_stride = pages.page_stride,
                         .bytes = static_cast<int64_t>(pool_->layer_page_bytes(layer)),
                         .group = static_cast<int32_t>(group),
                         .reserved = 0};
    }
  }
  gpu_->copy(memory_.data(), parts_.data(),
             static_cast<int64_t>(parts_.size() * sizeof(cuda::PageRegion)), stream_.get());
  stream_.synchronize();
  regions_ = pool_->regions();
  ++generation_;
}

namespace {

using cuda::kStepEntries;
using cuda::kStepEntryWords;
using cuda::StepState;

constexpr int64_t kEntryBytes = int64_t{kStepEntryWords} * 4;
constexpr auto kEntryBytesOfTable = static_cast<int64_t>(sizeof(int32_t));

// Lays arrays out one behind the other: first without a base, to measure, then to set pointers.
class Carver {
 public:
  explicit Carver(std::byte* base) : base_(base) {}

  template <typename T>
  void add(T** array, int64_t count) {
    if (base_ != nullptr) *array = reinterpret_cast<T*>(base_ + bytes_);
    bytes_ += align_up(count * static_cast<int64_t>(sizeof(T)), kArrayAlignment);
  }
  int64_t bytes() const { return bytes_; }

 private:
  std::byte* base_;
  int64_t bytes_ = 0;
};

int64_t grown(int64_t wanted, int64_t now, int64_t least) {
  return wanted <= now ? now : std::max({wanted, 2 * now, least});
}

}  // namespace

DeviceStep::DeviceStep(const Plan& plan, DevicePages* pages, const Gpu* device)
    : plan_(&plan), pages_(pages), device_(device), arrays_(*device) {
  const Spec& spec = plan.spec();
  if (spec.groups.size() > cuda::kMaxLayerGroups) {
    fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(spec.groups.size()),
              "%zu groups of layers have page tables of their own: on a device at most %d",
              spec.groups.size(), cuda::kMaxLayerGroups);
  }
  if (spec.ropes.size() > kMaxDeviceRopes) {
    fail_with(KVC_E_UNSUPPORTED, static_cast<int64_t>(spec.ropes.size()),
              "the layers have %zu different rotations: on a device at most %zu", spec.ropes.size(),
              kMaxDeviceRopes);
  }
  state_.num_groups = static_cast<int32_t>(spec.groups.size());
  for (size_t group = 0; group < spec.groups.size(); ++group) {
    state_.groups[group] = {.table = nullptr,
                            .table_stride = 0,
                            .page_size = spec.groups[group].page_size,
                            .is_cross = spec.groups[group].is_cross ? 1 : 0};
    tables_.emplace_back();
  }
  ring_ = PinnedMemory(*device, kStepEntries * kEntryBytes);
  progress_ = PinnedMemory(*device, kArrayAlignment);
  std::memset(progress_.data(), 0, sizeof(uint32_t));
  control_ = DeviceMemory(*device, 2 * kArrayAlignment);
  long_steps_.resize(kStepEntries);
  state_.ring = reinterpret_cast<const uint32_t*>(ring_.data());
  state_.progress = reinterpret_cast<uint32_t*>(progress_.data());
  state_.next_entry = reinterpret_cast<uint32_t*>(control_.data());
  state_.ctas_done = reinterpret_cast<uint32_t*>(control_.data() + kArrayAlignment);
  const DeviceStream stream(*device);
  device->fill(control_.data(), 0, control_.bytes(), stream.get());
  // Arrays for the declared number of sequences and tokens are made now: their addresses, which
  // captured graphs hold, then never change.
  Needs needs{.sequences = spec.max_seqs,
              .rows = spec.max_tokens_per_forward,
              .cross_rows = 0,
              .words = 0,
              .slots = spec.max_seqs,
              .table_entries = std::vector<int64_t>(spec.groups.size(), 0)};
  for (size_t group = 0; group < spec.groups.size(); ++group) {
    const bool is_cross = spec.groups[group].is_cross;
    int64_t length = is_cross ? spec.max_cross_len : spec.max_seq_len;
    // A tree may have many nodes behind the longest sequence's last token but one.
    if (!is_cross && length != 0 && !spec.has_states()) length += KVC_MAX_TREE_NODES;
    needs.table_entries[group] = ceil_div(length, spec.groups[group].page_size);
  }
  grow(needs, stream.get());
  stream.synchronize();
}

int64_t DeviceStep::host_bytes() const {
  int64_t bytes =
      ring_.bytes() + progress_.bytes() + kvc::host_bytes(long_steps_) + kvc::host_bytes(tables_);
  for (const PinnedMemory& step : long_steps_) bytes += step.bytes();
  return bytes;
}

DeviceStep::Needs DeviceStep::needs_of(const Batch& batch) const {
  Needs needs{.sequences = static_cast<int64_t>(batch.entries().size()),
              .rows = batch.num_rows(),
              .cross_rows = batch.num_cross_rows(),
              .words = batch.num_delta_words(),
              .slots = 0,
              .table_entries = std::vector<int64_t>(tables_.size(), 0)};
  for (const BatchEntry& entry : batch.entries()) {
    needs.slots = std::max<int64_t>(needs.slots, entry.sequence->slot + 1);
    for (size_t group = 0; entry.change_begin >= 0 && group < tables_.size(); ++group) {
      needs.table_entries[group] =
          std::max(needs.table_entries[group], batch.change(entry, group).new_num_pages);
    }
  }
  return needs;
}

bool DeviceStep::fits(const Needs& needs) const {
  if (needs.sequences > max_sequences_ || needs.rows > max_rows_ ||
      needs.cross_rows > max_cross_rows_ || needs.words > max_words_ || needs.slots > num_slots_)
    return false;
  for (size_t group = 0; group < tables_.size(); ++group) {
    if (needs.table_entries[group] > state_.groups[group].table_stride) return false;
  }
  return true;
}

void DeviceStep::grow(const Needs& needs, cuda::Stream stream) {
  grow_tables(needs, stream);
  grow_arrays(needs, stream);
}

// Every step rebuilds the arrays, so their contents need not be kept.
void DeviceStep::grow_arrays(const Needs& needs, cuda::Stream stream) {
  const int64_t sequences = grown(needs.sequences, max_sequences_, 16);
  const int64_t rows = grown(needs.rows, max_rows_, 64);
  const int64_t cross_rows = grown(needs.cross_rows, max_cross_rows_, 1);
  const int64_t words = grown(needs.words, max_words_, kStepEntryWords);
  if (sequences == max_sequences_ && rows == max_rows_ && cross_rows == max_cross_rows_ &&
      words == max_words_)
    return;
  StepState fresh = state_;
  fresh.slots_stride = std::max(rows, cross_rows);
  fresh.words_capacity = words;
  const auto carve = [&](std::byte* base) {
    Carver carver(base);
    carver.add(&fresh.counts, 8);
    for (int32_t** array : {&fresh.slot, &fresh.stored, &fresh.append, &fresh.length, &fresh.window,
                            &fresh.sink, &fresh.offset, &fresh.cross_stored, &fresh.cross_append,
                            &fresh.state_in, &fresh.state_out, &fresh.long_ropes, &fresh.tree_at,
                            &fresh.tree_nodes, &fresh.segments_at, &fresh.num_segments})
      carver.add(array, sequences);
    carver.add(&fresh.row_begin, sequences + 1);
    carver.add(&fresh.cross_row_begin, sequences + 1);
    carver.add(&fresh.row_sequence, rows);
    carver.add(&fresh.cross_row_sequence, cross_rows);
    carver.add(&fresh.positions, rows);
    carver.add(&fresh.slots, state_.num_groups * fresh.slots_stride);
    carver.add(&fresh.words, words);
    return carver.bytes();
  };
  arrays_.ensure(carve(nullptr), stream);
  carve(arrays_.data());
  state_ = fresh;
  max_sequences_ = sequences, max_rows_ = rows, max_cross_rows_ = cross_rows, max_words_ = words;
}

// Address space costs nothing, so tables reserve it for more sequences than anybody keeps, within a
// bound.
int64_t DeviceStep::reserved_slots(int64_t stride) const {
  constexpr int64_t kMostBytes = int64_t{1} << 36;
  return std::clamp<int64_t>(kMostBytes / (stride * kEntryBytesOfTable), 64, int64_t{1} << 16);
}

// More sequences get memory at the same addresses. Longer tables move, as do tables that run out of
// reserved addresses.
void DeviceStep::grow_tables(const Needs& needs, cuda::Stream stream) {
  const int64_t slots = grown(needs.slots, num_slots_, 16);
  for (size_t group = 0; group < tables_.size(); ++group) {
    StepState::LayerGroup& table = state_.groups[group];
    const int64_t stride = grown(needs.table_entries[group], table.table_stride, 16);
    const int64_t row_bytes = stride * kEntryBytesOfTable;
    DeviceReservation& memory = tables_[group];
    if (stride == table.table_stride && slots * row_bytes <= memory.bytes()) {
      memory.commit(0, slots * row_bytes);
      continue;
    }
    if (device_->is_capturing(stream)) refuse_moving_tables();
    DeviceReservation fresh(*device_, std::max(slots, reserved_slots(stride)) * row_bytes);
    fresh.commit(0, slots * row_bytes);
    auto* to = reinterpret_cast<int32_t*>(fresh.data());
    for (int64_t slot = 0; slot < num_slots_ && table.table_stride > 0; ++slot) {
      device_->copy(to + slot * stride, table.table + slot * table.table_stride,
                    table.table_stride * kEntryBytesOfTable, stream);
    }
    if (table.table_stride > 0) device_->synchronize(stream);  // Before the old table is freed.
    memory = std::move(fresh);
    table.table = to;
    table.table_stride = stride;
    ++generation_;
  }
  num_slots_ = slots;
}

void DeviceStep::refuse_moving_tables() const {
  fail(
      KVC_E_INVALID_STATE,
      "the page tables have to move while the stream is captured: config.max_seq_len = %lld leaves "
      "their size open",
      ll(plan_->spec().max_seq_len));
}

void DeviceStep::require_capturable(const Batch& batch) const {
  if (!keeps_tables(batch)) refuse_moving_tables();
}

bool DeviceStep::keeps_addresses(const Batch& batch) const {
  return keeps_tables(batch) && pages_->is_current();
}

// Foretells the decision of grow_tables().
bool DeviceStep::keeps_tables(const Batch& batch) const {
  const Needs needs = needs_of(batch);
  const int64_t slots = grown(needs.slots, num_slots_, 16);
  for (size_t group = 0; group < tables_.size(); ++group) {
    const int64_t stride = state_.groups[group].table_stride;
    if (needs.table_entries[group] > stride ||
        slots * stride * kEntryBytesOfTable > tables_[group].bytes())
      return false;
  }
  return true;
}

bool DeviceStep::is_full() const {
  const auto* progress = reinterpret_cast<const volatile uint32_t*>(progress_.data());
  return num_written_ - *progress >= static_cast<uint32_t>(kStepEntries);
}

void DeviceStep::write(const Batch& batch) {
  const uint32_t entry = num_written_ % static_cast<uint32_t>(kStepEntries);
  auto* to = reinterpret_cast<int32_t*>(ring_.data() + entry * kEntryBytes);
  const std::vector<int32_t>& words = batch.step_delta();
  const auto bytes = static_cast<int64_t>(words.size() * sizeof(int32_t));
  if (bytes <= kEntryBytes) {
    std::memcpy(to, words.data(), static_cast<size_t>(bytes));
    return;
  }
  PinnedMemory& whole = long_steps_[entry];
  if (whole.bytes() < bytes)
    whole = PinnedMemory(*device_, grown(bytes, whole.bytes(), 4 * kEntryBytes));
  std::memcpy(whole.data(), words.data(), static_cast<size_t>(bytes));
  std::memcpy(to, words.data(), cuda::kStepHeaderWords * sizeof(int32_t));
  to[3] = -1;
  const auto address = reinterpret_cast<uint64_t>(whole.data());
  to[4] = static_cast<int32_t>(address & 0xffffffffu);
  to[5] = static_cast<int32_t>(address >> 32);
}

void DeviceStep::send(const Batch& batch, cuda::Stream stream) {
  const cuda::StepPages& pages = pages_->get();
  const Needs needs = needs_of(batch);
  if (!fits(needs)) grow(needs, stream);
  arrays_.ensure(arrays_.bytes(), stream);  // Notes a capture.
  write(batch);
  device_->call("step", device_->table->step, state_, pages, stream);
  ++num_written_;
}

void DeviceStep::unsend() noexcept { --num_written_; }

void DeviceStep::write_for_replay(const Batch& batch, cuda::Stream stream) {
  const Needs needs = needs_of(batch);
  if (!fits(needs)) grow(needs, stream);
  write(batch);
  ++num_written_;
}

}  // namespace kvc
