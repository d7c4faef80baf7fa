#include "tests/model/random_run.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "tests/model/allocation_failures.h"

namespace kvc::test {

void mismatch(const char* format, ...) {
  char text[512];
  va_list args;
  va_start(args, format);
  std::vsnprintf(text, sizeof text, format, args);
  va_end(args);
  throw Mismatch(text);
}

RandomRun::RandomRun(uint64_t seed, RunKind kind)
    : seed_(seed),
      kind_(kind),
      random_(seed),
      setup_(random_, kind),
      model_(setup_.limits()),
      naive_(setup_.layers()) {}

void RandomRun::trace(const char* format, ...) {
  va_list args;
  va_start(args, format);
  trace_.note(steps_, format, args);
  va_end(args);
}

std::string RandomRun::describe() const {
  std::string text = "seed " + std::to_string(seed_) + ", step " + std::to_string(steps_) + ", " +
                     setup_.describe() + "\nlast operations:\n" + trace_.describe();
  for (const ModelEntry& entry : model_.entries()) {
    const ModelSequence& sequence = model_.at(entry.seq);
    text += "open: sequence " + std::to_string(entry.seq) + ", " +
            std::to_string(entry.old_length) + " tokens, " +
            std::to_string(entry.old_slots - entry.old_length) + " nodes, + " +
            std::to_string(entry.append) + (entry.is_tree ? " nodes" : "") + " from row " +
            std::to_string(entry.row_begin);
    if (sequence.window != 0)
      text +=
          ", window " + std::to_string(sequence.window) + " sink " + std::to_string(sequence.sink);
    text += std::string(sequence.has_gaps() ? ", moved positions" : "") + "\n";
  }
  return text;
}

kvc_status RandomRun::call(const char* function, const Call& fn,
                           std::initializer_list<HostTensor*> untouched) {
  kvc_error& error = last_error_;
  error = kvc_error{};
  error.struct_size = sizeof error;
  std::map<kvc_status, int64_t>& answers = coverage_[function];
  if (kind_ != RunKind::kFailures) {
    const bool quiet = random_.chance(0.1);
    const kvc_status status = fn(quiet ? nullptr : &error);
    ++answers[status];
    if (quiet) return status;
    if (error.status != status)
      mismatch("%s answered %d, its kvc_error says %d", function, status, error.status);
    if ((status != KVC_OK) != (error.message[0] != 0))
      mismatch("%s answered %d with message '%s'", function, status, error.message);
    return status;
  }
  const bool has_cache = setup_.cache() != nullptr;
  const auto look = [&] { return take_snapshot(setup_.cache(), forward_, num_groups()); };
  const Snapshot before = has_cache ? look() : Snapshot{};
  for (int64_t n = 1;; ++n) {
    arm_allocation_failure(n);
    const kvc_status status = fn(&error);
    const bool failed = disarm_allocation_failure();
    ++answers[status];
    if (!failed) return status;
    // Worker threads start at the first use; the caller's thread does the work of those that could
    // not start.
    const bool starts_threads =
        setup_.config().executor == nullptr && setup_.config().num_threads > 1;
    if (status == KVC_OK && starts_threads) return status;
    if (status != KVC_E_NO_MEMORY)
      mismatch("%s: allocation %lld failed and the answer is %d", function, ll(n), status);
    if (setup_.cache() != nullptr) {
      const std::string what = difference(before, look());
      if (!what.empty())
        mismatch("%s: allocation %lld failed and %s", function, ll(n), what.c_str());
      if (kvc_cache_check(setup_.cache(), &error) != KVC_OK) {
        mismatch("%s: allocation %lld failed and the cache is corrupt: %s", function, ll(n),
                 error.message);
      }
    }
    for (HostTensor* tensor : untouched) {
      if (!tensor->is_untouched())
        mismatch("%s: allocation %lld failed and an output was written", function, ll(n));
    }
  }
}

bool RandomRun::agree(const char* function, const Expected& expected, const Call& fn,
                      std::initializer_list<HostTensor*> untouched) {
  const bool may_fail = !expected.ok() || !expected.tolerated.empty();
  const auto look = [&] { return take_snapshot(setup_.cache(), forward_, num_groups()); };
  const Snapshot before = may_fail ? look() : Snapshot{};
  const kvc_status status = call(function, fn, untouched);
  const bool right = status == KVC_OK ? expected.ok()
                                      : expected.errors.count(status) != 0 ||
                                            expected.tolerated.count(status) != 0;
  if (!right) {
    std::string wanted;
    for (const kvc_status error : expected.errors)
      wanted += std::string(" ") + kvc_status_name(error);
    mismatch("%s answered %s (%s), expected%s", function, kvc_status_name(status),
             last_error_.message, wanted.empty() ? " KVC_OK" : wanted.c_str());
  }
  if (status == KVC_OK) return true;
  const std::string what = difference(before, look());
  if (!what.empty())
    mismatch("%s answered %s and %s", function, kvc_status_name(status), what.c_str());
  if (expected.detail && expected.errors.size() == 1 && last_error_.status == status &&
      last_error_.detail != *expected.detail) {
    mismatch("%s answered %s with detail %lld, expected %lld", function, kvc_status_name(status),
             ll(last_error_.detail), ll(*expected.detail));
  }
  for (HostTensor* tensor : untouched) {
    if (!tensor->is_untouched()) mismatch("%s was refused and wrote an output", function);
  }
  return false;
}

void RandomRun::refuse(const char* function, kvc_status status, const Call& fn) {
  Expected expected;
  expected.errors.insert(status);
  agree(function, expected, fn);
}

void RandomRun::expect_ok(const char* function, const Call& fn,
                          std::initializer_list<HostTensor*> untouched) {
  const kvc_status status = call(function, fn, untouched);
  if (status != KVC_OK)
    mismatch("%s answered %s: %s", function, kvc_status_name(status), last_error_.message);
}

void RandomRun::create() {
  expect_ok("kvc_plan_create", [&](kvc_error* err) { return setup_.create_plan(err); });
  expect_ok("kvc_cache_create", [&](kvc_error* err) { return setup_.create_cache(err); });
}

int64_t RandomRun::run(int64_t operations) {
  create();
  hand_out_pool();
  for (steps_ = 0; steps_ < operations; ++steps_) {
    step();
    compare_state();
  }
  if (held_export_ != nullptr) held_export_->deleter(held_export_);
  held_export_ = nullptr;
  setup_.destroy_cache();  // with a forward open now and then
  if (setup_.live_allocations() != 0)
    mismatch("%lld pool allocations live after kvc_cache_destroy", ll(setup_.live_allocations()));
  if (!setup_.pool_gaps_untouched()) mismatch("bytes between borrowed pages were written");
  return steps_;
}

void RandomRun::compare_state() {
  const kvc_cache* cache = setup_.cache();
  kvc_error error{};
  if (kvc_cache_check(cache, &error) != KVC_OK) mismatch("kvc_cache_check: %s", error.message);
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  if (kvc_cache_stats_get(cache, &stats, nullptr) != KVC_OK) mismatch("kvc_cache_stats_get failed");
  const kvc_stats want = model_.expected_stats();
  const auto compare = [](const char* field, auto got, auto expected) {
    if (got != expected)
      mismatch("stats.%s is %lld, expected %lld", field, ll(static_cast<int64_t>(got)),
               ll(static_cast<int64_t>(expected)));
  };
  compare("num_seqs", stats.num_seqs, want.num_seqs);
  compare("total_length", stats.total_length, want.total_length);
  compare("pages_total", stats.pages_total, want.pages_total);
  compare("pages_available", stats.pages_available, want.pages_available);
  compare("pages_used", stats.pages_used, want.pages_used);
  compare("pages_shared", stats.pages_shared, want.pages_shared);
  compare("pages_peak", stats.pages_peak, want.pages_peak);
  compare("forwards", stats.forwards, want.forwards);
  compare("forwards_aborted", stats.forwards_aborted, want.forwards_aborted);
  compare("tokens_appended", stats.tokens_appended, want.tokens_appended);
  compare("pages_copied", stats.pages_copied, want.pages_copied);
  compare("tree_tokens", stats.tree_tokens, want.tree_tokens);
  if (stats.values_saturated < least_saturated_ || stats.values_saturated > most_saturated_) {
    mismatch("stats.values_saturated is %lld, expected %lld to %lld",
             ll(static_cast<int64_t>(stats.values_saturated)),
             ll(static_cast<int64_t>(least_saturated_)), ll(static_cast<int64_t>(most_saturated_)));
  }
  compare("state_slots_used", stats.state_slots_used, want.state_slots_used);
  if (kind_ != RunKind::kFailures)
    compare("no_pages", stats.no_pages, want.no_pages);  // failing attempts repeat begins
  compare("pool_bytes", stats.pool_bytes,
          stats.page_bytes * static_cast<uint64_t>(want.pages_total));
  if (kvc_cache_available_pages(cache) != want.pages_available)
    mismatch("kvc_cache_available_pages is %lld", ll(kvc_cache_available_pages(cache)));
  if (kvc_cache_total_length(cache) != want.total_length)
    mismatch("kvc_cache_total_length is %lld", ll(kvc_cache_total_length(cache)));
  if ((kvc_cache_is_empty(cache) == 1) != (want.num_seqs == 0 && want.pages_used == 0))
    mismatch("kvc_cache_is_empty is wrong");
  if (kvc_forward_num_tokens(forward_) != (model_.is_open() ? model_.num_rows() : -1))
    mismatch("kvc_forward_num_tokens is wrong");

  kvc_seq ids[kMostIds + 2];
  size_t count = std::size(ids);
  if (kvc_seq_list(cache, ids, &count, nullptr) != KVC_OK || count != model_.sequences().size())
    mismatch("kvc_seq_list has %zu ids", count);
  size_t i = 0;
  for (const auto& [seq, sequence] : model_.sequences()) {
    if (ids[i] != seq) mismatch("kvc_seq_list[%zu] is %lld, expected %lld", i, ll(ids[i]), ll(seq));
    ++i;
    int64_t length = -1;
    if (kvc_seq_length(cache, seq, &length, nullptr) != KVC_OK || length != sequence.length) {
      mismatch("sequence %lld has %lld tokens, expected %lld", ll(seq), ll(length),
               ll(sequence.length));
    }
  }
  if (count != 0) compare_sequence(ids[random_.range(0, static_cast<int64_t>(count) - 1)]);
  if (random_.chance(0.1)) compare_tables();
}

void RandomRun::compare_sequence(kvc_seq seq) {
  kvc_seq_info info{};
  info.struct_size = sizeof info;
  if (kvc_seq_info_get(setup_.cache(), seq, &info, nullptr) != KVC_OK)
    mismatch("kvc_seq_info_get(%lld) failed", ll(seq));
  const kvc_seq_info want = model_.expected_info(seq);
  const auto compare = [&](const char* field, int64_t got, int64_t expected) {
    if (got != expected)
      mismatch("info.%s of sequence %lld is %lld, expected %lld", field, ll(seq), ll(got),
               ll(expected));
  };
  compare("length", info.length, want.length);
  compare("first_position", info.first_position, want.first_position);
  compare("last_position", info.last_position, want.last_position);
  compare("num_pages", info.num_pages, want.num_pages);
  compare("num_shared_pages", info.num_shared_pages, want.num_shared_pages);
  compare("window", info.window, want.window);
  compare("sink", info.sink, want.sink);
  compare("in_forward", info.in_forward, want.in_forward);
  compare("num_checkpoints", info.num_checkpoints, want.num_checkpoints);
  compare("tree_nodes", info.tree_nodes, want.tree_nodes);
  compare("cross_length", info.cross_length, want.cross_length);
}

std::vector<int32_t> RandomRun::sequence_pages(kvc_seq seq, size_t group) {
  DLManagedTensorVersioned* exported = nullptr;
  if (kvc_export_seq_pages(setup_.cache(), seq, static_cast<int32_t>(group), &exported, nullptr) !=
      KVC_OK)
    mismatch("kvc_export_seq_pages(%lld) failed", ll(seq));
  const auto* ids = static_cast<const int32_t*>(exported->dl_tensor.data);
  std::vector<int32_t> pages(ids, ids + exported->dl_tensor.shape[0]);
  exported->deleter(exported);
  return pages;
}

// Two sequences hold the same page exactly when the model says so.
void RandomRun::compare_tables() {
  page_names_.clear();
  std::map<int, int32_t> ids;
  for (const auto& [seq, sequence] : model_.sequences()) {
    for (size_t group = 0; group < num_groups(); ++group) {
      const std::vector<int32_t> pages = sequence_pages(seq, group);
      const std::vector<int> want = model_.committed_pages(seq, group);
      if (pages.size() != want.size())
        mismatch("sequence %lld exports %zu pages of group %zu, expected %zu", ll(seq),
                 pages.size(), group, want.size());
      for (size_t i = 0; i < pages.size(); ++i) {
        if (pages[i] < 0 || pages[i] >= model_.limits().num_pages)
          mismatch("sequence %lld holds page %d", ll(seq), pages[i]);
        const auto name = page_names_.emplace(pages[i], want[i]).first;
        const auto id = ids.emplace(want[i], pages[i]).first;
        if (name->second != want[i] || id->second != pages[i]) {
          mismatch(
              "entry %zu of sequence %lld, group %zu, is page %d: shared with the wrong sequence",
              i, ll(seq), group, pages[i]);
        }
      }
    }
  }
}

kvc_seq RandomRun::any_seq() {
  return random_.chance(0.02) ? random_.range(-2, kMostIds + 3) : random_.range(0, kMostIds - 1);
}

bool RandomRun::pick_idle(kvc_seq* seq) {
  std::vector<kvc_seq> idle;
  for (const auto& [id, sequence] : model_.sequences()) {
    if (!model_.in_forward(id)) idle.push_back(id);
  }
  if (idle.empty()) return false;
  *seq = random_.pick(idle);
  return true;
}

bool RandomRun::step_open(double dice) {
  if (setup_.has_data()) {
    const auto layer =
        static_cast<size_t>(random_.range(0, static_cast<int64_t>(setup_.layers().size()) - 1));
    const NaiveLayer& spec = setup_.layers()[layer];
    if (spec.kind == KVC_LAYER_STATE) {
      if (dice < 0.12) return op_state_get(layer), true;
      if (dice < 0.20) return op_state_set(layer), true;
      if (dice < 0.40) return op_linear(layer), true;
      if (dice < 0.52) return op_conv(layer), true;
    } else if (spec.kind == KVC_LAYER_CROSS) {
      if (dice < 0.46) return op_cross(layer, false), true;
      if (dice < 0.52) return op_gather(layer), true;
    } else if (spec.kind == KVC_LAYER_SHARED) {
      if (dice < 0.52) return op_read_only(layer), true;
    } else if (spec.has_tokens()) {
      if (dice < 0.22) return op_attention(layer), true;
      if (dice < 0.32) return op_split_attention(layer), true;
      if (dice < 0.40) return op_append(layer), true;
      if (dice < 0.44) return op_read_only(layer), true;
      if (dice < 0.47) return op_shared_kv(layer), true;
      if (dice < 0.52) return op_gather(layer), true;
    }
  }
  if (dice < 0.57) return op_tables(), true;
  if (dice < 0.60) return op_positions(), true;
  if (dice < 0.80) return op_close(), true;
  return false;
}

void RandomRun::step_data(double dice) {
  const auto layer =
      static_cast<size_t>(random_.range(0, static_cast<int64_t>(setup_.layers().size()) - 1));
  const bool is_state = setup_.layers()[layer].kind == KVC_LAYER_STATE;
  if (dice < 0.08 && !keeps_pool()) return op_hold_export();
  if (dice < 0.2) return op_get(random_.chance(0.5));
  if (dice < 0.35) return op_set(random_.chance(0.5));
  if (dice < 0.6) return is_state ? op_get_state(layer) : op_get_layer(layer);
  if (dice < 0.8) return is_state ? op_set_state(layer) : op_set_layer(layer);
  if (!keeps_pool()) op_poison();
}

void RandomRun::step() {
  const double dice = random_.unit();
  if (model_.is_open()) {
    if (step_open(dice)) return;
  } else if (dice < 0.40) {
    return op_begin();
  }
  const double other = random_.unit();
  if (other < 0.14) return op_add();
  if (other < 0.23) return op_remove();
  if (other < 0.38) return op_fork();
  if (other < 0.49) return op_pop();
  if (other < 0.60) return op_tree_commit();
  if (other < 0.65) return op_can();
  if (other < 0.68) return op_begin();
  if (other < 0.685) return op_clear();
  if (other < 0.71) return op_resize();
  if (other < 0.73) return op_dead_handle();
  if (other < 0.75) return op_refused();
  if (other < 0.78 && !keeps_pool()) return op_set_window();
  if (other < 0.82) return op_shift();
  if (other < 0.83 + (model_.limits().has_states ? 0.02 : 0)) return op_checkpoint();
  return setup_.has_data() ? step_data(random_.unit()) : op_add();
}

}  // namespace kvc::test
