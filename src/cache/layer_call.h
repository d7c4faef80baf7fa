// One call on a layer of the open forward: attention, appending K and V, reading them back.
#pragma once

#include <cstdint>
#include <vector>

#include "kvcache.h"
#include "src/base/tensor.h"
#include "src/exec/engine.h"
#include "src/exec/options.h"
#include "src/plan/spec.h"

namespace kvc {

struct CacheCore;
struct PageTable;

// Kinds of layers that a call serves, as a set of bits.
constexpr uint32_t kind_bit(kvc_layer_kind kind) { return 1u << kind; }

// The stored tokens of one sequence in a layer's pages.
struct StoredTokens {
  const PageTable* table;
  kvc_seq seq;
  int64_t length;
  bool grows;  // The open forward adds to them.
  KeyLead lead;
};

// Every function throws Error or std::bad_alloc. Lives for the duration of the call.
class LayerCall {
 public:
  // Throws OUT_OF_RANGE, INVALID_STATE for a layer of another kind, UNSUPPORTED for a cache without
  // tensor memory and for layers that no kernel here reads. `function` is named in messages.
  LayerCall(CacheCore& core, int32_t id, const char* function, uint32_t kinds);

  int32_t id() const { return id_; }
  // Of the layer that keeps the rows; the layer itself unless it is SHARED.
  int32_t source_id() const { return source_id_; }
  DLDevice device() const { return device_; }
  bool is_cross() const { return layer.kind == KVC_LAYER_CROSS; }
  // New tokens of the batch, and encoder tokens that it announced.
  int64_t num_rows() const { return num_rows_; }
  int64_t num_cross_rows() const;
  // Keys of the longest sequence, its new tokens included.
  int64_t max_num_keys() const;
  void read_spans(const DLTensor* spans, std::vector<Span>* out) const;

  // A call without new K and V reads slots that were filled before in this forward; throws
  // INVALID_STATE where they were not.
  void require_appended() const;
  // Appends K and V first when they are given.
  void attend(KeyScope scope, const AttnOptions& options, const AttnTensors& tensors,
              bool is_mla_self = false);
  void append(const kernels::TokenRows& k, const kernels::TokenRows& v);
  // Throws NOT_FOUND; INVALID_STATE for a sequence on the host.
  StoredTokens stored_tokens(kvc_seq seq) const;
  // All rows of these tokens. `k` and `v`: base null where the caller wants none. Throws
  // OUT_OF_RANGE for tokens that a window dropped, INVALID_STATE for tokens not appended yet.
  void gather(const StoredTokens& tokens, const kernels::TokenRows& k, const kernels::TokenRows& v);

  LayerSpec layer;  // With heads and dims as the caller of this call has them.

 private:
  bool has_new_rows_written() const;

  CacheCore& core_;
  int32_t id_;
  int32_t local_;
  int32_t source_id_ = 0;
  int64_t num_rows_ = 0;
  DLDevice device_{};
};

}  // namespace kvc
