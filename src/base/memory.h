// Raw memory: reserved address space that is committed when it is used, and aligned scratch
// buffers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <new>
#include <vector>

namespace kvc {

constexpr int64_t kHugePage = int64_t{2} << 20;

// What a vector has allocated. kvc_stats.host_bytes is the sum of such functions, each named
// host_bytes(): they count what an object has beside its own size, as it was asked for; the heap
// adds some to each block.
template <typename T, typename Allocator>
int64_t host_bytes(const std::vector<T, Allocator>& values) noexcept {
  return static_cast<int64_t>(values.capacity() * sizeof(T));
}

// Address space that costs nothing until a part is made usable and written. It works in pages. From
// 2 MiB on it is aligned to them and advises huge pages.
class ReservedMemory {
 public:
  ReservedMemory() = default;
  // Throws NO_MEMORY.
  explicit ReservedMemory(int64_t bytes);
  ~ReservedMemory();
  ReservedMemory(ReservedMemory&& other) noexcept;
  ReservedMemory& operator=(ReservedMemory&& other) noexcept;

  std::byte* data() const { return data_; }
  int64_t bytes() const { return bytes_; }
  // Advises small pages for the whole pages inside [begin, end): before the first write.
  void use_small_pages(int64_t begin, int64_t end) noexcept;
  // Advises huge pages for what is first written from now on.
  void use_huge_pages(int64_t begin, int64_t end) noexcept;
  // Moves small pages inside [begin, end), which advises huge pages, to huge ones, about a
  // millisecond each. Others may read and write them meanwhile. Needs has_collapse().
  void collapse(int64_t begin, int64_t end) noexcept;
  // Makes [begin, end), widened to whole pages, readable and writable; it is zero at first. Throws
  // NO_MEMORY.
  void make_usable(int64_t begin, int64_t end);
  // Gives the physical memory of the whole pages inside [begin, end) back. The range reads zero and
  // stays usable. Returns how many bytes had memory.
  int64_t discard(int64_t begin, int64_t end) noexcept;

 private:
  std::byte* mapping_ = nullptr;
  int64_t mapping_bytes_ = 0;
  std::byte* data_ = nullptr;
  int64_t bytes_ = 0;
};

int64_t system_page_bytes();
// The largest page that the system commits for memory which advises huge pages.
int64_t largest_page_bytes();
// The system moves small pages to huge ones when it is told to (Linux 6.1), and has huge pages.
bool has_collapse();
int64_t physical_memory_bytes();
int64_t available_memory_bytes();

// Memory for large arrays with scattered reads, on huge pages where the system has them. Otherwise
// the first touch of each small page, and each page walk afterwards, would cost more than the read.
// Throws std::bad_alloc.
void* allocate_large(size_t bytes);
void free_large(void* data, size_t bytes) noexcept;

template <typename T>
struct LargeAllocator {
  using value_type = T;
  LargeAllocator() = default;
  template <typename U>
  LargeAllocator(const LargeAllocator<U>&) {}

  T* allocate(size_t count) {
    if (count > SIZE_MAX / sizeof(T)) throw std::bad_alloc();
    return static_cast<T*>(allocate_large(count * sizeof(T)));
  }
  void deallocate(T* data, size_t count) noexcept { free_large(data, count * sizeof(T)); }
  friend bool operator==(const LargeAllocator&, const LargeAllocator&) { return true; }
};

// Scratch that only grows, 64-byte aligned. Growing loses its contents.
class AlignedBuffer {
 public:
  AlignedBuffer() = default;
  ~AlignedBuffer();
  AlignedBuffer(AlignedBuffer&& other) noexcept;
  AlignedBuffer& operator=(AlignedBuffer&& other) noexcept;

  // Throws std::bad_alloc and keeps the old buffer then.
  void ensure(size_t bytes);
  // As ReservedMemory::discard, of all of it.
  int64_t discard() noexcept;
  std::byte* data() const { return data_; }
  int64_t host_bytes() const { return static_cast<int64_t>(bytes_); }

 private:
  std::byte* data_ = nullptr;
  size_t bytes_ = 0;
};

inline int64_t buffer_bytes(const std::vector<AlignedBuffer>& buffers) {
  int64_t bytes = host_bytes(buffers);
  for (const AlignedBuffer& buffer : buffers) bytes += buffer.host_bytes();
  return bytes;
}

}  // namespace kvc
