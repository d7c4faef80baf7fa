// Linear attention through kvc_op_linear_step in the shape of a Gated DeltaNet layer, float32
// states. A step is bound by memory: compared with reading and writing the same states. A prefill
// is bound by arithmetic: compared with the multiply-add peak, and with the same tokens one step at
// a time.
#include <algorithm>
#include <cmath>
#include <cstring>
#include <random>
#include <stdexcept>

#include "bench/benches.h"

namespace kvc::bench {
namespace {

constexpr int64_t kRunBytes = int64_t{48} << 20;  // States of one timed portion of a step.
constexpr int kMeasurements = 4;                  // Measurements that share the time.

// A tensor of random numbers in (-size, size), or of one value.
class Tensor {
 public:
  Tensor(DLDataType dtype, std::vector<int64_t> shape)
      : shape_(std::move(shape)), buffer_(bytes(dtype)) {
    tensor_.data = buffer_.data();
    tensor_.device = {kDLCPU, 0};
    tensor_.ndim = static_cast<int32_t>(shape_.size());
    tensor_.dtype = dtype;
    tensor_.shape = shape_.data();
  }
  Tensor(const Tensor&) = delete;
  Tensor& operator=(const Tensor&) = delete;

  Tensor& random(double size) {
    std::mt19937 engine(7);
    std::uniform_real_distribution<float> distribution(-static_cast<float>(size),
                                                       static_cast<float>(size));
    for (int64_t i = 0; i < elements(); ++i) put(i, distribution(engine));
    return *this;
  }
  Tensor& fill(float value) {
    for (int64_t i = 0; i < elements(); ++i) put(i, value);
    return *this;
  }

  DLTensor* all() { return &tensor_; }
  // Entry `index` of dimension 0, as a tensor of one.
  DLTensor* one(int64_t index) {
    one_ = tensor_;
    one_shape_ = shape_;
    one_shape_[0] = 1;
    one_.shape = one_shape_.data();
    one_.byte_offset = static_cast<uint64_t>(index * (elements() / shape_[0]) * element_bytes());
    return &one_;
  }
  std::byte* data() { return buffer_.data(); }

 private:
  int64_t elements() const {
    int64_t count = 1;
    for (const int64_t extent : shape_) count *= extent;
    return count;
  }
  int64_t element_bytes() const { return tensor_.dtype.bits / 8; }
  size_t bytes(DLDataType dtype) const {
    return static_cast<size_t>(elements() * (dtype.bits / 8));
  }
  void put(int64_t index, float value) {
    uint32_t bits;
    std::memcpy(&bits, &value, sizeof bits);
    if (tensor_.dtype.bits == 32) {
      std::memcpy(buffer_.data() + 4 * index, &bits, 4);
    } else {  // bfloat16
      const auto high = static_cast<uint16_t>(bits >> 16);
      std::memcpy(buffer_.data() + 2 * index, &high, 2);
    }
  }

  std::vector<int64_t> shape_, one_shape_;
  Buffer buffer_;
  DLTensor tensor_{}, one_{};
};

// Threads of the bench as the library's executor.
class TeamExecutor {
 public:
  explicit TeamExecutor(ThreadTeam& team) : team_(team) {
    executor_.struct_size = sizeof executor_;
    executor_.user = this;
    executor_.concurrency = [](void* user) {
      return static_cast<TeamExecutor*>(user)->team_.size();
    };
    executor_.parallel_for = [](void* user, int64_t num_tasks, void (*fn)(void*, int64_t, int32_t),
                                void* arg) {
      static_cast<TeamExecutor*>(user)->team_.run_tasks(
          num_tasks, [&](int64_t task, int thread) { fn(arg, task, thread); });
    };
  }
  const kvc_executor* get() const { return &executor_; }

 private:
  ThreadTeam& team_;
  kvc_executor executor_{};
};

// q, k, v, gates and outputs of `rows` tokens.
struct LinearRows {
  LinearRows(const LinearOptions& options, int64_t rows)
      : q(dl_type(Storage::kBF16), {rows, options.k_heads, options.dim}),
        k(dl_type(Storage::kBF16), {rows, options.k_heads, options.dim}),
        v(dl_type(Storage::kBF16), {rows, options.heads, options.dim}),
        out(dl_type(Storage::kBF16), {rows, options.heads, options.dim}),
        decay(dl_type(Storage::kF32), {rows, options.heads}),
        beta(dl_type(Storage::kF32), {rows, options.heads}) {
    q.random(1), v.random(1), decay.fill(-0.05f), beta.fill(0.5f);
    // Shorter than 1, as a delta rule needs it.
    k.random(1 / std::sqrt(static_cast<double>(options.dim)));
  }
  Tensor q, k, v, out, decay, beta;
};

class LinearLayer {
 public:
  LinearLayer(const LinearOptions& options, const kvc_executor* executor) {
    linear_.struct_size = sizeof linear_;
    linear_.flags = KVC_LINEAR_DELTA;
    linear_.decay = KVC_DECAY_TOKEN;
    opt_.struct_size = sizeof opt_;
    opt_.cpu_isa = isa_named(options.isa);
    opt_.executor = executor;
  }
  // One token of every sequence.
  void step(LinearRows& rows, DLTensor* states) { call(nullptr, rows, states); }
  // All tokens of one sequence.
  void prefill(LinearRows& rows, DLTensor* states, int64_t tokens) {
    int32_t ends[2] = {0, static_cast<int32_t>(tokens)};
    int64_t two = 2;
    DLTensor indptr{ends, {kDLCPU, 0}, 1, {kDLInt, 32, 1}, &two, nullptr, 0};
    call(&indptr, rows, states);
  }
  // Token `t` of one sequence.
  void step_of(LinearRows& rows, DLTensor* states, int64_t t) {
    kvc_error error{};
    check(kvc_op_linear_step(&linear_, &opt_, nullptr, states, rows.q.one(t), rows.k.one(t),
                             rows.v.one(t), rows.decay.one(t), rows.beta.one(t), rows.out.one(t),
                             &error),
          error);
  }

 private:
  void call(const DLTensor* indptr, LinearRows& rows, DLTensor* states) {
    kvc_error error{};
    check(
        kvc_op_linear_step(&linear_, &opt_, indptr, states, rows.q.all(), rows.k.all(),
                           rows.v.all(), rows.decay.all(), rows.beta.all(), rows.out.all(), &error),
        error);
  }
  kvc_linear_opt linear_{};
  kvc_op_opt opt_{};
};

Report measure_step(const LinearOptions& options, ThreadTeam& team, LinearLayer& layer, int batch) {
  const int64_t state_bytes = int64_t{4} * options.heads * options.dim * options.dim;
  const int64_t layer_bytes = batch * state_bytes;
  const int layers = layers_for_footprint(layer_bytes);
  Tensor states(dl_type(Storage::kF32), {layers, batch, options.heads, options.dim, options.dim});
  states.fill(0.1f);
  LinearRows rows(options, batch);
  const int run_layers =
      static_cast<int>(std::clamp<int64_t>(kRunBytes / layer_bytes, 1, std::max(1, layers / 2)));
  const int runs = layers / run_layers;
  const auto run_bytes = static_cast<size_t>(run_layers * layer_bytes);
  const int64_t ahead = fastest_update_ahead(team, states.data(), run_bytes);
  int64_t shape[4] = {batch, options.heads, options.dim, options.dim};
  // A portion works on one run of layers while the limit worked on another half the footprint away.
  const Side update{2.0 * static_cast<double>(run_bytes), [&](int pair) {
                      update_bytes(team,
                                   states.data() + static_cast<size_t>(pair % runs) * run_bytes,
                                   run_bytes, ahead);
                    }};
  const Side step{2.0 * static_cast<double>(run_bytes), [&](int pair) {
                    const int first = (pair + runs / 2) % runs * run_layers;
                    for (int at = first; at < first + run_layers; ++at) {
                      DLTensor one = *states.all();
                      one.ndim = 4;
                      one.shape = shape;
                      one.byte_offset = static_cast<uint64_t>(at * layer_bytes);
                      layer.step(rows, &one);
                    }
                  }};
  const PairedResult result = measure_pairs(team.size(), options.common.budget, update, step);
  Report report;
  report["batch"] = batch;
  report["layers"] = layers;
  report["footprint_bytes"] = layers * layer_bytes;
  add_pairs(report, result, 1e9, "gbps", "update_limit_gbps");
  report["layer_microseconds"] =
      rounded(2.0 * static_cast<double>(layer_bytes) / result.subject_rate.median * 1e6);
  return report;
}

Report measure_prefill(const LinearOptions& options, ThreadTeam& team, LinearLayer& layer) {
  const int64_t tokens = options.tokens;
  LinearRows rows(options, tokens);
  // Calls take the states of one layer after the other, as a model does: by steps, each finds its
  // states in memory again.
  const int64_t state_bytes = int64_t{4} * options.heads * options.dim * options.dim;
  const int64_t layers = layers_for_footprint(state_bytes);
  Tensor states(dl_type(Storage::kF32), {layers, options.heads, options.dim, options.dim});
  states.fill(0.1f);
  int64_t next = 0;
  const auto layer_states = [&] { return states.one(next++ % layers); };
  // What the recurrence needs: S^T k, k u^T and S^T q; decays and pairs inside a chunk are the
  // library's own affair.
  const double token_flops = 3.0 * 2 * options.heads * options.dim * options.dim;
  const Arithmetic arithmetic = bounding_arithmetic(isa_named(options.isa), Storage::kF32);
  layer.prefill(rows, layer_states(), tokens);
  const double call_seconds =
      timed(team.size(), [&] { layer.prefill(rows, layer_states(), tokens); }).seconds;
  const int calls = std::max(1, static_cast<int>(kShortestPortion / call_seconds));
  const Side peak = arithmetic_side(team, arithmetic);
  const auto prefill_calls = [&](int) {
    for (int call = 0; call < calls; ++call) layer.prefill(rows, layer_states(), tokens);
  };
  const auto amount = static_cast<double>(calls * tokens);
  const PairedResult of_peak = measure_pairs(team.size(), options.common.budget, peak,
                                             {amount * token_flops, prefill_calls});
  const int64_t steps = std::min<int64_t>(tokens, 256);
  const Side by_steps{static_cast<double>(steps), [&](int) {
                        for (int64_t t = 0; t < steps; ++t) layer.step_of(rows, layer_states(), t);
                      }};
  const PairedResult versus =
      measure_pairs(team.size(), options.common.budget, by_steps, {amount, prefill_calls});

  Report report;
  report["tokens"] = tokens;
  report["layers"] = layers;
  report["peak_kind"] = arithmetic_name(arithmetic);
  add_pairs(report, of_peak, 1e9, "gflops", "peak_gflops");
  report["speedup"] = rounded(versus.share.median);
  report["speedup_min"] = rounded(versus.share.min);
  report["speedup_max"] = rounded(versus.share.max);
  report["tokens_per_second"] = rounded(versus.subject_rate.median);
  report["tokens_per_second_by_steps"] = rounded(versus.limit_rate.median);
  return report;
}

}  // namespace

Report run_linear(const LinearOptions& given) {
  LinearOptions options = given;
  if (options.heads % options.k_heads != 0)
    throw std::runtime_error("--k-heads must divide --heads");
  options.common.budget.seconds /= kMeasurements;
  Report report = new_report("linear", isa_name(resolve_isa(isa_named(options.isa))),
                             threads_of(options.common));
  report["heads"] = options.heads;
  report["k_heads"] = options.k_heads;
  report["dim"] = options.dim;
  report["state_dtype"] = "fp32";
  report["decay"] = "token";
  report["delta"] = true;
  ThreadTeam team(threads_of(options.common));
  TeamExecutor executor(team);
  LinearLayer layer(options, team.size() > 1 ? executor.get() : nullptr);
  report["step_1"] = measure_step(options, team, layer, 1);
  if (options.batch > 1)
    report["step_" + std::to_string(options.batch)] =
        measure_step(options, team, layer, options.batch);
  report["prefill"] = measure_prefill(options, team, layer);
  return report;
}

}  // namespace kvc::bench
