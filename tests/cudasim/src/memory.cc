// Checks of addresses, and cp.async.
#include "cudasim/memory.h"

#include <cstring>

#include "counters.h"
#include "cudasim/engine.h"
#include "fibers.h"

namespace cudasim {
namespace {

void perform(const AsyncCopy& copy) {
  std::byte values[16] = {};
  if (copy.bytes != 0) std::memcpy(values, copy.global, static_cast<size_t>(copy.bytes));
  std::memcpy(copy.shared, values, 16);
}

// All copies of the groups before `limit`.
void perform_groups(Lane& lane, uint32_t limit) {
  while (lane.first_copy < lane.copies.size() && lane.copies[lane.first_copy].group < limit)
    perform(lane.copies[lane.first_copy++]);
  if (lane.first_copy == lane.copies.size()) {
    lane.copies.clear();
    lane.first_copy = 0;
  }
}

}  // namespace

void require_aligned(const void* address, size_t alignment, const char* function) {
  if (reinterpret_cast<uintptr_t>(address) % alignment != 0)
    fail("%s: %p is not %zu-byte aligned", function, address, alignment);
}

void require_shared(const void* address, size_t bytes, size_t alignment, const char* function) {
  if (!in_shared(address, bytes)) {
    const Cta& cta = *here->cta;
    fail("%s: shared memory %td to %td, the CTA has %zu bytes", function,
         static_cast<const std::byte*>(address) - cta.shared,
         static_cast<const std::byte*>(address) - cta.shared + static_cast<ptrdiff_t>(bytes),
         cta.shared_bytes);
  }
  require_aligned(address, alignment, function);
}

void require_global(const void* address, size_t alignment, const char* function) {
  require_aligned(address, alignment, function);
  if (in_shared(address, 1)) fail("%s: an address in shared memory", function);
  if (!here->may_access) fail("%s before wait_for_previous_kernel", function);
}

// The values move at issue (a quick machine) or at the wait (a slow one): the first shows buffers
// that are still being read, the second waits that are missing.
void copy_async_16(void* shared, const void* global, int bytes) {
  require_shared(shared, 16, 16, "copy_async_16 to");
  require_global(global, 16, "copy_async_16 from");
  if (bytes < 0 || bytes > 16) fail("copy_async_16 of %d bytes", bytes);
  memory_access();
  Lane& self = *here;
  const AsyncCopy copy{static_cast<std::byte*>(shared), static_cast<const std::byte*>(global),
                       bytes, self.open_group};
  if ((self.cta->random.next() & 3u) == 0)
    perform(copy);
  else
    self.copies.push_back(copy);
}

void copy_async_commit() { ++here->open_group; }

void copy_async_wait(uint32_t pending) {
  Lane& self = *here;
  if (self.open_group > pending) perform_groups(self, self.open_group - pending);
}

void finish_copies(Lane& lane) { perform_groups(lane, lane.open_group + 1); }

void count_host_bytes(uint64_t bytes) { counted().host_bytes_by_kernels += bytes; }

}  // namespace cudasim
