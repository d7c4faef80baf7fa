// The benches of a GPU: fixed shapes, each against the floor that the device's own copy rate sets.
#pragma once

#include <string>
#include <vector>

#include "bench/measure.h"
#include "bench/report.h"

namespace kvc::bench {

// bfloat16 multiplications of large matrices (8192 x 8192, random numbers) on an H200, 10^12 flops
// per second. Assumed, not measured here.
constexpr double kAssumedMatmulTflops = 790;

struct GpuOptions {
  std::string device = "cpu";       // "cuda", "cuda:N"
  std::vector<std::string> shapes;  // Empty: all.
  double matmul_tflops = kAssumedMatmulTflops;
  bool tiny = false;
  bool json = false;
  Budget budget;
};

bool has_gpu_shapes(const std::string& bench);

// `bench`: those of one subcommand; empty: of all. Throws std::runtime_error where there is no such
// device.
Report run_gpu(const GpuOptions& options, const std::string& bench);
// The report as a table for people, or as one JSON object.
void print_gpu_report(const Report& report, bool json);

}  // namespace kvc::bench
