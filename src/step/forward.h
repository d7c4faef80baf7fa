// One open forward: its batch, and values computed from it when first needed, once per forward
// whatever the number of layers.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "src/base/memory.h"
#include "src/plan/spec.h"
#include "src/step/batch.h"

namespace kvc {

// Which layers an open forward has written: K and V by appends, states one by one.
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
  int64_t host_bytes() const { return kvc::host_bytes(appended_) + kvc::host_bytes(state_set_); }

 private:
  static size_t state_index(int32_t local_layer, int32_t state) {
    return static_cast<size_t>(local_layer) * kMaxStates + static_cast<size_t>(state);
  }

  const Spec* spec_;
  std::vector<uint8_t> appended_;   // [local layer]
  std::vector<uint8_t> state_set_;  // [local layer][state]
};

// A copy of the caller's rotary positions: [num_position_rows][num_rows].
struct GivenPositions {
  std::vector<int32_t> values;
  int64_t num_position_rows = 0;  // 0: none were given.
};

// Flags of kvc_forward_desc.
struct ForwardFlags {
  bool is_replay = false;        // A graph that was captured before is launched for it.
  bool is_partial = false;       // It may end without K and V in every layer.
  bool leaves_rows = false;      // Nobody reads a partial one's rows before they are written.
  bool has_whole_spans = false;  // A span that it would cut is refused.
};

// Reused from forward to forward, so that a steady decode allocates nothing.
class Forward {
 public:
  explicit Forward(const Spec& spec);

  Batch& batch() { return batch_; }
  const Batch& batch() const { return batch_; }
  bool is_open() const { return open_; }
  // Identifies the forward; work lists of another one are stale.
  uint64_t step() const { return step_; }

  void opened(GivenPositions given, const ForwardFlags& flags = {});
  void closed() { open_ = false; }

  // Slots of the new tokens in a layer group, [num_rows]. For CROSS layers: slots of the encoder
  // tokens, [num_cross_rows].
  const int64_t* slots(int32_t group);

  // Position of each packed token: the committed length (moved by shifts) plus its index, or plus
  // its depth in a tree. Windows and ALiBi use these positions.
  const int32_t* token_positions();
  // Positions for RoPE: the caller's, else token_positions(). [position_rows()][num_rows]
  const int32_t* rotary_positions();
  int64_t position_rows() const {
    return given_.num_position_rows == 0 ? 1 : given_.num_position_rows;
  }
  // Writes token_positions() to `out` [num_rows], and changes nothing here.
  void write_token_positions(int32_t* out) const;
  // Positions given by the caller; null when none were given.
  const int32_t* given_positions() const {
    return given_.num_position_rows == 0 ? nullptr : given_.values.data();
  }
  int64_t longest_position();  // Largest position of new and cached tokens.
  // Appends the positions of keys [first, end of the new tokens) of an entry; `cached_only`: of its
  // committed tokens alone.
  void append_key_positions(const BatchEntry& entry, int64_t first, bool cached_only,
                            std::vector<int32_t>* out);

  // The sequence of this entry uses the long factors of LONGROPE.
  bool uses_long(int32_t rope, const BatchEntry& entry) const;

  WrittenLayers& written() { return written_; }
  const WrittenLayers& written() const { return written_; }
  int64_t host_bytes() const;
  bool is_partial() const { return flags_.is_partial; }
  bool has_whole_spans() const { return flags_.has_whole_spans; }

 private:
  const Spec* spec_;
  Batch batch_;
  bool open_ = false;
  ForwardFlags flags_;
  uint64_t step_ = 0;
  GivenPositions given_;
  std::vector<std::vector<int64_t>> slots_;  // [layer group]
  std::vector<uint8_t> slots_valid_;
  std::vector<int32_t> positions_;
  bool positions_valid_ = false;
  WrittenLayers written_;
};

}  // namespace kvc
