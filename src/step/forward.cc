#include "src/step/forward.h"

#include <algorithm>
#include <string>
#include <utility>

#include "src/base/error.h"
#include "src/step/page_tables.h"

namespace kvc {
Forward::Forward(const Spec& spec)
    : spec_(&spec),
      batch_(spec.is_on_gpu() && spec.storage != KVC_STORAGE_NONE),
      slots_(spec.groups.size()),
      slots_valid_(spec.groups.size(), 0),
      cos_sin_(spec.ropes.size()),
      written_(spec) {}

void Forward::opened(GivenPositions given, bool is_partial) {
  open_ = true;
  is_partial_ = is_partial;
  ++step_;
  given_ = std::move(given);
  positions_valid_ = false;
  std::fill(slots_valid_.begin(), slots_valid_.end(), uint8_t{0});
  for (RopeCosSin& cos_sin : cos_sin_) {
    cos_sin.tokens.invalidate();
    cos_sin.sinks.invalidate();
  }
  written_.clear();
}

const int64_t* Forward::slots(int32_t group) {
  const auto index = static_cast<size_t>(group);
  if (slots_valid_[index] == 0) {
    fill_slots(batch_, *spec_, group, &slots_[index]);
    slots_valid_[index] = 1;
  }
  return slots_[index].data();
}

void Forward::write_token_positions(int32_t* out) const {
  for (const BatchEntry& entry : batch_.entries()) {
    const int64_t first = entry.sequence->next_position();
    for (int64_t i = 0; i < entry.append_length; ++i) {
      const int64_t beyond = entry.is_tree ? entry.sequence->tree.depths[entry.old_nodes + i] : i;
      out[entry.row_begin + i] = static_cast<int32_t>(first + beyond);
    }
  }
}

const int32_t* Forward::token_positions() {
  if (positions_valid_) return positions_.data();
  positions_.resize(batch_.num_rows());
  write_token_positions(positions_.data());
  positions_valid_ = true;
  return positions_.data();
}

const int32_t* Forward::rotary_positions() {
  return given_.num_position_rows == 0 ? token_positions() : given_.values.data();
}

int64_t Forward::longest_position() {
  int64_t longest = 0;
  for (const BatchEntry& entry : batch_.entries())
    longest =
        std::max(longest, entry.sequence->next_position() + entry.old_nodes + entry.append_length);
  return longest;
}

bool Forward::uses_long(int32_t rope, const BatchEntry& entry) const {
  return uses_long_factors(spec_->ropes[rope], entry);
}

// The positions of the tokens, and which tokens use the long frequencies.
TokenPositions Forward::with_variant(int32_t rope, const int32_t* positions, int64_t row_stride) {
  TokenPositions tokens{.positions = positions,
                        .row_stride = row_stride,
                        .num_rows = batch_.num_rows(),
                        .uses_long = nullptr};
  if (spec_->ropes[rope].long_inverse_frequencies.empty()) return tokens;
  uses_long_.assign(static_cast<size_t>(batch_.num_rows()), 0);
  for (const BatchEntry& entry : batch_.entries()) {
    if (uses_long(rope, entry))
      std::fill_n(uses_long_.begin() + entry.row_begin, entry.append_length, uint8_t{1});
  }
  tokens.uses_long = uses_long_.data();
  return tokens;
}

kernels::Rotation Forward::rotation(int32_t rope, Executor& executor) {
  if (rope < 0) return {};
  const auto index = static_cast<size_t>(rope);
  TokenCosSin& cos_sin = cos_sin_[index].tokens;
  if (cos_sin.is_valid()) return cos_sin.get(spec_->ropes[index], {}, executor);
  const int64_t stride = given_.num_position_rows > 1 ? batch_.num_rows() : 0;
  return cos_sin.get(spec_->ropes[index], with_variant(rope, rotary_positions(), stride), executor);
}

kernels::Rotation Forward::sink_rotation(int32_t rope, Executor& executor) {
  if (rope < 0) return {};
  const auto index = static_cast<size_t>(rope);
  TokenCosSin& cos_sin = cos_sin_[index].sinks;
  if (cos_sin.is_valid()) return cos_sin.get(spec_->ropes[index], {}, executor);
  const int32_t* positions = token_positions();
  sink_positions_.assign(positions, positions + batch_.num_rows());
  for (const BatchEntry& entry : batch_.entries()) {
    const int64_t window = entry.sequence->window;
    if (window == 0) continue;
    for (int64_t row = entry.row_begin; row < entry.row_begin + entry.append_length; ++row) {
      int32_t& position = sink_positions_[row];
      position = static_cast<int32_t>(std::min<int64_t>(position, window - 1));
    }
  }
  return cos_sin.get(spec_->ropes[index], with_variant(rope, sink_positions_.data(), 0), executor);
}

void Forward::key_rotations(int32_t rope, Executor& executor, kernels::Rotation out[2]) {
  out[0] = out[1] = {};
  if (rope < 0) return;
  const auto index = static_cast<size_t>(rope);
  const RopeSpec& spec = spec_->ropes[index];
  if (spec.mode != KVC_ROPE_ON_READ) return;
  const int64_t positions = longest_position();
  bool needs[2] = {false, false};
  for (const BatchEntry& entry : batch_.entries()) needs[uses_long(rope, entry) ? 1 : 0] = true;
  for (int variant = 0; variant < 2; ++variant) {
    if (needs[variant])
      out[variant] = cos_sin_[index].keys.ensure(spec, variant == 1, positions, executor);
  }
}

}  // namespace kvc
