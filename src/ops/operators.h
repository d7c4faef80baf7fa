// The operators on the CPU: kernels over the host program's own memory. Nothing outlives a call.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/table.h"
#include "src/base/executor.h"
#include "src/exec/engine.h"
#include "src/exec/options.h"
#include "src/exec/row_moves.h"
#include "src/ops/inputs.h"
#include "src/step/token_cos_sin.h"

namespace kvc {

// The visible keys of the rows of every sequence. A move keeps the addresses inside.
class OpSequences {
 public:
  // With `full` every row attends to all keys. Otherwise row i of n attends to the keys up to
  // length - n + i, and with a window W >= 1 to the last W of them.
  OpSequences(bool full, int64_t window) : full_(full), window_(window) {}

  // Adds sequence `index` of the call, and returns the first key visible to its rows. Messages name
  // the argument with its length `name`. Throws OUT_OF_RANGE when a causal sequence has more rows
  // than keys.
  int64_t add(int32_t index, const char* name, const int32_t* pages, int64_t row_begin,
              int64_t num_rows, int64_t length);

  const std::vector<kernels::AttnSequence>& finish();
  bool full() const { return full_; }

 private:
  bool full_;
  int64_t window_;
  std::vector<kernels::AttnSequence> sequences_;  // Sequences with rows.
  std::vector<int32_t> key_begins_;               // Rows with hidden keys.
  std::vector<int64_t> begin_offsets_;            // Per sequence, into key_begins_; -1: hides none.
};

// The keys of one attention, and the shape of heads and rows.
struct OpAttention {
  LayerSpec shape;  // Heads, dims and latent_rank.
  kernels::PagedRows k;
  kernels::PagedRows v;
  int32_t page_size;
  OpSequences sequences;
};

// One object per call. Memory is secured before anything is written: a throw leaves outputs and
// pools as they were.
class Operators {
 public:
  // `host` null: runs on the caller's thread alone. Throws UNSUPPORTED (instruction set) or
  // INVALID_ARGUMENT.
  Operators(kvc_cpu_isa isa, const kvc_executor* host);

  void attend(OpAttention& attention, const AttnOptions& options, const AttnTensors& tensors,
              const OpRotation& rotation, int64_t num_rows);
  // Throws OUT_OF_RANGE for a slot beyond the pool.
  void append(const OpPool& pool, const kernels::TokenRows& k, const kernels::TokenRows& v,
              const int64_t* slots, int64_t num_rows, const OpRotation& rotation);
  // An output without a base is left out. The table's pages have been checked.
  void gather(const OpPool& pool, const OpTable& table, const kernels::TokenRows& k_out,
              const kernels::TokenRows& v_out);
  // Pair i is (from, to), at pairs + i * stride. Throws OUT_OF_RANGE or INVALID_ARGUMENT.
  void copy_pages(const OpPool& pool, const int64_t* pairs, int64_t stride, int64_t num_pairs);
  // `out` may be `x`.
  void rotate(const kernels::TokenRows& x, const kernels::TokenRows& out, int32_t num_heads,
              int32_t dim, int64_t num_rows, const OpRotation& rotation);
  void merge(const MergeCall& call) { run_merge(*kernels_, executor_, call.params, call.num_rows); }

 private:
  kernels::Rotation cos_sin_of(const OpRotation& rotation, int64_t num_rows);

  const kernels::cpu::KernelTable* kernels_;
  Executor executor_;
  TokenCosSin cos_sin_;
};

}  // namespace kvc
