// Runs the mma.sync attention kernel on a problem: the schedule's items on the device, its
// reductions on the host.
#pragma once

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

#include "kernels/cuda/launches.h"
#include "kernels/cuda/runtime/kernel_facts.h"
#include "kernels/reference/elements.h"
#include "tests/cuda/attn_mma_problem.h"

namespace kvc::cuda::test {

constexpr int kMmaArch = 90;
inline int32_t mma_shared_bytes() {
  int32_t bytes = 0;
  testing::check(max_shared_bytes(&bytes), "cudaDeviceGetAttribute");
  return bytes;
}

// What a kernel wrote.
struct AttnResult {
  std::vector<float> out;  // [tokens][heads][v_dim]
  std::vector<float> lse;  // [tokens][heads]
};
inline AttnResult read_result(const DeviceAttnProblem& problem) {
  AttnResult result;
  const std::vector<std::byte> bytes = problem.out.device->read();
  const kernels::TokenRows& rows = problem.params.out;
  for (int64_t t = 0; t < problem.tokens; ++t)
    for (int64_t h = 0; h < problem.num_q_heads; ++h)
      for (int64_t d = 0; d < problem.shape.v_dim; ++d)
        result.out.push_back(static_cast<float>(kernels::reference::read_element(
            bytes.data() + t * rows.token_stride + h * rows.head_stride, rows.dtype, d)));
  result.lse = problem.lse.device->read();
  return result;
}

// Distances relative to the size of what is expected; infinite where there is a NaN.
struct AttnErrors {
  double out = 0;  // over all rows together
  double row = 0;  // the worst row
  double lse = 0;  // the worst, absolute
};
inline AttnErrors errors_of(const AttnResult& actual, const std::vector<float>& out,
                            const std::vector<float>& lse, int64_t v_dim) {
  AttnErrors errors;
  double all_difference = 0, all_size = 0;
  for (size_t row = 0; row < lse.size(); ++row) {
    double difference = 0, size = 0;
    for (size_t d = row * static_cast<size_t>(v_dim); d < (row + 1) * static_cast<size_t>(v_dim);
         ++d) {
      const double a = static_cast<double>(actual.out[d]), e = static_cast<double>(out[d]);
      if (std::isnan(a) || std::isnan(e)) {
        errors.out = errors.row = std::numeric_limits<double>::infinity();
        return errors;
      }
      difference += (a - e) * (a - e), size += e * e;
    }
    all_difference += difference, all_size += size;
    if (difference > 0)
      errors.row = std::max(errors.row, std::sqrt(difference / std::max(size, 1e-30)));
    const double a = static_cast<double>(actual.lse[row]), e = static_cast<double>(lse[row]);
    if (a == e) continue;
    errors.lse = std::isfinite(a) && std::isfinite(e) ? std::max(errors.lse, std::abs(a - e))
                                                      : std::numeric_limits<double>::infinity();
  }
  errors.out = all_difference == 0 ? 0 : std::sqrt(all_difference / all_size);
  return errors;
}

// A schedule on the device, its items run by the kernel; reductions on the host.
struct DeviceSchedule {
  HostSchedule host;
  Twin<int32_t> counts, cta_begin;
  Twin<WorkItem> items;
  Twin<float> partials;

  WorkSchedule upload(int32_t v_dim) {
    host.reserve_partials(v_dim);
    counts.host = host.counts, cta_begin.host = host.cta_begin, items.host = host.items,
    partials.host = host.partials;
    WorkSchedule schedule = host.view();
    schedule.counts = counts.on_device(), schedule.cta_begin = cta_begin.on_device(),
    schedule.items = items.on_device();
    schedule.partials = partials.on_device();
    return schedule;
  }
};

// `change`: what a test wants otherwise about the launch.
inline AttnResult run_mma(DeviceAttnProblem& problem, HostSchedule host_plan,
                          const std::function<void(AttnLaunch&)>& change = nullptr) {
  DeviceSchedule schedule;
  schedule.host = std::move(host_plan);
  const int32_t tile_rows = schedule.host.shape.geometry.tile_rows, v_dim = problem.shape.v_dim;
  AttnLaunch launch = problem.device_launch();
  launch.schedule = schedule.upload(v_dim);
  if (change) change(launch);
  const char* why = "";
  const bool fits =
      tile_rows == 16
          ? attn_mma16_fits(launch, {.arch = kMmaArch, .shared_bytes = mma_shared_bytes()}, &why)
          : attn_mma64_fits(launch, {.arch = kMmaArch, .shared_bytes = mma_shared_bytes()}, &why);
  EXPECT_TRUE(fits) << why;
  if (!fits) return {};
  testing::check(tile_rows == 16 ? attn_mma16(launch, nullptr) : attn_mma64(launch, nullptr),
                 "attn_mma");
  testing::finish();
  AttnResult result = read_result(problem);
  if (schedule.partials.device != nullptr)
    schedule.host.partials = schedule.partials.device->read();
  AttnParams params = problem.host_params(result.out, result.lse);
  for (int32_t i = 0; i < schedule.host.num_reductions(); ++i)
    execute_reduction(params, schedule.host.view(),
                      schedule.host.reductions[static_cast<size_t>(i)]);
  return result;
}

inline HostSchedule plan_for(DeviceAttnProblem& problem, int32_t tile_rows, int32_t num_ctas,
                             int32_t fixed_keys = 0, bool split_sinks = false) {
  return make_schedule(
      problem.sequences,
      schedule_shape(problem.params, {tile_rows, 64, num_ctas, 1}, fixed_keys, split_sinks));
}

}  // namespace kvc::cuda::test
