#include "src/prefix/match.h"

#include <algorithm>
#include <array>

namespace kvc {
namespace {

// Keys are computed, and their cache lines prefetched, so many blocks ahead.
constexpr int64_t kLookahead = 12;
constexpr size_t kNumTags = 16;  // More than kLookahead.
constexpr int kMaxTailCandidates = 64;

// Walks the blocks of a query once. A hit can end at a position when no layer group lacks a page of
// the visible range there. Pages before the visible range do not matter, so only the last gap of
// each layer group is remembered.
class Matcher {
 public:
  Matcher(const BlockTree& tree, KeyChain& chain, int64_t max_tokens, const HostPages& host)
      : tree_(tree),
        chain_(chain),
        space_(tree.spaces.find(chain.query().root)),
        max_tokens_(std::min(max_tokens, chain.query().num_tokens)),
        host_(host),
        gap_ends_(tree.shape.num_windows != 0 ? tree.shape.groups.size() : 0, 0) {}

  PrefixMatch run(bool whole_blocks) {
    walk();
    if (!whole_blocks && !tree_.shape.has_states && max_tokens_ > match_.num_tokens) find_tail();
    return match_;
  }

 private:
  bool is_present(NodeId node, int32_t page) const {
    const PagePlace place = tree_.nodes.place(node, page);
    return place.device != kNoPage || (place.host != kNoPage && counts(node, page));
  }
  // The match counts this host page as present.
  bool counts(NodeId node, int32_t page) const {
    return host_.all ||
           (host_.some != nullptr &&
            std::binary_search(host_.some->begin(), host_.some->end(), BlockPage{node, page}));
  }
  bool has_full_pages(NodeId node) const {
    const Node& record = tree_.nodes[node];
    const int64_t block = record.depth - 1;
    const int32_t full_pages = tree_.shape.full_pages_of(block);
    if (record.full_device == full_pages) return true;
    if (record.full_device + record.full_host != full_pages) return false;
    if (host_.all || host_.some == nullptr) return host_.all;
    for (const BlockGroup& group : tree_.shape.groups) {
      if (group.is_windowed()) continue;
      for (int32_t i = 0; i < group.pages_of(block); ++i) {
        if (!is_present(node, group.first_page + i)) return false;
      }
    }
    return true;
  }

  // The tag of a block's key is computed kLookahead blocks ahead and kept until the walk is there.
  uint32_t& tag(int64_t block) { return tags_[static_cast<size_t>(block) % kNumTags]; }
  void prefetch(int64_t block, int64_t num_blocks) {
    const bool is_far = block + kLookahead < num_blocks;
    const int64_t last =
        is_far ? block + kLookahead : std::min(block + kLookahead / 2, num_blocks - 1);
    for (; num_tags_ <= last; ++num_tags_) {
      tag(num_tags_) = tree_.keys.tag_of(chain_.key(num_tags_));
      tree_.keys.prefetch(tag(num_tags_));
    }
    if (block + kLookahead / 2 < num_blocks) {
      const NodeId guess = tree_.keys.guess(tag(block + kLookahead / 2));
      if (guess != kNoNode) tree_.nodes.prefetch(guess);
    }
  }

  void walk() {
    const int64_t num_blocks = std::max<int64_t>(0, max_tokens_) / tree_.shape.block_tokens;
    std::vector<int64_t> gap_ends = gap_ends_;
    NodeId last = kNoNode;
    for (int64_t block = 0; block < num_blocks; ++block) {
      prefetch(block, num_blocks);
      const NodeId node = tree_.find_in(space_, chain_.key(block), tag(block));
      if (node == kNoNode || !follows(node, last)) break;
      const Node& record = tree_.nodes[node];
      if (!has_full_pages(node)) break;
      last = node;
      bool is_end = !tree_.shape.has_states || record.state != kInitialState;
      if (!gap_ends.empty()) {
        note_gaps(node, &gap_ends);
        is_end = is_end && has_no_gap((block + 1) * tree_.shape.block_tokens, gap_ends);
      }
      if (!is_end) continue;
      match_.last = node;
      match_.num_blocks = block + 1;
      gap_ends_ = gap_ends;
    }
    match_.num_tokens = match_.num_blocks * tree_.shape.block_tokens;
  }

  // False for keys of a caller that belong to two chains.
  bool follows(NodeId node, NodeId last) const { return tree_.nodes[node].parent == last; }

  void note_gaps(NodeId node, std::vector<int64_t>* gap_ends) const {
    const int64_t begin = (int64_t{tree_.nodes[node].depth} - 1) * tree_.shape.block_tokens;
    for (size_t g = 0; g < tree_.shape.groups.size(); ++g) {
      const BlockGroup& group = tree_.shape.groups[g];
      if (!group.is_windowed()) continue;
      for (int32_t i = group.num_pages; i-- > 0;) {
        if (is_present(node, group.first_page + i)) continue;
        (*gap_ends)[g] = begin + int64_t{i + 1} * group.page_size;
        break;
      }
    }
  }

  bool has_no_gap(int64_t position, const std::vector<int64_t>& gap_ends) const {
    for (size_t g = 0; g < tree_.shape.groups.size(); ++g) {
      const BlockGroup& group = tree_.shape.groups[g];
      if (group.is_windowed() && first_visible_key(*group.spec, position) < gap_ends[g])
        return false;
    }
    return true;
  }

  // ---- Inside a block ----

  void find_tail() {
    const int64_t begin = match_.num_tokens;
    const int64_t limit = std::min<int64_t>(tree_.shape.block_tokens, max_tokens_ - begin);
    find_own_tail(limit);
    if (chain_.query().tokens == nullptr || match_.tail_tokens == limit) return;
    NodeId child =
        match_.last != kNoNode ? tree_.nodes[match_.last].first_child : first_of_namespace();
    for (int i = 0; i < kMaxTailCandidates && child != kNoNode; ++i) {
      consider(child, common_tokens(child, limit));
      child = tree_.nodes[child].next;
    }
  }

  NodeId first_of_namespace() const {
    return space_ == -1 ? kNoNode : tree_.spaces[space_].first_child;
  }

  // The block of the query itself, cut by the limit or by a gap. Its tokens are those of the query,
  // whether their ids are known or not.
  void find_own_tail(int64_t limit) {
    if (match_.num_blocks >= chain_.num_blocks()) return;
    const BlockKey& key = chain_.key(match_.num_blocks);
    const NodeId node = tree_.find_in(space_, key, tree_.keys.tag_of(key));
    if (node != kNoNode && follows(node, match_.last)) consider(node, limit);
  }

  // How many leading tokens of the child have the rows of the query's: the tokens are equal, and so
  // are the extra keys up to them. Extra keys behind them do not matter.
  int64_t common_tokens(NodeId child, int64_t limit) const {
    const Node& record = tree_.nodes[child];
    if (!record.has_tokens) return 0;
    const int32_t* wanted = chain_.tokens(match_.num_blocks);
    const int32_t* held = tree_.nodes.tokens(child);
    const int64_t common = std::mismatch(wanted, wanted + limit, held).first - wanted;
    if (common <= match_.tail_tokens) return 0;
    const std::vector<ExtraKey>& extra = chain_.query().extra;
    const int64_t begin = match_.num_blocks * tree_.shape.block_tokens;
    const int64_t plain_of_query =
        std::min<int64_t>(tokens_before_extra_keys(extra, begin, tree_.shape.block_tokens), limit);
    const auto has_extra_keys = [&](const std::vector<ExtraKey>& keys) {
      return block_key(tree_.parent_key(record), keys, begin, held, tree_.shape.block_tokens) ==
             record.key;
    };
    int64_t plain = std::min<int64_t>(record.num_plain, plain_of_query);
    if (record.num_plain == kUnknownPlain) plain = has_extra_keys({}) ? plain_of_query : 0;
    if (common <= plain) return common;
    return has_extra_keys(extra) ? common : plain;
  }

  // Keeps the child as the tail when it serves more tokens than the best tail so far.
  void consider(NodeId child, int64_t tokens) {
    tokens = served_tokens(child, tokens);
    if (tokens <= match_.tail_tokens) return;
    match_.tail = child;
    match_.num_tokens += tokens - match_.tail_tokens;
    match_.tail_tokens = tokens;
  }

  // How many of the first `tokens` tokens of the child every layer group can serve.
  int64_t served_tokens(NodeId child, int64_t tokens) const {
    bool is_served = false;
    while (tokens > 0 && !is_served) {
      is_served = true;
      for (size_t g = 0; g < tree_.shape.groups.size(); ++g) {
        const int64_t served = served_by_group(child, g, tokens);
        if (served == tokens) continue;
        tokens = served;
        is_served = false;
      }
    }
    return tokens;
  }

  // The same for one layer group, or a smaller bound for the next look.
  int64_t served_by_group(NodeId child, size_t g, int64_t tokens) const {
    const BlockGroup& group = tree_.shape.groups[g];
    const int64_t begin = match_.num_blocks * tree_.shape.block_tokens;
    int64_t first = !group.is_windowed() ? begin : first_visible_key(*group.spec, begin + tokens);
    if (group.is_windowed() && first < gap_ends_[g]) return 0;  // Fewer tokens see even more.
    first = std::max(first, begin) - begin;
    const int32_t num_pages = group.pages_of(match_.num_blocks);
    for (int64_t page = first / std::max(1, group.page_size); page < num_pages; ++page) {
      if (page * group.page_size >= tokens) break;
      if (!is_present(child, group.first_page + static_cast<int32_t>(page)))
        return page * group.page_size;
    }
    return tokens;
  }

  const BlockTree& tree_;
  KeyChain& chain_;
  int32_t space_;  // Namespace of the query; -1: it holds nothing.
  int64_t max_tokens_;
  HostPages host_;
  std::array<uint32_t, kNumTags> tags_;
  int64_t num_tags_ = 0;  // Leading blocks with a tag.
  // [layer group]: end of the last page that it lacks before the end of the hit; 0: none.
  std::vector<int64_t> gap_ends_;
  PrefixMatch match_;
};

}  // namespace

PrefixMatch find_match(const BlockTree& tree, KeyChain& chain, int64_t max_tokens,
                       bool whole_blocks, const HostPages& host) {
  return Matcher(tree, chain, max_tokens, host).run(whole_blocks);
}

}  // namespace kvc
