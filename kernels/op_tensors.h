// What operators (kvc_op_*) are given: where the caller's tensors lie and how large they are. On a
// device the host has not read their numbers and cannot check them without waiting.
#pragma once

#include <cstddef>
#include <cstdint>

namespace kvc::kernels {

// The sequences of an attention. Paged keys come as page_indptr and page_indices (CSR) or as
// block_table (padded). Ragged keys come as key_indptr.
struct OpSequenceTensors {
  int32_t num_sequences;
  int64_t num_rows;            // Rows of q.
  const int32_t* row_indptr;   // Nullable, [num_sequences + 1]. Null: every sequence has one row.
  const int32_t* seq_lens;     // Paged: [num_sequences].
  const int32_t* key_indptr;   // Ragged: [num_sequences + 1].
  int64_t num_keys;            // Ragged: rows of k.
  const int32_t* page_indptr;  // CSR: [num_sequences + 1].
  const int32_t* page_indices;
  int64_t num_indices;
  const int32_t* block_table;  // Padded: row s begins at block_table + s * table_stride.
  int64_t table_stride;        // Entries.
  int64_t table_columns;
  int32_t page_size;
  int64_t num_pages;
  int64_t max_keys;  // Max keys of a sequence: the columns of a bias.
  int32_t full;      // 1: all keys are visible to every row.
  int64_t window;    // 0: none.
};

// The sequences of a recurrence: states at `states` + s * stride.
struct OpStateTensors {
  int32_t num_sequences;
  int64_t num_rows;
  const int32_t* row_indptr;  // Nullable: every sequence has one row.
  std::byte* states;
  int64_t stride;
};

}  // namespace kvc::kernels
