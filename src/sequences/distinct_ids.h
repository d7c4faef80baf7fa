// Lists of sequence ids in which none may come twice.
#pragma once

#include <vector>

#include "kvcache.h"

namespace kvc {

// Throws INVALID_ARGUMENT naming the id.
[[noreturn]] void fail_duplicate(kvc_seq id);
void require_distinct(std::vector<kvc_seq> ids);

}  // namespace kvc
