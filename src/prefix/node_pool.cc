#include "src/prefix/node_pool.h"

#include <algorithm>
#include <cstring>
#include <utility>

namespace kvc {

void NodePool::reserve(int64_t count, bool with_tokens) {
  const size_t wanted = static_cast<size_t>(num_used_ + count);
  if (wanted > capacity_) {
    const size_t capacity = std::max({wanted, capacity_ * 2, size_t{64}});
    nodes_.reserve(capacity);
    places_.reserve(capacity * pages_per_block_);
    capacity_ = capacity;
  }
  if ((!with_tokens && tokens_ == nullptr) || token_capacity_ >= capacity_) return;
  auto tokens = std::make_unique_for_overwrite<int32_t[]>(capacity_ * block_tokens_);
  for (size_t node = 0; node < nodes_.size(); ++node) {
    if (nodes_[node].has_tokens)
      std::memcpy(tokens.get() + node * block_tokens_, tokens_.get() + node * block_tokens_,
                  block_tokens_ * sizeof(int32_t));
  }
  tokens_ = std::move(tokens);
  token_capacity_ = capacity_;
}

void NodePool::set_tokens(NodeId node, const int32_t* tokens) noexcept {
  if (static_cast<size_t>(node) >= token_capacity_) return;
  std::memcpy(tokens_.get() + static_cast<size_t>(node) * block_tokens_, tokens,
              block_tokens_ * sizeof(int32_t));
  nodes_[node].has_tokens = true;
}

NodeId NodePool::take() noexcept {
  NodeId node = unused_;
  if (node != kNoNode) {
    unused_ = nodes_[node].next;
    static constexpr Node kBlank;
    nodes_[node] = kBlank;
  } else {
    node = static_cast<NodeId>(nodes_.size());
    nodes_.emplace_back();
    places_.resize(nodes_.size() * pages_per_block_, -1);
  }
  nodes_[node].is_used = true;
  ++num_used_;
  return node;
}

void NodePool::clear() noexcept {
  nodes_.clear();
  places_.clear();
  unused_ = kNoNode;
  num_used_ = 0;
}

}  // namespace kvc
