// The operators of kvcache.h over the host program's own memory: where they run, and what whoever
// runs them does.
#pragma once

#include <cstdint>
#include <memory>

#include "kernels/linear_params.h"
#include "kernels/op_tensors.h"
#include "kernels/params.h"
#include "src/exec/engine.h"
#include "src/exec/options.h"
#include "src/exec/row_moves.h"
#include "src/ops/inputs.h"

namespace kvc {

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
