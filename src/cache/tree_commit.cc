#include "src/cache/tree_commit.h"

#include <algorithm>
#include <vector>

#include "src/base/error.h"
#include "src/sequences/sequences.h"

namespace kvc {
namespace {

std::vector<Sequence*> find_trees(const CacheCore& core, size_t num_seqs, const kvc_seq* seqs,
                                  const int32_t* leaves) {
  std::vector<Sequence*> found;
  found.reserve(std::min(num_seqs, core.sequences.size() + 1));
  for (size_t i = 0; i < num_seqs; ++i) {
    Sequence& sequence = core.sequences.get_idle(seqs[i], "commit the tree of");
    if (sequence.tree.empty()) {
      fail_with(KVC_E_INVALID_STATE, sequence.id,
                "sequence %lld has no uncommitted token tree (0 nodes)", ll(sequence.id));
    }
    if (leaves[i] < -1 || leaves[i] >= sequence.tree.size()) {
      fail_with(KVC_E_OUT_OF_RANGE, leaves[i],
                "leaves[%zu] = %d out of range: the tree of sequence %lld has %lld nodes", i,
                leaves[i], ll(sequence.id), ll(sequence.tree.size()));
    }
    found.push_back(&sequence);
  }
  return found;
}

// Room in the histories and in the index for what the commits may publish.
void reserve_blocks(CacheCore& core, const std::vector<Sequence*>& sequences) {
  const int64_t block_tokens = core.index.block_tokens();
  int64_t num_blocks = 0;
  for (Sequence* sequence : sequences) {
    if (sequence->tree.ids.empty()) continue;
    const int64_t most = sequence->tree.size();
    const BytesRecount recount(core.sequences, *sequence);
    (void)sequence->history.reserve(most, core.index.block_tokens());
    num_blocks += (sequence->length + most) / block_tokens - sequence->length / block_tokens;
  }
  if (num_blocks != 0) core.index.reserve(num_blocks + core.forward.batch().num_new_blocks());
}

// Returns the number of tokens of root -> leaf; entry d of the tree's depths is then the node of
// depth d. Adds a list to the moves of each layer group, which have room.
int64_t move_path(const CacheCore& core, Sequence& sequence, int32_t leaf,
                  std::vector<TokenMoves>& moves) noexcept {
  TokenTree& tree = sequence.tree;
  const int64_t num_kept = leaf < 0 ? 0 : tree.depths[leaf] + 1;
  // A node's depth is at most its index, so that from the leaf up an entry is read before it is
  // written.
  for (int64_t depth = num_kept - 1, node = leaf; depth >= 0; --depth) {
    const int32_t parent = tree.parents[node];
    tree.depths[depth] = static_cast<int32_t>(node);
    node = parent;
  }
  for (size_t group = 0; group < core.spec().groups.size(); ++group) {
    if (core.group(group).is_cross) continue;
    // Nodes are all among the kept tokens or all behind them.
    if (core.group(group).tokens_of(sequence.length + 1) <= sequence.length) continue;
    const PageTable& table = sequence.tables[group];
    const int32_t page_size = core.group(group).page_size;
    moves[group].begin_list();
    // Ascending: a source never lies before its destination, so nothing is overwritten that is
    // still to be moved.
    for (int64_t depth = 0; depth < num_kept; ++depth) {
      const int64_t node = tree.depths[depth];
      if (node == depth) continue;
      moves[group].add(slot_of(table, sequence.length + node, page_size),
                       slot_of(table, sequence.length + depth, page_size));
    }
  }
  return num_kept;
}

void keep_path(CacheCore& core, Sequence& sequence, int64_t num_kept, CallStream stream) noexcept {
  const Recount recount(core.sequences, sequence);
  TokenTree& tree = sequence.tree;
  TokenHistory& history = sequence.history;
  const bool is_known = static_cast<int64_t>(tree.ids.size()) == tree.size() &&
                        history.num_known == sequence.length && !history.has_diverged;
  if (is_known && num_kept > 0) {
    for (int64_t depth = 0; depth < num_kept; ++depth)
      tree.ids[depth] = tree.ids[tree.depths[depth]];
    history.add(tree.ids.data(), num_kept, core.index.block_tokens());
  }
  for (int64_t depth = 0; depth < num_kept; ++depth) {
    if (!tree.is_unwritten(tree.depths[depth])) continue;
    sequence.first_unwritten = std::min(sequence.first_unwritten, sequence.length + depth);
    break;
  }
  tree.truncate(0);
  sequence.length += num_kept;
  core.sequences.trimmer().truncate(sequence, sequence.length);
  core.publisher.publish(sequence, stream);
  core.sequences.trimmer().drop_hidden(sequence);
}

}  // namespace

void commit_trees(CacheCore& core, size_t num_seqs, const kvc_seq* seqs, const int32_t* leaves,
                  CallStream stream) {
  if (num_seqs == 0) fail(KVC_E_INVALID_ARGUMENT, "n = 0: at least 1 sequence");
  if (seqs == nullptr) fail(KVC_E_INVALID_ARGUMENT, "seqs is NULL with n = %zu", num_seqs);
  if (leaves == nullptr) fail(KVC_E_INVALID_ARGUMENT, "leaves is NULL with n = %zu", num_seqs);
  // Of more ids than the cache has sequences, one is unknown or comes twice.
  const size_t num_looked_at = std::min(num_seqs, core.sequences.size() + 1);
  require_distinct({seqs, seqs + num_looked_at});
  const std::vector<Sequence*> sequences = find_trees(core, num_seqs, seqs, leaves);
  reserve_blocks(core, sequences);
  int64_t num_moves = 0;
  for (const Sequence* sequence : sequences) num_moves += sequence->tree.size();
  std::vector<int64_t> num_kept(num_seqs);
  std::vector<TokenMoves> moves(core.spec().groups.size());
  for (TokenMoves& of_group : moves)
    of_group.reserve(num_moves, static_cast<int64_t>(sequences.size()));
  // Nothing throws from here on. All rows move before any page is released: somebody else's copy
  // may be the next to use it.
  for (size_t i = 0; i < num_seqs; ++i)
    num_kept[i] = move_path(core, *sequences[i], leaves[i], moves);
  for (size_t group = 0; core.pool.has_storage() && group < moves.size(); ++group)
    core.device->move_tokens(static_cast<int32_t>(group), moves[group], stream);
  for (size_t i = 0; i < num_seqs; ++i) keep_path(core, *sequences[i], num_kept[i], stream);
}

}  // namespace kvc
