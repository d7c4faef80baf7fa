// The interface to what computes on a cache: the calls of a forward. One class per kind of device;
// the cache does not know which one it has.
#pragma once

#include <cstdint>

#include "kernels/linear_params.h"
#include "kernels/params.h"
#include "src/base/tensor.h"
#include "src/device/device.h"
#include "src/exec/attn_options.h"
#include "src/exec/sequence_set.h"
#include "src/plan/plan.h"
#include "src/step/forward.h"

namespace kvc {

// Checked tensors of one call.
struct AttnTensors {
  kernels::TokenRows q;
  kernels::TokenRows k;  // Base null: the call appends nothing.
  kernels::TokenRows v;  // Base null, with k given: V is in K.
  kernels::TokenRows out;
  float* lse = nullptr;
  int64_t lse_token_stride = 0;
};

// One attention call. `layer` has the heads and dims of q, k, v and out; its `source` names the
// pages.
struct AttnCall {
  const LayerSpec& layer;
  KeyScope scope;
  bool is_mla_self = false;  // The ragged form of MLA: K and V per head, not the pool.
};

struct StateRef {
  int32_t local_layer;
  int32_t state;
};

// How a forward is begun.
struct ForwardMode {
  bool has_positions;  // The caller gave them.
  bool is_replay;      // All kernels lie in a graph that the caller launches (KVC_FORWARD_REPLAY).
  bool needs_rows;     // It has to append to every layer.
};

// One call at a time, but for const ones. On a GPU the calls of a forward are enqueued on the
// stream that it was begun on; on the CPU they are complete on return. A call that throws has
// changed nothing, unless it throws DEVICE.
class Engine {
 public:
  virtual ~Engine() = default;

  // What calls keep for the next ones, pinned memory included. Not beside a call.
  virtual int64_t host_bytes() const = 0;
  virtual uint64_t num_cascades() const = 0;
  virtual int64_t cos_sin_bytes() const = 0;      // kvc_stats.cos_sin_bytes.
  virtual uint64_t values_saturated() const = 0;  // By appends. 0 where nothing counts them.

  // Before a prepared batch changes anything: whether the forward can be begun on this stream. May
  // wait for the device. Throws UNSUPPORTED, DEVICE; INVALID_STATE: the stream cannot be used
  // while a stream is under capture, or no more steps can be sent before graphs that were captured
  // are launched.
  virtual void check_begin(const Batch& batch, const ForwardMode& mode,
                           CallStream stream) const = 0;
  // Copies the shared pages that are to be written; a device is sent the step.
  virtual void begin(Forward& forward, const ForwardMode& mode, CallStream stream) = 0;
  // Nothing more is enqueued for the forward. Where some state of a sequence was set, those that
  // were not are copied from before the forward. Throws INVALID_STATE, and the forward stays open:
  // (a) it was captured, and the capture is over, which an aborted forward may be; (b) its stream
  // cannot be used, because another capture is running.
  virtual void close(Forward& forward, bool aborted) = 0;

  // Appends k and v first when they are given (kAll, kCross).
  virtual void attend(Forward& forward, const AttnCall& call, const AttnOptions& options,
                      const AttnTensors& tensors) = 0;
  // To the pages of a layer: the new tokens of its group, or the encoder's.
  virtual void append(Forward& forward, int32_t local_layer, const kernels::TokenRows& k,
                      const kernels::TokenRows& v) = 0;
  virtual void merge(const kernels::MergeParams& params, int64_t num_rows) = 0;
  // Rows of pages; the page ids lie on the host.
  virtual void gather(const RowSource& source, const kernels::GatherParams& params,
                      int64_t num_keys) = 0;
  // The recurrences over a state of every sequence; `params` without its sequences.
  virtual void linear(Forward& forward, const StateRef& state, kernels::LinearParams params) = 0;
  virtual void conv(Forward& forward, const StateRef& state, kernels::ConvParams params) = 0;
  // The states of the sequences, out and in.
  virtual void get_states(Forward& forward, const StateRef& state, const StateRows& out) = 0;
  virtual void set_states(Forward& forward, const StateRef& state, const StateRows& value) = 0;
  // [rows of positions][num_rows] of the new tokens.
  virtual void write_positions(const Forward& forward, const I32Matrix& out) const = 0;
};

}  // namespace kvc
