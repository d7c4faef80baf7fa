// Committed tokens and recurrent states in and out, as stored: kvc_debug_get_kv and its like.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache.h"
#include "src/base/tensor.h"
#include "src/device/device.h"
#include "src/plan/spec.h"

namespace kvc {

struct CacheCore;
struct Sequence;

// Rows of one layer, by token.
struct LayerRows {
  int32_t local_layer;
  kernels::TokenRows k;  // Base null: left out.
  kernels::TokenRows v;
};

// Every function throws Error or std::bad_alloc; nothing has changed then, unless it is DEVICE.
class DebugAccess {
 public:
  explicit DebugAccess(CacheCore& core) : core_(core) {}

  // What calls check before they look at tensors. `action` is a verb for the message.
  void require_storage(const char* function) const;
  int32_t require_layer(int32_t layer) const;  // OUT_OF_RANGE; returns its local index.
  void require_idle(kvc_seq id, const char* action) const;
  void require_on_device(kvc_seq id, const char* action) const;
  // Tokens [begin, end) of a sequence on the device.
  void require_tokens(kvc_seq id, int64_t begin, int64_t end) const;

  // Reads are complete on return, and may run beside each other and beside a forward.
  void read_tokens(kvc_seq id, int64_t begin, int64_t end, const std::vector<LayerRows>& layers,
                   CallStream stream) const;
  void write_tokens(kvc_seq id, int64_t begin, int64_t count, const std::vector<LayerRows>& layers,
                    CallStream stream);
  void read_state(kvc_seq id, int32_t local_layer, int32_t state, const StateRows& out,
                  CallStream stream) const;
  void write_state(kvc_seq id, int32_t local_layer, int32_t state, const StateRows& value,
                   CallStream stream);

 private:
  void require_kept(const Sequence& sequence, int64_t begin, int64_t end,
                    const std::vector<LayerRows>& layers) const;
  void make_state_private(Sequence& sequence, CallStream stream);

  CacheCore& core_;
};

}  // namespace kvc
