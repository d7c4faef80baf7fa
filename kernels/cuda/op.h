// The parameters of kernels that read the caller's tensors of operators (kvc_op_*). The host has
// not read these numbers and cannot check them without waiting. These kernels skip whatever exceeds
// the shapes of the tensors, so that no later kernel accesses memory out of bounds.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/op_tensors.h"
#include "kernels/params.h"
#include "kernels/target.h"

namespace kvc::cuda {

struct PageRegion;

// Makes kernels::AttnSequence. Of ragged keys each sequence has one "page" whose number is its
// first row.
//
// A sequence has no keys in these cases:
// - its length, its offset in the tables or a visible page id is out of range;
// - it is causal and has more rows than keys.
// Where row_indptr does not ascend within num_rows, no sequence has rows.
struct OpSequencesParams : kernels::OpSequenceTensors {
  kernels::AttnSequence* sequences;
  int32_t* key_begins;  // [num_rows], with a window.
  int32_t* key_ends;    // [num_rows], of sequences that see no key.
  int32_t* count;       // [1], for the scheduler: num_sequences.
};

// Makes kernels::LinearSequence. Where row_indptr does not ascend within num_rows, no sequence has
// rows.
struct OpStatesParams : kernels::OpStateTensors {
  void* sequences;  // LinearSequence[num_sequences].
};

// Pairs of pages for copy_pages. A pair with an id outside of the pool is skipped. A page consists
// of outer x inner runs of `bytes`.
struct OpPairsParams {
  const int64_t* pairs;  // Pair i is (from, to) at pairs + i * stride.
  int64_t stride;        // Elements.
  int64_t num_pairs;
  int64_t num_pages;
  int32_t* from;
  int32_t* to;
  struct Half {
    std::byte* base;  // Null: none.
    int64_t page_stride;
    int64_t outer_count, outer_stride;
    int64_t inner_count, inner_stride;
    int64_t bytes;
  } halves[2];
  PageRegion* layers;  // [runs of K and V]
};

// Writes the slots 0, 1, 2, ... of rows that go where they came from.
struct OpSlotsParams {
  int64_t* slots;
  int64_t num_slots;
};

// A few numbers of the host, passed in the kernel's parameters. They need no copy that a graph
// would repeat from memory that is gone by then.
constexpr int32_t kMaxOpConstants = 288;
struct OpConstantsParams {
  double* to;
  int32_t count;
  double values[kMaxOpConstants];
};

}  // namespace kvc::cuda
