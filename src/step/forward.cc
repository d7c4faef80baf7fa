#include "src/step/forward.h"

#include <algorithm>
#include <string>
#include <utility>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/step/page_tables.h"

namespace kvc {
namespace {

// Encoder tokens are written by the forward that announces them; a layer without pages has no rows.
bool has_new_rows(const LayerSpec& layer, const Batch& batch) {
  return layer.keeps_pages() && (layer.kind != KVC_LAYER_CROSS || batch.num_cross_rows() != 0);
}

}  // namespace

WrittenLayers::WrittenLayers(const Spec& spec)
    : spec_(&spec),
      appended_(static_cast<size_t>(spec.num_local_layers()), 0),
      state_set_(spec.has_states() ? spec.layers.size() * kMaxStates : 0, 0) {}

void WrittenLayers::clear() noexcept {
  std::fill(appended_.begin(), appended_.end(), uint8_t{0});
  std::fill(state_set_.begin(), state_set_.end(), uint8_t{0});
}

bool WrittenLayers::any_state_set() const {
  return std::any_of(state_set_.begin(), state_set_.end(), [](uint8_t set) { return set != 0; });
}

bool WrittenLayers::lacks_rows(const Batch& batch) const {
  for (size_t layer = 0; layer < appended_.size(); ++layer) {
    if (appended_[layer] == 0 && has_new_rows(spec_->layers[layer], batch)) return true;
  }
  return false;
}

void WrittenLayers::require_rows(const Spec& spec, const std::vector<uint8_t>& appended,
                                 const Batch& batch) {
  constexpr size_t kMostText = 200;
  const auto lacks_rows = [&](size_t layer) {
    return appended[layer] == 0 && has_new_rows(spec.layers[layer], batch);
  };
  std::string names;
  int32_t first = -1, count = 0;
  for (size_t layer = 0; layer < appended.size(); ++layer) {
    if (!lacks_rows(layer)) continue;
    const size_t begin = layer;
    while (layer + 1 < appended.size() && lacks_rows(layer + 1)) ++layer;
    if (first < 0) first = spec.layer_begin + static_cast<int32_t>(begin);
    count += static_cast<int32_t>(layer - begin) + 1;
    if (names.size() > kMostText) continue;
    if (!names.empty()) names += ", ";
    names += std::to_string(spec.layer_begin + static_cast<int32_t>(begin));
    if (layer != begin)
      names += " to " + std::to_string(spec.layer_begin + static_cast<int32_t>(layer));
    if (names.size() > kMostText) names += ", ...";
  }
  if (count == 0) return;
  fail_with(KVC_E_INVALID_STATE, first,
            "%d of %zu layers got no K and V in this forward of %lld tokens (layer %s): append to "
            "them, abort, "
            "or begin with KVC_FORWARD_PARTIAL (%d)",
            count, appended.size(), ll(batch.num_rows()), names.c_str(),
            static_cast<int>(KVC_FORWARD_PARTIAL));
}

Forward::Forward(const Spec& spec)
    : spec_(&spec),
      batch_(spec.is_on_gpu() && spec.storage != KVC_STORAGE_NONE),
      slots_(spec.groups.size()),
      slots_valid_(spec.groups.size(), 0),
      written_(spec) {}

void Forward::opened(GivenPositions given, const ForwardFlags& flags) {
  open_ = true;
  flags_ = flags;
  ++step_;
  given_ = std::move(given);
  positions_valid_ = false;
  std::fill(slots_valid_.begin(), slots_valid_.end(), uint8_t{0});
  written_.clear();
}

int64_t Forward::host_bytes() const {
  int64_t bytes = batch_.host_bytes() + written_.host_bytes() + kvc::host_bytes(given_.values) +
                  kvc::host_bytes(slots_) + kvc::host_bytes(slots_valid_) +
                  kvc::host_bytes(positions_);
  for (const std::vector<int64_t>& slots : slots_) bytes += kvc::host_bytes(slots);
  return bytes;
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
  for (const BatchEntry& entry : batch_.entries()) {
    const std::vector<int32_t>& depths = entry.sequence->tree.depths;
    const int64_t more =
        entry.is_tree ? 1 + *std::max_element(depths.begin(), depths.end()) : entry.append_length;
    longest = std::max(longest, entry.sequence->next_position() + more);
  }
  return longest;
}

void Forward::append_key_positions(const BatchEntry& entry, int64_t first, bool cached_only,
                                   std::vector<int32_t>* out) {
  const Sequence& sequence = *entry.sequence;
  int64_t offset = 0;
  auto segment = sequence.segments.begin();
  for (int64_t token = first; token < entry.old_length; ++token) {
    while (segment != sequence.segments.end() && segment->begin <= token)
      offset = (segment++)->offset;
    out->push_back(static_cast<int32_t>(token + offset));
  }
  if (cached_only) return;
  for (int64_t node = 0; node < entry.old_nodes; ++node)
    out->push_back(static_cast<int32_t>(sequence.next_position() + sequence.tree.depths[node]));
  const int32_t* rows = token_positions() + entry.row_begin;
  out->insert(out->end(), rows, rows + entry.append_length);
}

bool Forward::uses_long(int32_t rope, const BatchEntry& entry) const {
  return uses_long_factors(spec_->ropes[rope], entry);
}

}  // namespace kvc
