#include "src/step/written_layers.h"

#include <algorithm>
#include <string>

#include "src/base/error.h"

namespace kvc {
namespace {

// Encoder tokens are written by the forward that announces them; a layer without pages has no rows.
bool has_new_rows(const LayerSpec& layer, const Batch& batch) {
  return layer.keeps_pages() && (layer.kind != KVC_LAYER_CROSS || batch.num_cross_rows() != 0);
}

}  // namespace

WrittenLayers::WrittenLayers(const Spec& spec)
    : spec_(&spec),
      appended_(spec.layers.size(), 0),
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

}  // namespace kvc
