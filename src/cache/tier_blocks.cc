#include "src/cache/tier_blocks.h"

#include <algorithm>
#include <cstring>
#include <exception>
#include <utility>

#include "src/base/error.h"
#include "src/base/memory.h"
#include "src/base/sha256.h"
#include "src/cache/cache_core.h"
#include "src/plan/layout.h"
#include "src/sequences/table_trimmer.h"

namespace kvc {
namespace {

// Heads are asked for in batches: a long query that ends early costs little.
constexpr int64_t kFindBatch = 64;

const char* name_of(kvc_tier tier) { return tier == KVC_TIER_REDIS ? "Redis" : "file"; }

}  // namespace

TierStore* TierBlocks::store(kvc_tier tier) const {
  for (const Attached& attached : tiers_) {
    if (attached.kind == tier) return attached.store.get();
  }
  return nullptr;
}

int64_t TierBlocks::host_bytes() const {
  int64_t bytes = kvc::host_bytes(tiers_) + buffer_bytes(buffers_) +
                  (staging_.has_value() ? staging_->host_bytes() : 0);
  for (const Attached& tier : tiers_) bytes += tier.store->host_bytes();
  return bytes;
}

void TierBlocks::describe_values() {
  if (shape_.block_tokens != 0) return;
  const BlockShape& blocks = core_.index.blocks().shape;
  ValueShape shape;
  for (size_t group = 0; group < blocks.groups.size(); ++group)
    shape.page_bytes.insert(shape.page_bytes.end(),
                            static_cast<size_t>(blocks.groups[group].num_pages),
                            core_.plan->layout().group_bytes[group]);
  if (blocks.has_states) shape.state_bytes = core_.plan->layout().state_slot_bytes;
  unused_.emplace(*core_.plan);
  if (core_.found_gpu.table != nullptr)
    staging_.emplace(core_.found_gpu, static_cast<int64_t>(shape.most_bytes()));
  shape_ = std::move(shape);
  shape_.block_tokens = blocks.block_tokens;
}

void TierBlocks::attach(const kvc_tier_desc& settings, std::unique_ptr<Tier> tier) {
  // Each part has its length before it, so that no two lists of parts have the same bytes.
  std::string owner = "kvcache-tier-1";
  const auto add = [&](const std::string& part) {
    owner += "\n" + std::to_string(part.size()) + ":" + part;
  };
  add(layout_text(core_.spec()));
  add(settings.model_id == nullptr ? "" : settings.model_id);
  add(std::to_string(settings.shard));
  tiers_.push_back({settings.tier, {sha256(owner.data(), owner.size())}, nullptr});
  try {
    tiers_.back().store = std::make_unique<TierStore>(
        std::move(tier), name_of(settings.tier), shape_, settings.queue_bytes, settings.get_ms);
  } catch (...) {
    tiers_.pop_back();
    throw;
  }
}

void TierBlocks::detach(kvc_tier tier) noexcept {
  std::erase_if(tiers_, [&](const Attached& attached) { return attached.kind == tier; });
}

TierKey TierBlocks::key_of(const Attached& tier, const BlockKey& root,
                           const BlockKey& block) noexcept {
  std::array<BlockKey, 3> parts{tier.owner, root, block};
  return sha256(parts.data(), sizeof parts);
}

// ---- Writing ----------------------------------------------------------------------------------

void TierBlocks::add(const NewBlock& block, CallStream stream) noexcept {
  const bool has_state = block.state != kInitialState;
  for (const Attached& tier : tiers_) {
    const TierKey key = key_of(tier, *block.root, *block.key);
    std::byte* value = tier.store->start_put(key, has_state);
    if (value == nullptr) continue;
    try {
      write(block, value, stream);
      tier.store->finish_put(key);
    } catch (const std::exception&) {
      tier.store->fail_put(key);
    }
  }
}

// Tokens in a page of the nth block. Kept rows may end inside of it.
static int64_t tokens_in(const BlockGroup& group, int64_t block, int32_t page) {
  const int64_t first = (block * group.num_pages + page) * group.page_size;
  return std::min<int64_t>(group.page_size, group.spec->tokens_of(first + group.page_size) - first);
}

// Throws DEVICE.
void TierBlocks::write(const NewBlock& block, std::byte* value, CallStream stream) {
  const BlockShape& blocks = core_.index.blocks().shape;
  ValueHeadWriter head(shape_, value);
  std::byte* const payload = value + shape_.head_bytes();
  std::byte* const begin = staging_.has_value() ? staging_->data() : payload;
  std::byte* to = begin;
  const int64_t depth =
      block.parent == kNoNode ? 0 : core_.index.blocks().nodes[block.parent].depth;
  for (size_t g = 0; g < blocks.groups.size(); ++g) {
    const BlockGroup& group = blocks.groups[g];
    const int64_t bytes = core_.plan->layout().group_bytes[g];
    for (int32_t i = group.first_page; i < group.end_page(); ++i) {
      if (block.pages[i] == kNoPage) continue;
      head.add_page(i);
      core_.device->read_pages(&block.pages[i], 1, bytes, to, stream);
      unused_->clear_page(g, tokens_in(group, depth, i - group.first_page), to);
      to += bytes;
    }
  }
  if (block.state != kInitialState) {
    head.add_state();
    core_.device->read_bytes(to, core_.states.memory().slot(block.state), shape_.state_bytes,
                             stream);
    unused_->clear_state(to);
    to += shape_.state_bytes;
  }
  if (begin != payload) std::memcpy(payload, begin, static_cast<size_t>(to - begin));
}

// ---- Finding ----------------------------------------------------------------------------------

bool TierBlocks::has_full_pages(const std::byte* bytes, int64_t block) const noexcept {
  const ValueHead head(shape_, bytes);
  for (const BlockGroup& group : core_.index.blocks().shape.groups) {
    for (int32_t i = 0; !group.is_windowed() && i < group.pages_of(block); ++i) {
      if (!head.has_page(group.first_page + i)) return false;
    }
  }
  return true;
}

// The heads of the blocks from run->begin on, up to the first that no tier has.
void TierBlocks::find_heads(KeyChain& chain, int64_t most, TierRun* run) const {
  const BlockKey root = chain.query().root;
  const size_t head_bytes = shape_.head_bytes();
  std::vector<TierKey> keys;
  for (size_t misses = 0, which = 0; misses < tiers_.size() && run->end < most;) {
    const Attached& tier = tiers_[which];
    const int64_t count = std::min(kFindBatch, most - run->end);
    keys.clear();
    for (int64_t i = 0; i < count; ++i) keys.push_back(key_of(tier, root, chain.key(run->end + i)));
    const size_t before = run->heads.size();
    run->heads.resize(before + keys.size() * head_bytes);
    run->keys.reserve(run->keys.size() + keys.size());
    run->stores.reserve(run->stores.size() + keys.size());
    size_t found = tier.store->find(keys, run->heads.data() + before, tier.store->deadline(0));
    for (size_t i = 0; i < found; ++i) {
      if (!has_full_pages(run->heads.data() + before + i * head_bytes,
                          run->end + static_cast<int64_t>(i)))
        found = i;
    }
    run->heads.resize(before + found * head_bytes);
    run->keys.insert(run->keys.end(), keys.begin(), keys.begin() + static_cast<ptrdiff_t>(found));
    run->stores.insert(run->stores.end(), found, tier.store.get());
    run->end += static_cast<int64_t>(found);
    // The next tier goes on where this one ends.
    if (found == keys.size()) continue;
    misses = found == 0 ? misses + 1 : 1;
    which = (which + 1) % tiers_.size();
  }
}

TierRun TierBlocks::find(KeyChain& chain, int64_t begin, int64_t most, int64_t room) const {
  TierRun run;
  run.begin = run.end = begin;
  if (tiers_.empty() || begin >= most) return run;
  find_heads(chain, most, &run);
  run.end = best_end(run, run.end, room);
  const auto count = static_cast<size_t>(run.end - run.begin);
  run.stores.resize(count);
  run.keys.resize(count);
  run.heads.resize(count * shape_.head_bytes());
  run.num_pages = pages_for(run, run.end);
  return run;
}

// First page of a table that a sequence of `end` blocks needs.
static int64_t first_needed(const BlockShape& blocks, const BlockGroup& group, int64_t end) {
  return group.is_windowed()
             ? first_visible_key(*group.spec, end * blocks.block_tokens) / group.page_size
             : 0;
}

bool TierBlocks::needs(const TierRun& run, int64_t block, const BlockGroup& group,
                       int32_t index) const {
  const BlockShape& blocks = core_.index.blocks().shape;
  const int32_t i = index - group.first_page;
  return i < group.pages_of(block) &&
         block * group.num_pages + i >= first_needed(blocks, group, run.end);
}

int64_t TierBlocks::pages_for(const TierRun& run, int64_t end) const {
  const BlockShape& blocks = core_.index.blocks().shape;
  int64_t pages = 0;
  for (const BlockGroup& group : blocks.groups) {
    const int64_t first = std::max(first_needed(blocks, group, end), run.begin * group.num_pages);
    pages += std::max<int64_t>(0, std::min(end * group.num_pages, group.all_pages) - first);
  }
  return pages;
}

// The last end at which every layer group has the visible range of the next query, and there is
// room.
int64_t TierBlocks::best_end(const TierRun& run, int64_t found, int64_t room) const {
  const BlockShape& blocks = core_.index.blocks().shape;
  std::vector<int64_t> gap_ends(blocks.groups.size(), 0);  // In pages of the table.
  int64_t best = run.begin;
  for (int64_t end = run.begin + 1; end <= found; ++end) {
    const ValueHead value(shape_, head(run, end - 1));
    bool is_end = !blocks.has_states || value.has_state();
    for (size_t g = 0; g < blocks.groups.size(); ++g) {
      const BlockGroup& group = blocks.groups[g];
      if (!group.is_windowed()) continue;
      for (int32_t i = group.first_page; i < group.end_page(); ++i) {
        if (!value.has_page(i))
          gap_ends[g] = (end - 1) * group.num_pages + (i - group.first_page) + 1;
      }
      is_end = is_end && first_needed(blocks, group, end) >= gap_ends[g];
    }
    const int64_t slots = blocks.has_states ? core_.states.slot_pages() : 0;
    if (is_end && pages_for(run, end) + slots <= room) best = end;
  }
  return best;
}

TierReader::TierReader(std::vector<TierGet> gets, std::vector<TierStore*> stores,
                       std::vector<AlignedBuffer>* buffers)
    : gets_(std::move(gets)), stores_(std::move(stores)), buffers_(buffers) {
  size_t largest = 0, all = 0;
  for (size_t i = 0; i < gets_.size(); ++i) {
    const bool fits = !batches_.empty() && stores_[i] == stores_[i - 1] &&
                      batches_.back().bytes + gets_[i].size <= kBatchBytes;
    if (!fits) batches_.push_back({i, i, 0});
    batches_.back().end = i + 1;
    batches_.back().bytes += gets_[i].size;
    largest = std::max(largest, batches_.back().bytes);
    all += gets_[i].size;
  }
  if (gets_.empty()) return;
  deadline_ = stores_.front()->deadline(all);
  buffers_->resize(kBatches);
  for (size_t i = 0; i < std::min(kBatches, batches_.size()); ++i) (*buffers_)[i].ensure(largest);
  for (size_t i = 0; i < std::min(kBatches, batches_.size()); ++i) start(i);
}

TierReader::~TierReader() {
  for (std::future<void>& read : reads_) {
    if (read.valid()) read.wait();
  }
}

void TierReader::start(size_t batch) noexcept {
  try {
    reads_[batch % kBatches] = std::async(std::launch::async, [this, batch] { read(batch); });
  } catch (const std::exception&) {
    reads_[batch % kBatches] = {};  // No thread to be had.
  }
}

void TierReader::read(size_t batch) noexcept {
  const Batch& wanted = batches_[batch];
  std::byte* to = (*buffers_)[batch % kBatches].data();
  for (size_t i = wanted.begin; i < wanted.end; ++i) {
    gets_[i].data = to;
    to += gets_[i].size;
  }
  stores_[wanted.begin]->get({gets_.data() + wanted.begin, wanted.end - wanted.begin}, deadline_);
}

const std::byte* TierReader::next() noexcept {
  if (next_ == gets_.size()) return nullptr;
  if (next_ == batches_[batch_].end) {
    if (batch_ + kBatches < batches_.size()) start(batch_ + kBatches);
    ++batch_;
  }
  if (next_ == batches_[batch_].begin) {
    std::future<void>& pending = reads_[batch_ % kBatches];
    if (pending.valid()) {
      pending.get();
    } else {
      read(batch_);
    }
  }
  const TierGet& get = gets_[next_++];
  return get.result == TierResult::kOk ? get.data : nullptr;
}

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
  const Recount recount(core_.sequences, sequence);
  sequence.invalidate_tables();
  for (int64_t block = 0; block < got; ++block) {
    const PageId* page = pages_.data() + block * blocks.pages_per_block;
    for (size_t g = 0; g < blocks.groups.size(); ++g) {
      PageTable& table = sequence.tables[g];
      const BlockGroup& group = blocks.groups[g];
      const int32_t num_pages = group.pages_of(run_.begin + block);
      for (int32_t i = 0; i < num_pages; ++i) table.pages.push_back(page[group.first_page + i]);
      table.owns_last = false;
    }
  }
  const int64_t num_published = sequence.history.num_published;
  sequence.length += got * blocks.block_tokens;
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
