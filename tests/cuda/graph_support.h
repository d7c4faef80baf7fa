// A small model of any layers on a cache of the CPU and on one of a GPU. Eager steps, and steps
// that are captured once and replayed, have to give what the CPU gives.
#pragma once

#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdint>
#include <exception>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "tests/cuda/cache_support.h"

namespace kvc::test {

constexpr kvc_stream kNoStream = nullptr;

struct GraphLayer {
  kvc_layer_kind kind =
      // STATE: a linear state, the inputs of a convolution, and one of the caller's
      KVC_LAYER_ATTENTION;
  kvc_rope_mode rope = KVC_ROPE_ON_APPEND;
  int64_t original_context = 0;  // > 0: LONGROPE
  int64_t window = 0;
  int64_t call_window = 0;
  bool has_alibi = false;
  bool is_invariant = false;
};

struct GraphModel {
  std::vector<GraphLayer> layers{{}, {}};
  int64_t num_pages = 64, page_size = 4;
  int32_t max_seqs = 4;
  int64_t max_tokens = 48, max_seq_len = 64, max_cross_len = 0;
  uint64_t host_bytes = 0;
};

// What a step does beside attention.
struct StepParts {
  bool sets_linear = true, sets_conv = true, sets_own = false;
  std::vector<int64_t> cross = {};  // encoder tokens per sequence; empty: none
};

inline int64_t sum_of(const std::vector<int64_t>& lengths) {
  return std::accumulate(lengths.begin(), lengths.end(), int64_t{0});
}

constexpr int32_t kQHeads = 4, kKvHeads = 2, kDim = 16;
constexpr int32_t kLinearHeads = 2, kLinearDim = 8, kConvChannels = 6, kConvWidth = 3,
                  kOwnState = 5;

// What a step reads and writes; a graph keeps the addresses that it was captured with.
class StepTensors {
 public:
  StepTensors(const GraphModel& model, DLDevice device, const std::vector<int64_t>& lengths,
              const StepParts& parts)
      : model_(model), device_(device), parts_(parts) {
    const int64_t rows = sum_of(lengths), cross_rows = sum_of(parts.cross);
    const auto sequences = static_cast<int64_t>(lengths.size());
    for (const GraphLayer& layer : model.layers) {
      if (layer.kind == KVC_LAYER_STATE) {
        for (int i = 0; i < 3; ++i) add(ins_, {rows, kLinearHeads, kLinearDim});
        add(ins_, {rows, kConvChannels});
        add(ins_, {kConvChannels, kConvWidth});
        add(ins_, {sequences, kOwnState});
        add(outs_, {rows, kLinearHeads, kLinearDim});
        add(outs_, {rows, kConvChannels});
        add(outs_, {sequences, kOwnState});
        continue;
      }
      add(ins_, {rows, kQHeads, kDim});
      const int64_t keys = layer.kind == KVC_LAYER_CROSS ? cross_rows : rows;
      for (int i = 0; i < 2; ++i) add(ins_, {keys, kKvHeads, kDim});
      add(ins_, {kQHeads});
      add(outs_, {rows, kQHeads, kDim});
    }
    fill(0);
  }

  void fill(uint64_t seed) {
    for (size_t i = 0; i < ins_.size(); ++i) ins_[i]->fill(1000 * seed + i);
    for (auto& out : outs_) std::fill(out->values.begin(), out->values.end(), 0.0f);
  }
  std::vector<float> results() const {
    std::vector<float> all;
    for (const auto& out : outs_) all.insert(all.end(), out->values.begin(), out->values.end());
    return all;
  }

  kvc_status run(kvc_forward* forward, kvc_error* error) {
    size_t in = 0, out = 0;
    kvc_status status = KVC_OK;
    for (size_t l = 0; l < model_.layers.size() && status == KVC_OK; ++l) {
      const auto layer = static_cast<int32_t>(l);
      if (model_.layers[l].kind == KVC_LAYER_STATE) {
        status = run_states(forward, layer, in, out, error);
        in += 6, out += 3;
      } else {
        status = run_attention(forward, layer, in, out, error);
        in += 4, out += 1;
      }
    }
    return status;
  }

 private:
  using Tensors = std::vector<std::unique_ptr<Tensor>>;
  void add(Tensors& to, std::vector<int64_t> shape) {
    to.push_back(std::make_unique<Tensor>(std::move(shape), device_));
  }
  kvc_status run_attention(kvc_forward* forward, int32_t layer, size_t in, size_t out,
                           kvc_error* error) {
    const GraphLayer& spec = model_.layers[static_cast<size_t>(layer)];
    kvc_attn_opt opt{};
    opt.struct_size = sizeof opt;
    opt.window = spec.call_window;
    opt.flags = spec.is_invariant ? KVC_ATTN_BATCH_INVARIANT : 0;
    if (spec.has_alibi) opt.alibi_slopes = ins_[in + 3]->view();
    if (spec.kind == KVC_LAYER_CROSS) {
      const bool is_given = !parts_.cross.empty();
      return kvc_attn_cross(
          forward, layer, &opt, ins_[in]->view(), is_given ? ins_[in + 1]->view() : nullptr,
          is_given ? ins_[in + 2]->view() : nullptr, outs_[out]->view(), nullptr, error);
    }
    return kvc_attn(forward, layer, &opt, ins_[in]->view(), ins_[in + 1]->view(),
                    ins_[in + 2]->view(), outs_[out]->view(), nullptr, error);
  }
  kvc_status run_states(kvc_forward* forward, int32_t layer, size_t in, size_t out,
                        kvc_error* error) {
    kvc_status status = kvc_state_get(forward, layer, 2, outs_[out + 2]->view(), error);
    if (status == KVC_OK && parts_.sets_own)
      status = kvc_state_set(forward, layer, 2, ins_[in + 5]->view(), error);
    if (status == KVC_OK && parts_.sets_linear) {
      kvc_linear_opt opt{};
      opt.struct_size = sizeof opt;
      status = kvc_attn_linear(forward, layer, &opt, ins_[in]->view(), ins_[in + 1]->view(),
                               ins_[in + 2]->view(), nullptr, nullptr, outs_[out]->view(), error);
    }
    if (status == KVC_OK && parts_.sets_conv) {
      status = kvc_state_conv(forward, layer, 1, ins_[in + 3]->view(), ins_[in + 4]->view(),
                              nullptr, KVC_ACTIVATION_NONE, outs_[out + 1]->view(), error);
    }
    return status;
  }

  GraphModel model_;
  DLDevice device_;
  StepParts parts_;
  Tensors ins_, outs_;
};

// A cache that remembers what its last call said.
class GraphCache {
 public:
  GraphCache(const GraphModel& model, DLDevice device) {
    static const int64_t linear_shape[] = {kLinearHeads, kLinearDim, kLinearDim};
    static const int64_t conv_shape[] = {kConvChannels, kConvWidth - 1};
    static const int64_t own_shape[] = {kOwnState};
    const DLDataType f32{kDLFloat, 32, 1};
    const kvc_state_spec states[] = {{sizeof(kvc_state_spec), 3, f32, linear_shape, nullptr},
                                     {sizeof(kvc_state_spec), 2, f32, conv_shape, nullptr},
                                     {sizeof(kvc_state_spec), 1, f32, own_shape, nullptr}};
    std::vector<float> short_factors(kDim / 2, 1.0f), long_factors(kDim / 2);
    for (size_t i = 0; i < long_factors.size(); ++i) long_factors[i] = 2.0f + static_cast<float>(i);
    std::vector<kvc_rope> ropes(model.layers.size());
    std::vector<kvc_layer> layers(model.layers.size());
    for (size_t l = 0; l < layers.size(); ++l) {
      const GraphLayer& spec = model.layers[l];
      kvc_layer& layer = layers[l];
      layer.struct_size = sizeof layer;
      layer.kind = spec.kind;
      if (spec.kind == KVC_LAYER_STATE) {
        layer.states = states;
        layer.num_states = 3;
        continue;
      }
      layer.num_q_heads = kQHeads;
      layer.num_kv_heads = kKvHeads;
      layer.k_dim = layer.v_dim = kDim;
      layer.k_dtype = layer.v_dtype = f32;
      layer.window = spec.window;
      if (spec.rope == KVC_ROPE_NONE || spec.kind == KVC_LAYER_CROSS) continue;
      kvc_rope& rope = ropes[l];
      rope.struct_size = sizeof rope;
      rope.mode = spec.rope;
      if (spec.original_context > 0) {
        rope.scaling = KVC_ROPE_SCALING_LONGROPE;
        rope.num_freq_factors = kDim / 2;
        rope.original_context = spec.original_context;
        rope.freq_factors = short_factors.data();
        rope.long_freq_factors = long_factors.data();
      }
      layer.rope = &rope;
    }
    kvc_config config{};
    (void)kvc_config_init(&config, sizeof config);
    config.device = device;
    config.page_size = model.page_size;
    config.num_layers = static_cast<int32_t>(layers.size());
    config.layers = layers.data();
    config.num_pages = model.num_pages;
    config.max_seqs = model.max_seqs;
    config.max_tokens_per_forward = model.max_tokens;
    config.max_seq_len = model.max_seq_len;
    config.max_cross_len = model.max_cross_len;
    config.host_byte_budget = model.host_bytes;
    config.num_threads = device.device_type == kDLCPU ? 1 : 0;
    kvc_plan* plan = nullptr;
    EXPECT_EQ(said(kvc_plan_create(&config, &plan, clean())), KVC_OK) << message();
    EXPECT_EQ(said(kvc_cache_create(plan, &cache, clean())), KVC_OK) << message();
    kvc_plan_destroy(plan);
  }
  ~GraphCache() { kvc_cache_destroy(cache); }
  GraphCache(const GraphCache&) = delete;
  GraphCache& operator=(const GraphCache&) = delete;

  kvc_forward* begin(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                     kvc_stream stream, uint64_t flags, const std::vector<int64_t>& cross = {}) {
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.stream = stream;
    desc.num_seqs = seqs.size();
    desc.seqs = seqs.data();
    desc.append_lengths = lengths.data();
    desc.cross_lengths = cross.empty() ? nullptr : cross.data();
    desc.flags = flags;
    kvc_forward* forward = nullptr;
    return said(kvc_forward_begin(cache, &desc, &forward, clean())) == KVC_OK ? forward : nullptr;
  }
  kvc_status said(kvc_status now) { return status = now; }
  kvc_error* clean() {
    error_ = OneCache::blank();
    return &error_;
  }
  std::string message() const { return error_.message; }

  kvc_cache* cache = nullptr;
  kvc_status status = KVC_OK;

 private:
  kvc_error error_{};
};

// A captured step.
struct Graph {
  Graph() = default;
  Graph(const Graph&) = delete;
  Graph& operator=(const Graph&) = delete;
  ~Graph() {
    if (executable != nullptr) (void)cudaGraphExecDestroy(executable);
    if (graph != nullptr) (void)cudaGraphDestroy(graph);
  }
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  std::unique_ptr<StepTensors> tensors;
  std::vector<int64_t> lengths;
  StepParts parts;
};
using GraphPointer = std::unique_ptr<Graph>;

class GraphPair {
 public:
  GraphPair(const GraphModel& model, DLDevice gpu)
      : cpu(model, {kDLCPU, 0}), device(model, gpu), model_(model), gpu_(gpu) {
    EXPECT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  }
  ~GraphPair() {
    try {
      finish_runtime();
    } catch (const std::exception& error) {
      ADD_FAILURE() << error.what();  // a device that has failed
    }
    (void)cudaStreamDestroy(stream);
  }
  GraphPair(const GraphPair&) = delete;
  GraphPair& operator=(const GraphPair&) = delete;

  template <typename Call>
  void both(Call&& call) {
    ASSERT_EQ(cpu.said(call(cpu.cache, cpu.clean())), KVC_OK) << cpu.message();
    ASSERT_EQ(device.said(call(device.cache, device.clean())), KVC_OK) << device.message();
  }
  void add(const std::vector<kvc_seq>& seqs) {
    for (const kvc_seq id : seqs)
      both([id](kvc_cache* cache, kvc_error* error) { return kvc_seq_add(cache, id, error); });
  }

  // What the CPU gives for a step.
  std::vector<float> expected(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                              uint64_t seed, const StepParts& parts = {}) {
    return run(cpu, {kDLCPU, 0}, kNoStream, seqs, lengths, seed, parts);
  }
  // A step without a graph.
  void eager(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths, uint64_t seed,
             const StepParts& parts = {}) {
    eager_on(stream, seqs, lengths, seed, parts);
  }
  void eager_on(kvc_stream on, const std::vector<kvc_seq>& seqs,
                const std::vector<int64_t>& lengths, uint64_t seed, const StepParts& parts = {}) {
    const std::vector<float> got = run(device, gpu_, on, seqs, lengths, seed, parts);
    ASSERT_EQ(device.status, KVC_OK) << device.message();
    expect_close(got, expected(seqs, lengths, seed, parts));
  }

  // The graph of a step; the step itself is still to be launched, or aborted. Null where begin or a
  // layer refuses (device.status); the forward is aborted then.
  GraphPointer capture(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                       bool aborts, const StepParts& parts = {}) {
    auto made = std::make_unique<Graph>();
    made->lengths = lengths;
    made->parts = parts;
    made->tensors = std::make_unique<StepTensors>(model_, gpu_, lengths, parts);
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    kvc_forward* forward = device.begin(seqs, lengths, stream, 0);
    kvc_status status = device.status;
    if (forward != nullptr) {
      status = made->tensors->run(forward, device.clean());
      if (aborts || status != KVC_OK) {
        EXPECT_EQ(kvc_forward_abort(forward, nullptr), KVC_OK);
      } else {
        EXPECT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
      }
    }
    device.status = status;
    EXPECT_EQ(cudaStreamEndCapture(stream, &made->graph), cudaSuccess);
    if (status != KVC_OK) return nullptr;
    EXPECT_EQ(cudaGraphInstantiate(&made->executable, made->graph, 0), cudaSuccess);
    return made;
  }
  // The step that was captured and ended.
  void launch_first(Graph& graph, const std::vector<kvc_seq>& seqs, uint64_t seed) {
    graph.tensors->fill(seed);
    ASSERT_EQ(cudaGraphLaunch(graph.executable, stream), cudaSuccess);
    compare(graph, seqs, seed);
  }
  void replay(Graph& graph, const std::vector<kvc_seq>& seqs, uint64_t seed) {
    graph.tensors->fill(seed);
    kvc_forward* forward = device.begin(seqs, graph.lengths, stream, KVC_FORWARD_REPLAY);
    ASSERT_NE(forward, nullptr) << device.message();
    ASSERT_EQ(cudaGraphLaunch(graph.executable, stream), cudaSuccess);
    ASSERT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
    compare(graph, seqs, seed);
  }
  void compare(const Graph& graph, const std::vector<kvc_seq>& seqs, uint64_t seed) {
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    expect_close(graph.tensors->results(), expected(seqs, graph.lengths, seed, graph.parts));
  }
  void expect_refused(const Graph& graph, const std::vector<kvc_seq>& seqs, kvc_status status,
                      const std::string& what) {
    kvc_forward* forward = device.begin(seqs, graph.lengths, stream, KVC_FORWARD_REPLAY);
    EXPECT_EQ(device.status, status) << device.message();
    EXPECT_NE(device.message().find(what), std::string::npos) << device.message();
    (void)kvc_forward_abort(forward, nullptr);
    check();
  }
  void check() {
    EXPECT_EQ(device.said(kvc_cache_check(device.cache, device.clean())), KVC_OK)
        << device.message();
  }

  GraphCache cpu, device;
  cudaStream_t stream = nullptr;

 private:
  std::vector<float> run(GraphCache& on, DLDevice where, kvc_stream with,
                         const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths,
                         uint64_t seed, const StepParts& parts) {
    kvc_forward* forward = on.begin(seqs, lengths, with, 0, parts.cross);
    if (forward == nullptr) {
      ADD_FAILURE() << on.message();
      return {};
    }
    StepTensors tensors(model_, where, lengths, parts);
    tensors.fill(seed);
    EXPECT_EQ(on.said(tensors.run(forward, on.clean())), KVC_OK) << on.message();
    EXPECT_EQ(kvc_forward_end(forward, nullptr), KVC_OK);
    if (&on == &device) finish_stream(with);
    return tensors.results();
  }

  GraphModel model_;
  DLDevice gpu_;
};

}  // namespace kvc::test
