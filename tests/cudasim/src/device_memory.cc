#include "device_memory.h"

#include <sys/mman.h>

#include <cstdlib>
#include <cstring>
#include <iterator>
#include <map>
#include <vector>

#include "report.h"
#include "runtime.h"
#include "sanitizers.h"

namespace cudasim {
namespace {

constexpr size_t kPage = 4096, kArenaBytes = size_t{64} << 30;

// One range of addresses, so that opening and closing all of it is one call.
struct Arena {
  std::byte* base = nullptr;
  size_t used = 0;
  int open = 0;
  std::map<size_t, std::vector<std::byte*>> available_pages;  // by bytes
  std::map<void*, size_t> taken;                              // bytes of pages
};
Arena& arena() {
  static Arena& made = *new Arena;
  if (made.base == nullptr) {
    void* space =
        mmap(nullptr, kArenaBytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (space == MAP_FAILED) fail("no address space for strict device memory");
    made.base = static_cast<std::byte*>(space);
    report_crashes();
  }
  return made;
}

void protect(void* begin, size_t bytes, int how) {
  if (bytes != 0 && mprotect(begin, bytes, how) != 0) fail("mprotect of %zu bytes failed", bytes);
}

// Mappings that follow each other are one call.
void protect_all(const Runtime& state, int how) {
  protect(arena().base, arena().used, how);
  uintptr_t begin = 0, end = 0;
  for (const auto& [at, mapping] : state.mappings) {
    if (!mapping.accessible) continue;
    if (at != end) {
      protect(reinterpret_cast<void*>(begin), end - begin, how);
      begin = at;
    }
    end = at + mapping.bytes;
  }
  protect(reinterpret_cast<void*>(begin), end - begin, how);
}

// The entry of a map from addresses that begins at or before `at`, or end().
template <typename Map>
auto at_or_before(Map& map, uintptr_t at) {
  auto next = map.upper_bound(at);
  return next == map.begin() ? map.end() : std::prev(next);
}

bool is_mapped(uintptr_t at) {
  unsigned char resident = 0;
  return mincore(reinterpret_cast<void*>(at / kPage * kPage), kPage, &resident) == 0;
}

}  // namespace

bool is_strict() {
#if defined(CUDASIM_ASAN)
  return false;  // it sees blocks to the byte, where they are the heap's
#else
  static const bool strict = [] {
    const char* text = std::getenv("KVC_CUDASIM_STRICT");
    return text != nullptr && *text != '\0' && std::strcmp(text, "0") != 0;
  }();
  return strict;
#endif
}

void* take_device_memory(size_t bytes) {
  if (!is_strict()) {
    void* memory = nullptr;
    if (posix_memalign(&memory, kAlignment, bytes) != 0) return nullptr;
    std::memset(memory, 0xff, bytes);
    return memory;
  }
  Arena& from = arena();
  const size_t size = (bytes + kPage - 1) / kPage * kPage;
  std::vector<std::byte*>& available_pages = from.available_pages[size];
  std::byte* address = nullptr;
  if (!available_pages.empty()) {
    address = available_pages.back();
    available_pages.pop_back();
  } else {
    if (from.used + size > kArenaBytes) return nullptr;
    address = from.base + from.used;
    from.used += size;
    protect(address, size, PROT_READ | PROT_WRITE);
  }
  from.taken[address] = size;
  std::memset(address, 0xff, bytes);
  return address;
}

void give_device_memory(void* address) {
  if (!is_strict()) {
    std::free(address);
    return;
  }
  Arena& to = arena();
  const auto block = to.taken.find(address);
  to.available_pages[block->second].push_back(static_cast<std::byte*>(address));
  to.taken.erase(block);
}

OpenDevices::OpenDevices(Runtime& runtime) : runtime_(runtime) {
  if (is_strict() && arena().open++ == 0) protect_all(runtime_, PROT_READ | PROT_WRITE);
}
OpenDevices::~OpenDevices() {
  if (is_strict() && --arena().open == 0) protect_all(runtime_, PROT_NONE);
}

bool is_closed_to_host(const void* address) {
  if (!is_strict() || arena().open > 0) return false;
  const Arena& all = arena();
  if (address >= all.base && address < all.base + all.used) return true;
  const auto at = reinterpret_cast<uintptr_t>(address);
  const auto& mappings = runtime().mappings;
  const auto mapping = at_or_before(mappings, at);
  return mapping != mappings.end() && at < mapping->first + mapping->second.bytes &&
         mapping->second.accessible;
}

void check_parameters(Runtime& state, const void* kernel, std::span<const std::byte> words) {
  if (!is_strict()) return;
  for (size_t offset = 0; offset + sizeof(uintptr_t) <= words.size(); offset += sizeof(uintptr_t)) {
    uintptr_t word = 0;
    std::memcpy(&word, words.data() + offset, sizeof word);
    if (word < 0x10000 || word >= uintptr_t{1} << 47) continue;
    const auto* address = reinterpret_cast<const void*>(word);
    if (place_of(state, address) != Place::kPageable || !is_mapped(word)) continue;
    const auto reservation = at_or_before(state.reservations, word);
    if (reservation != state.reservations.end() && word < reservation->first + reservation->second)
      continue;
    if (address >= arena().base && address < arena().base + kArenaBytes) continue;
    fail("%s is passed the address of pageable memory of the host, %p", kernel_name(kernel).c_str(),
         address);
  }
}

}  // namespace cudasim
