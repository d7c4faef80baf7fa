#include "tests/model/prefix_run.h"

#include <cstdarg>

#include "tests/model/allocation_failures.h"

namespace kvc::test {

PrefixRun::PrefixRun(uint64_t seed, PrefixRunKind kind)
    : seed_(seed), kind_(kind), random_(seed), setup_(random_, kind) {
  num_pages_ = setup_.config().num_pages;
  content_.resize(static_cast<size_t>(num_pages_));
  alphabet_ = {0, -1};
  if (random_.chance(0.5)) alphabet_.push_back(0x7fffffff);
  const int64_t block = setup_.block();
  spaces_.push_back({});
  for (const char* salt : {"", "a", "b"}) {
    Namespace space{
        .salt = random_.chance(0.1) ? std::string(4096, *salt == 0 ? 'x' : *salt) : salt,
        .keys = {}};
    for (int64_t offset : {int64_t{0}, random_.range(0, block), random_.range(0, 3 * block)}) {
      NamespaceKey key{.type = random_.pick_of<kvc_prefix_key_type>(
                           {KVC_PREFIX_KEY_ADAPTER, KVC_PREFIX_KEY_MEDIA, KVC_PREFIX_KEY_USER}),
                       .offset = offset,
                       .data = random_.chance(0.5)   ? "x"
                               : random_.chance(0.5) ? ""
                                                     : "xy"};
      const auto is_alike = [&](const NamespaceKey& other) {
        return other.type == key.type && other.offset == offset && other.data == key.data;
      };
      if (random_.chance(0.4) && std::none_of(space.keys.begin(), space.keys.end(), is_alike))
        space.keys.push_back(key);
    }
    spaces_.push_back(space);
  }
}

void PrefixRun::trace(const char* format, ...) {
  va_list args;
  va_start(args, format);
  trace_.note(steps_, format, args);
  va_end(args);
}

std::string PrefixRun::describe() const {
  std::string text = "seed " + std::to_string(seed_) + ", step " + std::to_string(steps_) + ", " +
                     setup_.describe() + "\nlast operations:\n" + trace_.describe();
  for (const auto& [seq, sequence] : sequences_) {
    text += "sequence " + std::to_string(seq) + ": " + std::to_string(sequence.length()) +
            " tokens, " + std::to_string(sequence.known) + " known, " +
            std::to_string(sequence.nodes.size()) + " nodes" + (is_open(seq) ? ", open" : "") +
            (sequence.is_swapped ? ", swapped" : "") + (sequence.is_moved ? ", moved" : "") +
            (sequence.is_old ? ", old" : "") + (sequence.is_told ? "" : ", untold");
    if (sequence.window != 0)
      text +=
          ", window " + std::to_string(sequence.window) + " sink " + std::to_string(sequence.sink);
    text += ", tokens";
    for (const int32_t token : sequence.tokens) text += " " + std::to_string(token);
    text += "\n";
  }
  return text;
}

kvc_status PrefixRun::call(const char* function, const Call& fn) {
  kvc_error& error = last_error_;
  error = kvc_error{};
  error.struct_size = sizeof error;
  std::map<kvc_status, int64_t>& answers = coverage_[function];
  const auto look = [&] { return take_snapshot(setup_.cache(), forward_, setup_.groups().size()); };
  const bool inject = kind_ == PrefixRunKind::kFailures;
  if (!inject) {
    const bool look_closely = random_.chance(0.1);
    const Snapshot before = look_closely ? look() : Snapshot{};
    const kvc_status status = fn(random_.chance(0.1) ? nullptr : &error);
    ++answers[status];
    if (error.message[0] != 0 && error.status != status)
      mismatch("%s answered %d, its kvc_error says %d", function, status, error.status);
    if (look_closely && status != KVC_OK) {
      const std::string what = difference(before, look());
      if (!what.empty())
        mismatch("%s answered %s and %s", function, kvc_status_name(status), what.c_str());
    }
    return status;
  }
  const Snapshot before = look();
  for (int64_t n = 1;; ++n) {
    arm_allocation_failure(n);
    const kvc_status status = fn(&error);
    const bool failed = disarm_allocation_failure();
    ++answers[status];
    if (!failed) return status;
    // A block of a namespace with a quota that finds no room in its order is not published; pages
    // that have come back from the host stay, whatever the hit is then.
    if (status == KVC_OK && (!had_quota_.empty() || setup_.has_host())) return status;
    if (status != KVC_E_NO_MEMORY)
      mismatch("%s: allocation %lld failed and the answer is %d", function, ll(n), status);
    const std::string what = difference(before, look());
    if (!what.empty()) mismatch("%s: allocation %lld failed and %s", function, ll(n), what.c_str());
    kvc_error audit{};
    if (kvc_cache_check(setup_.cache(), &audit) != KVC_OK)
      mismatch("%s: allocation %lld failed and the cache is corrupt: %s", function, ll(n),
               audit.message);
  }
}

void PrefixRun::require_ok(const char* function, kvc_status status) const {
  if (status != KVC_OK)
    mismatch("%s answered %s (%s), expected KVC_OK", function, kvc_status_name(status),
             last_error_.message);
}

kvc_stats PrefixRun::stats() const {
  kvc_stats stats{};
  stats.struct_size = sizeof stats;
  if (kvc_cache_stats_get(setup_.cache(), &stats, nullptr) != KVC_OK) mismatch("no stats");
  return stats;
}

kvc_seq_info PrefixRun::info_of(kvc_seq seq) const {
  kvc_seq_info info{};
  info.struct_size = sizeof info;
  if (kvc_seq_info_get(setup_.cache(), seq, &info, nullptr) != KVC_OK)
    mismatch("no info of %lld", ll(seq));
  return info;
}

kvc_seq PrefixRun::any_seq() {
  if (sequences_.empty() || random_.chance(0.1)) return random_.range(0, kMostIds - 1);
  auto it = sequences_.begin();
  std::advance(it, random_.range(0, static_cast<int64_t>(sequences_.size()) - 1));
  return it->first;
}

bool PrefixRun::is_open(kvc_seq seq) const {
  for (const Entry& entry : entries_) {
    if (entry.seq == seq) return true;
  }
  return false;
}

bool PrefixRun::pick_idle(kvc_seq* seq) {
  std::vector<kvc_seq> idle;
  for (const auto& [id, sequence] : sequences_) {
    if (!sequence.is_swapped && !is_open(id)) idle.push_back(id);
  }
  if (idle.empty()) return false;
  *seq = random_.pick(idle);
  return true;
}

void PrefixRun::step_open(double dice) {
  if (dice < 0.45) return op_end();
  if (dice < 0.55) return op_abort();
  if (dice < 0.60) return op_match();
  if (dice < 0.62) return op_foreign_keys();
  if (dice < 0.66) return op_fork();
  if (dice < 0.70) return op_pop();
  if (dice < 0.74) return op_remove();
  if (dice < 0.78) return op_add();
  if (dice < 0.82) return op_pin();
  if (dice < 0.86) return op_unpin();
  if (dice < 0.89) return op_evict();
  if (dice < 0.92) return op_refused();
  if (dice < 0.94) return op_quota();
  op_events();
}

void PrefixRun::step() {
  const double dice = random_.unit();
  if (forward_ != nullptr) return step_open(dice);
  if (dice < 0.36) return op_begin();
  if (dice < 0.56) return op_attach();
  if (dice < 0.58) return op_add();
  if (dice < 0.67) return op_remove();
  if (dice < 0.72) return op_fork();
  if (dice < 0.76) return op_pop();
  if (dice < 0.80) return op_insert();
  if (dice < 0.82) return op_match();
  if (dice < 0.83) return op_foreign_keys();
  if (dice < 0.85) return op_pin();
  if (dice < 0.87) return op_unpin();
  if (dice < 0.885) return op_evict();
  if (dice < 0.895) return op_quota();
  if (dice < 0.925) return op_events();
  if (dice < 0.945) return op_commit();
  if (dice < 0.955) return op_checkpoint();
  if (dice < 0.962) return op_set_window();
  if (dice < 0.970) return op_shift();
  if (dice < 0.976) return op_swap_out();
  if (dice < 0.985) return op_swap_in();
  if (dice < 0.990) return op_resize();
  if (dice < 0.994) return op_refused();
  if (dice < 0.998) return op_reset();
  op_clear();
}

void PrefixRun::finish() {
  if (forward_ != nullptr) op_abort();
  std::vector<kvc_seq> all;
  for (const auto& [seq, unused] : sequences_) all.push_back(seq);
  for (const kvc_seq seq : all)
    require_ok("kvc_seq_remove", call("kvc_seq_remove", [&](kvc_error* err) {
                 return kvc_seq_remove(setup_.cache(), seq, err);
               }));
  sequences_.clear();
  if (stats().prefix_pinned == 0 && kvc_cache_is_empty(setup_.cache()) != 1)
    mismatch("all sequences are gone and the cache is not empty");
  op_reset();
  const kvc_stats end = stats();
  if (kvc_cache_is_empty(setup_.cache()) != 1 || end.pages_available != num_pages_ ||
      end.pages_indexed != 0 || end.prefix_blocks != 0 || end.prefix_pinned != 0 ||
      end.host_pages_used != 0)
    mismatch(
        "after the reset %lld of %lld pages are free, %lld cached, %lld blocks, %lld host pages "
        "used",
        ll(end.pages_available), ll(num_pages_), ll(end.pages_indexed), ll(end.prefix_blocks),
        ll(end.host_pages_used));
  if (setup_.config().event_capacity > 0) consumer_.poll(setup_.cache(), random_, blocks_, true);
  if (!consumer_.held().empty()) mismatch("after the reset events leave something held");
  if (kvc_cache_check(setup_.cache(), &last_error_) != KVC_OK)
    mismatch("corrupt: %s", last_error_.message);
  setup_.destroy_cache();
  if (setup_.live_allocations() != 0) mismatch("pool memory leaks");
}

int64_t PrefixRun::run(int64_t operations) {
  setup_.create();
  for (steps_ = 0; steps_ < operations; ++steps_) {
    step();
    const bool often = kind_ == PrefixRunKind::kBookkeeping ? steps_ % 8 == 0 : true;
    if (often && kvc_cache_check(setup_.cache(), &last_error_) != KVC_OK)
      mismatch("corrupt: %s", last_error_.message);
    if (steps_ % 4 == 0) compare_counts();
    if (steps_ % 16 == 0) compare_all();
  }
  finish();
  return steps_;
}

}  // namespace kvc::test
