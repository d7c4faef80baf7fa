// How much of a query every group can serve.
#include <algorithm>
#include <array>

#include "src/prefix/index.h"

namespace kvc {
namespace {

constexpr int64_t kLookahead =
    12;  // blocks whose keys are computed, and whose places in memory are asked for, ahead
constexpr size_t kNumTags = 16;  // more than kLookahead
constexpr int kMaxTailCandidates = 64;

}  // namespace

// Walks the blocks of a query once. A position can be a hit's end when no group lacks a page
// between the first key that the query there sees and the position; what is lacking further before
// does not matter, so the last gap of each group is all there is to remember.
class PrefixIndex::Matcher {
 public:
  Matcher(const PrefixIndex& index, KeyChain& chain, int64_t max_tokens, const HostPages& host)
      : index_(index),
        chain_(chain),
        space_(index.spaces_.find(chain.query().root)),
        max_tokens_(std::min(max_tokens, chain.query().num_tokens)),
        host_(host),
        gap_ends_(index.has_windows() ? index.groups_.size() : 0, 0) {}

  PrefixMatch run(bool whole_blocks) {
    walk();
    if (!whole_blocks && !index_.has_states_ && max_tokens_ > match_.num_tokens) find_tail();
    return match_;
  }

 private:
  bool is_present(NodeId node, int32_t page) const {
    const PagePlace place = index_.nodes_.place(node, page);
    return place.device != kNoPage || (place.host != kNoPage && counts(node, page));
  }
  // A page that lies on the host.
  bool counts(NodeId node, int32_t page) const {
    return host_.all ||
           (host_.some != nullptr &&
            std::binary_search(host_.some->begin(), host_.some->end(), BlockPage{node, page}));
  }
  bool has_full_pages(NodeId node) const {
    const Node& record = index_.nodes_[node];
    if (record.full_device == index_.full_pages_) return true;
    if (record.full_device + record.full_host != index_.full_pages_) return false;
    if (host_.all || host_.some == nullptr) return host_.all;
    for (const Group& group : index_.groups_) {
      if (group.piece >= 0) continue;
      for (int32_t i = group.first_page; i < group.first_page + group.num_pages; ++i) {
        if (!is_present(node, i)) return false;
      }
    }
    return true;
  }

  // The tag of a block's key is computed when the block comes within sight, and serves until the
  // walk reaches it.
  uint32_t& tag(int64_t block) { return tags_[static_cast<size_t>(block) % kNumTags]; }
  void prefetch(int64_t block, int64_t num_blocks) {
    const bool is_far = block + kLookahead < num_blocks;
    const int64_t last =
        is_far ? block + kLookahead : std::min(block + kLookahead / 2, num_blocks - 1);
    for (; num_tags_ <= last; ++num_tags_) {
      tag(num_tags_) = index_.table_.tag_of(chain_.key(num_tags_));
      index_.table_.prefetch(tag(num_tags_));
    }
    if (block + kLookahead / 2 < num_blocks) {
      const NodeId guess = index_.table_.guess(tag(block + kLookahead / 2));
      if (guess != kNoNode) index_.nodes_.prefetch(guess);
    }
  }

  void walk() {
    const int64_t num_blocks = std::max<int64_t>(0, max_tokens_) / index_.block_tokens_;
    std::vector<int64_t> gap_ends = gap_ends_;
    NodeId last = kNoNode;
    for (int64_t block = 0; block < num_blocks; ++block) {
      prefetch(block, num_blocks);
      const NodeId node = index_.find_in(space_, chain_.key(block), tag(block));
      if (node == kNoNode || !follows(node, last)) break;
      const Node& record = index_.nodes_[node];
      if (!has_full_pages(node)) break;
      last = node;
      bool is_end = !index_.has_states_ || record.state != kInitialState;
      if (!gap_ends.empty()) {
        note_gaps(node, &gap_ends);
        is_end = is_end && sees_no_gap((block + 1) * index_.block_tokens_, gap_ends);
      }
      if (!is_end) continue;
      match_.last = node;
      match_.num_blocks = block + 1;
      gap_ends_ = gap_ends;
    }
    match_.num_tokens = match_.num_blocks * index_.block_tokens_;
  }

  // Keys that a caller has computed might be those of two chains.
  bool follows(NodeId node, NodeId last) const { return index_.nodes_[node].parent == last; }

  void note_gaps(NodeId node, std::vector<int64_t>* gap_ends) const {
    const int64_t begin = (int64_t{index_.nodes_[node].depth} - 1) * index_.block_tokens_;
    for (size_t g = 0; g < index_.groups_.size(); ++g) {
      const Group& group = index_.groups_[g];
      if (group.piece < 0) continue;
      for (int32_t i = group.num_pages; i-- > 0;) {
        if (is_present(node, group.first_page + i)) continue;
        (*gap_ends)[g] = begin + int64_t{i + 1} * group.page_size;
        break;
      }
    }
  }

  bool sees_no_gap(int64_t position, const std::vector<int64_t>& gap_ends) const {
    for (size_t g = 0; g < index_.groups_.size(); ++g) {
      const Group& group = index_.groups_[g];
      if (group.piece >= 0 && first_visible_key(*group.spec, position) < gap_ends[g]) return false;
    }
    return true;
  }

  // ----------------------------------------------------------------------------------------------
  // inside a block

  void find_tail() {
    const int64_t begin = match_.num_tokens;
    const int64_t limit = std::min<int64_t>(index_.block_tokens_, max_tokens_ - begin);
    find_own_tail(limit);
    if (chain_.query().tokens == nullptr || match_.tail_tokens == limit) return;
    NodeId child =
        match_.last != kNoNode ? index_.nodes_[match_.last].first_child : first_of_namespace();
    for (int i = 0; i < kMaxTailCandidates && child != kNoNode; ++i) {
      consider(child, common_tokens(child, limit));
      child = index_.nodes_[child].next;
    }
  }

  NodeId first_of_namespace() const {
    return space_ == -1 ? kNoNode : index_.spaces_[space_].first_child;
  }

  // The query's own block, which the limit or a gap has cut: its tokens are those of the query
  // whether their ids are known or not.
  void find_own_tail(int64_t limit) {
    if (match_.num_blocks >= chain_.num_blocks()) return;
    const NodeId node = index_.find_in(space_, chain_.key(match_.num_blocks));
    if (node != kNoNode && follows(node, match_.last)) consider(node, limit);
  }

  // Leading tokens of the child that are the query's, with the same extra keys.
  int64_t common_tokens(NodeId child, int64_t limit) const {
    const Node& record = index_.nodes_[child];
    if (!record.has_tokens) return 0;
    const int32_t* wanted = chain_.tokens(match_.num_blocks);
    const int32_t* held = index_.nodes_.tokens(child);
    const int64_t common = std::mismatch(wanted, wanted + limit, held).first - wanted;
    if (common <= match_.tail_tokens) return 0;
    // Which extra keys the child has is known by its key alone: none, or those of the query.
    const std::vector<ExtraKey>& extra = chain_.query().extra;
    const BlockKey& parent = index_.parent_key(record);
    const int64_t begin = match_.num_blocks * index_.block_tokens_;
    const auto first = std::find_if(extra.begin(), extra.end(),
                                    [begin](const ExtraKey& key) { return key.offset >= begin; });
    if (block_key(parent, {}, begin, held, index_.block_tokens_) == record.key)
      return first == extra.end() ? common : std::min(common, first->offset - begin);
    return block_key(parent, extra, begin, held, index_.block_tokens_) == record.key ? common : 0;
  }

  // Keeps the child when more of its first `tokens` tokens can be served than of the best one so
  // far.
  void consider(NodeId child, int64_t tokens) {
    tokens = served_tokens(child, tokens);
    if (tokens <= match_.tail_tokens) return;
    match_.tail = child;
    match_.num_tokens += tokens - match_.tail_tokens;
    match_.tail_tokens = tokens;
  }

  // The most of the first `tokens` tokens of the child that every group can serve.
  int64_t served_tokens(NodeId child, int64_t tokens) const {
    bool is_served = false;
    while (tokens > 0 && !is_served) {
      is_served = true;
      for (size_t g = 0; g < index_.groups_.size(); ++g) {
        const int64_t served = served_by_group(child, g, tokens);
        if (served == tokens) continue;
        tokens = served;
        is_served = false;
      }
    }
    return tokens;
  }

  // The same of one group, or a bound that is nearer.
  int64_t served_by_group(NodeId child, size_t g, int64_t tokens) const {
    const Group& group = index_.groups_[g];
    const int64_t begin = match_.num_blocks * index_.block_tokens_;
    int64_t seen = group.piece < 0 ? begin : first_visible_key(*group.spec, begin + tokens);
    if (group.piece >= 0 && seen < gap_ends_[g]) return 0;  // and less shows even more
    seen = std::max(seen, begin) - begin;
    for (int64_t page = seen / std::max(1, group.page_size); page < group.num_pages; ++page) {
      if (page * group.page_size >= tokens) break;
      if (!is_present(child, group.first_page + static_cast<int32_t>(page)))
        return page * group.page_size;
    }
    return tokens;
  }

  const PrefixIndex& index_;
  KeyChain& chain_;
  int32_t space_;  // Namespace of the query; -1: it holds nothing.
  int64_t max_tokens_;
  HostPages host_;
  std::array<uint32_t, kNumTags> tags_;
  int64_t num_tags_ = 0;  // Leading blocks whose tags were computed.
  // [group]: end of the last page before the hit's end that it lacks; 0: none
  std::vector<int64_t> gap_ends_;
  PrefixMatch match_;
};

PrefixMatch PrefixIndex::match(KeyChain& chain, int64_t max_tokens, bool whole_blocks,
                               const HostPages& host) const {
  return Matcher(*this, chain, max_tokens, host).run(whole_blocks);
}

}  // namespace kvc
