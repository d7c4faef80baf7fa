#include "src/base/memory.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <utility>

#include "src/base/error.h"
#include "src/base/math.h"
#include "src/base/process_mutex.h"

namespace kvc {
namespace {

constexpr std::align_val_t kScratchAlignment{64};
// Buffers have pages of their own: where those of two threads meet in one, both threads are slower
// by half.
constexpr size_t kBufferPage = 4096;
constexpr std::align_val_t kBufferAlignment{kBufferPage};
constexpr size_t kLargeBytes = size_t{4} << 20;
constexpr int kCollapse = 25;  // MADV_COLLAPSE, which older headers lack.

// Whole pages: how many of their bytes have physical memory; all where the system does not say.
int64_t resident_bytes(std::byte* begin, int64_t bytes) noexcept {
  constexpr int64_t kPagesAtOnce = 4096;
  unsigned char states[kPagesAtOnce];
  const int64_t granularity = system_page_bytes();
  int64_t resident = 0;
  for (int64_t done = 0; done < bytes; done += kPagesAtOnce * granularity) {
    const int64_t part = std::min(bytes - done, kPagesAtOnce * granularity);
    if (mincore(begin + done, static_cast<size_t>(part), states) != 0) return bytes;
    for (int64_t page = 0; page < part / granularity; ++page)
      resident += (states[page] & 1) * granularity;
  }
  return resident;
}

// The whole pages of [begin, end).
int64_t discard_pages(std::byte* begin, std::byte* end) noexcept {
  const int64_t granularity = system_page_bytes();
  const auto address = [](const std::byte* at) {
    return static_cast<int64_t>(reinterpret_cast<uintptr_t>(at));
  };
  std::byte* first = begin + (align_up(address(begin), granularity) - address(begin));
  const int64_t bytes = (address(end) - address(first)) / granularity * granularity;
  if (bytes <= 0) return 0;
  const int64_t resident = resident_bytes(first, bytes);
  // Memory that is locked stays. What was swapped to disk goes, too.
  return madvise(first, static_cast<size_t>(bytes), MADV_DONTNEED) == 0 ? resident : 0;
}

}  // namespace

int64_t system_page_bytes() {
  static constinit ProcessOnce<int64_t> bytes;
  return bytes.get([] { return int64_t{sysconf(_SC_PAGESIZE)}; });
}

int64_t largest_page_bytes() {
  const int file = open("/sys/kernel/mm/transparent_hugepage/enabled", O_RDONLY | O_CLOEXEC);
  if (file < 0) return system_page_bytes();
  char text[64] = {};
  const ssize_t size = read(file, text, sizeof text - 1);
  (void)close(file);
  const bool has_huge_pages = size > 0 && std::strstr(text, "[never]") == nullptr;
  return has_huge_pages ? kHugePage : system_page_bytes();
}

bool has_collapse() {
  static constinit ProcessOnce<int64_t> known;
  return known.get([] {
    // A call for no bytes does nothing, and fails where the advice is unknown.
    const bool is_known = madvise(nullptr, 0, kCollapse) == 0;
    return int64_t{is_known && largest_page_bytes() == kHugePage ? 1 : 2};
  }) == 1;
}

int64_t physical_memory_bytes() { return sysconf(_SC_PHYS_PAGES) * system_page_bytes(); }

int64_t available_memory_bytes() { return sysconf(_SC_AVPHYS_PAGES) * system_page_bytes(); }

ReservedMemory::ReservedMemory(int64_t bytes) : bytes_(align_up(bytes, system_page_bytes())) {
  const int64_t slack = bytes_ >= kHugePage ? kHugePage : 0;
  mapping_bytes_ = bytes_ + slack;
  void* mapping = mmap(nullptr, static_cast<size_t>(mapping_bytes_), PROT_NONE,
                       MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (mapping == MAP_FAILED) {
    fail_errno(KVC_E_NO_MEMORY, errno, "cannot reserve %lld bytes for the pool: %s",
               ll(mapping_bytes_), std::strerror(errno));
  }
  mapping_ = static_cast<std::byte*>(mapping);
  data_ = mapping_;
  if (slack != 0) {
    const auto address = reinterpret_cast<uintptr_t>(mapping_);
    data_ += align_up(static_cast<int64_t>(address % kHugePage), kHugePage) -
             static_cast<int64_t>(address % kHugePage);
    // Advice only: without huge pages the pool is slower to walk, never wrong.
    (void)madvise(data_, static_cast<size_t>(bytes_), MADV_HUGEPAGE);
  }
}

ReservedMemory::~ReservedMemory() {
  if (mapping_ != nullptr) munmap(mapping_, static_cast<size_t>(mapping_bytes_));
}

ReservedMemory::ReservedMemory(ReservedMemory&& other) noexcept { *this = std::move(other); }

ReservedMemory& ReservedMemory::operator=(ReservedMemory&& other) noexcept {
  std::swap(mapping_, other.mapping_);
  std::swap(mapping_bytes_, other.mapping_bytes_);
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void ReservedMemory::use_small_pages(int64_t begin, int64_t end) noexcept {
  const int64_t granularity = system_page_bytes();
  const int64_t first = align_up(begin, granularity);
  const int64_t last = std::min(end, bytes_) / granularity * granularity;
  if (first < last)
    (void)madvise(data_ + first, static_cast<size_t>(last - first), MADV_NOHUGEPAGE);
}

void ReservedMemory::use_huge_pages(int64_t begin, int64_t end) noexcept {
  const int64_t first = align_up(begin, kHugePage);
  const int64_t last = std::min(end, bytes_) / kHugePage * kHugePage;
  if (first < last) (void)madvise(data_ + first, static_cast<size_t>(last - first), MADV_HUGEPAGE);
}

void ReservedMemory::collapse(int64_t begin, int64_t end) noexcept {
  // One by one: memory that was never written ends a call.
  for (int64_t at = align_up(begin, kHugePage); at + kHugePage <= end; at += kHugePage)
    (void)madvise(data_ + at, static_cast<size_t>(kHugePage), kCollapse);
}

void ReservedMemory::make_usable(int64_t begin, int64_t end) {
  const int64_t granularity = system_page_bytes();
  const int64_t first = begin / granularity * granularity;
  const int64_t last = align_up(end, granularity);
  if (mprotect(data_ + first, static_cast<size_t>(last - first), PROT_READ | PROT_WRITE) != 0) {
    fail_errno(KVC_E_NO_MEMORY, errno, "cannot commit %lld bytes of the pool: %s", ll(last - first),
               std::strerror(errno));
  }
}

int64_t ReservedMemory::discard(int64_t begin, int64_t end) noexcept {
  return begin < end ? discard_pages(data_ + begin, data_ + end) : 0;
}

int64_t AlignedBuffer::discard() noexcept {
  return data_ == nullptr ? 0 : discard_pages(data_, data_ + bytes_);
}

void* allocate_large(size_t bytes) {
  if (bytes < kLargeBytes) return ::operator new(bytes, kScratchAlignment);
  void* data = ::operator new (bytes, std::align_val_t{static_cast<size_t>(kHugePage)});
  (void)madvise(data, bytes, MADV_HUGEPAGE);  // advice only
  return data;
}

void free_large(void* data, size_t bytes) noexcept {
  ::operator delete (data, bytes < kLargeBytes ? kScratchAlignment
                                               : std::align_val_t{static_cast<size_t>(kHugePage)});
}

AlignedBuffer::~AlignedBuffer() { ::operator delete(data_, kBufferAlignment); }

AlignedBuffer::AlignedBuffer(AlignedBuffer&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)), bytes_(std::exchange(other.bytes_, 0)) {}

AlignedBuffer& AlignedBuffer::operator=(AlignedBuffer&& other) noexcept {
  std::swap(data_, other.data_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

void AlignedBuffer::ensure(size_t bytes) {
  if (bytes <= bytes_) return;
  const size_t grown = (bytes + bytes / 4 + kBufferPage - 1) / kBufferPage * kBufferPage;
  auto* data = static_cast<std::byte*>(::operator new(grown, kBufferAlignment));
  ::operator delete(data_, kBufferAlignment);
  data_ = data;
  bytes_ = grown;
}

}  // namespace kvc
