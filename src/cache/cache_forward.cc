#include "src/cache/cache_forward.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/base/process_mutex.h"
#include "src/cache/cache_core.h"
#include "src/cache/context_shift.h"
#include "src/cache/page_bytes.h"
#include "src/plan/spec.h"

namespace kvc {

struct ForwardEntry {
  std::atomic<uint64_t> open{0};  // Handle that is open; 0: none.
  std::atomic<Cache*> cache{nullptr};
  uint64_t count = 0;  // Forwards so far.
  uint64_t index = 0;  // Place in the table.
  ForwardEntry* next_unused = nullptr;
};

namespace {

// A handle is bit 51, then 35 bits of the entry's count, then 16 bits of its index: exact in a
// double, where some runtimes keep pointers. Bit 51 keeps it apart from the addresses of a process,
// which have 47 bits, for whoever looks at pointers (Go's collector does).
constexpr int kIndexBits = 16, kCountBits = 35;
constexpr uint64_t kHandleBit = uint64_t{1} << (kIndexBits + kCountBits);
constexpr uint64_t kMaxCount = (uint64_t{1} << kCountBits) - 1;
constexpr uint64_t kMaxEntries = uint64_t{1} << kIndexBits;
constexpr uint64_t kChunk = 256;  // Entries.
static_assert(sizeof(void*) == sizeof(uint64_t), "a handle has 64 bits");

// Chunks stay where they are until the process ends: lookups take no lock.
struct Table {
  ForwardEntry first[kChunk];  // Most processes need no others.
  std::atomic<ForwardEntry*> chunks[kMaxEntries / kChunk];
  ProcessMutex mutex{AtFork::kWaits};
  uint64_t num_made = 0;
  ForwardEntry* unused = nullptr;
};
constinit Table table;

ForwardEntry* entry_at(uint64_t index) noexcept {
  if (index < kChunk) return &table.first[index];
  ForwardEntry* chunk = table.chunks[index / kChunk].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : chunk + index % kChunk;
}

// The caller holds the lock.
ForwardEntry* make_entry() {
  const uint64_t index = table.num_made;
  if (index == kMaxEntries) {
    fail_with(KVC_E_NO_MEMORY, static_cast<int64_t>(kMaxEntries),
              "%llu caches exist in this process: at most %llu",
              static_cast<unsigned long long>(index), static_cast<unsigned long long>(kMaxEntries));
  }
  if (entry_at(index) == nullptr)
    table.chunks[index / kChunk].store(new ForwardEntry[kChunk], std::memory_order_release);
  ForwardEntry* entry = entry_at(index);
  entry->index = index;
  ++table.num_made;
  return entry;
}

// The caller holds the lock.
ForwardEntry* take_entry() {
  ForwardEntry* entry = table.unused;
  if (entry == nullptr) return make_entry();
  table.unused = entry->next_unused;
  return entry;
}

}  // namespace

ForwardHandle::ForwardHandle(Cache* cache, uint64_t counted) {
  const std::lock_guard lock(table.mutex);
  entry_ = take_entry();
  entry_->count = std::max(entry_->count, counted);
  entry_->cache.store(cache, std::memory_order_relaxed);
}

ForwardHandle::~ForwardHandle() {
  close();
  if (entry_->count == kMaxCount) return;
  const std::lock_guard lock(table.mutex);
  entry_->next_unused = table.unused;
  table.unused = entry_;
}

void ForwardHandle::prepare() {
  if (entry_->count != kMaxCount) return;
  const std::lock_guard lock(table.mutex);
  ForwardEntry* next = take_entry();
  next->cache.store(entry_->cache.load(std::memory_order_relaxed), std::memory_order_relaxed);
  entry_ = next;
}

kvc_forward* ForwardHandle::open() noexcept {
  const uint64_t handle = kHandleBit | ++entry_->count << kIndexBits | entry_->index;
  entry_->open.store(handle, std::memory_order_release);
  return reinterpret_cast<kvc_forward*>(static_cast<uintptr_t>(handle));
}

void ForwardHandle::close() noexcept { entry_->open.store(0, std::memory_order_release); }

Cache* ForwardHandle::find(const kvc_forward* handle) noexcept {
  const auto number = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(handle));
  if (number >> (kIndexBits + kCountBits) != 1) return nullptr;
  const ForwardEntry* entry = entry_at(number % kMaxEntries);
  if (entry == nullptr || entry->open.load(std::memory_order_acquire) != number) return nullptr;
  return entry->cache.load(std::memory_order_relaxed);
}

namespace {

// "ATTENTION (0), MLA (1) or SHARED (4)"
std::string kinds_text(uint32_t kinds) {
  std::string text;
  for (kvc_layer_kind kind = KVC_LAYER_ATTENTION; kinds != 0; ++kind) {
    if ((kinds & kind_bit(kind)) == 0) continue;
    kinds &= ~kind_bit(kind);
    if (!text.empty()) text += kinds == 0 ? " or " : ", ";
    text += std::string(layer_kind_name(kind)) + " (" + std::to_string(kind) + ")";
  }
  return text;
}

}  // namespace

LayerCall::LayerCall(CacheCore& core, int32_t id, const char* function, uint32_t kinds)
    : layer(core.layer(core.require_layer(id))),
      core_(core),
      id_(id),
      local_(core.plan->local_layer(id)) {
  if ((kinds & kind_bit(layer.kind)) == 0) {
    fail_with(KVC_E_INVALID_STATE, layer.kind, "%s: layer %d is of kind %s (%d), expected %s",
              function, id, layer_kind_name(layer.kind), layer.kind, kinds_text(kinds).c_str());
  }
  core.require_storage(function);
  core.require_readable(local_, function);
  source_id_ = core.spec().layer_begin + layer.source;
  num_rows_ = core.forward.batch().num_rows();
  device_ = core.spec().device;
}

int64_t LayerCall::num_cross_rows() const { return core_.forward.batch().num_cross_rows(); }

int64_t LayerCall::max_num_keys() const { return core_.forward.batch().longest(is_cross()); }

void LayerCall::read_spans(const DLTensor* spans, std::vector<Span>* out) const {
  kvc::read_spans(spans, core_.forward.batch(), core_.forward.has_whole_spans(), out);
}

// Rows that the host's own kernels write are not known of.
bool LayerCall::has_new_rows_written() const {
  return core_.forward.written().is_appended(layer.source) || core_.host_can_write_pool();
}

void LayerCall::require_appended() const {
  if (has_new_rows_written()) return;
  fail(KVC_E_INVALID_STATE,
       "layer %d: k and v are NULL, and nothing was appended to layer %d in this forward of %lld "
       "tokens",
       id_, source_id_, ll(num_rows_));
}

void LayerCall::attend(KeyScope scope, const AttnOptions& options, const AttnTensors& tensors,
                       bool is_mla_self) {
  core_.engine->attend(core_.forward, {layer, scope, is_mla_self}, options, tensors);
  if (core_.observer != nullptr) core_.observer->on_rows(layer.source);
}

void LayerCall::append(const kernels::TokenRows& k, const kernels::TokenRows& v) {
  core_.engine->append(core_.forward, local_, k, v);
  if (core_.observer != nullptr) core_.observer->on_rows(local_);
}

StoredTokens LayerCall::stored_tokens(kvc_seq seq) const {
  const Sequence& sequence = core_.sequences.get_on_device(seq, "gather");
  const LayerSpec& source = core_.layer(layer.source);
  StoredTokens tokens{&sequence.tables[source.group], seq, sequence.stored(is_cross()), false,
                      is_cross() ? KeyLead{} : sequence.lead};
  if (source.kept_rows >= 0)
    tokens.kept_table = &sequence.tables[core_.layer(source.kept_rows).group];
  if (const BatchEntry* entry = core_.entry_of(sequence); entry != nullptr) {
    tokens.length = entry->new_stored(is_cross());
    tokens.grows = tokens.length > entry->old_stored(is_cross());
  }
  return tokens;
}

void LayerCall::gather(const StoredTokens& tokens, const kernels::TokenRows& k,
                       const kernels::TokenRows& v) {
  if (!tokens.table->keeps(0, tokens.length)) {
    fail_with(KVC_E_OUT_OF_RANGE, tokens.table->kept_begin,
              "layer %d: a window of sequence %lld has dropped tokens before %lld", id_,
              ll(tokens.seq), ll(tokens.table->kept_begin));
  }
  if (tokens.grows && !has_new_rows_written()) {
    fail_with(KVC_E_INVALID_STATE, id_,
              "layer %d: nothing was appended to it in this forward, which grows sequence %lld",
              id_, ll(tokens.seq));
  }
  if (tokens.length == 0) return;
  const LeadRotation back(core_.spec(), layer.source, tokens.lead);
  const auto gather_part = [&](int32_t local, const PageTable& table, bool is_v,
                               const kernels::TokenRows& out, int32_t dim, int64_t num_keys) {
    core_.engine->gather({local, is_v},
                         {.rows = is_v ? core_.pool.v_rows(local) : core_.pool.k_rows(local),
                          .pages = table.pages.data(),
                          .out = out,
                          .page_size = core_.group_of(core_.layer(local)).page_size,
                          .num_heads = layer.num_kv_heads,
                          .dim = dim,
                          .rotation = is_v ? kernels::Rotation{} : back.get(),
                          .rotate_from = tokens.lead.begin,
                          .gap = table.pages.gap()},
                         num_keys);
  };
  const auto gather_rows = [&](bool is_v, const kernels::TokenRows& out, int32_t dim) {
    gather_part(layer.source, *tokens.table, is_v, out, dim, tokens.length);
    if (tokens.kept_table == nullptr) return;
    // Kept rows take the places of the quantised ones.
    const LayerSpec& source = core_.layer(layer.source);
    gather_part(source.kept_rows, *tokens.kept_table, is_v, out, dim,
                std::min<int64_t>(tokens.length, source.keep_tokens));
  };
  if (k.base != nullptr) gather_rows(false, k, layer.k_dim);
  if (v.base != nullptr) gather_rows(true, v, layer.v_dim);
}

StateCall::StateCall(CacheCore& core, int32_t layer, int32_t index, const char* function)
    : core_(core), layer_(layer), index_(index), local_(core.require_layer(layer)) {
  const LayerSpec& spec_of_layer = core.layer(local_);
  if (spec_of_layer.kind != KVC_LAYER_STATE) {
    fail_with(KVC_E_INVALID_STATE, spec_of_layer.kind,
              "%s: layer %d is of kind %s (%d), expected STATE (%d)", function, layer,
              layer_kind_name(spec_of_layer.kind), spec_of_layer.kind, KVC_LAYER_STATE);
  }
  const auto num_states = static_cast<int32_t>(spec_of_layer.states.size());
  if (index < 0 || index >= num_states) {
    fail_with(KVC_E_OUT_OF_RANGE, index, "state %d out of range: layer %d has %d states", index,
              layer, num_states);
  }
  core.require_storage(function);
  spec_ = &spec_of_layer.states[index];
}

DLDevice StateCall::device() const { return core_.spec().device; }

int64_t StateCall::num_rows() const { return core_.forward.batch().num_rows(); }

int64_t StateCall::num_seqs() const {
  return static_cast<int64_t>(core_.forward.batch().entries().size());
}

void StateCall::get(const StateRows& out) {
  core_.engine->get_states(core_.forward, {local_, index_}, out);
}

void StateCall::set(const StateRows& value) {
  core_.engine->set_states(core_.forward, {local_, index_}, value);
  core_.forward.written().mark_state_set(local_, index_);
}

void StateCall::linear(const kernels::LinearParams& params) {
  core_.engine->linear(core_.forward, {local_, index_}, params);
  core_.forward.written().mark_state_set(local_, index_);
}

void StateCall::conv(const kernels::ConvParams& params) {
  core_.engine->conv(core_.forward, {local_, index_}, params);
  core_.forward.written().mark_state_set(local_, index_);
}

namespace {

// Puts zeros into the rows of new tokens. Rows that no layer writes would hold what their page held
// before, maybe values of another tenant, and go into files.
class RowClearer {
 public:
  // Throws std::bad_alloc.
  explicit RowClearer(const CacheCore& core)
      : core_(core),
        unused_(*core.plan),
        page_(static_cast<size_t>(core.plan->layout().page_bytes)) {}

  void clear(const BatchEntry& entry) {
    for (size_t group = 0; group < core_.spec().groups.size(); ++group) {
      const GroupSpec& spec = core_.group(group);
      const int64_t page_size = spec.page_size;
      const int64_t end = entry.new_stored(spec);
      for (int64_t row = entry.old_stored(spec); row < end;) {
        const int64_t index = row / page_size, begin = index * page_size;
        const int64_t next = std::min(end, begin + page_size);
        clear(entry.sequence->tables[group].pages[index], group, row - begin, next - begin);
        row = next;
      }
    }
  }

 private:
  void clear(PageId page, size_t group, int64_t begin, int64_t end) {
    const int64_t bytes = core_.plan->layout().group_bytes[group];
    core_.device->read_pages(&page, 1, bytes, page_.data(), kOwnStream);
    unused_.clear_rows(group, begin, end, page_.data());
    core_.device->write_pages(&page, 1, bytes, page_.data(), kOwnStream);
  }

  const CacheCore& core_;
  UnusedBytes unused_;
  std::vector<std::byte> page_;
};

}  // namespace

kvc_forward* CacheForward::begin(const BatchRequest& request, GivenPositions given,
                                 const ForwardFlags& flags, CallStream stream) {
  if (core_.forward.is_open())
    fail(KVC_E_BUSY, "a forward over %zu sequences is open: end or abort it first",
         core_.forward.batch().entries().size());
  handle_.prepare();
  Batch& batch = core_.forward.batch();
  try {
    if (request.tokens != nullptr) core_.require_prefix_index("desc->tokens");
    batch.prepare(request, *core_.plan, core_.sequences, core_.allocator, core_.states,
                  core_.index);
  } catch (const Error& error) {
    if (error.status() == KVC_E_NO_PAGES) ++core_.counters.no_pages;
    throw;
  }
  // Every refusal comes before a block is evicted or a checkpoint given up: nothing brings those
  // back.
  const ForwardMode mode{.has_positions = given.num_position_rows != 0,
                         .is_replay = flags.is_replay,
                         .needs_rows = core_.writes_pool_alone() && !flags.is_partial};
  std::optional<RowClearer> clearer;
  try {
    core_.engine->check_begin(batch, mode, stream);
    if (flags.is_partial && !flags.leaves_rows && core_.writes_pool_alone() &&
        !core_.spec().is_on_gpu())
      clearer.emplace(core_);
  } catch (...) {
    batch.discard();
    throw;
  }
  batch.begin(request, *core_.plan, core_.sequences, core_.allocator, core_.states, core_.index,
              stream);
  core_.forward.opened(std::move(given), flags);
  try {
    core_.engine->begin(core_.forward, mode, stream);
  } catch (...) {
    // The device failed, or the host's executor threw although it must not.
    batch.rollback(core_.sequences, core_.allocator, core_.states);
    core_.forward.closed();
    throw;
  }
  for (size_t i = 0; clearer.has_value() && i < batch.entries().size(); ++i)
    clearer->clear(batch.entries()[i]);
  core_.counters.pages_copied += batch.copies().size();
  core_.counters.step_bytes = batch.step_delta().size() * sizeof(int32_t);
  core_.counters.step_copies = 1;
  core_.note_pages_used();
  core_.note_step_bytes();
  return handle_.open();
}

void CacheForward::end() {
  if (core_.writes_pool_alone() && !core_.forward.is_partial())
    core_.forward.written().require_rows(core_.forward.batch());
  core_.engine->close(core_.forward, false);
  Batch& batch = core_.forward.batch();
  ++core_.counters.forwards;
  core_.counters.tokens_appended += static_cast<uint64_t>(batch.num_rows());
  // Without storage the cache cannot know whether the host's own kernels wrote a state: each
  // forward counts as if they did.
  const bool states_written = core_.states.is_used() && (!core_.pool.has_storage() ||
                                                         core_.forward.written().any_state_set());
  batch.commit(core_.sequences, core_.allocator, core_.states, core_.spec(), core_.publisher,
               {.states = states_written,
                .rows = !core_.forward.is_partial() ||
                        !core_.forward.written().lacks_rows(core_.forward.batch()),
                .publishes = !core_.forward.is_partial()},
               kOwnStream);
  core_.forward.closed();
  handle_.close();
  if (core_.observer != nullptr) core_.observer->on_end();
}

void CacheForward::abort() {
  core_.engine->close(core_.forward, true);
  ++core_.counters.forwards_aborted;
  if (core_.observer != nullptr) core_.observer->on_abort();
  core_.forward.batch().rollback(core_.sequences, core_.allocator, core_.states);
  core_.forward.closed();
  handle_.close();
}

void CacheForward::reserve(kvc_seq seq, int64_t num_tokens) {
  const BatchRequest request{.num_seqs = 1, .seqs = &seq, .append_lengths = &num_tokens};
  (void)begin(request, {}, {.is_partial = true}, kOwnStream);
  end();
}

int64_t CacheForward::num_tokens() const { return core_.forward.batch().num_rows(); }

int64_t CacheForward::num_position_rows() const { return core_.forward.position_rows(); }

void CacheForward::write_positions(const I32Matrix& out) const {
  core_.engine->write_positions(core_.forward, out);
}

void CacheForward::merge(const kernels::MergeParams& params, int64_t num_rows) {
  core_.engine->merge(params, num_rows);
}

}  // namespace kvc
