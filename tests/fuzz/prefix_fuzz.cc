// The prefix cache under mutated queries: short lives of caches without storage. Claims: no access
// outside the caller's memory; a refusal has a status, a message and no other effect; what hits is
// no more than was asked for; the audit passes; nothing is held after the end.
#include <algorithm>
#include <array>
#include <vector>

#include "kvcache.h"
#include "tests/fuzz/error_box.h"
#include "tests/fuzz/query_box.h"

namespace kvc::fuzz {
namespace {

constexpr kvc_seq kSeqs = 5;

// Lengths, free pages, index.
std::array<int64_t, 6> look(const kvc_cache* cache) {
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  KVC_FUZZ_CHECK(kvc_cache_stats_get(cache, &stats, nullptr) == KVC_OK);
  KVC_FUZZ_CHECK(stats.pages_available == kvc_cache_available_pages(cache) &&
                 stats.pages_cached <= stats.pages_indexed &&
                 stats.pages_used + stats.pages_available == stats.pages_total);
  return {stats.num_seqs,      stats.total_length,  stats.pages_available,
          stats.prefix_blocks, stats.prefix_pinned, static_cast<int64_t>(stats.events_made)};
}

class Life {
 public:
  Life(Input& input, kvc_cache* cache, int32_t block)
      : input_(input), cache_(cache), block_(block) {}

  void run() {
    while (!input_.empty()) {
      step();
      KVC_FUZZ_CHECK(kvc_cache_check(cache_, nullptr) == KVC_OK);
    }
    for (kvc_seq seq = 0; seq < kSeqs; ++seq) (void)kvc_seq_remove(cache_, seq, nullptr);
    KVC_FUZZ_CHECK(kvc_prefix_reset(cache_, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_cache_is_empty(cache_) == 1);
  }

 private:
  kvc_seq any_seq() { return static_cast<kvc_seq>(input_.choose(kSeqs)); }

  // A refused call has no effect and writes no result.
  template <typename Call>
  kvc_status checked(Call call, const int64_t* result) {
    const std::array<int64_t, 6> before = look(cache_);
    ErrorBox err(input_);
    const kvc_status status = call(err.get());
    err.check(status);
    if (status != KVC_OK)
      KVC_FUZZ_CHECK(look(cache_) == before && (result == nullptr || *result == -1));
    return status;
  }

  void step() {
    switch (input_.choose(10)) {
      case 0:
      case 1: return attach();
      case 2: return match();
      case 3: return insert();
      case 4: return pin();
      case 5: return events();
      case 6: (void)kvc_seq_remove(cache_, any_seq(), nullptr); return;
      case 7: return index();
      default: return forward();
    }
  }

  void attach() {
    const QueryBox query(input_, block_);
    const kvc_seq seq = any_seq();
    int64_t found = -1, hit = -1;
    const kvc_status matched = kvc_prefix_match(cache_, query.get(), &found, nullptr);
    const kvc_status status = checked(
        [&](kvc_error* err) { return kvc_prefix_attach(cache_, seq, query.get(), &hit, err); },
        &hit);
    if (status == KVC_OK) {
      KVC_FUZZ_CHECK(matched == KVC_OK && hit == found && hit >= 0 &&
                     hit <= static_cast<int64_t>(query.tokens().size()));
    }
  }

  void match() {
    const QueryBox query(input_, block_);
    int64_t hit = -1;
    (void)checked([&](kvc_error* err) { return kvc_prefix_match(cache_, query.get(), &hit, err); },
                  &hit);
  }

  void insert() {
    const QueryBox query(input_, block_);
    int64_t kept = -1;
    (void)checked(
        [&](kvc_error* err) {
          return kvc_prefix_insert(cache_, any_seq(), query.get(), &kept, err);
        },
        &kept);
  }

  void pin() {
    const QueryBox query(input_, block_);
    int64_t tokens = -1;
    const bool undo = input_.one_in(2);
    (void)checked(
        [&](kvc_error* err) {
          return undo ? kvc_prefix_unpin(cache_, query.get(), &tokens, err)
                      : kvc_prefix_pin(cache_, query.get(), &tokens, err);
        },
        &tokens);
  }

  void index() {
    const auto number = static_cast<int64_t>(input_.choose(12)) - 1;
    int64_t freed = -1;
    switch (input_.choose(4)) {
      case 0: KVC_FUZZ_CHECK(kvc_prefix_reset(cache_, nullptr) == KVC_OK); return;
      case 1: {
        const char salt = 'a';
        KVC_FUZZ_CHECK(
            kvc_prefix_quota_set(cache_, &salt, input_.choose(2),
                                 static_cast<uint64_t>(std::max<int64_t>(0, number)) * 512,
                                 nullptr) == KVC_OK);
        return;
      }
      default:
        (void)checked([&](kvc_error* err) { return kvc_prefix_evict(cache_, number, &freed, err); },
                      &freed);
    }
  }

  // Elements of any stride: the library writes inside them.
  void events() {
    const size_t stride = choose_struct_size(input_, sizeof(kvc_event));
    const size_t capacity = input_.choose(4);
    ExactMemory memory(std::max(owned_bytes(stride), stride * capacity));
    memory.put(0, &stride, sizeof stride);
    size_t count = capacity;
    auto* out = reinterpret_cast<kvc_event*>(memory.data());
    ErrorBox err(input_);
    if (input_.one_in(3)) {
      uint64_t number = 0;
      const kvc_status status = kvc_events_snapshot(cache_, out, &count, &number, err.get());
      err.check(status);
      if (status == KVC_OK) KVC_FUZZ_CHECK(count <= capacity);
    } else {
      const kvc_status status = kvc_events_poll(cache_, out, &count, err.get());
      err.check(status);
      if (status == KVC_OK) KVC_FUZZ_CHECK(count <= capacity);
    }
  }

  void forward() {
    const std::array<kvc_seq, 2> seqs = {any_seq(), any_seq()};
    std::array<int64_t, 2> lengths{};
    int64_t total = 0;
    for (int64_t& length : lengths) total += length = static_cast<int64_t>(1 + input_.choose(12));
    std::vector<int32_t> tokens(static_cast<size_t>(total));
    const uint64_t pattern = input_.take(2);
    for (size_t i = 0; i < tokens.size(); ++i)
      tokens[i] = static_cast<int32_t>(pattern >> (i % 16) & 1);
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = 1 + input_.choose(2);
    desc.seqs = seqs.data();
    desc.append_lengths = lengths.data();
    desc.tokens = input_.one_in(4) ? nullptr : tokens.data();
    for (const kvc_seq seq : seqs) (void)kvc_seq_add(cache_, seq, nullptr);
    kvc_forward* fwd = nullptr;
    const std::array<int64_t, 6> before = look(cache_);
    if (kvc_forward_begin(cache_, &desc, &fwd, nullptr) != KVC_OK) {
      KVC_FUZZ_CHECK(fwd == nullptr && look(cache_) == before);
      return;
    }
    if (input_.one_in(4)) {
      KVC_FUZZ_CHECK(kvc_forward_abort(fwd, nullptr) == KVC_OK);
      const std::array<int64_t, 6> after = look(cache_);
      KVC_FUZZ_CHECK(after[0] == before[0] && after[1] == before[1] && after[2] == before[2]);
    } else {
      KVC_FUZZ_CHECK(kvc_forward_end(fwd, nullptr) == KVC_OK);
    }
  }

  Input& input_;
  kvc_cache* cache_;
  int32_t block_;
};

void run(Input& input) {
  std::array<kvc_layer, 2> layers{};
  for (kvc_layer& layer : layers) {
    layer.struct_size = sizeof layer;
    layer.num_kv_heads = 1;
    layer.k_dim = 4;
    layer.k_dtype = {kDLFloat, 32, 1};
  }
  layers[1].window = static_cast<int64_t>(1 + input.choose(12));
  kvc_config config{};
  config.struct_size = sizeof config;
  config.page_size = static_cast<int32_t>(1 + input.choose(5));
  config.num_layers = static_cast<int32_t>(1 + input.choose(2));
  config.layers = layers.data();
  config.num_pages = static_cast<int64_t>(4 + input.choose(20));
  config.num_threads = 1;
  config.storage = KVC_STORAGE_NONE;
  config.event_capacity = static_cast<int64_t>(input.choose(3) * 5);
  kvc_plan* plan = nullptr;
  if (kvc_plan_create(&config, &plan, nullptr) != KVC_OK) return;
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  KVC_FUZZ_CHECK(kvc_plan_info_get(plan, &info, nullptr) == KVC_OK);
  kvc_cache* cache = nullptr;
  KVC_FUZZ_CHECK(kvc_cache_create(plan, &cache, nullptr) == KVC_OK);
  Life(input, cache, info.prefix_block).run();
  kvc_cache_destroy(cache);
  kvc_plan_destroy(plan);
}

}  // namespace
}  // namespace kvc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvc::fuzz::Input input(data, size);
  kvc::fuzz::run(input);
  return 0;
}
