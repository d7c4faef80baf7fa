#include "bench/gpu_bench.h"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <stdexcept>

#include "bench/gpu.h"
#include "bench/gpu_measure.h"
#include "bench/gpu_run.h"
#include "bench/gpu_shapes.h"

namespace kvc::bench {
namespace {

std::vector<GpuShape> chosen_shapes(const GpuOptions& options, const std::string& bench) {
  std::vector<GpuShape> chosen;
  std::string known;
  for (const GpuShape& shape : gpu_shapes()) {
    if (!bench.empty() && shape.bench != bench) continue;
    known += (known.empty() ? "" : ", ") + shape.id;
    if (options.shapes.empty() ||
        std::find(options.shapes.begin(), options.shapes.end(), shape.id) != options.shapes.end())
      chosen.push_back(options.tiny ? tiny(shape) : shape);
  }
  for (const std::string& id : options.shapes) {
    if (std::none_of(chosen.begin(), chosen.end(),
                     [&](const GpuShape& shape) { return shape.id == id; }))
      throw std::runtime_error("--shapes " + id + ": expected some of " + known);
  }
  return chosen;
}

std::string matmul_source(const GpuOptions& options, const Gpu& gpu) {
  if (options.matmul_tflops != kAssumedMatmulTflops) return "--matmul-tflops";
  const std::string source = "assumed: bfloat16 matrices of 8192 on an H200";
  return std::strstr(gpu.caps().name, "H200") != nullptr ? source
                                                         : source + ", which this device is not";
}

// A figure as the table shows it.
std::string cell(const Report& shape, const char* name) {
  const auto found = shape.find(name);
  if (found == shape.end()) return "-";
  return found->is_string() ? found->get<std::string>() : found->dump();
}

}  // namespace

bool has_gpu_shapes(const std::string& bench) {
  return bench.empty() || std::any_of(gpu_shapes().begin(), gpu_shapes().end(),
                                      [&](const GpuShape& shape) { return shape.bench == bench; });
}

Report run_gpu(const GpuOptions& options, const std::string& bench) {
  const std::vector<GpuShape> shapes = chosen_shapes(options, bench);
  const Gpu gpu(options.device);
  Report report;
  report["bench"] = bench.empty() ? "device" : bench;
  report["library"] = kvc_version_string();
  report["device"] = "cuda:" + std::to_string(gpu.device().device_id);
  report["device_name"] = gpu.caps().name;
  report["emulated"] = gpu.is_emulated();
  report["arch"] = gpu.info().arch;
  report["sms"] = gpu.info().num_sms;
  report["tiny"] = options.tiny;
  const Spread copy = copy_rate(gpu, options.budget, options.tiny);
  report["copy_gbps"] = rounded(copy.median / 1e9);
  report["copy_gbps_min"] = rounded(copy.min / 1e9);
  report["copy_gbps_max"] = rounded(copy.max / 1e9);
  report["matmul_tflops"] = options.matmul_tflops;
  report["matmul_source"] = matmul_source(options, gpu);
  const GpuLimits limits{copy.median, options.matmul_tflops * 1e12};
  Report results = Report::array();
  for (const GpuShape& shape : shapes)
    results.push_back(run_shape(gpu, shape, limits, options.budget, options.tiny));
  try {
    report["copy_gbps_after"] = rounded(copy_rate(gpu, options.budget, options.tiny).median / 1e9);
  } catch (const std::runtime_error&) {  // A device was lost on the way: the shapes say so.
  }
  report["shapes"] = std::move(results);
  return report;
}

void print_gpu_report(const Report& report, bool json) {
  Report head = report;
  if (!json) head.erase("shapes");
  print_report(head, json);
  if (json) return;
  std::printf("\n%-7s %11s %11s %7s %9s %9s %10s %11s %7s  %s\n", "shape", "us", "floor_us",
              "share", "GB/s", "TFLOP/s", "enqueue_us", "step_us", "sent", "what");
  for (const Report& shape : report["shapes"]) {
    const char* const outcome = shape.contains("refused")  ? "refused"
                                : shape.contains("failed") ? "failed"
                                                           : nullptr;
    if (outcome != nullptr) {
      std::printf("%-7s %s: %s\n", cell(shape, "id").c_str(), outcome,
                  cell(shape, outcome).c_str());
      continue;
    }
    std::printf("%-7s %11s %11s %7s %9s %9s %10s %11s %7s  %s%s\n", cell(shape, "id").c_str(),
                cell(shape, "us").c_str(), cell(shape, "floor_us").c_str(),
                cell(shape, "share").c_str(), cell(shape, "gbps").c_str(),
                cell(shape, "tflops").c_str(), cell(shape, "enqueue_us").c_str(),
                cell(shape, "empty_step_us").c_str(), cell(shape, "step_bytes").c_str(),
                cell(shape, "what").c_str(),
                shape["host_bound"].get<bool>() ? " (bound by the host)" : "");
  }
  std::printf(
      "\nstep_us: begin and end without layers; sent: bytes that a step sends to the device%s%s\n",
      report["tiny"].get<bool>() ? "; --tiny: not the sizes of the shapes" : "",
      report["emulated"].get<bool>() ? "; an emulated device: no figure says anything of a GPU"
                                     : "");
}

}  // namespace kvc::bench
