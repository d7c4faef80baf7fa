#include "src/cache/tier_fetch.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "src/cache/cache_core.h"
#include "src/sequences/table_trimmer.h"

namespace kvc {
namespace {

std::vector<TierGet> gets_of(const CacheCore& core, const TierRun& run) {
  std::vector<TierGet> gets;
  for (int64_t block = run.begin; block < run.end; ++block) {
    const ValueHead head(core.tiers.shape(), core.tiers.head(run, block));
    gets.push_back({run.keys[static_cast<size_t>(block - run.begin)], nullptr,
                    core.tiers.shape().head_bytes() + head.payload_bytes(), TierResult::kMiss});
  }
  return gets;
}

}  // namespace

TierFetch::TierFetch(CacheCore& core, TierRun run, TokenHistory history)
    : core_(core),
      run_(std::move(run)),
      history_(std::move(history)),
      pages_(
          static_cast<size_t>((run_.end - run_.begin) * core.index.blocks().shape.pages_per_block),
          kNoPage),
      reader_(gets_of(core, run_), run_.stores, &core.tiers.buffers()) {
  if (core.found_gpu.table != nullptr)
    staging_.emplace(core.found_gpu, static_cast<int64_t>(core.tiers.shape().most_bytes()));
  core.index.reserve(run_.end, !history_.ids.empty());
  if (core.index.blocks().shape.has_states) core.states.prepare(1);
}

void TierFetch::append_to(Sequence& sequence) noexcept {
  const BlockShape& blocks = core_.index.blocks().shape;
  core_.index.eviction().evict_for(
      run_.num_pages + (blocks.has_states ? core_.states.slot_pages() : 0), kOwnStream);
  if (blocks.has_states) core_.index.eviction().evict_states_for(1);
  int64_t got = read_blocks();
  if (got < run_.end - run_.begin && (blocks.num_windows != 0 || blocks.has_states)) got = 0;
  keep(got);
  if (got == 0) return;
  sequence.invalidate_tables();
  for (int64_t block = 0; block < got; ++block) {
    const PageId* page = pages_.data() + block * blocks.pages_per_block;
    for (size_t g = 0; g < blocks.groups.size(); ++g) {
      PageTable& table = sequence.tables[g];
      for (int32_t i = 0; i < blocks.groups[g].num_pages; ++i, ++page) table.pages.push_back(*page);
      table.owns_last = false;
    }
  }
  const int64_t num_published = sequence.history.num_published;
  sequence.length += got * blocks.block_tokens;
  core_.sequences.add_to_total_length(got * blocks.block_tokens);
  std::swap(sequence.history, history_);
  core_.spare_histories.keep(history_);
  sequence.history.cut(sequence.length, blocks.block_tokens);
  sequence.history.num_published = num_published;
  if (state_ != kInitialState) {
    if (sequence.state != kInitialState) core_.states.drop_ref(sequence.state);
    sequence.state = state_;
    core_.states.add_ref(state_);
    sequence.checkpoints.push_back({sequence.length, state_, true});
  }
  TableTrimmer(core_.spec(), &core_.allocator).drop_hidden(sequence);
  core_.publisher.publish(sequence, kOwnStream);
}

// Returns how many blocks came, one after the other.
int64_t TierFetch::read_blocks() noexcept {
  for (int64_t block = run_.begin; block < run_.end; ++block) {
    const std::byte* value = reader_.next();
    if (value == nullptr) return block - run_.begin;
    try {
      if (!take_pages(block, value)) return block - run_.begin;
    } catch (const std::exception&) {
      return block - run_.begin;  // The device has failed, which the next call reports.
    }
  }
  return run_.end - run_.begin;
}

// Returns false when there is no room, or the value says less than its head did. Throws DEVICE.
bool TierFetch::take_pages(int64_t block, const std::byte* value) {
  const BlockShape& blocks = core_.index.blocks().shape;
  const ValueHead head(core_.tiers.shape(), value);
  const std::byte* from = value + core_.tiers.shape().head_bytes();
  if (staging_.has_value()) {
    std::memcpy(staging_->data(), from, head.payload_bytes());
    from = staging_->data();
  }
  PageId* const pages = pages_.data() + (block - run_.begin) * blocks.pages_per_block;
  for (size_t g = 0; g < blocks.groups.size(); ++g) {
    const BlockGroup& group = blocks.groups[g];
    const int64_t bytes = core_.plan->layout().group_bytes[g];
    PageId last = kNoPage;
    for (int32_t i = group.first_page; i < group.end_page(); ++i) {
      const bool needs = core_.tiers.needs(run_, block, group, i);
      if (!head.has_page(i)) {
        if (needs) return false;
        continue;
      }
      if (needs) {
        if (core_.allocator.num_free() == 0) return false;
        pages[i] = last = core_.allocator.take(last, 0);
        core_.device->write_pages(&pages[i], 1, bytes, from, kOwnStream);
      }
      from += bytes;
    }
  }
  if (!blocks.has_states || block + 1 != run_.end) return true;
  if (!head.has_state() || core_.states.missing(1) != 0 || core_.states.to_evict(1) != 0 ||
      core_.allocator.num_free() < core_.states.slot_pages())
    return false;
  state_ = core_.states.take();
  core_.device->write_bytes(core_.states.memory().slot(state_), from,
                            core_.tiers.shape().state_bytes, kOwnStream);
  return true;
}

// Gives back what lies behind the first blocks.
void TierFetch::keep(int64_t num_blocks) noexcept {
  const auto begin = static_cast<size_t>(num_blocks * core_.index.blocks().shape.pages_per_block);
  for (size_t i = begin; i < pages_.size(); ++i) {
    if (pages_[i] != kNoPage) core_.allocator.drop_ref(pages_[i]);
  }
  if (num_blocks == run_.end - run_.begin || state_ == kInitialState) return;
  core_.states.drop_ref(state_);
  state_ = kInitialState;
}

}  // namespace kvc
