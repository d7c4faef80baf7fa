// What changes a score of decode attention besides the dot product: soft cap, ALiBi, bias, causality, the item's key range.
#pragma once

#include "kernels/cpu/decode_block-inl.h"

namespace kvc::kernels::cpu {
namespace {
namespace decode {

// What changes a score besides the dot product, for one block of rows.
struct ScoreRules {
  const AttnParams& params;
  const AttnSequence& sequence;
  int64_t chunk_key;           // first key of the chunk
  int valid_begin, valid_end;  // keys of the chunk that belong to the item
  int64_t first_token_row;     // of the item, inside the sequence
  int64_t first_row;           // first query row of the block
  int64_t rows;                // query rows of the kv head
  int64_t q_head;              // first query head of the kv head
  int64_t group;
  int block_rows;
};

// Soft cap, ALiBi, bias, causality. Returns whether a key of the item is hidden from some row.
inline bool apply_rules(const ScoreRules& rules, Vec* scores) {
  const AttnParams& params = rules.params;
  const AttnSequence& sequence = rules.sequence;
  const int keys = kLanes / rules.block_rows;
  alignas(64) float slope[kLanes], distance[kLanes], limit[kLanes], key_in_vector[kLanes];
  for (int lane = 0; lane < kLanes; ++lane) {
    const int64_t row = rules.first_row + lane / keys;
    const int64_t token_row = rules.first_token_row + (row < rules.rows ? row / rules.group : 0);
    const int64_t head = rules.q_head + (row < rules.rows ? row % rules.group : 0);
    const int64_t key_end = sequence.first_key_end + (params.causal != 0 ? token_row : 0) - rules.chunk_key;
    key_in_vector[lane] = static_cast<float>(lane % keys);
    slope[lane] = params.alibi != nullptr ? params.alibi[head] : 0.0f;
    distance[lane] =
        static_cast<float>(sequence.position + token_row - sequence.key_position - rules.chunk_key);
    limit[lane] = static_cast<float>(key_end < 0 ? 0 : key_end < rules.valid_end ? key_end : rules.valid_end);
  }
  const Vec minus_infinity = set1(kMinusInfinity);
  const Vec first_valid = set1(static_cast<float>(rules.valid_begin));
  uint32_t hidden = 0;
  for (int first = 0; first < kChunk; first += keys) {
    Vec s = scores[first / keys];
    if (params.softcap != 0.0f) s = mul(set1(params.softcap), tanh(s));
    const Vec key = add(load(key_in_vector), set1(static_cast<float>(first)));
    if (params.alibi != nullptr) s = fnma(load(slope), sub(load(distance), key), s);
    if (params.bias != nullptr) {
      alignas(64) float bias[kLanes];
      for (int lane = 0; lane < kLanes; ++lane) {
        const int64_t row = rules.first_row + lane / keys;
        const int key_in_chunk = first + lane % keys;
        const bool visible = row < rules.rows && key_in_chunk >= rules.valid_begin &&
                             key_in_chunk < static_cast<int>(limit[lane]);
        if (!visible) {
          bias[lane] = 0.0f;
          continue;
        }
        const int64_t packed_row = sequence.row_begin + rules.first_token_row + row / rules.group;
        bias[lane] = params.bias[(rules.q_head + row % rules.group) * params.bias_head_stride +
                                 packed_row * params.bias_token_stride + sequence.key_position +
                                 rules.chunk_key + key_in_chunk];
      }
      // A masked key's K may be NaN, which a sum with -inf would keep.
      const Vec row_bias = load(bias);
      const Mask masked = equal(row_bias, minus_infinity);
      s = select(masked, minus_infinity, fma(row_bias, set1(1.4426950408889634f), s));
    }
    const Mask visible = mask_and(less(key, load(limit)), less_equal(first_valid, key));
    s = select(visible, s, minus_infinity);
    scores[first / keys] = s;
    // Zero rows outside the item are harmless; a hidden key inside it is not.
    const Mask inside =
        mask_and(less(key, set1(static_cast<float>(rules.valid_end))), less_equal(first_valid, key));
    hidden |= mask_bits(mask_and(inside, equal(s, minus_infinity)));
  }
  return hidden != 0;
}

// The plain case of a chunk all of whose keys every row sees: nothing to apply, but a score may be -inf by itself.
inline bool any_minus_infinity(const Vec* scores, int count) {
  Vec smallest = scores[0];
  for (int t = 1; t < count; ++t) smallest = min(scores[t], smallest);
  return mask_bits(equal(smallest, set1(kMinusInfinity))) != 0;
}

}  // namespace decode
}  // namespace
}  // namespace kvc::kernels::cpu
