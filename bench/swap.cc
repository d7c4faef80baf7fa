// Whole pages between the device pool and the host pool: single ones in random order, and runs.
// Bound by memory: compared with the fastest copy of our own, as plain memcpy is.
#include <algorithm>
#include <numeric>
#include <random>
#include <stdexcept>

#include "bench/benches.h"
#include "bench/copy_limit.h"
#include "bench/sequence_filler.h"

namespace kvc::bench {
namespace {

// Page ids (from, to) as a tensor.
class Pairs {
 public:
  Pairs(const std::vector<int64_t>& from, const std::vector<int64_t>& to)
      : shape_{static_cast<int64_t>(from.size()), 2}, tensor_{} {
    for (size_t i = 0; i < from.size(); ++i) values_.insert(values_.end(), {from[i], to[i]});
    tensor_ = {values_.data(), {kDLCPU, 0}, 2, {kDLInt, 64, 1}, shape_, nullptr, 0};
  }
  Pairs(const Pairs&) = delete;
  Pairs& operator=(const Pairs&) = delete;
  const DLTensor* tensor() const { return &tensor_; }

 private:
  std::vector<int64_t> values_;
  int64_t shape_[2];
  DLTensor tensor_;
};

void swap(Cache& cache, const Pairs& pairs, kvc_swap_direction direction) {
  kvc_error error{};
  check(kvc_pages_swap(cache.get(), pairs.tensor(), direction, nullptr, nullptr, &error), error);
}

// Moves the pools' pages, a part at a time, and back.
class Workload {
 public:
  // `kParts` lists of `pages_per_part` pairs. In runs: page i to page i; else every page to some
  // other, in random order.
  Workload(Cache& cache, int64_t pages_per_part, bool in_runs) : cache_(cache) {
    std::vector<int64_t> from(static_cast<size_t>(kParts * pages_per_part)), to(from.size());
    std::iota(from.begin(), from.end(), 0);
    std::iota(to.begin(), to.end(), 0);
    std::mt19937_64 random(17);
    if (!in_runs) {
      std::shuffle(from.begin(), from.end(), random);
      std::shuffle(to.begin(), to.end(), random);
    }
    for (int64_t part = 0; part < kParts; ++part) {
      const auto cut = [&](const std::vector<int64_t>& pages) {
        const auto begin = pages.begin() + part * pages_per_part;
        return std::vector<int64_t>(begin, begin + pages_per_part);
      };
      out_.push_back(std::make_unique<Pairs>(cut(from), cut(to)));
      in_.push_back(std::make_unique<Pairs>(cut(to), cut(from)));
    }
  }
  static constexpr int64_t kParts = 4;

  void run(int round, kvc_swap_direction direction) {
    const auto part = static_cast<size_t>(round) % kParts;
    swap(cache_, direction == KVC_SWAP_OUT ? *out_[part] : *in_[part], direction);
  }

 private:
  Cache& cache_;
  std::vector<std::unique_ptr<Pairs>> out_, in_;
};

}  // namespace

Report run_swap(const SwapOptions& options) {
  Report report = model_report("swap", options.model, options.common);
  CacheShape shape = shape_of(options.model, options.common);
  shape.layers = options.layers;
  shape.page_first = options.layout == "page-first";
  const int64_t page_bytes = shape.layers * shape.page_layer_bytes();
  const int64_t pages_per_part = std::max<int64_t>(1, kCopyLimitBytes / page_bytes);
  shape.num_pages = shape.num_host_pages = Workload::kParts * pages_per_part;
  if (2 * shape.num_pages * page_bytes > kLargestPoolBytes)
    throw std::runtime_error("the pools would be too large: fewer --layers or a smaller --page");
  Cache cache(shape);
  cache.add(0);
  SequenceFiller(cache).grow(0, shape.num_pages * shape.page_size);  // Touch every page.

  ThreadTeam team(shape.threads);
  CopyLimit limit(team, pages_per_part * page_bytes);
  report["layers"] = shape.layers;
  report["layout"] = options.layout;
  report["page_bytes"] = page_bytes;
  report["pages_per_call"] = pages_per_part;
  report["copy_limit_streams"] = limit.stream_stores();
  Report plain;
  add_pairs(plain,
            measure_pairs(shape.threads, options.common.budget, limit.side(), limit.memcpy_side()),
            1e9, "gbps", "copy_limit_gbps");
  report["memcpy"] = plain;
  for (const bool in_runs : {false, true}) {
    Workload workload(cache, pages_per_part, in_runs);
    // The first swaps touch every host page.
    for (int part = 0; part < Workload::kParts; ++part) workload.run(part, KVC_SWAP_OUT);
    for (const kvc_swap_direction direction : {KVC_SWAP_OUT, KVC_SWAP_IN}) {
      const uint64_t runs_before = cache.stats().copy_runs;
      workload.run(0, direction);
      const uint64_t runs = cache.stats().copy_runs - runs_before;
      const Side subject{static_cast<double>(pages_per_part * page_bytes),
                         [&](int round) { workload.run(round, direction); }};
      Report part;
      part["runs_per_call"] = runs;
      add_pairs(part, measure_pairs(shape.threads, options.common.budget, limit.side(), subject),
                1e9, "gbps", "copy_limit_gbps");
      report[std::string(direction == KVC_SWAP_OUT ? "out" : "in") +
             (in_runs ? "_runs" : "_random")] = part;
    }
  }
  return report;
}

}  // namespace kvc::bench
