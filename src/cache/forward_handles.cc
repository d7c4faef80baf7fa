#include "src/cache/forward_handles.h"

#include <atomic>
#include <memory>
#include <mutex>

#include "src/base/error.h"

namespace kvc {

struct ForwardEntry {
  std::atomic<uint64_t> open{0};  // Handle that is open; 0: none.
  std::atomic<Cache*> cache{nullptr};
  uint64_t count = 0;  // Forwards so far.
  uint64_t index = 0;  // Place in the table.
  ForwardEntry* next_unused = nullptr;
};

namespace {

// A handle is bit 63, then 47 bits of the entry's count, then 16 bits of its index. Bit 63 keeps it
// apart from the addresses of a process, for whoever looks at pointers (Go's collector does).
constexpr int kIndexBits = 16;
constexpr uint64_t kHandleBit = uint64_t{1} << 63;
constexpr uint64_t kMaxEntries = uint64_t{1} << kIndexBits;
constexpr uint64_t kChunk = 256;  // Entries.
static_assert(sizeof(void*) == sizeof(uint64_t), "a handle has 64 bits");

// Chunks stay where they are until the process ends: lookups take no lock.
struct Table {
  ForwardEntry first[kChunk];  // Most processes need no others.
  std::atomic<ForwardEntry*> chunks[kMaxEntries / kChunk];
  std::mutex mutex;
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

}  // namespace

ForwardHandle::ForwardHandle(Cache* cache) {
  const std::lock_guard<std::mutex> lock(table.mutex);
  entry_ = table.unused;
  if (entry_ == nullptr) {
    entry_ = make_entry();
  } else {
    table.unused = entry_->next_unused;
  }
  entry_->cache.store(cache, std::memory_order_relaxed);
}

ForwardHandle::~ForwardHandle() {
  close();
  const std::lock_guard<std::mutex> lock(table.mutex);
  entry_->next_unused = table.unused;
  table.unused = entry_;
}

kvc_forward* ForwardHandle::open() noexcept {
  const uint64_t handle = kHandleBit | ++entry_->count << kIndexBits | entry_->index;
  entry_->open.store(handle, std::memory_order_release);
  return reinterpret_cast<kvc_forward*>(static_cast<uintptr_t>(handle));
}

void ForwardHandle::close() noexcept { entry_->open.store(0, std::memory_order_release); }

Cache* ForwardHandle::find(const kvc_forward* handle) noexcept {
  const auto number = static_cast<uint64_t>(reinterpret_cast<uintptr_t>(handle));
  if ((number & kHandleBit) == 0) return nullptr;
  const ForwardEntry* entry = entry_at(number % kMaxEntries);
  if (entry == nullptr || entry->open.load(std::memory_order_acquire) != number) return nullptr;
  return entry->cache.load(std::memory_order_relaxed);
}

}  // namespace kvc
