#include "tests/model/swap_run.h"

#include <algorithm>
#include <stdexcept>

#include "tests/model/allocation_failures.h"
#include "tests/model/swap_rows.h"

namespace kvc::test {
SwapRun::SwapRun(uint64_t seed) : random_(seed), seed_(seed) { set_up(); }

SwapRun::~SwapRun() {
  disarm_allocation_failure();
  kvc_cache_destroy(cache_);
  kvc_plan_destroy(plan_);
}

void SwapRun::set_up() {
  const auto layer_of = [](kvc_layer_kind kind) {
    kvc_layer layer{};
    layer.struct_size = sizeof layer;
    layer.kind = kind;
    return layer;
  };
  const auto attention = [&](kvc_layer_kind kind, int64_t window = 0, int64_t chunk = 0) {
    kvc_layer layer = layer_of(kind);
    layer.num_kv_heads = static_cast<int32_t>(random_.range(1, 2));
    layer.k_dim = static_cast<int32_t>(random_.range(1, 3));
    layer.k_dtype = dl_type(random_.pick_of({Elem::kF32, Elem::kBF16, Elem::kF16}));
    layer.window = window;
    layer.chunk = chunk;
    return layer;
  };
  is_indexed_ = random_.chance(0.45);
  has_state_ = random_.chance(0.3);
  has_cross_ = !is_indexed_ && random_.chance(0.3);
  layers_.push_back(attention(KVC_LAYER_ATTENTION));
  if (random_.chance(0.6)) layers_.push_back(attention(KVC_LAYER_ATTENTION, random_.range(1, 14)));
  if (random_.chance(0.2)) {
    layers_.push_back(attention(KVC_LAYER_ATTENTION, 0, random_.range(2, 14)));
    has_chunk_ = true;
  }
  if (random_.chance(0.25)) {
    kvc_layer layer = layer_of(KVC_LAYER_MLA);
    layer.num_q_heads = 1;
    layer.latent_rank = 2;
    layer.latent_rope_dim = 2;
    layer.k_dtype = dl_type(Elem::kF32);
    layers_.push_back(layer);
  }
  if (has_cross_) layers_.push_back(attention(KVC_LAYER_CROSS));
  if (has_state_) {
    state_spec_.struct_size = sizeof state_spec_;
    state_spec_.ndim = 2;
    state_spec_.shape = state_shape_.data();
    kvc_layer layer = layer_of(KVC_LAYER_STATE);
    layer.states = &state_spec_;
    layer.num_states = 1;
    layers_.push_back(layer);
  }
  random_.shuffle(layers_);
  Random keep_random(seed_ + 1);
  for (kvc_layer& layer : layers_) {
    if (layer.kind != KVC_LAYER_ATTENTION && layer.kind != KVC_LAYER_MLA) continue;
    if (!keep_random.chance(0.3)) continue;
    layer.k_dtype = {kDLInt, 8, 1};
    layer.quant = KVC_QUANT_PER_TENSOR;
    layer.keep_tokens =
        static_cast<int32_t>(keep_random.range(1, keep_random.chance(0.7) ? 5 : 20));
    has_kept_ = true;
  }

  kvc_config config{};
  (void)kvc_config_init(&config, sizeof config);
  page_size_ = random_.range(1, 5);
  config.page_size = static_cast<int32_t>(page_size_);
  config.num_layers = static_cast<int32_t>(layers_.size());
  config.layers = layers_.data();
  config.num_pages = random_.range(14, 70);
  config.num_threads = 1;
  config.pool_layout = random_.chance(0.5) ? KVC_POOL_LAYER_FIRST : KVC_POOL_PAGE_FIRST;
  config.flags = random_.chance(0.3) ? KVC_CONFIG_PAD_PAGES : 0;
  config.max_cross_len = has_cross_ ? 6 : 0;
  if (has_state_ && random_.chance(0.4)) config.num_state_slots = random_.range(6, 20);
  if (is_indexed_) config.event_capacity = random_.chance(0.5) ? 16 : 0;
  kvc_plan_info info{};
  info.struct_size = sizeof info;
  // Once to learn the bytes of a page, once with room for so many of them on the host.
  for (const int64_t host_pages : {int64_t{0}, random_.range(3, 70)}) {
    kvc_plan_destroy(plan_);
    plan_ = nullptr;
    config.host_byte_budget = static_cast<uint64_t>(host_pages) * info.page_bytes;
    if (kvc_plan_create(&config, &plan_, &error_) != KVC_OK) fail("the plan");
    if (kvc_plan_info_get(plan_, &info, &error_) != KVC_OK) fail("the plan's info");
  }
  num_groups_ = static_cast<size_t>(info.num_groups);
  if (kvc_cache_create(plan_, &cache_, &error_) != KVC_OK) fail("the cache");
  num_host_pages_ = stats().host_pages_total;
}

std::string SwapRun::describe() const {
  std::string text =
      "seed " + std::to_string(seed_) + ", page size " + std::to_string(page_size_) + ", layers";
  for (const kvc_layer& layer : layers_) {
    text += " " + std::to_string(layer.kind);
    if (layer.window != 0) text += " window " + std::to_string(layer.window);
    if (layer.chunk != 0) text += " chunk " + std::to_string(layer.chunk);
    if (layer.keep_tokens != 0) text += " keep " + std::to_string(layer.keep_tokens);
  }
  text += is_indexed_ ? ", indexed" : "";
  text += ", " + std::to_string(num_host_pages_) + " host pages\n";
  return text + trace_.describe();
}

void SwapRun::fail(const std::string& what) const {
  throw std::runtime_error(what + ": " + kvc_status_name(error_.status) + " " + error_.message);
}

kvc_status SwapRun::call(const char* name, const std::function<kvc_status(kvc_error*)>& fn) {
  ++calls_;
  if (injects_ && random_.chance(0.2)) {
    const Snapshot before = take_snapshot(cache_, forward_, num_groups_);
    error_ = {};
    arm_allocation_failure(random_.range(1, random_.chance(0.8) ? 5 : 20));
    const kvc_status status = fn(&error_);
    const bool failed = disarm_allocation_failure();
    if (!failed || status == KVC_OK) {
      coverage_[name][status] += 1;
      return status;
    }
    coverage_[name][status] += 1;
    note(std::string(name) + ", an allocation failing: " + kvc_status_name(status));
    const std::string changed = difference(before, take_snapshot(cache_, forward_, num_groups_));
    if (!changed.empty()) fail(std::string(name) + " failed and yet " + changed);
    if (status != KVC_E_NO_MEMORY) return status;  // it would have been refused anyway
  }
  error_ = {};
  const kvc_status status = fn(&error_);
  coverage_[name][status] += 1;
  return status;
}

kvc_status SwapRun::call_strong(const char* name, const std::function<kvc_status(kvc_error*)>& fn) {
  const Snapshot before = take_snapshot(cache_, forward_, num_groups_);
  const kvc_status status = call(name, fn);
  if (status == KVC_OK) return status;
  const std::string changed = difference(before, take_snapshot(cache_, forward_, num_groups_));
  if (!changed.empty()) fail(std::string(name) + " was refused and yet " + changed);
  return status;
}

void SwapRun::allow(const char* name, kvc_status status,
                    std::initializer_list<kvc_status> allowed) {
  if (std::find(allowed.begin(), allowed.end(), status) == allowed.end())
    fail(std::string(name) + " answered " + kvc_status_name(status));
}

kvc_seq_info SwapRun::info(kvc_seq id) const {
  kvc_seq_info info{};
  info.struct_size = sizeof info;
  if (kvc_seq_info_get(cache_, id, &info, nullptr) != KVC_OK) fail("kvc_seq_info_get");
  return info;
}

kvc_stats SwapRun::stats() const {
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  if (kvc_cache_stats_get(cache_, &stats, nullptr) != KVC_OK) fail("kvc_cache_stats_get");
  return stats;
}

std::set<int32_t> SwapRun::device_pages(kvc_seq id) const {
  std::set<int32_t> all;
  for (size_t group = 0; group < num_groups_; ++group) {
    DLManagedTensorVersioned* pages = nullptr;
    if (kvc_export_seq_pages(cache_, id, static_cast<int32_t>(group), &pages, nullptr) != KVC_OK)
      fail("kvc_export_seq_pages of sequence " + std::to_string(id));
    const auto* first = static_cast<const int32_t*>(pages->dl_tensor.data);
    all.insert(first, first + pages->dl_tensor.shape[0]);
    pages->deleter(pages);
  }
  return all;
}

std::vector<kvc_seq> SwapRun::ids(const std::function<bool(const Seq&)>& which) const {
  std::vector<kvc_seq> found;
  for (const auto& [id, seq] : seqs_) {
    if (in_forward_.count(id) == 0 && which(seq)) found.push_back(id);
  }
  return found;
}

std::vector<kvc_seq> SwapRun::some_of(std::vector<kvc_seq> from, int64_t most) {
  random_.shuffle(from);
  const int64_t count = std::min(static_cast<int64_t>(from.size()), random_.range(1, most));
  from.resize(static_cast<size_t>(count));
  return from;
}

int64_t SwapRun::host_pages_held() const {
  std::set<HostPage> all;
  for (const auto& [id, seq] : seqs_) all.insert(seq.host_pages.begin(), seq.host_pages.end());
  return static_cast<int64_t>(all.size());
}

uint64_t SwapRun::start_of(const Seq& seq) { return mixed(seq.root, 77); }

// A small alphabet, so that texts begin alike.
int32_t SwapRun::draw_token() {
  return static_cast<int32_t>(random_.chance(0.8) ? 1 : random_.range(2, 3));
}

// What the index may never serve, because its ids were not given, has a name of its own.
uint64_t SwapRun::chain_after(const Seq& seq, uint64_t before, int32_t token) {
  const bool is_named = gives_tokens_ && seq.is_text();
  return mixed(before, is_named ? static_cast<uint64_t>(token) : ++fresh_ << 8);
}

void SwapRun::Seq::keep_text(int64_t length) {
  tokens.resize(std::min(tokens.size(), static_cast<size_t>(length)));
}

void SwapRun::Seq::truncate(int64_t length) {
  chain.resize(static_cast<size_t>(length));
  for (std::vector<uint64_t>& layer : values) layer.resize(static_cast<size_t>(length));
  keep_text(length);
}

void SwapRun::append_values(Seq& seq, const std::vector<uint64_t>& new_chain) {
  seq.values.resize(layers_.size());
  for (std::vector<uint64_t>& values : seq.values)
    values.insert(values.end(), new_chain.begin(), new_chain.end());
  seq.chain.insert(seq.chain.end(), new_chain.begin(), new_chain.end());
}

// What the open forward's new tokens are in every layer; the state after them names the last of
// each sequence.
void SwapRun::write_rows(const std::vector<kvc_seq>& batch,
                         const std::vector<std::vector<uint64_t>>& new_chain) {
  int64_t count = 0;
  for (const std::vector<uint64_t>& part : new_chain) count += static_cast<int64_t>(part.size());
  for (size_t l = 0; l < layers_.size(); ++l) {
    const auto layer = static_cast<int32_t>(l);
    if (layers_[l].kind == KVC_LAYER_STATE) {
      HostTensor state(Elem::kF32, {static_cast<int64_t>(batch.size()), 2, 2});
      state.for_each([&](int64_t b, int64_t i, int64_t j, int64_t) {
        state.set(element(new_chain[static_cast<size_t>(b)].back(), l, 0, i, j), b, i, j);
      });
      if (kvc_state_set(forward_, layer, 0, state.dl(), &error_) != KVC_OK) fail("kvc_state_set");
      continue;
    }
    if (layers_[l].kind == KVC_LAYER_CROSS) continue;
    SwapRows rows(layers_[l], count);
    int64_t row = 0;
    for (const std::vector<uint64_t>& part : new_chain) {
      for (const uint64_t value : part) rows.set(l, row++, value);
    }
    const kvc_status status =
        rows.has_v ? kvc_kv_append(forward_, layer, rows.k.dl(), rows.v.dl(), &error_)
                   : kvc_mla_append(forward_, layer, rows.k.dl(), &error_);
    if (status != KVC_OK) fail("an append to layer " + std::to_string(l));
  }
}

void SwapRun::check_contents(kvc_seq id) {
  const Seq& seq = seqs_.at(id);
  if (seq.is_swapped) return;
  for (size_t l = 0; l < layers_.size(); ++l) {
    const auto layer = static_cast<int32_t>(l);
    if (layers_[l].kind == KVC_LAYER_STATE && seq.length() > 0 && !seq.has_tree) {
      HostTensor state(Elem::kF32, {2, 2});
      if (kvc_debug_get_state(cache_, id, layer, 0, state.dl(), nullptr, &error_) != KVC_OK)
        fail("kvc_debug_get_state");
      state.for_each([&](int64_t i, int64_t j, int64_t, int64_t) {
        if (state.get(i, j) != element(seq.chain.back(), l, 0, i, j))
          fail("the state of sequence " + std::to_string(id));
      });
    }
    if (!keeps_rows(layers_[l])) continue;
    const bool is_cross = layers_[l].kind == KVC_LAYER_CROSS;
    const int64_t end = is_cross ? seq.cross_length : seq.length();
    int64_t begin = 0;
    for (int attempt = 0; attempt < 2; ++attempt) {
      SwapRows rows(layers_[l], end - begin);
      const kvc_status status = kvc_debug_get_layer(cache_, id, layer, begin, end, rows.k.dl(),
                                                    rows.v_or_null(), nullptr, &error_);
      if (status == KVC_E_OUT_OF_RANGE && attempt == 0) {  // a window has dropped some
        begin = error_.detail;
        continue;
      }
      if (status != KVC_OK) fail("kvc_debug_get_layer of sequence " + std::to_string(id));
      for (int64_t token = begin; token < end; ++token) {
        const uint64_t value = is_cross ? mixed(seq.cross, static_cast<uint64_t>(token))
                                        : seq.values[l][static_cast<size_t>(token)];
        if (!rows.holds(l, token - begin, value)) {
          fail("layer " + std::to_string(l) + " of sequence " + std::to_string(id) +
               " holds something else at token " + std::to_string(token) + " of " +
               std::to_string(end));
        }
      }
      break;
    }
  }
}

void SwapRun::check_counts() {
  const kvc_stats now = stats();
  const int64_t held = host_pages_held();
  if (!is_indexed_ && !has_state_ && now.host_pages_used != held) {
    fail(std::to_string(now.host_pages_used) + " host pages are used, sequences hold " +
         std::to_string(held));
  }
  if (now.host_pages_used < held || now.host_pages_used > now.host_pages_total)
    fail(std::to_string(now.host_pages_used) + " host pages are used");
  int64_t swapped = 0, length = 0;
  std::set<int32_t> device;
  for (const auto& [id, seq] : seqs_) {
    swapped += seq.is_swapped ? 1 : 0;
    length += seq.length();
    const kvc_seq_info found = info(id);
    if (found.length != seq.length() || (found.is_swapped != 0) != seq.is_swapped)
      fail("kvc_seq_info of sequence " + std::to_string(id));
    if (seq.is_swapped) {
      if (found.num_pages != static_cast<int64_t>(seq.host_pages.size()))
        fail("sequence " + std::to_string(id) + " holds " + std::to_string(found.num_pages) +
             " pages on the host");
      continue;
    }
    const std::set<int32_t> pages = device_pages(id);
    device.insert(pages.begin(), pages.end());
  }
  if (now.num_swapped_seqs != swapped) fail("num_swapped_seqs");
  if (now.total_length != length) fail("total_length");
  if (forward_ == nullptr && now.pages_used != static_cast<int64_t>(device.size())) {
    fail(std::to_string(now.pages_used) + " pages are used, sequences hold " +
         std::to_string(device.size()));
  }
  if (now.pages_used + now.pages_available != now.pages_total)
    fail("pages used and free don't sum up");
}

void SwapRun::check_all() {
  if (kvc_cache_check(cache_, &error_) != KVC_OK) fail("kvc_cache_check");
  check_counts();
  for (const auto& [id, seq] : seqs_) {
    if (in_forward_.count(id) == 0) check_contents(id);
  }
}

int64_t SwapRun::run(int64_t operations) {
  while (calls_ < operations) {
    injects_ = random_.chance(0.3);
    step();
    if (kvc_cache_check(cache_, &error_) != KVC_OK) fail("kvc_cache_check");
    if (random_.chance(0.1)) check_all();
  }
  check_all();
  injects_ = false;
  while (!seqs_.empty()) op_remove();
  if (is_indexed_ && kvc_prefix_reset(cache_, &error_) != KVC_OK) fail("kvc_prefix_reset");
  check_all();
  const kvc_stats end = stats();
  if (end.host_pages_used != 0)
    fail(std::to_string(end.host_pages_used) + " host pages are left at the end");
  if (end.pages_available != end.pages_total || end.state_slots_used != 0)
    fail("something is left on the device");
  if (kvc_cache_is_empty(cache_) != 1) fail("the cache is not empty");
  return calls_;
}

}  // namespace kvc::test
