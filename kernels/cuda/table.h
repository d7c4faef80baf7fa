// The CUDA back end for the core: a table of functions without CUDA types.
// libkvcache_cuda.so exports it through kvc_cuda_backend. The core knows nothing of CUDA, and the
// back end knows nothing of caches.
//
// Rules of every function:
// - It makes `device` current and restores the previous device on return.
// - It synchronises only where its comment says "blocks".
// - It never throws.
// - A stream is a cudaStream_t; null is the legacy default stream.
// - A failed call has enqueued nothing, and `failure` (never null) says why.
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
  kNoDriver = 1,     // No driver, or one that is too old.
  kNoDevice = 2,     // No such device, or this build has no code for its architecture.
  kNoMemory = 3,     // Out of device or pinned memory.
  kUnsupported = 4,  // The driver or the device lacks a feature.
  kCapture = 5,      // A stream capture is under way that forbids the call.
  kDevice = 6        // Any other error. The context may be lost (sticky).
};
struct Failure {
  int32_t error;   // A cudaError_t or CUresult.
  char text[240];  // The failed call and CUDA's message.
};
using Stream = void*;
using Event = void*;

struct DeviceInfo {
  int32_t arch;  // 10 * compute capability.
  int32_t num_sms;
  int32_t shared_bytes;  // Max dynamic shared memory per CTA.
  int64_t granularity;   // Granularity of committed memory in bytes.
  uint64_t memory_bytes, memory_free_bytes;
  char name[64];
};

// The attention kernels. All compute what kernels::AttnParams says.
enum class AttnKernel : int32_t {
  kSimt = 0,   // Any type, dims and alignment; float32 arithmetic.
  kMma16 = 1,  // Mma.sync, 16 packed rows: decode.
  kMma64 = 2,  // Mma.sync, 64 packed rows.
  kWgmma = 3,  // Wgmma and TMA on sm_90a, 128 packed rows and more.
  kLatent = 4  // MLA on sm_90a: V is the beginning of the only K row.
};
constexpr int32_t kNumAttnKernels = 5;

// The tile shape and grid that a kernel is scheduled for.
struct AttnGeometry {
  int32_t tile_rows;
  int32_t key_block;
  int32_t num_ctas;   // CTAs of one full wave on the device.
  int32_t item_cost;  // Fixed cost of a work item, in key blocks.
};

// Maximum number of packed rows per KV head of a decode step. It is a q tile of the small kernels.
constexpr int32_t kSmallRows = 16;

// The shape of an attention call for the scheduler (schedule/schedule.h). Only sequences with
// min_rows < packed rows per KV head <= max_rows are scheduled.
struct ScheduleShape {
  int32_t num_kv_heads;
  int32_t group_size;  // Query heads per KV head.
  int32_t causal;
  int32_t split_sinks;  // 1: sink tokens get work items of their own, with sink_part = 1.
  // 0: the work is divided into equal shares. Otherwise keys are split at absolute multiples of
  // fixed_keys, whatever else is in the batch.
  int32_t fixed_keys;
  int32_t min_rows, max_rows;
  AttnGeometry geometry;
};
struct ScheduleLimits {
  int32_t max_sequences;
  int64_t max_rows;  // Token rows of a forward.
  int64_t max_keys;  // Keys of one sequence. Used with fixed_keys only.
  // Max shared prefixes per sequence (PrefixShare). 0: prefixes are not shared.
  int32_t max_prefixes = 0;
};
// Bytes that the arrays of a schedule need.
struct ScheduleBytes {
  int64_t counts, cta_begin, items, reductions, sources;
  int64_t scratch;
  int64_t num_splits;  // Number of partial results.
};
// The part of one entry of `sequences` in prefix sharing (src/exec/cuda/cascade.h). A shared prefix
// is one more entry of `sequences`: it has the rows of all its members (row_map) and the pages of
// the first member. Its keys are read once, and its splits are reduced together with those of its
// members. None of these sequences has a window or sink tokens. The limits count such entries as
// sequences, with their rows.
struct PrefixShare {
  // First key of this entry, where the prefix before it ends. A multiple of key_block.
  int32_t key_begin;
  int32_t key_end;       // > 0: the entry is a prefix and ends here, at a multiple of key_block.
  int32_t num_prefixes;  // Number of prefixes that this sequence is a member of.
  int32_t prefix[2];     // Entries of these prefixes, in the order of their keys.
  // Token row of each prefix that holds this sequence's row 0. The rows of one q tile of the
  // sequence lie in one q tile of the prefix.
  int32_t prefix_row[2];
};
struct ScheduleLaunch {
  ScheduleShape shape;
  ScheduleLimits limits;
  const kernels::AttnSequence* sequences;
  const int32_t* num_sequences_at;
  WorkSchedule schedule;
  void* scratch;
  const PrefixShare* shares = nullptr;  // One per entry of `sequences`. Null: no prefix is shared.
};

// Moves rows inside the pool, by pairs of slots. Pairs [first[i], first[i + 1]) run in order: a
// destination may be the source of a later pair. Pairs of different i touch different pages. With
// rotation.rotary_dim != 0, K is rotated by row 0 of the RoPE table on the way.
struct MoveParams {
  const PageRegion* layers;  // Unused where `rows` gives the address.
  kernels::PagedRows rows;   // K or V of one layer, with the base of head 0.
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

// Copies whole pages, or some regions of pages: region layers[l] from page from[i] to page to[i].
struct PageCopyParams {
  const PageRegion* from_layers;  // On the device.
  const PageRegion* to_layers;    // The same pool, or pinned host memory.
  int32_t num_layers;
  const int32_t* from;  // On the device. < 0: the pair is skipped.
  const int32_t* to;
  int64_t num_pairs;
  int32_t group;  // Only layers of this layer group. -1: all layers.
};

// Converts elements from one type to another, row by row. Without scatter, out[i][j] = in[rows ?
// rows[i] : i][j]. With scatter, out[rows[i]][j] = in[i][j].
struct ConvertParams {
  const std::byte* in;
  std::byte* out;
  int64_t in_stride, out_stride;  // Bytes between rows.
  kernels::DType in_type, out_type;
  const int32_t* rows;  // Nullable, on the device. -1: `fallback` is read.
  const std::byte* fallback;
  int32_t scatter;
  int64_t num_rows;
  const int32_t* num_rows_at;  // Nullable.
  int64_t num_elements;        // Elements per row.
};

// The sequences of a batch for the recurrent layers. Fills LinearSequence or ConvSequence (same
// fields) from StepState.
struct StateMetadataParams {
  StepState step;
  std::byte* states;         // State slot 0.
  int64_t slot_stride;       // Bytes.
  const std::byte* initial;  // Nullable: the initial state is zero.
  void* sequences;           // LinearSequence[S] or ConvSequence[S].
};

// Min rows of a sequence for which the recurrence uses the chunked kernel, where it can.
constexpr int64_t kLongSequence = 24;

struct BackendTable {
  uint32_t struct_size;
  const char* version;  // The core refuses a back end of another version.

  // ---- devices and memory
  Result (*count_devices)(int32_t* out, Failure*);
  Result (*query_device)(int32_t device, DeviceInfo* out, Failure*);
  // Reserves address space that is backed by memory piecewise. Addresses never move. commit is
  // idempotent and widens its range to whole granules.
  Result (*reserve)(int32_t device, int64_t bytes, void** address, Failure*);
  Result (*commit)(int32_t device, void* address, int64_t begin, int64_t end, Failure*);
  Result (*discard)(int32_t device, void* address, int64_t begin, int64_t end,
                    Failure*);  // Discards the whole granules inside the range. Blocks.
  void (*release)(int32_t device, void* address);  // Blocks until the device is idle.
  // The memory is 256-byte aligned. May block.
  Result (*allocate)(int32_t device, int64_t bytes, void** address, Failure*);
  void (*free)(int32_t device, void* address);  // May block.
  // Allocates and frees in the order of `stream`, from a memory pool of the library that keeps
  // freed memory. Neither call waits. Uses of the memory on other streams must be ordered after the
  // allocation and before the free. During a capture of the stream both calls become nodes of the
  // graph, and the memory belongs to the graph. A device without memory pools gets plain memory:
  // the call may block, and it fails during a capture.
  Result (*allocate_on)(int32_t device, int64_t bytes, Stream, void** address, Failure*);
  void (*free_on)(int32_t device, void* address, Stream);
  // Frees memory of allocate_on once the device has finished all uses of it.
  void (*free_idle)(int32_t device, void* address);
  // Returns the pool's unused memory to the device. May block.
  void (*trim)(int32_t device);
  Result (*allocate_pinned)(int64_t bytes, void** address,
                            Failure*);  // The device reads the memory at the same address.
  void (*free_pinned)(void* address);
  // Sets *device to the device that holds `address`, to -1 for pinned or registered host memory, or
  // to -2 for memory that CUDA does not know.
  Result (*locate)(const void* address, int32_t* device, Failure*);

  // ---- streams and events
  Result (*create_stream)(int32_t device, Stream* out, Failure*);  // The stream is non-blocking.
  void (*destroy_stream)(int32_t device, Stream);
  Result (*synchronize)(int32_t device, Stream, Failure*);  // Blocks.
  Result (*is_capturing)(int32_t device, Stream, int32_t* out, Failure*);
  Result (*create_event)(int32_t device, Event* out, Failure*);
  void (*destroy_event)(int32_t device, Event);
  Result (*record_event)(int32_t device, Event, Stream, Failure*);
  // Adds the event to the stream's capture: every launch of the graph records it.
  Result (*record_launches)(int32_t device, Event, Stream, Failure*);
  // The stream waits; the caller does not.
  Result (*wait_event)(int32_t device, Event, Stream, Failure*);
  Result (*query_event)(int32_t device, Event, int32_t* done, Failure*);

  // ---- copies
  Result (*copy)(int32_t device, void* to, const void* from, int64_t bytes, Stream,
                 Failure*);  // Any direction.
  // Many copies in one call. Sources are read in stream order.
  Result (*copy_many)(int32_t device, void* const* to, const void* const* from, const size_t* bytes,
                      int64_t count, Stream, Failure*);
  Result (*fill)(int32_t device, void* to, int32_t byte, int64_t bytes, Stream, Failure*);

  // ---- kernels
  Result (*step)(int32_t device, const StepState&, const StepPages&, Stream, Failure*);
  Result (*batch_metadata)(int32_t device, const BatchMetadataParams&, int32_t max_sequences,
                           Stream, Failure*);
  Result (*state_metadata)(int32_t device, const StateMetadataParams&, int32_t max_sequences,
                           Stream, Failure*);
  Result (*cos_sin)(int32_t device, const CosSinParams&, Stream, Failure*);
  void (*schedule_bytes)(const ScheduleShape&, const ScheduleLimits&,
                         ScheduleBytes* out);  // Host only.
  Result (*schedule)(int32_t device, const ScheduleLaunch&, Stream, Failure*);
  // Whether a kernel supports a launch on this device. `why` (nullable) gets the reason, a literal.
  // Host only.
  bool (*attention_fits)(int32_t device, AttnKernel, const AttnLaunch&, const char** why);
  AttnGeometry (*attention_geometry)(int32_t device, AttnKernel, int32_t k_dim, int32_t v_dim);
  Result (*attention)(int32_t device, AttnKernel, const AttnLaunch&, Stream, Failure*);
  Result (*reduce_splits)(int32_t device, const AttnLaunch&, Stream,
                          Failure*);  // Reduces the splits of launch.schedule.
  Result (*append)(int32_t device, const AppendLaunch&, Stream, Failure*);
  Result (*gather)(int32_t device, const kernels::GatherParams&, const RowStorage&,
                   int64_t key_begin, int64_t key_end, Stream, Failure*);
  Result (*merge_states)(int32_t device, const kernels::MergeParams&, int64_t num_rows,
                         const int32_t* num_rows_at, Stream, Failure*);
  Result (*copy_pages)(int32_t device, const PageCopyParams&, Stream, Failure*);
  Result (*move_rows)(int32_t device, const MoveParams&, Stream, Failure*);
  Result (*convert)(int32_t device, const ConvertParams&, Stream, Failure*);
  // num_sequences_at is as in AppendLaunch. num_long is the number of sequences with kLongSequence
  // rows or more, for which CTAs are launched. A wrong number only costs time; with 0 every
  // sequence is processed token by token.
  Result (*linear)(int32_t device, const kernels::LinearParams&, int32_t max_sequences,
                   const int32_t* num_sequences_at, int32_t num_long, Stream, Failure*);
  // Sequences lie in the order of their rows, all of which are below num_rows.
  Result (*conv)(int32_t device, const kernels::ConvParams&, int32_t max_sequences,
                 const int32_t* num_sequences_at, int64_t num_rows, Stream, Failure*);

  // ---- metadata of operators, see op.h
  Result (*op_sequences)(int32_t device, const OpSequencesParams&, Stream, Failure*);
  Result (*op_states)(int32_t device, const OpStatesParams&, Stream, Failure*);
  Result (*op_pairs)(int32_t device, const OpPairsParams&, Stream, Failure*);
  Result (*op_slots)(int32_t device, const OpSlotsParams&, Stream, Failure*);
  Result (*op_constants)(int32_t device, const OpConstantsParams&, Stream, Failure*);
};

}  // namespace kvc::cuda

// The only symbol of libkvcache_cuda.so.
extern "C" const kvc::cuda::BackendTable* kvc_cuda_backend(void);
