// Operations that move committed tokens: accepting a path of a token tree, and context shift.
#include <algorithm>
#include <cstring>
#include <vector>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/cache/cache.h"

namespace kvc {
namespace {

TokenPlace place_of(const PageTable& table, int64_t token, int32_t page_size) {
  return {table.pages[static_cast<size_t>(token / page_size)], token % page_size};
}

// Looks at one id more than the cache has sequences at most: among those one is unknown or comes
// twice.
void require_distinct(size_t num_seqs, const kvc_seq* seqs, size_t num_known) {
  std::vector<kvc_seq> ids(seqs, seqs + std::min(num_seqs, num_known + 1));
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice == ids.end()) return;
  fail_with(KVC_E_INVALID_ARGUMENT, *twice,
            "sequence %lld appears twice in seqs: ids must be distinct", ll(*twice));
}

}  // namespace

// ----------------------------------------------------------------------------------------------
// token trees

void Cache::commit_trees(size_t num_seqs, const kvc_seq* seqs, const int32_t* leaves) {
  if (num_seqs == 0) fail(KVC_E_INVALID_ARGUMENT, "n = 0: at least 1 sequence");
  if (seqs == nullptr) fail(KVC_E_INVALID_ARGUMENT, "seqs is NULL with n = %zu", num_seqs);
  if (leaves == nullptr) fail(KVC_E_INVALID_ARGUMENT, "leaves is NULL with n = %zu", num_seqs);
  require_distinct(num_seqs, seqs, sequences_.size());
  std::vector<Sequence*> accepted;
  accepted.reserve(std::min(num_seqs, sequences_.size() + 1));
  for (size_t i = 0; i < num_seqs; ++i) {
    Sequence& sequence = sequences_.get_idle(seqs[i], "commit the tree of");
    if (sequence.tree.empty()) {
      fail_with(KVC_E_INVALID_STATE, sequence.id,
                "sequence %lld has no uncommitted token tree (0 nodes)", ll(sequence.id));
    }
    if (leaves[i] < -1 || leaves[i] >= sequence.tree.size()) {
      fail_with(KVC_E_OUT_OF_RANGE, leaves[i],
                "leaves[%zu] = %d out of range: the tree of sequence %lld has %lld nodes", i,
                leaves[i], ll(sequence.id), ll(sequence.tree.size()));
    }
    accepted.push_back(&sequence);
  }
  int64_t num_blocks = 0, num_moves = 0;
  for (Sequence* sequence : accepted) {
    num_moves += sequence->tree.size();
    if (sequence->tree.ids.empty()) continue;
    const int64_t most = sequence->tree.size(), block_tokens = index_.block_tokens();
    sequence->history.reserve(most, index_.block_tokens());
    num_blocks += (sequence->length + most) / block_tokens - sequence->length / block_tokens;
  }
  if (num_blocks != 0) index_.reserve(num_blocks + forward_.batch().num_new_blocks());
  std::vector<int64_t> num_kept(num_seqs);
  engine_->prepare_moves(num_moves);
  // All rows move before any page is given back: somebody else's copy may be the next to use it.
  for (size_t i = 0; i < num_seqs; ++i) {
    engine_->next_sequence();
    num_kept[i] = move_path(*accepted[i], leaves[i]);
  }
  engine_->finish_moves();
  for (size_t i = 0; i < num_seqs; ++i) keep_path(*accepted[i], num_kept[i]);
}

// Returns the tokens of root -> leaf; entry d of the tree's depths is then the node of depth d.
int64_t Cache::move_path(Sequence& sequence, int32_t leaf) noexcept {
  TokenTree& tree = sequence.tree;
  const int64_t num_kept = leaf < 0 ? 0 : tree.depths[static_cast<size_t>(leaf)] + 1;
  // From the leaf up, parents[] turns into the path: entry d is the node of depth d. A node's depth
  // is at most its index.
  for (int64_t depth = num_kept - 1, node = leaf; depth >= 0; --depth) {
    const int32_t parent = tree.parents[static_cast<size_t>(node)];
    tree.depths[static_cast<size_t>(depth)] = static_cast<int32_t>(node);
    node = parent;
  }
  if (pool_.has_storage()) {
    for (size_t group = 0; group < spec().groups.size(); ++group) {
      if (spec().groups[group].is_cross) continue;
      const PageTable& table = sequence.tables[group];
      // Ascending: a source never lies before its destination, so nothing is overwritten that is
      // still to be moved.
      for (int64_t depth = 0; depth < num_kept; ++depth) {
        const int64_t node = tree.depths[static_cast<size_t>(depth)];
        if (node == depth) continue;
        const int32_t page_size = spec().groups[group].page_size;
        engine_->move_token(static_cast<int32_t>(group),
                            place_of(table, sequence.length + node, page_size),
                            place_of(table, sequence.length + depth, page_size));
      }
    }
  }
  return num_kept;
}

void Cache::keep_path(Sequence& sequence, int64_t num_kept) noexcept {
  TokenTree& tree = sequence.tree;
  TokenHistory& history = sequence.history;
  const bool is_known = static_cast<int64_t>(tree.ids.size()) == tree.size() &&
                        history.num_known == sequence.length && !history.has_diverged;
  if (is_known && num_kept > 0) {
    for (int64_t depth = 0; depth < num_kept; ++depth)
      tree.ids[static_cast<size_t>(depth)] =
          tree.ids[static_cast<size_t>(tree.depths[static_cast<size_t>(depth)])];
    history.add(tree.ids.data(), num_kept, index_.block_tokens());
  }
  for (int64_t depth = 0; depth < num_kept; ++depth) {
    if (!tree.is_unwritten(tree.depths[static_cast<size_t>(depth)])) continue;
    sequence.first_unwritten = std::min(sequence.first_unwritten, sequence.length + depth);
    break;
  }
  tree.truncate(0);
  sequence.length += num_kept;
  sequences_.add_to_total_length(num_kept);
  sequences_.trimmer().truncate(sequence, sequence.length);
  publisher_.publish(sequence);
  sequences_.trimmer().drop_hidden(sequence);
}

// ----------------------------------------------------------------------------------------------
// context shift

bool Cache::can_turn_keys() const {
  return std::none_of(spec().ropes.begin(), spec().ropes.end(), [](const RopeSpec& rope) {
    return rope.mode == KVC_ROPE_ON_APPEND && !rope.long_inverse_frequencies.empty();
  });
}

void Cache::shift(kvc_seq id, int64_t begin, int64_t end, int64_t delta) {
  Sequence& sequence = sequences_.get_settled(id, "shift");
  if (begin < 0 || begin > end || end > sequence.length) {
    fail_with(KVC_E_OUT_OF_RANGE, end,
              "[begin, end) = [%lld, %lld) out of range: sequence %lld has %lld tokens", ll(begin),
              ll(end), ll(id), ll(sequence.length));
  }
  if (states_.is_used()) {
    fail_with(
        KVC_E_UNSUPPORTED, id,
        "shift of sequence %lld: layers of kind STATE (%d) cannot forget tokens in the middle",
        ll(id), KVC_LAYER_STATE);
  }
  const int64_t moved = sequence.length - end;
  const bool closes_gap = delta == begin - end;  // no sum: delta is any number yet
  if (!closes_gap && moved > 0 && (spec().has_windows() || sequence.window != 0)) {
    fail_with(KVC_E_UNSUPPORTED, delta,
              "delta = %lld: with a window or chunk only begin - end = %lld, which leaves no gap, "
              "is supported",
              ll(delta), ll(begin - end));
  }
  for (size_t group = 0; group < sequence.tables.size(); ++group) {
    const PageTable& table = sequence.tables[group];
    if (spec().groups[group].is_cross || table.kept_begin == 0) continue;
    fail_with(
        KVC_E_OUT_OF_RANGE, table.kept_begin,
        "[begin, end) = [%lld, %lld): a window of sequence %lld has dropped tokens before %lld",
        ll(begin), ll(end), ll(id), ll(table.kept_begin));
  }
  if (moved > 0) {
    const int64_t first = sequence.position_of(end),
                  last = sequence.position_of(sequence.length - 1);
    const int64_t least = begin == 0 ? 0 : sequence.position_of(begin - 1) + 1;
    if (delta < least - first || delta >= kMaxSequenceLength - last) {
      fail_with(
          KVC_E_OUT_OF_RANGE, delta,
          "delta = %lld would move token %lld from position %lld: at least to %lld, the last token "
          "below %lld",
          ll(delta), ll(end), ll(first), ll(least), ll(kMaxSequenceLength));
    }
    for (size_t layer = 0; delta != 0 && layer < spec().layers.size(); ++layer) {
      const int32_t rope = spec().layers[layer].rope;
      if (rope >= 0 && spec().ropes[static_cast<size_t>(rope)].mode == KVC_ROPE_ON_APPEND)
        require_plain(static_cast<int32_t>(layer), "kvc_seq_shift of rotated K");
    }
    if (delta != 0 && !can_turn_keys()) {
      fail_with(KVC_E_UNSUPPORTED, delta,
                "delta = %lld: K rotated on append by LONGROPE (%d) does not say which factors it "
                "was turned by",
                ll(delta), KVC_ROPE_SCALING_LONGROPE);
    }
  }
  if (begin == end && (delta == 0 || moved == 0)) return;

  // What is written must be the sequence's own: all moved tokens where rows move or K turns. Whole
  // pages may move as they are.
  std::vector<uint8_t> rewritten(spec().groups.size(), 0), whole(spec().groups.size(), 0);
  for (size_t group = 0; group < spec().groups.size(); ++group) {
    if (spec().groups[group].is_cross || moved == 0) continue;
    const std::vector<int32_t>& layers = spec().groups[group].layers;
    const bool turns =
        delta != 0 && std::any_of(layers.begin(), layers.end(), [&](int32_t layer) {
          const int32_t rope = spec().layers[static_cast<size_t>(layer)].rope;
          return rope >= 0 && spec().ropes[static_cast<size_t>(rope)].mode == KVC_ROPE_ON_APPEND;
        });
    const bool is_whole = moves_whole_pages(group, begin, end);
    // Whole pages keep their tokens' places, which end begins; the others are rewritten from begin
    // on.
    (is_whole ? whole : rewritten)[group] = (begin != end && !is_whole) || turns ? 1 : 0;
  }
  std::vector<PositionSegment> segments;
  segments.reserve(sequence.segments.size() + 2);
  for (const PositionSegment& segment : sequence.segments) {
    if (segment.begin < begin) segments.push_back(segment);
  }
  if (moved > 0) {
    // Segments behind the gap keep their distances: index falls by end - begin, position grows by
    // delta.
    const int64_t change = delta + (end - begin);
    const int64_t offset = sequence.position_of(end) - end + change;
    if (offset != (segments.empty() ? 0 : segments.back().offset))
      segments.push_back({begin, offset});
    for (const PositionSegment& segment : sequence.segments) {
      if (segment.begin > end)
        segments.push_back({segment.begin - (end - begin), segment.offset + change});
    }
  }
  const int64_t rest = sequence.length - (end - begin);
  SharedPages shared = count_shared_pages(sequence, end, sequence.length, whole);
  shared += count_shared_pages(sequence, begin, rest, rewritten);
  const bool forget_cached = require_private_pages(sequence, shared);
  engine_->prepare_moves(moved);
  std::vector<PageCopy> copies = prepare_private(shared, forget_cached);
  take_private(sequence, end, sequence.length, whole, forget_cached, copies);
  take_private(sequence, begin, rest, rewritten, forget_cached, copies);
  copy_private(copies);
  sequence.history.diverge();
  if (begin != end) close_gap(sequence, begin, end);
  if (moved > 0 && delta != 0) turn_keys(sequence, begin, delta);
  engine_->finish_moves();
  sequence.segments = std::move(segments);
  if (sequence.length == 0 && sequence.window == 0) sequence.history.has_diverged = false;
}

// Dropping [begin, end) leaves every page of the group as it is, but for those that go.
bool Cache::moves_whole_pages(size_t group, int64_t begin, int64_t end) const {
  const int32_t page_size = spec().groups[group].page_size;
  return begin % page_size == 0 && end % page_size == 0;
}

// Tokens [end, length) follow token begin - 1 afterwards.
void Cache::close_gap(Sequence& sequence, int64_t begin, int64_t end) noexcept {
  sequence.invalidate_tables();
  for (size_t group = 0; group < spec().groups.size(); ++group) {
    if (spec().groups[group].is_cross) continue;
    PageTable& table = sequence.tables[group];
    const int32_t page_size = spec().groups[group].page_size;
    table.synced_pages = std::min(table.synced_pages, begin / page_size);
    table.owns_last = false;
    if (moves_whole_pages(group, begin, end)) {
      // The dropped pages go behind the others, from where truncate releases them.
      const auto first = table.pages.begin() + begin / page_size;
      std::rotate(first, table.pages.begin() + end / page_size, table.pages.end());
      continue;
    }
    if (!pool_.has_storage()) continue;
    for (int64_t token = end; token < sequence.length; ++token) {
      engine_->move_token(static_cast<int32_t>(group), place_of(table, token, page_size),
                          place_of(table, token - (end - begin), page_size));
    }
  }
  sequence.length -= end - begin;
  // Which tokens behind `begin` were written is not known one by one.
  if (sequence.first_unwritten > begin && sequence.first_unwritten != kAllWritten)
    sequence.first_unwritten = std::max(begin, sequence.first_unwritten - (end - begin));
  sequence.cut_unwritten(sequence.length);
  sequences_.add_to_total_length(begin - end);
  sequences_.trimmer().truncate(sequence, sequence.length);
}

// K that is stored rotated turns by `delta` from token `begin` on.
void Cache::turn_keys(Sequence& sequence, int64_t begin, int64_t delta) noexcept {
  if (!pool_.has_storage()) return;
  float cosines[kMaxLatentDim / 2], sines[kMaxLatentDim / 2];
  for (size_t group = 0; group < spec().groups.size(); ++group) {
    if (spec().groups[group].is_cross) continue;
    for (const int32_t local : spec().groups[group].layers) {
      const LayerSpec& layer = spec().layers[static_cast<size_t>(local)];
      if (layer.rope < 0 ||
          spec().ropes[static_cast<size_t>(layer.rope)].mode != KVC_ROPE_ON_APPEND)
        continue;
      kernels::Rotation angles = shift_rotation(spec().ropes[static_cast<size_t>(layer.rope)],
                                                false, delta, cosines, sines);
      angles.begin = layer.rotation_begin();
      engine_->turn_keys(local, angles, sequence.tables[group], begin, sequence.length);
    }
  }
}

}  // namespace kvc
