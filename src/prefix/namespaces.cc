#include "src/prefix/namespaces.h"

#include <algorithm>
#include <utility>

namespace kvc {

void Namespaces::reserve(int64_t count) {
  const size_t wanted = static_cast<size_t>(num_used_ + count);
  table_.reserve(static_cast<int64_t>(wanted));
  if (wanted > records_.capacity()) records_.reserve(std::max(wanted, records_.capacity() * 2));
}

int32_t Namespaces::find(const BlockKey& root) const noexcept {
  return table_.find(root, [&](int32_t id) { return (*this)[id].root == root; });
}

int32_t Namespaces::add(const BlockKey& root) noexcept {
  int32_t id = unused_;
  if (id != -1) {
    unused_ = (*this)[id].next_unused;
    (*this)[id] = Namespace();
  } else {
    id = static_cast<int32_t>(records_.size());
    records_.emplace_back();
  }
  (*this)[id].root = root;
  (*this)[id].is_used = true;
  table_.insert(root, id);
  ++num_used_;
  return id;
}

void Namespaces::drop_if_empty(int32_t id) noexcept {
  Namespace& record = (*this)[id];
  if (record.num_nodes != 0 || record.max_bytes != 0) return;
  table_.erase(record.root, id);
  record.is_used = false;
  record.next_unused = unused_;
  unused_ = id;
  --num_used_;
}

void Namespaces::set_quota(int32_t id, uint64_t max_bytes,
                           std::unique_ptr<EvictionHeap> leaves) noexcept {
  Namespace& record = (*this)[id];
  num_quotas_ += (max_bytes != 0) - (record.max_bytes != 0);
  record.max_bytes = max_bytes;
  record.leaves = std::move(leaves);
}

}  // namespace kvc
