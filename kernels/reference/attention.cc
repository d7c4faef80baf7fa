// Attention one query row at a time: scores twice (for the maximum, then for the sums), everything
// in double.
#include <algorithm>
#include <cmath>
#include <limits>

#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"

namespace kvc::kernels::reference {
namespace {

constexpr double kLog2E = 1.4426950408889634074;
constexpr double kLn2 = 0.6931471805599453094;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

int64_t packed_row_of(const AttnSequence& sequence, int64_t row) {
  return sequence.row_map != nullptr ? sequence.row_map[row] : sequence.row_begin + row;
}

// One query head of one token against the keys of its sequence.
struct QueryRow {
  const AttnParams& params;
  const AttnItem& item;
  const AttnSequence& sequence;
  int64_t row;  // Token row inside the sequence.
  int64_t q_head;
  const double* q;  // Rotated and scaled.

  int64_t kv_head() const { return q_head / (params.num_q_heads / params.num_kv_heads); }

  const std::byte* row_of(const PagedRows& rows, int64_t key) const {
    return row_address(rows, sequence.page(key / params.page_size), kv_head(),
                       key % params.page_size);
  }
  double scale_of(const PagedRows& rows, int64_t key) const {
    return row_scale(rows, sequence.page(key / params.page_size), kv_head(),
                     key % params.page_size);
  }

  int64_t position() const {
    return sequence.row_positions != nullptr ? sequence.row_positions[row]
                                             : sequence.position + row;
  }
  int64_t position_of(int64_t key) const {
    return sequence.key_positions != nullptr ? sequence.key_positions[key]
                                             : sequence.key_position + key;
  }

  bool is_visible(int64_t key) const {
    const int64_t end = sequence.key_ends != nullptr
                            ? sequence.key_ends[row]
                            : sequence.first_key_end + (params.causal != 0 ? row : 0);
    if (key >= end) return false;
    if (sequence.key_begins != nullptr && key < sequence.key_begins[row] &&
        key >= sequence.sink_end)
      return false;
    if (sequence.tree_mask == nullptr || key < sequence.tree_begin) return true;
    const int64_t node = key - sequence.tree_begin;
    return node / 64 < sequence.tree_words &&
           (sequence.tree_mask[row * sequence.tree_words + node / 64] >> (node % 64) & 1) != 0;
  }

  double score(int64_t key) const {
    const std::byte* k = row_of(params.k, key);
    const bool by_key = sequence.own_k_rotation != nullptr && item.sink_part == 0;
    const Rotation rotation = by_key ? sequence.own_k_rotation->from(params.k_rotations[0].begin)
                                     : params.k_rotations[sequence.k_rotation_index];
    const int64_t rotation_row = by_key ? key - sequence.own_rotation_begin : position_of(key);
    double s = 0;
    for (int64_t d = 0; d < params.k_dim; ++d)
      s += q[d] * rotated_element(k, params.k.dtype, rotation, rotation_row, d);
    s *= scale_of(params.k, key);
    if (params.softcap != 0) s = params.softcap * std::tanh(s);
    if (params.alibi != nullptr) {
      s += -static_cast<double>(params.alibi[q_head]) *
           static_cast<double>(position() - position_of(key));
    }
    if (params.bias != nullptr) {
      const float bias = params.bias[q_head * params.bias_head_stride +
                                     packed_row_of(sequence, row) * params.bias_token_stride +
                                     sequence.key_position + key];
      if (bias == kMinusInfinity) return kMinusInfinity;  // Masked: K may be NaN.
      s += kLog2E * std::clamp(bias, -kMaxBias, kMaxBias);
    }
    return s;
  }
};

struct Sums {
  double m = kMinusInfinity;
  double l = 0;
};

// m, l and the v_dim accumulators over keys [key_begin, key_end).
Sums attend(const QueryRow& row, int64_t key_begin, int64_t key_end, double* acc) {
  Sums sums;
  std::fill_n(acc, row.params.v_dim, 0.0);
  for (int64_t key = key_begin; key < key_end; ++key) {
    if (!row.is_visible(key)) continue;
    const double s = row.score(key);
    if (std::isnan(s) || s > sums.m) sums.m = s;
    if (std::isnan(s)) break;
  }
  if (sums.m == kMinusInfinity) return sums;
  for (int64_t key = key_begin; key < key_end; ++key) {
    if (!row.is_visible(key)) continue;
    const double s = row.score(key);
    if (s == kMinusInfinity) continue;  // Contributes nothing, whatever its V holds.
    const double p = std::exp2(s - sums.m);
    const std::byte* v = row.row_of(row.params.v, key);
    const double weight = p * row.scale_of(row.params.v, key);
    sums.l += p;
    for (int64_t d = 0; d < row.params.v_dim; ++d)
      acc[d] += weight * read_element(v, row.params.v.dtype, d);
  }
  return sums;
}

void write_output(const AttnParams& params, int64_t packed_row, int64_t q_head, const Sums& sums,
                  const double* acc) {
  std::byte* out =
      params.out.base + packed_row * params.out.token_stride + q_head * params.out.head_stride;
  const bool empty = sums.m == kMinusInfinity;
  double denominator = sums.l;
  if (params.sinks != nullptr) denominator += std::exp2(params.sinks[q_head] - sums.m);
  for (int64_t d = 0; d < params.v_dim; ++d) {
    write_element(out, params.out.dtype, d, empty ? 0.0 : acc[d] / denominator);
  }
  if (params.lse != nullptr) {
    const double lse = empty ? kMinusInfinity : kLn2 * (sums.m + std::log2(sums.l));
    params.lse[packed_row * params.lse_token_stride + q_head] = static_cast<float>(lse);
  }
}

}  // namespace

double rotated_element(const std::byte* row, DType dtype, const Rotation& rotation,
                       int64_t rotation_row, int64_t index) {
  const double element = read_element(row, dtype, index);
  const int64_t inside = index - rotation.begin;
  if (inside < 0 || inside >= rotation.rotary_dim) return element;
  const int64_t half = rotation.rotary_dim / 2;
  const int64_t pair = rotation.interleaved != 0 ? inside / 2 : inside % half;
  const bool second = rotation.interleaved != 0 ? inside % 2 == 1 : inside >= half;
  const int64_t x_index = rotation.begin + (rotation.interleaved != 0 ? 2 * pair : pair);
  const int64_t y_index = x_index + (rotation.interleaved != 0 ? 1 : half);
  const double x = read_element(row, dtype, x_index), y = read_element(row, dtype, y_index);
  const double cos = rotation.cos[rotation_row * half + pair],
               sin = rotation.sin[rotation_row * half + pair];
  return second ? x * sin + y * cos : x * cos - y * sin;
}

size_t attention_scratch_bytes(const AttnParams& params, int64_t) {
  return sizeof(double) * static_cast<size_t>(params.k_dim + params.v_dim);
}

void attention(const AttnParams& params, const AttnItem& item, void* scratch) {
  const AttnSequence& sequence = params.sequences[item.sequence];
  double* q = static_cast<double*>(scratch);
  double* acc = q + params.k_dim;
  const int64_t group = params.num_q_heads / params.num_kv_heads;
  float* partial = item.partial < 0 ? nullptr : params.partials + item.partial;
  const Rotation& rotation = item.sink_part != 0 ? params.sink_q_rotation : params.q_rotation;
  for (int64_t row = item.row_begin; row < item.row_end; ++row) {
    const int64_t packed_row = packed_row_of(sequence, row);
    for (int64_t q_head = item.head_begin * group; q_head < item.head_end * group; ++q_head) {
      const std::byte* from =
          params.q.base + packed_row * params.q.token_stride + q_head * params.q.head_stride;
      for (int64_t d = 0; d < params.k_dim; ++d) {
        q[d] = params.q_scale * rotated_element(from, params.q.dtype, rotation, packed_row, d);
      }
      const QueryRow query{params, item, sequence, row, q_head, q};
      Sums sums = attend(query, item.key_begin, item.key_end, acc);
      if (partial == nullptr) {
        // As a partial rounds, so that a row's bits do not depend on whether other rows need a
        // second part.
        sums = {static_cast<float>(sums.m), static_cast<float>(sums.l)};
        for (int64_t d = 0; d < params.v_dim; ++d) acc[d] = static_cast<float>(acc[d]);
        write_output(params, packed_row, q_head, sums, acc);
        continue;
      }
      *partial++ = static_cast<float>(sums.m);
      *partial++ = static_cast<float>(sums.l);
      for (int64_t d = 0; d < params.v_dim; ++d) *partial++ = static_cast<float>(acc[d]);
    }
  }
}

void merge_splits(const AttnParams& params, const AttnMergeGroup& group) {
  const int64_t heads_per_kv = params.num_q_heads / params.num_kv_heads;
  const int64_t heads = (group.head_end - group.head_begin) * heads_per_kv;
  const int64_t row_floats = 2 + params.v_dim;
  const int64_t* offsets = params.split_offsets + group.first_split;
  for (int64_t row = group.row_begin; row < group.row_end; ++row) {
    for (int64_t head = 0; head < heads; ++head) {
      const float* first = params.partials + ((row - group.row_begin) * heads + head) * row_floats;
      Sums sums;
      for (int64_t split = 0; split < group.num_splits; ++split) {
        const double m = first[offsets[split]];
        if (std::isnan(m) || m > sums.m) sums.m = m;
      }
      const bool empty = sums.m == kMinusInfinity;
      for (int64_t split = 0; split < group.num_splits && !empty; ++split) {
        const float* partial = first + offsets[split];
        sums.l += std::exp2(partial[0] - sums.m) * partial[1];
      }
      const int64_t packed_row = packed_row_of(params.sequences[group.sequence], row);
      const int64_t q_head = group.head_begin * heads_per_kv + head;
      std::byte* out =
          params.out.base + packed_row * params.out.token_stride + q_head * params.out.head_stride;
      double denominator = sums.l;
      if (params.sinks != nullptr) denominator += std::exp2(params.sinks[q_head] - sums.m);
      for (int64_t d = 0; d < params.v_dim; ++d) {
        double sum = 0;
        for (int64_t split = 0; split < group.num_splits && !empty; ++split) {
          const float* partial = first + offsets[split];
          sum += std::exp2(partial[0] - sums.m) * partial[2 + d];
        }
        write_element(out, params.out.dtype, d, empty ? 0.0 : sum / denominator);
      }
      if (params.lse != nullptr) {
        const double lse = empty ? kMinusInfinity : kLn2 * (sums.m + std::log2(sums.l));
        params.lse[packed_row * params.lse_token_stride + q_head] = static_cast<float>(lse);
      }
    }
  }
}

}  // namespace kvc::kernels::reference
