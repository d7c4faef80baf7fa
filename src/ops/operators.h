// The operators of kvcache.h over the host program's own memory: where they run, and what whoever
// runs them does.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/linear_params.h"
#include "kernels/op_tensors.h"
#include "kernels/params.h"
#include "kvcache.h"
#include "src/base/executor.h"
#include "src/base/tensor.h"
#include "src/exec/attn_options.h"
#include "src/exec/engine.h"
#include "src/exec/row_moves.h"
#include "src/plan/rope.h"
#include "src/step/cos_sin.h"

namespace kvc {

// Pools, page tables and rotations of the host program, checked and converted for operators.
struct OpPool {
  kernels::PagedRows k{};
  kernels::PagedRows v{};  // The K rows where V is part of K.
  bool is_mla = false;
  bool v_in_k = false;
  int64_t num_pages = 0;
  int32_t page_size = 0;
  int32_t num_heads = 0;
  int32_t k_dim = 0;
  int32_t v_dim = 0;

  int64_t num_slots() const { return num_pages * page_size; }
};

// `pool` has been read by the sized-struct rules. Throws a tensor status, INVALID_ARGUMENT,
// OUT_OF_RANGE or UNSUPPORTED.
OpPool view_pool(const kvc_op_pool& pool, DLDevice device = kHost);

// An append of rows to `slots`, K rotated by `rotation`.
kernels::AppendParams append_params(const OpPool& pool, const kernels::TokenRows& k,
                                    const kernels::TokenRows& v, const int64_t* slots,
                                    const kernels::Rotation& rotation);
// Rotating rows is an append to a pool of one page, where row t goes to slot t.
kernels::AppendParams rotate_params(const kernels::TokenRows& x, const kernels::TokenRows& out,
                                    int32_t num_heads, int32_t dim, const int64_t* slots,
                                    const kernels::Rotation& rotation);

// A page as few runs of bytes as its strides allow: one where it is compact.
struct PageRuns {
  int64_t outer_count, outer_stride;
  int64_t inner_count, inner_stride;
  int64_t bytes;
};

PageRuns runs_of(const kernels::PagedRows& rows, int64_t num_heads, int64_t page_size, int64_t dim);

// First row of each sequence and the end of the last, int32 [num_sequences + 1].
struct Indptr {
  const int32_t* data;
  int32_t num_sequences;
};
// num_sequences < 0: the tensor says how many. The numbers are not read. Throws a tensor status.
Indptr view_indptr(DLDevice device, const DLTensor* tensor, const char* name,
                   int64_t num_sequences);

// Page tables in either form. `table` has been read by the sized-struct rules. Checks which tensors
// there are and their extents; the numbers are not read. Throws INVALID_ARGUMENT or a tensor
// status.
kernels::OpSequenceTensors view_table(DLDevice device, const kvc_op_table& table,
                                      const OpPool& pool);

// RoPE of q, K or x.
struct OpRotation {
  RopeSpec rope;
  const int32_t* positions = nullptr;  // [rows]

  bool rotates() const { return rope.mode != KVC_ROPE_NONE; }
};

// Rotates elements [begin, begin + rotated_dim) of a row. `rope` (null: none) has been read by the
// sized-struct rules. Throws INVALID_ARGUMENT, OUT_OF_RANGE, UNSUPPORTED or a tensor status.
OpRotation view_rotation(const kvc_rope* rope, const DLTensor* positions, int32_t begin,
                         int32_t rotated_dim, int64_t num_rows, DLDevice device = kHost);

// The keys of one attention, and the shape of heads and rows.
struct OpAttention {
  LayerSpec shape;  // Heads, dims and latent_rank.
  kernels::PagedRows k;
  kernels::PagedRows v;
  int32_t page_size;
  kernels::OpSequenceTensors sequences;
};

// What the sequences of a call add up to.
struct OpExtent {
  int64_t num_rows;
  int64_t num_keys;
  int64_t longest;  // Keys of the longest sequence; 0: the host cannot know.
};

// One object per call: check(), then what was checked. Memory is secured before anything is
// written: a throw leaves outputs and pools as they were.
class Operators {
 public:
  virtual ~Operators() = default;

  // The CPU reads the numbers of the tensors and refuses bad ones by name. A device skips them
  // later. Throws OUT_OF_RANGE, SHAPE.
  virtual OpExtent check(const kernels::OpSequenceTensors& sequences) = 0;
  // Returns the rows. Throws INVALID_ARGUMENT.
  virtual int64_t check(const kernels::OpStateTensors& states) = 0;

  virtual void attend(const OpAttention& attention, const AttnOptions& options,
                      const AttnTensors& tensors, const OpRotation& rotation) = 0;
  virtual void append(const OpPool& pool, const kernels::TokenRows& k, const kernels::TokenRows& v,
                      const int64_t* slots, int64_t num_rows, const OpRotation& rotation) = 0;
  // An output without a base is left out.
  virtual void gather(const OpPool& pool, const kernels::OpSequenceTensors& sequences,
                      const kernels::TokenRows& k_out, const kernels::TokenRows& v_out) = 0;
  // Pair i is (from, to), at pairs + i * stride.
  virtual void copy_pages(const OpPool& pool, const int64_t* pairs, int64_t stride,
                          int64_t num_pairs) = 0;
  // `out` may be `x`.
  virtual void rotate(const kernels::TokenRows& x, const kernels::TokenRows& out, int32_t num_heads,
                      int32_t dim, int64_t num_rows, const OpRotation& rotation) = 0;
  virtual void merge(const MergeCall& call) = 0;
  // Fills in params.sequences.
  virtual void linear(kernels::LinearParams params, const kernels::OpStateTensors& states) = 0;
};

// The device of a call with `tensor` (nullable), which was found usable. Throws UNSUPPORTED,
// OUT_OF_RANGE, DEVICE.
DLDevice device_of_op(const DLTensor* tensor);

inline bool is_host(DLDevice device) { return device.device_type == kDLCPU; }

// What a call says about who runs it: CPU alone, but for the stream.
struct OpRunner {
  kvc_cpu_isa isa;
  const kvc_executor* executor;  // Null: the caller's thread alone.
  void* stream;
};
// Throws UNSUPPORTED (instruction set), INVALID_ARGUMENT.
std::unique_ptr<Operators> make_operators(DLDevice device, const OpRunner& runner);

}  // namespace kvc
