#include "src/cache/context_shift.h"

#include <algorithm>
#include <cstdlib>
#include <utility>
#include <vector>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/cache/private_pages.h"
#include "src/exec/row_moves.h"
#include "src/sequences/visibility.h"
#include "src/step/cos_sin.h"

namespace kvc {

bool keeps_key_leads(const CacheCore& core) {
  const Spec& spec = core.spec();
  if (spec.is_on_gpu() || !core.writes_pool_alone()) return false;
  return std::all_of(spec.layers.begin(), spec.layers.end(), [&](const LayerSpec& layer) {
    if (layer.kind == KVC_LAYER_SHARED && layer.source >= 0)
      return layer.rope == spec.layers[layer.source].rope;
    const bool rotates = layer.rope >= 0 && !spec.rotates_on_read(layer.rope);
    return !rotates || !layer.v_in_k || layer.rotation_begin() >= layer.v_dim;
  });
}

LeadSettler::LeadSettler(CacheCore& core, int64_t num_tokens) : core_(core) {
  int32_t largest = 0;
  for (const GroupSpec& group : core.spec().groups) largest = std::max(largest, group.page_size);
  slots_.reserve(static_cast<size_t>(num_tokens + largest));
  is_settled_.assign(static_cast<size_t>(core.allocator.num_pages()), 0);
}

void LeadSettler::settle(Sequence& sequence) noexcept {
  const KeyLead& lead = sequence.lead;
  for (size_t group = 0; lead.ahead != 0 && group < sequence.tables.size(); ++group) {
    const GroupSpec& spec = core_.group(group);
    if (spec.is_cross) continue;
    const PageTable& table = sequence.tables[group];
    slots_.clear();
    table.pages.for_each([&](int64_t place, PageId page) {
      const int64_t first = place * spec.page_size;
      if (first + spec.page_size <= lead.begin || is_settled_[page] != 0) return;
      is_settled_[page] = 1;
      // To the end of the page: a longer sequence may share it.
      for (int64_t token = std::max(first, lead.begin); token < first + spec.page_size; ++token)
        slots_.push_back(slot_of(table, token, spec.page_size));
    });
    for (const int32_t layer : spec.layers) {
      const LeadRotation rotation(core_.spec(), layer, lead);
      if (rotation.get().rotary_dim != 0)
        core_.device->rotate_keys(layer, rotation.get(), slots_, kOwnStream);
    }
  }
  sequence.lead = {};
}

void settle_key_leads(CacheCore& core) {
  bool has_leads = false;
  core.sequences.for_each([&](const Sequence& sequence) {
    if (sequence.lead.ahead == 0) return;
    has_leads = true;
    if (sequence.is_swapped) {
      fail_with(KVC_E_INVALID_STATE, sequence.id,
                "sequence %lld is swapped out, and kvc_seq_shift has moved its tokens: swap it in "
                "before the host reads or writes pages itself",
                ll(sequence.id));
    }
  });
  if (!has_leads) return;
  core.require_closed("let the host read or write pages while tokens are shifted");
  if (!core.holds.empty())
    fail_with(KVC_E_BUSY, static_cast<int64_t>(core.holds.size()),
              "cannot let the host read or write pages while tokens are shifted: %zu transfers are "
              "open, expected 0",
              core.holds.size());
  LeadSettler settler(core, core.sequences.totals().length);
  core.sequences.for_each([&](Sequence& sequence) { settler.settle(sequence); });
}

LeadRotation::LeadRotation(const Spec& spec, int32_t local_layer, const KeyLead& lead) {
  const LayerSpec& layer = spec.layers[local_layer];
  if (lead.ahead == 0 || layer.rope < 0 || spec.rotates_on_read(layer.rope)) return;
  rotation_ = shift_rotation(spec.ropes[layer.rope], -lead.ahead, cosines_, sines_);
  rotation_.begin = layer.rotation_begin();
}

TokenLeads::TokenLeads(const Spec& spec, int32_t local_layer, const KeyLead& lead, int64_t begin,
                       int64_t count) {
  const LayerSpec& layer = spec.layers[local_layer];
  if (lead.ahead == 0 || layer.rope < 0 || spec.rotates_on_read(layer.rope)) return;
  const RopeSpec& rope = spec.ropes[layer.rope];
  const int64_t pairs = rope.rotary_dim / 2;
  cosines_.resize(static_cast<size_t>(count * pairs));
  sines_.resize(cosines_.size());
  for (int64_t i = count - 1; i >= 0; --i) {
    rotation_ = shift_rotation(rope, begin + i < lead.begin ? 0 : lead.ahead,
                               cosines_.data() + i * pairs, sines_.data() + i * pairs);
  }
  rotation_.begin = layer.rotation_begin();
}

void rotate_copied_page(const CacheCore& core, int32_t local_layer, const KeyLead& lead,
                        int64_t first, std::byte* rows) {
  const LeadRotation rotation(core.spec(), local_layer, lead);
  if (rotation.get().rotary_dim == 0) return;
  kernels::PagedRows keys = core.pool.k_rows(local_layer);
  if (keys.scales.base != nullptr) keys.scales.base = rows + (keys.scales.base - keys.base);
  keys.base = rows;
  std::vector<int64_t> slots;
  const int64_t page_size = core.spec().layer_page_size(local_layer);
  for (int64_t slot = std::max<int64_t>(0, lead.begin - first); slot < page_size; ++slot)
    slots.push_back(slot);
  rotate_key_rows(*choose_kernels(KVC_CPU_ISA_AUTO, ""), core.layer(local_layer), keys, page_size,
                  rotation.get(), slots);
}

namespace {

bool is_rotated_on_append(const Spec& spec, int32_t local_layer) {
  const int32_t rope = spec.layers[local_layer].rope;
  return rope >= 0 && spec.ropes[rope].mode == KVC_ROPE_ON_APPEND;
}

void check_range(const CacheCore& core, const Sequence& sequence, int64_t begin, int64_t end) {
  if (begin < 0 || begin > end || end > sequence.length) {
    fail_with(KVC_E_OUT_OF_RANGE, end,
              "[begin, end) = [%lld, %lld) out of range: sequence %lld has %lld tokens", ll(begin),
              ll(end), ll(sequence.id), ll(sequence.length));
  }
  if (core.states.is_used()) {
    fail_with(
        KVC_E_UNSUPPORTED, sequence.id,
        "shift of sequence %lld: layers of kind STATE (%d) cannot forget tokens in the middle",
        ll(sequence.id), KVC_LAYER_STATE);
  }
}

// K that is stored rotated can be rotated on.
bool can_rotate_keys(const CacheCore& core) {
  for (int32_t layer = 0; layer < core.spec().num_local_layers(); ++layer) {
    if (is_rotated_on_append(core.spec(), layer) && !core.can_rotate_keys(layer)) return false;
  }
  return true;
}

// What a table keeps: tokens [0, sink_end) and those from `begin` on. Nothing is missing where they
// meet.
struct KeptTokens {
  int64_t sink_end, begin;
};

// After tokens [begin, end) were taken out.
KeptTokens kept_without(const PageTable& table, int64_t begin, int64_t end) {
  const auto moved = [&](int64_t token) {
    return token <= begin ? token : std::max(begin, token - (end - begin));
  };
  const KeptTokens kept{moved(table.sink_kept), moved(table.kept_begin)};
  return kept.begin <= kept.sink_end ? KeptTokens{0, 0} : kept;
}

// Without tokens [begin, end), the table has the visible range of the next query of the sequence.
bool keeps_visible(const GroupSpec& group, const Sequence& sequence, const PageTable& table,
                   int64_t begin, int64_t end) {
  const KeptTokens kept = kept_without(table, begin, end);
  const int64_t length = sequence.length - (end - begin);
  const KeyRange keys = keys_of_query(group, sequence, length);
  return std::min(keys.sink_end, length) <= std::max(kept.sink_end, kept.begin == 0 ? length : 0) &&
         keys.begin >= std::min(kept.begin, length);
}

// Without tokens [begin, end), one from behind the kept tokens of a layer would be one of them:
// keep_tokens of that layer, else 0.
int64_t filled_kept_tokens(const Spec& spec, int64_t length, int64_t begin, int64_t end) {
  for (const GroupSpec& group : spec.groups) {
    const int64_t kept = group.keep_tokens;
    if (begin < end && begin < kept && length > std::max(end, kept)) return kept;
  }
  return 0;
}

// One shift of a range that was checked.
class ContextShift {
 public:
  ContextShift(CacheCore& core, Sequence& sequence, int64_t begin, int64_t end, int64_t delta)
      : core_(core),
        spec_(core.spec()),
        sequence_(sequence),
        begin_(begin),
        end_(end),
        delta_(delta),
        num_moved_(sequence.length - end) {}

  void check() const {
    check_windows();
    check_kept_tokens();
    if (num_moved_ > 0) check_positions();
  }
  void run();

 private:
  void check_windows() const;
  void check_kept_tokens() const;
  void check_positions() const;
  // The range and the sequence's end in the tables of a layer group: those of kept rows end before.
  struct Range {
    int64_t begin, end, length;
  };
  Range range_of(size_t group) const {
    const GroupSpec& spec = core_.group(group);
    return {spec.tokens_of(begin_), spec.tokens_of(end_), spec.tokens_of(sequence_.length)};
  }
  // Dropping the range leaves every page of the layer group as it is, but for those that go.
  bool moves_whole_pages(size_t group) const;
  // Where the rows of a layer group go when only some pages move as a whole.
  struct Moves {
    int64_t first_token;  // The first token that is kept behind the range; `length` where none is.
    // Dropped entries of the table, [entries_end - num_entries, entries_end), that go as a whole.
    int64_t entries_end, num_entries;
  };
  Moves moves_of(size_t group) const;
  bool lacks_page(size_t group, const Moves& moves) const;
  void add_rewritten_pages(PrivatePages* pages) const;
  std::vector<PositionSegment> moved_segments() const;
  void close_gap() noexcept;
  // Rows of tokens [begin, end), counted after the gap has closed, are rotated by `angle`
  // positions.
  struct Turn {
    int64_t begin, end, angle;
  };
  // What has to be rotated now, and what stands ahead of its position from then on.
  Turn plan_leads(KeyLead* lead) const;
  void rotate_keys(const Turn& turn) noexcept;

  CacheCore& core_;
  const Spec& spec_;
  Sequence& sequence_;
  const int64_t begin_, end_, delta_;
  const int64_t num_moved_;  // Tokens behind the range.
  TokenMoves moves_;
  std::vector<int64_t> rotated_slots_;
};

void ContextShift::check_windows() const {
  const bool closes_gap = delta_ == begin_ - end_;  // No sum: delta may be any number here.
  if (!closes_gap && num_moved_ > 0 && (spec_.has_windows() || sequence_.window != 0)) {
    fail_with(KVC_E_UNSUPPORTED, delta_,
              "delta = %lld: with a window or chunk only begin - end = %lld, which leaves no gap, "
              "is supported",
              ll(delta_), ll(begin_ - end_));
  }
  for (size_t group = 0; group < sequence_.tables.size(); ++group) {
    const PageTable& table = sequence_.tables[group];
    if (!core_.group(group).may_drop() ||
        keeps_visible(core_.group(group), sequence_, table, begin_, end_))
      continue;
    fail_with(
        KVC_E_OUT_OF_RANGE, table.kept_begin,
        "[begin, end) = [%lld, %lld): the next token of sequence %lld would see tokens that a "
        "window has dropped: it keeps the first %lld and those from %lld on",
        ll(begin_), ll(end_), ll(sequence_.id), ll(table.sink_kept), ll(table.kept_begin));
  }
}

// A row that is stored in 8 bits alone cannot become a kept one.
void ContextShift::check_kept_tokens() const {
  const int64_t kept = filled_kept_tokens(spec_, sequence_.length, begin_, end_);
  if (kept == 0) return;
  fail_with(
      KVC_E_UNSUPPORTED, kept,
      "[begin, end) = [%lld, %lld): token %lld of sequence %lld would move to %lld, one of the "
      "first keep_tokens = %lld, which a layer stores unquantised: expected begin of at least "
      "%lld",
      ll(begin_), ll(end_), ll(std::max(end_, kept)), ll(sequence_.id),
      ll(std::max(end_, kept) - (end_ - begin_)), ll(kept), ll(kept));
}

void ContextShift::check_positions() const {
  const int64_t first = sequence_.position_of(end_);
  const int64_t last = sequence_.position_of(sequence_.length - 1);
  const int64_t least = begin_ == 0 ? 0 : sequence_.position_of(begin_ - 1) + 1;
  if (delta_ < least - first || delta_ >= kMaxSequenceLength - last) {
    fail_with(
        KVC_E_OUT_OF_RANGE, delta_,
        "delta = %lld would move token %lld from position %lld: at least to %lld, the last token "
        "below %lld",
        ll(delta_), ll(end_), ll(first), ll(least), ll(kMaxSequenceLength));
  }
  if (delta_ == 0) return;
  for (int32_t layer = 0; layer < spec_.num_local_layers(); ++layer) {
    if (!is_rotated_on_append(spec_, layer) || core_.can_rotate_keys(layer)) continue;
    const LayerSpec& stored = core_.layer(layer);
    fail_with(KVC_E_UNSUPPORTED, stored.k_quant,
              "kvc_seq_shift: K of layer %d is stored rotated as %s with quant = %s (%d), which "
              "%s does not rotate on",
              spec_.layer_begin + layer, k_type_name(stored).c_str(), quant_name(stored.k_quant),
              stored.k_quant, spec_.is_on_gpu() ? "CUDA" : "the CPU");
  }
}

void ContextShift::run() {
  if (begin_ == end_ && (delta_ == 0 || num_moved_ == 0)) return;
  const BytesRecount recount(core_.sequences, sequence_);
  std::vector<PositionSegment> segments = moved_segments();
  KeyLead lead;
  const Turn turn = plan_leads(&lead);
  PrivatePages pages(core_, sequence_);
  add_rewritten_pages(&pages);
  pages.check();
  // For one layer group or layer after the other.
  moves_.reserve(num_moved_, 1);
  rotated_slots_.reserve(sequence_.length);
  pages.prepare();
  for (PageTable& table : sequence_.tables) table.pages.open_up();
  // Nothing throws from here on.
  pages.copy(kOwnStream);
  sequence_.history.diverge();
  if (begin_ != end_) close_gap();
  sequence_.lead = lead;
  rotate_keys(turn);
  sequence_.segments = std::move(segments);
  core_.sequences.trimmer().drop_hidden(sequence_);
  if (sequence_.length == 0 && sequence_.window == 0) sequence_.history.has_diverged = false;
}

// Rows behind the range stay as they are where that is allowed. Only those between this range and
// the lead that an earlier shift has left are rotated, by all of it at once: rows are rewritten
// when the place changes from which on tokens move, and a small angle is never lost.
ContextShift::Turn ContextShift::plan_leads(KeyLead* lead) const {
  const int64_t gap = end_ - begin_, length = sequence_.length - gap;
  const KeyLead& old = sequence_.lead;
  const bool moves = num_moved_ > 0 && delta_ != 0;
  if (!keeps_key_leads(core_)) {
    *lead = {};
    return moves ? Turn{begin_, length, delta_} : Turn{0, 0, 0};
  }
  if (!moves) {  // Rows keep their positions.
    *lead = old;
    if (lead->begin > begin_) lead->begin = std::max(begin_, lead->begin - gap);
    if (lead->begin >= length) *lead = {};
    return {0, 0, 0};
  }
  *lead = {begin_, old.ahead - delta_};
  if (lead->ahead == 0) *lead = {};
  if (old.ahead == 0 || old.begin == begin_) return {0, 0, 0};
  if (old.begin < begin_) return {old.begin, begin_, -old.ahead};
  return {begin_, std::max(begin_, old.begin - gap), old.ahead};
}

bool ContextShift::moves_whole_pages(size_t group) const {
  const int32_t page_size = core_.group(group).page_size;
  const Range range = range_of(group);
  return range.begin % page_size == 0 && range.end % page_size == 0;
}

ContextShift::Moves ContextShift::moves_of(size_t group) const {
  const PageTable& table = sequence_.tables[group];
  const int32_t page_size = core_.group(group).page_size;
  const Range range = range_of(group);
  Moves moves{std::min(std::max(range.end, table.kept_begin), range.length), 0, 0};
  if (table.kept_begin <= begin_) return moves;
  // What a window has dropped makes room without a row being moved, so that at most one entry in
  // front has to be filled.
  moves.entries_end = table.kept_begin / page_size;
  const int64_t sink_pages = ceil_div(table.sink_kept, page_size);
  moves.num_entries =
      std::clamp<int64_t>(moves.entries_end - sink_pages, 0, (end_ - begin_) / page_size);
  return moves;
}

// The first kept token behind the range, or the next one of the sequence, goes to a page that the
// window has dropped.
bool ContextShift::lacks_page(size_t group, const Moves& moves) const {
  const int32_t page_size = core_.group(group).page_size;
  const Range range = range_of(group);
  const int64_t place = moves.first_token - (range.end - range.begin), entry = place / page_size;
  if (entry >= moves.entries_end - moves.num_entries) return false;
  const bool is_used = moves.first_token < range.length || place % page_size != 0;
  return is_used && sequence_.tables[group].pages[entry] == kNoPage;
}

// What is written must be the sequence's own: all moved tokens where rows move or K is rotated.
// Whole pages may move as they are.
void ContextShift::add_rewritten_pages(PrivatePages* pages) const {
  for (size_t group = 0; group < spec_.groups.size(); ++group) {
    if (core_.group(group).is_cross) continue;
    const std::vector<int32_t>& layers = core_.group(group).layers;
    const bool rotates =
        delta_ != 0 && std::any_of(layers.begin(), layers.end(), [&](int32_t layer) {
          return is_rotated_on_append(spec_, layer);
        });
    const auto add = [&](int64_t begin, int64_t end) {
      std::vector<uint8_t> marks(spec_.groups.size(), 0);
      marks[group] = 1;
      if (begin < end) pages->add(begin, end, std::move(marks));
    };
    const PageTable& table = sequence_.tables[group];
    const KeyLead& lead = sequence_.lead;
    const Range range = range_of(group);
    if (rotates && lead.ahead != 0 && lead.begin < range.begin) {
      add(lead.begin, std::min(table.sink_kept, range.begin));
      add(std::max(lead.begin, table.kept_begin), range.begin);
    }
    const Moves moves = moves_of(group);
    if (moves_whole_pages(group)) {
      if (rotates) add(moves.first_token, range.length);
      continue;
    }
    if (range.begin == range.end && !rotates) continue;
    // By places in the table before the dropped entries go.
    const int32_t page_size = core_.group(group).page_size;
    const int64_t gap = range.end - range.begin, first = moves.first_token - gap,
                  last = range.length - gap,
                  turn = (moves.entries_end - moves.num_entries) * page_size,
                  gone = moves.num_entries * page_size;
    add(first, std::min(turn, last));
    add(std::max(first, turn) + gone, last + gone);
    if (lacks_page(group, moves)) pages->add_fresh(1);
  }
}

std::vector<PositionSegment> ContextShift::moved_segments() const {
  std::vector<PositionSegment> segments;
  segments.reserve(sequence_.segments.size() + 2);
  for (const PositionSegment& segment : sequence_.segments) {
    if (segment.begin < begin_) segments.push_back(segment);
  }
  if (num_moved_ == 0) return segments;
  // Segments behind the gap keep their distances: index falls by end - begin, position grows by
  // delta.
  const int64_t change = delta_ + (end_ - begin_);
  const int64_t offset = sequence_.position_of(end_) - end_ + change;
  if (offset != (segments.empty() ? 0 : segments.back().offset))
    segments.push_back({begin_, offset});
  for (const PositionSegment& segment : sequence_.segments) {
    if (segment.begin > end_)
      segments.push_back({segment.begin - (end_ - begin_), segment.offset + change});
  }
  return segments;
}

// Tokens [end, length) follow token begin - 1 afterwards.
void ContextShift::close_gap() noexcept {
  const Recount recount(core_.sequences, sequence_);
  sequence_.invalidate_tables();
  for (size_t group = 0; group < spec_.groups.size(); ++group) {
    if (core_.group(group).is_cross) continue;
    PageTable& table = sequence_.tables[group];
    const int32_t page_size = core_.group(group).page_size;
    const Range range = range_of(group);
    if (range.begin == range.end) continue;
    table.send_from(range.begin / page_size);
    table.owns_last = false;
    if (moves_whole_pages(group)) {
      // The dropped pages go behind the others, from where truncate releases them.
      table.pages.rotate(range.begin / page_size, range.end / page_size);
      continue;
    }
    const Moves moves = moves_of(group);
    const bool lacks_page = this->lacks_page(group, moves);
    table.pages.rotate(moves.entries_end - moves.num_entries, moves.entries_end);
    table.send_from(moves.entries_end - moves.num_entries);
    const int64_t gap = range.end - range.begin, gone = moves.num_entries * page_size;
    if (lacks_page) {
      table.pages.set((moves.first_token - gap) / page_size, core_.allocator.take(kNoPage, 0));
    }
    if (!core_.pool.has_storage() || gone == gap) continue;
    moves_.clear();
    moves_.begin_list();
    for (int64_t token = moves.first_token; token < range.length; ++token)
      moves_.add(slot_of(table, token - gone, page_size), slot_of(table, token - gap, page_size));
    core_.device->move_tokens(static_cast<int32_t>(group), moves_, kOwnStream);
  }
  core_.note_pages_used();
  for (size_t group = 0; group < spec_.groups.size(); ++group) {
    if (core_.group(group).is_cross) continue;
    PageTable& table = sequence_.tables[group];
    const KeptTokens kept = kept_without(table, begin_, end_);
    table.sink_kept = kept.sink_end;
    table.kept_begin = kept.begin;
    // Pages of the range may stand in front of what is kept now.
    const int32_t page_size = core_.group(group).page_size;
    core_.sequences.trimmer().drop_pages(table, ceil_div(kept.sink_end, page_size),
                                         kept.begin / page_size);
    table.close_up(page_size);
  }
  sequence_.length -= end_ - begin_;
  // Which tokens behind `begin` were written is not known one by one.
  if (sequence_.first_unwritten > begin_ && sequence_.first_unwritten != kAllWritten)
    sequence_.first_unwritten = std::max(begin_, sequence_.first_unwritten - (end_ - begin_));
  sequence_.cut_rows(sequence_.length);
  core_.sequences.trimmer().truncate(sequence_, sequence_.length);
}

// K that is stored rotated is rotated further.
void ContextShift::rotate_keys(const Turn& turn) noexcept {
  if (turn.begin >= turn.end || !core_.pool.has_storage()) return;
  float cosines[kMaxLatentDim / 2], sines[kMaxLatentDim / 2];
  for (size_t group = 0; group < spec_.groups.size(); ++group) {
    if (core_.group(group).is_cross) continue;
    rotated_slots_.clear();
    const PageTable& table = sequence_.tables[group];
    const int64_t end = core_.group(group).tokens_of(turn.end);
    for (int64_t token = turn.begin; token < end; ++token) {
      if (table.keeps(token, token + 1))
        rotated_slots_.push_back(slot_of(table, token, core_.group(group).page_size));
    }
    for (const int32_t local : core_.group(group).layers) {
      if (!is_rotated_on_append(spec_, local)) continue;
      const LayerSpec& layer = core_.layer(local);
      kernels::Rotation rotation =
          shift_rotation(spec_.ropes[layer.rope], turn.angle, cosines, sines);
      rotation.begin = layer.rotation_begin();
      core_.device->rotate_keys(local, rotation, rotated_slots_, kOwnStream);
    }
  }
}

}  // namespace

Neighbours shifts_around(const CacheCore& core, const Sequence& sequence, int64_t position) {
  if (core.states.is_used() || sequence.length == 0) return {};
  const int64_t last = sequence.length - 1;
  const auto is_possible = [&](int64_t token) {
    for (size_t group = 0; group < sequence.tables.size(); ++group) {
      if (core.group(group).may_drop() &&
          !keeps_visible(core.group(group), sequence, sequence.tables[group], token, token + 1))
        return false;
    }
    return filled_kept_tokens(core.spec(), sequence.length, token, token + 1) == 0;
  };
  const int64_t wanted = position == -1 ? last : std::min(position, last);
  Neighbours found;
  const auto consider = [&](int64_t token) {
    if (token < 0 || token > last || !is_possible(token)) return;
    if (token <= wanted) found.below = std::max(found.below, token);
    if (token >= wanted) found.above = found.above == -1 ? token : std::min(found.above, token);
  };
  // No token follows the last one, so nothing moves.
  if (!can_rotate_keys(core)) return consider(last), found;
  consider(wanted);
  for (const GroupSpec& group : core.spec().groups)
    consider(group.keep_tokens - 1), consider(group.keep_tokens);
  // Between what a table keeps and what it has dropped, all tokens are alike.
  for (const PageTable& table : sequence.tables) {
    for (const int64_t edge : {table.sink_kept, table.kept_begin, sequence.length})
      consider(edge - 1), consider(edge);
  }
  return found;
}

void shift_tokens(CacheCore& core, kvc_seq id, int64_t begin, int64_t end, int64_t delta) {
  core.require_alive();
  Sequence& sequence = core.sequences.get_settled(id, "shift");
  check_range(core, sequence, begin, end);
  ContextShift shift(core, sequence, begin, end, delta);
  shift.check();
  shift.run();
}

}  // namespace kvc
