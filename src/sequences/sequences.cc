#include "src/sequences/sequences.h"

#include <algorithm>

#include "src/base/error.h"
#include "src/base/math.h"

namespace kvc {
namespace {

long long ll(int64_t value) { return static_cast<long long>(value); }

}  // namespace

Sequence& SequenceTable::get(kvc_seq id) const {
  Sequence* sequence = find(id);
  if (sequence == nullptr)
    fail_with(KVC_E_NOT_FOUND, id, "sequence %lld does not exist: the cache has %zu sequences", ll(id),
              size());
  return *sequence;
}

Sequence& SequenceTable::get_idle(kvc_seq id, const char* action) const {
  Sequence& sequence = get(id);
  if (sequence.in_forward()) {
    fail_with(KVC_E_BUSY, id, "cannot %s sequence %lld: it is entry %d of the open forward", action, ll(id),
              sequence.batch_index);
  }
  return sequence;
}

void SequenceTable::check_new_id(kvc_seq id, const char* name) const {
  if (id < 0)
    fail_with(KVC_E_INVALID_ARGUMENT, id, "%s = %lld is negative: sequence ids are >= 0", name, ll(id));
  if (map_.find(id) != nullptr) {
    fail_with(KVC_E_ALREADY_EXISTS, id, "%s = %lld already exists among the cache's %zu sequences", name,
              ll(id), size());
  }
}

Sequence& SequenceTable::create(kvc_seq id, int64_t num_pages) {
  auto sequence = std::make_unique<Sequence>();
  sequence->id = id;
  sequence->pages.reserve(static_cast<size_t>(num_pages));
  map_.reserve_one();
  if (free_slots_.empty()) {
    slots_.reserve(slots_.size() + 1 > slots_.capacity() ? std::max<size_t>(16, slots_.capacity() * 2)
                                                         : slots_.capacity());
    free_slots_.reserve(slots_.capacity());
    free_slots_.push_back(static_cast<int32_t>(slots_.size()));
    slots_.emplace_back();
  }
  // Nothing throws from here on.
  const int32_t slot = free_slots_.back();
  free_slots_.pop_back();
  sequence->slot = slot;
  Sequence& created = *sequence;
  slots_[static_cast<size_t>(slot)] = std::move(sequence);
  map_.insert(&created);
  return created;
}

void SequenceTable::add(kvc_seq id) {
  check_new_id(id, "seq");
  create(id, 0);
}

void SequenceTable::release_pages(Sequence& sequence, int64_t keep) noexcept {
  while (static_cast<int64_t>(sequence.pages.size()) > keep) {
    allocator_->drop_holder(sequence.pages.back());
    sequence.pages.pop_back();
  }
  sequence.synced_pages = std::min(sequence.synced_pages, keep);
}

void SequenceTable::remove(kvc_seq id) {
  Sequence& sequence = get_idle(id, "remove");
  release_pages(sequence, 0);
  total_length_ -= sequence.length;
  map_.erase(id);
  const int32_t slot = sequence.slot;
  slots_[static_cast<size_t>(slot)].reset();
  free_slots_.push_back(slot);
}

void SequenceTable::fork(kvc_seq parent_id, kvc_seq child_id, int64_t position) {
  const Sequence& parent = get_idle(parent_id, "fork");
  check_new_id(child_id, "child");
  if (position < -1 || position > parent.length) {
    fail_with(KVC_E_OUT_OF_RANGE, position,
              "pos = %lld out of range: sequence %lld has %lld tokens (-1: its end)", ll(position),
              ll(parent_id), ll(parent.length));
  }
  const int64_t length = position == -1 ? parent.length : position;
  const int64_t num_pages = ceil_div(length, page_size_);
  Sequence& child = create(child_id, num_pages);
  for (int64_t i = 0; i < num_pages; ++i) {
    const PageId page = parent.pages[static_cast<size_t>(i)];
    allocator_->add_holder(page);
    child.pages.push_back(page);
  }
  child.length = length;
  total_length_ += length;
}

void SequenceTable::pop(kvc_seq id, int64_t num_tokens) {
  Sequence& sequence = get_idle(id, "pop");
  if (num_tokens < 0 || num_tokens > sequence.length) {
    fail_with(KVC_E_OUT_OF_RANGE, num_tokens, "n = %lld out of range: sequence %lld has %lld tokens",
              ll(num_tokens), ll(id), ll(sequence.length));
  }
  sequence.length -= num_tokens;
  total_length_ -= num_tokens;
  release_pages(sequence, ceil_div(sequence.length, page_size_));
}

void SequenceTable::clear() noexcept {
  map_.clear();
  slots_.clear();
  free_slots_.clear();
  total_length_ = 0;
  allocator_->clear();
}

std::vector<kvc_seq> SequenceTable::sorted_ids() const {
  std::vector<kvc_seq> ids;
  ids.reserve(size());
  map_.for_each([&](const Sequence& sequence) { ids.push_back(sequence.id); });
  std::sort(ids.begin(), ids.end());
  return ids;
}

}  // namespace kvc
