// What the graphs of a cache were captured for, and which steps they serve.
#pragma once

#include <cstdint>
#include <vector>

#include "src/exec/cuda/device_step.h"
#include "src/plan/spec.h"
#include "src/step/forward.h"

namespace kvc {

// The forward that a graph was captured for.
struct CapturedGraph {
  std::vector<int64_t> lengths;  // New tokens per sequence.
  uint64_t generation;           // DeviceStep::generation of the addresses in it.
  int64_t max_words;             // Words of a step.
  int64_t max_length;            // Tokens of a sequence.
  int64_t max_cross_length;      // Encoder tokens of a sequence.
  int64_t call_window = 0;       // Widest window of its attention calls; 0: none.
  bool needs_positions = false;  // A call reads positions of keys, which must not have moved.
  bool sets_states = false;
  std::vector<uint8_t> appended;  // Per local layer: it gets its rows.
};

class CapturedGraphs {
 public:
  CapturedGraphs(const Spec* spec, const DeviceStep* step) : spec_(spec), step_(step) {}

  // Throws UNSUPPORTED, INVALID_STATE: a prepared batch has what a graph would freeze though the
  // next step has another of it.
  void require_capturable(const Batch& batch, bool has_positions) const;
  // Throws UNSUPPORTED, INVALID_STATE: no graph serves a prepared batch. `needs_rows`: the graph
  // has to append to every layer.
  void require_replayable(const Batch& batch, bool has_positions, bool needs_rows) const;
  // Throws UNSUPPORTED where positions of a sequence were moved (kvc_seq_shift): a graph has no
  // room for them.
  static void require_unmoved(const Batch& batch);

  // Replaces the graph of equal lengths. Throws std::bad_alloc.
  CapturedGraph& add(const Forward& forward);
  void drop_last() { graphs_.pop_back(); }
  // The graph added last.
  CapturedGraph& last() { return graphs_.back(); }
  // The graph that serves a batch of these lengths; null: none.
  const CapturedGraph* find(const Batch& batch) const;

 private:
  const char* reason_against(const CapturedGraph& graph, const Batch& batch) const;

  const Spec* spec_;
  const DeviceStep* step_;
  std::vector<CapturedGraph> graphs_;
};

}  // namespace kvc
