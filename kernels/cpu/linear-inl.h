// Linear attention of one sequence: one token by linear_step-inl.h, more by linear_chunk-inl.h.
// Included by the isa_<name>.cc files after a vec_<isa>.h. Which way is taken depends on the
// sequence's tokens alone, so a head's results depend on nothing but its own inputs.
#pragma once

#include <cstddef>
#include <cstdint>

#include "kernels/cpu/linear_chunk-inl.h"
#include "kernels/cpu/linear_step-inl.h"

namespace kvc::kernels::cpu {
namespace {

// Heads of one q and k head that go through a chunk together: they share its dot products, and
// their states a core's cache.
constexpr int64_t kHeadsTogether = 4;

struct LinearScratch {
  StepRows step;
  ChunkScratch chunk;
  float* states;  // [kHeadsTogether][k_dim][v_padded]
};

inline LinearScratch allocate_linear(const LinearParams& params, int64_t max_rows,
                                     ScratchCursor& cursor) {
  LinearScratch scratch = {};
  scratch.step = allocate_step(params, cursor);
  if (max_rows <= 1) return scratch;
  scratch.chunk = allocate_chunk(params, cursor);
  scratch.states =
      take_array<float>(cursor, kHeadsTogether * params.k_dim * scratch.chunk.v_padded);
  return scratch;
}

// The state of one head between memory and [k_dim][v_padded] floats.
inline void load_state(const LinearParams& params, const std::byte* from, float* to,
                       int64_t v_padded) {
  for (int64_t i = 0; i < params.k_dim; ++i) {
    float* row = to + i * v_padded;
    if (from == nullptr) {
      __builtin_memset(row, 0, static_cast<size_t>(v_padded) * sizeof(float));
    } else {
      widen_row(row, from + i * params.state_row_stride, params.state_dtype, params.v_dim);
    }
  }
}

inline void store_state(const LinearParams& params, const float* from, std::byte* to,
                        int64_t v_padded) {
  for (int64_t i = 0; i < params.k_dim; ++i)
    narrow_row(to + i * params.state_row_stride, from + i * v_padded, params.state_dtype,
               params.v_dim);
}

inline const std::byte* head_state(const LinearParams& params, const std::byte* states,
                                   int64_t head) {
  return states == nullptr ? nullptr : states + head * params.state_head_stride;
}

// Heads [first, first + count) of one q and k head, all tokens. A float32 state of whole vectors is
// worked on where it lies.
inline void linear_heads(const LinearParams& params, const LinearSequence& sequence, int64_t first,
                         int64_t count, const LinearScratch& scratch) {
  const ChunkScratch& s = scratch.chunk;
  const bool in_place = params.state_dtype == DType::kF32 && params.v_dim % kLanes == 0 &&
                        sequence.state_in != nullptr;
  const int64_t state_floats = params.k_dim * s.v_padded;
  for (int64_t h = 0; h < count && !in_place; ++h)
    load_state(params, head_state(params, sequence.state_in, first + h),
               scratch.states + h * state_floats, s.v_padded);
  const int64_t most = params.decay_per_channel != 0 ? kChannelChunkTokens : kChunkTokens;
  for (int64_t done = 0; done < sequence.num_rows; done += most) {
    const int64_t left = sequence.num_rows - done;
    ChunkHead head = {};
    head.params = &params;
    head.s = &s;
    head.token = sequence.row_begin + done;
    head.tokens = left < most ? left : most;
    const int64_t k_head = first / (params.num_heads / params.num_k_heads);
    load_chunk_keys(params, head.token, head.tokens, k_head, s);
    const int64_t next = head.token + most;
    const int64_t next_tokens = left - most < most ? left - most : most;
    for (int64_t h = 0; h < count; ++h) {
      head.head = first + h;
      ChunkFetch fetch = {};
      add_fetch(fetch, params.v, next, next_tokens, head.head, params.v_dim);
      add_fetch(fetch, params.out, next, next_tokens, head.head, params.v_dim);
      if (h == 0) add_fetch(fetch, params.q, next, next_tokens, k_head, params.k_dim);
      if (h == count - 1) add_fetch(fetch, params.k, next, next_tokens, k_head, params.k_dim);
      head.fetch = &fetch;
      if (in_place) {
        const std::byte* from = done == 0 ? sequence.state_in : sequence.state_out;
        head.state_in = reinterpret_cast<const float*>(head_state(params, from, head.head));
        head.state_out =
            reinterpret_cast<float*>(sequence.state_out + head.head * params.state_head_stride);
        head.state_in_row = head.state_out_row = params.state_row_stride / 4;
      } else {
        head.state_in = head.state_out = scratch.states + h * state_floats;
        head.state_in_row = head.state_out_row = s.v_padded;
      }
      linear_chunk(head);
    }
  }
  for (int64_t h = 0; h < count && !in_place; ++h) {
    store_state(params, scratch.states + h * state_floats,
                sequence.state_out + (first + h) * params.state_head_stride, s.v_padded);
  }
}

// The state of one head as it was, or zeros, at its new place.
inline void carry_state(const LinearParams& params, const LinearSequence& sequence, int64_t head) {
  if (sequence.state_in == sequence.state_out) return;
  const auto bytes = static_cast<size_t>(params.v_dim * dtype_bytes(params.state_dtype));
  for (int64_t i = 0; i < params.k_dim; ++i) {
    const int64_t offset = head * params.state_head_stride + i * params.state_row_stride;
    if (sequence.state_in == nullptr) {
      __builtin_memset(sequence.state_out + offset, 0, bytes);
    } else {
      __builtin_memcpy(sequence.state_out + offset, sequence.state_in + offset, bytes);
    }
  }
}

// One token of heads [head_begin, head_end). The step reads a state that is there: an empty
// sequence gets its zeros first.
inline void linear_one_token(const LinearParams& params, const LinearSequence& given,
                             int64_t head_begin, int64_t head_end, const StepRows& rows) {
  LinearSequence sequence = given;
  if (given.state_in == nullptr) sequence.state_in = given.state_out;
  for (int64_t head = head_begin; head < head_end; ++head) {
    if (given.state_in == nullptr) carry_state(params, given, head);
    linear_step(params, sequence, head, head + 1 < head_end ? head + 1 : head, rows);
  }
}

size_t linear_scratch_bytes(const LinearParams& params, int64_t max_rows) {
  ScratchCursor cursor = {nullptr, 0};
  allocate_linear(params, max_rows, cursor);
  return cursor.used;
}

void linear(const LinearParams& params, int32_t index, int32_t head_begin, int32_t head_end,
            void* memory) {
  const LinearSequence& sequence = params.sequences[index];
  ScratchCursor cursor = {static_cast<std::byte*>(memory), 0};
  const LinearScratch scratch = allocate_linear(params, sequence.num_rows, cursor);
  if (sequence.num_rows == 0) {
    for (int64_t head = head_begin; head < head_end; ++head) carry_state(params, sequence, head);
    return;
  }
  if (sequence.num_rows == 1)
    return linear_one_token(params, sequence, head_begin, head_end, scratch.step);
  const int64_t group = params.num_heads / params.num_k_heads;
  for (int64_t head = head_begin; head < head_end;) {
    int64_t end = (head / group + 1) * group;  // End of the heads with this q and k.
    if (end > head_end) end = head_end;
    if (end > head + kHeadsTogether) end = head + kHeadsTogether;
    linear_heads(params, sequence, head, end - head, scratch);
    head = end;
  }
}

}  // namespace
}  // namespace kvc::kernels::cpu
