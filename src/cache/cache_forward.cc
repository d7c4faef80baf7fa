#include "src/cache/cache_forward.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/cache/cache_core.h"
#include "src/cache/unused_bytes.h"

namespace kvc {
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
      const int64_t page_size = core_.group(group).page_size;
      const bool is_cross = core_.group(group).is_cross;
      const int64_t end = entry.new_stored(is_cross);
      for (int64_t row = entry.old_stored(is_cross); row < end;) {
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

kvc_forward* CacheForward::begin(const BatchRequest& request, GivenPositions given, bool is_replay,
                                 bool is_partial, CallStream stream) {
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
                         .is_replay = is_replay,
                         .needs_rows = core_.writes_pool_alone() && !is_partial};
  std::optional<RowClearer> clearer;
  try {
    core_.engine->check_begin(batch, mode, stream);
    if (is_partial && core_.writes_pool_alone() && !core_.spec().is_on_gpu())
      clearer.emplace(core_);
  } catch (...) {
    batch.discard();
    throw;
  }
  batch.begin(request, *core_.plan, core_.sequences, core_.allocator, core_.states, core_.index,
              stream);
  core_.forward.opened(std::move(given), is_partial);
  try {
    core_.engine->begin(core_.forward, mode, stream);
  } catch (...) {
    // The device failed, or the host's executor threw although it must not.
    batch.rollback(core_.allocator, core_.states);
    core_.forward.closed();
    throw;
  }
  for (size_t i = 0; clearer.has_value() && i < batch.entries().size(); ++i)
    clearer->clear(batch.entries()[i]);
  core_.counters.pages_copied += batch.copies().size();
  core_.counters.step_bytes = batch.step_delta().size() * sizeof(int32_t);
  core_.counters.step_copies = 1;
  core_.note_pages_used();
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
}

void CacheForward::abort() {
  core_.engine->close(core_.forward, true);
  ++core_.counters.forwards_aborted;
  core_.forward.batch().rollback(core_.allocator, core_.states);
  core_.forward.closed();
  handle_.close();
}

void CacheForward::reserve(kvc_seq seq, int64_t num_tokens) {
  const BatchRequest request{.num_seqs = 1, .seqs = &seq, .append_lengths = &num_tokens};
  (void)begin(request, {}, false, true, kOwnStream);
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
