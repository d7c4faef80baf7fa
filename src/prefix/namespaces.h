// Namespaces of the index: their first blocks, the bytes that they use, and their quotas.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "src/base/memory.h"
#include "src/prefix/eviction_heap.h"
#include "src/prefix/key_table.h"
#include "src/prefix/keys.h"

namespace kvc {

constexpr int64_t kMaxQuotas = 4096;

struct Namespace {
  BlockKey root;
  NodeId first_child = kNoNode;
  int64_t num_nodes = 0;
  uint64_t used_bytes = 0;  // Device pages and states.
  uint64_t max_bytes = 0;   // 0: no quota.
  // Leaves of a namespace with a quota, in the order in which they make room for its new blocks.
  std::unique_ptr<EvictionHeap> leaves;
  int32_t next_unused = -1;
  bool is_used = false;
};

class Namespaces {
 public:
  // Makes the next `count` calls of add() succeed. Throws std::bad_alloc.
  void reserve(int64_t count);
  Namespace& operator[](int32_t id) { return records_[id]; }
  const Namespace& operator[](int32_t id) const { return records_[id]; }
  int32_t num_made() const { return static_cast<int32_t>(records_.size()); }  // Bound of all ids.
  int64_t num_quotas() const { return num_quotas_; }
  int64_t host_bytes() const {  // Without the heaps of quotas.
    return kvc::host_bytes(records_) + table_.host_bytes();
  }

  int32_t find(const BlockKey& root) const noexcept;  // -1: none.
  bool has_room() const { return unused_ != -1 || records_.size() < records_.capacity(); }
  // The root is new, and has_room() is true.
  int32_t add(const BlockKey& root) noexcept;
  // Forgets a namespace that has neither blocks nor a quota; another one stays.
  void drop_if_empty(int32_t id) noexcept;
  // `leaves` null: the quota ends.
  void set_quota(int32_t id, uint64_t max_bytes, std::unique_ptr<EvictionHeap> leaves) noexcept;

 private:
  std::vector<Namespace> records_;
  KeyTable table_;
  int32_t unused_ = -1;
  int64_t num_used_ = 0;
  int64_t num_quotas_ = 0;
};

}  // namespace kvc
