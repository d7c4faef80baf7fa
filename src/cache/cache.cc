#include "src/cache/cache.h"

#include <algorithm>
#include <utility>

#include "src/base/error.h"
#include "src/base/log.h"
#include "src/base/math.h"
#include "src/exec/cpu/engine.h"
#include "src/exec/cuda/engine.h"
#include "src/exec/cuda/page_copies.h"

namespace kvc {
namespace {

int64_t require_pages(const Plan& plan) {
  if (plan.num_pages() == 0 && !plan.spec().groups.empty()) {
    fail(KVC_E_INVALID_ARGUMENT,
         "the plan has no pages: config.num_pages = 0 and config.byte_budget = 0");
  }
  return plan.num_pages();
}

// Bookkeeping alone needs no device.
Device find_gpu(const Spec& spec) {
  if (!spec.is_on_gpu() || spec.storage == KVC_STORAGE_NONE) return {};
  const Device device = require_device(spec.device.device_id);
  for (size_t i = 0; i < spec.pool_tensors.size(); ++i) {
    const int32_t where = locate(device, spec.pool_tensors[i].data);
    if (where == device.id || where == -1) continue;
    fail_with(KVC_E_DEVICE_MISMATCH, where,
              "config.pool_tensors[%zu] lies %s (%d), the cache on GPU %d", i,
              where < 0 ? "in memory that CUDA does not know" : "on another GPU", where, device.id);
  }
  return device;
}

}  // namespace

Cache::Cache(std::shared_ptr<const Plan> plan)
    : plan_(std::move(plan)),
      device_(find_gpu(plan_->spec())),
      pool_(plan_, require_pages(*plan_), PoolPlace::kDevice, gpu()),
      allocator_(plan_->num_pages()),
      states_(plan_, &allocator_, plan_->state_slot_pages(), plan_->spec().num_state_slots, gpu()),
      host_(plan_, plan_->num_host_pages(), gpu()),
      host_states_(plan_, &host_.allocator(), plan_->state_slot_pages(), 0, gpu(),
                   gpu() != nullptr),
      host_tier_(&host_),
      index_(*plan_, &allocator_, &states_, host_.num_pages() > 0 ? &host_tier_ : nullptr,
             plan_->spec().event_capacity),
      publisher_(plan_->spec(), &index_, &allocator_, &page_mover_),
      sequences_(&allocator_, &states_, &host_.allocator(), &host_states_, plan_->spec(),
                 index_.block_tokens()),
      forward_(plan_->spec()) {
  make_engine();
  host_tier_.set_copier(copier_.get());
  page_mover_.set_copier(copier_.get());
  log(KVC_LOG_INFO, "cache created: %lld pages of %lld bytes, kernels %s, %d threads",
      ll(plan_->num_pages()), ll(plan_->layout().page_bytes), engine_->name(),
      engine_->num_threads());
}

void Cache::make_engine() {
  if (gpu() == nullptr) {
    auto engine = std::make_unique<CpuEngine>(plan_->spec(), &pool_, &states_);
    copier_ = std::make_unique<CpuPageCopier>(plan_.get(), &pool_, &host_.pool(),
                                              &engine->kernels(), &engine->executor());
    engine_ = std::move(engine);
    return;
  }
  auto engine = std::make_unique<CudaEngine>(*plan_, &pool_, &states_, &device_);
  copier_ =
      std::make_unique<CudaPageCopier>(plan_.get(), &pool_, &host_.pool(), &device_, engine.get());
  states_.memory().set_copier(engine.get());
  host_states_.memory().set_copier(engine.get());
  engine_ = std::move(engine);
}

void Cache::clear() {
  if (forward_.is_open())
    fail(KVC_E_BUSY, "cannot clear: a forward over %zu sequences is open",
         forward_.batch().entries().size());
  index_.reset();
  sequences_.clear();
  host_.clear();
  num_swapped_ = 0;
}

void Cache::resize(int64_t num_pages) {
  if (forward_.is_open())
    fail(KVC_E_BUSY, "cannot resize: a forward over %zu sequences is open",
         forward_.batch().entries().size());
  if (num_pages < 1 || num_pages >= INT32_MAX) {
    fail_with(KVC_E_OUT_OF_RANGE, num_pages, "num_pages = %lld out of range: 1 to %d",
              ll(num_pages), INT32_MAX - 1);
  }
  if (spec().storage == KVC_STORAGE_BORROWED) {
    fail(KVC_E_UNSUPPORTED, "config.storage = BORROWED (%d): a borrowed pool cannot be resized",
         spec().storage);
  }
  plan_->check_pool_size(num_pages);
  plan_->check_capacity(num_pages);
  const PageId used = allocator_.first_used(num_pages);
  if (used != kNoPage) {
    fail_with(KVC_E_BUSY, used, "cannot shrink to %lld pages: page %d is in use", ll(num_pages),
              used);
  }
  const int64_t dropped = allocator_.num_pages() - num_pages;
  if (dropped > allocator_.num_available()) {
    fail_with(KVC_E_BUSY, allocator_.counts().withheld,
              "cannot shrink to %lld pages: states take %lld pages out of use", ll(num_pages),
              ll(allocator_.counts().withheld));
  }
  engine_->drain();
  if (num_pages > allocator_.num_pages()) {
    const int64_t before = allocator_.num_pages();
    allocator_.grow(num_pages);
    try {
      pool_.resize(num_pages);
    } catch (...) {
      allocator_.shrink(before);
      throw;
    }
  } else {
    pool_.resize(num_pages);
    for (PageId page = allocator_.first_indexed(num_pages); page != kNoPage;
         page = allocator_.first_indexed(page))
      index_.eviction().forget_page(page);
    index_.eviction().evict_for(dropped);
    allocator_.shrink(num_pages);
  }
}

kvc_stats Cache::stats() const {
  kvc_stats stats{};
  stats.num_seqs = static_cast<int64_t>(sequences_.size());
  stats.total_length = sequences_.total_length();
  stats.pages_total = allocator_.num_pages();
  stats.pages_free = allocator_.num_available();
  stats.pages_used = allocator_.num_used();
  stats.pages_shared = allocator_.counts().shared;
  stats.pages_peak = counters_.pages_peak;
  stats.page_bytes = static_cast<uint64_t>(plan_->layout().page_bytes);
  stats.pool_bytes = stats.page_bytes * static_cast<uint64_t>(allocator_.num_pages());
  stats.forwards = counters_.forwards;
  stats.forwards_aborted = counters_.forwards_aborted;
  stats.tokens_appended = counters_.tokens_appended;
  stats.pages_copied = counters_.pages_copied + publisher_.num_copies();
  stats.no_pages = counters_.no_pages;
  stats.step_bytes = counters_.step_bytes;
  stats.step_copies = counters_.step_copies;
  stats.state_slots_used = states_.num_used();
  stats.state_slot_bytes = static_cast<uint64_t>(plan_->layout().state_slot_bytes);
  sequences_.for_each([&](const Sequence& sequence) {
    stats.tree_tokens += static_cast<uint64_t>(committable_nodes(sequence));
  });
  stats.cascades = engine_->num_cascades();
  stats.slots_unused = num_unused_slots();
  stats.pages_cached = allocator_.counts().indexed;
  stats.pages_evictable = allocator_.num_cached();
  index_.add_stats(&stats);
  stats.host_pages_total = host_.num_pages();
  stats.host_pages_used = host_.allocator().num_used();
  stats.num_swapped_seqs = num_swapped_;
  stats.pages_swapped_out = counters_.pages_swapped_out;
  stats.pages_swapped_in = counters_.pages_swapped_in;
  stats.copy_runs = copier_->num_runs();
  return stats;
}

// Without those of the open forward.
int64_t Cache::committable_nodes(const Sequence& sequence) const {
  if (!sequence.in_forward()) return sequence.tree.size();
  return forward_.batch().entries()[static_cast<size_t>(sequence.batch_index)].old_nodes;
}

kvc_seq_info Cache::sequence_info(kvc_seq id) const {
  const Sequence& sequence = sequences_.get(id);
  kvc_seq_info info{};
  info.length = sequence.length;
  info.window = sequence.window;
  info.sink = sequence.sink;
  info.cross_length = sequence.cross_length;
  info.is_swapped = sequence.is_swapped ? 1 : 0;
  info.known_tokens = sequence.history.has_diverged
                          ? 0
                          : std::min(sequence.history.num_known, sequence.first_unwritten);
  info.in_forward = sequence.in_forward() ? 1 : 0;
  // Inside a forward the tables already hold the new tokens' pages; the answer is about what was
  // there before.
  info.tree_nodes = committable_nodes(sequence);
  const PageAllocator& pages = sequence.is_swapped ? host_.allocator() : allocator_;
  int64_t first_kept = 0;
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    const bool is_cross = spec().groups[group].is_cross;
    const PageTable& table = sequence.tables[group];
    if (!is_cross) first_kept = std::max(first_kept, table.kept_begin);
    const int64_t stored = is_cross ? sequence.cross_length : sequence.length + info.tree_nodes;
    for (int64_t i = 0; i < spec().groups[group].pages_for(stored); ++i) {
      const PageId page = table.pages[static_cast<size_t>(i)];
      if (page == kNoPage) continue;
      ++info.num_pages;
      info.num_shared_pages += pages.refs(page) > 1 ? 1 : 0;
    }
  }
  const bool keeps_any = first_kept < sequence.length;
  info.first_position = keeps_any ? sequence.position_of(first_kept) : -1;
  info.last_position = sequence.length == 0 ? -1 : sequence.position_of(sequence.length - 1);
  for (const Checkpoint& checkpoint : sequence.checkpoints) {
    info.num_checkpoints += checkpoint.position < sequence.length ? 1 : 0;
  }
  return info;
}

int64_t Cache::missing_pages(const BatchRequest& request) const {
  std::vector<BatchEntry> entries;
  std::vector<TableChange> changes;
  const Batch::Context context{*plan_, sequences_, allocator_, states_};
  const Batch::Measure needed = Batch::measure(request, context, 0, &entries, &changes);
  for (const BatchEntry& entry : entries) {
    if (entry.sequence->in_forward()) {
      fail_with(KVC_E_BUSY, entry.sequence->id, "sequence %lld is entry %d of the open forward",
                ll(entry.sequence->id), entry.sequence->batch_index);
    }
  }
  return Batch::missing(needed, context).total();
}

int64_t Cache::nearest_position(kvc_seq id, kvc_seq_op op, int64_t position) const {
  const Sequence& sequence = sequences_.get(id);
  if (op < KVC_SEQ_FORK || op > KVC_SEQ_SHIFT) {
    fail_with(KVC_E_UNSUPPORTED, op,
              "op = %d is not supported: FORK (0), POP (1) and SHIFT (2) are", op);
  }
  if (position < -1)
    fail_with(KVC_E_OUT_OF_RANGE, position, "pos = %lld out of range: at least -1 (the end)",
              ll(position));
  sequences_.get_settled(id, "fork, pop or shift");
  if (op != KVC_SEQ_SHIFT)
    return sequences_.resume_points().nearest(
        sequence, position == -1 ? sequence.length : std::min(position, sequence.length));
  const bool dropped = std::any_of(sequence.tables.begin(), sequence.tables.end(),
                                   [](const PageTable& table) { return table.kept_begin > 0; });
  if (states_.is_used() || dropped || sequence.length == 0) return -1;
  if (!can_turn_keys()) return sequence.length - 1;  // nothing moves behind the last token
  return position == -1 ? sequence.length - 1 : std::min(position, sequence.length - 1);
}

// Behind the last tokens of sequences, in pages that they hold alone or share.
int64_t Cache::num_unused_slots() const {
  int64_t unused = 0;
  sequences_.for_each([&](const Sequence& sequence) {
    if (sequence.is_swapped) return;
    for (size_t group = 0; group < sequence.tables.size(); ++group) {
      const std::vector<PageId>& pages = sequence.tables[group].pages;
      const bool is_cross = spec().groups[group].is_cross;
      int64_t stored = sequence.stored(is_cross);
      if (sequence.in_forward())
        stored = forward_.batch().entries()[static_cast<size_t>(sequence.batch_index)].new_stored(
            is_cross);
      unused += static_cast<int64_t>(pages.size()) * spec().groups[group].page_size - stored;
    }
  });
  return unused;
}

void Cache::note_pages_used() {
  counters_.pages_peak = std::max(counters_.pages_peak, allocator_.num_used());
}

kvc_forward* Cache::begin(const BatchRequest& request, GivenPositions given, bool is_replay,
                          bool is_partial) {
  if (forward_.is_open())
    fail(KVC_E_BUSY, "a forward over %zu sequences is open: end or abort it first",
         forward_.batch().entries().size());
  Batch& batch = forward_.batch();
  try {
    if (request.tokens != nullptr) require_prefix_index("desc->tokens");
    engine_->await_begin();
    batch.prepare(request, *plan_, sequences_, allocator_, states_, index_);
  } catch (const Error& error) {
    if (error.status() == KVC_E_NO_PAGES) ++counters_.no_pages;
    throw;
  }
  // What is refused is refused before a block is evicted or a checkpoint given up for it: nothing
  // brings those back.
  try {
    engine_->check_begin(batch, given.num_position_rows != 0, is_replay,
                         writes_pool_alone() && !is_partial);
  } catch (...) {
    batch.discard();
    throw;
  }
  batch.begin(request, *plan_, sequences_, allocator_, states_, index_);
  forward_.opened(std::move(given), is_partial);
  try {
    engine_->begin(forward_, is_replay);
  } catch (...) {  // the device, or a host's executor that throws although it must not
    batch.rollback(allocator_, states_);
    forward_.closed();
    throw;
  }
  counters_.pages_copied += batch.copies().size();
  counters_.step_bytes = batch.step_delta().size() * sizeof(int32_t);
  counters_.step_copies = 1;
  note_pages_used();
  return handle_.open();
}

void Cache::end() {
  engine_->check_end();
  if (writes_pool_alone() && !forward_.is_partial())
    forward_.written().require_rows(forward_.batch());
  Batch& batch = forward_.batch();
  ++counters_.forwards;
  counters_.tokens_appended += static_cast<uint64_t>(batch.num_rows());
  // Without storage nobody can tell whether the host's own kernels wrote a state: each forward
  // counts as a step.
  const bool states_written =
      states_.is_used() && (!pool_.has_storage() || forward_.written().any_state_set());
  if (states_written && pool_.has_storage()) engine_->carry_states_on(forward_);
  engine_->closed(forward_, false);
  batch.commit(sequences_, allocator_, states_, spec(), publisher_,
               {.states = states_written,
                .rows = !forward_.is_partial() || !forward_.written().lacks_rows(forward_.batch()),
                .publishes = !forward_.is_partial()});
  forward_.closed();
  handle_.close();
}

void Cache::abort() {
  engine_->check_abort();
  ++counters_.forwards_aborted;
  engine_->closed(forward_, true);
  forward_.batch().rollback(allocator_, states_);
  forward_.closed();
  handle_.close();
}

void Cache::require_storage(const char* what) const {
  if (!pool_.has_storage()) {
    fail_with(KVC_E_UNSUPPORTED, spec().storage,
              "%s needs tensor memory: config.storage = NONE (%d)", what, spec().storage);
  }
}

void Cache::require_plain(int32_t local_layer, const char* what) const {
  const LayerSpec& layer = spec().layers[static_cast<size_t>(local_layer)];
  if (!layer.is_quantised()) return;
  fail_with(KVC_E_UNSUPPORTED, layer.quant,
            "%s: layer %d is stored with quant = %d, which is left to the host's kernels; NONE (0) "
            "is supported",
            what, spec().layer_begin + local_layer, layer.quant);
}

int32_t Cache::require_layer(int32_t layer) const {
  const int32_t local = plan_->local_layer(layer);
  if (local >= 0) return local;
  if (layer < 0 || layer >= spec().num_layers) {
    fail_with(KVC_E_OUT_OF_RANGE, layer, "layer %d out of range: the cache has %d layers", layer,
              spec().num_layers);
  }
  fail_with(KVC_E_OUT_OF_RANGE, layer,
            "layer %d out of range: this cache has layers %d to %d of %d", layer,
            spec().layer_begin, spec().layer_end - 1, spec().num_layers);
}

int32_t Cache::require_group(int32_t group) const {
  const auto num_groups = static_cast<int32_t>(spec().groups.size());
  if (group < 0 || group >= num_groups)
    fail_with(KVC_E_OUT_OF_RANGE, group, "group %d out of range: the cache has %d groups", group,
              num_groups);
  return group;
}

}  // namespace kvc
