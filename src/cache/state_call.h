// One call on a recurrent state of the open forward's sequences.
#pragma once

#include <cstdint>

#include "kernels/linear_params.h"
#include "kvcache.h"
#include "src/base/tensor.h"
#include "src/plan/spec.h"

namespace kvc {

struct CacheCore;

// Every function throws Error or std::bad_alloc. Lives for the duration of the call.
class StateCall {
 public:
  // Throws OUT_OF_RANGE, INVALID_STATE for a layer of another kind, UNSUPPORTED for a cache without
  // tensor memory. `function` is named in messages.
  StateCall(CacheCore& core, int32_t layer, int32_t index, const char* function);

  int32_t layer() const { return layer_; }
  int32_t index() const { return index_; }
  const StateSpec& spec() const { return *spec_; }
  DLDevice device() const;
  int64_t num_rows() const;
  int64_t num_seqs() const;

  // The states of the sequences, in the order of the batch.
  void get(const StateRows& out);
  void set(const StateRows& value);
  // The recurrences; `params` without its sequences.
  void linear(const kernels::LinearParams& params);
  void conv(const kernels::ConvParams& params);

 private:
  CacheCore& core_;
  int32_t layer_;
  int32_t index_;
  int32_t local_;
  const StateSpec* spec_ = nullptr;
};

}  // namespace kvc
