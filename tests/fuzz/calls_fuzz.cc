// Lives of small caches: sequences, forwards, trees, windows, prefixes, swap and page copies in any
// order, with numbers that are usually wrong by a little. Claims: after every call the audit
// passes; a refused call has a status, a message and no effect that a caller can see; an abort is
// one too; when all is removed, nothing is held.
#include <algorithm>
#include <array>
#include <vector>

#include "kvcache.h"
#include "tests/fuzz/cache_state.h"
#include "tests/fuzz/error_box.h"
#include "tests/fuzz/plan_shelf.h"
#include "tests/fuzz/query_box.h"

namespace kvc::fuzz {
namespace {

constexpr kvc_seq kSeqs = 6;
constexpr size_t kMaxCalls = 200;
constexpr int64_t kMostAppended = 200;  // to one sequence: no pool here holds more

class Life {
 public:
  Life(Input& input, kvc_cache* cache, int32_t block, bool has_rows)
      : input_(input), cache_(cache), block_(block), has_rows_(has_rows) {}

  void run() {
    for (size_t i = 0; i < kMaxCalls && !input_.empty(); ++i) {
      step();
      KVC_FUZZ_CHECK(kvc_cache_check(cache_, nullptr) == KVC_OK);
    }
    if (fwd_ != nullptr) KVC_FUZZ_CHECK(kvc_forward_abort(fwd_, nullptr) == KVC_OK);
    for (const kvc_seq seq : sequences_of(cache_))
      KVC_FUZZ_CHECK(kvc_seq_remove(cache_, seq, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_prefix_reset(cache_, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_cache_is_empty(cache_) == 1 && kvc_cache_check(cache_, nullptr) == KVC_OK);
  }

 private:
  kvc_seq any_seq() {
    return input_.one_in(16) ? odd_number() : static_cast<kvc_seq>(input_.choose(kSeqs));
  }
  int64_t odd_number() {
    static constexpr std::array<int64_t, 10> kNumbers = {
        -1, -2, 0, 63, 64, 65, 1 << 20, INT32_MAX, INT64_MAX, INT64_MIN};
    return kNumbers[input_.choose(kNumbers.size())];
  }
  int64_t small_number() {
    return input_.one_in(16) ? odd_number() : static_cast<int64_t>(input_.choose(40));
  }

  template <typename Call>
  kvc_status call(Call make) {
    const CacheState before = state_of(cache_);
    ErrorBox err(input_);
    const kvc_status status = make(err.get());
    err.check(status);
    if (status != KVC_OK) KVC_FUZZ_CHECK(state_of(cache_) == before);
    if (status == KVC_OK) is_alone_ = false;
    return status;
  }

  void step() {
    switch (input_.choose(24)) {
      case 0:
      case 1:
        (void)call([&](kvc_error* err) { return kvc_seq_add(cache_, any_seq(), err); });
        return;
      case 2:
        (void)call([&](kvc_error* err) { return kvc_seq_remove(cache_, any_seq(), err); });
        return;
      case 3: return fork();
      case 4: return pop();
      case 5: return shift();
      case 6: return window();
      case 7:
      case 8:
      case 9:
      case 10: return begin();
      case 11:
      case 12: return end();
      case 13: return commit();
      case 14:
      case 15: return prefix();
      case 16: return index();
      case 17: return swap();
      case 18: return copy_pages();
      case 19: return resize();
      case 20:
        (void)call([&](kvc_error* err) { return kvc_state_checkpoint(cache_, any_seq(), err); });
        return;
      case 21: return ask();
      case 22: return events();
      default:
        if (input_.one_in(8))
          (void)call([&](kvc_error* err) { return kvc_cache_clear(cache_, err); });
        else
          (void)call([&](kvc_error* err) { return kvc_cache_trim(cache_, nullptr, err); });
    }
  }

  void fork() {
    const kvc_seq parent = any_seq(), child = any_seq();
    const int64_t position = input_.one_in(3) ? -1 : small_number();
    (void)call([&](kvc_error* err) { return kvc_seq_fork(cache_, parent, child, position, err); });
  }
  void pop() {
    const kvc_seq seq = any_seq();
    const int64_t count = small_number();
    int64_t length = 0;
    const bool exists = kvc_seq_length(cache_, seq, &length, nullptr) == KVC_OK;
    const kvc_status status =
        call([&](kvc_error* err) { return kvc_seq_pop(cache_, seq, count, err); });
    if (status != KVC_OK) return;
    int64_t after = -1;
    KVC_FUZZ_CHECK(exists && kvc_seq_length(cache_, seq, &after, nullptr) == KVC_OK &&
                   after == length - count);
  }
  void shift() {
    const kvc_seq seq = any_seq();
    const int64_t begin = small_number(), end = small_number();
    // What closes the gap, or anything.
    const auto gap =
        static_cast<int64_t>(static_cast<uint64_t>(begin) - static_cast<uint64_t>(end));
    const int64_t delta = input_.one_in(8) ? small_number() : gap;
    (void)call([&](kvc_error* err) { return kvc_seq_shift(cache_, seq, begin, end, delta, err); });
  }
  void window() {
    const kvc_seq seq = any_seq();
    const int64_t window = small_number(), sink = static_cast<int64_t>(input_.choose(6));
    (void)call([&](kvc_error* err) { return kvc_seq_set_window(cache_, seq, window, sink, err); });
  }

  void begin() {
    const size_t count = 1 + input_.choose(3);
    std::array<kvc_seq, 3> seqs{};
    std::array<int64_t, 3> lengths{}, cross{};
    int64_t total = 0;
    for (size_t i = 0; i < count; ++i) {
      seqs[i] = any_seq();
      lengths[i] = input_.one_in(24) ? odd_number() : static_cast<int64_t>(1 + input_.choose(12));
      cross[i] = static_cast<int64_t>(input_.choose(5));
      total += std::clamp<int64_t>(lengths[i], 0, kMostAppended);
      if (!input_.one_in(4) && kvc_seq_add(cache_, seqs[i], nullptr) == KVC_OK) is_alone_ = false;
    }
    const auto room = static_cast<size_t>(total);
    // Long lengths have to be refused before anything behind these arrays is read.
    std::vector<int32_t> tokens(room), parents(room);
    const uint64_t pattern = input_.take(2);
    for (size_t i = 0; i < room; ++i) tokens[i] = static_cast<int32_t>(pattern >> (i % 16) & 1);
    kvc_forward_desc desc{};
    desc.struct_size = sizeof desc;
    desc.num_seqs = input_.one_in(32) ? 0 : count;
    desc.seqs = seqs.data();
    desc.append_lengths = lengths.data();
    if (!input_.one_in(3)) desc.tokens = tokens.data();
    if (input_.one_in(4)) desc.cross_lengths = cross.data();
    if (input_.one_in(4)) {
      for (size_t i = 0; i < room; ++i)
        parents[i] = static_cast<int32_t>(input_.one_in(4) ? i : input_.choose(6)) - 2;
      desc.tree_parents = parents.data();
    }
    const CacheState before = state_of(cache_);
    kvc_forward* fwd = nullptr;
    int64_t missing = -1;
    const bool knows =
        fwd_ == nullptr && desc.tree_parents == nullptr && desc.cross_lengths == nullptr &&
        desc.num_seqs != 0 &&
        kvc_seq_can_append(cache_, count, seqs.data(), lengths.data(), &missing, nullptr) == KVC_OK;
    const kvc_status status =
        call([&](kvc_error* err) { return kvc_forward_begin(cache_, &desc, &fwd, err); });
    KVC_FUZZ_CHECK((fwd != nullptr) == (status == KVC_OK));
    // Token ids, which the preflight is not asked about, are refused where there is a CROSS layer.
    if (knows && before.stats.tree_tokens == 0 && status != KVC_E_UNSUPPORTED &&
        (missing == 0) != (status == KVC_OK)) {
      std::fprintf(stderr, "the preflight said that %lld pages are missing, begin answers %s\n",
                   static_cast<long long>(missing), kvc_status_name(status));
      KVC_FUZZ_CHECK((missing == 0) == (status == KVC_OK));
    }
    if (status != KVC_OK) return;
    KVC_FUZZ_CHECK(fwd_ == nullptr);
    fwd_ = fwd;
    before_forward_ = before;
    is_alone_ = desc.cross_lengths == nullptr || !replaces_encoder_tokens(before, seqs, cross);
    num_tokens_ = kvc_forward_num_tokens(fwd);
    KVC_FUZZ_CHECK(num_tokens_ == total);
    if (has_rows_ && !input_.one_in(6)) append();
  }

  // An abort does not bring those of before back.
  static bool replaces_encoder_tokens(const CacheState& before, const std::array<kvc_seq, 3>& seqs,
                                      const std::array<int64_t, 3>& cross) {
    for (size_t i = 0; i < before.seqs.size(); ++i) {
      for (size_t j = 0; j < seqs.size(); ++j) {
        if (before.seqs[i] == seqs[j] && before.infos[i].cross_length > 0 && cross[j] > 0)
          return true;
      }
    }
    return false;
  }

  // K and V of the attention layers, so that a forward may end where the library alone writes the
  // pool.
  void append() {
    std::vector<float> rows(static_cast<size_t>(num_tokens_) * 2, 0.5f);
    std::array<int64_t, 3> shape = {num_tokens_, 1, 2};
    const DLTensor tensor = {rows.data(),  {kDLCPU, 0}, 3, {kDLFloat, 32, 1},
                             shape.data(), nullptr,     0};
    for (int32_t layer = 0; layer < 3; ++layer)
      (void)kvc_kv_append(fwd_, layer, &tensor, &tensor, nullptr);
  }

  void end() {
    if (fwd_ == nullptr) {
      KVC_FUZZ_CHECK(dead_ == nullptr || kvc_forward_end(dead_, nullptr) == KVC_E_INVALID_STATE);
      KVC_FUZZ_CHECK(dead_ == nullptr || kvc_forward_num_tokens(dead_) == -1);
      return;
    }
    if (!input_.one_in(4)) {
      const kvc_status status = call([&](kvc_error* err) { return kvc_forward_end(fwd_, err); });
      if (status == KVC_OK) return leave();
      KVC_FUZZ_CHECK(status == KVC_E_INVALID_STATE);  // a layer without K and V
    }
    KVC_FUZZ_CHECK(kvc_forward_abort(fwd_, nullptr) == KVC_OK);
    leave();
    if (!is_alone_) return;
    // Aborted: as before the begin, but for what counts forwards, copies and the peak, and what
    // eviction made room of.
    const CacheState after = state_of(cache_);
    KVC_FUZZ_CHECK(after.seqs == before_forward_.seqs &&
                   after.total_length == before_forward_.total_length &&
                   after.available_pages == before_forward_.available_pages &&
                   after.stats.tree_tokens == before_forward_.stats.tree_tokens);
    for (size_t i = 0; i < after.infos.size(); ++i) {
      const kvc_seq_info &a = after.infos[i], &b = before_forward_.infos[i];
      KVC_FUZZ_CHECK(a.length == b.length && a.num_pages == b.num_pages && a.window == b.window &&
                     a.tree_nodes == b.tree_nodes && a.first_position == b.first_position &&
                     a.last_position == b.last_position && a.cross_length == b.cross_length &&
                     a.num_checkpoints == b.num_checkpoints);
    }
  }
  void leave() {
    dead_ = fwd_;
    fwd_ = nullptr;
  }

  void commit() {
    const std::array<kvc_seq, 2> seqs = {any_seq(), any_seq()};
    const std::array<int32_t, 2> leaves = {static_cast<int32_t>(input_.choose(8)) - 2,
                                           static_cast<int32_t>(input_.choose(8)) - 2};
    const size_t count = input_.choose(8) == 7 ? 2 : 1;
    (void)call([&](kvc_error* err) {
      return kvc_tree_commit(cache_, count, seqs.data(), leaves.data(), nullptr, err);
    });
  }

  void prefix() {
    const QueryBox query(input_, block_);
    const kvc_seq seq = any_seq();
    int64_t tokens = -1;
    const size_t which = input_.choose(6);
    int64_t found = -1;
    const bool is_known = kvc_prefix_match(cache_, query.get(), &found, nullptr) == KVC_OK;
    const uint64_t lookups = state_of(cache_).stats.prefix_lookups;
    const kvc_status status = call([&](kvc_error* err) {
      switch (which) {
        case 0:
        case 1: return kvc_prefix_attach(cache_, seq, query.get(), &tokens, err);
        case 2: return kvc_prefix_insert(cache_, seq, query.get(), &tokens, err);
        case 3: return kvc_prefix_pin(cache_, query.get(), &tokens, err);
        case 4: return kvc_prefix_unpin(cache_, query.get(), &tokens, err);
        default: return kvc_prefix_match(cache_, query.get(), &tokens, err);
      }
    });
    if (status != KVC_OK) {
      KVC_FUZZ_CHECK(tokens == -1);
      return;
    }
    KVC_FUZZ_CHECK(tokens >= 0 && tokens <= kMaxPromptTokens);
    if (which > 1) return;
    KVC_FUZZ_CHECK(is_known && tokens <= found &&
                   state_of(cache_).stats.prefix_lookups == lookups + 1);
  }

  void index() {
    const int64_t number = small_number();
    int64_t freed = -1;
    const char salt = 'a';
    switch (input_.choose(3)) {
      case 0: (void)call([&](kvc_error* err) { return kvc_prefix_reset(cache_, err); }); return;
      case 1:
        (void)call([&](kvc_error* err) {
          return kvc_prefix_quota_set(cache_, &salt, static_cast<size_t>(number & 1),
                                      static_cast<uint64_t>(number), err);
        });
        return;
      default:
        (void)call([&](kvc_error* err) { return kvc_prefix_evict(cache_, number, &freed, err); });
    }
  }

  void swap() {
    const std::array<kvc_seq, 2> seqs = {any_seq(), any_seq()};
    const size_t count = 1 + input_.choose(2);
    const bool out = input_.one_in(2);
    kvc_fence* fence = nullptr;
    kvc_fence** asked = input_.one_in(2) ? &fence : nullptr;
    const kvc_status status = call([&](kvc_error* err) {
      return out ? kvc_swap_out(cache_, count, seqs.data(), nullptr, asked, err)
                 : kvc_swap_in(cache_, count, seqs.data(), nullptr, asked, err);
    });
    finish(fence, status == KVC_OK && asked != nullptr);
  }
  void finish(kvc_fence* fence, bool has_one) {
    KVC_FUZZ_CHECK((fence != nullptr) == has_one);
    if (fence == nullptr) return;
    int32_t is_done = -1;
    KVC_FUZZ_CHECK(kvc_fence_wait(fence, -1, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK(kvc_fence_query(fence, &is_done, nullptr) == KVC_OK && is_done == 1);
    kvc_fence_destroy(fence);
  }

  void copy_pages() {
    std::array<int64_t, 4> pairs{};
    for (int64_t& page : pairs)
      page = input_.one_in(16) ? odd_number() : static_cast<int64_t>(input_.choose(24));
    std::array<int64_t, 2> shape = {static_cast<int64_t>(input_.choose(3)), 2};
    const DLTensor tensor = {pairs.data(), {kDLCPU, 0}, 2, {kDLInt, 64, 1},
                             shape.data(), nullptr,     0};
    const auto direction = static_cast<kvc_swap_direction>(input_.choose(3));
    kvc_fence* fence = nullptr;
    const bool across = input_.one_in(2);
    const kvc_status status = call([&](kvc_error* err) {
      return across ? kvc_pages_swap(cache_, &tensor, direction, nullptr, &fence, err)
                    : kvc_pages_copy(cache_, &tensor, nullptr, &fence, err);
    });
    finish(fence, status == KVC_OK);
  }

  void resize() {
    const int64_t pages = input_.one_in(4) ? odd_number() : static_cast<int64_t>(input_.choose(40));
    if (pages > 4096) return;  // a pool of terabytes is no finding
    (void)call([&](kvc_error* err) { return kvc_cache_resize(cache_, pages, err); });
  }

  // Questions change nothing, whatever they are answered.
  void ask() {
    const CacheState before = state_of(cache_);
    const kvc_seq seq = any_seq();
    const auto op = static_cast<kvc_seq_op>(input_.choose(4));
    const int64_t position = small_number();
    int64_t nearest = -2;
    if (kvc_seq_can(cache_, seq, op, position, &nearest, nullptr) == KVC_OK && op == KVC_SEQ_POP &&
        nearest == position) {
      int64_t length = 0;
      KVC_FUZZ_CHECK(kvc_seq_length(cache_, seq, &length, nullptr) == KVC_OK && position <= length);
    }
    KVC_FUZZ_CHECK(state_of(cache_) == before);
  }

  void events() {
    std::array<kvc_event, 8> events{};
    events[0].struct_size = sizeof events[0];
    size_t count = events.size();
    uint64_t number = 0;
    const CacheState before = state_of(cache_);
    if (input_.one_in(2)) {
      (void)kvc_events_snapshot(cache_, events.data(), &count, &number, nullptr);
    } else if (kvc_events_poll(cache_, events.data(), &count, nullptr) == KVC_OK) {
      KVC_FUZZ_CHECK(count <= events.size());
      for (size_t i = 0; i < count; ++i) {
        KVC_FUZZ_CHECK(events[i].number > last_event_);
        last_event_ = events[i].number;
      }
      return;
    }
    KVC_FUZZ_CHECK(state_of(cache_) == before);
  }

  Input& input_;
  kvc_cache* cache_;
  int32_t block_;
  bool has_rows_;
  kvc_forward* fwd_ = nullptr;
  kvc_forward* dead_ = nullptr;
  CacheState before_forward_;
  // Nothing but the open forward has changed the cache, and an abort can undo that.
  bool is_alone_ = false;
  int64_t num_tokens_ = 0;
  uint64_t last_event_ = 0;
};

// One of many small models; `key` numbers the choices.
struct Choices {
  size_t window, kind, page_size, num_layers, num_pages, has_rows, has_host, page_first, events;

  explicit Choices(Input& input)
      : window(input.choose(12)),
        kind(input.choose(4)),
        page_size(input.choose(5)),
        num_layers(input.choose(3)),
        num_pages(input.choose(28)),
        has_rows(input.choose(2)),
        has_host(input.choose(2)),
        page_first(input.choose(3) / 2),
        events(input.choose(3)) {}

  uint64_t key() const {
    uint64_t key = 0;
    for (const size_t choice :
         {window, kind, page_size, num_layers, num_pages, has_rows, has_host, page_first, events})
      key = key * 32 + choice;
    return key;
  }
};

const kvc_plan* plan_of(const Choices& choices) {
  std::array<kvc_layer, 3> layers{};
  for (kvc_layer& layer : layers) {
    layer.struct_size = sizeof layer;
    layer.num_kv_heads = 1;
    layer.k_dim = 2;
    layer.k_dtype = {kDLFloat, 32, 1};
  }
  layers[1].window = static_cast<int64_t>(1 + choices.window);
  const int64_t state_shape = 3;
  kvc_state_spec state{};
  state.struct_size = sizeof state;
  state.ndim = 1;
  state.shape = &state_shape;
  if (choices.kind == 2) {
    layers[2].kind = KVC_LAYER_CROSS;
  } else if (choices.kind == 3) {
    layers[2] = {};
    layers[2].struct_size = sizeof layers[2];
    layers[2].kind = KVC_LAYER_STATE;
    layers[2].states = &state;
    layers[2].num_states = 1;
  }
  kvc_config config{};
  config.struct_size = sizeof config;
  config.page_size = static_cast<int32_t>(1 + choices.page_size);
  config.num_layers = static_cast<int32_t>(1 + choices.num_layers);
  config.layers = layers.data();
  config.num_pages = static_cast<int64_t>(4 + choices.num_pages);
  config.num_threads = 1;
  config.storage = choices.has_rows ? KVC_STORAGE_OWNED : KVC_STORAGE_NONE;
  config.host_byte_budget = choices.has_rows && choices.has_host ? 2048 : 0;
  config.pool_layout = choices.page_first ? KVC_POOL_PAGE_FIRST : KVC_POOL_LAYER_FIRST;
  config.event_capacity = static_cast<int64_t>(choices.events * 5);
  static PlanShelf shelf;
  return shelf.get(choices.key(), config);
}

void run(Input& input) {
  const Choices choices(input);
  const kvc_plan* plan = plan_of(choices);
  kvc_cache* cache = nullptr;
  if (plan == nullptr || kvc_cache_create(plan, &cache, nullptr) != KVC_OK) return;
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  KVC_FUZZ_CHECK(kvc_plan_info_get(plan, &info, nullptr) == KVC_OK);
  Life(input, cache, info.prefix_block, choices.has_rows != 0).run();
  kvc_cache_destroy(cache);
}

}  // namespace
}  // namespace kvc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvc::fuzz::Input input(data, size);
  kvc::fuzz::run(input);
  return 0;
}
