// The operators on the CPU.
#pragma once

#include <cstdint>
#include <vector>

#include "kernels/cpu/table.h"
#include "src/base/executor.h"
#include "src/ops/operators.h"
#include "src/step/cos_sin.h"

namespace kvc {

class CpuOperators : public Operators {
 public:
  explicit CpuOperators(const OpRunner& runner);

  OpExtent check(const kernels::OpSequenceTensors& sequences) override;
  int64_t check(const kernels::OpStateTensors& states) override;
  void attend(const OpAttention& attention, const AttnOptions& options, const AttnTensors& tensors,
              const OpRotation& rotation) override;
  // Throws OUT_OF_RANGE for a slot beyond the pool.
  void append(const OpPool& pool, const kernels::TokenRows& k, const kernels::TokenRows& v,
              const int64_t* slots, int64_t num_rows, const OpRotation& rotation) override;
  void gather(const OpPool& pool, const kernels::OpSequenceTensors& sequences,
              const kernels::TokenRows& k_out, const kernels::TokenRows& v_out) override;
  // Throws OUT_OF_RANGE, INVALID_ARGUMENT, SHAPE.
  void copy_pages(const OpPool& pool, const int64_t* pairs, int64_t stride,
                  int64_t num_pairs) override;
  void rotate(const kernels::TokenRows& x, const kernels::TokenRows& out, int32_t num_heads,
              int32_t dim, int64_t num_rows, const OpRotation& rotation) override;
  void merge(const MergeCall& call) override;
  void linear(kernels::LinearParams params, const kernels::OpStateTensors& states) override;

 private:
  void check_paged(const kernels::OpSequenceTensors& sequences) const;
  void check_ragged(const kernels::OpSequenceTensors& sequences) const;
  // The visible keys of the rows of sequence `index`. Returns the first of them.
  int64_t add_sequence(const kernels::OpSequenceTensors& from, int32_t index, int64_t length);
  kernels::Rotation cos_sin_of(const OpRotation& rotation, int64_t num_rows);

  const kernels::cpu::KernelTable* kernels_;
  Executor executor_;
  TokenCosSin cos_sin_;
  // Of the sequences that were checked.
  int64_t num_rows_ = 0;
  std::vector<kernels::AttnSequence> sequences_;  // Sequences with rows.
  std::vector<int32_t> key_begins_;               // Rows with hidden keys.
  std::vector<int64_t> begin_offsets_;            // Per sequence, into key_begins_; -1: hides none.
  std::vector<kernels::LinearSequence> states_;
};

}  // namespace kvc
