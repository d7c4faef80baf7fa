// What changes a score of decode attention besides the dot product: soft cap, ALiBi, bias, and
// the mask.
#pragma once

#include "kernels/cpu/decode_block-inl.h"
#include "kernels/cpu/visibility-inl.h"

namespace kvc::kernels::cpu {
namespace {
namespace decode {

constexpr uint32_t kWholeChunk = (uint32_t{1} << kChunk) - 1;

// One block of rows and one chunk of keys.
struct ScoreScope {
  const AttnParams& params;
  const AttnSequence& sequence;
  const AttnItem& item;
  int64_t chunk_key;  // First key of the chunk.
  uint32_t present;   // Keys of the chunk that have rows in the pool.
  bool all_visible;   // No key is masked in any row.
  int64_t first_row;  // First query row of the block.
  int64_t rows;       // Query rows of the kv head.
  int64_t q_head;     // First query head of the kv head.
  int64_t group;
  int block_rows;

  // A block's last rows may stand for nothing: they take the place of the last real one.
  int64_t query_row(int row) const { return first_row + row < rows ? first_row + row : rows - 1; }
  int64_t token_row(int row) const { return item.row_begin + query_row(row) / group; }
  int64_t head(int row) const { return q_head + query_row(row) % group; }
};

// One flag per lane of the vector that starts at key `first`: lane row * keys + key <- bit first +
// key of bits[row].
inline uint32_t lane_flags(const uint32_t* bits, int block_rows, int keys, int first) {
  const uint32_t of_vector = (uint32_t{1} << keys) - 1;
  uint32_t flags = 0;
  for (int row = 0; row < block_rows; ++row)
    flags |= (bits[row] >> first & of_vector) << row * keys;
  return flags;
}

// Soft cap, ALiBi, bias, visibility. Returns whether a key that is present is hidden from some row.
inline bool modify_scores(const ScoreScope& scope, Vec* scores) {
  const AttnParams& params = scope.params;
  const AttnSequence& sequence = scope.sequence;
  const int keys = kLanes / scope.block_rows;
  uint32_t visible[kMaxBlockRows], present[kMaxBlockRows];
  for (int row = 0; row < scope.block_rows; ++row) {
    present[row] = scope.present;
    visible[row] = kWholeChunk;
    if (scope.all_visible) continue;
    visible[row] = static_cast<uint32_t>(
                       visible_bits(params, scope.item, scope.token_row(row), scope.chunk_key)) &
                   scope.present;
  }
  alignas(64) float slope[kLanes], distance[kLanes], key_in_vector[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int row = lane / keys;
    key_in_vector[lane] = static_cast<float>(lane % keys);
    slope[lane] = params.alibi != nullptr ? params.alibi[scope.head(row)] : 0.0f;
    distance[lane] = static_cast<float>(position_of_row(sequence, scope.token_row(row)) -
                                        sequence.key_position - scope.chunk_key);
  }
  const Vec minus_infinity = set1(kMinusInfinity);
  uint32_t hidden = 0;
  for (int first = 0; first < kChunk; first += keys) {
    const uint32_t flags = lane_flags(visible, scope.block_rows, keys, first);
    Vec s = scores[first / keys];
    if (params.softcap != 0.0f) s = mul(set1(params.softcap), tanh(s));
    if (params.alibi != nullptr) {
      const Vec key = add(load(key_in_vector), set1(static_cast<float>(first)));
      Vec lane_distance = sub(load(distance), key);
      if (sequence.key_positions != nullptr) {
        alignas(64) float uneven[kLanes];
        for (int lane = 0; lane < kLanes; ++lane) {
          uneven[lane] = 0.0f;
          if ((flags >> lane & 1) == 0) continue;
          const int64_t at = sequence.key_positions[scope.chunk_key + first + lane % keys];
          uneven[lane] =
              static_cast<float>(position_of_row(sequence, scope.token_row(lane / keys)) - at);
        }
        lane_distance = load(uneven);
      }
      s = fnma(load(slope), lane_distance, s);
    }
    if (params.bias != nullptr) {
      alignas(64) float bias[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        bias[lane] = 0.0f;
        if ((flags >> lane & 1) == 0) continue;
        const int row = lane / keys;
        bias[lane] =
            params.bias[scope.head(row) * params.bias_head_stride +
                        packed_row_of(sequence, scope.token_row(row)) * params.bias_token_stride +
                        sequence.key_position + scope.chunk_key + first + lane % keys];
      }
      s = add_bias(s, load(bias));
    }
    s = select(mask_of(flags), s, minus_infinity);
    scores[first / keys] = s;
    // The zero rows of keys that are not present are harmless; a hidden key that is present is not.
    hidden |=
        lane_flags(present, scope.block_rows, keys, first) & mask_bits(equal(s, minus_infinity));
  }
  return hidden != 0;
}

// The plain case of a chunk without masked keys: nothing to apply, but a score may be
// -inf by itself.
inline bool any_minus_infinity(const Vec* scores, int count) {
  Vec smallest = scores[0];
  for (int t = 1; t < count; ++t) smallest = min(scores[t], smallest);
  return mask_bits(equal(smallest, set1(kMinusInfinity))) != 0;
}

}  // namespace decode
}  // namespace
}  // namespace kvc::kernels::cpu
