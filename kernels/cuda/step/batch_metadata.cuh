// Makes kernels::AttnSequence for the sequences of a batch. See BatchMetadataParams.
#pragma once

#include <cstdint>

#include "kernels/cuda/step.h"
#include "kernels/cuda/step/visible_keys.cuh"

namespace kvc::cuda::batch_metadata_config {

constexpr uint32_t kThreads = 128;
constexpr int32_t kWarps = kThreads / 32;
// About one CTA per SM. With fewer sequences than CTAs, several CTAs share the rows and keys of one
// sequence. With more, a thread processes one sequence, unless it has much to write. A decode step
// needs a handful of loads per sequence, and more CTAs would only take longer to start.
constexpr uint32_t kCtas = 128;

// Max rows whose visible range one thread computes alone.
constexpr int32_t kMaxRowsOfThread = 4;

// Sums of warps, then a bit for every sequence that a thread has left to the whole CTA.
constexpr uint32_t kSharedBytes = kWarps * (2 * sizeof(int64_t) + sizeof(uint32_t));

}  // namespace kvc::cuda::batch_metadata_config

namespace kvc::cuda::batch_metadata_kernels {

KVC_HD int64_t mask_words(const BatchMetadataParams& params, const SequenceInfo& q) {
  if (!q.is_tree() || params.scope == KeyScope::kCached || params.scope == KeyScope::kCross)
    return 0;
  return static_cast<int64_t>(q.append) * ((q.num_nodes + 63) / 64);
}
// Number of keys that get positions of their own, if there is room for them. A sequence without
// room uses the indices of its keys. Scope kNew uses the positions of the step.
KVC_DEVICE int64_t positioned_keys(const BatchMetadataParams& params, const SequenceInfo& q,
                                   int32_t s) {
  if (params.needs_positions == 0 || params.scope == KeyScope::kCross ||
      params.scope == KeyScope::kNew)
    return 0;
  if (!q.is_tree() && params.step.segments_at[s] < 0) return 0;
  return params.scope == KeyScope::kCached ? q.length : static_cast<int64_t>(q.stored) + q.append;
}

// Offsets of a sequence's masks and key positions, which lie behind those of all earlier sequences.
// Only CTAs that need them count, and they count each sequence once.
struct MetadataOffsets {
  int64_t masks = 0;
  int64_t keys = 0;
  int32_t counted = 0;
};

// All threads of the CTA. `scratch` is [2 * kWarps] in shared memory.
KVC_DEVICE void count_up_to(const BatchMetadataParams& params, int32_t s, int64_t* scratch,
                            MetadataOffsets& offsets) {
  int64_t masks = 0, keys = 0;
  for (auto t = offsets.counted + static_cast<int32_t>(threadIdx.x); t < s;
       t += static_cast<int32_t>(batch_metadata_config::kThreads)) {
    const SequenceInfo q = read_sequence(params, t);
    masks += mask_words(params, q);
    keys += positioned_keys(params, q, t);
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    masks += shuffle_xor(masks, mask);
    keys += shuffle_xor(keys, mask);
  }
  const int own_warp = warp_id();
  sync_cta();
  if (lane_id() == 0) {
    scratch[2 * own_warp] = masks;
    scratch[2 * own_warp + 1] = keys;
  }
  sync_cta();
  for (int warp = 0; warp < batch_metadata_config::kWarps; ++warp) {
    offsets.masks += scratch[2 * warp];
    offsets.keys += scratch[2 * warp + 1];
  }
  offsets.counted = s;
}

// warp. The largest token index of a sequence's rows.
KVC_DEVICE int32_t last_index(const SequenceInfo& q) {
  if (!q.is_tree()) return q.last_of_chain();
  int32_t index = q.length;
  for (int32_t row = lane_id(); row < q.append; row += 32) {
    const int32_t of_row = q.row_index(row);
    index = of_row > index ? of_row : index;
  }
  for (int mask = 16; mask > 0; mask /= 2) {
    const int32_t other = shuffle_xor(index, mask);
    index = other > index ? other : index;
  }
  return index;
}

// Whether the sequence needs key_begins. It does if the mask hides keys before the window from any
// row: window begins grow with the index, so the largest index decides. It also does if queries are
// rotated differently for sink tokens: those keys are separate from the first row on, so that a
// row's bits do not depend on other rows.
KVC_DEVICE bool hides_keys(const BatchMetadataParams& params, const SequenceInfo& q, int32_t index,
                           int32_t* sink_end) {
  *sink_end = 0;
  if (!is_windowed(params, q) || q.append == 0) return false;
  const kernels::VisibleRange<int32_t> keys = visible_range(params, q, index);
  const int32_t sinks = kernels::sink_end_of_sequence(keys, q.first_key);
  if (key_begin(q, keys) == 0 && (params.rope < 0 || sinks == 0)) return false;
  *sink_end = sinks;
  return true;
}

// One thread. `index` is the largest token index of the sequence's rows.
KVC_DEVICE void write_sequence(const BatchMetadataParams& params, const SequenceInfo& q, int32_t s,
                               const MetadataOffsets& offsets, int32_t index) {
  const StepState& step = params.step;
  const StepState::LayerGroup& group = step.groups[params.group];
  int32_t sink_end = 0;
  const bool hides = hides_keys(params, q, index, &sink_end);
  kernels::AttnSequence out{};
  out.pages = group.table + step.slot[s] * group.table_stride;
  out.row_begin = q.row_begin;
  out.num_rows = q.append;
  out.position = q.stored;
  if (params.scope == KeyScope::kAll) out.first_key_end = static_cast<int64_t>(q.stored) + 1;
  if (params.scope == KeyScope::kCached) out.first_key_end = q.length;
  if (params.scope == KeyScope::kCross)
    out.first_key_end = static_cast<int64_t>(step.cross_stored[s]) + step.cross_append[s];
  if (params.scope == KeyScope::kNew) {
    params.first_rows[s] = q.row_begin;
    out.pages = params.first_rows + s;
    out.first_key_end = 1;
    out.key_position = q.stored;
  }
  if (hides) {
    out.key_begins = params.key_begins + q.row_begin;
    out.sink_end = sink_end;
  }
  if (params.scope != KeyScope::kCross) {
    if (q.is_tree() && params.scope != KeyScope::kCached) {
      out.tree_begin = q.length - q.first_key;
      out.tree_words = (q.num_nodes + 63) / 64;
      out.tree_mask = params.masks + offsets.masks;
    }
    const int64_t num_keys = positioned_keys(params, q, s);
    const bool goes_by_index =
        params.needs_positions == 0 || (!q.is_tree() && step.segments_at[s] < 0);
    if (!goes_by_index && offsets.keys + num_keys <= params.key_positions_capacity) {
      out.row_positions = step.positions + q.row_begin;
      out.key_positions =
          params.scope == KeyScope::kNew ? out.row_positions : params.key_positions + offsets.keys;
    }
    if (params.rope >= 0) out.k_rotation_index = step.long_ropes[s] >> params.rope & 1;
  }
  if (params.spans != nullptr && (params.scope == KeyScope::kAll || params.scope == KeyScope::kNew))
    out.key_ends = params.key_ends + q.row_begin;
  params.sequences[s] = out;
}

KVC_HD bool has_key_ends(const BatchMetadataParams& params) {
  return params.spans != nullptr &&
         (params.scope == KeyScope::kAll || params.scope == KeyScope::kNew);
}

// Whether one thread processes the sequence: it has no tree, no key positions, and few rows or no
// rows to write.
KVC_DEVICE bool fits_one_thread(const BatchMetadataParams& params, const SequenceInfo& q,
                                int32_t s) {
  if (q.is_tree() || positioned_keys(params, q, s) != 0) return false;
  return q.append <= batch_metadata_config::kMaxRowsOfThread ||
         (!is_windowed(params, q) && !has_key_ends(params));
}

// Writes key_begins and key_ends of rows `first`, `first` + `stride` and so on of one sequence.
KVC_DEVICE void write_ranges(const BatchMetadataParams& params, const SequenceInfo& q, int32_t s,
                             int32_t first, int32_t stride) {
  const bool has_begins = is_windowed(params, q), has_ends = has_key_ends(params);
  if (!has_begins && !has_ends) return;
  for (int32_t row = first; row < q.append; row += stride) {
    if (has_begins)
      params.key_begins[q.row_begin + row] =
          key_begin(q, visible_range(params, q, q.row_index(row)));
    if (has_ends) params.key_ends[q.row_begin + row] = key_end(params, q, s, row);
  }
}

// Writes the masks of rows, and the positions of keys, `first`, `first` + `stride` and so on of one
// sequence.
KVC_DEVICE void write_masks_and_positions(const BatchMetadataParams& params, const SequenceInfo& q,
                                          int32_t s, const MetadataOffsets& offsets, int32_t first,
                                          int32_t stride) {
  if (mask_words(params, q) != 0) {
    const int32_t words = (q.num_nodes + 63) / 64;
    for (int32_t row = first; row < q.append; row += stride)
      write_mask(params, q, row, words,
                 params.masks + offsets.masks + static_cast<int64_t>(row) * words);
  }
  auto num_keys = static_cast<int32_t>(positioned_keys(params, q, s));
  if (offsets.keys + num_keys > params.key_positions_capacity) num_keys = 0;
  for (int32_t key = first; key < num_keys; key += stride)
    params.key_positions[offsets.keys + key] = position_of_key(params.step, q, s, key);
}

// All threads of the CTA, which has rank `rank` among the CTAs that share the sequence.
KVC_DEVICE void write_with_cta(const BatchMetadataParams& params, int32_t s, int32_t rank,
                               int32_t ctas_per_sequence, int64_t* scratch,
                               MetadataOffsets& offsets) {
  constexpr auto kThreads = static_cast<int32_t>(batch_metadata_config::kThreads);
  const int32_t first = rank * kThreads + static_cast<int32_t>(threadIdx.x),
                stride = ctas_per_sequence * kThreads;
  const SequenceInfo q = read_sequence(params, s);
  if (mask_words(params, q) != 0 || positioned_keys(params, q, s) != 0)
    count_up_to(params, s, scratch, offsets);
  if (rank == 0 && warp_id() == 0) {
    const int32_t index = last_index(q);
    if (lane_id() == 0) write_sequence(params, q, s, offsets, index);
  }
  write_ranges(params, q, s, first, stride);
  write_masks_and_positions(params, q, s, offsets, first, stride);
}

// One thread. Returns false if the sequence needs the whole CTA.
KVC_DEVICE bool write_with_thread(const BatchMetadataParams& params, int32_t s) {
  const SequenceInfo q = read_sequence(params, s);
  if (!fits_one_thread(params, q, s)) return false;
  write_sequence(params, q, s, {}, q.last_of_chain());
  write_ranges(params, q, s, 0, 1);
  return true;
}

// With more sequences than CTAs each thread processes one, all at once. Few sequences are left for
// whole CTAs, or else the attention of the forward takes much longer.
__global__ void __launch_bounds__(batch_metadata_config::kThreads, 1)
    batch_metadata_kernel(const __grid_constant__ BatchMetadataParams params) {
  constexpr auto kThreads = static_cast<int32_t>(batch_metadata_config::kThreads);
  auto* scratch = reinterpret_cast<int64_t*>(cta_shared());
  // [kWarps], a bit per thread.
  auto* left = reinterpret_cast<uint32_t*>(scratch + 2 * batch_metadata_config::kWarps);
  const int32_t num_sequences = params.step.counts[0];
  const auto num_ctas = static_cast<int32_t>(gridDim.x), cta = static_cast<int32_t>(blockIdx.x);
  const bool many = num_sequences > num_ctas;
  const int32_t ctas_per_sequence = num_sequences == 0 || many ? 1 : num_ctas / num_sequences;
  MetadataOffsets offsets;
  for (int32_t first = cta / ctas_per_sequence; first < num_sequences;
       first += num_ctas * kThreads) {
    if (many) {
      const int32_t s = first + num_ctas * static_cast<int32_t>(threadIdx.x);
      const uint32_t lanes = ballot(s < num_sequences && !write_with_thread(params, s));
      const int own_warp = warp_id();
      if (lane_id() == 0) left[own_warp] = lanes;
      sync_cta();
    }
    for (int32_t warp = 0; warp < batch_metadata_config::kWarps; ++warp) {
      int32_t s = first + num_ctas * 32 * warp;
      for (uint32_t bits = many        ? left[warp]
                           : warp == 0 ? 1u
                                       : 0u;
           bits != 0; bits >>= 1, s += num_ctas) {
        if ((bits & 1u) != 0)
          write_with_cta(params, s, cta % ctas_per_sequence, ctas_per_sequence, scratch, offsets);
      }
    }
    if (many) sync_cta();  // `left` is overwritten next.
  }
}

}  // namespace kvc::cuda::batch_metadata_kernels
