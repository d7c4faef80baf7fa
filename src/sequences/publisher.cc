#include "src/sequences/publisher.h"

#include <algorithm>

#include "src/base/math.h"

namespace kvc {
namespace {

constexpr int64_t kPrefetchedBlocks =
    8;  // Blocks whose cache lines in the index are prefetched ahead.

}  // namespace

// Collects the pages of one block of the sequence. Only windows of layers have dropped pages here,
// because a sequence with a window of its own has no known tokens.
void Publisher::gather(const Sequence& sequence, int64_t block) noexcept {
  for (size_t group = 0; group < spec_->groups.size(); ++group) {
    const int32_t first = blocks().shape.groups[group].first_page;
    const int32_t count = blocks().shape.groups[group].num_pages;
    const int32_t num_here = blocks().shape.groups[group].pages_of(block);
    const PageList& table = sequence.tables[group].pages;
    for (int32_t i = 0; i < count; ++i) {
      pages_[first + i] = i < num_here ? table[block * count + i] : kNoPage;
    }
  }
}

// A sequence that was forked or attached inside a block shares the first pages of the block with
// another one. A block with a key of its own needs copies of them. Returns false when another key
// owns all pages, because the caller gave the same rows two names, or when no page is free.
bool Publisher::make_own(Sequence& sequence, int64_t block, NodeId node,
                         CallStream stream) noexcept {
  int32_t num_shared = 0, num_missing = 0;
  const auto is_shared = [&](int32_t i) {
    const PageId page = pages_[i];
    return page != kNoPage && allocator_->is_indexed(page) &&
           (node == kNoNode || blocks().nodes.place(node, i).device == kNoPage);
  };
  for (int32_t i = 0; i < blocks().shape.pages_per_block; ++i) {
    num_shared += is_shared(i) ? 1 : 0;
    num_missing += pages_[i] == kNoPage ? 1 : 0;
  }
  if (num_shared == 0) return true;
  if (num_shared + num_missing == blocks().shape.pages_per_block) return false;
  index_->eviction().evict_for(num_shared, stream);
  if (allocator_->num_free() < num_shared) return false;
  for (size_t group = 0; group < spec_->groups.size(); ++group) {
    const int32_t first = blocks().shape.groups[group].first_page;
    const int32_t count = blocks().shape.groups[group].num_pages;
    PageTable& table = sequence.tables[group];
    for (int32_t i = 0; i < count; ++i) {
      if (!is_shared(first + i)) continue;
      const int64_t place = block * count + i;
      const PageId page = table.pages[place];
      const PageId copy = allocator_->take(kNoPage, 0);
      device_->copy_pages(CopyDirection::kInsideDevice, &page, &copy, 1, stream);
      ++num_copies_;
      sequence.invalidate_tables();
      allocator_->drop_ref(page);
      pages_[first + i] = copy;
      table.pages.set(place, copy);
      table.send_from(place);
      table.owns_last = false;
    }
  }
  return true;
}

void Publisher::take_over(Sequence& sequence, int64_t block, NodeId node) noexcept {
  for (size_t group = 0; group < spec_->groups.size(); ++group) {
    const int32_t first = blocks().shape.groups[group].first_page;
    const int32_t count = blocks().shape.groups[group].num_pages;
    PageTable& table = sequence.tables[group];
    for (int32_t i = 0; i < blocks().shape.groups[group].pages_of(block); ++i) {
      const PageId known = blocks().nodes.place(node, first + i).device;
      const int64_t place = block * count + i;
      const PageId own = table.pages[place];
      if (own == kNoPage || known == kNoPage || own == known) continue;
      allocator_->add_ref(known);
      allocator_->drop_ref(own);
      table.pages.set(place, known);
      sequence.invalidate_tables();
      table.send_from(place);
      table.owns_last = false;
    }
  }
}

void Publisher::publish_blocks(Sequence& sequence, CallStream stream) noexcept {
  TokenHistory& history = sequence.history;
  if (history.is_closed) return;
  const int64_t num_blocks = num_publishable(sequence);
  int64_t block = history.num_published;
  // Published blocks may have been evicted since. Goes on behind the last block that is left.
  NodeId node = kNoNode;
  while (block > 0 && (node = blocks().find(history.root, history.keys[block - 1])) == kNoNode)
    --block;
  const bool has_sink = sink_ != nullptr && sink_->is_open();
  size_t checkpoint = 0;
  for (; block < num_blocks; ++block) {
    const BlockKey& key = history.keys[block];
    if (block + kPrefetchedBlocks < num_blocks)
      blocks().prefetch(history.keys[block + kPrefetchedBlocks]);
    gather(sequence, block);
    bool is_own = true;
    if (blocks().shape.has_inner_pages()) {
      is_own = make_own(sequence, block, blocks().find(history.root, key), stream);
      // The copies may have evicted the block before.
      if (block > 0) node = blocks().find(history.root, history.keys[block - 1]);
      is_own = is_own && (block == 0 || node != kNoNode);
    }
    if (!is_own) {
      history.is_closed = true;
      break;
    }
    const int64_t end = (block + 1) * index_->block_tokens();
    while (checkpoint < sequence.checkpoints.size() &&
           sequence.checkpoints[checkpoint].position < end)
      ++checkpoint;
    const bool has_state = checkpoint < sequence.checkpoints.size() &&
                           sequence.checkpoints[checkpoint].position == end;
    const NewBlock made{.key = &key,
                        .parent = node,
                        .root = &history.root,
                        .tokens = history.block_ids(block, index_->block_tokens()),
                        .pages = pages_.data(),
                        .state = has_state ? sequence.checkpoints[checkpoint].slot : kInitialState,
                        .priority = history.priority,
                        .is_followed = true,  // The last one is touched below.
                        .num_plain = history.num_plain(block, index_->block_tokens())};
    const NodeId published = index_->insert(made, stream);
    if (published == kNoNode) {
      history.is_closed = true;
      break;
    }
    node = published;
    if (has_sink && (blocks().is_newest(node) || has_state)) sink_->add(made, stream);
    if (!blocks().is_newest(node)) take_over(sequence, block, node);
  }
  history.num_published = block;
  if (node != kNoNode) index_->touch(node, false, history.priority);
}

int64_t Publisher::num_to_reach(const Sequence& sequence) const noexcept {
  const TokenHistory& history = sequence.history;
  const int64_t num_blocks = num_publishable(sequence);
  if (history.is_closed || num_blocks == 0 ||
      num_blocks * index_->block_tokens() != sequence.length || history.num_published < num_blocks)
    return 0;
  int64_t count = 1;
  while (count < num_blocks &&
         blocks().find(history.root, history.keys[num_blocks - count]) == kNoNode)
    ++count;
  return count;
}

void Publisher::publish_state(Sequence& sequence, CallStream stream) noexcept {
  if (num_to_reach(sequence) == 0) return;
  --sequence.history.num_published;
  publish_blocks(sequence, stream);
}

void Publisher::release(const Sequence& sequence) noexcept {
  const int64_t published = sequence.history.num_published;
  if (published == 0) return;
  const NodeId node = blocks().find(sequence.history.root, sequence.history.keys[published - 1]);
  if (node != kNoNode) index_->touch(node, false, sequence.history.priority);
}

// Calls visit(group, page of the table, node, index of the place), last blocks first, for every
// page in the visible range of a query `reserve` tokens before the end of the match, or later.
template <typename Visit>
void Publisher::visit_places(const PrefixMatch& match, int64_t reserve, Visit&& visit) const {
  const int32_t block_tokens = index_->block_tokens();
  for (size_t g = 0; g < spec_->groups.size(); ++g) {
    const auto group = static_cast<int32_t>(g);
    const int32_t first = blocks().shape.groups[group].first_page,
                  count = blocks().shape.groups[group].num_pages;
    if (count == 0) continue;
    const GroupSpec& spec = spec_->groups[g];
    const int64_t begin =
        first_visible_key(spec, std::max<int64_t>(0, match.num_tokens - reserve)) / spec.page_size;
    int64_t page = spec.pages_for(spec.tokens_of(match.num_tokens));
    NodeId node = match.deepest();
    for (int64_t block = match.num_blocks - (match.tail != kNoNode ? 0 : 1); page > begin;
         --block) {
      for (const int64_t block_begin = block * (block_tokens / spec.page_size);
           page > std::max(begin, block_begin);) {
        --page;
        visit(g, page, node, first + static_cast<int32_t>(page - block_begin));
      }
      node = block == match.num_blocks ? match.last : blocks().nodes[node].parent;
    }
  }
}

void Publisher::list_host_places(const PrefixMatch& match, std::vector<BlockPage>* places) const {
  places->clear();
  if (index_->contents().num_host_pages() == 0) return;
  visit_places(match, 0, [&](size_t, int64_t, NodeId node, int32_t index) {
    if (blocks().nodes.place(node, index).host != kNoPage) places->push_back({node, index});
  });
}

void Publisher::reserve(int64_t num_tokens, Sequence* sequence) const {
  sequence->tables.resize(spec_->groups.size());
  for (size_t g = 0; g < spec_->groups.size(); ++g) {
    if (!spec_->groups[g].is_cross)
      sequence->tables[g].pages.make_room(
          spec_->groups[g].pages_for(spec_->groups[g].tokens_of(num_tokens)));
  }
  if (spec_->has_states()) sequence->checkpoints.reserve(2);
}

// Of what a window keeps for pops, the hit brings what lies on the device behind the last gap.
void Publisher::fill_reserve(const PrefixMatch& match, Sequence* sequence) const noexcept {
  visit_places(match, spec_->window_reserve,
               [&](size_t group, int64_t page, NodeId node, int32_t index) {
                 PageList& pages = sequence->tables[group].pages;
                 if (pages.num_dropped() == page + 1)
                   pages.set(page, blocks().nodes.place(node, index).device);
               });
}

void Publisher::fill(const PrefixMatch& match, Sequence* sequence) const noexcept {
  sequence->length = match.num_tokens;
  for (size_t g = 0; g < spec_->groups.size(); ++g) {
    const GroupSpec& spec = spec_->groups[g];
    if (spec.is_cross) continue;
    sequence->tables[g].pages.assign_dropped(spec.pages_for(spec.tokens_of(match.num_tokens)));
  }
  visit_places(match, 0, [&](size_t group, int64_t page, NodeId node, int32_t index) {
    sequence->tables[group].pages.set(page, blocks().nodes.place(node, index).device);
  });
  if (spec_->window_reserve != 0) fill_reserve(match, sequence);
  for (size_t g = 0; g < spec_->groups.size(); ++g) {
    PageTable& table = sequence->tables[g];
    table.kept_begin = table.pages.num_dropped() * spec_->groups[g].page_size;
    table.close_up(spec_->groups[g].page_size);
  }
  if (match.last != kNoNode && spec_->has_states()) {
    sequence->state = blocks().nodes[match.last].state;
    sequence->checkpoints.push_back({match.num_tokens, sequence->state, true});
  }
}

}  // namespace kvc
