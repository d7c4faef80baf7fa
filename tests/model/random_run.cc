#include "tests/model/random_run.h"

#include <algorithm>
#include <cstdarg>
#include <cstdio>
#include <cstring>

#include "tests/model/allocation_failures.h"

namespace kvc::test {
namespace {

constexpr kvc_seq kMostIds = 12;

long long ll(int64_t value) { return static_cast<long long>(value); }

}  // namespace

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
  auto& line = trace_[num_traced_++ % kTrace];
  const int head = std::snprintf(line.data(), line.size(), "%lld: ", ll(steps_));
  std::vsnprintf(line.data() + head, line.size() - static_cast<size_t>(head), format, args);
  va_end(args);
}

std::string RandomRun::describe() const {
  std::string text = "seed " + std::to_string(seed_) + ", step " + std::to_string(steps_) + ", " +
                     setup_.describe() + "\nlast operations:\n";
  for (size_t i = num_traced_ > kTrace ? num_traced_ - kTrace : 0; i < num_traced_; ++i) {
    text += std::string("  ") + trace_[i % kTrace].data() + "\n";
  }
  return text;
}

void RandomRun::add_coverage(Coverage* coverage) const {
  for (const auto& [function, answers] : answers_) {
    for (size_t status = 0; status < answers.size(); ++status) {
      if (answers[status] != 0) (*coverage)[function][static_cast<kvc_status>(status)] += answers[status];
    }
  }
}

kvc_status RandomRun::call(const char* function, const Call& fn,
                           std::initializer_list<HostTensor*> untouched) {
  kvc_error error{};
  error.struct_size = sizeof error;
  std::array<int64_t, KVC_E_INTERNAL + 1>& answers = answers_[function];
  if (kind_ != RunKind::kFailures) {
    const bool quiet = random_.chance(0.1);
    const kvc_status status = fn(quiet ? nullptr : &error);
    ++answers.at(static_cast<size_t>(status));
    if (quiet) return status;
    if (error.status != status)
      mismatch("%s answered %d, its kvc_error says %d", function, status, error.status);
    if ((status != KVC_OK) != (error.message[0] != 0))
      mismatch("%s answered %d with message '%s'", function, status, error.message);
    return status;
  }
  const bool has_cache = setup_.cache() != nullptr;
  const Snapshot before = has_cache ? take_snapshot(setup_.cache(), forward_) : Snapshot{};
  for (int64_t n = 1;; ++n) {
    arm_allocation_failure(n);
    const kvc_status status = fn(&error);
    ++answers.at(static_cast<size_t>(status));
    if (!disarm_allocation_failure()) return status;
    // Worker threads start at the first use; the caller's thread does the work of those that could not start.
    const bool starts_threads = setup_.config().executor == nullptr && setup_.config().num_threads > 1;
    if (status == KVC_OK && starts_threads) return status;
    if (status != KVC_E_NO_MEMORY)
      mismatch("%s: allocation %lld failed and the answer is %d", function, ll(n), status);
    if (setup_.cache() != nullptr) {
      const std::string what = difference(before, take_snapshot(setup_.cache(), forward_));
      if (!what.empty()) mismatch("%s: allocation %lld failed and %s", function, ll(n), what.c_str());
      if (kvc_cache_check(setup_.cache(), &error) != KVC_OK) {
        mismatch("%s: allocation %lld failed and the cache is corrupt: %s", function, ll(n), error.message);
      }
    }
    for (HostTensor* tensor : untouched) {
      if (!tensor->is_untouched())
        mismatch("%s: allocation %lld failed and an output was written", function, ll(n));
    }
  }
}

bool RandomRun::agree(const char* function, const Expected& expected, const Call& fn) {
  const bool check_unchanged = !expected.ok();
  const Snapshot before = check_unchanged ? take_snapshot(setup_.cache(), forward_) : Snapshot{};
  const kvc_status status = call(function, fn);
  if (expected.ok() != (status == KVC_OK) || (!expected.ok() && expected.errors.count(status) == 0)) {
    std::string wanted;
    for (const kvc_status error : expected.errors) wanted += " " + std::to_string(error);
    mismatch("%s answered %d (%s), expected%s", function, status, kvc_status_name(status),
             wanted.empty() ? " 0" : wanted.c_str());
  }
  if (check_unchanged) {
    const std::string what = difference(before, take_snapshot(setup_.cache(), forward_));
    if (!what.empty()) mismatch("%s answered %d and %s", function, status, what.c_str());
  }
  return expected.ok();
}

void RandomRun::expect_ok(const char* function, const Call& fn, std::initializer_list<HostTensor*> untouched) {
  const kvc_status status = call(function, fn, untouched);
  if (status != KVC_OK) mismatch("%s answered %d (%s)", function, status, kvc_status_name(status));
}

void RandomRun::create() {
  expect_ok("kvc_plan_create", [&](kvc_error* err) { return setup_.create_plan(err); });
  expect_ok("kvc_cache_create", [&](kvc_error* err) { return setup_.create_cache(err); });
}

int64_t RandomRun::run(int64_t operations) {
  create();
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
  compare("pages_free", stats.pages_free, want.pages_free);
  compare("pages_used", stats.pages_used, want.pages_used);
  compare("pages_shared", stats.pages_shared, want.pages_shared);
  compare("pages_peak", stats.pages_peak, want.pages_peak);
  compare("forwards", stats.forwards, want.forwards);
  compare("forwards_aborted", stats.forwards_aborted, want.forwards_aborted);
  compare("tokens_appended", stats.tokens_appended, want.tokens_appended);
  compare("pages_copied", stats.pages_copied, want.pages_copied);
  if (kind_ != RunKind::kFailures)
    compare("no_pages", stats.no_pages, want.no_pages);  // failing attempts repeat begins
  compare("pool_bytes", stats.pool_bytes, stats.page_bytes * static_cast<uint64_t>(want.pages_total));
  if (kvc_cache_free_pages(cache) != want.pages_free)
    mismatch("kvc_cache_free_pages is %lld", ll(kvc_cache_free_pages(cache)));
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
      mismatch("sequence %lld has %lld tokens, expected %lld", ll(seq), ll(length), ll(sequence.length));
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
  const ModelSequence& want = model_.at(seq);
  const int64_t num_pages = model_.pages_for(want.length);
  int64_t shared = 0;
  for (int64_t i = 0; i < num_pages; ++i)
    shared += model_.holders(want.pages[static_cast<size_t>(i)]) > 1 ? 1 : 0;
  if (info.length != want.length || info.num_pages != num_pages || info.num_shared_pages != shared ||
      info.window != 0 || info.sink != 0 || info.first_position != (want.length == 0 ? -1 : 0) ||
      info.last_position != want.length - 1 || info.in_forward != (model_.in_forward(seq) ? 1 : 0)) {
    mismatch(
        "info of %lld: length %lld, pages %lld, shared %lld, positions %lld..%lld, in_forward %d; expected "
        "%lld, %lld, %lld",
        ll(seq), ll(info.length), ll(info.num_pages), ll(info.num_shared_pages), ll(info.first_position),
        ll(info.last_position), info.in_forward, ll(want.length), ll(num_pages), ll(shared));
  }
}

std::vector<int32_t> RandomRun::sequence_pages(kvc_seq seq) {
  DLManagedTensorVersioned* exported = nullptr;
  if (kvc_export_seq_pages(setup_.cache(), seq, 0, &exported, nullptr) != KVC_OK)
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
    const std::vector<int32_t> pages = sequence_pages(seq);
    if (static_cast<int64_t>(pages.size()) != model_.pages_for(sequence.length))
      mismatch("sequence %lld exports %zu pages", ll(seq), pages.size());
    for (size_t i = 0; i < pages.size(); ++i) {
      if (pages[i] < 0 || pages[i] >= model_.limits().num_pages)
        mismatch("sequence %lld holds page %d", ll(seq), pages[i]);
      const auto name = page_names_.emplace(pages[i], sequence.pages[i]).first;
      const auto id = ids.emplace(sequence.pages[i], pages[i]).first;
      if (name->second != sequence.pages[i] || id->second != pages[i]) {
        mismatch("entry %zu of sequence %lld is page %d: shared with the wrong sequence", i, ll(seq),
                 pages[i]);
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

void RandomRun::op_add() {
  const kvc_seq seq = std::min(any_seq(), kMostIds - 1);
  trace("add %lld", ll(seq));
  const auto fn = [&](kvc_error* err) { return kvc_seq_add(setup_.cache(), seq, err); };
  if (agree("kvc_seq_add", model_.add(seq), fn)) naive_.add(seq);
}

void RandomRun::op_remove() {
  const kvc_seq seq = any_seq();
  trace("remove %lld", ll(seq));
  const auto fn = [&](kvc_error* err) { return kvc_seq_remove(setup_.cache(), seq, err); };
  if (agree("kvc_seq_remove", model_.remove(seq), fn)) naive_.remove(seq);
}

void RandomRun::op_fork() {
  kvc_seq parent = any_seq();
  if (random_.chance(0.7)) pick_idle(&parent);
  const kvc_seq child = std::min(any_seq(), kMostIds - 1);
  const int64_t length = model_.exists(parent) ? model_.at(parent).length : 3;
  int64_t pos = random_.range(-1, length + (random_.chance(0.1) ? 2 : 0));
  if (random_.chance(0.2)) pos = -1 - static_cast<int64_t>(random_.chance(0.1));
  if (random_.chance(0.2))
    pos = std::max<int64_t>(0, length / model_.limits().page_size * model_.limits().page_size);
  trace("fork %lld -> %lld at %lld", ll(parent), ll(child), ll(pos));
  const auto fn = [&](kvc_error* err) { return kvc_seq_fork(setup_.cache(), parent, child, pos, err); };
  if (agree("kvc_seq_fork", model_.fork(parent, child, pos), fn))
    naive_.fork(parent, child, model_.at(child).length);
}

void RandomRun::op_pop() {
  kvc_seq seq = any_seq();
  if (random_.chance(0.7)) pick_idle(&seq);
  const int64_t length = model_.exists(seq) ? model_.at(seq).length : 3;
  int64_t n = random_.range(0, std::min<int64_t>(length, 2 * model_.limits().page_size));
  if (random_.chance(0.2)) n = length;
  if (random_.chance(0.05)) n = random_.chance(0.5) ? -random_.range(1, 5) : length + random_.range(1, 5);
  trace("pop %lld by %lld", ll(seq), ll(n));
  const auto fn = [&](kvc_error* err) { return kvc_seq_pop(setup_.cache(), seq, n, err); };
  if (agree("kvc_seq_pop", model_.pop(seq, n), fn)) naive_.truncate(seq, model_.at(seq).length);
}

void RandomRun::op_clear() {
  trace("clear");
  const auto fn = [&](kvc_error* err) { return kvc_cache_clear(setup_.cache(), err); };
  if (agree("kvc_cache_clear", model_.clear(), fn)) naive_.clear();
}

void RandomRun::op_resize() {
  int64_t highest = -1;
  for (const auto& [seq, sequence] : model_.sequences()) {
    for (const int32_t page : sequence_pages(seq)) highest = std::max<int64_t>(highest, page);
  }
  const int64_t now = model_.limits().num_pages;
  int64_t pages = random_.range(0, now + 6);
  if (random_.chance(0.05)) pages = random_.pick_of<int64_t>({-1, INT32_MAX, INT64_MAX});
  if (random_.chance(0.05))
    pages = std::min<int64_t>(now * 9, 400);  // past what was reserved: the pool moves
  trace("resize %lld -> %lld, highest page in use %lld%s", ll(now), ll(pages), ll(highest),
        held_export_ != nullptr ? ", exported" : "");
  PageModel after = model_;
  Expected expected = after.resize(pages, highest, setup_.is_borrowed());
  const auto fn = [&](kvc_error* err) { return kvc_cache_resize(setup_.cache(), pages, err); };
  if (held_export_ != nullptr && expected.ok() && pages != now) {
    // The pool may have to move, and must not.
    const Snapshot before = take_snapshot(setup_.cache(), forward_);
    const kvc_status status = call("kvc_cache_resize", fn);
    if (status == KVC_OK) {
      model_ = after;
    } else if (status != KVC_E_BUSY || !difference(before, take_snapshot(setup_.cache(), forward_)).empty()) {
      mismatch("kvc_cache_resize of an exported pool answered %d", status);
    }
    return;
  }
  if (agree("kvc_cache_resize", expected, fn)) model_ = after;
}

void RandomRun::op_can() {
  const kvc_seq seq = any_seq();
  const int64_t pos = random_.range(-2, 60);
  int64_t nearest = -7, want = -7;
  trace("can %lld at %lld", ll(seq), ll(pos));
  const Expected expected = model_.can(seq, pos, &want);
  const kvc_seq_op op = random_.chance(0.5) ? KVC_SEQ_FORK : KVC_SEQ_POP;
  agree("kvc_seq_can", expected,
        [&](kvc_error* err) { return kvc_seq_can(setup_.cache(), seq, op, pos, &nearest, err); });
  if (nearest != want)
    mismatch("kvc_seq_can: nearest position is %lld, expected %lld", ll(nearest), ll(want));
}

void RandomRun::op_begin() {
  std::vector<kvc_seq> seqs;
  std::vector<int64_t> lengths;
  for (const auto& [seq, sequence] : model_.sequences()) seqs.push_back(seq);
  random_.shuffle(seqs);
  const int64_t most = random_.chance(0.3) ? 12 : 4;
  if (!seqs.empty())
    seqs.resize(
        static_cast<size_t>(random_.range(1, std::min<int64_t>(most, static_cast<int64_t>(seqs.size())))));
  if (random_.chance(0.03)) seqs.push_back(any_seq());
  if (random_.chance(0.02) && !seqs.empty()) seqs.push_back(seqs.front());
  if (random_.chance(0.01)) seqs.clear();
  const bool decode = random_.chance(0.4);
  for (size_t i = 0; i < seqs.size(); ++i) {
    int64_t length = decode || random_.chance(0.3)
                         ? 1
                         : random_.range(1, random_.chance(0.5) ? 5 : 2 * model_.limits().page_size + 1);
    if (model_.limits().num_pages * model_.limits().page_size > 2500 && random_.chance(0.1)) {
      length = random_.range(300, 800);
    }
    if (random_.chance(0.01)) length = random_.pick_of<int64_t>({0, -1, INT64_MIN, INT64_MAX, 100000});
    lengths.push_back(length);
  }
  // What a scheduler asks first must be what begin then does.
  int64_t missing = -7;
  const Expected can = model_.can_append(seqs, lengths);
  Expected allowed = can;
  for (const kvc_seq seq : seqs) allowed.also(model_.in_forward(seq), KVC_E_BUSY);
  const auto ask = [&](kvc_error* err) {
    return kvc_seq_can_append(setup_.cache(), seqs.size(), seqs.data(), lengths.data(), &missing, err);
  };
  trace("can_append, begin of %zu, first %lld by %lld", seqs.size(), ll(seqs.empty() ? -1 : seqs[0]),
        ll(lengths.empty() ? -1 : lengths[0]));
  if (agree("kvc_seq_can_append", allowed, ask) && missing != can.missing_pages) {
    mismatch("kvc_seq_can_append: %lld pages missing, expected %lld", ll(missing), ll(can.missing_pages));
  }

  kvc_forward_desc desc{};
  desc.struct_size = sizeof desc;
  desc.num_seqs = seqs.size();
  desc.seqs = seqs.data();
  desc.append_lengths = lengths.data();
  kvc_forward* opened = nullptr;
  kvc_error error{};
  const bool was_open = model_.is_open();
  const Expected expected = model_.begin(seqs, lengths);
  const bool no_pages = expected.errors.count(KVC_E_NO_PAGES) != 0;
  const bool ok = agree("kvc_forward_begin", expected, [&](kvc_error* err) {
    const kvc_status status = kvc_forward_begin(setup_.cache(), &desc, &opened, &error);
    if (err != nullptr && status != KVC_OK) *err = error;
    return status;
  });
  if (no_pages && error.detail != expected.missing_pages) {
    mismatch("NO_PAGES: detail is %lld, expected %lld", ll(error.detail), ll(expected.missing_pages));
  }
  if (!ok) {
    if (opened != nullptr && !was_open) mismatch("a failing begin wrote its handle");
    return;
  }
  forward_ = opened;
  written_.assign(setup_.layers().size(), false);
  for (const ModelEntry& entry : model_.entries()) naive_.extend(entry.seq, entry.old_length + entry.append);
}

void RandomRun::op_close() {
  const bool keep = random_.chance(0.8);
  if (keep && setup_.has_data()) append_missing_layers();
  trace("%s", keep ? "end" : "abort");
  const std::vector<ModelEntry> entries = model_.entries();
  if (keep) {
    expect_ok("kvc_forward_end", [&](kvc_error* err) { return kvc_forward_end(forward_, err); });
    model_.end();
  } else {
    expect_ok("kvc_forward_abort", [&](kvc_error* err) { return kvc_forward_abort(forward_, err); });
    model_.abort();
    for (const ModelEntry& entry : entries) naive_.truncate(entry.seq, entry.old_length);
  }
  dead_ = forward_;
  forward_ = nullptr;
}

void RandomRun::op_dead_handle() {
  if (dead_ == nullptr || dead_ == forward_) return;
  trace("dead handle");
  Expected expected;
  expected.errors.insert(KVC_E_INVALID_STATE);
  agree("kvc_forward_end", expected, [&](kvc_error* err) { return kvc_forward_end(dead_, err); });
  agree("kvc_forward_abort", expected, [&](kvc_error* err) { return kvc_forward_abort(dead_, err); });
}

void RandomRun::step() {
  const double dice = random_.unit();
  if (model_.is_open()) {
    const auto layer =
        static_cast<size_t>(random_.range(0, static_cast<int64_t>(setup_.layers().size()) - 1));
    if (setup_.has_data()) {
      if (dice < 0.22) return op_attention(layer);
      if (dice < 0.32) return op_split_attention(layer);
      if (dice < 0.40) return op_append(layer);
      if (dice < 0.46) return op_read_only(layer);
      if (dice < 0.52) return op_gather();
    }
    if (dice < 0.57) return op_tables();
    if (dice < 0.60) return op_positions();
    if (dice < 0.80) return op_close();
  } else if (dice < 0.40) {
    return op_begin();
  }
  const double other = random_.unit();
  if (other < 0.16) return op_add();
  if (other < 0.26) return op_remove();
  if (other < 0.46) return op_fork();
  if (other < 0.62) return op_pop();
  if (other < 0.68) return op_can();
  if (other < 0.73) return op_begin();
  if (other < 0.735) return op_clear();
  if (other < 0.77) return op_resize();
  if (other < 0.80) return op_dead_handle();
  if (other < 0.83) return op_refused();
  if (!setup_.has_data()) return op_add();
  if (other < 0.85) return op_hold_export();
  if (other < 0.91) return op_get();
  if (other < 0.96) return op_set();
  return op_poison();
}

}  // namespace kvc::test
