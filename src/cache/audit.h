// kvc_cache_check: counts every invariant again from the sequences' tables and compares.
#pragma once

namespace kvc {

struct CacheCore;

// Throws CORRUPT naming the page, the state slot or the sequence; std::bad_alloc.
void audit(const CacheCore& core);

}  // namespace kvc
