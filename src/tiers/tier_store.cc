#include "src/tiers/tier_store.h"

#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstring>
#include <utility>

#include "src/base/log.h"
#include "src/base/math.h"
#include "src/base/thread.h"

namespace kvc {

bool Breaker::allows() noexcept {
  const std::lock_guard lock(mutex_);
  return failures_ < kFailures || std::chrono::steady_clock::now() >= closed_until_;
}

void Breaker::succeeded() noexcept {
  const std::lock_guard lock(mutex_);
  if (failures_ == 0) return;
  failures_ = 0;
  pause_ = std::chrono::seconds(0);
  log(KVC_LOG_INFO, "%s tier: %s work again", tier_, what_);
}

void Breaker::failed(const TierFailure& failure) noexcept {
  const std::lock_guard lock(mutex_);
  if (failures_++ == 0) log(KVC_LOG_WARNING, "%s tier: %s: %s", tier_, what_, failure.text);
  if (failures_ < kFailures) return;
  pause_ = std::clamp(pause_ * 2, kFirst, kLongest);
  closed_until_ = std::chrono::steady_clock::now() + pause_;
  log(KVC_LOG_WARNING, "%s tier: no %s for %lld s: %s", tier_, what_,
      static_cast<long long>(pause_.count()), failure.text);
}

PutQueue::PutQueue(size_t value_bytes, uint64_t bytes, Writer writer)
    : slot_bytes_(static_cast<size_t>(align_up(static_cast<int64_t>(value_bytes), 4096))),
      num_slots_(std::max<size_t>(2, bytes / slot_bytes_)),
      writer_(std::move(writer)),
      owner_(getpid()),
      memory_(static_cast<int64_t>(slot_bytes_ * num_slots_)),
      ring_(num_slots_) {
  memory_.make_usable(0, memory_.bytes());
  thread_ = start_thread("kvc-tier-write", [this] { work(); });
}

bool PutQueue::is_owner() const noexcept { return owner_ == getpid(); }

PutQueue::~PutQueue() {
  if (!is_owner()) {
    thread_.detach();
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    stops_ = true;
  }
  changed_.notify_all();
  thread_.join();
}

std::byte* PutQueue::take() noexcept {
  if (!is_owner()) return nullptr;
  const std::lock_guard lock(mutex_);
  return end_ - begin_ == num_slots_ ? nullptr : slot(end_ % num_slots_);
}

void PutQueue::push(const TierKey& key, size_t size, bool replaces) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const size_t index = end_ % num_slots_;
    ring_[index] = {key, slot(index), size, replaces, TierResult::kFailed};
    bytes_ += size;
    ++end_;
  }
  changed_.notify_all();
}

bool PutQueue::wait(TierTime deadline) noexcept {
  if (!is_owner()) return true;
  std::unique_lock lock(mutex_);
  const uint64_t last = end_;
  return changed_.wait_until(lock, deadline, [&] { return begin_ >= last; });
}

uint64_t PutQueue::waiting_bytes() const noexcept {
  const std::lock_guard lock(mutex_);
  return bytes_;
}

// Waits while more comes: a tier writes many values at once faster than one by one.
void PutQueue::gather(std::unique_lock<std::mutex>& lock) noexcept {
  constexpr std::chrono::milliseconds kPause{2};
  for (uint64_t seen = 0; seen != end_ && end_ - begin_ < num_slots_ / 2;) {
    seen = end_;
    changed_.wait_for(lock, kPause, [&] { return stops_ || end_ - begin_ >= num_slots_ / 2; });
    if (stops_) return;
  }
}

void PutQueue::work() noexcept {
  std::unique_lock lock(mutex_);
  for (;;) {
    changed_.wait(lock, [&] { return stops_ || begin_ != end_; });
    if (begin_ == end_) return;
    gather(lock);
    const size_t first = begin_ % num_slots_;
    // At most half: the other half goes on filling.
    const size_t most = std::min(std::max<size_t>(1, num_slots_ / 2), num_slots_ - first);
    const size_t count = std::min(static_cast<size_t>(end_ - begin_), most);
    lock.unlock();
    writer_({ring_.data() + first, count});
    lock.lock();
    for (size_t i = 0; i < count; ++i) bytes_ -= ring_[first + i].size;
    begin_ += count;
    changed_.notify_all();
  }
}

namespace {

constexpr size_t kKnown = size_t{1} << 16;
// A read may take this long per MiB beside get_ms: the pace of a slow disk.
constexpr std::chrono::milliseconds kPerMebibyte{8};

uint64_t word_of(const TierKey& key, size_t offset) noexcept {
  uint64_t word;
  std::memcpy(&word, key.data() + offset, sizeof word);
  return word;
}

}  // namespace

TierStore::TierStore(std::unique_ptr<Tier> tier, const char* name, const ValueShape& shape,
                     uint64_t queue_bytes, int32_t get_ms)
    : tier_(std::move(tier)),
      shape_(&shape),
      get_ms_(get_ms),
      puts_breaker_(name, "writes"),
      gets_breaker_(name, "reads"),
      known_(std::make_unique<std::atomic<uint64_t>[]>(kKnown)),
      queue_(std::make_unique<PutQueue>(shape.most_bytes(), queue_bytes,
                                        [this](std::span<TierPut> puts) { write(puts); })) {}

TierStore::~TierStore() { queue_.reset(); }

int64_t TierStore::host_bytes() const {
  return static_cast<int64_t>(sizeof *this + sizeof *queue_ + kKnown * sizeof known_[0]) +
         queue_->host_bytes();
}

std::atomic<uint64_t>& TierStore::known_at(const TierKey& key) const noexcept {
  return known_[word_of(key, 0) % kKnown];
}

// Never 0.
uint64_t TierStore::tag(const TierKey& key, bool has_state) noexcept {
  return (word_of(key, 8) & ~uint64_t{3}) | (has_state ? 3 : 1);
}

// ---- Puts -------------------------------------------------------------------------------------

std::byte* TierStore::start_put(const TierKey& key, bool has_state) noexcept {
  std::atomic<uint64_t>& known = known_at(key);
  const uint64_t seen = known.load(std::memory_order_relaxed);
  if (seen == tag(key, true) || seen == tag(key, has_state)) return nullptr;
  std::byte* memory = puts_breaker_.allows() ? queue_->take() : nullptr;
  if (memory == nullptr) {
    ++counters_.puts_dropped;
    return nullptr;
  }
  ValueHeadWriter(*shape_, memory).start(key);
  known.store(tag(key, has_state), std::memory_order_relaxed);
  return memory;
}

void TierStore::finish_put(const TierKey& key) noexcept {
  const ValueHead head(*shape_, queue_->take());
  queue_->push(key, shape_->head_bytes() + head.payload_bytes(), head.has_state());
}

void TierStore::fail_put(const TierKey& key) noexcept {
  forget(key);
  ++counters_.puts_failed;
}

// On the queue's thread.
void TierStore::write(std::span<TierPut> puts) noexcept {
  if (!puts_breaker_.allows()) {
    for (const TierPut& put : puts) forget(put.key);
    counters_.puts_dropped += puts.size();
    return;
  }
  for (const TierPut& put : puts)
    ValueHeadWriter(*shape_, put.data).seal(put.data + shape_->head_bytes());
  TierFailure failure;
  tier_->put(puts, &failure);
  bool is_answered = false;
  for (const TierPut& put : puts) {
    if (put.result == TierResult::kOk) {
      ++counters_.puts;
      counters_.bytes_put += put.size;
      is_answered = true;
    } else {
      forget(put.key);
      ++counters_.puts_failed;
    }
  }
  if (is_answered) {
    puts_breaker_.succeeded();
  } else {
    puts_breaker_.failed(failure);
  }
}

// ---- Gets -------------------------------------------------------------------------------------

TierTime TierStore::deadline(uint64_t bytes) const noexcept {
  return std::chrono::steady_clock::now() + std::chrono::milliseconds(get_ms_) +
         kPerMebibyte * static_cast<int64_t>(bytes >> 20);
}

size_t TierStore::find(std::span<const TierKey> keys, std::byte* heads,
                       TierTime deadline) noexcept {
  if (!queue_->is_owner() || !gets_breaker_.allows()) return 0;
  ++counters_.lookups;
  TierFailure failure;
  size_t found = 0;
  const TierResult result =
      tier_->find(keys, shape_->head_bytes(), heads, &found, deadline, &failure);
  if (result == TierResult::kOk) {
    gets_breaker_.succeeded();
  } else {
    gets_breaker_.failed(failure);
    ++(result == TierResult::kTimeout ? counters_.gets_timed_out : counters_.gets_failed);
  }
  for (size_t i = 0; i < found; ++i) {
    const ValueHead head(*shape_, heads + i * shape_->head_bytes());
    if (head.is_of(keys[i])) {
      known_at(keys[i]).store(tag(keys[i], head.has_state()), std::memory_order_relaxed);
    } else {
      ++counters_.gets_corrupt;
      found = i;
    }
  }
  // What is known to be there may have been evicted since.
  if (result == TierResult::kOk && found < keys.size()) forget(keys[found]);
  counters_.blocks_found += found;
  return found;
}

void TierStore::get(std::span<TierGet> gets, TierTime deadline) noexcept {
  if (!queue_->is_owner() || !gets_breaker_.allows()) {
    for (TierGet& get : gets) get.result = TierResult::kMiss;
    counters_.gets_missed += gets.size();
    return;
  }
  TierFailure failure;
  tier_->get(gets, deadline, &failure);
  bool is_answered = false;
  for (TierGet& get : gets) {
    const ValueHead head(*shape_, get.data);
    if (get.result == TierResult::kOk &&
        !(head.is_of(get.key) && get.size == shape_->head_bytes() + head.payload_bytes() &&
          head.fits(get.data + shape_->head_bytes()))) {
      get.result = TierResult::kMiss;
      ++counters_.gets_corrupt;
      log(KVC_LOG_WARNING, "a tier: the value of a block is damaged");
      forget(get.key);
      is_answered = true;
      continue;
    }
    switch (get.result) {
      case TierResult::kOk:
        ++counters_.gets;
        counters_.bytes_got += get.size;
        break;
      case TierResult::kMiss: ++counters_.gets_missed; break;
      case TierResult::kFailed: ++counters_.gets_failed; break;
      case TierResult::kTimeout: ++counters_.gets_timed_out; break;
    }
    is_answered = is_answered || get.result == TierResult::kOk || get.result == TierResult::kMiss;
    if (get.result != TierResult::kOk) forget(get.key);
  }
  if (is_answered) {
    gets_breaker_.succeeded();
  } else {
    gets_breaker_.failed(failure);
  }
}

void TierStore::fill(kvc_tier_stats* stats) const noexcept {
  stats->blocks_put = counters_.puts;
  stats->blocks_dropped = counters_.puts_dropped;
  stats->blocks_put_failed = counters_.puts_failed;
  stats->bytes_put = counters_.bytes_put;
  stats->lookups = counters_.lookups;
  stats->blocks_found = counters_.blocks_found;
  stats->blocks_got = counters_.gets;
  stats->blocks_missed = counters_.gets_missed;
  stats->blocks_corrupt = counters_.gets_corrupt;
  stats->blocks_timed_out = counters_.gets_timed_out;
  stats->blocks_failed = counters_.gets_failed;
  stats->bytes_got = counters_.bytes_got;
  stats->waiting_bytes = queue_->waiting_bytes();
  stats->stored_bytes = tier_->stored_bytes();
}

}  // namespace kvc
