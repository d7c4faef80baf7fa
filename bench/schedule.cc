// Both schedulers on the same decode batch: the work list of the CPU, and the one that a GPU gets,
// in its fixed_keys form, which cuts keys where the CPU does. A step makes one per layer shape.
#include <benchmark/benchmark.h>

#include <cstdint>
#include <vector>

#include "src/exec/cpu/work_list.h"
#include "tests/cuda/schedule_executor.h"

namespace {

using kvc::kernels::AttnSequence;

// 32 heads over 8 KV heads of dim 128.
constexpr kvc::WorkShape kShape{.num_q_heads = 32,
                                .num_kv_heads = 8,
                                .k_dim = 128,
                                .v_dim = 128,
                                .causal = true,
                                .tiles_only = false,
                                .is_latent = false,
                                .concurrency = 16};

std::vector<AttnSequence> decode_batch(int64_t num_seqs, int64_t length) {
  std::vector<AttnSequence> batch(static_cast<size_t>(num_seqs));
  for (int64_t i = 0; i < num_seqs; ++i) {
    AttnSequence& sequence = batch[static_cast<size_t>(i)];
    sequence.row_begin = i;
    sequence.num_rows = 1;
    sequence.first_key_end = length + i % 7;
  }
  return batch;
}

void work_list(benchmark::State& state) {
  const std::vector<AttnSequence> batch = decode_batch(state.range(0), state.range(1));
  kvc::WorkList list;
  for (auto _ : state) {
    kvc::schedule_work(batch.data(), state.range(0), kShape, {}, &list);
    benchmark::DoNotOptimize(list.items.data());
  }
  state.counters["items"] = static_cast<double>(list.items.size());
}

void cta_schedule(benchmark::State& state) {
  const std::vector<AttnSequence> batch = decode_batch(state.range(0), state.range(1));
  kvc::cuda::AttnGeometry geometry{};
  geometry.num_ctas = kShape.concurrency;
  geometry.tile_rows = 16;
  geometry.key_block = 64;
  geometry.item_cost = 2;
  const kvc::cuda::ScheduleShape shape{.num_kv_heads = kShape.num_kv_heads,
                                       .group_size = kShape.group_size(),
                                       .causal = 1,
                                       .split_sinks = 0,
                                       .fixed_keys = static_cast<int32_t>(kvc::split_keys(kShape)),
                                       .min_rows = 0,
                                       .max_rows = INT32_MAX,
                                       .geometry = geometry};
  const kvc::cuda::ScheduleLimits limits = kvc::cuda::test::limits_of(batch);
  auto schedule = kvc::cuda::test::empty_schedule(shape, limits);
  const auto num_sequences = static_cast<int32_t>(batch.size());
  for (auto _ : state) {
    kvc::cuda::schedule_on_host({.shape = shape,
                                 .limits = limits,
                                 .sequences = batch.data(),
                                 .num_sequences_at = &num_sequences,
                                 .schedule = schedule.view(),
                                 .scratch = schedule.scratch.data(),
                                 .shares = nullptr});
    benchmark::DoNotOptimize(schedule.items.data());
  }
  state.counters["items"] = static_cast<double>(schedule.num_items());
}

void shapes(benchmark::internal::Benchmark* bench) {
  for (const int64_t num_seqs : {1, 8, 64, 256}) {
    for (const int64_t length : {512, 8192}) bench->Args({num_seqs, length});
  }
}
BENCHMARK(work_list)->Apply(shapes)->Unit(benchmark::kMicrosecond);
BENCHMARK(cta_schedule)->Apply(shapes)->Unit(benchmark::kMicrosecond);

}  // namespace
