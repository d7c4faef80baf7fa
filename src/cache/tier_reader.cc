#include "src/cache/tier_reader.h"

#include <algorithm>
#include <exception>
#include <utility>

namespace kvc {

TierReader::TierReader(std::vector<TierGet> gets, std::vector<TierStore*> stores,
                       std::vector<AlignedBuffer>* buffers)
    : gets_(std::move(gets)), stores_(std::move(stores)), buffers_(buffers) {
  size_t largest = 0, all = 0;
  for (size_t i = 0; i < gets_.size(); ++i) {
    const bool fits = !batches_.empty() && stores_[i] == stores_[i - 1] &&
                      batches_.back().bytes + gets_[i].size <= kBatchBytes;
    if (!fits) batches_.push_back({i, i, 0});
    batches_.back().end = i + 1;
    batches_.back().bytes += gets_[i].size;
    largest = std::max(largest, batches_.back().bytes);
    all += gets_[i].size;
  }
  if (gets_.empty()) return;
  deadline_ = stores_.front()->deadline(all);
  buffers_->resize(kBatches);
  for (size_t i = 0; i < std::min(kBatches, batches_.size()); ++i) (*buffers_)[i].ensure(largest);
  for (size_t i = 0; i < std::min(kBatches, batches_.size()); ++i) start(i);
}

TierReader::~TierReader() {
  for (std::future<void>& read : reads_) {
    if (read.valid()) read.wait();
  }
}

void TierReader::start(size_t batch) noexcept {
  try {
    reads_[batch % kBatches] = std::async(std::launch::async, [this, batch] { read(batch); });
  } catch (const std::exception&) {
    reads_[batch % kBatches] = {};  // No thread to be had.
  }
}

void TierReader::read(size_t batch) noexcept {
  const Batch& wanted = batches_[batch];
  std::byte* to = (*buffers_)[batch % kBatches].data();
  for (size_t i = wanted.begin; i < wanted.end; ++i) {
    gets_[i].data = to;
    to += gets_[i].size;
  }
  stores_[wanted.begin]->get({gets_.data() + wanted.begin, wanted.end - wanted.begin}, deadline_);
}

const std::byte* TierReader::next() noexcept {
  if (next_ == gets_.size()) return nullptr;
  if (next_ == batches_[batch_].end) {
    if (batch_ + kBatches < batches_.size()) start(batch_ + kBatches);
    ++batch_;
  }
  if (next_ == batches_[batch_].begin) {
    std::future<void>& pending = reads_[batch_ % kBatches];
    if (pending.valid()) {
      pending.get();
    } else {
      read(batch_);
    }
  }
  const TierGet& get = gets_[next_++];
  return get.result == TierResult::kOk ? get.data : nullptr;
}

}  // namespace kvc
