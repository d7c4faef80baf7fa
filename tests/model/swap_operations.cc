// The operations of SwapRun.
#include <algorithm>

#include "tests/model/allocation_failures.h"
#include "tests/model/swap_run.h"

namespace kvc::test {
namespace {

std::string list_of(const std::vector<kvc_seq>& ids) {
  std::string text;
  for (const kvc_seq id : ids) text += " " + std::to_string(id);
  return text;
}

}  // namespace

void SwapRun::step() {
  struct Choice {
    int weight;
    void (SwapRun::*op)();
  };
  const Choice choices[] = {
      {8, &SwapRun::op_add},     {5, &SwapRun::op_remove},    {24, &SwapRun::op_forward},
      {6, &SwapRun::op_tree},    {9, &SwapRun::op_fork},      {7, &SwapRun::op_pop},
      {3, &SwapRun::op_shift},   {2, &SwapRun::op_window},    {3, &SwapRun::op_debug_set},
      {1, &SwapRun::op_resize},  {16, &SwapRun::op_swap_out}, {18, &SwapRun::op_swap_in},
      {4, &SwapRun::op_refused}, {10, &SwapRun::op_attach},   {2, &SwapRun::op_evict},
      {1, &SwapRun::op_reset},   {6, &SwapRun::op_save},      {8, &SwapRun::op_load},
  };
  int sum = 0;
  for (const Choice& choice : choices) sum += choice.weight;
  int64_t at = random_.range(0, sum - 1);
  if (random_.chance(0.003)) return op_clear();
  for (const Choice& choice : choices) {
    at -= choice.weight;
    if (at < 0) return (this->*choice.op)();
  }
}

void SwapRun::op_add() {
  if (seqs_.size() >= kMostSeqs) return;
  const kvc_seq id = next_id_++;
  note("add " + std::to_string(id));
  allow("kvc_seq_add",
        call("kvc_seq_add", [&](kvc_error* err) { return kvc_seq_add(cache_, id, err); }),
        {KVC_OK});
  seqs_[id].values.resize(layers_.size());
}

void SwapRun::op_remove() {
  const std::vector<kvc_seq> all = ids([](const Seq&) { return true; });
  if (all.empty()) return;
  const kvc_seq id = random_.pick(all);
  note("remove " + std::to_string(id) + (seqs_.at(id).is_swapped ? ", swapped" : ""));
  allow("kvc_seq_remove",
        call("kvc_seq_remove", [&](kvc_error* err) { return kvc_seq_remove(cache_, id, err); }),
        {KVC_OK});
  seqs_.erase(id);
}

kvc_status SwapRun::begin(const char* name, const std::vector<kvc_seq>& batch,
                          const std::vector<int64_t>& lengths, const std::vector<int32_t>& tokens,
                          const std::vector<int32_t>& parents, const std::vector<int64_t>& cross) {
  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = batch.size();
  desc.seqs = batch.data();
  desc.append_lengths = lengths.data();
  if (!parents.empty()) desc.tree_parents = parents.data();
  if (gives_tokens_) desc.tokens = tokens.data();
  if (!cross.empty()) desc.cross_lengths = cross.data();
  // Encoder tokens are written when the forward is over.
  if (std::any_of(cross.begin(), cross.end(), [](int64_t count) { return count > 0; }))
    desc.flags = KVC_FORWARD_PARTIAL;
  kvc_forward* opened = nullptr;
  const kvc_status status = call_strong(
      name, [&](kvc_error* err) { return kvc_forward_begin(cache_, &desc, &opened, err); });
  if (status == KVC_OK) {
    forward_ = opened;
    in_forward_.insert(batch.begin(), batch.end());
  }
  return status;
}

// Whatever fails to be allocated, a forward can be ended.
void SwapRun::close(bool commit) {
  if (injects_) arm_allocation_failure(random_.range(1, 4));
  const kvc_status status =
      commit ? kvc_forward_end(forward_, &error_) : kvc_forward_abort(forward_, &error_);
  disarm_allocation_failure();
  if (status != KVC_OK) fail(commit ? "kvc_forward_end" : "kvc_forward_abort");
  forward_ = nullptr;
  in_forward_.clear();
}

void SwapRun::op_forward() {
  const std::vector<kvc_seq> batch =
      some_of(ids([](const Seq& seq) { return !seq.is_swapped && seq.length() < kLongest; }), 4);
  if (batch.empty()) return;
  gives_tokens_ = is_indexed_ && random_.chance(0.85);
  std::vector<int64_t> lengths, cross;
  std::vector<int32_t> tokens;
  std::vector<std::vector<uint64_t>> chains;
  for (const kvc_seq id : batch) {
    const Seq& seq = seqs_.at(id);
    lengths.push_back(random_.chance(0.5) ? random_.range(1, 2) : random_.range(1, 14));
    chains.emplace_back();
    uint64_t last = seq.chain.empty() ? start_of(seq) : seq.chain.back();
    for (int64_t i = 0; i < lengths.back(); ++i) {
      tokens.push_back(draw_token());
      chains.back().push_back(last = chain_after(seq, last, tokens.back()));
    }
    if (has_cross_)
      cross.push_back(seq.cross_length == 0 && random_.chance(0.4) ? random_.range(1, 6) : 0);
  }
  note("forward of" + list_of(batch));
  int64_t missing = -1;
  const kvc_status can =
      kvc_seq_can_append(cache_, batch.size(), batch.data(), lengths.data(), &missing, &error_);
  const kvc_status status = begin("kvc_forward_begin", batch, lengths, tokens, {}, cross);
  allow("kvc_forward_begin", status, {KVC_OK, KVC_E_NO_PAGES, KVC_E_NEVER_FITS});
  const bool announces =
      std::any_of(cross.begin(), cross.end(), [](int64_t count) { return count > 0; });
  if (!announces && status != KVC_E_NEVER_FITS) {
    if (can != KVC_OK || (missing == 0) != (status == KVC_OK))
      fail("kvc_seq_can_append says that " + std::to_string(missing) + " pages are missing");
    // With states: pages or slots
    if (status == KVC_E_NO_PAGES && !has_state_ && error_.detail != missing)
      fail("detail is not what kvc_seq_can_append says");
  }
  if (status != KVC_OK) return;
  write_rows(batch, chains);
  if (random_.chance(0.3)) swap_others();
  const bool commit = random_.chance(0.85);
  close(commit);
  if (!commit) return note("aborted");
  size_t token = 0;
  for (size_t i = 0; i < batch.size(); ++i) {
    Seq& seq = seqs_.at(batch[i]);
    const auto first = tokens.begin() + static_cast<int64_t>(token);
    token += chains[i].size();
    if (gives_tokens_ && seq.is_text())
      seq.tokens.insert(seq.tokens.end(), first, first + lengths[i]);
    append_values(seq, chains[i]);
    if (has_cross_ && cross[i] > 0) write_cross(batch[i], cross[i]);
    if (seq.is_text() && random_.chance(0.2)) texts_.emplace_back(seq.root, seq.tokens);
    if (texts_.size() > 20) texts_.pop_front();
  }
}

// Others may come and go while a forward is open; its own sequences may not.
void SwapRun::swap_others() {
  const std::vector<kvc_seq> busy{*in_forward_.begin()};
  const kvc_status status = call_strong("kvc_swap_out", [&](kvc_error* err) {
    return kvc_swap_out(cache_, 1, busy.data(), nullptr, nullptr, err);
  });
  allow("kvc_swap_out of a sequence in the forward", status, {KVC_E_BUSY});
  std::vector<uint8_t> file;
  allow("kvc_seq_save of a sequence in the forward", save(busy, &file), {KVC_E_BUSY});
  if (!files_.empty() && random_.chance(0.3)) {
    const std::vector<kvc_seq> ids(files_[0].seqs.size(), next_id_);
    allow("kvc_seq_load beside a forward", load(ids, files_[0].bytes),
          {KVC_E_BUSY, KVC_E_INVALID_ARGUMENT});
  }
  if (random_.chance(0.7)) op_swap_out();
  if (random_.chance(0.7)) op_swap_in();
}

void SwapRun::op_tree() {
  const std::vector<kvc_seq> batch =
      some_of(ids([](const Seq& seq) { return !seq.is_swapped && seq.length() < kLongest; }), 1);
  if (batch.empty() || has_state_) return;
  const kvc_seq id = batch.front();
  const int64_t nodes = random_.range(1, 9);
  gives_tokens_ = is_indexed_ && random_.chance(0.85);
  std::vector<int32_t> tokens, parents;
  std::vector<uint64_t> chain;
  const Seq& before = seqs_.at(id);
  for (int64_t i = 0; i < nodes; ++i) {
    parents.push_back(static_cast<int32_t>(random_.range(-1, i - 1)));
    tokens.push_back(draw_token());
    const uint64_t last = parents.back() >= 0    ? chain[static_cast<size_t>(parents.back())]
                          : before.chain.empty() ? start_of(before)
                                                 : before.chain.back();
    chain.push_back(chain_after(before, last, tokens.back()));
  }
  note("tree of " + std::to_string(id));
  const kvc_status status = begin("kvc_forward_begin", batch, {nodes}, tokens, parents, {});
  allow("kvc_forward_begin of a tree", status,
        {KVC_OK, KVC_E_NO_PAGES, KVC_E_NEVER_FITS, has_kept_ ? KVC_E_UNSUPPORTED : KVC_OK});
  if (status != KVC_OK) return;
  write_rows(batch, {chain});
  if (random_.chance(0.3)) swap_others();
  const bool commit = random_.chance(0.85);
  close(commit);
  if (!commit) return note("aborted");
  seqs_.at(id).has_tree = true;
  const kvc_status refused = call_strong("kvc_swap_out", [&](kvc_error* err) {
    return kvc_swap_out(cache_, 1, &id, nullptr, nullptr, err);
  });
  allow("kvc_swap_out of a tree", refused, {KVC_E_INVALID_STATE});
  std::vector<uint8_t> file;
  allow("kvc_seq_save of a tree", save(batch, &file), {KVC_E_INVALID_STATE});
  if (random_.chance(0.4)) op_swap_out();
  if (random_.chance(0.4)) op_swap_in();
  const auto leaf = static_cast<int32_t>(random_.range(-1, nodes - 1));
  allow("kvc_tree_commit",
        call("kvc_tree_commit",
             [&](kvc_error* err) { return kvc_tree_commit(cache_, 1, &id, &leaf, nullptr, err); }),
        {KVC_OK});
  note("leaf " + std::to_string(leaf));
  Seq& seq = seqs_.at(id);
  seq.has_tree = false;
  std::vector<size_t> path;
  for (int32_t node = leaf; node >= 0; node = parents[static_cast<size_t>(node)])
    path.insert(path.begin(), static_cast<size_t>(node));
  const bool is_text = gives_tokens_ && seq.is_text();
  for (const size_t node : path) {
    append_values(seq, {chain[node]});
    if (is_text) seq.tokens.push_back(tokens[node]);
  }
}

void SwapRun::op_fork() {
  const std::vector<kvc_seq> parents = ids([](const Seq& seq) { return !seq.is_swapped; });
  if (parents.empty() || seqs_.size() >= kMostSeqs) return;
  const kvc_seq parent = random_.pick(parents), child = next_id_++;
  const int64_t length = seqs_.at(parent).length();
  const int64_t at = random_.chance(0.5) ? length : random_.range(0, length);
  note("fork " + std::to_string(parent) + " at " + std::to_string(at) + " to " +
       std::to_string(child));
  const kvc_status status = call_strong(
      "kvc_seq_fork", [&](kvc_error* err) { return kvc_seq_fork(cache_, parent, child, at, err); });
  allow("kvc_seq_fork", status, {KVC_OK, KVC_E_OUT_OF_RANGE});
  if (status != KVC_OK) return;
  seqs_[child] = seqs_.at(parent);
  seqs_[child].truncate(at);
}

void SwapRun::op_pop() {
  const std::vector<kvc_seq> all = ids([](const Seq& seq) { return !seq.is_swapped; });
  if (all.empty()) return;
  const kvc_seq id = random_.pick(all);
  Seq& seq = seqs_.at(id);
  const int64_t n = random_.range(0, std::min<int64_t>(seq.length(), 9));
  note("pop " + std::to_string(n) + " of " + std::to_string(id));
  const kvc_status status =
      call_strong("kvc_seq_pop", [&](kvc_error* err) { return kvc_seq_pop(cache_, id, n, err); });
  allow("kvc_seq_pop", status, {KVC_OK, KVC_E_OUT_OF_RANGE});
  if (status == KVC_OK) seq.truncate(seq.length() - n);
}

void SwapRun::op_shift() {
  const std::vector<kvc_seq> all =
      ids([](const Seq& seq) { return !seq.is_swapped && seq.length() > 0; });
  if (all.empty() || has_state_) return;
  const kvc_seq id = random_.pick(all);
  Seq& seq = seqs_.at(id);
  const int64_t first = random_.range(0, seq.length() - 1),
                end = random_.range(first, seq.length());
  note("shift " + std::to_string(id) + " from " + std::to_string(first) + " to " +
       std::to_string(end));
  const kvc_status status = call_strong("kvc_seq_shift", [&](kvc_error* err) {
    return kvc_seq_shift(cache_, id, first, end, first - end, err);
  });
  allow("kvc_seq_shift", status,
        {KVC_OK, KVC_E_OUT_OF_RANGE, KVC_E_NO_PAGES, has_kept_ ? KVC_E_UNSUPPORTED : KVC_OK});
  if (status != KVC_OK || first == end) return;
  seq.keep_text(first);
  seq.chain.erase(seq.chain.begin() + first, seq.chain.begin() + end);
  for (std::vector<uint64_t>& values : seq.values)
    values.erase(values.begin() + first, values.begin() + end);
}

void SwapRun::op_window() {
  const std::vector<kvc_seq> all = ids([](const Seq& seq) { return !seq.is_swapped; });
  if (all.empty() || has_chunk_) return;
  const kvc_seq id = random_.pick(all);
  const int64_t window = random_.range(1, 20),
                sink = random_.chance(0.5) ? random_.range(0, window - 1) : 0;
  note("window of " + std::to_string(id));
  const kvc_status status = call_strong("kvc_seq_set_window", [&](kvc_error* err) {
    return kvc_seq_set_window(cache_, id, window, sink, err);
  });
  allow("kvc_seq_set_window", status, {KVC_OK, KVC_E_OUT_OF_RANGE, KVC_E_UNSUPPORTED});
  if (status == KVC_OK) seqs_.at(id).has_window = true;
}

void SwapRun::op_resize() {
  const int64_t pages = random_.range(10, 80);
  note("resize to " + std::to_string(pages));
  const kvc_status status = call_strong(
      "kvc_cache_resize", [&](kvc_error* err) { return kvc_cache_resize(cache_, pages, err); });
  allow("kvc_cache_resize", status, {KVC_OK, KVC_E_BUSY});
  allow(
      "kvc_cache_trim",
      call("kvc_cache_trim", [&](kvc_error* err) { return kvc_cache_trim(cache_, nullptr, err); }),
      {KVC_OK, KVC_E_BUSY});
}

void SwapRun::op_clear() {
  note("clear");
  allow("kvc_cache_clear",
        call("kvc_cache_clear", [&](kvc_error* err) { return kvc_cache_clear(cache_, err); }),
        {KVC_OK});
  seqs_.clear();
  if (stats().host_pages_used != 0) fail("clear has left host pages in use");
}

void SwapRun::swap_out(const std::vector<kvc_seq>& which) {
  note("swap out" + list_of(which));
  std::map<kvc_seq, std::set<int32_t>> pages;
  std::map<kvc_seq, kvc_seq_info> before;
  std::set<int32_t> needed;
  for (const kvc_seq id : which) {
    pages[id] = device_pages(id);
    before[id] = info(id);
    needed.insert(pages[id].begin(), pages[id].end());
  }
  const int64_t missing =
      static_cast<int64_t>(needed.size()) - (num_host_pages_ - host_pages_held());
  const uint64_t moved = stats().pages_swapped_out;
  kvc_fence* fence = nullptr;
  const bool fenced = random_.chance(0.3);
  const kvc_status status = call_strong("kvc_swap_out", [&](kvc_error* err) {
    return kvc_swap_out(cache_, which.size(), which.data(), nullptr, fenced ? &fence : nullptr,
                        err);
  });
  // States take host pages too, how many is the library's business.
  if (has_state_ && missing <= 0)
    allow("kvc_swap_out", status, {KVC_OK, KVC_E_NO_PAGES});
  else
    allow("kvc_swap_out", status, {missing > 0 ? KVC_E_NO_PAGES : KVC_OK});
  if ((fence != nullptr) != (fenced && status == KVC_OK)) fail("the fence");
  kvc_fence_destroy(fence);
  if (status == KVC_E_NO_PAGES &&
      (has_state_ ? error_.detail < std::max<int64_t>(1, missing) : error_.detail != missing))
    fail("detail " + std::to_string(error_.detail) + " where " + std::to_string(missing) +
         " host pages are missing");
  if (status != KVC_OK) return;
  ++swap_calls_;
  if (stats().pages_swapped_out - moved != needed.size()) fail("pages_swapped_out");
  for (const kvc_seq id : which) {
    Seq& seq = seqs_.at(id);
    seq.is_swapped = true;
    for (const int32_t page : pages[id]) seq.host_pages.emplace(swap_calls_, page);
    const kvc_seq_info after = info(id);
    if (after.num_pages != before[id].num_pages ||
        after.first_position != before[id].first_position ||
        after.last_position != before[id].last_position ||
        after.num_checkpoints != before[id].num_checkpoints || after.window != before[id].window ||
        after.sink != before[id].sink || after.cross_length != before[id].cross_length)
      fail("the info of sequence " + std::to_string(id) + " changed on its way");
  }
  check_counts();
}

void SwapRun::swap_in(const std::vector<kvc_seq>& which) {
  note("swap in" + list_of(which));
  std::set<HostPage> needed;
  std::map<kvc_seq, kvc_seq_info> before;
  for (const kvc_seq id : which) {
    needed.insert(seqs_.at(id).host_pages.begin(), seqs_.at(id).host_pages.end());
    before[id] = info(id);
  }
  const int64_t missing = static_cast<int64_t>(needed.size()) - kvc_cache_available_pages(cache_);
  const uint64_t moved = stats().pages_swapped_in;
  const kvc_status status = call_strong("kvc_swap_in", [&](kvc_error* err) {
    return kvc_swap_in(cache_, which.size(), which.data(), nullptr, nullptr, err);
  });
  if (has_state_ && status == KVC_E_NO_PAGES) {  // or state slots are missing
    if (error_.detail < std::max<int64_t>(1, missing))
      fail("detail " + std::to_string(error_.detail));
    return;
  }
  allow("kvc_swap_in", status, {missing > 0 ? KVC_E_NO_PAGES : KVC_OK});
  if (status == KVC_E_NO_PAGES && error_.detail != missing)
    fail("detail " + std::to_string(error_.detail) + " where " + std::to_string(missing) +
         " pages are missing");
  if (status != KVC_OK) return;
  if (stats().pages_swapped_in - moved != needed.size()) fail("pages_swapped_in");
  for (const kvc_seq id : which) {
    Seq& seq = seqs_.at(id);
    seq.is_swapped = false;
    seq.host_pages.clear();
  }
  for (const kvc_seq id : which) {
    const kvc_seq_info after = info(id);
    if (after.num_pages != before[id].num_pages ||
        after.first_position != before[id].first_position ||
        after.num_checkpoints != before[id].num_checkpoints)
      fail("the info of sequence " + std::to_string(id) + " changed on its way back");
    check_contents(id);
  }
  check_counts();
}

void SwapRun::op_swap_out() {
  const std::vector<kvc_seq> which =
      some_of(ids([](const Seq& seq) { return !seq.is_swapped && !seq.has_tree; }), 4);
  if (!which.empty()) swap_out(which);
}

void SwapRun::op_swap_in() {
  const std::vector<kvc_seq> which = some_of(ids([](const Seq& seq) { return seq.is_swapped; }), 4);
  if (!which.empty()) swap_in(which);
}

}  // namespace kvc::test
