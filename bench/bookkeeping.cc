// The bookkeeping by itself: caches without tensor memory, through the C interface.
#include <benchmark/benchmark.h>
#include <kvcache.h>

#include <cstdint>
#include <stdexcept>
#include <string>
#include <vector>

namespace {

constexpr int kPageSize = 16;

// A failure ends the program: a benchmark of calls that fail would look fast.
void require(kvc_status status) {
  if (status != KVC_OK)
    throw std::runtime_error(std::string("bookkeeping: ") + kvc_status_name(status));
}

class Bookkeeping {
 public:
  Bookkeeping(int64_t num_seqs, int64_t tokens_each, int64_t spare_pages = 0) {
    kvc_layer layer{};
    layer.struct_size = sizeof layer;
    layer.num_kv_heads = 8;
    layer.num_q_heads = 32;
    layer.k_dim = 128;
    kvc_config config{};
    require(kvc_config_init(&config, sizeof config));
    config.page_size = kPageSize;
    config.num_layers = 1;
    config.layers = &layer;
    config.num_pages = num_seqs * (tokens_each / kPageSize + 2) + spare_pages;
    config.storage = KVC_STORAGE_NONE;
    kvc_plan* plan = nullptr;
    require(kvc_plan_create(&config, &plan, nullptr));
    const kvc_status status = kvc_cache_create(plan, &cache_, nullptr);
    kvc_plan_destroy(plan);
    require(status);
    for (kvc_seq seq = 0; seq < num_seqs; ++seq) {
      require(kvc_seq_add(cache_, seq, nullptr));
      seqs_.push_back(seq);
      if (tokens_each > 0) step({seq}, {tokens_each});
    }
    one_token_.assign(seqs_.size(), 1);
  }
  ~Bookkeeping() { kvc_cache_destroy(cache_); }
  Bookkeeping(const Bookkeeping&) = delete;
  Bookkeeping& operator=(const Bookkeeping&) = delete;

  kvc_cache* cache() const { return cache_; }

  kvc_forward* begin(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) {
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = seqs.size();
    desc.seqs = seqs.data();
    desc.append_lengths = lengths.data();
    kvc_forward* forward = nullptr;
    require(kvc_forward_begin(cache_, &desc, &forward, nullptr));
    return forward;
  }
  void step(const std::vector<kvc_seq>& seqs, const std::vector<int64_t>& lengths) {
    require(kvc_forward_end(begin(seqs, lengths), nullptr));
  }
  kvc_forward* begin_decode() { return begin(seqs_, one_token_); }

 private:
  kvc_cache* cache_ = nullptr;
  std::vector<kvc_seq> seqs_;
  std::vector<int64_t> one_token_;
};

void add_remove(benchmark::State& state) {
  Bookkeeping books(state.range(0), 0);
  const kvc_seq seq = 1 << 20;
  for (auto _ : state) {
    require(kvc_seq_add(books.cache(), seq, nullptr));
    require(kvc_seq_remove(books.cache(), seq, nullptr));
  }
}
BENCHMARK(add_remove)->Arg(1)->Arg(1024);

// A fork shares every page of its parent: the cost grows with pages, not with bytes.
void fork_remove(benchmark::State& state) {
  Bookkeeping books(1, state.range(0));
  for (auto _ : state) {
    require(kvc_seq_fork(books.cache(), 0, 1, -1, nullptr));
    require(kvc_seq_remove(books.cache(), 1, nullptr));
  }
}
BENCHMARK(fork_remove)->Arg(16)->Arg(1024)->Arg(16384);

void append_pop(benchmark::State& state) {
  const int64_t tokens = state.range(0);
  Bookkeeping books(1, 1024, tokens / kPageSize + 1);
  for (auto _ : state) {
    books.step({0}, {tokens});
    require(kvc_seq_pop(books.cache(), 0, tokens, nullptr));
  }
}
BENCHMARK(append_pop)->Arg(1)->Arg(512)->Arg(16384);

// One decode step that is taken back: begin and abort of the whole batch. Arguments: sequences,
// tokens of each.
void begin_abort(benchmark::State& state) {
  Bookkeeping books(state.range(0), state.range(1));
  for (auto _ : state) require(kvc_forward_abort(books.begin_decode(), nullptr));
  state.SetItemsProcessed(state.iterations() * state.range(0));
}
BENCHMARK(begin_abort)->Args({1, 4096})->Args({64, 4096})->Args({256, 1024})->Args({256, 16384});

// Decode steps that stay: every sixteenth enters new pages. Sixteen steps, then back by sixteen
// tokens.
void begin_end(benchmark::State& state) {
  const int64_t num_seqs = state.range(0);
  Bookkeeping books(num_seqs, state.range(1));
  for (auto _ : state) {
    for (int token = 0; token < kPageSize; ++token)
      require(kvc_forward_end(books.begin_decode(), nullptr));
    for (kvc_seq seq = 0; seq < num_seqs; ++seq)
      require(kvc_seq_pop(books.cache(), seq, kPageSize, nullptr));
  }
  state.SetItemsProcessed(state.iterations() * num_seqs * kPageSize);
}
BENCHMARK(begin_end)->Args({64, 4096})->Args({256, 1024})->Args({256, 16384});

void can_append(benchmark::State& state) {
  const int64_t num_seqs = state.range(0);
  Bookkeeping books(num_seqs, 1024);
  std::vector<kvc_seq> seqs;
  for (kvc_seq seq = 0; seq < num_seqs; ++seq) seqs.push_back(seq);
  const std::vector<int64_t> lengths(seqs.size(), 1);
  for (auto _ : state) {
    int64_t missing = 0;
    require(kvc_seq_can_append(books.cache(), seqs.size(), seqs.data(), lengths.data(), &missing,
                               nullptr));
    benchmark::DoNotOptimize(missing);
  }
}
BENCHMARK(can_append)->Arg(1)->Arg(64)->Arg(1024);

}  // namespace
