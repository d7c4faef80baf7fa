// Makes kernels::AttnSequence for the sequences of a step, see BatchMetadataParams.
#pragma once

#include <cstdint>

#include "kernels/cuda/step.h"
#include "kernels/cuda/step/visible_keys.cuh"

namespace kvc::cuda::batch_metadata_config {

constexpr uint32_t kThreads = 128;
constexpr int32_t kWarps = kThreads / 32;
// With fewer sequences than CTAs several share the rows and keys of one; with more a thread does
// one, unless it has much to write. About one per SM: in a decode step there is a handful of loads
// per sequence, and more CTAs would only take longer to start.
constexpr uint32_t kCtas = 128;

// Rows whose keys a thread finds alone.
constexpr int32_t kMaxRowsOfThread = 4;

// Sums of warps, then a bit for every sequence that a thread has left to the CTA.
constexpr uint32_t kSharedBytes = kWarps * (2 * sizeof(int64_t) + sizeof(uint32_t));

}  // namespace kvc::cuda::batch_metadata_config

namespace kvc::cuda::batch_metadata_kernels {

KVC_HD int64_t mask_words(const BatchMetadataParams& params, const SequenceInfo& q) {
  if (!q.is_tree() || params.scope == KeyScope::kCached || params.scope == KeyScope::kCross)
    return 0;
  return static_cast<int64_t>(q.append) * ((q.num_nodes + 63) / 64);
}
// Keys that get positions of their own, where there is room for them: a sequence that finds none
// goes by the indices of its keys. Scope kNew reads the step's.
KVC_DEVICE int64_t positioned_keys(const BatchMetadataParams& params, const SequenceInfo& q,
                                   int32_t s) {
  if (params.needs_positions == 0 || params.scope == KeyScope::kCross ||
      params.scope == KeyScope::kNew)
    return 0;
  if (!q.is_tree() && params.step.segments_at[s] < 0) return 0;
  return params.scope == KeyScope::kCached ? q.length : static_cast<int64_t>(q.stored) + q.append;
}

// Where the masks and key positions of a sequence begin: behind those of all sequences before it.
// Counted on only by CTAs that need it, each sequence once.
struct MetadataOffsets {
  int64_t masks = 0;
  int64_t keys = 0;
  int32_t counted = 0;
};

// All threads of the CTA. `scratch` [2 * kWarps] in shared memory.
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

// warp. The largest index of a sequence's rows.
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

// Whether any row of the sequence is kept from a key that lies before its window: beginnings grow
// with the index, so the largest one decides. Or the queries of sinks turn differently: those keys
// stay apart from the first row on, so that a row's bits do not depend on the rows beside it.
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

// One thread. `index`: the largest of its rows.
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

// Whether one thread does the sequence: no tree, no positions of keys, and no rows to write, or
// few.
KVC_DEVICE bool fits_one_thread(const BatchMetadataParams& params, const SequenceInfo& q,
                                int32_t s) {
  if (q.is_tree() || positioned_keys(params, q, s) != 0) return false;
  return q.append <= batch_metadata_config::kMaxRowsOfThread ||
         (!is_windowed(params, q) && !has_key_ends(params));
}

// Where the keys of rows `first`, `first` + `stride`, … of one sequence begin and end.
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

// Masks of rows and positions of keys `first`, `first` + `stride`, … of one sequence.
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

// All threads of the CTA, which is `part` of `parts` that share the sequence.
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

// One thread. False: the sequence is one for the whole CTA.
KVC_DEVICE bool write_with_thread(const BatchMetadataParams& params, int32_t s) {
  const SequenceInfo q = read_sequence(params, s);
  if (!fits_one_thread(params, q, s)) return false;
  write_sequence(params, q, s, {}, q.last_of_chain());
  write_ranges(params, q, s, 0, 1);
  return true;
}

// With more sequences than CTAs each thread does one, all at once; what is left for whole CTAs is
// few, or the step's attention takes much longer.
__global__ void __launch_bounds__(batch_metadata_config::kThreads, 1)
    batch_metadata_kernel(const __grid_constant__ BatchMetadataParams params) {
  constexpr auto kThreads = static_cast<int32_t>(batch_metadata_config::kThreads);
  auto* scratch = reinterpret_cast<int64_t*>(cta_shared());
  // [kWarps] a bit per thread
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
    if (many) sync_cta();  // before `left` is written again
  }
}

}  // namespace kvc::cuda::batch_metadata_kernels
