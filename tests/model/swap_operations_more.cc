// The operations of SwapRun that write contents from outside, use the prefix index, or are refused.
#include <algorithm>

#include "tests/model/swap_rows.h"
#include "tests/model/swap_run.h"

namespace kvc::test {

// Encoder tokens, written behind the forward that announced them.
void SwapRun::write_cross(kvc_seq id, int64_t count) {
  Seq& seq = seqs_.at(id);
  seq.cross = ++fresh_;
  seq.cross_length = count;
  for (size_t l = 0; l < layers_.size(); ++l) {
    if (layers_[l].kind != KVC_LAYER_CROSS) continue;
    SwapRows rows(layers_[l], count);
    for (int64_t token = 0; token < count; ++token)
      rows.set(l, token, mixed(seq.cross, static_cast<uint64_t>(token)));
    if (kvc_debug_set_layer(cache_, id, static_cast<int32_t>(l), 0, rows.k.dl(), rows.v.dl(),
                            nullptr, &error_) != KVC_OK)
      fail("kvc_debug_set_layer of encoder tokens");
  }
}

void SwapRun::op_debug_set() {
  const std::vector<kvc_seq> all =
      ids([](const Seq& seq) { return !seq.is_swapped && seq.length() > 0; });
  const auto l = static_cast<size_t>(random_.range(0, static_cast<int64_t>(layers_.size()) - 1));
  if (all.empty() || !keeps_rows(layers_[l]) || layers_[l].kind == KVC_LAYER_CROSS) return;
  const kvc_seq id = random_.pick(all);
  Seq& seq = seqs_.at(id);
  const int64_t count = random_.range(1, std::min<int64_t>(seq.length(), 6)),
                first = seq.length() - count;
  SwapRows rows(layers_[l], count);
  std::vector<uint64_t> values;
  for (int64_t token = 0; token < count; ++token) {
    values.push_back(mixed(++fresh_, 5));
    rows.set(l, token, values.back());
  }
  note("set " + std::to_string(count) + " tokens of layer " + std::to_string(l) + " of " +
       std::to_string(id));
  const kvc_status status = call_strong("kvc_debug_set_layer", [&](kvc_error* err) {
    return kvc_debug_set_layer(cache_, id, static_cast<int32_t>(l), first, rows.k.dl(),
                               rows.v_or_null(), nullptr, err);
  });
  allow("kvc_debug_set_layer", status, {KVC_OK, KVC_E_NO_PAGES, KVC_E_OUT_OF_RANGE});
  if (status != KVC_OK) return;
  std::copy(values.begin(), values.end(), seq.values[l].begin() + first);
  seq.keep_text(first);
}

void SwapRun::op_refused() {
  const std::vector<kvc_seq> swapped = ids([](const Seq& seq) { return seq.is_swapped; });
  const std::vector<kvc_seq> here = ids([](const Seq& seq) { return !seq.is_swapped; });
  std::vector<kvc_seq> which;
  kvc_status expected = KVC_E_NOT_FOUND;
  const bool out = random_.chance(0.5);
  const char* name = out ? "kvc_swap_out" : "kvc_swap_in";
  const std::vector<kvc_seq>& good = out ? here : swapped;
  const std::vector<kvc_seq>& bad = out ? swapped : here;
  if (!good.empty()) which.push_back(random_.pick(good));
  const int64_t kind = random_.range(0, 3);
  if (kind == 0 && !bad.empty()) {
    which.push_back(random_.pick(bad));
    expected = KVC_E_INVALID_STATE;
  } else if (kind == 1 && !good.empty()) {
    which.push_back(which.front());
    expected = KVC_E_INVALID_ARGUMENT;
  } else if (kind == 2) {
    which.clear();
    expected = KVC_E_INVALID_ARGUMENT;
  } else {
    which.push_back(next_id_ + 5);
  }
  const auto move = out ? &kvc_swap_out : &kvc_swap_in;
  const kvc_status status = call_strong(name, [&](kvc_error* err) {
    return move(cache_, which.size(), which.data(), nullptr, nullptr, err);
  });
  allow(name, status, {expected});
  if (swapped.empty()) return;
  const kvc_seq id = random_.pick(swapped);
  const std::pair<const char*, std::function<kvc_status(kvc_error*)>> calls[] = {
      {"kvc_seq_pop", [&](kvc_error* err) { return kvc_seq_pop(cache_, id, 0, err); }},
      {"kvc_seq_fork", [&](kvc_error* err) { return kvc_seq_fork(cache_, id, next_id_, -1, err); }},
      {"kvc_seq_shift", [&](kvc_error* err) { return kvc_seq_shift(cache_, id, 0, 0, 0, err); }},
      {"kvc_forward_begin",
       [&](kvc_error* err) {
         const int64_t one = 1;
         kvc_forward_desc desc{};
         desc.struct_size = sizeof desc;
         desc.num_seqs = 1;
         desc.seqs = &id;
         desc.append_lengths = &one;
         kvc_forward* opened = nullptr;
         return kvc_forward_begin(cache_, &desc, &opened, err);
       }},
      {"kvc_seq_can",
       [&](kvc_error* err) {
         int64_t nearest = 0;
         return kvc_seq_can(cache_, id, KVC_SEQ_FORK, -1, &nearest, err);
       }},
  };
  const auto& [function, refused] = calls[static_cast<size_t>(random_.range(0, 4))];
  allow(function, call_strong(function, refused), {KVC_E_INVALID_STATE});
}

// A new sequence on what the index holds of a text that was there once, or of one that begins like
// it.
void SwapRun::op_attach() {
  if (!is_indexed_ || texts_.empty() || seqs_.size() >= kMostSeqs) return;
  const auto& [root, text] =
      texts_[static_cast<size_t>(random_.range(0, static_cast<int64_t>(texts_.size()) - 1))];
  std::vector<int32_t> tokens = text;
  if (random_.chance(0.3))
    tokens.resize(static_cast<size_t>(random_.range(0, static_cast<int64_t>(tokens.size()))));
  while (tokens.empty() || random_.chance(0.4)) tokens.push_back(draw_token());
  const uint64_t there = random_.chance(0.9) ? root : 1 - root;
  kvc_prefix_query query{};
  query.struct_size = sizeof query;
  query.flags = static_cast<uint64_t>(random_.range(0, 3));
  query.num_tokens = static_cast<int64_t>(tokens.size());
  query.tokens = tokens.data();
  query.salt = there == 1 ? "other" : nullptr;
  query.salt_size = there == 1 ? 5 : 0;
  query.priority = static_cast<int32_t>(random_.range(0, 2));
  const kvc_seq id = next_id_++;
  int64_t hit = -1;
  const kvc_status status = call_strong("kvc_prefix_attach", [&](kvc_error* err) {
    return kvc_prefix_attach(cache_, id, &query, &hit, err);
  });
  allow("kvc_prefix_attach", status, {KVC_OK});
  note("attach " + std::to_string(id) + ", " + std::to_string(hit) + " of " +
       std::to_string(tokens.size()));
  if (hit < 0 || hit > query.num_tokens - ((query.flags & KVC_PREFIX_ALL_TOKENS) != 0 ? 0 : 1))
    fail("a hit of " + std::to_string(hit) + " of " + std::to_string(tokens.size()) + " tokens");
  Seq seq;
  seq.root = there;
  seq.values.resize(layers_.size());
  uint64_t last = start_of(seq);
  for (int64_t i = 0; i < hit; ++i) {
    last = mixed(last, static_cast<uint64_t>(tokens[static_cast<size_t>(i)]));
    append_values(seq, {last});
  }
  seq.tokens.assign(tokens.begin(), tokens.begin() + hit);
  seqs_[id] = std::move(seq);
  if (hit > 0) coverage_["hit"][KVC_OK] += 1;
  check_contents(id);
}

void SwapRun::op_evict() {
  if (!is_indexed_) return;
  const int64_t pages = random_.range(0, 12);
  int64_t freed = -1;
  note("evict " + std::to_string(pages));
  allow("kvc_prefix_evict",
        call("kvc_prefix_evict",
             [&](kvc_error* err) { return kvc_prefix_evict(cache_, pages, &freed, err); }),
        {KVC_OK});
}

void SwapRun::op_reset() {
  if (!is_indexed_ || !random_.chance(0.2)) return;
  note("reset");
  allow("kvc_prefix_reset",
        call("kvc_prefix_reset", [&](kvc_error* err) { return kvc_prefix_reset(cache_, err); }),
        {KVC_OK});
}

}  // namespace kvc::test
