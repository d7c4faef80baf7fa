#include "src/exec/cpu/cos_sin.h"

#include <algorithm>

#include "src/base/memory.h"
#include "src/step/cos_sin.h"

namespace kvc {
namespace {

// Tokens from here on may be visible; before it only sink tokens.
int64_t first_kept(const Sequence& sequence, const Spec& spec) {
  int64_t first = INT64_MAX;
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    if (spec.groups[group].may_drop()) first = std::min(first, sequence.tables[group].kept_begin);
  }
  return first;
}

int64_t num_positions(const BatchEntry& entry) {
  return entry.sequence->next_position() + entry.old_nodes + entry.append_length;
}

}  // namespace

HostCosSin::HostCosSin(const Spec* spec, Executor* executor)
    : spec_(spec), executor_(executor), ropes_(spec->ropes.size()) {}

void HostCosSin::sync(const Forward& forward) {
  if (step_ == forward.step()) return;
  for (Rope& made : ropes_) {
    made.tokens.invalidate();
    made.heads.invalidate();
    made.sinks.invalidate();
  }
  const std::vector<BatchEntry>& entries = forward.batch().entries();
  has_leads_ = std::any_of(entries.begin(), entries.end(),
                           [](const BatchEntry& entry) { return entry.sequence->lead.ahead != 0; });
  step_ = forward.step();
}

HostCosSin::Rope& HostCosSin::sync(const Forward& forward, int32_t rope) {
  sync(forward);
  return ropes_[static_cast<size_t>(rope)];
}

bool HostCosSin::has_leads(const Forward& forward) {
  sync(forward);
  return has_leads_;
}

// The positions of the tokens, and which tokens use the long frequencies.
TokenPositions HostCosSin::with_variant(const Forward& forward, int32_t rope,
                                        const int32_t* positions, int64_t row_stride) {
  const Batch& batch = forward.batch();
  TokenPositions tokens{.positions = positions,
                        .row_stride = row_stride,
                        .num_rows = batch.num_rows(),
                        .uses_long = nullptr};
  if (spec_->ropes[rope].long_inverse_frequencies.empty()) return tokens;
  uses_long_.assign(static_cast<size_t>(batch.num_rows()), 0);
  for (const BatchEntry& entry : batch.entries()) {
    if (forward.uses_long(rope, entry))
      std::fill_n(uses_long_.begin() + entry.row_begin, entry.append_length, uint8_t{1});
  }
  tokens.uses_long = uses_long_.data();
  return tokens;
}

kernels::Rotation HostCosSin::tokens(Forward& forward, int32_t rope) {
  if (rope < 0) return {};
  const bool leads = has_leads(forward) && !spec_->rotates_on_read(rope);
  return by_token(forward, rope, ropes_[static_cast<size_t>(rope)].tokens, leads);
}

kernels::Rotation HostCosSin::heads(Forward& forward, int32_t rope) {
  return rope < 0 ? kernels::Rotation{} : by_token(forward, rope, sync(forward, rope).heads, false);
}

kernels::Rotation HostCosSin::by_token(Forward& forward, int32_t rope, TokenCosSin& table,
                                       bool leads) {
  if (table.is_valid()) return table.get(spec_->ropes[rope], {}, *executor_);
  const Batch& batch = forward.batch();
  const int64_t stride = forward.position_rows() > 1 ? batch.num_rows() : 0;
  TokenPositions tokens = with_variant(forward, rope, forward.rotary_positions(), stride);
  if (leads) {
    leads_.resize(static_cast<size_t>(batch.num_rows()));
    for (const BatchEntry& entry : batch.entries())
      std::fill_n(leads_.begin() + entry.row_begin, entry.append_length,
                  entry.sequence->lead.ahead);
    tokens.added = leads_.data();
  }
  return table.get(spec_->ropes[rope], tokens, *executor_);
}

kernels::Rotation HostCosSin::sinks(Forward& forward, int32_t rope) {
  if (rope < 0) return {};
  TokenCosSin& table = sync(forward, rope).sinks;
  if (table.is_valid()) return table.get(spec_->ropes[rope], {}, *executor_);
  const Batch& batch = forward.batch();
  const int32_t* positions = forward.token_positions();
  sink_positions_.assign(positions, positions + batch.num_rows());
  for (const BatchEntry& entry : batch.entries()) {
    const int64_t window = entry.sequence->window;
    if (window == 0) continue;
    for (int64_t row = entry.row_begin; row < entry.row_begin + entry.append_length; ++row) {
      int32_t& position = sink_positions_[row];
      position = static_cast<int32_t>(std::min<int64_t>(position, window - 1));
    }
  }
  return table.get(spec_->ropes[rope], with_variant(forward, rope, sink_positions_.data(), 0),
                   *executor_);
}

// So many of the positions up to its last key are of no visible key that a row for each of
// them would be mostly waste.
bool HostCosSin::lies_far(const BatchEntry& entry) const {
  // A table of so many rows is small for every sequence.
  constexpr int64_t kNear = 4096;
  const int64_t positions = num_positions(entry);
  return positions > kNear &&
         positions > 2 * (entry.new_stored(false) - first_kept(*entry.sequence, *spec_));
}

void HostCosSin::keys(Forward& forward, int32_t rope, kernels::Rotation out[2]) {
  out[0] = out[1] = {};
  if (!spec_->rotates_on_read(rope)) return;
  int64_t positions = 1;  // Kernels read from a table that is there whether they rotate.
  bool needs[2] = {false, false};
  for (const BatchEntry& entry : forward.batch().entries()) {
    needs[forward.uses_long(rope, entry) ? 1 : 0] = true;
    positions = std::max(positions, lies_far(entry) ? entry.sequence->sink : num_positions(entry));
  }
  PositionCosSin& table = sync(forward, rope).keys;
  for (int variant = 0; variant < 2; ++variant) {
    if (needs[variant])
      out[variant] = table.ensure(spec_->ropes[rope], variant == 1, positions, *executor_);
  }
}

const kernels::Rotation* HostCosSin::own_keys(Forward& forward, int32_t rope,
                                              const BatchEntry& entry, int64_t* begin) {
  if (!lies_far(entry)) return nullptr;
  Rope& made = sync(forward, rope);
  *begin = first_kept(*entry.sequence, *spec_);
  key_positions_.clear();
  forward.append_key_positions(entry, *begin, false, &key_positions_);
  if (made.own_keys.size() > 2 * forward.batch().entries().size()) {
    std::erase_if(made.own_keys, [&](const auto& own) { return own.second.last_step != step_; });
  }
  KeyCosSin& own = made.own_keys[entry.sequence->id];
  own.last_step = step_;
  return &own.ensure(spec_->ropes[rope], forward.uses_long(rope, entry), *begin, key_positions_,
                     made.keys, *executor_);
}

int64_t HostCosSin::host_bytes() const {
  int64_t bytes = kvc::host_bytes(ropes_) + kvc::host_bytes(leads_) + kvc::host_bytes(uses_long_) +
                  kvc::host_bytes(sink_positions_) + kvc::host_bytes(key_positions_);
  for (size_t rope = 0; rope < ropes_.size(); ++rope) {
    const Rope& made = ropes_[rope];
    bytes += made.tokens.host_bytes() + made.heads.host_bytes() + made.sinks.host_bytes() +
             made.keys.bytes(num_pairs(spec_->ropes[rope]));
    constexpr size_t kLinks = 2 * sizeof(void*);  // A node of the map: the next one, its hash.
    bytes += static_cast<int64_t>(made.own_keys.bucket_count() * sizeof(void*));
    for (const auto& [seq, own] : made.own_keys)
      bytes += static_cast<int64_t>(sizeof(seq) + sizeof(own) + kLinks) + own.host_bytes();
  }
  return bytes;
}

void HostCosSin::closed() noexcept {
  int64_t bytes = 0;
  for (size_t i = 0; i < ropes_.size(); ++i) {
    bytes += ropes_[i].keys.bytes(num_pairs(spec_->ropes[i]));
    for (const auto& own : ropes_[i].own_keys) bytes += own.second.bytes();
  }
  bytes_.store(bytes, std::memory_order_relaxed);
}

}  // namespace kvc
