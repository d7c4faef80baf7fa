// The kernels in readable double precision, straight from the formulas of params.h: the oracle of
// every other back end.
#pragma once

#include "kernels/linear_params.h"
#include "kernels/params.h"

namespace kvc::kernels::reference {

// Any number of rows; scratch: attention_scratch_bytes.
void attention(const AttnParams& params, const AttnItem& item, void* scratch);
size_t attention_scratch_bytes(const AttnParams& params, int64_t max_rows);
void merge_splits(const AttnParams& params, const AttnMergeGroup& group);

uint64_t append(const AppendParams& params, int64_t row_begin, int64_t row_end);
void gather(const GatherParams& params, int64_t key_begin, int64_t key_end);
void merge(const MergeParams& params, int64_t row_begin, int64_t row_end);
void copy(std::byte* to, const std::byte* from, size_t bytes);

void linear(const LinearParams& params, int32_t sequence, int32_t head_begin, int32_t head_end,
            void* scratch);
size_t linear_scratch_bytes(const LinearParams& params, int64_t max_rows);
void conv(const ConvParams& params, int32_t sequence, int32_t channel_begin, int32_t channel_end,
          void* scratch);
size_t conv_scratch_bytes(const ConvParams& params);

// Element `index` of a head after rotation by row `rotation_row`, read from a row that is not
// rotated yet.
double rotated_element(const std::byte* row, DType dtype, const Rotation& rotation,
                       int64_t rotation_row, int64_t index);

}  // namespace kvc::kernels::reference
