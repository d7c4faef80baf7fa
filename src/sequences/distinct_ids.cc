#include "src/sequences/distinct_ids.h"

#include <algorithm>

#include "src/base/error.h"

namespace kvc {

void fail_duplicate(kvc_seq id) {
  fail_with(KVC_E_INVALID_ARGUMENT, id, "sequence %lld appears twice in seqs: ids must be distinct",
            ll(id));
}

void require_distinct(std::vector<kvc_seq> ids) {
  std::sort(ids.begin(), ids.end());
  const auto twice = std::adjacent_find(ids.begin(), ids.end());
  if (twice != ids.end()) fail_duplicate(*twice);
}

}  // namespace kvc
