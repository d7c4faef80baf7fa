// The open forward of a cache: begin, end, abort, and the calls on its layers in between.
#pragma once

#include <cstdint>

#include "kernels/params.h"
#include "kvcache.h"
#include "src/base/tensor.h"
#include "src/cache/forward_handles.h"
#include "src/cache/layer_call.h"
#include "src/cache/state_call.h"
#include "src/step/batch.h"
#include "src/step/forward.h"

namespace kvc {

class Cache;
struct CacheCore;

// Every function throws Error or std::bad_alloc; nothing has changed then, unless it is DEVICE.
class CacheForward {
 public:
  // Borrows both. A handle that begin() returns leads to `cache`.
  CacheForward(Cache* cache, CacheCore& core) : core_(core), handle_(cache) {}

  // `is_replay`: a graph that was captured before is launched for it (KVC_FORWARD_REPLAY);
  // `is_partial`: it may end without K and V in every layer (KVC_FORWARD_PARTIAL).
  kvc_forward* begin(const BatchRequest& request, GivenPositions given, bool is_replay,
                     bool is_partial, CallStream stream);
  // Throws INVALID_STATE naming the layers that had to be written and were not.
  void end();
  void abort();
  // A forward of one sequence in which no layer gets rows.
  void reserve(kvc_seq seq, int64_t num_tokens);

  int64_t num_tokens() const;
  int64_t num_position_rows() const;
  // Positions of the new tokens, [num_position_rows()][num_tokens()]. Several callers may ask at
  // once, and beside an attention.
  void write_positions(const I32Matrix& out) const;

  // One call on a layer of one of `kinds`, a set of kind_bit(); `function` is its name.
  LayerCall layer(int32_t id, const char* function, uint32_t kinds) {
    return {core_, id, function, kinds};
  }
  // One call on a recurrent state of a layer.
  StateCall state(int32_t layer, int32_t index, const char* function) {
    return {core_, layer, index, function};
  }
  void merge(const kernels::MergeParams& params, int64_t num_rows);

 private:
  CacheCore& core_;
  ForwardHandle handle_;
};

}  // namespace kvc
