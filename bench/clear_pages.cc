// What KVC_CONFIG_CLEAR_PAGES costs: forwards with and without it, and a memset of the same bytes,
// in turns.
#include <benchmark/benchmark.h>
#include <kvcache.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstring>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int32_t kLayers = 8, kHeads = 8, kDim = 128, kPageSize = 16;
constexpr int64_t kTokenBytes = int64_t{2} * kLayers * kHeads * kDim * 2;  // K and V in bfloat16

// A failure ends the program: a benchmark of calls that fail would look fast.
void require(kvc_status status) {
  if (status != KVC_OK)
    throw std::runtime_error(std::string("clear_pages: ") + kvc_status_name(status));
}

double now_seconds() {
  return std::chrono::duration<double>(std::chrono::steady_clock::now().time_since_epoch()).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Cache {
 public:
  Cache(int64_t tokens, uint64_t flags)
      : tokens_(tokens), rows_(static_cast<size_t>(tokens * kHeads * kDim), 0x3F80) {
    kvc_layer layers[kLayers] = {};
    for (kvc_layer& layer : layers) {
      layer.struct_size = sizeof layer;
      layer.num_kv_heads = kHeads;
      layer.k_dim = kDim;
    }
    kvc_config config{};
    require(kvc_config_init(&config, sizeof config));
    config.flags = flags;
    config.page_size = kPageSize;
    config.num_layers = kLayers;
    config.layers = layers;
    config.num_pages = 2 * (tokens / kPageSize + 1);
    config.num_threads = 1;
    kvc_plan* plan = nullptr;
    require(kvc_plan_create(&config, &plan, nullptr));
    const kvc_status status = kvc_cache_create(plan, &cache_, nullptr);
    kvc_plan_destroy(plan);
    require(status);
    require(kvc_seq_add(cache_, 0, nullptr));
  }
  ~Cache() { kvc_cache_destroy(cache_); }
  Cache(const Cache&) = delete;
  Cache& operator=(const Cache&) = delete;

  // Seconds of a forward that appends to every layer; its tokens are popped again.
  double append_seconds() {
    const kvc_seq seq = 0;
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = 1;
    desc.seqs = &seq;
    desc.append_lengths = &tokens_;
    int64_t shape[] = {tokens_, kHeads, kDim};
    const DLTensor rows{rows_.data(), {kDLCPU, 0}, 3, {kDLBfloat, 16, 1}, shape, nullptr, 0};
    kvc_forward* forward = nullptr;
    const double start = now_seconds();
    require(kvc_forward_begin(cache_, &desc, &forward, nullptr));
    for (int32_t layer = 0; layer < kLayers; ++layer)
      require(kvc_kv_append(forward, layer, &rows, &rows, nullptr));
    require(kvc_forward_end(forward, nullptr));
    const double seconds = now_seconds() - start;
    require(kvc_seq_pop(cache_, 0, tokens_, nullptr));
    return seconds;
  }

 private:
  kvc_cache* cache_ = nullptr;
  int64_t tokens_;
  std::vector<uint16_t> rows_;
};

// Argument: tokens of the forward. `of_append`: a forward that clears its pages over one that does
// not. `of_memset`: what it takes longer, over a memset of the bytes that it clears.
void clear_pages(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  Cache plain(tokens, 0), clears(tokens, KVC_CONFIG_CLEAR_PAGES);
  const int64_t bytes = (tokens + kPageSize - 1) / kPageSize * kPageSize * kTokenBytes;
  std::vector<char> memory(static_cast<size_t>(bytes), 1);
  std::vector<double> of_append, of_memset;
  for (auto _ : state) {
    const double a = plain.append_seconds(), b = clears.append_seconds();
    const double start = now_seconds();
    std::memset(memory.data(), 0, memory.size());
    benchmark::DoNotOptimize(memory.data());
    benchmark::ClobberMemory();
    const double set = now_seconds() - start;
    state.SetIterationTime(b);
    of_append.push_back(b / a);
    of_memset.push_back((b - a) / set);
  }
  state.SetBytesProcessed(state.iterations() * bytes);
  state.counters["of_append"] = median(of_append);
  state.counters["of_memset"] = median(of_memset);
}
BENCHMARK(clear_pages)->Arg(16)->Arg(512)->Arg(4096)->UseManualTime();

}  // namespace
