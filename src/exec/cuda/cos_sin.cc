#include "src/exec/cuda/cos_sin.h"

#include <algorithm>

#include "src/base/error.h"

namespace kvc {
namespace {

// Rows by absolute position are made for more positions than asked, so that a growing sequence does
// not ask again at each step.
constexpr int64_t kLeastRows = 4096, kLeastFarRows = cuda::kNearPositions + 256;

template <typename T>
DeviceMemory upload(const Gpu& device, const std::vector<T>& values) {
  if (values.empty()) return {};
  const auto bytes = static_cast<int64_t>(values.size() * sizeof(T));
  DeviceMemory memory(device, bytes);
  const DeviceStream stream(device);
  device.copy(memory.data(), values.data(), bytes, stream.get());
  stream.synchronize();
  return memory;
}

}  // namespace

DeviceCosSin::DeviceCosSin(const Spec* spec, const DeviceStep* step, const Gpu* device)
    : spec_(spec), step_(step), device_(device), given_(*device) {
  for (const RopeSpec& rope : spec->ropes) {
    Rope& made = ropes_.emplace_back();
    made.frequencies[0] = upload(*device, rope.inverse_frequencies);
    made.frequencies[1] = upload(*device, rope.long_inverse_frequencies);
    made.sections = upload(*device, rope.section_of_pair);
    for (Table* table : {&made.tokens, &made.sinks, &made.keys[0], &made.keys[1]})
      table->memory = DeviceBuffer(*device);
  }
}

void DeviceCosSin::begin(const Forward& forward, DeviceUploads& uploads, cuda::Stream stream) {
  positions_ = step_->state().positions;
  positions_stride_ = 0;
  has_sections_ = false;
  const int32_t* given = forward.given_positions();
  if (given == nullptr) return;
  // Into memory that keeps its address; uploads reuse theirs.
  const int64_t rows = forward.batch().num_rows();
  const int64_t bytes = forward.position_rows() * rows * static_cast<int64_t>(sizeof(int32_t));
  given_.ensure(bytes, stream);
  device_->copy(given_.data(), uploads.put(given, bytes, stream), bytes, stream);
  positions_ = reinterpret_cast<const int32_t*>(given_.data());
  has_sections_ = forward.position_rows() > 1;
  positions_stride_ = has_sections_ ? rows : 0;
}

cuda::CosSinParams DeviceCosSin::params_of(int32_t rope) const {
  const auto index = static_cast<size_t>(rope);
  const Rope& made = ropes_[index];
  cuda::CosSinParams params{};
  for (int variant = 0; variant < 2; ++variant)
    params.inverse_frequencies[variant] =
        reinterpret_cast<const double*>(made.frequencies[variant].data());
  params.magnitude = spec_->ropes[index].magnitude;
  params.rope = rope;
  params.num_pairs = spec_->ropes[index].rotary_dim / 2;
  return params;
}

kernels::Rotation DeviceCosSin::rotation_of(int32_t rope, const Table& table, int64_t rows) const {
  const RopeSpec& spec = spec_->ropes[rope];
  const auto* cosines = reinterpret_cast<const float*>(table.memory.data());
  return {.cos = cosines,
          .sin = cosines + rows * (spec.rotary_dim / 2),
          .rotary_dim = spec.rotary_dim,
          .interleaved = spec.style == KVC_ROPE_INTERLEAVED ? 1 : 0,
          .begin = spec.begin};
}

void DeviceCosSin::make(Table& table, cuda::CosSinParams params, int64_t rows,
                        cuda::Stream stream) {
  const int64_t elements = rows * params.num_pairs;
  table.memory.ensure(2 * elements * static_cast<int64_t>(sizeof(float)), stream);
  params.cos = reinterpret_cast<float*>(table.memory.data());
  params.sin = params.cos + elements;
  device_->call("cos_sin", device_->table->cos_sin, params, stream);
}

kernels::Rotation DeviceCosSin::tokens(const Forward& forward, int32_t rope, cuda::Stream stream) {
  if (rope < 0) return {};
  Table& table = ropes_[rope].tokens;
  const int64_t rows = step_->max_rows();
  if (table.step != forward.step()) {
    cuda::CosSinParams params = params_of(rope);
    params.positions = positions_;
    params.positions_stride = positions_stride_;
    if (has_sections_)
      params.pair_section = reinterpret_cast<const int32_t*>(ropes_[rope].sections.data());
    if (params.inverse_frequencies[1] != nullptr) {
      params.row_sequence = step_->state().row_sequence;
      params.long_ropes = step_->state().long_ropes;
    }
    params.num_rows = forward.batch().num_rows();
    params.num_rows_at = step_->state().counts + 1;
    make(table, params, rows, stream);
    table.step = forward.step();
  }
  return rotation_of(rope, table, rows);
}

kernels::Rotation DeviceCosSin::sinks(const Forward& forward, int32_t rope, cuda::Stream stream) {
  if (rope < 0) return {};
  Table& table = ropes_[rope].sinks;
  const int64_t rows = step_->max_rows();
  if (table.step != forward.step()) {
    cuda::CosSinParams params = params_of(rope);
    params.positions = step_->state().positions;
    params.row_sequence = step_->state().row_sequence;
    if (params.inverse_frequencies[1] != nullptr) params.long_ropes = step_->state().long_ropes;
    params.position_limit = 1;
    params.window = step_->state().window;
    params.num_rows = forward.batch().num_rows();
    params.num_rows_at = step_->state().counts + 1;
    make(table, params, rows, stream);
    table.step = forward.step();
  }
  return rotation_of(rope, table, rows);
}

int64_t DeviceCosSin::bytes_of_keys() const {
  int64_t bytes = 0;
  for (const Rope& rope : ropes_) {
    for (const Table& table : rope.keys) bytes += table.memory.bytes();
  }
  return bytes;
}

void DeviceCosSin::keys(Forward& forward, int32_t rope, cuda::Stream stream,
                        kernels::Rotation out[2]) {
  out[0] = out[1] = {};
  if (rope < 0 || spec_->ropes[rope].mode != KVC_ROPE_ON_READ) return;
  const int64_t longest = std::max(forward.longest_position(), spec_->max_seq_len);
  const int64_t wanted = cuda::key_rows(longest);
  // Both variants, whatever this batch needs: in a graph it may be another one.
  const bool has_long = !spec_->ropes[rope].long_inverse_frequencies.empty();
  for (int variant = 0; variant < (has_long ? 2 : 1); ++variant) {
    Table& table = ropes_[rope].keys[variant];
    table.memory.ensure(table.memory.bytes(), stream);  // Notes a capture.
    if (table.num_rows < wanted) {
      if (device_->is_capturing(stream)) {
        fail(KVC_E_INVALID_STATE,
             "keys are rotated on read at up to %lld positions, whose cos and sin take %lld rows, "
             "and %lld are there: before the capture, run a forward with this layer; "
             "config.max_seq_len = %lld leaves their number open if 0",
             static_cast<long long>(longest), static_cast<long long>(wanted),
             static_cast<long long>(table.num_rows), static_cast<long long>(spec_->max_seq_len));
      }
      const bool is_far = wanted > cuda::kNearPositions;
      const int64_t rows =
          std::clamp(2 * table.num_rows,
                     is_far ? std::max(wanted, kLeastFarRows) : std::max(wanted, kLeastRows),
                     is_far ? cuda::kMaxKeyRows : cuda::kNearPositions);
      cuda::CosSinParams params = params_of(rope);
      if (variant == 1) params.inverse_frequencies[0] = params.inverse_frequencies[1];
      params.inverse_frequencies[1] = nullptr;
      params.num_rows = rows;
      table.num_rows = 0;  // Not there when making them throws.
      make(table, params, rows, stream);
      table.num_rows = rows;
      key_bytes_ = bytes_of_keys();
    }
    out[variant] = rotation_of(rope, table, table.num_rows);
  }
}

}  // namespace kvc
