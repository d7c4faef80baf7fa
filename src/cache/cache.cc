#include "src/cache/cache.h"

#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/cache/audit.h"
#include "src/cache/cache_core.h"
#include "src/cache/page_moves.h"
#include "src/exec/cuda/stream_order.h"

namespace kvc {
namespace {

// Without storage nothing copies the bytes of pages that go to the host and come back, so a hit on
// them would be one on pages that nobody filled.
std::shared_ptr<const Plan> require_bytes(std::shared_ptr<const Plan> plan) {
  const Spec& spec = plan->spec();
  if (spec.storage == KVC_STORAGE_NONE && spec.host_byte_budget != 0) {
    fail_with(KVC_E_UNSUPPORTED, spec.storage,
              "a cache with config.storage = NONE (%d) has no bytes that host memory could keep: "
              "config.host_byte_budget = %llu, expected 0",
              spec.storage, static_cast<unsigned long long>(spec.host_byte_budget));
  }
  return plan;
}

}  // namespace

Cache::Cache(std::shared_ptr<const Plan> plan)
    : core_(std::make_unique<CacheCore>(require_bytes(std::move(plan)))),
      sequences(*core_),
      prefixes(*core_),
      events(*core_),
      swaps(*core_),
      files(*core_),
      tiers(*core_),
      exports(*core_),
      pages(*core_),
      debug(*core_),
      forward(this, *core_),
      transfers(*core_, forward) {}

Cache::~Cache() = default;

const Spec& Cache::spec() const { return core_->spec(); }

void Cache::clear() {
  CacheCore& core = *core_;
  core.require_closed("clear");
  transfers.require_none("clear the cache");
  core.index.reset();
  core.sequences.clear();
  core.host.clear();
  core.num_swapped = 0;
  trim();
}

int64_t Cache::trim() {
  CacheCore& core = *core_;
  core.require_closed("trim");
  return core.pool.trim(core.allocator) + core.states.trim() + core.host.trim() +
         core.host_states.trim();
}

void Cache::resize(int64_t num_pages) {
  CacheCore& core = *core_;
  core.require_closed("resize");
  transfers.require_none("resize the pool");
  if (num_pages < 1 || num_pages >= INT32_MAX) {
    fail_with(KVC_E_OUT_OF_RANGE, num_pages, "num_pages = %lld out of range: 1 to %d",
              ll(num_pages), INT32_MAX - 1);
  }
  if (core.spec().storage == KVC_STORAGE_BORROWED) {
    fail(KVC_E_UNSUPPORTED, "config.storage = BORROWED (%d): a borrowed pool cannot be resized",
         core.spec().storage);
  }
  core.plan->check_pool_size(num_pages);
  core.plan->check_capacity(num_pages);
  if (num_pages < core.allocator.num_used()) {
    fail_with(KVC_E_BUSY, core.allocator.num_used(),
              "cannot shrink to %lld pages: %lld are in use, %lld of them by states", ll(num_pages),
              ll(core.allocator.num_used()), ll(core.allocator.counts().withheld));
  }
  const PageId used = core.allocator.first_used(num_pages);
  if (used != kNoPage && !core.writes_pool_alone()) {
    fail_with(KVC_E_BUSY, used,
              "cannot shrink to %lld pages: page %d is in use, and the host knows it by its id, so "
              "that it can't move",
              ll(num_pages), used);
  }
  if (core.executors.order != nullptr) core.executors.order->drain();
  if (num_pages > core.allocator.num_pages()) {
    const int64_t before = core.allocator.num_pages();
    core.allocator.grow(num_pages);
    try {
      core.pool.resize(num_pages);
    } catch (...) {
      core.allocator.shrink(before);
      throw;
    }
  } else {
    PageMoves moves(core, num_pages);
    core.pool.resize(num_pages, [&] { moves.run(); });
    core.allocator.shrink(num_pages);
  }
}

kvc_stats Cache::stats() const {
  const CacheCore& core = *core_;
  kvc_stats stats{};
  stats.num_seqs = static_cast<int64_t>(core.sequences.size());
  stats.total_length = core.sequences.totals().length;
  stats.pages_total = core.allocator.num_pages();
  stats.pages_available = core.allocator.num_available();
  stats.pages_used = core.allocator.num_used();
  stats.pages_shared = core.allocator.counts().shared;
  stats.pages_peak = core.counters.pages_peak;
  stats.page_bytes = static_cast<uint64_t>(core.plan->layout().page_bytes);
  stats.pool_bytes = stats.page_bytes * static_cast<uint64_t>(core.allocator.num_pages());
  stats.forwards = core.counters.forwards;
  stats.forwards_aborted = core.counters.forwards_aborted;
  stats.tokens_appended = core.counters.tokens_appended;
  stats.pages_copied = core.counters.pages_copied + core.publisher.num_copies();
  stats.no_pages = core.counters.no_pages;
  stats.step_bytes = core.counters.step_bytes;
  stats.step_copies = core.counters.step_copies;
  stats.state_slots_used = core.states.num_used();
  stats.state_slot_bytes = static_cast<uint64_t>(core.plan->layout().state_slot_bytes);
  stats.state_slots_cached = core.states.num_cached();
  stats.tree_tokens = static_cast<uint64_t>(core.sequences.totals().tree_nodes);
  stats.cascades = core.engine->num_cascades();
  stats.slots_unused = core.sequences.totals().unused_slots;
  stats.pages_indexed = core.allocator.counts().indexed;
  stats.pages_cached = core.allocator.num_cached();
  core.index.add_stats(&stats);
  stats.host_pages_total = core.host.num_pages();
  stats.host_pages_used = core.host.allocator().num_used();
  stats.num_swapped_seqs = core.num_swapped;
  stats.pages_swapped_out = core.counters.pages_swapped_out;
  stats.pages_swapped_in = core.counters.pages_swapped_in;
  stats.copy_runs = core.device->num_copy_runs();
  stats.cos_sin_bytes = static_cast<uint64_t>(core.engine->cos_sin_bytes());
  stats.host_bytes = static_cast<uint64_t>(core.host_bytes()) + sizeof *this;
  stats.values_saturated = core.counters.values_saturated + core.engine->values_saturated();
  return stats;
}

bool Cache::is_empty() const {
  return core_->sequences.size() == 0 && core_->allocator.num_used() == 0;
}

int64_t Cache::num_available_pages() const { return core_->allocator.num_available(); }

void Cache::check() const { audit(*core_); }

void Cache::require_alive() const { core_->require_alive(); }

DeviceEvent Cache::make_event() const {
  return core_->executors.order == nullptr ? DeviceEvent() : core_->executors.order->make_event();
}

void Cache::record(const DeviceEvent& event, CallStream stream) noexcept {
  if (core_->executors.order != nullptr) core_->executors.order->record(event, stream);
}

}  // namespace kvc
