// The open forward of a cache: its handle, begin, end and abort, and the calls on its layers and
// states in between.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/linear_params.h"
#include "kernels/params.h"
#include "kvcache.h"
#include "src/base/tensor.h"
#include "src/exec/attn_options.h"
#include "src/exec/engine.h"
#include "src/plan/spec.h"
#include "src/step/batch.h"
#include "src/step/forward.h"

namespace kvc {

class Cache;
struct CacheCore;
struct PageTable;

// Handles of forwards: numbers that are looked up in a table of the process, never dereferenced.
struct ForwardEntry;  // An entry of the table.

// The handle of a cache's open forward. A kvc_forward * is a number, not an address. It names the
// entry of its cache in the table, and a count that every forward of the entry increases. The entry
// says which handle is open, so a stale handle is recognised without touching freed memory. Entries
// of destroyed caches serve others and go on counting. An entry whose 2^35 forwards are used up,
// four days at one per 10 microseconds, is never used again, so that no number comes twice. The
// table grows with the caches that exist at once, and by these.
class ForwardHandle {
 public:
  // Takes an entry for the cache, which counts from `counted` on at least. Throws NO_MEMORY,
  // std::bad_alloc.
  explicit ForwardHandle(Cache* cache, uint64_t counted = 0);
  ~ForwardHandle();
  ForwardHandle(const ForwardHandle&) = delete;
  ForwardHandle& operator=(const ForwardHandle&) = delete;

  // Takes another entry where no forward is left in this one. Throws like the constructor.
  void prepare();
  // A forward begins, after prepare(); returns its handle.
  kvc_forward* open() noexcept;
  // The forward is over, and its handle stale.
  void close() noexcept;

  // The cache whose open forward this is; null for a stale handle and for a number that never was
  // one. Any thread may call it.
  static Cache* find(const kvc_forward* handle) noexcept;

 private:
  ForwardEntry* entry_;
};

// Kinds of layers that a call serves, as a set of bits.
constexpr uint32_t kind_bit(kvc_layer_kind kind) { return 1u << kind; }

// The stored tokens of one sequence in a layer's pages.
struct StoredTokens {
  const PageTable* table;
  kvc_seq seq;
  int64_t length;
  bool grows;  // The open forward adds to them.
  KeyLead lead;
  const PageTable* kept_table = nullptr;  // The layer's kept rows; null: it has none.
};

// One call on a layer of the open forward: attention, appending K and V, reading them back. Every
// function throws Error or std::bad_alloc. Lives for the duration of the call.
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

// One call on a recurrent state of the open forward's sequences. Every function throws Error or
// std::bad_alloc. Lives for the duration of the call.
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

// Every function throws Error or std::bad_alloc; nothing has changed then, unless it is DEVICE.
class CacheForward {
 public:
  // Borrows both. A handle that begin() returns leads to `cache`.
  CacheForward(Cache* cache, CacheCore& core) : core_(core), handle_(cache) {}

  kvc_forward* begin(const BatchRequest& request, GivenPositions given, const ForwardFlags& flags,
                     CallStream stream);
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
