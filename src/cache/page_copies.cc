#include "src/cache/page_copies.h"

#include "src/base/error.h"
#include "src/cache/cache_core.h"
#include "src/exec/page_pairs.h"

namespace kvc {

void PageCopies::swap(const DLTensor* pairs, kvc_swap_direction direction) {
  if (direction != KVC_SWAP_OUT && direction != KVC_SWAP_IN) {
    fail_with(KVC_E_UNSUPPORTED, direction,
              "direction = %d is not supported: OUT (0) and IN (1) are", direction);
  }
  core_.require_storage("kvc_pages_swap");
  core_.host.check_use(HostUse::kByPage, "kvc_pages_swap");
  const PairedPool device{"device pool", core_.allocator.num_pages()},
      host{"host pool", core_.host.num_pages()};
  const bool is_out = direction == KVC_SWAP_OUT;
  const PagePairs checked =
      is_out ? read_page_pairs(pairs, device, host) : read_page_pairs(pairs, host, device);
  if (checked.size() == 0) return;  // no page has been used yet
  core_.host.start_use(HostUse::kByPage);
  core_.copier->copy(is_out ? CopyDirection::kDeviceToHost : CopyDirection::kHostToDevice,
                     checked.from.data(), checked.to.data(), checked.size());
  (is_out ? core_.counters.pages_swapped_out : core_.counters.pages_swapped_in) +=
      static_cast<uint64_t>(checked.size());
}

void PageCopies::copy(const DLTensor* pairs) {
  core_.require_storage("kvc_pages_copy");
  const PagePairs checked = read_page_pairs(pairs, {"device pool", core_.allocator.num_pages()});
  core_.copier->copy(CopyDirection::kInsideDevice, checked.from.data(), checked.to.data(),
                     checked.size());
}

}  // namespace kvc
