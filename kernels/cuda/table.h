// The CUDA back end as the core sees it: a table of functions without CUDA types, found in
// libkvcache_cuda.so (kvc_cuda_backend). The core knows nothing of CUDA, the back end nothing of
// caches.
//
// Every function makes `device` current and restores what was current before; none synchronises but
// those that say so; none throws. Streams are cudaStream_t, null: the legacy default stream. A
// failed call has enqueued nothing and `failure` (never null) says why.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cuda/op.h"
#include "kernels/cuda/step.h"
#include "kernels/cuda/work.h"
#include "kernels/linear_params.h"
#include "kernels/params.h"

namespace kvc::cuda {

enum class Result : int32_t {
  kOk = 0,
  kNoDriver = 1,     // no driver, or one too old
  kNoDevice = 2,     // no such device, or an architecture without code in this build
  kNoMemory = 3,     // of the device, or pinned
  kUnsupported = 4,  // the driver or the device cannot do it
  kCapture = 5,      // a stream capture is under way that forbids it
  kDevice = 6        // anything else; the context may be lost (sticky)
};
struct Failure {
  int32_t error;   // cudaError_t or CUresult
  char text[240];  // what was called and what CUDA says of it
};
using Stream = void*;
using Event = void*;

struct DeviceInfo {
  int32_t arch;  // 10 * compute capability
  int32_t num_sms;
  int32_t shared_bytes;  // that a CTA can have
  int64_t granularity;   // of committed memory
  uint64_t memory_bytes, memory_free_bytes;
  char name[64];
};

// Which kernel does an attention launch. All compute what kernels::AttnParams says.
enum class AttnKernel : int32_t {
  kSimt = 0,   // any type, dims and alignment, float32 arithmetic
  kMma16 = 1,  // mma.sync, 16 packed rows: decode
  kMma64 = 2,  // mma.sync, 64 packed rows
  kWgmma = 3,  // wgmma and TMA, sm_90a, 128 packed rows and more
  kLatent = 4  // MLA: V is the beginning of the only K row, sm_90a
};
constexpr int32_t kNumAttnKernels = 5;

// How a kernel wants its work cut.
struct AttnGeometry {
  int32_t tile_rows;
  int32_t key_block;
  int32_t num_ctas;   // a whole wave on the device
  int32_t item_cost;  // what an item costs beside its key blocks, in key blocks
};

// Packed rows per kv head up to which a sequence counts as a decode step: a tile of the small
// kernels.
constexpr int32_t kSmallRows = 16;

// See planner/plan.h. Only sequences with min_rows < packed rows per kv head <= max_rows are
// planned.
struct PlanShape {
  int32_t num_kv_heads;
  int32_t group_size;  // query heads per kv head
  int32_t causal;
  int32_t split_sinks;  // sinks are items of their own, sink_part = 1
  // 0: equal shares of the work; else cuts at absolute multiples of so many keys, whatever else is
  // in the batch
  int32_t fixed_keys;
  int32_t min_rows, max_rows;
  AttnGeometry geometry;
};
struct PlanLimits {
  int32_t max_sequences;
  int64_t max_rows;          // token rows of a forward
  int64_t max_keys;          // of a sequence; matters with fixed_keys only
  int32_t max_prefixes = 0;  // that a sequence is a member of (PlanShare); 0: none are shared
};
// Bytes that a plan needs.
struct PlanBytes {
  int64_t counts, cta_begin, items, merges, sources;
  int64_t scratch;
  int64_t num_slots;  // partial slots
};
// A prefix that several sequences share (src/exec/cuda/cascade.h) is one more entry of `sequences`,
// with the rows of all members (row_map) and the first member's pages: its keys are read once, and
// its results are parts of the members'. No windows or sinks in any of these. The limits count
// entries as sequences, with their rows.
struct PlanShare {
  // The entry's or member's keys begin here, where the prefix before it ends: a multiple of
  // key_block
  int32_t key_begin;
  int32_t key_end;       // > 0: this is a prefix, and ends here: a multiple of key_block
  int32_t num_prefixes;  // that this sequence is a member of
  int32_t prefix[2];     // their entries, by key
  int32_t prefix_row
      // Token row there that is this sequence's row 0; rows of one of its tiles lie in one tile
      // there
      [2];
};
struct PlanLaunch {
  PlanShape shape;
  PlanLimits limits;
  const kernels::AttnSequence* sequences;
  const int32_t* num_sequences_at;
  WorkPlan plan;
  void* scratch;
  const PlanShare* shares = nullptr;  // one for each of `sequences`
};

// Rows moved inside the pool, by pairs of slots. Pairs [first[i], first[i + 1]) follow each other
// in order (a destination may be a later pair's source); different i touch different pages.
// rotation.rotary_dim != 0: K turns on the way, row 0 of the angles.
struct MoveParams {
  const StepPageSlot* layers;  // unused where rows say it
  kernels::PagedRows rows;     // one half of one layer, base of head 0
  RowStorage storage;
  int32_t page_size;
  int32_t num_heads;
  int32_t dim;
  kernels::Rotation rotation;
  const int64_t* from;  // [first[num_lists]]
  const int64_t* to;
  const int64_t* first;  // [num_lists + 1]
  int32_t num_lists;
  int64_t num_pairs;
};

// Whole pages, or slots of pages: piece i of layers[l] from page from[i] to page to[i].
struct PageCopyParams {
  const StepPageSlot* from_layers;  // device
  const StepPageSlot* to_layers;    // the same pool, or pinned host memory
  int32_t num_layers;
  const int32_t* from;  // device; < 0: the pair is left out
  const int32_t* to;
  int64_t num_pairs;
  int32_t group;  // only layers of this group; -1: all
};

// Elements of one type into another, row by row: out[i][j] = in[rows ? rows[i] : i][j], or
// out[rows[i]][j] = in[i][j] when scatter.
struct ConvertParams {
  const std::byte* in;
  std::byte* out;
  int64_t in_stride, out_stride;  // bytes between rows
  kernels::DType in_type, out_type;
  const int32_t* rows;  // nullable, device; -1: `fallback` is read
  const std::byte* fallback;
  int32_t scatter;
  int64_t num_rows;
  const int32_t* num_rows_at;  // nullable
  int64_t num_elements;        // of a row
};

// Sequences of a step for the recurrence: fills LinearSequence or ConvSequence (same fields) from
// StepState.
struct StateViewParams {
  StepState step;
  std::byte* states;         // slot 0 of this state
  int64_t slot_stride;       // bytes
  const std::byte* initial;  // nullable: zeros
  void* sequences;           // LinearSequence[S] or ConvSequence[S]
};

// Rows of a sequence from which on the recurrence goes by chunks, where it can.
constexpr int64_t kLongSequence = 24;

struct BackendTable {
  uint32_t struct_size;
  const char* version;  // equals the core's, else the core refuses it

  // ---- devices and memory
  Result (*count_devices)(int32_t* out, Failure*);
  Result (*query_device)(int32_t device, DeviceInfo* out, Failure*);
  // Address space on a device that is backed by memory piece by piece; addresses never move. commit
  // is idempotent and widens to granules.
  Result (*reserve)(int32_t device, int64_t bytes, void** address, Failure*);
  Result (*commit)(int32_t device, void* address, int64_t begin, int64_t end, Failure*);
  Result (*discard)(int32_t device, void* address, int64_t begin, int64_t end,
                    Failure*);                     // whole granules inside; blocks
  void (*release)(int32_t device, void* address);  // blocks until the device is idle
  // 256-byte aligned; may block
  Result (*allocate)(int32_t device, int64_t bytes, void** address, Failure*);
  void (*free)(int32_t device, void* address);  // may block
  // In the order of `stream`, out of a pool of the library's own that keeps what is given back:
  // neither call waits. What other streams do with the memory has to be ordered behind the
  // allocation and before the end. While the stream is captured both are nodes of the graph, and
  // the memory is the graph's own. A device without memory pools gets plain memory, which may
  // block, and none in a capture.
  Result (*allocate_on)(int32_t device, int64_t bytes, Stream, void** address, Failure*);
  void (*free_on)(int32_t device, void* address, Stream);
  // Of allocate_on; the device is done with all uses
  void (*free_idle)(int32_t device, void* address);
  // Gives the device back what the pool keeps and nobody has; may block
  void (*trim)(int32_t device);
  Result (*allocate_pinned)(int64_t bytes, void** address,
                            Failure*);  // the device reads it at the same address
  void (*free_pinned)(void* address);
  // Where `address` lies: a device's number, -1: pinned or registered host memory, -2: memory that
  // CUDA does not know.
  Result (*locate)(const void* address, int32_t* device, Failure*);

  // ---- streams and events
  Result (*create_stream)(int32_t device, Stream* out, Failure*);  // non-blocking
  void (*destroy_stream)(int32_t device, Stream);
  Result (*synchronize)(int32_t device, Stream, Failure*);  // blocks
  Result (*is_capturing)(int32_t device, Stream, int32_t* out, Failure*);
  Result (*create_event)(int32_t device, Event* out, Failure*);
  void (*destroy_event)(int32_t device, Event);
  Result (*record_event)(int32_t device, Event, Stream, Failure*);
  // Into the capture of the stream: every launch of its graph records the event.
  Result (*record_launches)(int32_t device, Event, Stream, Failure*);
  // The stream waits, the caller does not
  Result (*wait_event)(int32_t device, Event, Stream, Failure*);
  Result (*query_event)(int32_t device, Event, int32_t* done, Failure*);

  // ---- copies
  Result (*copy)(int32_t device, void* to, const void* from, int64_t bytes, Stream,
                 Failure*);  // any direction
  // One call for many pieces; sources are read in the order of the stream.
  Result (*copy_many)(int32_t device, void* const* to, const void* const* from, const size_t* bytes,
                      int64_t count, Stream, Failure*);
  Result (*fill)(int32_t device, void* to, int32_t byte, int64_t bytes, Stream, Failure*);

  // ---- kernels
  Result (*step)(int32_t device, const StepState&, const StepPages&, Stream, Failure*);
  Result (*view)(int32_t device, const ViewParams&, int32_t max_sequences, Stream, Failure*);
  Result (*state_view)(int32_t device, const StateViewParams&, int32_t max_sequences, Stream,
                       Failure*);
  Result (*angles)(int32_t device, const AngleParams&, Stream, Failure*);
  void (*plan_bytes)(const PlanShape&, const PlanLimits&, PlanBytes* out);  // host only
  Result (*plan)(int32_t device, const PlanLaunch&, Stream, Failure*);
  // Whether a kernel can do a launch on this device; `why` (nullable) gets the reason, a literal.
  // Host only.
  bool (*attention_fits)(int32_t device, AttnKernel, const AttnLaunch&, const char** why);
  AttnGeometry (*attention_geometry)(int32_t device, AttnKernel, int32_t k_dim, int32_t v_dim);
  Result (*attention)(int32_t device, AttnKernel, const AttnLaunch&, Stream, Failure*);
  Result (*combine)(int32_t device, const AttnLaunch&, Stream, Failure*);  // the plan's merges
  Result (*append)(int32_t device, const AppendLaunch&, Stream, Failure*);
  Result (*gather)(int32_t device, const kernels::GatherParams&, const RowStorage&,
                   int64_t key_begin, int64_t key_end, Stream, Failure*);
  Result (*merge)(int32_t device, const kernels::MergeParams&, int64_t num_rows,
                  const int32_t* num_rows_at, Stream, Failure*);
  Result (*copy_pages)(int32_t device, const PageCopyParams&, Stream, Failure*);
  Result (*move_rows)(int32_t device, const MoveParams&, Stream, Failure*);
  Result (*convert)(int32_t device, const ConvertParams&, Stream, Failure*);
  // num_sequences_at as in AppendLaunch. num_long: sequences of kLongSequence rows or more, whose
  // work is started; a wrong number costs time and nothing else, with 0 all go token by token.
  Result (*linear)(int32_t device, const kernels::LinearParams&, int32_t max_sequences,
                   const int32_t* num_sequences_at, int32_t num_long, Stream, Failure*);
  // Sequences lie in the order of their rows, all of which are below num_rows.
  Result (*conv)(int32_t device, const kernels::ConvParams&, int32_t max_sequences,
                 const int32_t* num_sequences_at, int64_t num_rows, Stream, Failure*);

  // ---- what operators are given, see op.h
  Result (*op_sequences)(int32_t device, const OpSequencesParams&, Stream, Failure*);
  Result (*op_states)(int32_t device, const OpStatesParams&, Stream, Failure*);
  Result (*op_pairs)(int32_t device, const OpPairsParams&, Stream, Failure*);
  Result (*op_slots)(int32_t device, const OpSlotsParams&, Stream, Failure*);
  Result (*op_constants)(int32_t device, const OpConstantsParams&, Stream, Failure*);
};

}  // namespace kvc::cuda

// The only symbol of libkvcache_cuda.so.
extern "C" const kvc::cuda::BackendTable* kvc_cuda_backend(void);
