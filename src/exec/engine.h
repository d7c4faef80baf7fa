// The interface to everything that touches tensors of a cache. One class per kind of device; the
// cache does not know which one it has.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/linear_params.h"
#include "kernels/params.h"
#include "src/base/memory.h"
#include "src/base/tensor.h"
#include "src/device/device.h"
#include "src/exec/options.h"
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

// The layer whose rows a call names, and whether they are V.
struct RowSource {
  int32_t local_layer;
  bool is_v;
};

struct StateRef {
  int32_t local_layer;
  int32_t state;
};

// The place of one token.
struct TokenPlace {
  PageId page;
  int64_t offset;
};

// One call at a time, const ones aside. On a device calls enqueue on the stream that was set last;
// on the host they are complete on return. A call that throws has changed nothing, unless it throws
// DEVICE. A failure inside a noexcept call is reported by the next call that throws.
class Engine : public ByteCopier {
 public:
  virtual const char* name() const = 0;  // Of the instruction set or the device.
  virtual int32_t num_threads() const = 0;
  virtual uint64_t num_cascades() const = 0;

  // For the calls that follow; those of the host program, null: the library's own.
  virtual void set_stream(const kvc_stream* stream) = 0;

  // Throws DEVICE once the device has failed, in this call or before.
  virtual void require_alive() const = 0;
  // Waits until everything is done.
  virtual void drain() = 0;
  // For record(); empty where calls are complete on return. Throws.
  virtual DeviceEvent make_event() const = 0;
  // `event` stands for everything so far. It stays as it is where that is done, as beside a
  // capture.
  virtual void record(const DeviceEvent& event) noexcept = 0;

  // Before a forward changes anything. May wait for the device. Throws DEVICE; INVALID_STATE: the
  // stream that was set cannot be used beside a capture, or no more steps can be sent before graphs
  // that were captured are launched.
  virtual void await_begin() = 0;

  // ---- the open forward Before a prepared batch changes anything: whether the forward can be
  // begun on this stream, captured or not, or replayed. Throws UNSUPPORTED, INVALID_STATE, DEVICE.
  // `needs_rows`: a replay has to append to every layer.
  virtual void check_begin(const Batch& batch, bool has_positions, bool is_replay,
                           bool needs_rows) const = 0;
  // Copies the shared pages that are to be written; a device is sent the step.
  // `is_replay`: all kernels, those included, lie in a graph that the caller launches
  // (KVC_FORWARD_REPLAY).
  virtual void begin(Forward& forward, bool is_replay) = 0;
  // Before it ends. Throws INVALID_STATE: it was captured, and the capture is over; a capture that
  // it is no part of forbids the use of its stream.
  virtual void check_end() const = 0;
  // Before it is aborted. Throws INVALID_STATE for the second of these.
  virtual void check_abort() const = 0;
  // It has ended, or was aborted, and nothing more is enqueued for it.
  virtual void closed(Forward& forward, bool aborted) noexcept = 0;
  // States that were not set are those of before; only where any was set.
  virtual void carry_states_on(Forward& forward) noexcept = 0;
  // Appends k and v first when they are given (kAll, kCross).
  virtual void attend(Forward& forward, const AttnCall& call, const AttnOptions& options,
                      const AttnTensors& tensors) = 0;
  // To the pages of a layer: the new tokens of its group, or the encoder's.
  virtual void append(Forward& forward, int32_t local_layer, const kernels::TokenRows& k,
                      const kernels::TokenRows& v) = 0;
  virtual void merge(const kernels::MergeParams& params, int64_t num_rows) = 0;
  // The recurrences over a state of every sequence; `params` without its sequences.
  virtual void linear(Forward& forward, const StateRef& state, kernels::LinearParams params) = 0;
  virtual void conv(Forward& forward, const StateRef& state, kernels::ConvParams params) = 0;
  // The states of the sequences, out and in.
  virtual void get_states(Forward& forward, const StateRef& state, const StateRows& out) = 0;
  virtual void set_states(Forward& forward, const StateRef& state, const StateRows& value) = 0;
  // [rows of positions][num_rows] of the new tokens.
  virtual void write_positions(const Forward& forward, const I32Matrix& out) const = 0;

  // ---- rows and pages; page ids and slots of the parameters lie on the host
  virtual void gather(const RowSource& source, const kernels::GatherParams& params,
                      int64_t num_keys) = 0;
  // Complete on return; several may run at once, and beside a call above.
  virtual void read_rows(const RowSource& source, const kernels::GatherParams& params,
                         int64_t key_begin, int64_t key_end, kvc_stream stream) const = 0;
  // Whether rows of quantised layers can be computed with.
  virtual bool reads_quantised() const = 0;
  virtual void read_state(const std::byte* state, const StateSpec& spec, const StateRows& out,
                          kvc_stream stream) const = 0;
  virtual void write_state(std::byte* state, const StateSpec& spec, const StateRows& value) = 0;

  // Changes of what is stored already. What can fail is in the calls that prepare; those that
  // follow, and where a kernel then fails, the device is lost. One call of copy_pages, with so many
  // pages at most.
  virtual void prepare_copies(int64_t num_pages) = 0;
  virtual void copy_pages(const std::vector<PageCopy>& copies) noexcept = 0;

  // Rows into slots of layers, complete on return. Between prepare_writes and finish_moves; so many
  // layers and rows of each at most.
  virtual void prepare_writes(int64_t num_layers, int64_t num_rows) = 0;
  virtual void write_rows(int32_t local_layer, const kernels::AppendParams& params,
                          int64_t num_rows) noexcept = 0;

  // Tokens moved inside the pages of all layers of a group, one after the other: a destination may
  // be a later token's source. Between prepare_moves, which alone can fail, and finish_moves.
  // `num_tokens`: of every group at most, moved or turned.
  virtual void prepare_moves(int64_t num_tokens) = 0;
  // What follows touches other pages than what was before
  virtual void next_sequence() noexcept = 0;
  virtual void move_token(int32_t group, const TokenPlace& from, const TokenPlace& to) noexcept = 0;
  virtual void finish_moves() noexcept = 0;
  // K of tokens [begin, end) of a table, stored rotated, turns by one angle per pair (cos and sin
  // on the host); prepared as so many moves.
  virtual void turn_keys(int32_t local_layer, const kernels::Rotation& angles,
                         const PageTable& table, int64_t begin, int64_t end) noexcept = 0;
};

}  // namespace kvc
