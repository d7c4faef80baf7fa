// Page copies by page ids: what the host program moves itself.
#include "src/base/error.h"
#include "src/cache/cache.h"

namespace kvc {

void Cache::swap_pages(const DLTensor* pairs, kvc_swap_direction direction) {
  if (direction != KVC_SWAP_OUT && direction != KVC_SWAP_IN) {
    fail_with(KVC_E_UNSUPPORTED, direction,
              "direction = %d is not supported: OUT (0) and IN (1) are", direction);
  }
  require_storage("kvc_pages_swap");
  host_.check_use(HostUse::kByPage, "kvc_pages_swap");
  const PairedPool device{"device pool", allocator_.num_pages()},
      host{"host pool", host_.num_pages()};
  const bool is_out = direction == KVC_SWAP_OUT;
  const PagePairs checked =
      is_out ? read_page_pairs(pairs, device, host) : read_page_pairs(pairs, host, device);
  if (checked.size() == 0) return;  // no page has been used yet
  host_.start_use(HostUse::kByPage);
  copier_->copy(is_out ? CopyDirection::kDeviceToHost : CopyDirection::kHostToDevice,
                checked.from.data(), checked.to.data(), checked.size());
  (is_out ? counters_.pages_swapped_out : counters_.pages_swapped_in) +=
      static_cast<uint64_t>(checked.size());
}

void Cache::copy_pages(const DLTensor* pairs) {
  require_storage("kvc_pages_copy");
  const PagePairs checked = read_page_pairs(pairs, {"device pool", allocator_.num_pages()});
  copier_->copy(CopyDirection::kInsideDevice, checked.from.data(), checked.to.data(),
                checked.size());
}

}  // namespace kvc
