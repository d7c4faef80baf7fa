// kvc_plan_create on mutated structs, and a short life of a cache when the plan is small enough to
// make one. Claims: no access outside the caller's memory; a refusal has a status, a message and no
// other effect; an accepted plan agrees with itself.
#include <algorithm>
#include <array>
#include <string>
#include <string_view>

#include "kvcache.h"
#include "tests/fuzz/config_box.h"
#include "tests/fuzz/error_box.h"
#include "tests/fuzz/sized_struct.h"

namespace kvc::fuzz {
namespace {

constexpr int64_t kMaxPages = 4096;
constexpr int64_t kMaxTokens = 64;

// An output struct of any size: the library writes inside it and says how much.
template <typename Struct, typename Get>
kvc_status get_sized(Input& input, Get get) {
  const size_t struct_size = choose_struct_size(input, sizeof(Struct));
  ExactMemory memory(owned_bytes(struct_size));
  memory.put(0, &struct_size, sizeof(struct_size));
  const kvc_status status = get(reinterpret_cast<Struct*>(memory.data()));
  size_t filled;
  std::memcpy(&filled, memory.data(), sizeof(filled));
  KVC_FUZZ_CHECK(status == KVC_OK ? filled <= struct_size : filled == struct_size);
  return status;
}

// A two-call string: the count that the first call announces is the one that the second needs, and
// one less is too small.
template <typename Write>
void check_string(Write write) {
  size_t length = 0;
  KVC_FUZZ_CHECK(write(nullptr, &length) == KVC_OK);
  KVC_FUZZ_CHECK(length > 1);
  std::string text(length, '?');
  size_t capacity = length;
  KVC_FUZZ_CHECK(write(text.data(), &capacity) == KVC_OK);
  KVC_FUZZ_CHECK(capacity == length && text[length - 1] == '\0' && text.find('\0') == length - 1);
  std::string small(length - 1, '?');
  capacity = small.size();
  KVC_FUZZ_CHECK(write(small.data(), &capacity) == KVC_E_BUFFER_TOO_SMALL);
  KVC_FUZZ_CHECK(capacity == length && small.find_first_not_of('?') == std::string::npos);
}

// Of the plan's JSON; kvc_plan_info has no field for it.
int64_t context_ranks(const kvc_plan* plan) {
  size_t length = 0;
  KVC_FUZZ_CHECK(kvc_plan_to_json(plan, nullptr, &length, nullptr) == KVC_OK);
  std::string text(length, '\0');
  KVC_FUZZ_CHECK(kvc_plan_to_json(plan, text.data(), &length, nullptr) == KVC_OK);
  constexpr std::string_view kKey = "\"cp_size\": ";
  const size_t at = text.find(kKey);
  KVC_FUZZ_CHECK(at != std::string::npos);
  return std::stoll(text.substr(at + kKey.size()));
}

void check_plan(Input& input, const kvc_plan* plan, const kvc_plan_info& info) {
  KVC_FUZZ_CHECK(info.page_size > 0 && info.num_pages >= 0);
  // Models of nothing but states and a byte budget have pages without a group.
  const bool has_pages = info.num_layer_regions > 0 || info.state_slot_pages > 0;
  KVC_FUZZ_CHECK((info.page_bytes > 0) == has_pages);
  KVC_FUZZ_CHECK(info.pool_bytes == info.page_bytes * static_cast<uint64_t>(info.num_pages));
  KVC_FUZZ_CHECK(info.layer_begin >= 0 && info.layer_begin < info.layer_end &&
                 info.layer_end <= info.num_layers);
  const int64_t dealt_page = info.page_size * context_ranks(plan);
  KVC_FUZZ_CHECK(info.prefix_block == INT32_MAX ||
                 (info.prefix_block % dealt_page == 0 && info.prefix_block <= 64 * dealt_page));
  KVC_FUZZ_CHECK(info.forwards_in_flight >= 1 && info.forwards_in_flight <= 64);
  KVC_FUZZ_CHECK(info.waste >= 0 && info.waste <= 1 && info.concurrency >= 0);
  int64_t pages = -1;
  const bool sets_aside = info.num_groups > 0 && info.num_state_slots > 0;
  const uint64_t aside =
      sets_aside ? info.state_slot_bytes * static_cast<uint64_t>(info.num_state_slots) : 0;
  KVC_FUZZ_CHECK(kvc_plan_pages_for(plan, info.pool_bytes + aside, &pages, nullptr) == KVC_OK &&
                 (info.page_bytes == 0 || pages == info.num_pages));
  KVC_FUZZ_CHECK(kvc_plan_min_pages(&plan, 1, &pages, nullptr) == KVC_OK &&
                 pages == info.num_pages);
  if (info.num_pages > 0) {
    KVC_FUZZ_CHECK(kvc_plan_request_pages(plan, info.max_seq_len, &pages, nullptr) == KVC_OK &&
                   pages <= info.num_pages);
  }
  ErrorBox refused(input);
  refused.check(kvc_plan_request_pages(plan, -1, &pages, refused.get()));
  // The layers of a group fit one page; those of different groups lie over each other.
  std::vector<uint64_t> group_bytes(static_cast<size_t>(info.num_groups), 0);
  for (int32_t layer = info.layer_begin; layer < info.layer_end; ++layer) {
    kvc_layer_info one{};
    one.struct_size = sizeof(one);
    KVC_FUZZ_CHECK(kvc_plan_layer_get(plan, layer, &one, nullptr) == KVC_OK);
    KVC_FUZZ_CHECK((one.kept_group < 0) == (one.keep_tokens == 0) &&
                   one.kept_group < info.num_groups);
    KVC_FUZZ_CHECK(one.group >= -1 && one.group < info.num_groups &&
                   one.region_offset + one.page_bytes <= one.region_bytes);
    KVC_FUZZ_CHECK(one.k_page_bytes + one.v_page_bytes + one.k_scale_bytes + one.v_scale_bytes <=
                   one.page_bytes);
    if (one.group >= 0) group_bytes[static_cast<size_t>(one.group)] += one.page_bytes;
  }
  for (int32_t group = 0; group < info.num_groups; ++group) {
    kvc_group_info one{};
    one.struct_size = sizeof(one);
    KVC_FUZZ_CHECK(kvc_plan_group_get(plan, group, &one, nullptr) == KVC_OK);
    // Kept rows have groups of their own, which no layer has as its group.
    KVC_FUZZ_CHECK(one.keep_tokens != 0
                       ? one.page_bytes > 0
                       : one.page_bytes == group_bytes[static_cast<size_t>(group)]);
    KVC_FUZZ_CHECK(one.page_bytes + one.padding_bytes == info.page_bytes);
    KVC_FUZZ_CHECK((one.keep_tokens != 0 ? info.page_size % one.page_size
                                         : one.page_size % info.page_size) == 0 &&
                   (one.first_layer < 0) == (one.num_layers == 0));
  }
  get_sized<kvc_layer_info>(input, [&](kvc_layer_info* out) {
    return kvc_plan_layer_get(plan, info.layer_begin, out, nullptr);
  });
  get_sized<kvc_plan_info>(
      input, [&](kvc_plan_info* out) { return kvc_plan_info_get(plan, out, nullptr); });
  check_string(
      [&](char* text, size_t* length) { return kvc_plan_describe(plan, text, length, nullptr); });
  check_string(
      [&](char* text, size_t* length) { return kvc_plan_to_json(plan, text, length, nullptr); });
}

// kvc_forward_begin with a mutated description. On success the step is ended or aborted.
void one_step(Input& input, kvc_cache* cache) {
  const std::array<kvc_seq, 3> seqs = {static_cast<kvc_seq>(input.choose(4)), 1,
                                       static_cast<kvc_seq>(2 + input.choose(2))};
  std::array<int64_t, 3> lengths{};
  for (int64_t& length : lengths) length = static_cast<int64_t>(input.choose(kMaxTokens));
  kvc_ext ext{7, &ext};
  kvc_forward_desc desc{};
  desc.num_seqs = 1 + input.choose(3);
  desc.seqs = seqs.data();
  desc.append_lengths = lengths.data();
  if (input.one_in(16)) desc.ext = &ext;
  if (input.one_in(3)) {
    mutate(input, &desc, sizeof(desc),
           {offsetof(kvc_forward_desc, ext), offsetof(kvc_forward_desc, stream),
            offsetof(kvc_forward_desc, seqs), offsetof(kvc_forward_desc, append_lengths),
            offsetof(kvc_forward_desc, tree_parents), offsetof(kvc_forward_desc, tokens),
            offsetof(kvc_forward_desc, positions), offsetof(kvc_forward_desc, cross_lengths)});
    desc.num_seqs = std::min<size_t>(desc.num_seqs, 3);
  }
  desc.struct_size = choose_struct_size(input, sizeof(desc));
  ExactMemory box(owned_bytes(desc.struct_size));
  box.put(0, &desc, sizeof(desc));

  const int64_t length_before = kvc_cache_total_length(cache);
  const int64_t free_before = kvc_cache_available_pages(cache);
  kvc_forward* fwd = nullptr;
  ErrorBox err(input);
  const kvc_status status = kvc_forward_begin(
      cache, reinterpret_cast<const kvc_forward_desc*>(box.data()), &fwd, err.get());
  err.check(status);
  if (status != KVC_OK) {
    KVC_FUZZ_CHECK(fwd == nullptr);
  } else if (input.one_in(2)) {
    KVC_FUZZ_CHECK(kvc_forward_abort(fwd, nullptr) == KVC_OK);
  } else {
    const int64_t num_tokens = kvc_forward_num_tokens(fwd);
    if (kvc_forward_end(fwd, nullptr) == KVC_OK) {
      KVC_FUZZ_CHECK(kvc_cache_total_length(cache) == length_before + num_tokens);
      return;
    }
    // No layer got K and V: the forward is open as before.
    KVC_FUZZ_CHECK(kvc_forward_end(fwd, nullptr) == KVC_E_INVALID_STATE);
    KVC_FUZZ_CHECK(kvc_forward_num_tokens(fwd) == num_tokens);
    KVC_FUZZ_CHECK(kvc_forward_abort(fwd, nullptr) == KVC_OK);
  }
  KVC_FUZZ_CHECK(kvc_cache_total_length(cache) == length_before &&
                 kvc_cache_available_pages(cache) == free_before);
}

void short_life(Input& input, const kvc_plan* plan) {
  kvc_cache* cache = nullptr;
  ErrorBox err(input);
  const kvc_status status = kvc_cache_create(plan, &cache, err.get());
  err.check(status);
  if (status != KVC_OK) {
    KVC_FUZZ_CHECK(cache == nullptr);
    return;
  }
  for (kvc_seq seq = 0; seq < 4; ++seq) KVC_FUZZ_CHECK(kvc_seq_add(cache, seq, nullptr) == KVC_OK);
  for (int steps = 0; steps < 6 && !input.empty(); ++steps) {
    one_step(input, cache);
    const kvc_seq child = static_cast<kvc_seq>(input.choose(4)),
                  parent = static_cast<kvc_seq>(input.choose(4));
    if (child != parent && input.one_in(3)) {
      KVC_FUZZ_CHECK(kvc_seq_remove(cache, child, nullptr) == KVC_OK);
      ErrorBox fork_err(input);
      const int64_t pos = static_cast<int64_t>(input.choose(32)) - 2;
      const kvc_status forked = kvc_seq_fork(cache, parent, child, pos, fork_err.get());
      fork_err.check(forked);
      if (forked != KVC_OK) KVC_FUZZ_CHECK(kvc_seq_add(cache, child, nullptr) == KVC_OK);
    }
  }
  KVC_FUZZ_CHECK(kvc_cache_check(cache, nullptr) == KVC_OK);
  get_sized<kvc_stats>(input,
                       [&](kvc_stats* out) { return kvc_cache_stats_get(cache, out, nullptr); });
  get_sized<kvc_seq_info>(
      input, [&](kvc_seq_info* out) { return kvc_seq_info_get(cache, 1, out, nullptr); });
  KVC_FUZZ_CHECK(kvc_cache_clear(cache, nullptr) == KVC_OK && kvc_cache_is_empty(cache) == 1);
  kvc_cache_destroy(cache);
}

void run(Input& input) {
  ConfigBox config(input);
  kvc_plan* plan = nullptr;
  ErrorBox err(input);
  const kvc_status status = kvc_plan_create(config.get(), &plan, err.get());
  err.check(status);
  KVC_FUZZ_CHECK((plan != nullptr) == (status == KVC_OK));
  if (status != KVC_OK) return;
  kvc_plan_info info{};
  info.struct_size = sizeof(info);
  KVC_FUZZ_CHECK(kvc_plan_info_get(plan, &info, nullptr) == KVC_OK);
  check_plan(input, plan, info);
  const bool small = info.pool_bytes <= kMaxPoolBytes && info.num_pages <= kMaxPages &&
                     info.num_host_pages <= kMaxPages;
  if (small && config.runs_here() && config.honest_pool()) short_life(input, plan);
  kvc_plan_destroy(plan);
  KVC_FUZZ_CHECK(config.allocated() == 0);
}

}  // namespace
}  // namespace kvc::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  kvc::fuzz::Input input(data, size);
  kvc::fuzz::run(input);
  return 0;
}
