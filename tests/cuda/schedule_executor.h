// Schedules in vectors, and their execution on the host: kernels/reference computes every work item
// into a split in the device's layout, then come the reductions. For tests of the scheduler, and of
// kernels that need a schedule.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <limits>
#include <type_traits>
#include <vector>

#include "kernels/cuda/schedule/host.h"
#include "kernels/reference/elements.h"
#include "kernels/reference/reference.h"

namespace kvc::cuda::test {

// A schedule in vectors sized by schedule_bytes, filled with 0x7f bytes where nothing was written.
// Copies point to their own memory.
struct HostSchedule {
  ScheduleShape shape{};
  ScheduleBytes bytes{};
  std::vector<int32_t> counts, cta_begin;
  std::vector<WorkItem> items;
  std::vector<ReduceItem> reductions;
  std::vector<ReduceSource> sources;
  std::vector<std::byte> scratch;
  std::vector<float> partials;  // see reserve_partials

  int32_t num_items() const { return counts[0]; }
  int32_t num_reductions() const { return counts[1]; }
  int32_t num_sources() const { return counts[2]; }
  int32_t num_splits() const { return counts[3]; }

  // Slots full of NaN.
  void reserve_partials(int32_t v_dim) {
    const auto floats =
        static_cast<size_t>(bytes.num_splits * split_floats(shape.geometry.tile_rows, v_dim));
    partials.assign(floats, std::numeric_limits<float>::quiet_NaN());
  }
  // The schedule as kernels get it.
  WorkSchedule view() {
    return {counts.data(),           cta_begin.data(),        items.data(),
            reductions.data(),       sources.data(),          partials.data(),
            shape.geometry.num_ctas, shape.geometry.tile_rows};
  }
};

inline HostSchedule empty_schedule(const ScheduleShape& shape, const ScheduleLimits& limits) {
  HostSchedule schedule;
  schedule.shape = shape;
  schedule.bytes = schedule_bytes(shape, limits);
  const auto fill = [](auto* vector, int64_t bytes) {
    using Element = typename std::remove_reference_t<decltype(*vector)>::value_type;
    vector->resize(static_cast<size_t>(bytes) / sizeof(Element));
    if (bytes > 0)
      std::memset(static_cast<void*>(vector->data()), 0x7f, static_cast<size_t>(bytes));
  };
  fill(&schedule.counts, schedule.bytes.counts);
  fill(&schedule.cta_begin, schedule.bytes.cta_begin);
  fill(&schedule.items, schedule.bytes.items);
  fill(&schedule.reductions, schedule.bytes.reductions);
  fill(&schedule.sources, schedule.bytes.sources);
  fill(&schedule.scratch, schedule.bytes.scratch);
  return schedule;
}

// The least limits that hold these sequences.
inline ScheduleLimits limits_of(const std::vector<kernels::AttnSequence>& sequences) {
  ScheduleLimits limits{static_cast<int32_t>(sequences.size()), 0, 0, 0};
  for (const kernels::AttnSequence& sequence : sequences) {
    limits.max_rows += sequence.num_rows;
    int64_t end = sequence.first_key_end + sequence.num_rows;
    if (sequence.key_ends != nullptr && sequence.num_rows > 0)
      end = sequence.key_ends[sequence.num_rows - 1];
    limits.max_keys = std::max(limits.max_keys, end);
  }
  return limits;
}

inline HostSchedule make_schedule(const std::vector<kernels::AttnSequence>& sequences,
                                  const ScheduleShape& shape, const ScheduleLimits& limits,
                                  const std::vector<PrefixShare>& shares = {}) {
  HostSchedule schedule = empty_schedule(shape, limits);
  const auto num_sequences = static_cast<int32_t>(sequences.size());
  schedule_on_host({.shape = shape,
                    .limits = limits,
                    .sequences = sequences.data(),
                    .num_sequences_at = &num_sequences,
                    .schedule = schedule.view(),
                    .scratch = schedule.scratch.data(),
                    .shares = shares.empty() ? nullptr : shares.data()});
  return schedule;
}
inline HostSchedule make_schedule(const std::vector<kernels::AttnSequence>& sequences,
                                  const ScheduleShape& shape) {
  return make_schedule(sequences, shape, limits_of(sequences));
}

// The shape of a call that plans every sequence.
inline ScheduleShape schedule_shape(const kernels::AttnParams& params, const AttnGeometry& geometry,
                                    int32_t fixed_keys = 0, bool split_sinks = false) {
  return {.num_kv_heads = params.num_kv_heads,
          .group_size = params.num_q_heads / params.num_kv_heads,
          .causal = params.causal,
          .split_sinks = split_sinks ? 1 : 0,
          .fixed_keys = fixed_keys,
          .min_rows = 0,
          .max_rows = std::numeric_limits<int32_t>::max(),
          .geometry = geometry};
}

namespace executor_detail {

constexpr double kLog2E = 1.4426950408889634074;
constexpr double kMinusInfinity = -std::numeric_limits<double>::infinity();

struct PackedRow {
  int64_t token;  // packed token
  int64_t q_head;
};
inline PackedRow packed_row(const kernels::AttnParams& params, int32_t sequence, int32_t kv_head,
                            int64_t row) {
  const kernels::AttnSequence& rows = params.sequences[sequence];
  const int64_t group = params.num_q_heads / params.num_kv_heads, token_row = row / group;
  const int64_t token =
      rows.row_map != nullptr ? rows.row_map[token_row] : rows.row_begin + token_row;
  return {token, kv_head * group + row % group};
}

// Normalises (m, l, accumulators) into out and lse. Sinks are in natural units, as on the device.
inline void write_row(const kernels::AttnParams& params, const PackedRow& row, double m, double l,
                      const double* accumulators) {
  std::byte* out =
      params.out.base + row.token * params.out.token_stride + row.q_head * params.out.head_stride;
  const bool is_empty = m == kMinusInfinity;
  double denominator = l;
  if (params.sinks != nullptr) denominator += std::exp2(params.sinks[row.q_head] * kLog2E - m);
  for (int64_t d = 0; d < params.v_dim; ++d)
    kernels::reference::write_element(out, params.out.dtype, d,
                                      is_empty ? 0.0 : accumulators[d] / denominator);
  if (params.lse == nullptr) return;
  const double lse = is_empty ? kMinusInfinity : (m + std::log2(l)) / kLog2E;
  params.lse[row.token * params.lse_token_stride + row.q_head] = static_cast<float>(lse);
}

}  // namespace executor_detail

// One item, as an attention kernel would do it. params.alibi in log2 units, as kernels/reference
// wants it; sinks in natural ones.
inline void execute_item(const kernels::AttnParams& params, const WorkSchedule& schedule,
                         const WorkItem& item) {
  using namespace executor_detail;
  const int64_t group = params.num_q_heads / params.num_kv_heads, row_floats = 2 + params.v_dim;
  const int64_t token = item.row_begin / group;
  kernels::AttnItem tokens{};
  tokens.sequence = item.sequence;
  tokens.head_begin = item.kv_head;
  tokens.head_end = item.kv_head + 1;
  tokens.sink_part = item.sink_part;
  tokens.row_begin = token;
  tokens.row_end = (item.row_begin + item.num_rows - 1) / group + 1;
  tokens.key_begin = item.key_begin;
  tokens.key_end = item.key_end;
  tokens.partial = 0;
  // Of whole tokens: the item's rows are some in the middle.
  std::vector<float> partials(static_cast<size_t>((tokens.row_end - token) * group * row_floats));
  std::vector<std::byte> scratch(
      kernels::reference::attention_scratch_bytes(params, tokens.row_end - tokens.row_begin));
  kernels::AttnParams to_partials = params;
  to_partials.partials = partials.data();
  kernels::reference::attention(to_partials, tokens, scratch.data());
  const float* from = partials.data() + (item.row_begin - token * group) * row_floats;
  if (item.split >= 0) {
    float* slot = schedule.partials + item.split * split_floats(schedule.tile_rows, params.v_dim);
    std::copy_n(from, item.num_rows * row_floats, slot);
    return;
  }
  std::vector<double> accumulators(static_cast<size_t>(params.v_dim));
  for (int32_t r = 0; r < item.num_rows; ++r, from += row_floats) {
    std::copy_n(from + 2, params.v_dim, accumulators.begin());
    write_row(params, packed_row(params, item.sequence, item.kv_head, item.row_begin + r),
              static_cast<double>(from[0]), static_cast<double>(from[1]), accumulators.data());
  }
}

// One merge, in double: the oracle of combine.
inline void execute_reduction(const kernels::AttnParams& params, const WorkSchedule& schedule,
                              const ReduceItem& merge) {
  using namespace executor_detail;
  const int64_t row_floats = 2 + params.v_dim;
  std::vector<double> accumulators(static_cast<size_t>(params.v_dim));
  for (int32_t r = 0; r < merge.num_rows; ++r) {
    const auto part = [&](int32_t source) {
      const ReduceSource& from = schedule.sources[merge.first_source + source];
      return schedule.partials + from.split * split_floats(schedule.tile_rows, params.v_dim) +
             (from.row + r) * row_floats;
    };
    double m = kMinusInfinity, l = 0;
    for (int32_t s = 0; s < merge.num_sources; ++s)
      if (std::isnan(part(s)[0]) || static_cast<double>(part(s)[0]) > m)
        m = static_cast<double>(part(s)[0]);
    std::fill(accumulators.begin(), accumulators.end(), 0.0);
    for (int32_t s = 0; s < merge.num_sources && m != kMinusInfinity; ++s) {
      const double weight = std::exp2(static_cast<double>(part(s)[0]) - m);
      if (weight == 0) continue;
      l += weight * static_cast<double>(part(s)[1]);
      for (int64_t d = 0; d < params.v_dim; ++d)
        accumulators[static_cast<size_t>(d)] += weight * static_cast<double>(part(s)[2 + d]);
    }
    write_row(params, packed_row(params, merge.sequence, merge.kv_head, merge.row_begin + r), m, l,
              accumulators.data());
  }
}

// The whole list, CTA by CTA.
inline void execute_schedule(const kernels::AttnParams& params, const WorkSchedule& schedule) {
  for (int32_t cta = 0; cta < schedule.num_ctas; ++cta)
    for (int32_t i = schedule.cta_begin[cta]; i < schedule.cta_begin[cta + 1]; ++i)
      execute_item(params, schedule, schedule.items[i]);
  for (int32_t i = 0; i < schedule.counts[1]; ++i)
    execute_reduction(params, schedule, schedule.reductions[i]);
}

}  // namespace kvc::cuda::test
