// Attention for everything that kernels::AttnParams can express, in float32. It serves what no
// other kernel supports. See README.md.
//
// A CTA runs its work items one after the other. Warp w owns rows w, w + 4 and so on of the tile,
// so that the few rows of a decode step keep all warps busy. For each block of 32 keys:
// 1. Scores (lane = key).
// 2. Softmax inside the warp; the weights go to shared memory.
// 3. sums += weights * V (lane = four dims of a chunk of 128).
#pragma once

#include "kernels/cuda/attn/simt/config.h"
#include "kernels/cuda/attn/simt/load.cuh"
#include "kernels/cuda/attn/visible_range.h"
#include "kernels/cuda/ptx/elements.cuh"
#include "kernels/cuda/ptx/ptx.cuh"
#include "kernels/cuda/work.h"

namespace kvc::cuda::simt {

constexpr float kLog2E = 1.44269504088896341f;
constexpr float kLn2 = 0.69314718055994531f;
constexpr float kMinusInfinity = -__builtin_inff();

struct RowFacts {
  RowRange mask;
  int32_t row;     // Token row of the sequence.
  int32_t head;    // Query head. -1: there is no such row.
  int64_t packed;  // Row of q, out and lse.
  int64_t position;
};
static_assert(sizeof(RowFacts) == 4 * kRowFactsFloats);

template <int Rows>
struct Cta {
  static constexpr int kOwn = Rows / kWarps;  // Rows of a warp.
  static constexpr int kWeightStride = weight_stride(Rows);

  const AttnLaunch& launch;
  const WorkItem item;
  const kernels::AttnSequence& sequence;
  const int warp;
  float* q;
  float* sums;
  float* chunk;
  float* weights;
  uint32_t* visible_rows;
  RowFacts* facts;
  SequenceMask mask;
  TileRange tile;
  Source k, v;
  int32_t q_stride, sums_stride;
  float m[kOwn], l[kOwn];  // The same in all lanes of the warp.

  KVC_DEVICE Cta(const AttnLaunch& launch_in, const WorkItem& item_in)
      : launch(launch_in),
        item(item_in),
        sequence(launch_in.params.sequences[item_in.sequence]),
        warp(warp_id()) {
    const kernels::AttnParams& params = launch.params;
    const SharedLayout at = shared_layout(Rows, params.k_dim, params.v_dim);
    float* memory = reinterpret_cast<float*>(cta_shared());
    q = memory + at.q, sums = memory + at.sums, chunk = memory + at.chunk,
    weights = memory + at.weights;
    visible_rows = reinterpret_cast<uint32_t*>(memory + at.visible_rows);
    facts = reinterpret_cast<RowFacts*>(memory + at.rows);
    mask = sequence_mask(sequence);
    tile = kEmptyTile;
    k = source_of(params.k, launch.k_storage);
    v = source_of(params.v, launch.v_storage);
    q_stride = padded(params.k_dim), sums_stride = padded(params.v_dim);
#pragma unroll
    for (int i = 0; i < kOwn; ++i) m[i] = kMinusInfinity, l[i] = 0.0f;
  }

  // The row of the tile that is row i of the warp.
  KVC_DEVICE int row_of(int i) const { return warp + kWarps * i; }

  // Loads the facts of the rows, and their queries rotated and scaled.
  KVC_DEVICE void load_rows() {
    const kernels::AttnParams& params = launch.params;
    const int thread = static_cast<int>(threadIdx.x);
    if (thread < Rows) {
      RowFacts own{kNoKeys, 0, -1, 0, 0};
      if (thread < item.num_rows) {
        const int32_t group = params.num_q_heads / params.num_kv_heads;
        const int32_t packed = item.row_begin + thread;
        own.row = packed / group;
        own.head = item.kv_head * group + packed % group;
        own.mask = row_range(sequence, params.causal, own.row);
        own.packed = packed_row_of(sequence, own.row);
        own.position = position_of_row(sequence, own.row);
      }
      facts[thread] = own;
    }
    sync_cta();
    for (int i = 0; i < item.num_rows; ++i) tile = united(tile, tile_of(facts[i].mask));
    const kernels::Rotation& rotation =
        item.sink_part != 0 ? params.sink_q_rotation : params.q_rotation;
#pragma unroll 1
    for (int i = warp; i < Rows; i += kWarps) {
      const RowFacts own = facts[i];
      const std::byte* from =
          params.q.base + own.packed * params.q.token_stride + own.head * params.q.head_stride;
      for (int32_t d = lane_id(); d < q_stride; d += 32) {
        float value = 0.0f;
        if (own.head >= 0 && d < params.k_dim) {
          value = params.q_scale * rotated(rotation, own.packed, d, [&](int32_t j) {
                    return load_element(from, params.q.dtype, j);
                  });
        }
        q[i * q_stride + d] = value;
      }
      for (int32_t d = lane_id(); d < sums_stride; d += 32) sums[i * sums_stride + d] = 0.0f;
    }
  }

  // Bit i: the lane's key, `key`, is visible to row i of the warp.
  KVC_DEVICE uint32_t rows_seeing(int32_t key, Cover covered) const {
    uint32_t bits = 0;
    if (key >= item.key_end) return 0;
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const RowFacts& own = facts[row_of(i)];
      const bool is_visible_here =
          own.head >= 0 && (covered == Cover::kFull || is_visible(mask, own.mask, own.row, key));
      bits |= is_visible_here ? 1u << i : 0u;
    }
    return bits;
  }

  // scores[i] += the warp's first Count queries times a chunk of the lane's key.
  template <int Count>
  KVC_DEVICE void add_scores(float (&scores)[kOwn], int32_t first_dim) const {
    const int32_t left = q_stride - first_dim, count = left < kChunk ? left : kChunk;
    const float* from = chunk + lane_id() * kChunkStride;
    const float* queries = q + warp * q_stride + first_dim;
#pragma unroll 4
    for (int32_t d = 0; d < count; d += 4) {
      const Words4 key = *reinterpret_cast<const Words4*>(from + d);
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        const Words4 query = *reinterpret_cast<const Words4*>(queries + i * kWarps * q_stride + d);
#pragma unroll
        for (int j = 0; j < 4; ++j)
          scores[i] = fmaf(as_float(query.x[j]), as_float(key.x[j]), scores[i]);
      }
    }
  }

  // Applies the score modifiers: soft cap, ALiBi and bias. Returns -inf for a masked key, whatever
  // its elements are.
  KVC_DEVICE float modify_score(float score, bool is_visible_here, const RowFacts& own, int32_t key,
                                int64_t key_position) const {
    const kernels::AttnParams& params = launch.params;
    if (!is_visible_here) return kMinusInfinity;
    if (params.softcap != 0.0f) score = params.softcap * tanhf(score);
    if (params.alibi != nullptr)
      score -= kLog2E * params.alibi[own.head] * static_cast<float>(own.position - key_position);
    if (params.bias != nullptr) {
      const float bias =
          params.bias[own.head * params.bias_head_stride + own.packed * params.bias_token_stride +
                      sequence.key_position + key];
      score = bias == kMinusInfinity ? kMinusInfinity : fmaf(kLog2E, bounded_bias(bias), score);
    }
    return score;
  }

  // Turns scores into weights relative to the new maxima. scale[i] rescales the older sums of row
  // i. The scale of the lane's V is applied as well.
  KVC_DEVICE void add_weights(const float (&scores)[kOwn], float v_factor, float (&scale)[kOwn]) {
    uint32_t own[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      float top = scores[i];
#pragma unroll
      for (int step = 16; step > 0; step /= 2) top = fmaxf(top, shuffle_xor(top, step));
      top = fmaxf(m[i], top);
      const float base = top == kMinusInfinity ? 0.0f : top;
      scale[i] = exp2_fast(m[i] - base);
      const float weight = exp2_fast(scores[i] - base);
      float sum = weight;
#pragma unroll
      for (int step = 16; step > 0; step /= 2) sum += shuffle_xor(sum, step);
      l[i] = fmaf(l[i], scale[i], sum);
      m[i] = top;
      own[i] = as_bits(weight == 0.0f ? 0.0f : weight * v_factor);
    }
    float* to = weights + lane_id() * kWeightStride + warp * kOwn;
    if constexpr (kOwn == 4) {
      *reinterpret_cast<Words4*>(to) = Words4{{own[0], own[1], own[2], own[3]}};
    } else {
      static_assert(kOwn == 2);
      store_word<uint64_t>(to, own[0] | static_cast<uint64_t>(own[1]) << 32);
    }
    sync_warp();
  }

  template <int Count>
  KVC_DEVICE void own_weights(int key, float (&own)[Count]) const {
    const float* from = weights + key * kWeightStride + warp * kOwn;
    if constexpr (Count == 4) {
      const Words4 four = *reinterpret_cast<const Words4*>(from);
#pragma unroll
      for (int i = 0; i < 4; ++i) own[i] = as_float(four.x[i]);
    } else {
#pragma unroll
      for (int i = 0; i < Count; ++i) own[i] = from[i];
    }
  }

  // Accumulates dims [first_dim, first_dim + kChunk) of the warp's first Count rows. A weight of 0
  // does not touch the sum: the key may be masked and its V arbitrary.
  template <int Count>
  KVC_DEVICE void add_values(const float (&scale)[kOwn], int32_t first_dim) {
    const int32_t d = first_dim + 4 * lane_id();
    const bool inside = d < sums_stride;
    float acc[Count][4];
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      Words4 old{};
      if (inside) old = *reinterpret_cast<const Words4*>(sums + row_of(i) * sums_stride + d);
#pragma unroll
      for (int j = 0; j < 4; ++j) acc[i][j] = as_float(old.x[j]) * scale[i];
    }
    const float* from = chunk + 4 * lane_id();
#pragma unroll 4
    for (int key = 0; key < kKeys; ++key) {
      const Words4 value = *reinterpret_cast<const Words4*>(from + key * kChunkStride);
      float own[Count];
      own_weights(key, own);
#pragma unroll
      for (int i = 0; i < Count; ++i) {
        const float weight = own[i];
        if (weight != 0.0f) {
#pragma unroll
          for (int j = 0; j < 4; ++j) acc[i][j] = fmaf(weight, as_float(value.x[j]), acc[i][j]);
        }
      }
    }
    if (!inside) return;
#pragma unroll
    for (int i = 0; i < Count; ++i) {
      const Words4 sum{
          {as_bits(acc[i][0]), as_bits(acc[i][1]), as_bits(acc[i][2]), as_bits(acc[i][3])}};
      *reinterpret_cast<Words4*>(sums + row_of(i) * sums_stride + d) = sum;
    }
  }

  KVC_DEVICE void process_block(int32_t first_key, Cover covered) {
    const kernels::AttnParams& params = launch.params;
    const int lane = lane_id();
    const int32_t key = first_key + lane;
    const uint32_t rows = rows_seeing(key, covered);
    visible_rows[warp_id() * kKeys + lane] = rows;
    sync_cta();  // Everybody has finished with the last block's chunk.
    uint32_t anybody = 0;
#pragma unroll
    for (int w = 0; w < kWarps; ++w) anybody |= visible_rows[w * kKeys + lane];
    int64_t page = -1, position = 0;
    int32_t slot = 0;
    if (anybody != 0) {
      page = sequence.pages[key / params.page_size];
      slot = key % params.page_size;
      position = position_of_key(sequence, key);
    }
    const bool stored = page >= 0;
    const float k_factor =
        stored ? factor_of_row(launch.k_storage, page, item.kv_head, slot) : 1.0f;
    const float v_factor =
        stored ? factor_of_row(launch.v_storage, page, item.kv_head, slot) : 1.0f;

    const int32_t own_rows = (item.num_rows - warp + kWarps - 1) / kWarps;
    float scores[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) scores[i] = 0.0f;
    const KeyRow k_row = key_row(k, launch.k_storage, stored, page, item.kv_head, slot);
    const bool second = sequence.k_rotation_index != 0;
    const bool rotates =
        (second ? params.k_rotations[1].rotary_dim : params.k_rotations[0].rotary_dim) != 0;
#pragma unroll 1
    for (int32_t d = 0; d < params.k_dim; d += kChunk) {
      if (d > 0) sync_cta();
      if (rotates) {
        load_chunk_rotated(chunk, k, k_row, second ? params.k_rotations[1] : params.k_rotations[0],
                           position, params.k_dim, d);
      } else {
        load_chunk(chunk, k, k_row, params.k_dim, d);
      }
      sync_cta();
      if (own_rows > 1) add_scores<kOwn>(scores, d);
      if (own_rows == 1) add_scores<1>(scores, d);
    }
    float scale[kOwn];
#pragma unroll
    for (int i = 0; i < kOwn; ++i) {
      const bool is_visible_here = stored && (rows >> i & 1u) != 0;
      scores[i] =
          modify_score(scores[i] * k_factor, is_visible_here, facts[row_of(i)], key, position);
    }
    add_weights(scores, v_factor, scale);
    const KeyRow v_row = key_row(v, launch.v_storage, stored, page, item.kv_head, slot);
#pragma unroll 1
    for (int32_t d = 0; d < params.v_dim; d += kChunk) {
      sync_cta();
      load_chunk(chunk, v, v_row, params.v_dim, d);
      sync_cta();
      if (own_rows > 1) add_values<kOwn>(scale, d);
      if (own_rows == 1) add_values<1>(scale, d);
    }
  }

  KVC_DEVICE void decode_loop() {
    for (int32_t key = item.key_begin; key < item.key_end; key += kKeys) {
      key = skip_masked(mask, tile, key, item.key_begin, kKeys);
      if (key >= item.key_end) break;
      const int32_t end = key + kKeys < item.key_end ? key + kKeys : item.key_end;
      const Cover covered = cover(mask, tile, key, end);
      if (covered != Cover::kNone) process_block(key, covered);
    }
  }

  KVC_DEVICE void write_row(int i) const {
    const kernels::AttnParams& params = launch.params;
    const RowFacts own = facts[row_of(i)];
    if (own.head < 0) return;
    const float* from = sums + row_of(i) * sums_stride;
    if (item.split >= 0) {
      float* to = launch.schedule.partials +
                  item.split * split_floats(launch.schedule.tile_rows, params.v_dim) +
                  int64_t{row_of(i)} * (2 + params.v_dim);
      if (lane_id() == 0) to[0] = m[i], to[1] = l[i];
      for (int32_t d = lane_id(); d < params.v_dim; d += 32) to[2 + d] = from[d];
      return;
    }
    const bool empty = l[i] == 0.0f;
    float denominator = l[i];
    if (params.sinks != nullptr && !empty)
      denominator += exp2_fast(kLog2E * params.sinks[own.head] - m[i]);
    const float factor = empty ? 0.0f : 1.0f / denominator;
    std::byte* to =
        params.out.base + own.packed * params.out.token_stride + own.head * params.out.head_stride;
    for (int32_t d = lane_id(); d < params.v_dim; d += 32)
      store_element(to, params.out.dtype, d, empty ? 0.0f : from[d] * factor);
    if (params.lse != nullptr && lane_id() == 0) {
      params.lse[own.packed * params.lse_token_stride + own.head] =
          empty ? kMinusInfinity : kLn2 * (m[i] + log2_fast(l[i]));
    }
  }

  KVC_DEVICE void write() const {
    sync_warp();
#pragma unroll
    for (int i = 0; i < kOwn; ++i) write_row(i);
  }
};

template <int Rows>
__global__ void __launch_bounds__(kThreads, kCtasPerSm)
    attn_simt_kernel(const __grid_constant__ AttnLaunch launch) {
  wait_for_previous_kernel();
  const int32_t end = launch.schedule.cta_begin[blockIdx.x + 1];
#pragma unroll 1
  for (int32_t i = launch.schedule.cta_begin[blockIdx.x]; i < end; ++i) {
    Cta<Rows> cta(launch, launch.schedule.items[i]);
    cta.load_rows();
    cta.decode_loop();
    cta.write();
    sync_cta();
  }
  launch_dependents();
}

}  // namespace kvc::cuda::simt
