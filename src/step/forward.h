// One open step: its batch and what is computed lazily from it, at most once per step whatever the
// number of layers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "kernels/params.h"
#include "src/step/batch.h"
#include "src/step/position_cos_sin.h"
#include "src/step/token_cos_sin.h"

namespace kvc {

// Rotary positions given by the caller, copied: [rows][num_rows].
struct GivenPositions {
  std::vector<int32_t> values;
  int64_t num_position_rows = 0;  // 0: none were given
};

// Reused from step to step so that a steady decode allocates nothing.
class Forward {
 public:
  explicit Forward(const Spec& spec);

  Batch& batch() { return batch_; }
  const Batch& batch() const { return batch_; }
  bool is_open() const { return open_; }
  // Identifies the step; work lists made for another step are stale.
  uint64_t step() const { return step_; }

  // `is_partial`: it may end without K and V in every layer (KVC_FORWARD_PARTIAL).
  void opened(GivenPositions given, bool is_partial = false);
  void closed() { open_ = false; }

  // Slots of the new tokens of a group, [num_rows]; of a CROSS group: of the encoder tokens,
  // [num_cross_rows].
  const int64_t* slots(int32_t group);

  // Of each packed token: the committed length (moved by shifts) plus its index, or plus its depth
  // in a tree. Windows and ALiBi go by these.
  const int32_t* token_positions();
  // What rotations go by: the caller's, else the above. [position_rows()][num_rows]
  const int32_t* rotary_positions();
  int64_t position_rows() const {
    return given_.num_position_rows == 0 ? 1 : given_.num_position_rows;
  }
  // The same into memory of the caller, [num_rows]; changes nothing here.
  void write_token_positions(int32_t* out) const;
  // Those of the caller; null when none were given.
  const int32_t* given_positions() const {
    return given_.num_position_rows == 0 ? nullptr : given_.values.data();
  }
  int64_t longest_position();  // largest of token_positions, and of the cached tokens

  // By packed token; none when rope < 0.
  kernels::Rotation rotation(int32_t rope, Executor& executor);
  // The same with the positions that sinks see: clipped to the window of the sequence
  // (kvc_seq_set_window).
  kernels::Rotation sink_rotation(int32_t rope, Executor& executor);
  // By absolute position, both variants of LONGROPE; for layers that rotate K on read.
  void key_rotations(int32_t rope, Executor& executor, kernels::Rotation out[2]);
  // Does the sequence of this entry use the long factors?
  bool uses_long(int32_t rope, const BatchEntry& entry) const;

  // Which layers were appended to in this step; of a STATE layer: which were set.
  void mark_appended(int32_t local_layer) { appended_[static_cast<size_t>(local_layer)] = 1; }
  bool is_appended(int32_t local_layer) const {
    return appended_[static_cast<size_t>(local_layer)] != 0;
  }
  // Per local layer. Of another step: a graph that is replayed appends to these.
  const std::vector<uint8_t>& appended() const { return appended_; }
  void restore_appended(const std::vector<uint8_t>& appended) noexcept {
    std::copy(appended.begin(), appended.end(), appended_.begin());
  }
  bool is_partial() const { return is_partial_; }
  // A layer has new rows in this step and was not appended to.
  bool lacks_rows() const;
  // Throws INVALID_STATE naming these layers.
  void require_rows() const { require_rows(*spec_, appended_, batch_); }
  // The same of a batch that appends to other layers.
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
  struct RopeCosSin {
    TokenCosSin tokens;
    TokenCosSin sinks;
    PositionCosSin keys;
  };

  size_t state_index(int32_t local_layer, int32_t state) const {
    return static_cast<size_t>(local_layer) * kMaxStates + static_cast<size_t>(state);
  }
  TokenPositions with_variant(int32_t rope, const int32_t* positions, int64_t row_stride);

  const Spec* spec_;
  Batch batch_;
  bool open_ = false;
  bool is_partial_ = false;
  uint64_t step_ = 0;
  GivenPositions given_;
  std::vector<std::vector<int64_t>> slots_;  // per group
  std::vector<uint8_t> slots_valid_;
  std::vector<int32_t> positions_;
  bool positions_valid_ = false;
  std::vector<int32_t> sink_positions_;
  std::vector<uint8_t> uses_long_;   // of one rotation, while its rows are made
  std::vector<RopeCosSin> cos_sin_;  // per Spec::ropes
  std::vector<uint8_t> appended_;    // per local layer
  std::vector<uint8_t> state_set_;   // per local layer and state
};

}  // namespace kvc
