#include "bench/gpu_run.h"

#include <algorithm>
#include <cmath>
#include <memory>
#include <numeric>
#include <stdexcept>
#include <string>

#include "bench/fixture.h"
#include "bench/gpu_cache.h"
#include "bench/gpu_measure.h"

namespace kvc::bench {
namespace {

// Layers are taken in turn until their bytes make the device's cache (50 to 60 MB) forget the
// first.
constexpr double kColdBytes = 256e6;
constexpr int kMostLayers = 16;
constexpr int kStepRounds = 3, kStepsPerRound = 16;  // begin and end without layers.

int layers_of(const GpuShape& shape, bool once) {
  if (once) return 2;
  return std::clamp(static_cast<int>(std::ceil(kColdBytes / work_of(shape).bytes)), 1, kMostLayers);
}

double microseconds(double seconds) { return rounded(seconds * 1e6); }

Report shape_report(const GpuShape& shape) {
  Report report;
  report["id"] = shape.id;
  report["bench"] = shape.bench;
  report["what"] = shape.what;
  report["batch"] = shape.batch;
  report["new_tokens"] = shape.new_tokens;
  report["q_heads"] = shape.q_heads;
  report["kv_heads"] = shape.kv_heads;
  report["k_dim"] = shape.k_dim;
  report["v_dim"] = shape.v_dim;
  report["page"] = shape.page_size;
  report["storage"] = shape.op == GpuOp::kLinear ? "fp32" : shape.fp8 ? "e4m3" : "bf16";
  return report;
}

void add_times(Report& report, const CallTimes& times, const GpuWork& work,
               const GpuLimits& limits) {
  const double floor = floor_of(work, limits);
  report["us"] = microseconds(times.seconds.median);
  report["us_min"] = microseconds(times.seconds.min);
  report["us_max"] = microseconds(times.seconds.max);
  report["calls"] = times.calls;
  report["rounds"] = times.rounds;
  report["enqueue_us"] = microseconds(times.enqueue);
  report["host_bound"] = times.is_host_bound();
  report["bytes"] = work.bytes;
  report["gbps"] = rounded(work.bytes / times.seconds.median / 1e9);
  if (work.flops > 0) {
    report["flops"] = work.flops;
    report["tflops"] = rounded(work.flops / times.seconds.median / 1e12);
  }
  report["floor"] = work.flops / limits.flops_per_second > work.bytes / limits.bytes_per_second
                        ? "matmul"
                        : "copy";
  report["floor_us"] = microseconds(floor);
  report["share"] = rounded(floor / times.seconds.median);
}

// What nobody has written, or computed from what nobody has written, is no result to time.
void require_finite(const GpuTensor& out) {
  if (!out.is_finite()) throw std::runtime_error("the output is not finite");
}

// The sequences of a shape in a cache of its own, filled, and a step that is begun over and over.
class Scene {
 public:
  Scene(const Gpu& gpu, const GpuShape& shape, int layers)
      : gpu_(gpu), shape_(shape), cache_(gpu, shape, layers, num_pages(shape)) {
    seqs_.resize(static_cast<size_t>(shape.batch));
    std::iota(seqs_.begin(), seqs_.end(), 0);
    new_tokens_.assign(seqs_.size(), shape.new_tokens);
    for (size_t i = 0; shape.tree && i < seqs_.size(); ++i) {
      const std::vector<int32_t> parents = tree_parents(shape.new_tokens);
      parents_.insert(parents_.end(), parents.begin(), parents.end());
    }
    constexpr kvc_seq kPrefix = 1 << 16;
    if (shape.shared > 0) {
      cache_.add(kPrefix);
      cache_.grow_shuffled({kPrefix}, {shape.shared});
    }
    for (const kvc_seq seq : seqs_) {
      if (shape.shared > 0) {
        cache_.fork(kPrefix, seq);
      } else {
        cache_.add(seq);
      }
    }
    if (shape.shared > 0) cache_.remove(kPrefix);
    grow();
  }

  GpuCache& cache() { return cache_; }
  kvc_forward* begin() { return cache_.begin(seqs_, new_tokens_, parents_); }
  int64_t rows() const { return shape_.batch * shape_.new_tokens; }

  // Begin and end without layers: what the bookkeeping and the step kernel take. Steps of one token
  // go on; larger ones are aborted, and those of states, which an end would copy. `layer`, if any,
  // runs in between.
  void add_steps(Report& report, const std::string& name, bool once,
                 const std::function<void(kvc_forward*)>& layer) {
    const bool ends = shape_.new_tokens == 1 && shape_.op != GpuOp::kLinear && !layer;
    std::vector<double> device, host;
    for (int round = -1; round < (once ? 1 : kStepRounds); ++round) {
      const int steps = once ? 1 : kStepsPerRound;
      const double start = now_seconds();
      for (int step = 0; step < steps; ++step) {
        kvc_forward* forward = begin();
        if (layer) layer(forward);
        ends ? cache_.end(forward) : cache_.abort(forward);
      }
      const double enqueued = now_seconds() - start;
      gpu_.synchronize();
      if (round < 0) continue;  // Memory grows.
      device.push_back((now_seconds() - start) / steps);
      host.push_back(enqueued / steps);
    }
    report[name + "_us"] = microseconds(spread_of(device).median);
    report[name + "_host_us"] = microseconds(spread_of(host).median);
    if (!layer) report[name + "_by"] = ends ? "begin, end" : "begin, abort";
  }

 private:
  // A step takes its pages at once, adjacent ones where it finds them. So that many new tokens find
  // free pages at random places only, sequences that keep three of four lie between them.
  void grow() {
    std::vector<kvc_seq> seqs = seqs_;
    std::vector<int64_t> lengths = cached_lengths(shape_);
    constexpr kvc_seq kKeeper = 1 << 17, kHole = kKeeper + 1;
    const int64_t hole = hole_pages(shape_) * shape_.page_size;
    if (hole > 0) {
      seqs.insert(seqs.end(), {kKeeper, kHole});
      lengths.insert(lengths.end(), {kKeptPerHole * hole, hole});
      cache_.add(kKeeper);
      cache_.add(kHole);
    }
    cache_.grow_shuffled(seqs, lengths);
    if (hole > 0) cache_.remove(kHole);
  }
  static int64_t hole_pages(const GpuShape& shape) {
    return shape.new_tokens == 1 ? 0 : shape.batch * pages_for(shape, shape.new_tokens);
  }

  // With room for the steps of add_steps.
  static int64_t num_pages(const GpuShape& shape) {
    const int64_t steps =
        shape.new_tokens == 1 ? (kStepRounds + 1) * kStepsPerRound : shape.new_tokens;
    int64_t pages = pages_for(shape, shape.shared) + kKeptPerHole * hole_pages(shape);
    for (const int64_t cached : cached_lengths(shape)) {
      const int64_t tokens =
          shape.window > 0 ? std::min(cached, shape.window) + 2 * shape.page_size : cached;
      pages += pages_for(shape, tokens + steps) + 1;
    }
    return pages;
  }

  static constexpr int64_t kKeptPerHole = 3;

  const Gpu& gpu_;
  GpuShape shape_;
  GpuCache cache_;
  std::vector<kvc_seq> seqs_;
  std::vector<int64_t> new_tokens_;
  std::vector<int32_t> parents_;
};

// q, k, v and out of a step.
class Rows {
 public:
  Rows(const Gpu& gpu, const GpuShape& shape, int64_t rows) : shape_(shape) {
    const bool is_self = shape.op == GpuOp::kSelf;
    const int k_heads = is_self ? shape.q_heads : shape.kv_heads;
    q_ = tensor(gpu, {rows, shape.q_heads, shape.k_dim}, 1);
    k_ = tensor(gpu, {rows, k_heads, shape.k_dim}, 2);
    if (is_self || !shape.is_mla()) v_ = tensor(gpu, {rows, k_heads, shape.v_dim}, 3);
    out_ = tensor(gpu, {rows, shape.q_heads, shape.v_dim}, 4);
    out_->poison();
    if (shape.sinks)
      sinks_ =
          std::make_unique<GpuTensor>(gpu, kF32, std::vector<int64_t>{shape.q_heads}, Values{}, 5);
  }

  // One layer, with the rows appended or (they lie there) without.
  void attend(kvc_forward* forward, int layer, bool appends, uint64_t flags = 0) {
    kvc_attn_opt opt{};
    opt.struct_size = sizeof opt;
    opt.flags = flags;
    // Of the 128 + 64 elements before absorption.
    if (shape_.is_mla()) opt.scale = 1 / std::sqrt(192.0f);
    if (sinks_ != nullptr) opt.sink_logits = sinks_->get();
    kvc_error error{};
    error.struct_size = sizeof error;
    if (shape_.op == GpuOp::kSelf) {
      check(kvc_attn_self(forward, layer, &opt, q_->get(), k_->get(), v_->get(), out_->get(),
                          nullptr, &error),
            error);
      return;
    }
    const DLTensor* k = appends ? k_->get() : nullptr;
    const DLTensor* v = appends && v_ != nullptr ? v_->get() : nullptr;
    check(kvc_attn(forward, layer, &opt, q_->get(), k, v, out_->get(), nullptr, &error), error);
  }
  void require_finite() const { bench::require_finite(*out_); }
  void append(kvc_forward* forward, int layer) {
    kvc_error error{};
    error.struct_size = sizeof error;
    check(kvc_kv_append(forward, layer, k_->get(), v_->get(), &error), error);
  }

 private:
  static std::unique_ptr<GpuTensor> tensor(const Gpu& gpu, std::vector<int64_t> shape,
                                           uint64_t seed) {
    return std::make_unique<GpuTensor>(gpu, kBf16, std::move(shape), Values{}, seed);
  }
  GpuShape shape_;
  std::unique_ptr<GpuTensor> q_, k_, v_, out_, sinks_;
};

// Layers in turn, in one open forward.
struct Runner {
  const Gpu& gpu;
  const Budget& budget;
  bool once;
  CallTimes run(int layers, const std::function<void(int)>& layer) const {
    return measure_calls(gpu, budget, once,
                         [&](int64_t i) { layer(static_cast<int>(i % layers)); });
  }
};

void add_layers(Report& report, Scene& scene, kvc_forward* forward, int layers) {
  report["layers"] = layers;
  report["adjacent_share"] = rounded(scene.cache().adjacent_share(forward));
}

void add_step_bytes(Report& report, const kvc_stats& stats) {
  report["step_bytes"] = stats.step_bytes;
  report["step_copies"] = stats.step_copies;
}

void run_attention(const Runner& runner, const GpuShape& shape, const GpuLimits& limits,
                   Report& report) {
  const int layers = layers_of(shape, runner.once);
  Scene scene(runner.gpu, shape, layers);
  Rows rows(runner.gpu, shape, scene.rows());
  kvc_forward* forward = scene.begin();
  add_layers(report, scene, forward, layers);
  add_step_bytes(report, scene.cache().stats());
  for (int layer = 0; layer < layers; ++layer) rows.attend(forward, layer, true);
  rows.require_finite();
  add_times(report, runner.run(layers, [&](int layer) { rows.attend(forward, layer, false); }),
            work_of(shape), limits);
  if (shape.op != GpuOp::kSelf) {
    const CallTimes times =
        runner.run(layers, [&](int layer) { rows.attend(forward, layer, true); });
    report["with_append_us"] = microseconds(times.seconds.median);
  }
  if (layers > 1)
    report["warm_us"] =
        microseconds(runner.run(1, [&](int) { rows.attend(forward, 0, false); }).seconds.median);
  if (shape.op == GpuOp::kCascade) {
    const CallTimes flat = runner.run(
        layers, [&](int layer) { rows.attend(forward, layer, false, KVC_ATTN_NO_CASCADE); });
    report["flat_us"] = microseconds(flat.seconds.median);
    report["flat_share"] = rounded(floor_of(flat_work_of(shape), limits) / flat.seconds.median);
    report["cascades"] = scene.cache().stats().cascades;
  }
  scene.cache().abort(forward);
  // The first call of a forward looks the keys up and plans: the difference to the sum of the
  // others is that.
  scene.add_steps(report, "one_layer_step", runner.once,
                  [&](kvc_forward* step) { rows.attend(step, 0, true); });
  scene.add_steps(report, "empty_step", runner.once, nullptr);
}

void run_append(const Runner& runner, const GpuShape& shape, const GpuLimits& limits,
                Report& report) {
  const int layers = layers_of(shape, runner.once);
  Scene scene(runner.gpu, shape, layers);
  Rows rows(runner.gpu, shape, scene.rows());
  kvc_forward* forward = scene.begin();
  add_layers(report, scene, forward, layers);
  add_step_bytes(report, scene.cache().stats());
  add_times(report, runner.run(layers, [&](int layer) { rows.append(forward, layer); }),
            work_of(shape), limits);
  if (layers > 1)
    report["warm_us"] =
        microseconds(runner.run(1, [&](int) { rows.append(forward, 0); }).seconds.median);
  scene.cache().abort(forward);
  scene.add_steps(report, "empty_step", runner.once, nullptr);
}

// Half of the pool's pages, chosen at random, into the other half.
void run_copy(const Runner& runner, const GpuShape& shape, const GpuLimits& limits,
              Report& report) {
  GpuCache cache(runner.gpu, shape, 1, 2 * shape.batch);
  std::vector<int64_t> pages(static_cast<size_t>(2 * shape.batch));
  std::iota(pages.begin(), pages.end(), 0);
  std::shuffle(pages.begin(), pages.end(), std::mt19937_64(9));
  int64_t pairs_shape[2] = {shape.batch, 2};
  const DLTensor pairs{pages.data(), {kDLCPU, 0}, 2, {kDLInt, 64, 1}, pairs_shape, nullptr, 0};
  report["layers"] = 1;
  add_times(
      report,
      runner.run(1,
                 [&](int) {
                   kvc_error error{};
                   error.struct_size = sizeof error;
                   check(kvc_pages_copy(cache.get(), &pairs, runner.gpu.stream(), nullptr, &error),
                         error);
                 }),
      work_of(shape), limits);
  for (size_t pair = 0; pair < pages.size(); pair += std::max<size_t>(2, pages.size() / 16 * 2)) {
    if (!cache.are_equal(pages[pair], pages[pair + 1]))
      throw std::runtime_error("a page was not copied");
  }
}

// Rows of a gated delta rule: q and k have kv_heads heads, v q_heads.
class LinearRows {
 public:
  LinearRows(const Gpu& gpu, const GpuShape& shape)
      : q_(gpu, kBf16, {shape.batch, shape.kv_heads, shape.k_dim}, {}, 1),
        k_(gpu, kBf16, {shape.batch, shape.kv_heads, shape.k_dim}, short_keys(shape), 2),
        v_(gpu, kBf16, {shape.batch, shape.q_heads, shape.v_dim}, {}, 3),
        decay_(gpu, kF32, {shape.batch, shape.q_heads}, {-0.1f, 0}, 4),
        beta_(gpu, kF32, {shape.batch, shape.q_heads}, {0.25f, 0.75f}, 5),
        out_(gpu, kBf16, {shape.batch, shape.q_heads, shape.v_dim}, {}, 6) {
    out_.poison();
  }
  void require_finite() const { bench::require_finite(out_); }
  void step(kvc_forward* forward, int layer) {
    kvc_linear_opt opt{};
    opt.struct_size = sizeof opt;
    opt.flags = KVC_LINEAR_DELTA;
    opt.decay = KVC_DECAY_TOKEN;
    kvc_error error{};
    error.struct_size = sizeof error;
    check(kvc_attn_linear(forward, layer, &opt, q_.get(), k_.get(), v_.get(), decay_.get(),
                          beta_.get(), out_.get(), &error),
          error);
  }

 private:
  // Shorter than 1, as a delta rule needs them.
  static Values short_keys(const GpuShape& shape) {
    const float size = 1 / std::sqrt(static_cast<float>(shape.k_dim));
    return {-size, size};
  }
  GpuTensor q_, k_, v_, decay_, beta_, out_;
};

void run_linear(const Runner& runner, const GpuShape& shape, const GpuLimits& limits,
                Report& report) {
  const int layers = layers_of(shape, runner.once);
  Scene scene(runner.gpu, shape, layers);
  LinearRows rows(runner.gpu, shape);
  // States that are not the initial one: some tokens, each of which changes all of them.
  for (int token = 0; token < (runner.once ? 1 : 16); ++token) {
    kvc_forward* forward = scene.begin();
    for (int layer = 0; layer < layers; ++layer) rows.step(forward, layer);
    scene.cache().end(forward);
  }
  rows.require_finite();
  kvc_forward* forward = scene.begin();
  report["layers"] = layers;
  add_step_bytes(report, scene.cache().stats());
  add_times(report, runner.run(layers, [&](int layer) { rows.step(forward, layer); }),
            work_of(shape), limits);
  scene.cache().abort(forward);
  scene.add_steps(report, "empty_step", runner.once, nullptr);
}

}  // namespace

double floor_of(const GpuWork& work, const GpuLimits& limits) {
  return std::max(work.bytes / limits.bytes_per_second, work.flops / limits.flops_per_second);
}

Report run_shape(const Gpu& gpu, const GpuShape& shape, const GpuLimits& limits,
                 const Budget& budget, bool once) {
  Report report = shape_report(shape);
  const Runner runner{gpu, budget, once};
  try {
    switch (shape.op) {
      case GpuOp::kAttend:
      case GpuOp::kSelf:
      case GpuOp::kCascade: run_attention(runner, shape, limits, report); break;
      case GpuOp::kAppend: run_append(runner, shape, limits, report); break;
      case GpuOp::kCopy: run_copy(runner, shape, limits, report); break;
      case GpuOp::kLinear: run_linear(runner, shape, limits, report); break;
    }
  } catch (const std::runtime_error& error) {
    // What the library cannot do yet is a finding; anything else is told as well, and the other
    // shapes go on.
    const std::string reason = error.what();
    report[reason.rfind("KVC_E_UNSUPPORTED", 0) == 0 ? "refused" : "failed"] = reason;
  }
  return report;
}

}  // namespace kvc::bench
