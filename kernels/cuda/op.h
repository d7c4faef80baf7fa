// What operators (kvc_op_*) find in the caller's tensors on the device, as kernels read it. The
// host has not seen these numbers and cannot check them without waiting: whatever lies outside of
// what the shapes of the tensors allow is left out here, so that no kernel behind reads or writes
// beside them.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/target.h"
#include "kernels/params.h"

namespace kvc::cuda {

struct StepPageSlot;

// Makes kernels::AttnSequence. Paged keys: tables by page_indptr and page_indices (CSR) or as
// block_table (padded). Ragged keys: key_indptr, one "page" per sequence whose number is its first
// row.
//
// A sequence sees nothing where its length, its place in the tables or one of the page ids that its
// rows see is outside, or where a causal one has more rows than keys. Where row_indptr does not
// ascend within num_rows, no sequence has rows.
struct OpSequencesParams {
  int32_t num_sequences;
  int64_t num_rows;            // of q
  const int32_t* row_indptr;   // nullable [num_sequences + 1]: without it a row each
  const int32_t* seq_lens;     // paged: [num_sequences]
  const int32_t* key_indptr;   // ragged: [num_sequences + 1]
  int64_t num_keys;            // ragged: rows of k
  const int32_t* page_indptr;  // CSR: [num_sequences + 1]
  const int32_t* page_indices;
  int64_t num_indices;
  const int32_t* block_table;  // padded: row s at block_table + s * table_stride
  int64_t table_stride;        // entries
  int64_t table_columns;
  int32_t page_size;
  int64_t num_pages;
  int64_t max_keys;  // of a sequence: what a bias has columns for
  int32_t full;      // 1: every row sees all keys
  int64_t window;    // 0: none
  kernels::AttnSequence* sequences;
  int32_t* key_begins;  // [num_rows], with a window
  int32_t* key_ends;    // [num_rows], of sequences that see nothing
  int32_t* count;       // [1] for the planner: num_sequences
};

// Makes kernels::LinearSequence out of states that lie at `states` + s * stride. Where row_indptr
// does not ascend within num_rows no sequence has rows.
struct OpStatesParams {
  int32_t num_sequences;
  int64_t num_rows;
  const int32_t* row_indptr;  // nullable: a row each
  std::byte* states;
  int64_t stride;
  void* sequences;  // LinearSequence[num_sequences]
};

// Pairs of pages for copy_pages; one with an id outside of the pool is left out. Parts of a page:
// outer x inner runs of `bytes`.
struct OpPairsParams {
  const int64_t* pairs;  // pair i is (from, to) at pairs + i * stride
  int64_t stride;        // elements
  int64_t num_pairs;
  int64_t num_pages;
  int32_t* from;
  int32_t* to;
  struct Half {
    std::byte* base;  // null: none
    int64_t page_stride;
    int64_t outer_count, outer_stride;
    int64_t inner_count, inner_stride;
    int64_t bytes;
  } halves[2];
  StepPageSlot* layers;  // [runs of both halves]
};

// 0, 1, 2, … : rows that go where they came from.
struct OpSlotsParams {
  int64_t* slots;
  int64_t num_slots;
};

// A few numbers of the host's, in a kernel's parameters: they need no copy that a graph would
// repeat from memory that is gone.
constexpr int32_t kMaxOpConstants = 288;
struct OpConstantsParams {
  double* to;
  int32_t count;
  double values[kMaxOpConstants];
};

}  // namespace kvc::cuda
