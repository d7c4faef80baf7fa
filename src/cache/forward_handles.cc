#include "src/cache/forward_handles.h"

#include <algorithm>
#include <atomic>
#include <memory>
#include <mutex>

#include "src/base/error.h"
#include "src/base/process_mutex.h"

namespace kvc {

struct ForwardEntry {
  std::atomic<uint64_t> open{0};  // Handle that is open; 0: none.
  std::atomic<Cache*> cache{nullptr};
  uint64_t count = 0;  // Forwards so far.
  uint64_t index = 0;  // Place in the table.
  ForwardEntry* next_unused = nullptr;
};

namespace {

// A handle is bit 51, then 35 bits of the entry's count, then 16 bits of its index: exact in a
// double, where some runtimes keep pointers. Bit 51 keeps it apart from the addresses of a process,
// which have 47 bits, for whoever looks at pointers (Go's collector does).
constexpr int kIndexBits = 16, kCountBits = 35;
constexpr uint64_t kHandleBit = uint64_t{1} << (kIndexBits + kCountBits);
constexpr uint64_t kMaxCount = (uint64_t{1} << kCountBits) - 1;
constexpr uint64_t kMaxEntries = uint64_t{1} << kIndexBits;
constexpr uint64_t kChunk = 256;  // Entries.
static_assert(sizeof(void*) == sizeof(uint64_t), "a handle has 64 bits");

// Chunks stay where they are until the process ends: lookups take no lock.
struct Table {
  ForwardEntry first[kChunk];  // Most processes need no others.
  std::atomic<ForwardEntry*> chunks[kMaxEntries / kChunk];
  ProcessMutex mutex{AtFork::kWaits};
  uint64_t num_made = 0;
  ForwardEntry* unused = nullptr;
};
constinit Table table;

ForwardEntry* entry_at(uint64_t index) noexcept {
  if (index < kChunk) return &table.first[index];
  ForwardEntry* chunk = table.chunks[index / kChunk].load(std::memory_order_acquire);
  return chunk == nullptr ? nullptr : chunk + index % kChunk;
}

// The caller holds the lock.
ForwardEntry* make_entry() {
  const uint64_t index = table.num_made;
  if (index == kMaxEntries) {
    fail_with(KVC_E_NO_MEMORY, static_cast<int64_t>(kMaxEntries),
              "%llu caches exist in this process: at most %llu",
              static_cast<unsigned long long>(index), static_cast<unsigned long long>(kMaxEntries));
  }
  if (entry_at(index) == nullptr)
    table.chunks[index / kChunk].store(new ForwardEntry[kChunk], std::memory_order_release);
  ForwardEntry* entry = entry_at(index);
  entry->index = index;
  ++table.num_made;
  return entry;
}

// The caller holds the lock.
ForwardEntry* take_entry() {
  ForwardEntry* entry = table.unused;
  if (entry == nullptr) return make_entry();
  table.unused = entry->next_unused;
  return entry;
}

}  // namespace

ForwardHandle::ForwardHandle(Cache* cache, uint64_t counted) {
  const std::lock_guard lock(table.mutex);
  entry_ = take_entry();
  entry_->count = std::max(entry_->count, counted);
  entry_->cache.store(cache, std::memory_order_relaxed);
}

ForwardHandle::~ForwardHandle() {
  close();
  if (entry_->count == kMaxCount) return;
  const std::lock_guard lock(table.mutex);
  entry_->next_unused = table.unused;
  table.unused = entry_;
}

void ForwardHandle::prepare() {
  if (entry_->count != kMaxCount) return;
  const std::lock_guard lock(table.mutex);
  ForwardEntry* next = take_entry();
  next->cache.store(entry_->cache.load(std::memory_order_relaxed), std::memory_order_relaxed);
  entry_ = next;
}

kvc_forward* ForwardHandle::open() noexcept {
  const uint64_t handle = kHandleBit | ++entry_->count << kIndexBits | entry_->index;
  entry_->open.store(handle, std::memory_order_release);
  return reinterpret_cast<kvc_forward*>(static_cast<uintptr_t>(handle));
}

void ForwardHandle::close() noexcept { entry_->open.store(0, std::memory_order_release); }

Cache* ForwardHandle::find(const kvc_forward* handle) noexcept {
  const auto number = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(handle));
  if (number >> (kIndexBits + kCountBits) != 1) return nullptr;
  const ForwardEntry* entry = entry_at(number % kMaxEntries);
  if (entry == nullptr || entry->open.load(std::memory_order_acquire) != number) return nullptr;
  return entry->cache.load(std::memory_order_relaxed);
}

}  // namespace kvc
