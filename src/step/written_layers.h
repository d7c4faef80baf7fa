// Which layers an open forward has written: K and V by appends, states one by one.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/plan/spec.h"
#include "src/step/batch.h"

namespace kvc {

class WrittenLayers {
 public:
  // Borrows `spec`. Throws std::bad_alloc.
  explicit WrittenLayers(const Spec& spec);
  void clear() noexcept;

  void mark_appended(int32_t local_layer) { appended_[local_layer] = 1; }
  bool is_appended(int32_t local_layer) const { return appended_[local_layer] != 0; }
  // [local layer]. A captured graph keeps a copy, because its replays append to the same layers.
  const std::vector<uint8_t>& appended() const { return appended_; }
  void restore_appended(const std::vector<uint8_t>& appended) noexcept {
    std::copy(appended.begin(), appended.end(), appended_.begin());
  }
  // Some layer has new rows in the batch and was not appended to.
  bool lacks_rows(const Batch& batch) const;
  // Throws INVALID_STATE and names these layers.
  void require_rows(const Batch& batch) const { require_rows(*spec_, appended_, batch); }
  static void require_rows(const Spec& spec, const std::vector<uint8_t>& appended,
                           const Batch& batch);

  void mark_state_set(int32_t local_layer, int32_t state) {
    state_set_[state_index(local_layer, state)] = 1;
  }
  bool is_state_set(int32_t local_layer, int32_t state) const {
    return state_set_[state_index(local_layer, state)] != 0;
  }
  bool any_state_set() const;

 private:
  static size_t state_index(int32_t local_layer, int32_t state) {
    return static_cast<size_t>(local_layer) * kMaxStates + static_cast<size_t>(state);
  }

  const Spec* spec_;
  std::vector<uint8_t> appended_;   // [local layer]
  std::vector<uint8_t> state_set_;  // [local layer][state]
};

}  // namespace kvc
